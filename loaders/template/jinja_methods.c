/* Methods of strings, dicts and lists, and the attributes of loops and cyclers. */
#include <string.h>
#include <utf8proc.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

/* What a variant says: sides of a text, whether a text must be found; kinds of characters; parts of a dict. */
enum { LEFT = 1, RIGHT = 2, MUST_EXIST = 4 };
enum { ALPHA, DECIMAL, ALNUM, SPACE, ASCII };
enum { KEYS, VALUES, ITEMS };

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

/* --- case and space --- */

static qr_jinja_value string_case(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_map_case(run, call->self.string, (qr_jinja_case)call->builtin->variant);
}

static qr_jinja_value string_strip(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const unsigned ends = (unsigned)call->builtin->variant;
    return qr_jinja_strip(run, call->self.string, call->args[0], (ends & LEFT) != 0, (ends & RIGHT) != 0);
}

/* --- splitting and joining --- */

/* The next run of characters other than space, from *at on; false at the end. */
static bool next_word(const qr_jinja_string *text, size_t *at, size_t *start, size_t *end) {
    uint32_t c;
    size_t length;
    *start = *end = *at + qr_utf8_span(text->data + *at, text->size - *at, qr_jinja_is_space);
    while ((length = qr_utf8_decode(text->data + *end, text->size - *end, &c)) > 0 && !qr_jinja_is_space(c)) {
        *end += length;
    }
    *at = *end;
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
        const char *found = more ? qr_jinja_search(run, text->data + at, text->size - at, separator) : NULL;
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

/* From the right, at most `limit` cuts. The search runs backwards: overlapping separators count as in Python. */
static qr_jinja_list *split_from_right(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *separator,
                                       int64_t limit) {
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    size_t end = text->size;
    while ((int64_t)parts->n_items != limit && !qr_jinja_failed(run)) {
        const char *found = qr_jinja_search_last(run, text->data, end, separator);
        if (found == NULL) { break; }
        const size_t at = (size_t)(found - text->data) + separator->size;
        qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data + at, end - at));
        end = at - separator->size;
    }
    qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data, end));
    if (!qr_jinja_failed(run)) { reverse(parts); }
    return parts;
}

/* The last `limit` words, and before them what is to their left, unchanged. */
static qr_jinja_list *split_words_from_right(qr_jinja_run *run, const qr_jinja_string *text, int64_t limit) {
    qr_jinja_list *words = split_words(run, text, -1);
    if (qr_jinja_failed(run) || limit < 0 || (int64_t)words->n_items <= limit) { return words; }
    qr_jinja_list *parts = qr_jinja_list_create(run, 0);
    const size_t first = words->n_items - (size_t)limit;
    const qr_jinja_string *last = words->items[first - 1].string;
    qr_jinja_list_append(run, parts, qr_jinja_lend(run, text->data, (size_t)(last->data + last->size - text->data)));
    qr_jinja_list_extend(run, parts, words->items + first, (size_t)limit);
    return parts;
}

static qr_jinja_value string_split(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string;
    const bool from_right = call->builtin->variant == RIGHT;
    const int64_t limit = qr_jinja_integer_or(run, call->args[1], -1);
    if (call->args[0].type == QR_JINJA_MISSING || call->args[0].type == QR_JINJA_NONE) {
        return qr_jinja_from_list(QR_JINJA_LIST, from_right ? split_words_from_right(run, text, limit)
                                                            : split_words(run, text, limit));
    }
    const qr_jinja_string *separator = text_of(run, call->args[0]);
    if (separator->size == 0) { return qr_jinja_error(run, "empty separator"); }
    const bool backwards = from_right && limit >= 0;
    return qr_jinja_from_list(QR_JINJA_LIST, backwards ? split_from_right(run, text, separator, limit)
                                                       : split_at(run, text, separator, limit));
}

static qr_jinja_value string_splitlines(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_from_list(QR_JINJA_LIST,
                              qr_jinja_split_lines(run, call->self.string, qr_jinja_truth(call->args[0])));
}

static qr_jinja_value string_partition(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string, *separator = text_of(run, call->args[0]);
    const bool from_right = call->builtin->variant == RIGHT;
    if (separator->size == 0) { return qr_jinja_error(run, "empty separator"); }
    qr_jinja_list *parts = from_right ? split_from_right(run, text, separator, 1) : split_at(run, text, separator, 1);
    qr_jinja_list *three = qr_jinja_list_create(run, 3);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    const qr_jinja_value empty = qr_jinja_text(run, "");
    const bool found = parts->n_items == 2;
    qr_jinja_list_append(run, three, found || !from_right ? parts->items[0] : empty);
    qr_jinja_list_append(run, three, found ? call->args[0] : empty);
    qr_jinja_list_append(run, three, found ? parts->items[1] : from_right ? parts->items[0] : empty);
    return qr_jinja_from_list(QR_JINJA_TUPLE, three);
}

static qr_jinja_value string_join(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_list *items = qr_jinja_iterate(run, call->args[0]);
    qr_jinja_builder builder = {.run = run};
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        if (items->items[i].type != QR_JINJA_STRING) {
            return qr_jinja_error(run, "sequence item %zu: expected str instance, %s found", i,
                                  qr_jinja_type_name(items->items[i]));
        }
        if (i > 0) { qr_jinja_append_value(&builder, call->self); }
        qr_jinja_append_value(&builder, items->items[i]);
    }
    return qr_jinja_built(&builder);
}

/* --- searching --- */

/* The part of text that start and end (in characters, Python's rules) leave; false when nothing can be found in it. */
static bool narrow(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_value start, qr_jinja_value end,
                   qr_jinja_string *part, int64_t *first) {
    const int64_t n = start.type == QR_JINJA_MISSING ? 0 : (int64_t)qr_jinja_char_count(run, text->data, text->size);
    *part = *text;
    *first = 0;
    if (start.type == QR_JINJA_MISSING) { return true; }
    int64_t from = start.type == QR_JINJA_NONE ? 0 : qr_jinja_integer_or(run, start, 0);
    int64_t to = end.type == QR_JINJA_NONE ? n : qr_jinja_integer_or(run, end, n);
    from = from < 0 ? qr_max(0, from + n) : from;
    to = to < 0 ? qr_max(0, to + n) : qr_min(to, n);
    if (from > to || qr_jinja_failed(run)) { return false; }
    const size_t low = qr_jinja_char_offset(run, text->data, text->size, (size_t)from);
    const size_t high = qr_jinja_char_offset(run, text->data, text->size, (size_t)to);
    *part = (qr_jinja_string){.data = text->data + low, .size = high - low};
    *first = from;
    return true;
}

static bool has_affix(const qr_jinja_string *text, const qr_jinja_string *affix, bool at_end) {
    if (affix->size > text->size) { return false; }
    return affix->size == 0 ||
           memcmp(text->data + (at_end ? text->size - affix->size : 0), affix->data, affix->size) == 0;
}

static qr_jinja_value string_has_affix(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const bool at_end = call->builtin->variant == RIGHT;
    qr_jinja_string part;
    int64_t first;
    const bool possible = narrow(run, call->self.string, args[1], args[2], &part, &first);
    if (args[0].type != QR_JINJA_TUPLE) {
        return qr_jinja_bool(has_affix(&part, text_of(run, args[0]), at_end) && possible);
    }
    for (size_t i = 0; i < args[0].list->n_items && possible && qr_jinja_step(run, 1); i++) {
        if (has_affix(&part, text_of(run, args[0].list->items[i]), at_end)) { return qr_jinja_bool(true); }
    }
    return qr_jinja_bool(false);
}

static qr_jinja_value string_find(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string, *wanted = text_of(run, call->args[0]);
    const unsigned variant = (unsigned)call->builtin->variant;
    qr_jinja_string part;
    int64_t first;
    const char *found = NULL;
    if (narrow(run, text, call->args[1], call->args[2], &part, &first)) {
        found = (variant & RIGHT) != 0 ? qr_jinja_search_last(run, part.data, part.size, wanted)
                                       : qr_jinja_search(run, part.data, part.size, wanted);
    }
    if (found != NULL) {
        return qr_jinja_int(first + (int64_t)qr_jinja_char_count(run, part.data, (size_t)(found - part.data)));
    }
    return (variant & MUST_EXIST) != 0 ? qr_jinja_error(run, "substring not found") : qr_jinja_int(-1);
}

static qr_jinja_value string_count(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const qr_jinja_string *wanted = text_of(run, call->args[0]);
    if (wanted->size == 0) {
        return qr_jinja_int((int64_t)qr_jinja_char_count(run, self.string->data, self.string->size) + 1);
    }
    int64_t n = 0;
    const char *at = self.string->data, *end = at + self.string->size;
    while ((at = qr_jinja_search(run, at, (size_t)(end - at), wanted)) != NULL) {
        n++;
        at += wanted->size;
    }
    return qr_jinja_int(n);
}

static qr_jinja_value string_replace(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *old = text_of(run, call->args[0]), *by = text_of(run, call->args[1]);
    const int64_t count = qr_jinja_integer_or(run, call->args[2], -1);
    return qr_jinja_with_safety(run, qr_jinja_replace(run, call->self.string, old, by, count), call->self.string->safe);
}

static qr_jinja_value string_removeaffix(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const bool at_end = call->builtin->variant == RIGHT;
    const qr_jinja_string *text = call->self.string, *affix = text_of(run, call->args[0]);
    if (!has_affix(text, affix, at_end)) { return call->self; }
    return qr_jinja_lend(run, text->data + (at_end ? 0 : affix->size), text->size - affix->size);
}

static qr_jinja_value string_format(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_format_braces(run, call->self.string, call->raw);
}

/* Python has it; templates do without. */
static qr_jinja_value unsupported(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_error(run, "the method '%s' is not supported", call->builtin->name);
}

/* --- padding --- */

static qr_jinja_value string_pad(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string;
    const unsigned sides = (unsigned)call->builtin->variant;
    const int64_t width = qr_jinja_integer_or(run, call->args[0], 0);
    const int64_t n = (int64_t)qr_jinja_char_count(run, text->data, text->size);
    const qr_jinja_string space = {.data = " ", .size = 1};
    const qr_jinja_string *fill = call->args[1].type == QR_JINJA_MISSING ? &space : text_of(run, call->args[1]);
    if (qr_jinja_char_count(run, fill->data, fill->size) != 1) {
        return qr_jinja_error(run, "the fill character must be exactly one character long");
    }
    const int64_t total = width > n ? width - n : 0;
    const int64_t before = sides == RIGHT ? 0 : sides == LEFT ? total : total / 2 + (total & width & 1);
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append_times(&builder, fill->data, fill->size, before);
    qr_jinja_append(&builder, text->data, text->size);
    qr_jinja_append_times(&builder, fill->data, fill->size, total - before);
    return qr_jinja_built(&builder);
}

static qr_jinja_value string_zfill(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string;
    const bool has_sign = text->size > 0 && (text->data[0] == '-' || text->data[0] == '+');
    const int64_t n = (int64_t)qr_jinja_char_count(run, text->data, text->size);
    const int64_t width = qr_jinja_integer_or(run, call->args[0], 0);
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append(&builder, text->data, has_sign);
    qr_jinja_append_times(&builder, "0", 1, width - n);
    qr_jinja_append(&builder, text->data + has_sign, text->size - has_sign);
    return qr_jinja_built(&builder);
}

/* Columns count characters, and begin again after a line end. */
static qr_jinja_value string_expandtabs(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string;
    const int64_t tab = qr_jinja_integer_or(run, call->args[0], 8);
    qr_jinja_builder builder = {.run = run};
    int64_t column = 0;
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run); i++) {
        const char c = text->data[i];
        if (c == '\t') {
            const int64_t n = tab > 0 ? tab - column % tab : 0;
            qr_jinja_append_times(&builder, " ", 1, n);
            column += n;
            continue;
        }
        qr_jinja_append(&builder, &c, 1);
        column = c == '\n' || c == '\r' ? 0 : column + (((unsigned char)c & 0xC0U) != 0x80U);
    }
    return qr_jinja_built(&builder);
}

/* --- what the characters are --- */

static bool is_ascii(uint32_t c) { return c < 0x80U; }
static bool is_decimal(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }

static qr_jinja_value string_all_are(qr_jinja_run *run, const qr_jinja_invocation *call) {
    static bool (*const tests[])(uint32_t c) = {[ALPHA] = qr_jinja_is_alpha,
                                                [DECIMAL] = is_decimal,
                                                [ALNUM] = qr_jinja_is_alnum,
                                                [SPACE] = qr_jinja_is_space,
                                                [ASCII] = is_ascii};
    const qr_jinja_string *text = call->self.string;
    (void)run;
    for (size_t i = 0; i < text->size;) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text->data + i, text->size - i, &c);
        if (length == 0 || !tests[call->builtin->variant](c)) { return qr_jinja_bool(false); }
        i += length;
    }
    return qr_jinja_bool(text->size > 0 || call->builtin->variant == ASCII);
}

/* At least one cased character, and none of the other case. */
static qr_jinja_value string_has_case(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = call->self.string;
    bool any = false;
    (void)run;
    for (size_t i = 0; i < text->size;) {
        const uint32_t c = qr_jinja_next_character(text, &i);
        const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        const bool is_lower = category == UTF8PROC_CATEGORY_LL, is_upper = category == UTF8PROC_CATEGORY_LU;
        if (call->builtin->variant == QR_JINJA_UPPER ? is_lower : is_upper) { return qr_jinja_bool(false); }
        any = any || is_lower || is_upper;
    }
    return qr_jinja_bool(any);
}

/* --- dicts and lists --- */

static qr_jinja_value dict_view(qr_jinja_run *run, const qr_jinja_invocation *call) {
    static const char *const kinds[] = {[KEYS] = "dict_keys", [VALUES] = "dict_values", [ITEMS] = "dict_items"};
    const qr_jinja_dict *dict = call->self.dict;
    const int part = call->builtin->variant;
    qr_jinja_list *list = part == ITEMS ? qr_jinja_pairs(run, dict) : qr_jinja_list_create(run, dict->n_entries);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); } /* before the list is written to */
    list->kind = kinds[part];
    for (size_t i = 0; part != ITEMS && i < dict->n_entries && !qr_jinja_failed(run); i++) {
        qr_jinja_list_append(run, list, part == KEYS ? dict->entries[i].key : dict->entries[i].value);
    }
    return qr_jinja_from_list(QR_JINJA_VIEW, list);
}

static qr_jinja_value dict_get(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *found = qr_jinja_dict_find(run, call->self.dict, call->args[0]);
    return found != NULL ? *found : call->args[1].type == QR_JINJA_MISSING ? qr_jinja_none() : call->args[1];
}

static qr_jinja_value same(qr_jinja_run *run, const qr_jinja_invocation *call) {
    (void)run;
    return call->self;
}

static qr_jinja_value list_index(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const int64_t n = (int64_t)call->self.list->n_items;
    int64_t from = qr_jinja_integer_or(run, call->args[1], 0), to = qr_jinja_integer_or(run, call->args[2], n);
    from = from < 0 ? qr_max(0, from + n) : from;
    to = to < 0 ? to + n : qr_min(to, n);
    for (int64_t i = from; i < to && qr_jinja_step(run, 1); i++) {
        if (qr_jinja_equal(run, call->self.list->items[i], call->args[0])) { return qr_jinja_int(i); }
    }
    return qr_jinja_error(run, "the value is not in the %s", qr_jinja_type_name(call->self));
}

static qr_jinja_value list_count(qr_jinja_run *run, const qr_jinja_invocation *call) {
    int64_t n = 0;
    for (size_t i = 0; i < call->self.list->n_items && qr_jinja_step(run, 1); i++) {
        n += qr_jinja_equal(run, call->self.list->items[i], call->args[0]);
    }
    return qr_jinja_int(n);
}

/* --- loops and cyclers --- */

static qr_jinja_value pick(qr_jinja_run *run, const qr_jinja_args *args, size_t index) {
    if (args->n_items == 0) { return qr_jinja_error(run, "no items for cycling given"); }
    return args->items[index % args->n_items];
}

static qr_jinja_value loop_cycle(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return pick(run, call->raw, call->self.loop->index);
}

static qr_jinja_value loop_changed(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const qr_jinja_value now = qr_jinja_tuple(run, call->raw->items, call->raw->n_items);
    const bool changed = !self.loop->has_changed_value || !qr_jinja_equal(run, self.loop->changed_value, now);
    self.loop->has_changed_value = true;
    self.loop->changed_value = now;
    return qr_jinja_bool(changed);
}

qr_jinja_value qr_jinja_loop_attribute(const qr_jinja_loop *loop, qr_jinja_value name) {
    const int64_t index = (int64_t)loop->index, n = (int64_t)loop->items->n_items;
    if (qr_jinja_is_text(name.string, "index")) { return qr_jinja_int(index + 1); }
    if (qr_jinja_is_text(name.string, "index0")) { return qr_jinja_int(index); }
    if (qr_jinja_is_text(name.string, "revindex")) { return qr_jinja_int(n - index); }
    if (qr_jinja_is_text(name.string, "revindex0")) { return qr_jinja_int(n - index - 1); }
    if (qr_jinja_is_text(name.string, "first")) { return qr_jinja_bool(index == 0); }
    if (qr_jinja_is_text(name.string, "last")) { return qr_jinja_bool(index == n - 1); }
    if (qr_jinja_is_text(name.string, "length")) { return qr_jinja_int(n); }
    if (qr_jinja_is_text(name.string, "depth")) { return qr_jinja_int(loop->depth + 1); }
    if (qr_jinja_is_text(name.string, "depth0")) { return qr_jinja_int(loop->depth); }
    if (qr_jinja_is_text(name.string, "previtem") && index > 0) { return loop->items->items[index - 1]; }
    if (qr_jinja_is_text(name.string, "nextitem") && index + 1 < n) { return loop->items->items[index + 1]; }
    return qr_jinja_undefined();
}

static qr_jinja_value cycler_next(qr_jinja_run *run, const qr_jinja_invocation *call) {
    (void)run;
    const qr_jinja_value self = call->self;
    const qr_jinja_value current = self.list->items[self.list->cursor];
    self.list->cursor = (self.list->cursor + 1) % self.list->n_items;
    return current;
}

static qr_jinja_value cycler_reset(qr_jinja_run *run, const qr_jinja_invocation *call) {
    (void)run;
    call->self.list->cursor = 0;
    return qr_jinja_none();
}

qr_jinja_value qr_jinja_cycler_attribute(qr_jinja_value cycler, qr_jinja_value name) {
    return qr_jinja_is_text(name.string, "current") ? cycler.list->items[cycler.list->cursor] : qr_jinja_undefined();
}

/* --- tables; call NULL: the sandbox forbids it --- */

static const qr_jinja_builtin string_methods[] = {
    {"strip", "chars", 0, string_strip, LEFT | RIGHT, QR_JINJA_BY_SIZE},
    {"lstrip", "chars", 0, string_strip, LEFT, QR_JINJA_BY_SIZE},
    {"rstrip", "chars", 0, string_strip, RIGHT, QR_JINJA_BY_SIZE},
    {"split", "sep maxsplit", 0, string_split, LEFT, QR_JINJA_BY_SIZE},
    {"rsplit", "sep maxsplit", 0, string_split, RIGHT, QR_JINJA_BY_SIZE},
    {"splitlines", "keepends", 0, string_splitlines, 0, QR_JINJA_BY_SIZE},
    {"partition", "sep", 1, string_partition, LEFT, QR_JINJA_BY_SIZE},
    {"rpartition", "sep", 1, string_partition, RIGHT, QR_JINJA_BY_SIZE},
    {"join", "iterable", 1, string_join, 0, QR_JINJA_BY_SIZE},
    {"startswith", "prefix start end", 1, string_has_affix, LEFT, QR_JINJA_BY_SIZE},
    {"endswith", "suffix start end", 1, string_has_affix, RIGHT, QR_JINJA_BY_SIZE},
    {"find", "sub start end", 1, string_find, LEFT, QR_JINJA_BY_SIZE},
    {"rfind", "sub start end", 1, string_find, RIGHT, QR_JINJA_BY_SIZE},
    {"index", "sub start end", 1, string_find, LEFT | MUST_EXIST, QR_JINJA_BY_SIZE},
    {"rindex", "sub start end", 1, string_find, RIGHT | MUST_EXIST, QR_JINJA_BY_SIZE},
    {"count", "sub", 1, string_count, 0, QR_JINJA_BY_SIZE},
    {"replace", "old new count", 2, string_replace, 0, QR_JINJA_BY_SIZE},
    {"removeprefix", "prefix", 1, string_removeaffix, LEFT, QR_JINJA_BY_SIZE},
    {"removesuffix", "suffix", 1, string_removeaffix, RIGHT, QR_JINJA_BY_SIZE},
    {"format", NULL, 0, string_format, 0, QR_JINJA_BY_SIZE},
    {"upper", "", 0, string_case, QR_JINJA_UPPER, QR_JINJA_BY_SIZE},
    {"lower", "", 0, string_case, QR_JINJA_LOWER, QR_JINJA_BY_SIZE},
    {"casefold", "", 0, string_case, QR_JINJA_LOWER, QR_JINJA_BY_SIZE},
    {"title", "", 0, string_case, QR_JINJA_TITLE, QR_JINJA_BY_SIZE},
    {"capitalize", "", 0, string_case, QR_JINJA_CAPITAL, QR_JINJA_BY_SIZE},
    {"swapcase", "", 0, string_case, QR_JINJA_SWAP, QR_JINJA_BY_SIZE},
    {"ljust", "width fillchar", 1, string_pad, RIGHT, QR_JINJA_BY_SIZE},
    {"rjust", "width fillchar", 1, string_pad, LEFT, QR_JINJA_BY_SIZE},
    {"center", "width fillchar", 1, string_pad, LEFT | RIGHT, QR_JINJA_BY_SIZE},
    {"zfill", "width", 1, string_zfill, 0, QR_JINJA_BY_SIZE},
    {"expandtabs", "tabsize", 0, string_expandtabs, 0, QR_JINJA_BY_SIZE},
    {"isalpha", "", 0, string_all_are, ALPHA, QR_JINJA_BY_SIZE},
    {"isalnum", "", 0, string_all_are, ALNUM, QR_JINJA_BY_SIZE},
    {"isdigit", "", 0, string_all_are, DECIMAL, QR_JINJA_BY_SIZE},
    {"isdecimal", "", 0, string_all_are, DECIMAL, QR_JINJA_BY_SIZE},
    {"isnumeric", "", 0, string_all_are, DECIMAL, QR_JINJA_BY_SIZE},
    {"isascii", "", 0, string_all_are, ASCII, QR_JINJA_BY_SIZE},
    {"isspace", "", 0, string_all_are, SPACE, QR_JINJA_BY_SIZE},
    {"encode", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"format_map", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"isidentifier", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"isprintable", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"istitle", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"maketrans", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"translate", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"isupper", "", 0, string_has_case, QR_JINJA_UPPER, QR_JINJA_BY_SIZE},
    {"islower", "", 0, string_has_case, QR_JINJA_LOWER, QR_JINJA_BY_SIZE},
};

static const qr_jinja_builtin dict_methods[] = {
    {"get", "key default", 1, dict_get, 0, QR_JINJA_FLAT},
    {"items", "", 0, dict_view, ITEMS, QR_JINJA_BY_SIZE},
    {"keys", "", 0, dict_view, KEYS, QR_JINJA_BY_SIZE},
    {"values", "", 0, dict_view, VALUES, QR_JINJA_BY_SIZE},
    {"copy", "", 0, same, 0, QR_JINJA_FLAT},
    {"fromkeys", NULL, 0, unsupported, 0, QR_JINJA_FLAT},
    {"pop", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"popitem", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"clear", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"setdefault", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"update", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
};

static const qr_jinja_builtin list_methods[] = {
    {"index", "value start stop", 1, list_index, 0, QR_JINJA_BY_SIZE},
    {"count", "value", 1, list_count, 0, QR_JINJA_BY_SIZE},
    {"copy", "", 0, same, 0, QR_JINJA_FLAT},
    {"append", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"clear", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"extend", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"insert", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"pop", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"remove", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"reverse", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
    {"sort", "", 0, NULL, 0, QR_JINJA_BY_SIZE},
};

static const qr_jinja_builtin tuple_methods[] = {
    {"index", "value start stop", 1, list_index, 0, QR_JINJA_BY_SIZE},
    {"count", "value", 1, list_count, 0, QR_JINJA_BY_SIZE},
};

static const qr_jinja_builtin loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle, 0, QR_JINJA_FLAT},
    {"changed", NULL, 0, loop_changed, 0, QR_JINJA_BY_SIZE},
};

static const qr_jinja_builtin cycler_methods[] = {
    {"next", "", 0, cycler_next, 0, QR_JINJA_FLAT},
    {"reset", "", 0, cycler_reset, 0, QR_JINJA_FLAT},
};

const qr_jinja_table qr_jinja_methods[QR_JINJA_CYCLER + 1] = {
    [QR_JINJA_STRING] = {"str", string_methods, QR_COUNT_OF(string_methods)},
    [QR_JINJA_DICT] = {"dict", dict_methods, QR_COUNT_OF(dict_methods)},
    [QR_JINJA_LIST] = {"list", list_methods, QR_COUNT_OF(list_methods)},
    [QR_JINJA_TUPLE] = {"tuple", tuple_methods, QR_COUNT_OF(tuple_methods)},
    [QR_JINJA_LOOP] = {"loop", loop_methods, QR_COUNT_OF(loop_methods)},
    [QR_JINJA_CYCLER] = {"cycler", cycler_methods, QR_COUNT_OF(cycler_methods)},
};

const qr_jinja_builtin *qr_jinja_find_method(qr_jinja_value self, const char *name, size_t size) {
    return self.type <= QR_JINJA_CYCLER ? qr_jinja_find_builtin(&qr_jinja_methods[self.type], name, size) : NULL;
}
