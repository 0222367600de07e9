/* SentencePiece's precompiled character map, as the `tokenizers` library applies it: by grapheme cluster where one is
 * short and maps, else by character, each replaced by what its shortest mapped prefix maps to.
 *
 * Bytes: u32 size of the trie, the trie (a Darts double array of little-endian u32 units), the replacements, each ended
 * by NUL; all of it in base64. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') { return c - 'A'; }
    if (c >= 'a' && c <= 'z') { return c - 'a' + 26; }
    if (c >= '0' && c <= '9') { return c - '0' + 52; }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static qrun_status decode_base64(const char *text, unsigned char **bytes, size_t *n_bytes, const char *what,
                                 qr_error *err) {
    const size_t n = strlen(text);
    *bytes = qr_alloc(n / 4 * 3 + 3);
    if (*bytes == NULL) { return qr_fail_memory(err, "the character map", n); }
    uint32_t bits = 0;
    size_t n_bits = 0, i = 0;
    for (*n_bytes = 0; i < n && text[i] != '='; i++) {
        const int value = base64_value(text[i]);
        if (value < 0) { break; }
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            (*bytes)[(*n_bytes)++] = (unsigned char)(bits >> n_bits);
        }
    }
    if (n % 4 != 0 || i + strspn(text + i, "=") != n || n - i > 2) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the precompiled_charsmap is not base64", what);
    }
    return QRUN_OK;
}

static uint32_t read_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

qrun_status qr_charsmap_parse(qr_charsmap *map, const char *base64, const char *what, qr_error *err) {
    unsigned char *bytes = NULL;
    size_t n_bytes = 0;
    qrun_status status;
    QR_TRY(decode_base64(base64, &bytes, &n_bytes, what, err));
    const size_t trie_bytes = n_bytes >= 4 ? read_u32(bytes) : 0;
    if (n_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > n_bytes - 4) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: the precompiled_charsmap is cut short", what));
    }
    map->n_units = trie_bytes / 4;
    map->n_replacement_bytes = n_bytes - 4 - trie_bytes;
    map->units = qr_alloc_array(map->n_units, sizeof *map->units);
    map->replacements = qr_strndup((const char *)bytes + 4 + trie_bytes, map->n_replacement_bytes);
    if (map->units == NULL || map->replacements == NULL) { QR_TRY(qr_fail_memory(err, "the character map", n_bytes)); }
    for (size_t i = 0; i < map->n_units; i++) { map->units[i] = read_u32(bytes + 4 + 4 * i); }
    if (qr_utf8_valid_prefix(map->replacements, map->n_replacement_bytes) != map->n_replacement_bytes) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: the precompiled_charsmap's replacements are not UTF-8", what));
    }
out:
    qr_free(bytes);
    return status;
}

void qr_charsmap_free(qr_charsmap *map) {
    qr_free(map->units);
    qr_free(map->replacements);
    *map = (qr_charsmap){0};
}

/* The replacement of the shortest prefix of text that has one, or NULL. */
static const char *find_replacement(const qr_charsmap *map, const char *text, size_t n_bytes) {
    size_t at = 0;
    uint32_t unit = map->units[0];
    for (size_t i = 0; i < n_bytes && text[i] != '\0'; i++) {
        const uint32_t byte = (unsigned char)text[i];
        at ^= (size_t)((unit >> 10) << ((unit & 0x200U) >> 6)) ^ byte;
        if (at >= map->n_units) { return NULL; }
        unit = map->units[at];
        if ((unit & (0x80000000U | 0xFFU)) != byte) { return NULL; }
        if ((unit >> 8 & 1U) != 0) {
            const size_t leaf = at ^ (size_t)((unit >> 10) << ((unit & 0x200U) >> 6));
            const size_t offset = leaf < map->n_units ? map->units[leaf] & 0x7FFFFFFFU : SIZE_MAX;
            const bool inside = offset < map->n_replacement_bytes;
            /* Offsets that fall inside a character would make text that is not UTF-8. */
            return inside && ((unsigned char)map->replacements[offset] & 0xC0U) != 0x80U ? map->replacements + offset
                                                                                         : NULL;
        }
    }
    return NULL;
}

static size_t grapheme_length(const char *text, size_t n_bytes) {
    utf8proc_int32_t state = 0;
    uint32_t last;
    size_t i = qr_utf8_decode(text, n_bytes, &last);
    while (i < n_bytes) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text + i, n_bytes - i, &c);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)c, &state)) { break; }
        last = c;
        i += length;
    }
    return i;
}

void qr_charsmap_apply(const qr_charsmap *map, const char *text, size_t n_bytes, size_t max_bytes, qr_buffer *out) {
    enum { LONGEST_MAPPED_GRAPHEME = 5 };
    for (size_t i = 0; i < n_bytes && out->size <= max_bytes;) {
        const size_t grapheme = grapheme_length(text + i, n_bytes - i);
        const char *replacement =
            grapheme <= LONGEST_MAPPED_GRAPHEME ? find_replacement(map, text + i, grapheme) : NULL;
        if (replacement != NULL) { qr_buffer_append_text(out, replacement); }
        for (size_t end = i + grapheme; replacement == NULL && i < end;) {
            const size_t length = qr_char_length(text[i]);
            const char *single = find_replacement(map, text + i, length);
            qr_buffer_append(out, single != NULL ? single : text + i, single != NULL ? strlen(single) : length);
            i += length;
        }
        if (replacement != NULL) { i += grapheme; }
    }
}
