/* Operations on text: case, space, search, replace, lines, HTML escapes; and sorting. */
#define _GNU_SOURCE /* memmem, which is linear in the C libraries that have it */
#include <string.h>
#include <utf8proc.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

bool qr_jinja_is_space(uint32_t c) {
    return (c >= 0x09U && c <= 0x0DU) || (c >= 0x1CU && c <= 0x20U) || c == 0x85U || c == 0xA0U || c == 0x1680U ||
           (c >= 0x2000U && c <= 0x200AU) || c == 0x2028U || c == 0x2029U || c == 0x202FU || c == 0x205FU ||
           c == 0x3000U;
}

bool qr_jinja_is_alpha(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool qr_jinja_is_alnum(uint32_t c) {
    if (c < 0x80U) { return (c >= '0' && c <= '9') || ((c | 0x20U) >= 'a' && (c | 0x20U) <= 'z'); }
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return qr_jinja_is_alpha(c) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

/* memmem prepares the wanted text and then walks the other one once, up to what it finds. */
const char *qr_jinja_search(qr_jinja_run *run, const char *text, size_t size, const qr_jinja_string *wanted) {
    if (wanted->size == 0) { return text; }
    if (size < wanted->size || !qr_jinja_walk(run, wanted->size)) { return NULL; }
    const char *found = memmem(text, size, wanted->data, wanted->size);
    (void)qr_jinja_walk(run, found != NULL ? (size_t)(found - text) : size);
    return found;
}

const char *qr_jinja_search_last(qr_jinja_run *run, const char *text, size_t size, const qr_jinja_string *wanted) {
    if (wanted->size == 0) { return text + size; }
    for (size_t at = size + 1; at-- > wanted->size && qr_jinja_walk(run, 1 + wanted->size / 4);) {
        const char *start = text + at - wanted->size;
        if (memcmp(start, wanted->data, wanted->size) == 0) { return start; }
    }
    return NULL;
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

static bool is_stripped(qr_jinja_run *run, const qr_jinja_string *chars, const char *at, size_t length) {
    uint32_t c;
    if (!qr_jinja_walk(run, length)) { return false; }
    if (chars == NULL) { return qr_utf8_decode(at, length, &c) > 0 && qr_jinja_is_space(c); }
    const qr_jinja_string one = {.data = at, .size = length};
    return qr_jinja_search(run, chars->data, chars->size, &one) != NULL;
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
        if (!is_stripped(run, set, text->data + start, length)) { break; }
        start += length;
    }
    while (right && end > start) {
        const size_t from = start + qr_utf8_last(text->data + start, end - start);
        if (!is_stripped(run, set, text->data + from, end - from)) { break; }
        end = from;
    }
    return qr_jinja_with_safety(run, qr_jinja_lend(run, text->data + start, end - start), text->safe);
}

/* --- replace and lines --- */

qr_jinja_value qr_jinja_replace(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *old,
                                const qr_jinja_string *by, int64_t count) {
    qr_jinja_builder builder = {.run = run};
    size_t i = 0;
    while (count != 0 && i <= text->size && !qr_jinja_failed(run)) {
        const char *found = qr_jinja_search(run, text->data + i, text->size - i, old);
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

/* The text without comments and tags, up to the first that has no end: markupsafe's rule. */
static qr_jinja_value cut_tags(qr_jinja_run *run, const qr_jinja_string *text) {
    static const qr_jinja_string open_comment = {.data = "<!--", .size = 4}, close_comment = {.data = "-->", .size = 3};
    static const qr_jinja_string open_tag = {.data = "<", .size = 1}, close_tag = {.data = ">", .size = 1};
    qr_jinja_builder builder = {.run = run};
    const char *at = text->data, *end = at + text->size, *start;
    while ((start = qr_jinja_search(run, at, (size_t)(end - at), &open_tag)) != NULL && !qr_jinja_failed(run)) {
        const bool is_comment =
            (size_t)(end - start) >= open_comment.size && memcmp(start, open_comment.data, open_comment.size) == 0;
        const qr_jinja_string *closing = is_comment ? &close_comment : &close_tag;
        const char *body = start + (is_comment ? open_comment.size : 0);
        const char *close = qr_jinja_search(run, body, (size_t)(end - body), closing);
        if (close == NULL) { break; }
        qr_jinja_append(&builder, at, (size_t)(start - at));
        at = close + closing->size;
    }
    qr_jinja_append(&builder, at, (size_t)(end - at));
    return qr_jinja_built(&builder);
}

/* A character reference at text[i] == '&', appended as what it stands for; its length, or 0 where it is none. */
static size_t append_reference(qr_jinja_builder *builder, const qr_jinja_string *text, size_t i) {
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#34;", "&#39;"};
    static const char characters[] = "&<>\"'\"'";
    for (size_t n = 0; n < QR_COUNT_OF(names); n++) {
        const size_t length = strlen(names[n]);
        if (text->size - i < length || memcmp(text->data + i, names[n], length) != 0) { continue; }
        qr_jinja_append(builder, &characters[n], 1);
        return length;
    }
    const char next = i + 1 < text->size ? text->data[i + 1] : ' ';
    if (next == '#' || ((next | 0x20) >= 'a' && (next | 0x20) <= 'z')) {
        (void)qr_jinja_error(builder->run, "striptags: the character reference '%.*s' is not supported",
                             (int)qr_min(8, (int64_t)(text->size - i)), text->data + i);
    }
    return 0;
}

qr_jinja_value qr_jinja_strip_tags(qr_jinja_run *run, const qr_jinja_string *text) {
    const qr_jinja_string *left = cut_tags(run, text).string;
    qr_jinja_builder builder = {.run = run};
    bool has_gap = false;
    for (size_t i = 0; i < left->size && !qr_jinja_failed(run);) {
        const size_t start = i;
        const uint32_t c = qr_jinja_next_character(left, &i);
        if (qr_jinja_is_space(c)) {
            has_gap = builder.size > 0;
            continue;
        }
        if (has_gap) { qr_jinja_append_text(&builder, " "); }
        has_gap = false;
        const size_t n_reference = c == '&' ? append_reference(&builder, left, start) : 0;
        if (n_reference > 0) {
            i = start + n_reference;
        } else {
            qr_jinja_append(&builder, left->data + start, i - start);
        }
    }
    return qr_jinja_built(&builder);
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
