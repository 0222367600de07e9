#define _GNU_SOURCE /* fopencookie: with it nothing that is printed goes around the filter */
#include "cli/terminal/terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/terminal/printable.h"

/* A guarded stream has no descriptor of its own. */
static int descriptor_of(FILE *stream) {
    return stream == stdout ? STDOUT_FILENO : stream == stderr ? STDERR_FILENO : fileno(stream);
}

bool terminal_is(FILE *stream) { return isatty(descriptor_of(stream)) == 1; }

int terminal_width(FILE *stream) {
    struct winsize size;
    if (!terminal_is(stream) || ioctl(descriptor_of(stream), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) { return 80; }
    return size.ws_col;
}

bool terminal_redraws(FILE *stream) {
    const char *term = getenv("TERM");
    return terminal_is(stream) && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
}

bool terminal_colours(FILE *stream) {
    const char *no_color = getenv("NO_COLOR");
    return terminal_redraws(stream) && (no_color == NULL || *no_color == '\0');
}

/* ---- What is printed passes the filter --------------------------------------------------------------------------- */

typedef struct guarded {
    int descriptor;
    printable filter;
} guarded;

static bool write_bytes(int descriptor, const char *bytes, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = write(descriptor, bytes + done, n_bytes - done);
        if (n < 0 && errno != EINTR) { return false; }
        if (n > 0) { done += (size_t)n; }
    }
    return true;
}

static ssize_t write_printable(void *cookie, const char *bytes, size_t n_bytes) {
    guarded *g = cookie;
    char shown[1024];
    size_t size = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        size += printable_take(&g->filter, (unsigned char)bytes[i], shown + size);
        const bool full = size + PRINTABLE_BYTES > sizeof shown;
        if (!full && i + 1 < n_bytes) { continue; }
        if (!write_bytes(g->descriptor, shown, size)) { return 0; } /* what fopencookie takes for a failure */
        size = 0;
    }
    return (ssize_t)n_bytes;
}

static FILE *guard(FILE *stream, int buffering, guarded *g) {
    if (!terminal_is(stream)) { return stream; }
    FILE *made = fopencookie(g, "w", (cookie_io_functions_t){.write = write_printable});
    if (made == NULL) { return NULL; }
    (void)setvbuf(made, NULL, buffering, BUFSIZ);
    return made;
}

bool terminal_guard_output(void) {
    static guarded out = {STDOUT_FILENO, {{0}, 0}}, err = {STDERR_FILENO, {{0}, 0}};
    FILE *guarded_out = guard(stdout, _IOLBF, &out), *guarded_err = guard(stderr, _IONBF, &err);
    if (guarded_out == NULL || guarded_err == NULL) { return false; }
    stdout = guarded_out;
    stderr = guarded_err;
    return true;
}

/* ---- Our own sequences go around it ------------------------------------------------------------------------------ */

static void put_sequence(FILE *stream, const char *sequence) {
    (void)fflush(stream);
    (void)write_bytes(descriptor_of(stream), sequence, strlen(sequence));
}

void terminal_put_style(FILE *stream, terminal_style style) {
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[2m", "\033[36m"};
    if (terminal_colours(stream)) { put_sequence(stream, sequences[style]); }
}

void terminal_clear_line(FILE *stream) { put_sequence(stream, "\r\033[K"); }

void terminal_erase_column(FILE *stream) { put_sequence(stream, "\b \b"); }
