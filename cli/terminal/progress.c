#include "cli/terminal/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cli/terminal/terminal.h"
#include "cli/terminal/text.h"

static struct {
    bool silenced;
    bool drawn; /* a line is on the screen */
    double last_seconds;
} progress;

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int64_t peak_rss_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

void progress_silence(void) { progress.silenced = true; }

bool progress_enabled(void) { return !progress.silenced && terminal_redraws(stderr); }

bool progress_due(void) { return progress_enabled() && clock_seconds() - progress.last_seconds >= 0.1; }

/* Its marks; "[", "] " and they are what it takes. Of two sizes, so that it does not change with every digit. */
static int bar_width(int room, int text_width) {
    enum { WIDE = 24, NARROW = 10, FRAME = 3 };
    return text_width + WIDE + FRAME <= room ? WIDE : text_width + NARROW + FRAME <= room ? NARROW : 0;
}

static void put_bar(double done, double total, int width) {
    const double share = done <= 0 ? 0 : done >= total ? 1 : done / total;
    const int filled = (int)(share * width + 0.5);
    terminal_put_style(stderr, STYLE_CYAN);
    fputc('[', stderr);
    for (int i = 0; i < width; i++) { fputc(i < filled ? '#' : ' ', stderr); }
    fputs("] ", stderr);
    terminal_put_style(stderr, STYLE_PLAIN);
}

void progress_draw(double done, double total, const char *format, ...) {
    if (!progress_enabled()) { return; }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const int room = terminal_width(stderr) - 1;
    terminal_clear_line(stderr);
    const int width = total > 0 ? bar_width(room, text_columns(text, strlen(text))) : 0;
    if (width > 0) { put_bar(done, total, width); }
    fprintf(stderr, "%.*s", room, text);
    fflush(stderr);
    progress.drawn = true;
    progress.last_seconds = clock_seconds();
}

void progress_clear(void) {
    if (!progress.drawn) { return; }
    terminal_clear_line(stderr);
    progress.drawn = false;
}
