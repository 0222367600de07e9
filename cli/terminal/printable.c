#include "cli/terminal/printable.h"

#include <stdbool.h>
#include <string.h>

#include "cli/terminal/text.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

static size_t replace(char *out) {
    memcpy(out, REPLACEMENT, sizeof REPLACEMENT - 1);
    return sizeof REPLACEMENT - 1;
}

static bool is_ascii_control(unsigned char byte) { return byte < 0x20U || byte == 0x7FU; }

/* Of a character of two bytes or more. */
static bool is_c1(const char *character) {
    return (unsigned char)character[0] == 0xC2U && (unsigned char)character[1] < 0xA0U;
}

static size_t take_first(printable *p, unsigned char byte, char *out) {
    if (byte >= 0x80U) {
        p->held[0] = (char)byte;
        p->n_held = text_character_begins(p->held, 1) ? 1 : 0;
        return p->n_held == 1 ? 0 : replace(out);
    }
    if (byte == '\r') { return 0; }
    if (is_ascii_control(byte) && byte != '\n' && byte != '\t') { return replace(out); }
    out[0] = (char)byte;
    return 1;
}

size_t printable_take(printable *p, unsigned char byte, char out[PRINTABLE_BYTES]) {
    if (p->n_held == 0) { return take_first(p, byte, out); }
    p->held[p->n_held++] = (char)byte;
    const size_t length = text_character_bytes(p->held, p->n_held);
    if (length > 0) {
        p->n_held = 0;
        if (is_c1(p->held)) { return replace(out); }
        memcpy(out, p->held, length);
        return length;
    }
    if (text_character_begins(p->held, p->n_held)) { return 0; }
    p->n_held = 0;
    const size_t n = replace(out); /* what was held; the byte may begin another character */
    return n + take_first(p, byte, out + n);
}

void printable_line(char *text) {
    const size_t n_bytes = strlen(text);
    size_t size = 0;
    for (size_t at = 0, length; at < n_bytes; at += length) {
        length = text_character_bytes(text + at, n_bytes - at);
        const bool shown = length == 1 ? !is_ascii_control((unsigned char)text[at]) : length > 1 && !is_c1(text + at);
        if (shown) {
            memmove(text + size, text + at, length);
            size += length;
        } else {
            text[size++] = '?';
        }
        if (length == 0) { length = 1; }
    }
    text[size] = '\0';
}
