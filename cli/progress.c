#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "terminal.h"

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

void progress_silence(void) { progress.silenced = true; }

bool progress_enabled(void) { return !progress.silenced && terminal_redraws(stderr); }

bool progress_due(void) { return progress_enabled() && clock_seconds() - progress.last_seconds >= 0.1; }

static void put_bar(double done, double total) {
    enum { BAR_WIDTH = 24 };
    const double share = done <= 0 ? 0 : done >= total ? 1 : done / total;
    const int filled = (int)(share * BAR_WIDTH + 0.5);
    fputs(terminal_sequence(stderr, STYLE_CYAN), stderr);
    fputc('[', stderr);
    for (int i = 0; i < BAR_WIDTH; i++) { fputc(i < filled ? '#' : ' ', stderr); }
    fputs("] ", stderr);
    fputs(terminal_sequence(stderr, STYLE_PLAIN), stderr);
}

void progress_draw(double done, double total, const char *format, ...) {
    if (!progress_enabled()) { return; }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int room = terminal_width(stderr) - 1;
    fputs("\r\033[K", stderr);
    if (total > 0 && room > 50) {
        put_bar(done, total);
        room -= 27;
    }
    fprintf(stderr, "%.*s", room, text);
    fflush(stderr);
    progress.drawn = true;
    progress.last_seconds = clock_seconds();
}

void progress_clear(void) {
    if (!progress.drawn) { return; }
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress.drawn = false;
}
