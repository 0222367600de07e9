/* Character classes as Rust's standard library and Oniguruma define them, normal forms, the byte-level alphabet, and
 * the escape for bytes that are not UTF-8. Character data comes from utf8proc. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

bool qr_is_space(uint32_t c) {
    if (c < 0x80U) { return c == ' ' || (c >= '\t' && c <= '\r'); }
    return c == 0x85U || c == 0xA0U || c == 0x1680U || (c >= 0x2000U && c <= 0x200AU) || c == 0x2028U || c == 0x2029U ||
           c == 0x202FU || c == 0x205FU || c == 0x3000U;
}

bool qr_is_numeric(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool qr_is_punctuation(uint32_t c) {
    if (c < 0x80U) { return c > ' ' && c < 0x7FU && !qr_is_word(c | 0x20U) && !(c >= '0' && c <= '9'); }
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool qr_is_mark(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool qr_is_word(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) { return true; }
    /* Connectors, the joiners, and the symbols that are alphabetic: circled and squared letters. */
    return category == UTF8PROC_CATEGORY_PC || c == 0x200CU || c == 0x200DU || (c >= 0x24B6U && c <= 0x24E9U) ||
           (c >= 0x1F130U && c <= 0x1F149U) || (c >= 0x1F150U && c <= 0x1F169U) || (c >= 0x1F170U && c <= 0x1F189U);
}

/* Printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on, in order. */
static bool is_printable_byte(uint32_t byte) {
    return (byte >= 0x21U && byte <= 0x7EU) || (byte >= 0xA1U && byte <= 0xACU) || (byte >= 0xAEU && byte <= 0xFFU);
}

uint32_t qr_byte_to_char(unsigned char byte) {
    if (is_printable_byte(byte)) { return byte; }
    return byte <= 0x20U ? 0x100U + byte : byte <= 0xA0U ? 0x121U + (byte - 0x7FU) : 0x143U;
}

int qr_char_to_byte(uint32_t c) {
    if (c < 0x100U) { return is_printable_byte(c) ? (int)c : -1; }
    if (c <= 0x120U) { return (int)(c - 0x100U); }
    return c <= 0x142U ? (int)(c - 0x121U + 0x7FU) : c == 0x143U ? 0xAD : -1;
}

/* --- normal forms ------------------------------------------------------------------------------------------------- */

typedef struct code_points {
    utf8proc_int32_t *items, *scratch;
    size_t n, capacity, scratch_capacity;
} code_points;

static bool decompose(code_points *points, const char *text, size_t n_bytes, utf8proc_option_t options) {
    enum { LONGEST_DECOMPOSITION = 32 };
    points->n = 0;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t c;
        i += qr_utf8_decode(text + i, n_bytes - i, &c);
        if (!qr_array_reserve(&points->items, &points->capacity, points->n + LONGEST_DECOMPOSITION,
                              sizeof *points->items)) {
            return false;
        }
        int boundary = 0;
        const utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, points->items + points->n,
                                                           LONGEST_DECOMPOSITION, options, &boundary);
        if (n <= 0 || n > LONGEST_DECOMPOSITION) { /* never for a valid character */
            points->items[points->n++] = (utf8proc_int32_t)c;
        } else {
            points->n += (size_t)n;
        }
    }
    return true;
}

static int combining_class(utf8proc_int32_t c) { return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class; }

/* Stable sort of a run of combining characters by class. Counting keeps a megabyte of marks linear. */
static void sort_marks(utf8proc_int32_t *run, size_t n, utf8proc_int32_t *scratch) {
    size_t first[257] = {0};
    for (size_t i = 0; i < n; i++) { first[combining_class(run[i]) + 1]++; }
    for (int k = 1; k <= 256; k++) { first[k] += first[k - 1]; }
    for (size_t i = 0; i < n; i++) { scratch[first[combining_class(run[i])]++] = run[i]; }
    memcpy(run, scratch, n * sizeof *run);
}

static bool order_marks(code_points *points) {
    for (size_t i = 0; i < points->n;) {
        size_t end = i;
        bool sorted = true;
        for (int last = 0; end < points->n; end++) {
            const int class = combining_class(points->items[end]);
            if (class == 0) { break; }
            sorted = sorted && class >= last;
            last = class;
        }
        if (!sorted) {
            if (!qr_array_reserve(&points->scratch, &points->scratch_capacity, end - i, sizeof *points->scratch)) {
                return false;
            }
            sort_marks(points->items + i, end - i, points->scratch);
        }
        i = end + 1;
    }
    return true;
}

/* One stretch that no composition crosses. */
static bool normalize_stretch(qr_normal_form form, code_points *points, const char *text, size_t n_bytes,
                              qr_buffer *out) {
    const bool compat = form == QR_NFKC || form == QR_NFKD;
    const utf8proc_option_t options = (utf8proc_option_t)(UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
    if (!decompose(points, text, n_bytes, options) || !order_marks(points)) { return false; }
    if (form == QR_NFC || form == QR_NFKC) {
        const utf8proc_ssize_t n = utf8proc_normalize_utf32(points->items, (utf8proc_ssize_t)points->n,
                                                            (utf8proc_option_t)(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
        if (n >= 0) { points->n = (size_t)n; }
    }
    for (size_t i = 0; i < points->n; i++) {
        char bytes[4];
        qr_buffer_append(out, bytes, qr_utf8_encode((uint32_t)points->items[i], bytes));
    }
    return true;
}

qrun_status qr_unicode_normalize(qr_normal_form form, const char *text, size_t n_bytes, qr_buffer *out, qr_error *err) {
    code_points points = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < n_bytes;) {
        /* ASCII is its own normal form and composes only with what follows it. */
        size_t ascii_end = i;
        while (ascii_end < n_bytes && (unsigned char)text[ascii_end] < 0x80U) { ascii_end++; }
        const size_t begin = ascii_end > i && ascii_end < n_bytes ? ascii_end - 1 : ascii_end;
        qr_buffer_append(out, text + i, begin - i);
        size_t end = ascii_end;
        while (end < n_bytes && (unsigned char)text[end] >= 0x80U) { end++; }
        ok = normalize_stretch(form, &points, text + begin, end - begin, out);
        i = end;
    }
    qr_free(points.items);
    qr_free(points.scratch);
    return ok && qr_buffer_ok(out) ? QRUN_OK : qr_fail_memory(err, "the normalised text", n_bytes);
}

/* --- bytes that are not UTF-8 ------------------------------------------------------------------------------------- */

enum { ESCAPE_PLANE = 0x100000, ESCAPE_BLOCKS = 255 }; /* the last block of the plane ends in noncharacters */

/* A block of 256 characters of the plane that the text does not use; 0 where it uses them all. */
static uint32_t unused_block(const char *text, size_t n_bytes) {
    bool used[256] = {false};
    for (size_t i = 0; i < n_bytes;) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text + i, n_bytes - i, &c);
        if (length == 4 && c >= ESCAPE_PLANE) { used[(c - ESCAPE_PLANE) >> 8] = true; }
        i += length > 0 ? length : 1;
    }
    for (uint32_t block = 0; block < ESCAPE_BLOCKS; block++) {
        if (!used[block]) { return ESCAPE_PLANE + (block << 8); }
    }
    return 0;
}

qrun_status qr_escape_bytes(const char *text, size_t n_bytes, qr_buffer *escaped, uint32_t *base, qr_error *err) {
    *base = 0;
    if (qr_utf8_valid_prefix(text, n_bytes) == n_bytes) { return QRUN_OK; }
    const uint32_t block = unused_block(text, n_bytes);
    for (size_t i = 0; i < n_bytes;) {
        const size_t valid = qr_utf8_valid_prefix(text + i, n_bytes - i);
        qr_buffer_append(escaped, text + i, valid);
        i += valid;
        if (i == n_bytes) { break; }
        char bytes[4];
        const uint32_t c = block != 0 ? block + (unsigned char)text[i] : 0xFFFDU;
        qr_buffer_append(escaped, bytes, qr_utf8_encode(c, bytes));
        i++;
    }
    if (!qr_buffer_ok(escaped)) { return qr_fail_memory(err, "the text", n_bytes); }
    *base = block;
    return QRUN_OK;
}
