#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"

enum { READ_BLOCK_BYTES = 1 << 16, WRITER_BLOCK_BYTES = 1 << 20 };

bool qr_file_is_lfs_pointer(const void *bytes, size_t n_bytes) {
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    return n_bytes >= sizeof begin - 1 && memcmp(bytes, begin, sizeof begin - 1) == 0;
}

qrun_status qr_file_fail_errno(qr_error *err, const char *path, const char *action) {
    const int code = errno;
    const qrun_status status = code == ENOENT   ? QRUN_ERROR_NOT_FOUND
                               : code == ENOMEM ? QRUN_ERROR_MEMORY
                                                : QRUN_ERROR_IO;
    struct stat info;
    const bool dangles = code == ENOENT && lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
    const char *help = dangles          ? "; it is a symbolic link to a file that is not there"
                       : code == ENOENT ? "; check the path"
                       : code == EACCES ? "; check its permissions"
                       : code == ENOSPC ? "; free some space or choose another folder"
                       : code == ENOMEM ? "; allow more address space (ulimit -v), or close other programs"
                       : code == EFBIG  ? "; allow larger files (ulimit -f) or choose another folder"
                                        : "";
    return qr_fail(err, status, "%s: cannot %s: %s%s", path, action, strerror(code), help);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

qrun_status qr_file_open_regular(const char *path, int *descriptor, struct stat *info, qr_error *err) {
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* opening a pipe waits for its writer */
    if (*descriptor < 0 && errno == ENXIO) { return qr_fail(err, QRUN_ERROR_IO, "%s: is a socket, not a file", path); }
    if (*descriptor < 0) { return qr_file_fail_errno(err, path, "open"); }
    qrun_status status = QRUN_OK;
    if (fstat(*descriptor, info) != 0) {
        status = qr_file_fail_errno(err, path, "read its size");
    } else if (!S_ISREG(info->st_mode)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: is %s, not a file", path, kind_of(info->st_mode));
    }
    if (status != QRUN_OK) { close(*descriptor); }
    return status;
}

/* The next block of the file; *n_bytes is 0 at its end. */
static qrun_status read_block(const char *path, int descriptor, char *block, size_t *n_bytes, qr_error *err) {
    ssize_t n;
    do { n = read(descriptor, block, READ_BLOCK_BYTES); } while (n < 0 && errno == EINTR);
    *n_bytes = n > 0 ? (size_t)n : 0;
    return n >= 0 ? QRUN_OK : qr_file_fail_errno(err, path, "read");
}

qrun_status qr_file_read(const char *path, size_t max_bytes, char **data, size_t *size, qr_error *err) {
    int descriptor;
    struct stat info;
    *data = NULL;
    *size = 0;
    QR_RETURN_IF_ERROR(qr_file_open_regular(path, &descriptor, &info, err));
    qr_buffer buffer = {0};
    char *block = qr_alloc(READ_BLOCK_BYTES);
    qrun_status status = QRUN_OK;
    if (block == NULL) { QR_TRY(qr_fail_memory(err, path, READ_BLOCK_BYTES)); }
    for (size_t n = 1; n > 0;) {
        QR_TRY(read_block(path, descriptor, block, &n, err));
        if (n > max_bytes - buffer.size) {
            QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: is larger than the %zu bytes allowed here", path, max_bytes));
        }
        qr_buffer_append(&buffer, block, n);
        if (!qr_buffer_ok(&buffer)) { QR_TRY(qr_fail_memory(err, path, buffer.size)); }
    }
    const size_t n_bytes = buffer.size;
    *data = qr_buffer_take(&buffer);
    if (*data == NULL) { QR_TRY(qr_fail_memory(err, path, n_bytes)); }
    *size = n_bytes;
out:
    close(descriptor);
    qr_free(block);
    qr_buffer_free(&buffer);
    return status;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* A link to nothing is there too, and so is what may not be looked at: opening it says what is wrong. */
bool qr_file_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

bool qr_file_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool qr_file_is_same(const char *path, const char *other) {
    struct stat a, b;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

char *qr_path_join(const char *base, const char *name) {
    qr_buffer path = {0};
    qr_buffer_append_text(&path, base);
    if (path.size > 0 && path.data != NULL && path.data[path.size - 1] != '/') { qr_buffer_append_char(&path, '/'); }
    qr_buffer_append_text(&path, name);
    return qr_buffer_take(&path);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

char *qr_file_partial_path(const char *path) {
    qr_buffer partial = {0};
    qr_buffer_append_format(&partial, "%s" QR_PARTIAL_SUFFIX "%ld", path, (long)getpid());
    return qr_buffer_take(&partial);
}

static void writer_free(qr_file_writer *writer) {
    qr_free(writer->path);
    qr_free(writer->partial_path);
    qr_free(writer->block);
    *writer = (qr_file_writer){0};
}

long qr_file_partial_writer(const char *suffix) {
    enum { MOST_DIGITS = 10 };
    const size_t length = sizeof QR_PARTIAL_SUFFIX - 1;
    if (strncmp(suffix, QR_PARTIAL_SUFFIX, length) != 0) { return 0; }
    const char *digits = suffix + length;
    const size_t n_digits = strspn(digits, "0123456789");
    return n_digits > 0 && n_digits <= MOST_DIGITS && digits[n_digits] == '\0' ? strtol(digits, NULL, 10) : 0;
}

bool qr_process_is_gone(long process) {
    return process > 0 && process <= INT_MAX && kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

/* False where another holds it; on a file system without locks nobody does. */
static bool hold(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

/* Whether the descriptor is still what the name leads to: between being created and being held, a file can be taken for
 * one that a killed program left. */
static bool has_name(int descriptor, int folder, const char *name) {
    struct stat own, named;
    return fstat(descriptor, &own) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

/* Removes a file that nobody holds; errno says why it stays. */
static bool remove_unheld(int folder, const char *name) {
    struct stat info;
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC; /* NFS locks what is open for writing */
    const int descriptor = openat(folder, name, flags);
    if (descriptor < 0) {
        errno = errno == ELOOP || errno == EISDIR ? EEXIST : errno;
        return errno == ENOENT; /* it has gone meanwhile */
    }
    int code = EEXIST;
    if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) {
        code = !hold(descriptor) ? EBUSY : unlinkat(folder, name, 0) != 0 ? errno : 0;
    }
    close(descriptor);
    errno = code;
    return code == 0;
}

/* Its name can be foretold, so nothing that has it already is written through. */
int qr_file_create_partial(int folder, const char *name, mode_t mode) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int descriptor = openat(folder, name, flags, mode);
    if (descriptor < 0 && errno == EEXIST && remove_unheld(folder, name)) {
        descriptor = openat(folder, name, flags, mode);
        if (descriptor < 0 && errno == EEXIST) { errno = EBUSY; }
    }
    if (descriptor < 0 || (hold(descriptor) && has_name(descriptor, folder, name))) { return descriptor; }
    close(descriptor);
    errno = EBUSY;
    return -1;
}

static qrun_status create_partial(qr_file_writer *writer, qr_error *err) {
    writer->descriptor = qr_file_create_partial(AT_FDCWD, writer->partial_path, 0666);
    if (writer->descriptor >= 0) { return QRUN_OK; }
    if (errno == EEXIST) {
        return qr_fail(err, QRUN_ERROR_IO, "%s: is in the way, and is not a file that qrun left; remove it",
                       writer->partial_path);
    }
    if (errno != EBUSY) { return qr_file_fail_errno(err, writer->path, "create"); }
    return qr_fail(err, QRUN_ERROR_BUSY, "%s: is being written at the moment, by another thread or program",
                   writer->path);
}

qrun_status qr_file_writer_open(qr_file_writer *writer, const char *path, qr_error *err) {
    *writer = (qr_file_writer){0};
    writer->partial_path = qr_file_partial_path(path);
    writer->block = qr_alloc(WRITER_BLOCK_BYTES);
    writer->path = qr_strdup(path);
    qrun_status status = QRUN_OK;
    if (writer->partial_path == NULL || writer->block == NULL || writer->path == NULL) {
        status = qr_fail_memory(err, path, WRITER_BLOCK_BYTES);
    } else {
        status = create_partial(writer, err);
    }
    if (status != QRUN_OK) { writer_free(writer); }
    return status;
}

static qrun_status write_all(qr_file_writer *writer, const char *bytes, size_t n_bytes, qr_error *err) {
    while (n_bytes > 0) {
        const ssize_t n = write(writer->descriptor, bytes, n_bytes);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return qr_file_fail_errno(err, writer->path, "write"); }
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return QRUN_OK;
}

qrun_status qr_file_writer_flush(qr_file_writer *writer, qr_error *err) {
    const qrun_status status = write_all(writer, writer->block, writer->block_used, err);
    writer->block_used = 0;
    return status;
}

qrun_status qr_file_writer_write(qr_file_writer *writer, const void *bytes, size_t n_bytes, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    const char *from = bytes;
    writer->offset += (int64_t)n_bytes;
    while (n_bytes > 0) {
        const size_t free_bytes = WRITER_BLOCK_BYTES - writer->block_used,
                     n = n_bytes < free_bytes ? n_bytes : free_bytes;
        memcpy(writer->block + writer->block_used, from,
               n); /* not the kernel: it cannot read a map that was cut short */
        writer->block_used += n;
        from += n;
        n_bytes -= n;
        if (writer->block_used == WRITER_BLOCK_BYTES) { QR_RETURN_IF_ERROR(qr_file_writer_flush(writer, err)); }
    }
    return QRUN_OK;
}

/* A file system that cannot sync folders says EINVAL; there is nothing better to be had from it. */
bool qr_file_sync_folder(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) { return false; }
    const bool done = fsync(descriptor) == 0 || errno == EINVAL;
    const int code = errno;
    close(descriptor);
    errno = code;
    return done;
}

/* The rename is durable only once the folder that holds the name is on disk. */
qrun_status qr_file_sync_parent(const char *path, qr_error *err) {
    char folder[PATH_MAX] = "."; /* no allocation: the file is in place now, so this must not fail for lack of memory */
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (length > 0 && length < sizeof folder) { (void)snprintf(folder, sizeof folder, "%.*s", (int)length, path); }
    return qr_file_sync_folder(folder) ? QRUN_OK : qr_file_fail_errno(err, path, "write the folder that holds it");
}

qrun_status qr_file_writer_commit(qr_file_writer *writer, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    qrun_status status = qr_file_writer_flush(writer, err);
    if (status == QRUN_OK && fsync(writer->descriptor) != 0 && errno != EINVAL) {
        status = qr_file_fail_errno(err, writer->path, "write");
    }
    const int lock = dup(writer->descriptor); /* holds the file until it has its name */
    if (close(writer->descriptor) != 0 && status == QRUN_OK) {
        status = qr_file_fail_errno(err, writer->path, "close");
    }
    if (status == QRUN_OK && rename(writer->partial_path, writer->path) != 0) {
        status = qr_file_fail_errno(err, writer->path, "put in place");
    }
    if (status == QRUN_OK) {
        status = qr_file_sync_parent(writer->path, err);
    } else {
        unlink(writer->partial_path);
    }
    if (lock >= 0) { close(lock); }
    writer_free(writer);
    return status;
}

void qr_file_writer_abort(qr_file_writer *writer) {
    if (writer->path == NULL) { return; }
    unlink(writer->partial_path);
    close(writer->descriptor);
    writer_free(writer);
}

qrun_status qr_file_write(const char *path, const void *bytes, size_t n_bytes, qr_error *err) {
    qr_file_writer writer;
    qrun_status status = qr_file_writer_open(&writer, path, err);
    if (status != QRUN_OK) { return status; }
    status = qr_file_writer_write(&writer, bytes, n_bytes, err);
    if (status == QRUN_OK) { return qr_file_writer_commit(&writer, err); }
    qr_file_writer_abort(&writer);
    return status;
}

static qrun_status copy_blocks(const char *path, int descriptor, qr_file_writer *writer, qr_error *err) {
    char *block = qr_alloc(READ_BLOCK_BYTES);
    if (block == NULL) { return qr_fail_memory(err, path, READ_BLOCK_BYTES); }
    qrun_status status = QRUN_OK;
    for (size_t n = 1; status == QRUN_OK && n > 0;) {
        status = read_block(path, descriptor, block, &n, err);
        if (status == QRUN_OK) { status = qr_file_writer_write(writer, block, n, err); }
    }
    qr_free(block);
    return status;
}

qrun_status qr_file_copy(const char *from, const char *to, qr_error *err) {
    int descriptor;
    struct stat info;
    qr_file_writer writer = {0};
    QR_RETURN_IF_ERROR(qr_file_open_regular(from, &descriptor, &info, err));
    qrun_status status;
    QR_TRY(qr_file_writer_open(&writer, to, err));
    QR_TRY(copy_blocks(from, descriptor, &writer, err));
    QR_TRY(qr_file_writer_commit(&writer, err));
out:
    qr_file_writer_abort(&writer);
    close(descriptor);
    return status;
}

qrun_status qr_file_remove(const char *path, qr_error *err) {
    if (unlink(path) != 0) { return errno == ENOENT ? QRUN_OK : qr_file_fail_errno(err, path, "remove"); }
    return qr_file_sync_parent(path, err);
}
