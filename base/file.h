/* Files: whole small ones read, and writing that never leaves half a file under its final name. Maps are file_map.h,
 * folders folder.h.
 *
 * What is read has to be a regular file, also through a link: a pipe or a device of that name would wait or never end.
 * What is written is first written under a name of ours, which is never opened through a link and never shared. */
#ifndef QR_BASE_FILE_H
#define QR_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

/* Opens a regular file for reading, without waiting. Everything else of that name is refused. The descriptor is the
 * caller's to close; *info is of the file that it reads. */
qrun_status qr_file_open_regular(const char *path, int *descriptor, struct stat *info, qr_error *err);

/* Reads a whole file into a qr_alloc'ed, NUL-terminated block (the NUL is not in *size). Refuses more than max_bytes.
 */
qrun_status qr_file_read(const char *path, size_t max_bytes, char **data, size_t *size, qr_error *err);

/* Whether there is an entry of that name, of any kind: a link to nothing is one, so that what is broken is not taken
 * for absent. */
bool qr_file_exists(const char *path);
bool qr_file_is_folder(const char *path);
bool qr_file_is_same(const char *path, const char *other); /* one entry by two names; false where there is none */
/* base + "/" + name in a new qr_alloc'ed string; NULL when memory is short. */
char *qr_path_join(const char *base, const char *name);

/* What is being written is called "<path>.qrun-partial-<pid>". Nobody else gives such names. */
#define QR_PARTIAL_SUFFIX ".qrun-partial-"
char *qr_file_partial_path(const char *path); /* qr_alloc'ed; NULL when memory is short */
/* The process that writes what is called by a name and this suffix; 0: it is no such suffix. */
long qr_file_partial_writer(const char *suffix);
bool qr_process_is_gone(long process); /* false where that cannot be known */
/* Creates a file of such a name in a folder (AT_FDCWD: `name` is a path), holds it by a lock while it is open, and
 * returns its descriptor. A file that nobody holds, as a killed program leaves it, makes room. −1 with errno: EBUSY
 * where a thread, or a program on another machine or in another container, writes it at the moment; EEXIST where what
 * has the name is not a file. */
int qr_file_create_partial(int folder, const char *name, mode_t mode);

/* A file that is written under its partial name; commit flushes, fsyncs, renames it to <path> and fsyncs the folder
 * (when only that fails, the file has its name, and the caller is told); abort removes it. A link at <path> is
 * replaced, not followed. Every function is a no-op on a zeroed writer except open. */
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
/* All that was written so far can be read at the descriptor. A file that is mapped then and aborted has no name, and is
 * gone with its map. */
qrun_status qr_file_writer_flush(qr_file_writer *writer, qr_error *err);
qrun_status qr_file_writer_commit(qr_file_writer *writer, qr_error *err);
void qr_file_writer_abort(qr_file_writer *writer);

/* Writes a whole small file through a writer. */
qrun_status qr_file_write(const char *path, const void *bytes, size_t n_bytes, qr_error *err);

/* Copies the file `from` (where links lead, that file) to `to`, through a writer. */
qrun_status qr_file_copy(const char *from, const char *to, qr_error *err);

/* Removes a file, for good before it returns. No file at path is fine. */
qrun_status qr_file_remove(const char *path, qr_error *err);

/* What Git leaves in the place of a file that Git LFS has not fetched: a few lines of text. */
bool qr_file_is_lfs_pointer(const void *bytes, size_t n_bytes);
#define QR_LFS_POINTER_HELP "is a pointer of Git LFS in the place of the file; fetch the file with: git lfs pull"

/* For what else works on files and folders: errno in words, and the two steps that make a rename last. */
qrun_status qr_file_fail_errno(qr_error *err, const char *path, const char *action);
bool qr_file_sync_folder(const char *path); /* false with errno set */
qrun_status qr_file_sync_parent(const char *path, qr_error *err);

#endif
