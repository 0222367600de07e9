/* UTF-8 as The Unicode Standard defines it (table 3-7): no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef QR_BASE_UTF8_H
#define QR_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed character at the start of text[0, n_bytes), or 0 where there is none. */
size_t qr_utf8_sequence_length(const char *text, size_t n_bytes);

/* True when the n_bytes (1…3) are the beginning of some well-formed character that needs more bytes. */
bool qr_utf8_is_incomplete(const char *text, size_t n_bytes);

/* Offset of the first byte that is not part of a well-formed character; n_bytes when all is well. */
size_t qr_utf8_valid_prefix(const char *text, size_t n_bytes);

/* Decodes one character; returns its length, or 0 where it is malformed (*code_point is then U+FFFD). */
size_t qr_utf8_decode(const char *text, size_t n_bytes, uint32_t *code_point);

/* Where the last character of text[0, n_bytes) begins; n_bytes > 0. */
size_t qr_utf8_last(const char *text, size_t n_bytes);

/* span: bytes of the leading characters for which `holds` is true. trim: the size without the trailing ones. */
size_t qr_utf8_span(const char *text, size_t n_bytes, bool (*holds)(uint32_t c));
size_t qr_utf8_trim(const char *text, size_t n_bytes, bool (*holds)(uint32_t c));

/* Writes 1…4 bytes and returns how many; 0 for a surrogate or a value above U+10FFFF. */
size_t qr_utf8_encode(uint32_t code_point, char out[4]);

#endif
