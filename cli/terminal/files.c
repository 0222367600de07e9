#define _XOPEN_SOURCE 700 /* nftw */
#include "cli/terminal/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int file_read(text_buffer *t, const char *path) {
    const bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (file == NULL) { return complain(EXIT_FILE, "cannot open '%s': %s", path, strerror(errno)); }
    char chunk[16384];
    size_t n_read;
    int code = EXIT_OK;
    errno = 0;
    text_append(t, "", 0);
    while ((n_read = fread(chunk, 1, sizeof chunk, file)) > 0) { text_append(t, chunk, n_read); }
    if (ferror(file) != 0) {
        code = complain(EXIT_FILE, "cannot read '%s': %s", is_stdin ? "stdin" : path, strerror(errno));
    }
    if (!is_stdin) { fclose(file); }
    return code;
}

int file_read_text(text_buffer *t, const char *path) {
    const int code = file_read(t, path);
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

static bool write_through(const char *path, const text_buffer *content) {
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) { return false; }
    const bool written = write_whole(descriptor, content) && fsync(descriptor) == 0;
    const int error_number = errno;
    const bool closed = close(descriptor) == 0;
    if (!written) { errno = error_number; }
    return written && closed;
}

int replace_file(const char *path, const text_buffer *content) {
    text_buffer aside = {0};
    int code = EXIT_OK;
    text_format(&aside, "%s.partial", path);
    if (!write_through(aside.data, content) || rename(aside.data, path) != 0) {
        code = complain(EXIT_FILE, "cannot write '%s': %s", path, strerror(errno));
        unlink(aside.data);
    }
    text_free(&aside);
    return code;
}

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
