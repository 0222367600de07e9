#include "cli/profile/pickle.h"

#include <string.h>

/* The opcodes of pickletools. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_BININT = 'J',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPENDS = 'e',
    OP_EMPTY_DICT = '}',
    OP_SETITEMS = 'u',
    OP_PROTO = 0x80,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a
};

static void put_byte(text_buffer *out, unsigned value) {
    const char byte = (char)(unsigned char)value;
    text_append(out, &byte, 1);
}

/* The lowest bytes, least first. */
static void put_bytes(text_buffer *out, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) { put_byte(out, (unsigned)(value >> (8 * i)) & 0xffU); }
}

void pickle_begin(text_buffer *out) {
    put_byte(out, OP_PROTO);
    put_byte(out, 2);
}

void pickle_end(text_buffer *out) { put_byte(out, OP_STOP); }

void pickle_dict_begin(text_buffer *out) {
    put_byte(out, OP_EMPTY_DICT);
    put_byte(out, OP_MARK);
}

void pickle_dict_end(text_buffer *out) { put_byte(out, OP_SETITEMS); }

void pickle_list_begin(text_buffer *out) {
    put_byte(out, OP_EMPTY_LIST);
    put_byte(out, OP_MARK);
}

void pickle_list_end(text_buffer *out) { put_byte(out, OP_APPENDS); }

void pickle_text(text_buffer *out, const char *text) {
    const size_t n_bytes = strlen(text);
    put_byte(out, OP_BINUNICODE);
    put_bytes(out, n_bytes, 4);
    text_append(out, text, n_bytes);
}

void pickle_int(text_buffer *out, int64_t value) {
    const bool is_short = value >= INT32_MIN && value <= INT32_MAX;
    put_byte(out, is_short ? OP_BININT : OP_LONG1);
    if (!is_short) { put_byte(out, 8); }
    put_bytes(out, (uint64_t)value, is_short ? 4 : 8);
}

void pickle_bool(text_buffer *out, bool value) { put_byte(out, value ? OP_NEWTRUE : OP_NEWFALSE); }

void pickle_text_member(text_buffer *out, const char *key, const char *value) {
    pickle_text(out, key);
    pickle_text(out, value);
}

void pickle_int_member(text_buffer *out, const char *key, int64_t value) {
    pickle_text(out, key);
    pickle_int(out, value);
}
