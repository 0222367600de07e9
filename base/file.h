/* Files: read-only maps, whole small files, and writing that never leaves half a file under its final name. */
#ifndef QR_BASE_FILE_H
#define QR_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A read-only map of a whole regular file. data is NULL when size is 0. A file truncated by someone else while it is
 * mapped raises SIGBUS in the reader, as with every mapped file. */
typedef struct qr_file_map {
    const unsigned char *data;
    size_t size;
} qr_file_map;

qrun_status qr_file_map_open(const char *path, qr_file_map *map, qr_error *err);
void qr_file_map_close(qr_file_map *map);
/* Tells the kernel that [offset, offset + size) will not be read again soon. */
void qr_file_map_drop(const qr_file_map *map, size_t offset, size_t size);

/* Reads a whole file into a qr_alloc'ed, NUL-terminated block (the NUL is not in *size). Refuses more than max_bytes.
 * Works on pipes too. */
qrun_status qr_file_read(const char *path, size_t max_bytes, char **data, size_t *size, qr_error *err);

bool qr_file_exists(const char *path); /* any kind of entry */
bool qr_file_is_folder(const char *path);
bool qr_file_is_same(const char *path, const char *other); /* one entry by two names; false where there is none */
/* base + "/" + name in a new qr_alloc'ed string; NULL when memory is short. */
char *qr_path_join(const char *base, const char *name);

/* A file that is written under the name "<path>.partial-<pid>"; commit flushes, fsyncs, renames it to <path> and fsyncs
 * the folder (when only that fails, the file has its name, and the caller is told); abort removes it. Every function is
 * a no-op on a zeroed writer except open. */
typedef struct qr_file_writer {
    int descriptor; /* valid while path != NULL */
    char *path;
    char *partial_path;
    char *block; /* output buffer */
    size_t block_used;
    int64_t offset; /* bytes written so far */
} qr_file_writer;

qrun_status qr_file_writer_open(qr_file_writer *writer, const char *path, qr_error *err);
qrun_status qr_file_writer_write(qr_file_writer *writer, const void *bytes, size_t n_bytes, qr_error *err);
qrun_status qr_file_writer_commit(qr_file_writer *writer, qr_error *err);
void qr_file_writer_abort(qr_file_writer *writer);

/* Writes a whole small file through a writer. */
qrun_status qr_file_write(const char *path, const void *bytes, size_t n_bytes, qr_error *err);

/* Removes a file, for good before it returns. No file at path is fine. */
qrun_status qr_file_remove(const char *path, qr_error *err);

/* A folder that is written under the name "<path>.partial-<pid>", flat: the caller puts files into partial_path. commit
 * fsyncs it and renames it to path, abort removes it with the files in it; commit aborts when it fails. path must not
 * exist and its parent must. open removes what killed writers of the same path left. commit and abort are no-ops on a
 * zeroed writer. */
typedef struct qr_folder_writer {
    char *path, *partial_path;
    int lock; /* on partial_path, while it is written; −1: none */
} qr_folder_writer;

qrun_status qr_folder_writer_open(qr_folder_writer *writer, const char *path, qr_error *err);
qrun_status qr_folder_writer_commit(qr_folder_writer *writer, qr_error *err);
void qr_folder_writer_abort(qr_folder_writer *writer);

/* Removes a folder and the files in it. If it contains folders, they and it stay. No folder at path is fine. A symbolic
 * link at path is QRUN_ERROR_IO: nothing is ever removed through a link. */
qrun_status qr_folder_remove_flat(const char *path, qr_error *err);

/* The same for a folder whose name says that it is complete: it is first renamed as one that is still being written,
 * then emptied and removed. */
qrun_status qr_folder_retire(const char *path, qr_error *err);

/* Removes what writers of killed programs left in a folder ("*.partial-<pid>"). Whoever calls it must know that no
 * other program is writing there (qr_folder_lock). No folder at path is fine. */
qrun_status qr_folder_remove_partials(const char *path, qr_error *err);

/* Locks the folder, in this process and others, until qr_folder_unlock or the end of the process; QRUN_ERROR_BUSY when
 * it is locked. The descriptor is the caller's to keep (−1: none, fine to unlock). On a file system without locks it
 * always succeeds. */
qrun_status qr_folder_lock(const char *path, int *descriptor, qr_error *err);
void qr_folder_unlock(int *descriptor);

/* Makes the folder and its parents where they are missing. */
qrun_status qr_folder_create(const char *path, qr_error *err);

#endif
