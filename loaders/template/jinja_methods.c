/* Methods of strings, dicts and lists, and the attributes of loops and cyclers. */
#include <string.h>
#include <utf8proc.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_filters.h"

#define COMMON const qr_jinja_value *args, const qr_jinja_args *raw

/* The builtin of a name in a table. */
const qr_jinja_builtin *qr_jinja_find_builtin(const qr_jinja_builtin *table, size_t n, const char *name, size_t size) {
    for (size_t i = 0; i < n; i++) {
        if (strlen(table[i].name) == size && memcmp(table[i].name, name, size) == 0) { return &table[i]; }
    }
    return NULL;
}

/* A string argument; "" after a failure. */
static const qr_jinja_string *text_of(qr_jinja_run *run, qr_jinja_value value) {
    static const qr_jinja_string empty = {.data = "", .size = 0};
    if (value.type == QR_JINJA_STRING) { return value.string; }
    if (value.type == QR_JINJA_UNDEFINED) {
        (void)qr_jinja_undefined_error(run, value);
    } else {
        (void)qr_jinja_error(run, "expected str, not %s", qr_jinja_type_name(value));
    }
    return &empty;
}

static qr_jinja_value keep_safe(qr_jinja_run *run, const qr_jinja_string *from, qr_jinja_value text) {
    if (!qr_jinja_failed(run)) { text.string->safe = from->safe; }
    return text;
}

/* --- case and space --- */

static qr_jinja_value string_upper(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return qr_jinja_map_case(run, self.string, QR_JINJA_UPPER);
}
static qr_jinja_value string_lower(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return qr_jinja_map_case(run, self.string, QR_JINJA_LOWER);
}
static qr_jinja_value string_title(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return qr_jinja_map_case(run, self.string, QR_JINJA_TITLE);
}
static qr_jinja_value string_capitalize(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return qr_jinja_map_case(run, self.string, QR_JINJA_CAPITAL);
}
static qr_jinja_value string_swapcase(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return qr_jinja_map_case(run, self.string, QR_JINJA_SWAP);
}
static qr_jinja_value string_strip(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return qr_jinja_strip(run, self.string, args[0], true, true);
}
static qr_jinja_value string_lstrip(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return qr_jinja_strip(run, self.string, args[0], true, false);
}
static qr_jinja_value string_rstrip(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return qr_jinja_strip(run, self.string, args[0], false, true);
}

/* --- splitting and joining --- */

/* The next run of characters that are no space, from *at on; false at the end. */
static bool next_word(const qr_jinja_string *text, size_t *at, size_t *start, size_t *end) {
    uint32_t c;
    size_t length;
    while (*at < text->size && (length = qr_utf8_decode(text->data + *at, text->size - *at, &c)) > 0 &&
           qr_jinja_is_space(c)) {
        *at += length;
    }
    *start = *at;
    while (*at < text->size && (length = qr_utf8_decode(text->data + *at, text->size - *at, &c)) > 0 &&
           !qr_jinja_is_space(c)) {
        *at += length;
    }
    *end = *at;
    return *end > *start;
}

static qr_jinja_list *split_words(qr_jinja_run *run, const qr_jinja_string *text, int64_t limit) {
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    size_t at = 0, start, end;
    while (!qr_jinja_failed(run) && next_word(text, &at, &start, &end)) {
        if (limit >= 0 && (int64_t)parts->n_items == limit) {
            const qr_jinja_string rest = {.data = text->data + start, .size = text->size - start};
            qr_jinja_list_append(run, parts, qr_jinja_strip(run, &rest, qr_jinja_none(), true, false));
            break;
        }
        qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data + start, end - start));
    }
    return parts;
}

static qr_jinja_list *split_at(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *separator,
                               int64_t limit) {
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    size_t at = 0;
    while (!qr_jinja_failed(run)) {
        const bool more = limit < 0 || (int64_t)parts->n_items < limit;
        const char *found = more ? qr_jinja_search(text->data + at, text->size - at, separator) : NULL;
        const size_t end = found != NULL ? (size_t)(found - text->data) : text->size;
        qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data + at, end - at));
        if (found == NULL) { break; }
        at = end + separator->size;
    }
    return parts;
}

static void reverse(qr_jinja_list *list) {
    for (size_t i = 0, j = list->n_items; i + 1 < j; i++) {
        j--;
        const qr_jinja_value item = list->items[i];
        list->items[i] = list->items[j];
        list->items[j] = item;
    }
}

/* From the right, at most `limit` cuts: separators are sought backwards, so that overlapping ones count as in Python.
 */
static qr_jinja_list *split_from_right(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *separator,
                                       int64_t limit) {
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    size_t end = text->size;
    for (size_t at = text->size; (int64_t)parts->n_items != limit && at >= separator->size && !qr_jinja_failed(run);) {
        if (memcmp(text->data + at - separator->size, separator->data, separator->size) != 0) {
            at--;
            continue;
        }
        qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data + at, end - at));
        at -= separator->size;
        end = at;
    }
    (void)qr_jinja_step(run, text->size / 64);
    qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data, end));
    if (!qr_jinja_failed(run)) { reverse(parts); }
    return parts;
}

/* The last `limit` words, and what is left of them as it stands. */
static qr_jinja_list *split_words_from_right(qr_jinja_run *run, const qr_jinja_string *text, int64_t limit) {
    qr_jinja_list *words = split_words(run, text, -1);
    if (qr_jinja_failed(run) || limit < 0 || (int64_t)words->n_items <= limit) { return words; }
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    const size_t first = words->n_items - (size_t)limit;
    const qr_jinja_string *last = words->items[first - 1].string;
    qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data, (size_t)(last->data + last->size - text->data)));
    for (size_t i = first; i < words->n_items; i++) { qr_jinja_list_append(run, parts, words->items[i]); }
    return parts;
}

static qr_jinja_value split(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_value *args,
                            bool from_right) {
    const int64_t limit = qr_jinja_integer_or(run, args[1], -1);
    if (args[0].type == QR_JINJA_MISSING || args[0].type == QR_JINJA_NONE) {
        return qr_jinja_from_list(QR_JINJA_LIST, from_right ? split_words_from_right(run, text, limit)
                                                            : split_words(run, text, limit));
    }
    const qr_jinja_string *separator = text_of(run, args[0]);
    if (separator->size == 0) { return qr_jinja_error(run, "empty separator"); }
    const bool backwards = from_right && limit >= 0;
    return qr_jinja_from_list(QR_JINJA_LIST, backwards ? split_from_right(run, text, separator, limit)
                                                       : split_at(run, text, separator, limit));
}

static qr_jinja_value string_split(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return split(run, self.string, args, false);
}
static qr_jinja_value string_rsplit(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return split(run, self.string, args, true);
}

static qr_jinja_value string_splitlines(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return qr_jinja_from_list(QR_JINJA_LIST, qr_jinja_split_lines(run, self.string, qr_jinja_truth(args[0])));
}

static qr_jinja_value partition(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_value argument,
                                bool from_right) {
    const qr_jinja_string *separator = text_of(run, argument);
    if (separator->size == 0) { return qr_jinja_error(run, "empty separator"); }
    qr_jinja_list *parts = from_right ? split_from_right(run, text, separator, 1) : split_at(run, text, separator, 1);
    qr_jinja_list *three = qr_jinja_list_create(run, 3);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    const qr_jinja_value empty = qr_jinja_text(run, "");
    const bool found = parts->n_items == 2;
    qr_jinja_list_append(run, three, found || !from_right ? parts->items[0] : empty);
    qr_jinja_list_append(run, three, found ? argument : empty);
    qr_jinja_list_append(run, three, found ? parts->items[1] : from_right ? parts->items[0] : empty);
    return qr_jinja_from_list(QR_JINJA_TUPLE, three);
}

static qr_jinja_value string_partition(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return partition(run, self.string, args[0], false);
}
static qr_jinja_value string_rpartition(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return partition(run, self.string, args[0], true);
}

static qr_jinja_value string_join(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_list *items = qr_jinja_iterate(run, args[0]);
    qr_jinja_builder builder = {.run = run};
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        if (items->items[i].type != QR_JINJA_STRING) {
            return qr_jinja_error(run, "sequence item %zu: expected str instance, %s found", i,
                                  qr_jinja_type_name(items->items[i]));
        }
        if (i > 0) { qr_jinja_append_value(&builder, self); }
        qr_jinja_append_value(&builder, items->items[i]);
    }
    return qr_jinja_built(&builder);
}

/* --- searching --- */

/* The part of text that start and end (in characters, Python's rules) leave; false when nothing can be found in it. */
static bool narrow(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_value start, qr_jinja_value end,
                   qr_jinja_string *part, int64_t *first) {
    const int64_t n = start.type == QR_JINJA_MISSING ? 0 : (int64_t)qr_jinja_char_count(text->data, text->size);
    *part = *text;
    *first = 0;
    if (start.type == QR_JINJA_MISSING) { return true; }
    int64_t from = start.type == QR_JINJA_NONE ? 0 : qr_jinja_integer_or(run, start, 0);
    int64_t to = end.type == QR_JINJA_NONE ? n : qr_jinja_integer_or(run, end, n);
    from = from < 0 ? qr_max(0, from + n) : from;
    to = to < 0 ? qr_max(0, to + n) : qr_min(to, n);
    if (from > to || qr_jinja_failed(run)) { return false; }
    const size_t low = qr_jinja_char_offset(text->data, text->size, (size_t)from);
    const size_t high = qr_jinja_char_offset(text->data, text->size, (size_t)to);
    *part = (qr_jinja_string){.data = text->data + low, .size = high - low};
    *first = from;
    return true;
}

static bool has_affix(const qr_jinja_string *text, const qr_jinja_string *affix, bool at_end) {
    if (affix->size > text->size) { return false; }
    return affix->size == 0 ||
           memcmp(text->data + (at_end ? text->size - affix->size : 0), affix->data, affix->size) == 0;
}

static qr_jinja_value match_affix(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_value *args,
                                  bool at_end) {
    qr_jinja_string part;
    int64_t first;
    const bool possible = narrow(run, text, args[1], args[2], &part, &first);
    if (args[0].type != QR_JINJA_TUPLE) {
        return qr_jinja_bool(has_affix(&part, text_of(run, args[0]), at_end) && possible);
    }
    for (size_t i = 0; i < args[0].list->n_items && possible && qr_jinja_step(run, 1); i++) {
        if (has_affix(&part, text_of(run, args[0].list->items[i]), at_end)) { return qr_jinja_bool(true); }
    }
    return qr_jinja_bool(false);
}

static qr_jinja_value string_startswith(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return match_affix(run, self.string, args, false);
}
static qr_jinja_value string_endswith(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return match_affix(run, self.string, args, true);
}

static const char *search_last(const qr_jinja_string *text, const qr_jinja_string *wanted) {
    for (size_t at = text->size + 1; at-- > wanted->size;) {
        const char *start = text->data + at - wanted->size;
        if (wanted->size == 0 || memcmp(start, wanted->data, wanted->size) == 0) { return start; }
    }
    return wanted->size == 0 ? text->data : NULL;
}

static qr_jinja_value find(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_value *args, bool last,
                           bool must_exist) {
    const qr_jinja_string *wanted = text_of(run, args[0]);
    qr_jinja_string part;
    int64_t first;
    const char *found = NULL;
    if (qr_jinja_step(run, text->size / 64) && narrow(run, text, args[1], args[2], &part, &first)) {
        found = last ? search_last(&part, wanted) : qr_jinja_search(part.data, part.size, wanted);
    }
    if (found != NULL) {
        return qr_jinja_int(first + (int64_t)qr_jinja_char_count(part.data, (size_t)(found - part.data)));
    }
    return must_exist ? qr_jinja_error(run, "substring not found") : qr_jinja_int(-1);
}

static qr_jinja_value string_find(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return find(run, self.string, args, false, false);
}
static qr_jinja_value string_rfind(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return find(run, self.string, args, true, false);
}
static qr_jinja_value string_index(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return find(run, self.string, args, false, true);
}
static qr_jinja_value string_rindex(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return find(run, self.string, args, true, true);
}

static qr_jinja_value string_count(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_string *wanted = text_of(run, args[0]);
    if (wanted->size == 0) {
        return qr_jinja_int((int64_t)qr_jinja_char_count(self.string->data, self.string->size) + 1);
    }
    int64_t n = 0;
    const char *at = self.string->data, *end = at + self.string->size;
    while ((at = qr_jinja_search(at, (size_t)(end - at), wanted)) != NULL) {
        n++;
        at += wanted->size;
    }
    (void)qr_jinja_step(run, self.string->size / 64);
    return qr_jinja_int(n);
}

static qr_jinja_value string_replace(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_string *old = text_of(run, args[0]), *by = text_of(run, args[1]);
    const int64_t count = qr_jinja_integer_or(run, args[2], -1);
    return qr_jinja_failed(run) ? qr_jinja_undefined()
                                : keep_safe(run, self.string, qr_jinja_replace(run, self.string, old, by, count));
}

static qr_jinja_value string_removeprefix(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_string *affix = text_of(run, args[0]);
    if (!has_affix(self.string, affix, false)) { return self; }
    return qr_jinja_lend(run, self.string->data + affix->size, self.string->size - affix->size);
}

static qr_jinja_value string_removesuffix(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_string *affix = text_of(run, args[0]);
    if (!has_affix(self.string, affix, true)) { return self; }
    return qr_jinja_lend(run, self.string->data, self.string->size - affix->size);
}

static qr_jinja_value string_format(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    return qr_jinja_format_braces(run, self.string, raw);
}

/* --- padding --- */

static qr_jinja_value pad(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_value *args, bool left,
                          bool right) {
    const int64_t width = qr_jinja_integer_or(run, args[0], 0);
    const int64_t n = (int64_t)qr_jinja_char_count(text->data, text->size);
    const qr_jinja_string space = {.data = " ", .size = 1};
    const qr_jinja_string *fill = args[1].type == QR_JINJA_MISSING ? &space : text_of(run, args[1]);
    if (qr_jinja_char_count(fill->data, fill->size) != 1) {
        return qr_jinja_error(run, "the fill character must be exactly one character long");
    }
    const int64_t total = width > n ? width - n : 0;
    const int64_t before = !left ? 0 : !right ? total : total / 2 + (total & width & 1);
    qr_jinja_builder builder = {.run = run};
    for (int64_t i = 0; i < before && !qr_jinja_failed(run); i++) { qr_jinja_append(&builder, fill->data, fill->size); }
    qr_jinja_append(&builder, text->data, text->size);
    for (int64_t i = before; i < total && !qr_jinja_failed(run); i++) {
        qr_jinja_append(&builder, fill->data, fill->size);
    }
    return qr_jinja_built(&builder);
}

static qr_jinja_value string_ljust(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return pad(run, self.string, args, false, true);
}
static qr_jinja_value string_rjust(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return pad(run, self.string, args, true, false);
}
static qr_jinja_value string_center(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    return pad(run, self.string, args, true, true);
}

static qr_jinja_value string_zfill(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_string *text = self.string;
    const bool has_sign = text->size > 0 && (text->data[0] == '-' || text->data[0] == '+');
    const int64_t n = (int64_t)qr_jinja_char_count(text->data, text->size);
    const int64_t width = qr_jinja_integer_or(run, args[0], 0);
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append(&builder, text->data, has_sign);
    for (int64_t i = n; i < width && !qr_jinja_failed(run); i++) { qr_jinja_append_text(&builder, "0"); }
    qr_jinja_append(&builder, text->data + has_sign, text->size - has_sign);
    return qr_jinja_built(&builder);
}

/* --- what the characters are --- */

typedef bool (*character_test)(uint32_t c);

static bool is_alpha(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }
static bool is_alnum(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return is_alpha(c) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

static qr_jinja_value all_are(qr_jinja_run *run, const qr_jinja_string *text, character_test test) {
    for (size_t i = 0; i < text->size;) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text->data + i, text->size - i, &c);
        if (length == 0 || !test(c)) { return qr_jinja_bool(false); }
        i += length;
    }
    (void)qr_jinja_step(run, text->size / 64);
    return qr_jinja_bool(text->size > 0);
}

/* At least one cased character, and none of the other case. */
static qr_jinja_value has_case(qr_jinja_run *run, const qr_jinja_string *text, bool upper) {
    bool any = false;
    for (size_t i = 0; i < text->size;) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text->data + i, text->size - i, &c);
        const bool is_lower = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
        const bool is_upper = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
        if (upper ? is_lower : is_upper) { return qr_jinja_bool(false); }
        any = any || is_lower || is_upper;
        i += length > 0 ? length : 1;
    }
    (void)qr_jinja_step(run, text->size / 64);
    return qr_jinja_bool(any);
}

static qr_jinja_value string_isalpha(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return all_are(run, self.string, is_alpha);
}
static qr_jinja_value string_isalnum(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return all_are(run, self.string, is_alnum);
}
static qr_jinja_value string_isdigit(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return all_are(run, self.string, is_decimal);
}
static qr_jinja_value string_isspace(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return all_are(run, self.string, qr_jinja_is_space);
}
static qr_jinja_value string_isupper(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return has_case(run, self.string, true);
}
static qr_jinja_value string_islower(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return has_case(run, self.string, false);
}

/* --- dicts and lists --- */

static qr_jinja_value view(qr_jinja_run *run, const qr_jinja_dict *dict, const char *kind) {
    qr_jinja_list *list = qr_jinja_list_create(run, dict->n_entries);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); } /* before the list is written to */
    list->kind = kind;
    for (size_t i = 0; i < dict->n_entries && !qr_jinja_failed(run); i++) {
        const qr_jinja_entry *entry = &dict->entries[i];
        qr_jinja_list_append(run, list,
                             kind[5] == 'k'   ? entry->key
                             : kind[5] == 'v' ? entry->value
                                              : qr_jinja_pair(run, entry->key, entry->value));
    }
    return qr_jinja_from_list(QR_JINJA_VIEW, list);
}

static qr_jinja_value dict_keys(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return view(run, self.dict, "dict_keys");
}
static qr_jinja_value dict_values(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return view(run, self.dict, "dict_values");
}
static qr_jinja_value dict_items(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    return view(run, self.dict, "dict_items");
}

static qr_jinja_value dict_get(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const qr_jinja_value *found = qr_jinja_dict_find(run, self.dict, args[0]);
    return found != NULL ? *found : args[1].type == QR_JINJA_MISSING ? qr_jinja_none() : args[1];
}

static qr_jinja_value same(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)run;
    (void)args;
    (void)raw;
    return self;
}

static qr_jinja_value list_index(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    const int64_t n = (int64_t)self.list->n_items;
    int64_t from = qr_jinja_integer_or(run, args[1], 0), to = qr_jinja_integer_or(run, args[2], n);
    from = from < 0 ? qr_max(0, from + n) : from;
    to = to < 0 ? to + n : qr_min(to, n);
    for (int64_t i = from; i < to && qr_jinja_step(run, 1); i++) {
        if (qr_jinja_equal(run, self.list->items[i], args[0])) { return qr_jinja_int(i); }
    }
    return qr_jinja_error(run, "the value is not in the %s", qr_jinja_type_name(self));
}

static qr_jinja_value list_count(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)raw;
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n_items && qr_jinja_step(run, 1); i++) {
        n += qr_jinja_equal(run, self.list->items[i], args[0]);
    }
    return qr_jinja_int(n);
}

/* --- loops and cyclers --- */

static qr_jinja_value pick(qr_jinja_run *run, const qr_jinja_args *args, size_t index) {
    if (args->n_items == 0) { return qr_jinja_error(run, "no items for cycling given"); }
    return args->items[index % args->n_items];
}

static qr_jinja_value loop_cycle(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    return pick(run, raw, self.loop->index);
}

static qr_jinja_value loop_changed(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    qr_jinja_list *list = qr_jinja_list_create(run, raw->n_items);
    for (size_t i = 0; i < raw->n_items; i++) { qr_jinja_list_append(run, list, raw->items[i]); }
    const qr_jinja_value now = qr_jinja_from_list(QR_JINJA_TUPLE, list);
    const bool changed = !self.loop->has_changed_value || !qr_jinja_equal(run, self.loop->changed_value, now);
    self.loop->has_changed_value = true;
    self.loop->changed_value = now;
    return qr_jinja_bool(changed);
}

static bool is_name(qr_jinja_value name, const char *text) {
    return strlen(text) == name.string->size && memcmp(text, name.string->data, name.string->size) == 0;
}

qr_jinja_value qr_jinja_loop_attribute(qr_jinja_run *run, qr_jinja_loop *loop, qr_jinja_value name) {
    const int64_t index = (int64_t)loop->index, n = (int64_t)loop->items->n_items;
    if (is_name(name, "index")) { return qr_jinja_int(index + 1); }
    if (is_name(name, "index0")) { return qr_jinja_int(index); }
    if (is_name(name, "revindex")) { return qr_jinja_int(n - index); }
    if (is_name(name, "revindex0")) { return qr_jinja_int(n - index - 1); }
    if (is_name(name, "first")) { return qr_jinja_bool(index == 0); }
    if (is_name(name, "last")) { return qr_jinja_bool(index == n - 1); }
    if (is_name(name, "length")) { return qr_jinja_int(n); }
    if (is_name(name, "depth")) { return qr_jinja_int(loop->depth + 1); }
    if (is_name(name, "depth0")) { return qr_jinja_int(loop->depth); }
    if (is_name(name, "previtem") && index > 0) { return loop->items->items[index - 1]; }
    if (is_name(name, "nextitem") && index + 1 < n) { return loop->items->items[index + 1]; }
    (void)run;
    return qr_jinja_undefined();
}

static qr_jinja_value cycler_next(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    (void)run;
    const qr_jinja_value current = self.list->items[self.list->cursor];
    self.list->cursor = (self.list->cursor + 1) % self.list->n_items;
    return current;
}

static qr_jinja_value cycler_reset(qr_jinja_run *run, qr_jinja_value self, COMMON) {
    (void)args;
    (void)raw;
    (void)run;
    self.list->cursor = 0;
    return qr_jinja_none();
}

qr_jinja_value qr_jinja_cycler_attribute(qr_jinja_run *run, qr_jinja_value cycler, qr_jinja_value name) {
    (void)run;
    return is_name(name, "current") ? cycler.list->items[cycler.list->cursor] : qr_jinja_undefined();
}

/* --- tables; call NULL: the sandbox forbids it --- */

static const qr_jinja_builtin string_methods[] = {
    {"strip", "chars", 0, string_strip},
    {"lstrip", "chars", 0, string_lstrip},
    {"rstrip", "chars", 0, string_rstrip},
    {"split", "sep maxsplit", 0, string_split},
    {"rsplit", "sep maxsplit", 0, string_rsplit},
    {"splitlines", "keepends", 0, string_splitlines},
    {"partition", "sep", 1, string_partition},
    {"rpartition", "sep", 1, string_rpartition},
    {"join", "iterable", 1, string_join},
    {"startswith", "prefix start end", 1, string_startswith},
    {"endswith", "suffix start end", 1, string_endswith},
    {"find", "sub start end", 1, string_find},
    {"rfind", "sub start end", 1, string_rfind},
    {"index", "sub start end", 1, string_index},
    {"rindex", "sub start end", 1, string_rindex},
    {"count", "sub", 1, string_count},
    {"replace", "old new count", 2, string_replace},
    {"removeprefix", "prefix", 1, string_removeprefix},
    {"removesuffix", "suffix", 1, string_removesuffix},
    {"format", NULL, 0, string_format},
    {"upper", "", 0, string_upper},
    {"lower", "", 0, string_lower},
    {"casefold", "", 0, string_lower},
    {"title", "", 0, string_title},
    {"capitalize", "", 0, string_capitalize},
    {"swapcase", "", 0, string_swapcase},
    {"ljust", "width fillchar", 1, string_ljust},
    {"rjust", "width fillchar", 1, string_rjust},
    {"center", "width fillchar", 1, string_center},
    {"zfill", "width", 1, string_zfill},
    {"isalpha", "", 0, string_isalpha},
    {"isalnum", "", 0, string_isalnum},
    {"isdigit", "", 0, string_isdigit},
    {"isdecimal", "", 0, string_isdigit},
    {"isnumeric", "", 0, string_isdigit},
    {"isspace", "", 0, string_isspace},
    {"isupper", "", 0, string_isupper},
    {"islower", "", 0, string_islower},
};

static const qr_jinja_builtin dict_methods[] = {
    {"get", "key default", 1, dict_get},
    {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},
    {"copy", "", 0, same},
    {"pop", "", 0, NULL},
    {"popitem", "", 0, NULL},
    {"clear", "", 0, NULL},
    {"setdefault", "", 0, NULL},
    {"update", "", 0, NULL},
};

static const qr_jinja_builtin list_methods[] = {
    {"index", "value start stop", 1, list_index},
    {"count", "value", 1, list_count},
    {"copy", "", 0, same},
    {"append", "", 0, NULL},
    {"clear", "", 0, NULL},
    {"extend", "", 0, NULL},
    {"insert", "", 0, NULL},
    {"pop", "", 0, NULL},
    {"remove", "", 0, NULL},
    {"reverse", "", 0, NULL},
    {"sort", "", 0, NULL},
};

static const qr_jinja_builtin tuple_methods[] = {{"index", "value start stop", 1, list_index},
                                                 {"count", "value", 1, list_count}};
static const qr_jinja_builtin loop_methods[] = {{"cycle", NULL, 0, loop_cycle}, {"changed", NULL, 0, loop_changed}};
static const qr_jinja_builtin cycler_methods[] = {{"next", "", 0, cycler_next}, {"reset", "", 0, cycler_reset}};

const qr_jinja_builtin *qr_jinja_find_method(qr_jinja_value self, const char *name, size_t size) {
    switch (self.type) {
        case QR_JINJA_STRING: return qr_jinja_find_builtin(string_methods, QR_COUNT_OF(string_methods), name, size);
        case QR_JINJA_DICT: return qr_jinja_find_builtin(dict_methods, QR_COUNT_OF(dict_methods), name, size);
        case QR_JINJA_LIST: return qr_jinja_find_builtin(list_methods, QR_COUNT_OF(list_methods), name, size);
        case QR_JINJA_TUPLE: return qr_jinja_find_builtin(tuple_methods, QR_COUNT_OF(tuple_methods), name, size);
        case QR_JINJA_LOOP: return qr_jinja_find_builtin(loop_methods, QR_COUNT_OF(loop_methods), name, size);
        case QR_JINJA_CYCLER: return qr_jinja_find_builtin(cycler_methods, QR_COUNT_OF(cycler_methods), name, size);
        default: return NULL;
    }
}
