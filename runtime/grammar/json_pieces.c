#include "runtime/grammar/json_pieces.h"

#include <string.h>

#include "base/sizes.h"
#include "base/utf8.h"

/* ---- Short names ------------------------------------------------------------------------------------------------- */

static int32_t new_state(qr_json_pieces *pieces) { return qr_automaton_add_state(&pieces->builder); }

static void bytes(qr_json_pieces *pieces, int32_t from, int low, int high, int32_t to) {
    qr_automaton_add_bytes(&pieces->builder, from, (uint8_t)low, (uint8_t)high, to);
}

static void byte(qr_json_pieces *pieces, int32_t from, int value, int32_t to) { bytes(pieces, from, value, value, to); }

static void empty(qr_json_pieces *pieces, int32_t from, int32_t to) {
    qr_automaton_add_empty(&pieces->builder, from, to);
}

/* Calls *rule; makes it where it is not there yet. It is entered before its body is built, so that it may recurse. */
static void call(qr_json_pieces *pieces, int32_t from, int32_t *rule,
                 void (*build)(qr_json_pieces *pieces, int32_t start, int32_t end), int32_t to) {
    if (*rule == 0) {
        *rule = qr_automaton_add_rule(&pieces->builder);
        if (pieces->builder.status != QRUN_OK) { return; }
        const qr_grammar_rule made = pieces->builder.rules[*rule];
        build(pieces, made.start, made.end);
    }
    qr_automaton_add_call(&pieces->builder, from, *rule, to);
}

/* ---- Space ------------------------------------------------------------------------------------------------------- */

static void build_space(qr_json_pieces *pieces, int32_t start, int32_t end) {
    int32_t at = new_state(pieces);
    byte(pieces, start, ' ', end);
    byte(pieces, start, '\n', at);
    for (int i = 0; i < QR_INDENT_MOST; i++) {
        const int32_t next = new_state(pieces);
        empty(pieces, at, end);
        byte(pieces, at, ' ', next);
        byte(pieces, at, '\t', next);
        at = next;
    }
    empty(pieces, at, end);
}

void qr_add_space(qr_json_pieces *pieces, int32_t from, int32_t to) {
    empty(pieces, from, to);
    call(pieces, from, &pieces->space, build_space, to);
}

/* ---- Characters -------------------------------------------------------------------------------------------------- */

void qr_add_plain_bytes(qr_json_pieces *pieces, int32_t from, int32_t to) {
    bytes(pieces, from, 0x5D, 0x7F, to); /* most text first */
    bytes(pieces, from, 0x20, 0x21, to);
    bytes(pieces, from, 0x23, 0x5B, to);
}

/* Texts of n_bytes bytes between two of the same length that differ in the byte at `i` at the earliest. */
static void add_between(qr_json_pieces *pieces, int32_t from, const unsigned char *low, const unsigned char *high,
                        size_t n_bytes, int32_t to) {
    if (n_bytes == 1) {
        bytes(pieces, from, low[0], high[0], to);
        return;
    }
    unsigned char least[4], most[4];
    memset(least, 0x80, sizeof least);
    memset(most, 0xBF, sizeof most);
    const bool low_is_least = memcmp(low + 1, least, n_bytes - 1) == 0;
    const bool high_is_most = memcmp(high + 1, most, n_bytes - 1) == 0;
    int first = low[0], last = high[0];
    if (first == last) {
        const int32_t next = new_state(pieces);
        byte(pieces, from, first, next);
        add_between(pieces, next, low + 1, high + 1, n_bytes - 1, to);
        return;
    }
    if (!low_is_least) {
        const int32_t next = new_state(pieces);
        byte(pieces, from, first++, next);
        add_between(pieces, next, low + 1, most, n_bytes - 1, to);
    }
    if (!high_is_most) {
        const int32_t next = new_state(pieces);
        byte(pieces, from, last--, next);
        add_between(pieces, next, least, high + 1, n_bytes - 1, to);
    }
    if (first > last) { return; }
    const int32_t next = new_state(pieces);
    bytes(pieces, from, first, last, next);
    add_between(pieces, next, least, most, n_bytes - 1, to);
}

void qr_add_utf8_range(qr_json_pieces *pieces, int32_t from, uint32_t first, uint32_t last, int32_t to) {
    static const uint32_t parts[][2] = {{0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    for (size_t i = 0; i < QR_COUNT_OF(parts); i++) {
        char low[4], high[4];
        const uint32_t begin = first > parts[i][0] ? first : parts[i][0];
        const uint32_t end = last < parts[i][1] ? last : parts[i][1];
        if (begin > end) { continue; }
        const size_t n_bytes = qr_utf8_encode(begin, low);
        (void)qr_utf8_encode(end, high);
        add_between(pieces, from, (const unsigned char *)low, (const unsigned char *)high, n_bytes, to);
    }
}

static void add_hex(qr_json_pieces *pieces, int32_t from, int low, int high, int32_t to) {
    if (low < 10) { bytes(pieces, from, '0' + low, '0' + (high < 9 ? high : 9), to); }
    if (high < 10) { return; }
    const int first = low > 10 ? low - 10 : 0;
    bytes(pieces, from, 'a' + first, 'a' + high - 10, to);
    bytes(pieces, from, 'A' + first, 'A' + high - 10, to);
}

/* After \u: a character but NUL, or a whole surrogate pair. */
static void add_unicode_escape(qr_json_pieces *pieces, int32_t from, int32_t to) {
    enum { ANY_3, ANY_2, ANY_1, ZERO_3, ZERO_2, ZERO_1, D, HIGH_2, HIGH_1, PAIR, PAIR_U, PAIR_D, LOW_3, N_STATES };
    int32_t s[N_STATES]; /* by the digits that are left */
    for (int i = 0; i < N_STATES; i++) { s[i] = new_state(pieces); }
    add_hex(pieces, from, 0, 0, s[ZERO_3]);
    add_hex(pieces, from, 1, 12, s[ANY_3]);
    add_hex(pieces, from, 13, 13, s[D]);
    add_hex(pieces, from, 14, 15, s[ANY_3]);
    add_hex(pieces, s[ZERO_3], 0, 0, s[ZERO_2]);
    add_hex(pieces, s[ZERO_3], 1, 15, s[ANY_2]);
    add_hex(pieces, s[ZERO_2], 0, 0, s[ZERO_1]);
    add_hex(pieces, s[ZERO_2], 1, 15, s[ANY_1]);
    add_hex(pieces, s[ZERO_1], 1, 15, to);
    add_hex(pieces, s[ANY_3], 0, 15, s[ANY_2]);
    add_hex(pieces, s[ANY_2], 0, 15, s[ANY_1]);
    add_hex(pieces, s[ANY_1], 0, 15, to);
    add_hex(pieces, s[D], 0, 7, s[ANY_2]);
    add_hex(pieces, s[D], 8, 11, s[HIGH_2]);
    add_hex(pieces, s[HIGH_2], 0, 15, s[HIGH_1]);
    add_hex(pieces, s[HIGH_1], 0, 15, s[PAIR]);
    byte(pieces, s[PAIR], '\\', s[PAIR_U]);
    byte(pieces, s[PAIR_U], 'u', s[PAIR_D]);
    add_hex(pieces, s[PAIR_D], 13, 13, s[LOW_3]);
    add_hex(pieces, s[LOW_3], 12, 15, s[ANY_2]);
}

static void build_long_character(qr_json_pieces *pieces, int32_t start, int32_t end) {
    qr_add_utf8_range(pieces, start, 0x80, 0x10FFFF, end);
}

static void build_character(qr_json_pieces *pieces, int32_t start, int32_t end) {
    const int32_t escape = new_state(pieces), unicode = new_state(pieces);
    qr_automaton_set_character(&pieces->builder, start);
    build_long_character(pieces, start, end);
    byte(pieces, start, '\\', escape);
    for (const char *c = "\"\\/bfnrt"; *c != '\0'; c++) { byte(pieces, escape, *c, end); }
    byte(pieces, escape, 'u', unicode);
    add_unicode_escape(pieces, unicode, end);
}

void qr_add_character(qr_json_pieces *pieces, int32_t from, bool escapes, int32_t to) {
    if (escapes) {
        call(pieces, from, &pieces->character, build_character, to);
    } else {
        call(pieces, from, &pieces->long_character, build_long_character, to);
    }
}

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

static void build_string_rest(qr_json_pieces *pieces, int32_t start, int32_t end) {
    qr_automaton_set_plain_room(&pieces->builder, start, UINT16_MAX);
    qr_add_character(pieces, start, true, start);
    byte(pieces, start, '"', end);
    qr_add_plain_bytes(pieces, start, start);
}

void qr_add_string_rest(qr_json_pieces *pieces, int32_t from, int32_t to) {
    call(pieces, from, &pieces->string_rest, build_string_rest, to);
}

void qr_add_string(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t inside = new_state(pieces);
    byte(pieces, from, '"', inside);
    qr_add_string_rest(pieces, inside, to);
}

void qr_add_counted_string(qr_json_pieces *pieces, int32_t from, int64_t low, int64_t high, int32_t to) {
    const int64_t last = high < 0 ? low : high;
    int32_t at = new_state(pieces);
    byte(pieces, from, '"', at);
    for (int64_t i = 0; i < last && pieces->builder.status == QRUN_OK; i++) {
        const int32_t next = new_state(pieces);
        qr_automaton_set_plain_room(&pieces->builder, at, high < 0 ? UINT16_MAX : high - i);
        qr_add_character(pieces, at, true, next);
        if (i >= low) { byte(pieces, at, '"', to); }
        qr_add_plain_bytes(pieces, at, next);
        at = next;
    }
    if (high < 0) {
        qr_add_string_rest(pieces, at, to);
    } else {
        byte(pieces, at, '"', to);
    }
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

void qr_add_digits(qr_json_pieces *pieces, int32_t from, int low, int high, int32_t to) {
    for (int i = 0; i < high; i++) {
        const int32_t next = new_state(pieces);
        if (i >= low) { empty(pieces, from, to); }
        bytes(pieces, from, '0', '9', next);
        from = next;
    }
    empty(pieces, from, to);
}

static void add_natural(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t first = new_state(pieces);
    bytes(pieces, from, '1', '9', first);
    qr_add_digits(pieces, first, 0, QR_INTEGER_DIGITS - 1, to);
}

void qr_add_integer(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t negative = new_state(pieces);
    byte(pieces, from, '0', to);
    add_natural(pieces, from, to);
    byte(pieces, from, '-', negative);
    add_natural(pieces, negative, to);
}

void qr_add_fraction(qr_json_pieces *pieces, int32_t from, int most, int32_t to) {
    const int32_t point = new_state(pieces);
    byte(pieces, from, '.', point);
    qr_add_digits(pieces, point, 1, most, to);
}

static void add_exponent(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t sign = new_state(pieces), digits = new_state(pieces);
    byte(pieces, from, 'e', sign);
    byte(pieces, from, 'E', sign);
    byte(pieces, sign, '+', digits);
    byte(pieces, sign, '-', digits);
    empty(pieces, sign, digits);
    qr_add_digits(pieces, digits, 1, QR_EXPONENT_DIGITS, to);
}

void qr_add_number(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t begin = new_state(pieces), whole = new_state(pieces), parts = new_state(pieces);
    byte(pieces, from, '-', begin);
    empty(pieces, from, begin);
    byte(pieces, begin, '0', whole);
    add_natural(pieces, begin, whole);
    empty(pieces, whole, parts);
    qr_add_fraction(pieces, whole, QR_FRACTION_DIGITS, parts);
    empty(pieces, parts, to);
    add_exponent(pieces, parts, to);
}

/* ---- Any value --------------------------------------------------------------------------------------------------- */

/* Items between brackets, with commas between them. */
static void add_list(qr_json_pieces *pieces, int32_t from, char opening, char closing,
                     void (*add_item)(qr_json_pieces *pieces, int32_t from, int32_t to), int32_t to) {
    const int32_t open = new_state(pieces), first = new_state(pieces), item = new_state(pieces);
    const int32_t after = new_state(pieces), comma = new_state(pieces), close = new_state(pieces);
    byte(pieces, from, opening, open);
    qr_add_space(pieces, open, first);
    byte(pieces, first, closing, to);
    empty(pieces, first, item);
    add_item(pieces, item, after);
    byte(pieces, after, ',', comma);
    qr_add_space(pieces, comma, item);
    qr_add_space(pieces, after, close);
    byte(pieces, close, closing, to);
}

static void add_any_member(qr_json_pieces *pieces, int32_t from, int32_t to) {
    const int32_t name = new_state(pieces), colon = new_state(pieces), value = new_state(pieces);
    qr_add_string(pieces, from, name);
    byte(pieces, name, ':', colon);
    qr_add_space(pieces, colon, value);
    qr_add_value(pieces, value, to);
}

static void build_object(qr_json_pieces *pieces, int32_t start, int32_t end) {
    add_list(pieces, start, '{', '}', add_any_member, end);
}

void qr_add_object(qr_json_pieces *pieces, int32_t from, int32_t to) {
    call(pieces, from, &pieces->object, build_object, to);
}

void qr_add_array(qr_json_pieces *pieces, int32_t from, int32_t to) {
    add_list(pieces, from, '[', ']', qr_add_value, to);
}

static void build_value(qr_json_pieces *pieces, int32_t start, int32_t end) {
    build_object(pieces, start, end);
    qr_add_array(pieces, start, end);
    qr_add_string(pieces, start, end);
    qr_add_number(pieces, start, end);
    qr_automaton_add_text(&pieces->builder, start, "true", end);
    qr_automaton_add_text(&pieces->builder, start, "false", end);
    qr_automaton_add_text(&pieces->builder, start, "null", end);
}

void qr_add_value(qr_json_pieces *pieces, int32_t from, int32_t to) {
    call(pieces, from, &pieces->value, build_value, to);
}
