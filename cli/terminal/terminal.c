#include "cli/terminal/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_is(FILE *stream) { return isatty(fileno(stream)) == 1; }

int terminal_width(FILE *stream) {
    struct winsize size;
    if (!terminal_is(stream) || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) { return 80; }
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

const char *terminal_sequence(FILE *stream, terminal_style style) {
    if (!terminal_colours(stream)) { return ""; }
    switch (style) {
        case STYLE_PLAIN: return "\033[0m";
        case STYLE_BOLD: return "\033[1m";
        case STYLE_DIM: return "\033[2m";
        case STYLE_CYAN: return "\033[36m";
    }
    return "";
}
