#include "base/utf8.h"

/* For a lead byte: the length of the character and the range of its second byte; length 0 for no lead byte. */
static size_t lead_byte(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = lead == 0xE0U ? 0xA0U : lead == 0xF0U ? 0x90U : 0x80U;
    *high = lead == 0xEDU ? 0x9FU : lead == 0xF4U ? 0x8FU : 0xBFU;
    if (lead < 0x80U) { return 1; }
    if (lead < 0xC2U || lead > 0xF4U) { return 0; }
    return lead < 0xE0U ? 2 : lead < 0xF0U ? 3 : 4;
}

/* How many of the first n_bytes fit the character that text[0] begins, and the length it should have. */
static size_t matching_bytes(const char *text, size_t n_bytes, size_t *length) {
    unsigned char low, high;
    *length = lead_byte((unsigned char)text[0], &low, &high);
    size_t n = 1;
    for (; n < *length && n < n_bytes; n++) {
        const unsigned char c = (unsigned char)text[n];
        if (c < (n == 1 ? low : 0x80U) || c > (n == 1 ? high : 0xBFU)) { break; }
    }
    return n;
}

size_t qr_utf8_sequence_length(const char *text, size_t n_bytes) {
    if (n_bytes == 0) { return 0; }
    size_t length;
    return matching_bytes(text, n_bytes, &length) == length ? length : 0;
}

bool qr_utf8_is_incomplete(const char *text, size_t n_bytes) {
    if (n_bytes == 0) { return false; }
    size_t length;
    return matching_bytes(text, n_bytes, &length) == n_bytes && n_bytes < length;
}

size_t qr_utf8_valid_prefix(const char *text, size_t n_bytes) {
    size_t i = 0;
    while (i < n_bytes) {
        const size_t length = qr_utf8_sequence_length(text + i, n_bytes - i);
        if (length == 0) { break; }
        i += length;
    }
    return i;
}

size_t qr_utf8_decode(const char *text, size_t n_bytes, uint32_t *code_point) {
    const size_t length = qr_utf8_sequence_length(text, n_bytes);
    const unsigned char *b = (const unsigned char *)text;
    switch (length) {
        case 1: *code_point = b[0]; break;
        case 2: *code_point = (uint32_t)(b[0] & 0x1FU) << 6 | (b[1] & 0x3FU); break;
        case 3: *code_point = (uint32_t)(b[0] & 0x0FU) << 12 | (uint32_t)(b[1] & 0x3FU) << 6 | (b[2] & 0x3FU); break;
        case 4:
            *code_point = (uint32_t)(b[0] & 0x07U) << 18 | (uint32_t)(b[1] & 0x3FU) << 12 |
                          (uint32_t)(b[2] & 0x3FU) << 6 | (b[3] & 0x3FU);
            break;
        default: *code_point = 0xFFFDU;
    }
    return length;
}

size_t qr_utf8_last(const char *text, size_t n_bytes) {
    size_t start = n_bytes - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xC0U) == 0x80U) { start--; }
    return start;
}

size_t qr_utf8_span(const char *text, size_t n_bytes, bool (*holds)(uint32_t c)) {
    size_t at = 0, length;
    uint32_t c;
    while ((length = qr_utf8_decode(text + at, n_bytes - at, &c)) > 0 && holds(c)) { at += length; }
    return at;
}

size_t qr_utf8_trim(const char *text, size_t n_bytes, bool (*holds)(uint32_t c)) {
    while (n_bytes > 0) {
        const size_t start = qr_utf8_last(text, n_bytes);
        uint32_t c;
        if (qr_utf8_decode(text + start, n_bytes - start, &c) == 0 || !holds(c)) { break; }
        n_bytes = start;
    }
    return n_bytes;
}

size_t qr_utf8_encode(uint32_t c, char out[4]) {
    if (c > 0x10FFFFU || (c >= 0xD800U && c <= 0xDFFFU)) { return 0; }
    if (c < 0x80U) {
        out[0] = (char)c;
        return 1;
    }
    const size_t length = c < 0x800U ? 2 : c < 0x10000U ? 3 : 4;
    static const unsigned char leads[5] = {0, 0, 0xC0U, 0xE0U, 0xF0U};
    for (size_t i = length - 1; i > 0; i--, c >>= 6) { out[i] = (char)(0x80U | (c & 0x3FU)); }
    out[0] = (char)(leads[length] | c);
    return length;
}
