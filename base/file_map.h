/* Files mapped read-only. Reading a map whose file was cut short meanwhile, or whose disk fails, raises SIGBUS. Here
 * such reads see zeros instead, and qr_file_map_check says so afterwards: who reads a map calls it before trusting what
 * was read.
 *
 * For that a handler of SIGBUS is installed while any file is mapped, and what was there before is put back with the
 * last. It looks at nothing but addresses in these maps; every other SIGBUS goes to the handler of the host program, as
 * if ours were not there. Calls are thread-safe. */
#ifndef QR_BASE_FILE_MAP_H
#define QR_BASE_FILE_MAP_H

#include <stddef.h>

#include "base/status.h"

typedef struct qr_map_guard qr_map_guard;

typedef struct qr_file_map {
    const unsigned char *data; /* NULL when size is 0 */
    size_t size;
    qr_map_guard *guard;
} qr_file_map;

/* A map of a whole regular file; anything else is refused (qr_file_open_regular). */
qrun_status qr_file_map_open(const char *path, qr_file_map *map, qr_error *err);
/* The same of a regular file that is open; `path` names it in messages. The descriptor stays the caller's. */
qrun_status qr_file_map_descriptor(int descriptor, const char *path, qr_file_map *map, qr_error *err);
void qr_file_map_close(qr_file_map *map);

/* QRUN_ERROR_IO when the file is shorter now, or a read of the map has failed. `path` is the one it was opened by. */
qrun_status qr_file_map_check(const qr_file_map *map, const char *path, qr_error *err);

/* Asks the kernel to read [offset, offset + size) ahead: the caller will want it soon. */
void qr_file_map_want(const qr_file_map *map, size_t offset, size_t size);
/* Tells the kernel that [offset, offset + size) will not be read again soon. */
void qr_file_map_drop(const qr_file_map *map, size_t offset, size_t size);

#endif
