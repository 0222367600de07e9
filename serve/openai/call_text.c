#include "serve/openai/call_text.h"

#include <string.h>

bool call_is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t call_without_space(const char *bytes, size_t n) {
    while (n > 0 && call_is_space(bytes[n - 1])) { n--; }
    return n;
}

size_t cursor_left(const cursor *c) { return (size_t)(c->end - c->at); }

bool cursor_sees(const cursor *c, char next) { return c->at < c->end && *c->at == next; }

void cursor_skip_space(cursor *c) {
    while (c->at < c->end && call_is_space(*c->at)) { c->at++; }
}

void cursor_trim(cursor *c) {
    cursor_skip_space(c);
    c->end = c->at + call_without_space(c->at, cursor_left(c));
}

bool cursor_takes(cursor *c, const char *text) {
    const size_t n = strlen(text);
    if (cursor_left(c) < n || memcmp(c->at, text, n) != 0) { return false; }
    c->at += n;
    return true;
}

const char *cursor_find(const cursor *c, const char *text) {
    const size_t n = strlen(text);
    for (const char *at = c->at; (size_t)(c->end - at) >= n; at++) {
        if (memcmp(at, text, n) == 0) { return at; }
    }
    return NULL;
}

bool cursor_takes_until(cursor *c, const char *text, cursor *before) {
    const char *at = cursor_find(c, text);
    if (at == NULL) { return false; }
    *before = (cursor){c->at, at};
    c->at = at + strlen(text);
    return true;
}
