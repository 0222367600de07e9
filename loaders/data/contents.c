#include "loaders/data/contents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "loaders/data/unpack.h"

qrun_status qr_contents_progress(const qr_dataset_options *options, int64_t done, int64_t total, qr_error *err) {
    const bool continues = options->progress == NULL || options->progress(options->progress_user, done, total);
    return continues ? QRUN_OK : qr_fail(err, QRUN_ERROR_CANCELLED, "reading %s was cancelled", options->path);
}

/* ---- Through a nameless file ------------------------------------------------------------------------------------- */

enum { BLOCK_BYTES = 1 << 17, WAIT_MS = 100 };

/* What is read from a descriptor that does not block. */
typedef struct reader {
    const qr_dataset_options *options;
    const char *path;
    int descriptor;
    int64_t n_read, size; /* size: of the file; 0 for a pipe */
} reader;

/* Up to n_bytes; *n_got is 0 at the end only. A pipe that nobody has opened for writing yet is waited for. */
static qrun_status read_some(reader *r, unsigned char *bytes, size_t n_bytes, size_t *n_got, qr_error *err) {
    for (*n_got = 0;;) {
        struct pollfd wait = {.fd = r->descriptor, .events = POLLIN};
        if (r->size == 0 || r->n_read > 0) { /* nothing counts as done before it is tokens */
            QR_RETURN_IF_ERROR(qr_contents_progress(r->options, 0, r->size, err));
        }
        if (r->size == 0 && poll(&wait, 1, WAIT_MS) <= 0) { continue; }
        const ssize_t n = read(r->descriptor, bytes, n_bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) { continue; }
        if (n < 0) { return qr_file_fail_errno(err, r->path, "read"); }
        *n_got = (size_t)n;
        r->n_read += n;
        return QRUN_OK;
    }
}

static qrun_status take_unpacked(void *user, const void *bytes, size_t n_bytes, qr_error *err) {
    return qr_file_writer_write(user, bytes, n_bytes, err);
}

/* Everything that the reader gives, after the n_bytes that block has already, to the writer. */
static qrun_status unpack_all(reader *r, unsigned char *block, size_t n_bytes, qr_file_writer *writer, qr_error *err) {
    qr_unpacker *unpacker = NULL;
    qrun_status status;
    QR_TRY(qr_unpacker_create(r->path, block, n_bytes, take_unpacked, writer, &unpacker, err));
    while (n_bytes > 0) {
        QR_TRY(qr_unpacker_push(unpacker, block, n_bytes, err));
        QR_TRY(read_some(r, block, BLOCK_BYTES, &n_bytes, err));
    }
    QR_TRY(qr_unpacker_finish(unpacker, err));
    QR_TRY(qr_file_writer_flush(writer, err));
out:
    qr_unpacker_destroy(unpacker);
    return status;
}

static qrun_status map_copy(reader *r, unsigned char *block, size_t n_bytes, qr_file_map *map, qr_error *err) {
    const char *folder = r->options->cache_folder;
    qr_file_writer writer = {0};
    char *path = qr_path_join(folder, "unpacked");
    qrun_status status;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(folder))); }
    QR_TRY(qr_folder_create(folder, err));
    QR_TRY(qr_file_writer_open(&writer, path, err));
    QR_TRY(unpack_all(r, block, n_bytes, &writer, err));
    QR_TRY(qr_file_map_descriptor(writer.descriptor, r->path, map, err));
out:
    qr_file_writer_abort(&writer); /* takes the name away; the map stays */
    qr_free(path);
    return status;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* As many bytes as tell whether the rest is compressed, or all there are. */
static qrun_status read_start(reader *r, unsigned char *block, size_t *n_bytes, qr_error *err) {
    *n_bytes = 0;
    for (size_t n = 1; n > 0 && *n_bytes < QR_UNPACK_START_BYTES; *n_bytes += n) {
        QR_RETURN_IF_ERROR(read_some(r, block + *n_bytes, BLOCK_BYTES - *n_bytes, &n, err));
    }
    return QRUN_OK;
}

/* "-" is stdin, which may be a socket too. */
static qrun_status open_readable(const char *path, int *descriptor, struct stat *info, qr_error *err) {
    const bool is_stdin = strcmp(path, "-") == 0;
    *descriptor =
        is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*descriptor < 0 && errno == ENXIO) {
        return qr_fail(err, QRUN_ERROR_IO, "%s: is a socket, not a file or a pipe", path);
    }
    if (*descriptor < 0) { return qr_file_fail_errno(err, path, "open"); }
    if (fstat(*descriptor, info) != 0) { return qr_file_fail_errno(err, path, "read its size"); }
    const mode_t mode = info->st_mode;
    if (S_ISREG(mode) || S_ISFIFO(mode) || (is_stdin && S_ISSOCK(mode))) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_IO, "%s: is %s, not a file or a pipe", path,
                   S_ISDIR(mode)         ? "a folder"
                   : isatty(*descriptor) ? "a terminal"
                                         : "a device");
}

qrun_status qr_contents_open(const qr_dataset_options *options, const char *path, qr_file_map *map, qr_error *err) {
    struct stat info = {0};
    reader r = {.options = options, .path = path, .descriptor = -1};
    unsigned char *block = qr_alloc(BLOCK_BYTES);
    size_t n_bytes;
    qrun_status status;
    *map = (qr_file_map){0};
    if (block == NULL) { QR_TRY(qr_fail_memory(err, path, BLOCK_BYTES)); }
    QR_TRY(open_readable(path, &r.descriptor, &info, err));
    const bool is_pipe = !S_ISREG(info.st_mode);
    r.size = is_pipe ? 0 : info.st_size;
    if (!is_pipe && r.size == 0) { goto out; }
    QR_TRY(read_start(&r, block, &n_bytes, err));
    if (is_pipe || qr_unpack_is_compressed(block, n_bytes)) {
        QR_TRY(map_copy(&r, block, n_bytes, map, err));
    } else {
        QR_TRY(qr_file_map_descriptor(r.descriptor, path, map, err));
    }
out:
    if (r.descriptor >= 0) { close(r.descriptor); }
    qr_free(block);
    return status;
}

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

enum { MAX_DEPTH = 32, MAX_FILES = 100000 };

static qrun_status add_path(qr_file_list *list, char *path, qr_error *err) {
    const qrun_status status =
        qr_array_grow(&list->paths, &list->capacity, list->n + 1, sizeof *list->paths, "the files of a folder", err);
    if (status != QRUN_OK) {
        qr_free(path);
        return status;
    }
    list->paths[list->n++] = path;
    return QRUN_OK;
}

static qrun_status add_folder(qr_file_list *list, const char *folder, int depth, qr_error *err);

static qrun_status add_entry(qr_file_list *list, const char *folder, const char *name, int depth, qr_error *err) {
    struct stat own, info;
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    if (lstat(path, &own) == 0 && S_ISDIR(own.st_mode)) {
        const qrun_status status = add_folder(list, path, depth + 1, err);
        qr_free(path);
        return status;
    }
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        if (list->n < MAX_FILES) { return add_path(list, path, err); }
        qr_free(path);
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: more than %d files lie in this folder; put them together", folder,
                       MAX_FILES);
    }
    qr_free(path);
    return QRUN_OK;
}

static qrun_status add_folder(qr_file_list *list, const char *folder, int depth, qr_error *err) {
    if (depth > MAX_DEPTH) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: lies too deep in folders", folder); }
    DIR *listing = opendir(folder);
    if (listing == NULL) { return qr_file_fail_errno(err, folder, "open the folder"); }
    qrun_status status = QRUN_OK;
    for (const struct dirent *entry; status == QRUN_OK && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] != '.') { status = add_entry(list, folder, entry->d_name, depth, err); }
    }
    closedir(listing);
    return status;
}

static int compare_paths(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

qrun_status qr_file_list_make(const char *path, qr_file_list *list, qr_error *err) {
    *list = (qr_file_list){0};
    if (!qr_file_is_folder(path)) {
        char *copy = qr_strdup(path);
        return copy != NULL ? add_path(list, copy, err) : qr_fail_memory(err, "a path", strlen(path));
    }
    QR_RETURN_IF_ERROR(add_folder(list, path, 0, err));
    if (list->n == 0) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is a folder without files", path); }
    qsort(list->paths, list->n, sizeof *list->paths, compare_paths);
    return QRUN_OK;
}

void qr_file_list_free(qr_file_list *list) {
    for (size_t i = 0; i < list->n; i++) { qr_free(list->paths[i]); }
    qr_free(list->paths);
    *list = (qr_file_list){0};
}
