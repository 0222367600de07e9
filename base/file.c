#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"

enum { WRITER_BLOCK_BYTES = 1 << 20 };
#define PARTIAL_SUFFIX ".partial-"

static qrun_status fail_errno(qr_error *err, const char *path, const char *action) {
    const int code = errno;
    const qrun_status status = code == ENOENT ? QRUN_ERROR_NOT_FOUND : QRUN_ERROR_IO;
    const char *help = code == ENOENT   ? "; check the path"
                       : code == EACCES ? "; check its permissions"
                       : code == ENOSPC ? "; free some space or choose another folder"
                                        : "";
    return qr_fail(err, status, "%s: cannot %s: %s%s", path, action, strerror(code), help);
}

qrun_status qr_file_map_open(const char *path, qr_file_map *map, qr_error *err) {
    *map = (qr_file_map){0};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) { return fail_errno(err, path, "open"); }
    qrun_status status = QRUN_OK;
    struct stat info;
    if (fstat(descriptor, &info) != 0) {
        status = fail_errno(err, path, "read its size");
    } else if (!S_ISREG(info.st_mode)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: is not a regular file", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
        if (data == MAP_FAILED) {
            status = fail_errno(err, path, "map");
        } else {
            *map = (qr_file_map){data, (size_t)info.st_size};
        }
    }
    close(descriptor);
    return status;
}

void qr_file_map_close(qr_file_map *map) {
    if (map->data != NULL) { munmap((void *)(uintptr_t)map->data, map->size); }
    *map = (qr_file_map){0};
}

void qr_file_map_drop(const qr_file_map *map, size_t offset, size_t size) {
    if (map->data == NULL || offset >= map->size) { return; }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t end = size < map->size - offset ? offset + size : map->size;
    const size_t first = (offset + page - 1) / page * page;
    const size_t last = end / page * page;
    if (last > first) { madvise((void *)((uintptr_t)map->data + first), last - first, MADV_DONTNEED); }
}

qrun_status qr_file_read(const char *path, size_t max_bytes, char **data, size_t *size, qr_error *err) {
    *data = NULL;
    *size = 0;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) { return fail_errno(err, path, "open"); }
    qrun_status status = QRUN_OK;
    qr_buffer buffer = {0};
    char *block = qr_alloc(1 << 16);
    if (block == NULL) { status = qr_fail_memory(err, path, 1 << 16); }
    while (status == QRUN_OK) {
        const ssize_t n = read(descriptor, block, 1 << 16);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { status = fail_errno(err, path, "read"); }
        if (n <= 0) { break; }
        if ((size_t)n > max_bytes - buffer.size) {
            status = qr_fail(err, QRUN_ERROR_INPUT, "%s: is larger than the %zu bytes allowed here", path, max_bytes);
        } else {
            qr_buffer_append(&buffer, block, (size_t)n);
            if (!qr_buffer_ok(&buffer)) { status = qr_fail_memory(err, path, buffer.size); }
        }
    }
    close(descriptor);
    qr_free(block);
    const size_t n_bytes = buffer.size;
    char *text = status == QRUN_OK ? qr_buffer_take(&buffer) : NULL;
    if (status == QRUN_OK && text == NULL) { status = qr_fail_memory(err, path, n_bytes); }
    qr_buffer_free(&buffer);
    if (status == QRUN_OK) {
        *data = text;
        *size = n_bytes;
    }
    return status;
}

bool qr_file_exists(const char *path) { return access(path, F_OK) == 0; }

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

static char *partial_path_of(const char *path) {
    qr_buffer partial = {0};
    qr_buffer_append_format(&partial, "%s" PARTIAL_SUFFIX "%ld", path, (long)getpid());
    return qr_buffer_take(&partial);
}

static void writer_free(qr_file_writer *writer) {
    qr_free(writer->path);
    qr_free(writer->partial_path);
    qr_free(writer->block);
    *writer = (qr_file_writer){0};
}

qrun_status qr_file_writer_open(qr_file_writer *writer, const char *path, qr_error *err) {
    *writer = (qr_file_writer){0};
    writer->partial_path = partial_path_of(path);
    writer->block = qr_alloc(WRITER_BLOCK_BYTES);
    writer->path = qr_strdup(path);
    qrun_status status = QRUN_OK;
    if (writer->partial_path == NULL || writer->block == NULL || writer->path == NULL) {
        status = qr_fail_memory(err, path, WRITER_BLOCK_BYTES);
    } else {
        writer->descriptor = open(writer->partial_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (writer->descriptor < 0) { status = fail_errno(err, path, "create"); }
    }
    if (status != QRUN_OK) { writer_free(writer); }
    return status;
}

static qrun_status write_all(qr_file_writer *writer, const char *bytes, size_t n_bytes, qr_error *err) {
    while (n_bytes > 0) {
        const ssize_t n = write(writer->descriptor, bytes, n_bytes);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return fail_errno(err, writer->path, "write"); }
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return QRUN_OK;
}

static qrun_status writer_flush(qr_file_writer *writer, qr_error *err) {
    const qrun_status status = write_all(writer, writer->block, writer->block_used, err);
    writer->block_used = 0;
    return status;
}

qrun_status qr_file_writer_write(qr_file_writer *writer, const void *bytes, size_t n_bytes, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    writer->offset += (int64_t)n_bytes;
    if (n_bytes > WRITER_BLOCK_BYTES - writer->block_used) { QR_RETURN_IF_ERROR(writer_flush(writer, err)); }
    if (n_bytes > WRITER_BLOCK_BYTES) { return write_all(writer, bytes, n_bytes, err); }
    if (n_bytes > 0) { memcpy(writer->block + writer->block_used, bytes, n_bytes); }
    writer->block_used += n_bytes;
    return QRUN_OK;
}

/* A file system that cannot sync folders says EINVAL; there is nothing better to be had from it. */
static bool sync_folder(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) { return false; }
    const bool done = fsync(descriptor) == 0 || errno == EINVAL;
    const int code = errno;
    close(descriptor);
    errno = code;
    return done;
}

/* The rename is durable only once the folder that holds the name is on disk. */
static qrun_status sync_parent(const char *path, qr_error *err) {
    char folder[PATH_MAX] = "."; /* no allocation: the file is in place now, so this must not fail for lack of memory */
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (length > 0 && length < sizeof folder) { (void)snprintf(folder, sizeof folder, "%.*s", (int)length, path); }
    return sync_folder(folder) ? QRUN_OK : fail_errno(err, path, "write the folder that holds it");
}

qrun_status qr_file_writer_commit(qr_file_writer *writer, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    qrun_status status = writer_flush(writer, err);
    if (status == QRUN_OK && fsync(writer->descriptor) != 0 && errno != EINVAL) {
        status = fail_errno(err, writer->path, "write");
    }
    if (close(writer->descriptor) != 0 && status == QRUN_OK) { status = fail_errno(err, writer->path, "close"); }
    if (status == QRUN_OK && rename(writer->partial_path, writer->path) != 0) {
        status = fail_errno(err, writer->path, "put in place");
    }
    if (status == QRUN_OK) {
        status = sync_parent(writer->path, err);
    } else {
        unlink(writer->partial_path);
    }
    writer_free(writer);
    return status;
}

void qr_file_writer_abort(qr_file_writer *writer) {
    if (writer->path == NULL) { return; }
    close(writer->descriptor);
    unlink(writer->partial_path);
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

qrun_status qr_file_remove(const char *path, qr_error *err) {
    if (unlink(path) != 0) { return errno == ENOENT ? QRUN_OK : fail_errno(err, path, "remove"); }
    return sync_parent(path, err);
}

/* Removes name, in the open folder, where it is a file; where it is a folder nothing happens. */
static bool remove_file_in(DIR *folder, const char *name) {
    return unlinkat(dirfd(folder), name, 0) == 0 || errno == ENOENT || errno == EISDIR;
}

static bool is_link(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static qrun_status refuse_link(const char *path, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_IO, "%s: is a symbolic link, so what it points to is left alone; remove the link",
                   path);
}

/* The entries of a folder, never of one that a symbolic link points to. NULL with errno set. */
static DIR *open_own_folder(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = descriptor >= 0 ? fdopendir(descriptor) : NULL;
    if (folder == NULL && descriptor >= 0) { close(descriptor); }
    return folder;
}

qrun_status qr_folder_remove_flat(const char *path, qr_error *err) {
    DIR *folder = open_own_folder(path);
    if (folder == NULL && errno == ENOENT) { return QRUN_OK; }
    if (folder == NULL) { return is_link(path) ? refuse_link(path, err) : fail_errno(err, path, "remove"); }
    qrun_status status = QRUN_OK;
    for (const struct dirent *entry; status == QRUN_OK && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        if (!remove_file_in(folder, entry->d_name)) { status = fail_errno(err, path, "remove what is in it"); }
    }
    closedir(folder);
    if (status == QRUN_OK && rmdir(path) != 0 && errno != ENOTEMPTY) { status = fail_errno(err, path, "remove"); }
    return status;
}

qrun_status qr_folder_retire(const char *path, qr_error *err) {
    if (is_link(path)) { return refuse_link(path, err); }
    char *aside = partial_path_of(path);
    if (aside == NULL) { return qr_fail_memory(err, path, strlen(path)); }
    const qrun_status status =
        rename(path, aside) == 0 ? qr_folder_remove_flat(aside, err) : fail_errno(err, path, "remove");
    qr_free(aside);
    return status;
}

/* Whether the name is one that partial_path_of gives. */
static bool is_partial(const char *name) {
    const char *suffix = NULL;
    for (const char *at = name; (at = strstr(at, PARTIAL_SUFFIX)) != NULL; at++) { suffix = at; }
    if (suffix == NULL || suffix == name) { return false; }
    suffix += sizeof PARTIAL_SUFFIX - 1;
    return *suffix != '\0' && suffix[strspn(suffix, "0123456789")] == '\0';
}

qrun_status qr_folder_remove_partials(const char *path, qr_error *err) {
    DIR *folder = opendir(path);
    if (folder == NULL) { return errno == ENOENT ? QRUN_OK : fail_errno(err, path, "look into the folder"); }
    qrun_status status = QRUN_OK;
    for (const struct dirent *entry; status == QRUN_OK && (entry = readdir(folder)) != NULL;) {
        if (!is_partial(entry->d_name)) { continue; }
        char *left = qr_path_join(path, entry->d_name);
        if (left == NULL) {
            status = qr_fail_memory(err, path, strlen(path));
        } else if (is_link(left)) {
            /* No writer makes one, so it is somebody else's. */
        } else if (qr_file_is_folder(left)) {
            status = qr_folder_remove_flat(left, err);
        } else if (unlink(left) != 0 && errno != ENOENT) {
            status = fail_errno(err, left, "remove");
        }
        qr_free(left);
    }
    closedir(folder);
    return status;
}

qrun_status qr_folder_lock(const char *path, int *descriptor, qr_error *err) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0) { return fail_errno(err, path, "open the folder"); }
    if (flock(*descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) { return QRUN_OK; }
    qr_folder_unlock(descriptor);
    return qr_fail(err, QRUN_ERROR_BUSY,
                   "%s: another run is using this folder; wait until it ends, or choose another folder", path);
}

void qr_folder_unlock(int *descriptor) {
    if (*descriptor >= 0) { close(*descriptor); }
    *descriptor = -1;
}

static void folder_writer_free(qr_folder_writer *writer) {
    qr_folder_unlock(&writer->lock);
    qr_free(writer->path);
    qr_free(writer->partial_path);
    *writer = (qr_folder_writer){.lock = -1};
}

/* Whether what follows the folder's name says that this is the folder of a writer whose process is gone. */
static bool is_of_dead_writer(const char *rest) {
    const size_t length = sizeof PARTIAL_SUFFIX - 1;
    if (strncmp(rest, PARTIAL_SUFFIX, length) != 0 || strspn(rest + length, "0123456789") != strlen(rest + length)) {
        return false;
    }
    const long pid = strtol(rest + length, NULL, 10);
    return pid == (long)getpid() || (pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

/* The process alone would not say it of one in another container, and the lock alone not on a file system without. */
static void remove_if_unheld(const char *folder) {
    int lock;
    if (!qr_file_is_folder(folder) || qr_folder_lock(folder, &lock, NULL) != QRUN_OK) { return; }
    (void)qr_folder_remove_flat(folder, NULL);
    qr_folder_unlock(&lock);
}

/* Removes what killed writers of this path left. What cannot be removed stays; that is no error. */
static void remove_left_over(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const size_t length = strlen(name);
    char *parent = slash != NULL ? qr_strndup(path, (size_t)(slash - path) + 1) : qr_strdup(".");
    DIR *listing = parent != NULL ? opendir(parent) : NULL;
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (strncmp(entry->d_name, name, length) != 0 || !is_of_dead_writer(entry->d_name + length)) { continue; }
        char *left = qr_path_join(parent, entry->d_name);
        if (left != NULL) { remove_if_unheld(left); }
        qr_free(left);
    }
    if (listing != NULL) { closedir(listing); }
    qr_free(parent);
}

qrun_status qr_folder_writer_open(qr_folder_writer *writer, const char *path, qr_error *err) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') { length--; }
    *writer = (qr_folder_writer){.path = qr_strndup(path, length), .lock = -1};
    if (writer->path != NULL) { writer->partial_path = partial_path_of(writer->path); }
    qrun_status status = QRUN_OK;
    if (writer->partial_path == NULL) {
        status = qr_fail_memory(err, path, length);
    } else if (qr_file_exists(writer->path)) {
        status =
            qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: already exists; choose another name or remove it", writer->path);
    } else {
        remove_left_over(writer->path);
        if (mkdir(writer->partial_path, 0777) != 0) { status = fail_errno(err, writer->path, "create the folder"); }
    }
    if (status != QRUN_OK) {
        folder_writer_free(writer);
        return status;
    }
    (void)qr_folder_lock(writer->partial_path, &writer->lock, NULL);
    return QRUN_OK;
}

void qr_folder_writer_abort(qr_folder_writer *writer) {
    if (writer->path == NULL) { return; }
    (void)qr_folder_remove_flat(writer->partial_path, NULL);
    folder_writer_free(writer);
}

qrun_status qr_folder_writer_commit(qr_folder_writer *writer, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    qrun_status status = QRUN_OK;
    if (!sync_folder(writer->partial_path)) {
        status = fail_errno(err, writer->path, "write");
    } else if (qr_file_exists(writer->path)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: was created by another program in the meantime; choose another name",
                         writer->path);
    } else if (rename(writer->partial_path, writer->path) != 0) {
        status = fail_errno(err, writer->path, "put in place");
    }
    if (status != QRUN_OK) {
        qr_folder_writer_abort(writer);
        return status;
    }
    status = sync_parent(writer->path, err);
    folder_writer_free(writer);
    return status;
}

qrun_status qr_folder_create(const char *path, qr_error *err) {
    char *copy = qr_strdup(path);
    if (copy == NULL) { return qr_fail_memory(err, path, strlen(path)); }
    qrun_status status = QRUN_OK;
    for (char *end = copy;; end++) {
        if (*end != '/' && *end != '\0') { continue; }
        const char kept = *end;
        *end = '\0';
        if (end != copy && mkdir(copy, 0777) == 0) {
            status = sync_parent(copy, err);
        } else if (end != copy && errno != EEXIST) {
            status = fail_errno(err, copy, "create the folder");
        }
        *end = kept;
        if (kept == '\0' || status != QRUN_OK) { break; }
    }
    if (status == QRUN_OK && !qr_file_is_folder(path)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: exists and is not a folder", path);
    }
    qr_free(copy);
    return status;
}
