#define _XOPEN_SOURCE 700 /* nftw */
#include "cli/terminal/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/interrupt.h"

/* To its end, or to the chunk that passes max_bytes; "stdin" names it in messages where it is. */
static int read_stream(text_buffer *t, FILE *file, const char *name, size_t max_bytes) {
    char chunk[16384];
    size_t n_read;
    errno = 0;
    text_append(t, "", 0);
    while (t->size <= max_bytes && (n_read = fread(chunk, 1, sizeof chunk, file)) > 0) {
        text_append(t, chunk, n_read);
    }
    if (ferror(file) == 0) { return EXIT_OK; }
    if (interrupted()) { return complain(EXIT_INTERRUPTED, "interrupted while reading '%s'", name); }
    return complain(EXIT_FILE, "cannot read '%s': %s", name, strerror(errno));
}

static int read_to(text_buffer *t, const char *path, size_t max_bytes) {
    if (strcmp(path, "-") == 0) { return read_stream(t, stdin, "stdin", max_bytes); }
    FILE *file = fopen(path, "rb");
    if (file == NULL) { return complain(EXIT_FILE, "cannot open '%s': %s", path, strerror(errno)); }
    const int code = read_stream(t, file, path, max_bytes);
    fclose(file);
    return code;
}

int file_read(text_buffer *t, const char *path) { return read_to(t, path, SIZE_MAX); }

int file_read_own(text_buffer *t, const char *path) {
    const int descriptor = open_own(path, O_RDONLY);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "rb") : NULL;
    if (file == NULL) { return complain(EXIT_FILE, "cannot open '%s': %s", path, own_problem(errno)); }
    const int code = read_stream(t, file, path, SIZE_MAX);
    fclose(file);
    return code;
}

int file_read_text(text_buffer *t, const char *path) { return file_read_short_text(t, path, SIZE_MAX); }

int file_read_short_text(text_buffer *t, const char *path, size_t max_bytes) {
    const int code = read_to(t, path, max_bytes);
    if (code == EXIT_OK && t->size > max_bytes) {
        return complain(EXIT_FILE, "'%s' has more than the %zu bytes that it may have", path, max_bytes);
    }
    if (code != EXIT_OK || memchr(t->data, '\0', t->size) == NULL) { return code; }
    return complain(EXIT_FILE, "'%s' is not a text: it has zero bytes", path);
}

uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) { hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3ULL; }
    return hash;
}

void folder_of(const char *path, text_buffer *folder) {
    const char *slash = strrchr(path, '/');
    text_append(folder, slash != NULL ? path : ".", slash != NULL ? (size_t)(slash - path) + 1 : 1);
}

bool write_whole(int descriptor, const text_buffer *content) {
    for (size_t done = 0; done < content->size;) {
        const ssize_t n = write(descriptor, content->data + done, content->size - done);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return false; }
        done += (size_t)n;
    }
    return true;
}

/* ---- Names of our own -------------------------------------------------------------------------------------------- */

int open_own(const char *path, int flags) {
    struct stat info;
    const int descriptor = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (descriptor < 0 || (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode))) { return descriptor; }
    close(descriptor);
    errno = EEXIST;
    return -1;
}

const char *own_problem(int error_number) {
    return error_number == ELOOP    ? "it is a symbolic link, and nothing of that name is written through one"
           : error_number == EEXIST ? "it is there already, and is no file of qrun's"
                                    : strerror(error_number);
}

int create_own(const char *path) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL;
    struct stat info;
    const int descriptor = open_own(path, flags);
    if (descriptor >= 0 || errno != EEXIST) { return descriptor; }
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode) && unlink(path) == 0) { return open_own(path, flags); }
    errno = EEXIST;
    return -1;
}

/* ---- Replacing --------------------------------------------------------------------------------------------------- */

void output_target(const char *path, text_buffer *target) {
    enum { MAX_LINKS = 40 };
    text_buffer at = {0}, next = {0};
    char link[PATH_MAX];
    ssize_t length = 0;
    text_puts(&at, path);
    for (int i = 0; i < MAX_LINKS && (length = readlink(at.data, link, sizeof link)) > 0; i++) {
        text_clear(&next);
        if (link[0] != '/' && strchr(at.data, '/') != NULL) { folder_of(at.data, &next); }
        text_append(&next, link, (size_t)length);
        text_clear(&at);
        text_puts(&at, next.data);
    }
    text_puts(target, length > 0 ? path : at.data);
    text_free(&at);
    text_free(&next);
}

static bool write_and_close(int descriptor, const text_buffer *content, bool sync) {
    if (descriptor < 0) { return false; }
    const bool written = write_whole(descriptor, content) && (!sync || fsync(descriptor) == 0);
    const int error_number = errno;
    const bool closed = close(descriptor) == 0;
    if (!written) { errno = error_number; }
    return written && closed;
}

int replace_own_file(const char *path, const text_buffer *content) {
    text_buffer aside = {0};
    struct stat before;
    int code = EXIT_OK;
    text_format(&aside, "%s.qrun-partial-%ld", path, (long)getpid());
    const int descriptor = create_own(aside.data);
    if (descriptor < 0) {
        code = complain(EXIT_FILE, "cannot create '%s': %s", aside.data, own_problem(errno));
        text_free(&aside);
        return code;
    }
    /* Who may read it stays as it was. */
    if (stat(path, &before) == 0 && S_ISREG(before.st_mode)) { (void)fchmod(descriptor, before.st_mode & 0777); }
    if (!write_and_close(descriptor, content, true) || rename(aside.data, path) != 0) {
        code = complain(EXIT_FILE, "cannot write '%s': %s", path, strerror(errno));
        unlink(aside.data);
    }
    text_free(&aside);
    return code;
}

int replace_file(const char *path, const text_buffer *content) {
    text_buffer target = {0};
    struct stat info;
    int code = EXIT_OK;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        if (!write_and_close(open(path, O_WRONLY | O_CLOEXEC), content, false)) {
            code = complain(EXIT_FILE, "cannot write '%s': %s", path, strerror(errno));
        }
        return code;
    }
    output_target(path, &target);
    code = replace_own_file(target.data, content);
    text_free(&target);
    return code;
}

/* ---- Scratch ----------------------------------------------------------------------------------------------------- */

int scratch_folder_make(text_buffer *path) {
    const char *parent = getenv("TMPDIR");
    text_format(path, "%s/qrun.XXXXXX", parent != NULL && *parent != '\0' ? parent : "/tmp");
    if (mkdtemp(path->data) != NULL) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot create '%s': %s; TMPDIR names another place", path->data, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    (void)remove(path);
    return 0;
}

void scratch_folder_remove(const char *path) {
    enum { OPEN_FOLDERS = 8 };
    (void)nftw(path, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}
