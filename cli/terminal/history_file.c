#include "cli/terminal/history_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/files.h"

enum { KEPT_LINES = 1000, KEPT_BYTES = 4 << 20, LINE_BYTES = 64 << 10 };

/* ---- Where it is ------------------------------------------------------------------------------------------------- */

/* Folders of the user's own state are for the user alone (XDG Base Directory Specification). */
static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) { return false; }
    }
    return true;
}

/* False where the user has no home. */
static bool usual_path(text_buffer *path, const char *name) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state != NULL && state[0] == '/') {
        text_format(path, "%s/qrun/%s", state, name);
    } else if (home != NULL && home[0] == '/') {
        text_format(path, "%s/.local/state/qrun/%s", home, name);
    }
    return path->size > 0;
}

static int open_file(const history_file *h, int flags) {
    return h->is_given ? open(h->path.data, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600)
                       : open_own(h->path.data, flags);
}

static void give_up(history_file *h, const char *verb, const char *problem) {
    if (!h->failed) { notify("the history cannot be %s '%s': %s", verb, h->path.data, problem); }
    h->failed = true;
}

/* ---- Its lines --------------------------------------------------------------------------------------------------- */

static void encode(const text_buffer *line, text_buffer *out) {
    for (size_t i = 0; i < line->size; i++) {
        const char c = line->data[i];
        if (c == '\n' || c == '\\') {
            text_puts(out, c == '\n' ? "\\n" : "\\\\");
        } else {
            text_append(out, &c, 1);
        }
    }
    text_puts(out, "\n");
}

static void decode(const char *from, size_t n_bytes, text_buffer *line) {
    text_clear(line);
    text_append(line, "", 0);
    for (size_t i = 0; i < n_bytes; i++) {
        char c = from[i];
        if (c == '\\' && i + 1 < n_bytes) { c = from[++i] == 'n' ? '\n' : from[i]; }
        if (c != '\0') { text_append(line, &c, 1); }
    }
}

/* The beginning of the last KEPT_LINES lines. */
static size_t newest_lines(const text_buffer *content) {
    size_t at = content->size;
    for (int n = 0; at > 0; at--) {
        if (content->data[at - 1] == '\n' && at < content->size && ++n == KEPT_LINES) { break; }
    }
    return at;
}

static void take_lines(const text_buffer *content, size_t begin, void (*take)(const char *line)) {
    text_buffer line = {0};
    for (size_t at = begin; at < content->size;) {
        const char *end = memchr(content->data + at, '\n', content->size - at);
        const size_t length = end != NULL ? (size_t)(end - content->data) - at : content->size - at;
        decode(content->data + at, length, &line);
        if (line.size > 0 && length <= 2 * LINE_BYTES) { take(line.data); }
        at += length + 1;
    }
    text_free(&line);
}

/* Its last KEPT_BYTES, from the beginning of a line; *is_whole: that is all of it. False with errno set. */
static bool read_end(int descriptor, text_buffer *content, bool *is_whole) {
    char chunk[16384];
    struct stat info;
    if (fstat(descriptor, &info) != 0) { return false; }
    *is_whole = !S_ISREG(info.st_mode) || info.st_size <= KEPT_BYTES;
    if (!*is_whole && lseek(descriptor, info.st_size - KEPT_BYTES, SEEK_SET) < 0) { return false; }
    while (content->size < 2 * KEPT_BYTES) {
        const ssize_t n = read(descriptor, chunk, sizeof chunk);
        if (n < 0 && errno != EAGAIN) { return false; }
        if (n <= 0) { break; }
        text_append(content, chunk, (size_t)n);
    }
    return true;
}

/* Of a file that has grown, only what is taken stays. */
static void shorten(const history_file *h, const text_buffer *content, size_t begin) {
    text_buffer kept = {0};
    text_append(&kept, content->data + begin, content->size - begin);
    const mode_t usual = umask(077);
    (void)(h->is_given ? replace_file(h->path.data, &kept) : replace_own_file(h->path.data, &kept));
    (void)umask(usual);
    text_free(&kept);
}

/* ---- Opening and adding ------------------------------------------------------------------------------------------ */

static void read_lines(history_file *h, int descriptor, void (*take)(const char *line)) {
    text_buffer content = {0};
    bool is_whole;
    text_append(&content, "", 0);
    if (read_end(descriptor, &content, &is_whole)) {
        const char *cut = is_whole ? NULL : memchr(content.data, '\n', content.size);
        const size_t first = cut != NULL ? (size_t)(cut - content.data) + 1 : 0, newest = newest_lines(&content);
        const size_t begin = newest > first ? newest : first;
        take_lines(&content, begin, take);
        if (!is_whole || begin > content.size / 2) { shorten(h, &content, begin); }
    } else {
        give_up(h, "read from", strerror(errno));
    }
    text_free(&content);
}

void history_file_open(history_file *h, const char *path, const char *name, void (*take)(const char *line)) {
    h->is_given = path != NULL;
    if (path != NULL) { text_puts(&h->path, path); }
    if (path == NULL && !usual_path(&h->path, name)) { return; }
    const int descriptor = open_file(h, O_RDONLY);
    if (descriptor >= 0) {
        read_lines(h, descriptor, take);
        close(descriptor);
    } else if (errno != ENOENT) {
        give_up(h, "read from", own_problem(errno));
    }
}

/* One that was there already becomes its owner's alone, too. */
static bool is_private(int descriptor) {
    struct stat info;
    return fstat(descriptor, &info) == 0 && (!S_ISREG(info.st_mode) || fchmod(descriptor, 0600) == 0);
}

void history_file_add(history_file *h, const text_buffer *line) {
    text_buffer encoded = {0};
    if (h->path.size == 0 || h->failed || line->size > LINE_BYTES) { return; }
    encode(line, &encoded);
    const mode_t usual = umask(077);
    const bool has_folder = h->is_given || make_folders(h->path.data);
    const int descriptor = has_folder ? open_file(h, O_WRONLY | O_APPEND | O_CREAT) : -1;
    (void)umask(usual);
    if (descriptor < 0 || !is_private(descriptor) || !write_whole(descriptor, &encoded)) {
        give_up(h, "written to", own_problem(errno));
    }
    if (descriptor >= 0) { close(descriptor); }
    text_free(&encoded);
}

void history_file_close(history_file *h) { text_free(&h->path); }
