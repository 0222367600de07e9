#define _POSIX_C_SOURCE 200809L /* getc_unlocked */
#include "cli/terminal/line_reader.h"

bool line_reader_next(line_reader *r) {
    int c;
    bool any = false;
    text_clear(&r->line);
    text_append(&r->line, "", 0);
    r->too_long = false;
    while ((c = getc_unlocked(r->stream)) != EOF && c != '\n') {
        const char byte = (char)c;
        any = true;
        if (r->line.size == r->max_bytes) { r->too_long = true; }
        if (!r->too_long) { text_append(&r->line, &byte, 1); }
    }
    if (c == EOF && (!any || ferror(r->stream) != 0)) { return false; }
    r->line_number++;
    if (r->too_long) { text_clear(&r->line); }
    if (r->line.size > 0 && r->line.data[r->line.size - 1] == '\r') { r->line.data[--r->line.size] = '\0'; }
    return true;
}
