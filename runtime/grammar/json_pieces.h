/* The parts of JSON texts that schemas are made of: space, strings, numbers, and any value. Rules that many places call
 * are made once, when they are first asked for.
 *
 * What is narrower than JSON, so that a model cannot lose itself in it: space between tokens is nothing, one space, or
 * a line break with up to 20 spaces or tabs after it. Space stands after `{`, `[`, `,` and `:`, and before `}` and `]`.
 * Integers have up to 18 digits, fractions up to 17, exponents up to 2. \u0000 and half surrogate pairs are left out.
 */
#ifndef QR_RUNTIME_GRAMMAR_JSON_PIECES_H
#define QR_RUNTIME_GRAMMAR_JSON_PIECES_H

#include "runtime/grammar/automaton.h"

enum { QR_INTEGER_DIGITS = 18, QR_FRACTION_DIGITS = 17, QR_EXPONENT_DIGITS = 2, QR_INDENT_MOST = 20 };

typedef struct qr_json_pieces {
    qr_automaton_builder builder;
    int32_t space, string_rest, character, long_character, value, object; /* rules; 0: not made yet */
} qr_json_pieces;

/* From one state to another: */
void qr_add_space(qr_json_pieces *pieces, int32_t from, int32_t to);       /* or nothing */
void qr_add_string(qr_json_pieces *pieces, int32_t from, int32_t to);      /* any */
void qr_add_string_rest(qr_json_pieces *pieces, int32_t from, int32_t to); /* after the first quote */
/* One character of a string that begins with a byte above 127; with `escapes` also one that is written as an escape,
 * and then `from` has plain room. */
void qr_add_character(qr_json_pieces *pieces, int32_t from, bool escapes, int32_t to);
/* The bytes of one character that stands for itself and is below 128. */
void qr_add_plain_bytes(qr_json_pieces *pieces, int32_t from, int32_t to);
/* A string of low to high characters; high −1: no end. */
void qr_add_counted_string(qr_json_pieces *pieces, int32_t from, int64_t low, int64_t high, int32_t to);
void qr_add_digits(qr_json_pieces *pieces, int32_t from, int low, int high, int32_t to); /* low to high of them */
void qr_add_integer(qr_json_pieces *pieces, int32_t from, int32_t to);
void qr_add_fraction(qr_json_pieces *pieces, int32_t from, int most,
                     int32_t to); /* the point and up to `most` digits */
void qr_add_number(qr_json_pieces *pieces, int32_t from, int32_t to);
void qr_add_value(qr_json_pieces *pieces, int32_t from, int32_t to);  /* any */
void qr_add_object(qr_json_pieces *pieces, int32_t from, int32_t to); /* any */
void qr_add_array(qr_json_pieces *pieces, int32_t from, int32_t to);  /* any */

/* Well-formed UTF-8 of characters from first to last, which are above 127; surrogates are left out. */
void qr_add_utf8_range(qr_json_pieces *pieces, int32_t from, uint32_t first, uint32_t last, int32_t to);

#endif
