/* Operations on text: case, space, search, replace, lines, HTML escapes; and sorting. */
#define _GNU_SOURCE /* memmem, which is linear in the C libraries that have it */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

bool qr_jinja_is_space(uint32_t c) {
    return (c >= 0x09U && c <= 0x0DU) || (c >= 0x1CU && c <= 0x20U) || c == 0x85U || c == 0xA0U || c == 0x1680U ||
           (c >= 0x2000U && c <= 0x200AU) || c == 0x2028U || c == 0x2029U || c == 0x202FU || c == 0x205FU ||
           c == 0x3000U;
}

const char *qr_jinja_search(const char *text, size_t size, const qr_jinja_string *wanted) {
    if (wanted->size == 0) { return text; }
    return size < wanted->size ? NULL : memmem(text, size, wanted->data, wanted->size);
}

uint32_t qr_jinja_next_character(const qr_jinja_string *text, size_t *i) {
    uint32_t c;
    const size_t length = qr_utf8_decode(text->data + *i, text->size - *i, &c);
    *i += length > 0 ? length : 1;
    return c;
}

/* --- case: the simple mappings of Unicode, and the sharp s, whose upper case is two letters --- */

static bool is_cased(uint32_t c) {
    return utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c ||
           utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c;
}

static void append_upper(qr_jinja_builder *builder, uint32_t c, bool title) {
    if (c == 0xDFU) {
        qr_jinja_append_text(builder, title ? "Ss" : "SS");
        return;
    }
    qr_jinja_append_code_point(
        builder, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c)));
}

static void append_lower(qr_jinja_builder *builder, uint32_t c) {
    qr_jinja_append_code_point(builder, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

qr_jinja_value qr_jinja_map_case(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_case mapping) {
    qr_jinja_builder builder = {.run = run};
    bool at_start = true; /* of the text, or for QR_JINJA_TITLE of a word */
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run);) {
        const uint32_t c = qr_jinja_next_character(text, &i);
        const bool upper = mapping == QR_JINJA_UPPER ||
                           (at_start && (mapping == QR_JINJA_TITLE || mapping == QR_JINJA_CAPITAL)) ||
                           (mapping == QR_JINJA_SWAP && utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c);
        if (upper) {
            append_upper(&builder, c, mapping == QR_JINJA_TITLE || mapping == QR_JINJA_CAPITAL);
        } else {
            append_lower(&builder, c);
        }
        at_start = mapping == QR_JINJA_TITLE && !is_cased(c);
    }
    return qr_jinja_with_safety(run, qr_jinja_built(&builder), text->safe);
}

/* --- strip --- */

static bool is_stripped(const qr_jinja_string *chars, const char *at, size_t length) {
    uint32_t c;
    if (chars == NULL) { return qr_utf8_decode(at, length, &c) > 0 && qr_jinja_is_space(c); }
    const qr_jinja_string one = {.data = at, .size = length};
    return qr_jinja_search(chars->data, chars->size, &one) != NULL;
}

qr_jinja_value qr_jinja_strip(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_value chars, bool left,
                              bool right) {
    if (chars.type != QR_JINJA_MISSING && chars.type != QR_JINJA_NONE && chars.type != QR_JINJA_STRING) {
        return qr_jinja_error(run, "strip arg must be None or str, not %s", qr_jinja_type_name(chars));
    }
    const qr_jinja_string *set = chars.type == QR_JINJA_STRING ? chars.string : NULL;
    size_t start = 0, end = text->size;
    while (left && start < end) {
        const size_t length = qr_utf8_sequence_length(text->data + start, end - start);
        if (!is_stripped(set, text->data + start, length)) { break; }
        start += length;
    }
    while (right && end > start) {
        const size_t from = start + qr_utf8_last(text->data + start, end - start);
        if (!is_stripped(set, text->data + from, end - from)) { break; }
        end = from;
    }
    (void)qr_jinja_step(run, text->size / 64);
    return qr_jinja_with_safety(run, qr_jinja_lend(run, text->data + start, end - start), text->safe);
}

/* --- replace and lines --- */

qr_jinja_value qr_jinja_replace(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *old,
                                const qr_jinja_string *by, int64_t count) {
    qr_jinja_builder builder = {.run = run};
    size_t i = 0;
    while (count != 0 && i <= text->size && !qr_jinja_failed(run)) {
        const char *found = qr_jinja_search(text->data + i, text->size - i, old);
        if (found == NULL) { break; }
        qr_jinja_append(&builder, text->data + i, (size_t)(found - (text->data + i)));
        qr_jinja_append(&builder, by->data, by->size);
        i = (size_t)(found - text->data) + old->size;
        if (count > 0) { count--; }
        if (old->size == 0) { /* between all characters */
            const size_t length = i < text->size ? qr_utf8_sequence_length(text->data + i, text->size - i) : 0;
            qr_jinja_append(&builder, text->data + i, length);
            if (length == 0) { return qr_jinja_built(&builder); }
            i += length;
        }
        (void)qr_jinja_step(run, 1);
    }
    if (i < text->size) { qr_jinja_append(&builder, text->data + i, text->size - i); }
    return qr_jinja_built(&builder);
}

/* The length of the line end at text[i], as str.splitlines sees them; 0 where there is none. */
static size_t line_end_length(const char *text, size_t size, size_t i) {
    uint32_t c;
    const size_t length = qr_utf8_decode(text + i, size - i, &c);
    if (c == '\r') { return i + 1 < size && text[i + 1] == '\n' ? 2 : 1; }
    const bool ends =
        (c >= 0x0AU && c <= 0x0CU) || (c >= 0x1CU && c <= 0x1EU) || c == 0x85U || c == 0x2028U || c == 0x2029U;
    return ends ? length : 0;
}

qr_jinja_list *qr_jinja_split_lines(qr_jinja_run *run, const qr_jinja_string *text, bool keep_ends) {
    qr_jinja_list *lines = qr_jinja_list_create(run, 0);
    size_t start = 0;
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run);) {
        const size_t end_length = line_end_length(text->data, text->size, i);
        if (end_length == 0) {
            i++;
            while (i < text->size && ((unsigned char)text->data[i] & 0xC0U) == 0x80U) { i++; }
            continue;
        }
        qr_jinja_list_append(run, lines,
                             qr_jinja_lend(run, text->data + start, i - start + (keep_ends ? end_length : 0)));
        i += end_length;
        start = i;
    }
    if (start < text->size) {
        qr_jinja_list_append(run, lines, qr_jinja_lend(run, text->data + start, text->size - start));
    }
    return lines;
}

qr_jinja_value qr_jinja_escape_html(qr_jinja_run *run, const qr_jinja_string *text) {
    static const char special[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    qr_jinja_builder builder = {.run = run};
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run); i++) {
        const char *found = text->data[i] != '\0' ? strchr(special, text->data[i]) : NULL;
        if (found != NULL) {
            qr_jinja_append_text(&builder, entities[found - special]);
        } else {
            qr_jinja_append(&builder, text->data + i, 1);
        }
    }
    return qr_jinja_with_safety(run, qr_jinja_built(&builder), true);
}

/* --- sorting --- */

/* True when b comes strictly before a. */
static bool precedes(qr_jinja_run *run, const qr_jinja_list *keys, int64_t b, int64_t a, bool reverse) {
    const int order = reverse ? qr_jinja_compare(run, keys->items[a], keys->items[b], "<")
                              : qr_jinja_compare(run, keys->items[b], keys->items[a], "<");
    return order == -1;
}

/* Merges from[low, middle) and from[middle, high) into to; stable. */
static void merge(qr_jinja_run *run, const qr_jinja_list *keys, const int64_t *from, int64_t *to, size_t low,
                  size_t middle, size_t high, bool reverse) {
    size_t i = low, j = middle;
    for (size_t k = low; k < high; k++) {
        const bool take_right =
            i >= middle || (j < high && !qr_jinja_failed(run) && precedes(run, keys, from[j], from[i], reverse));
        to[k] = take_right ? from[j++] : from[i++];
    }
}

qr_jinja_value qr_jinja_sorted(qr_jinja_run *run, qr_jinja_list *list, qr_jinja_list *keys, bool reverse) {
    const size_t n = list->n_items;
    int64_t *from = qr_jinja_take(run, (n + 1) * sizeof *from), *to = qr_jinja_take(run, (n + 1) * sizeof *to);
    qr_jinja_list *sorted = qr_jinja_list_create(run, n);
    if (from == NULL || to == NULL || keys->n_items != n) { return qr_jinja_from_list(QR_JINJA_LIST, sorted); }
    for (size_t i = 0; i < n; i++) { from[i] = (int64_t)i; }
    for (size_t width = 1; width < n && qr_jinja_step(run, n); width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            const size_t middle = low + width < n ? low + width : n;
            const size_t high = low + 2 * width < n ? low + 2 * width : n;
            merge(run, keys, from, to, low, middle, high, reverse);
        }
        int64_t *swapped = from;
        from = to;
        to = swapped;
    }
    for (size_t i = 0; i < n; i++) { qr_jinja_list_append(run, sorted, list->items[from[i]]); }
    return qr_jinja_from_list(QR_JINJA_LIST, sorted);
}
