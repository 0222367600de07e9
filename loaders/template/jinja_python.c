/* What Python does with values: truth, equality, order, hashing, length, iteration, str and repr. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

const char *qr_jinja_type_name(qr_jinja_value value) {
    switch (value.type) {
        case QR_JINJA_NONE: return "NoneType";
        case QR_JINJA_BOOL: return "bool";
        case QR_JINJA_INT:
        case QR_JINJA_BIG: return "int";
        case QR_JINJA_FLOAT: return "float";
        case QR_JINJA_STRING: return value.string->safe ? "Markup" : "str";
        case QR_JINJA_LIST: return "list";
        case QR_JINJA_TUPLE: return "tuple";
        case QR_JINJA_RANGE: return "range";
        case QR_JINJA_VIEW: return value.list->kind;
        case QR_JINJA_ITERATOR: return "generator";
        case QR_JINJA_DICT: return "dict";
        case QR_JINJA_NAMESPACE: return "Namespace";
        case QR_JINJA_FUNCTION: return "function";
        case QR_JINJA_METHOD: return "builtin_function_or_method";
        case QR_JINJA_MACRO: return "Macro";
        case QR_JINJA_LOOP: return "LoopContext";
        case QR_JINJA_CYCLER: return "Cycler";
        case QR_JINJA_JOINER: return "Joiner";
        case QR_JINJA_MISSING:
        case QR_JINJA_UNDEFINED: break;
    }
    return "Undefined";
}

bool qr_jinja_is_integer(qr_jinja_value value) {
    return value.type == QR_JINJA_BOOL || value.type == QR_JINJA_INT || value.type == QR_JINJA_BIG;
}

bool qr_jinja_is_number(qr_jinja_value value) { return qr_jinja_is_integer(value) || value.type == QR_JINJA_FLOAT; }

double qr_jinja_as_double(qr_jinja_value number) {
    switch (number.type) {
        case QR_JINJA_FLOAT: return number.number;
        case QR_JINJA_BIG: return qr_jinja_big_double(number.big);
        case QR_JINJA_INT: return (double)number.integer;
        default: return number.boolean;
    }
}

bool qr_jinja_as_index(qr_jinja_value value, int64_t *index) {
    if (value.type != QR_JINJA_INT && value.type != QR_JINJA_BOOL) { return false; }
    *index = value.type == QR_JINJA_INT ? value.integer : value.boolean;
    return true;
}

static bool is_listlike(qr_jinja_value value) {
    return value.type == QR_JINJA_LIST || value.type == QR_JINJA_TUPLE || value.type == QR_JINJA_RANGE ||
           value.type == QR_JINJA_VIEW;
}

bool qr_jinja_truth(qr_jinja_value value) {
    switch (value.type) {
        case QR_JINJA_MISSING:
        case QR_JINJA_UNDEFINED:
        case QR_JINJA_NONE: return false;
        case QR_JINJA_BOOL: return value.boolean;
        case QR_JINJA_INT: return value.integer != 0;
        case QR_JINJA_FLOAT: return value.number != 0.0;
        case QR_JINJA_STRING: return value.string->size > 0;
        case QR_JINJA_LIST:
        case QR_JINJA_TUPLE:
        case QR_JINJA_RANGE:
        case QR_JINJA_VIEW: return value.list->n_items > 0;
        case QR_JINJA_DICT: return value.dict->n_entries > 0;
        default: return true;
    }
}

bool qr_jinja_length(qr_jinja_run *run, qr_jinja_value value, size_t *length) {
    if (is_listlike(value)) {
        *length = value.list->n_items;
    } else if (value.type == QR_JINJA_STRING) {
        *length = qr_jinja_char_count(run, value.string->data, value.string->size);
    } else if (value.type == QR_JINJA_DICT) {
        *length = value.dict->n_entries;
    } else if (value.type == QR_JINJA_UNDEFINED) {
        *length = 0;
    } else if (value.type == QR_JINJA_LOOP) {
        *length = value.loop->items->n_items;
    } else {
        return false;
    }
    return true;
}

/* --- equality and order --- */

static int compare_numbers(qr_jinja_value a, qr_jinja_value b) {
    int64_t i, j;
    if (qr_jinja_as_index(a, &i) && qr_jinja_as_index(b, &j)) { return i < j ? -1 : i > j; }
    if (qr_jinja_is_integer(a)) { return qr_jinja_integer_compare(a, b); }
    if (qr_jinja_is_integer(b)) {
        const int reversed = qr_jinja_integer_compare(b, a);
        return reversed == 2 ? 2 : -reversed;
    }
    if (isnan(a.number) || isnan(b.number)) { return 2; }
    return a.number < b.number ? -1 : a.number > b.number;
}

/* Block by block, so that only what is compared is charged. */
static int compare_strings(qr_jinja_run *run, const qr_jinja_string *a, const qr_jinja_string *b) {
    const size_t shorter = a->size < b->size ? a->size : b->size, block = 256;
    for (size_t i = 0; i < shorter; i += block) {
        const size_t n = shorter - i < block ? shorter - i : block;
        const int order = qr_jinja_walk(run, n) ? memcmp(a->data + i, b->data + i, n) : 0;
        if (order != 0) { return order < 0 ? -1 : 1; }
        if (qr_jinja_failed(run)) { return 0; }
    }
    return a->size < b->size ? -1 : a->size > b->size;
}

static bool equal_lists(qr_jinja_run *run, const qr_jinja_list *a, const qr_jinja_list *b) {
    if (a->n_items != b->n_items) { return false; }
    for (size_t i = 0; i < a->n_items; i++) {
        if (!qr_jinja_step(run, 1) || !qr_jinja_equal(run, a->items[i], b->items[i])) { return false; }
    }
    return true;
}

static bool equal_dicts(qr_jinja_run *run, const qr_jinja_dict *a, const qr_jinja_dict *b) {
    if (a->n_entries != b->n_entries) { return false; }
    for (size_t i = 0; i < a->n_entries; i++) {
        const qr_jinja_value *other = qr_jinja_dict_find(run, b, a->entries[i].key);
        if (!qr_jinja_step(run, 1) || other == NULL || !qr_jinja_equal(run, a->entries[i].value, *other)) {
            return false;
        }
    }
    return true;
}

bool qr_jinja_equal(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b) {
    if (qr_jinja_is_number(a) && qr_jinja_is_number(b)) { return compare_numbers(a, b) == 0; }
    if (a.type != b.type) { return false; }
    switch (a.type) {
        case QR_JINJA_MISSING:
        case QR_JINJA_UNDEFINED:
        case QR_JINJA_NONE: return true;
        case QR_JINJA_STRING: return a.string->size == b.string->size && compare_strings(run, a.string, b.string) == 0;
        case QR_JINJA_FUNCTION: return a.function == b.function;
        case QR_JINJA_METHOD:
            return a.method->builtin == b.method->builtin && qr_jinja_equal(run, a.method->self, b.method->self);
        case QR_JINJA_LIST:
        case QR_JINJA_TUPLE:
        case QR_JINJA_RANGE:
        case QR_JINJA_DICT: break;
        default: return a.list == b.list;
    }
    bool equal = false;
    if (qr_jinja_enter(run)) {
        equal = a.type == QR_JINJA_DICT ? equal_dicts(run, a.dict, b.dict) : equal_lists(run, a.list, b.list);
    }
    qr_jinja_leave(run);
    return equal;
}

static int compare_lists(qr_jinja_run *run, const qr_jinja_list *a, const qr_jinja_list *b, const char *operator_name) {
    for (size_t i = 0; i < a->n_items && i < b->n_items; i++) {
        if (!qr_jinja_step(run, 1)) { return 0; }
        if (!qr_jinja_equal(run, a->items[i], b->items[i])) {
            return qr_jinja_compare(run, a->items[i], b->items[i], operator_name);
        }
    }
    return a->n_items < b->n_items ? -1 : a->n_items > b->n_items;
}

int qr_jinja_compare(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b, const char *operator_name) {
    if (qr_jinja_is_number(a) && qr_jinja_is_number(b)) { return compare_numbers(a, b); }
    if (a.type == QR_JINJA_UNDEFINED || b.type == QR_JINJA_UNDEFINED) {
        (void)qr_jinja_undefined_error(run, a.type == QR_JINJA_UNDEFINED ? a : b);
        return 0;
    }
    if (a.type == QR_JINJA_STRING && b.type == QR_JINJA_STRING) { return compare_strings(run, a.string, b.string); }
    if (a.type == b.type && (a.type == QR_JINJA_LIST || a.type == QR_JINJA_TUPLE)) {
        const int order = qr_jinja_enter(run) ? compare_lists(run, a.list, b.list, operator_name) : 0;
        qr_jinja_leave(run);
        return order;
    }
    (void)qr_jinja_error(run, "'%s' not supported between instances of '%s' and '%s'", operator_name,
                         qr_jinja_type_name(a), qr_jinja_type_name(b));
    return 0;
}

enum { HASH_START = 0x9E3779B9 };

/* Takes in one word. */
static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t hash_text(const qr_jinja_string *string) {
    uint64_t hash = mix(HASH_START, string->size);
    for (size_t i = 0; i < string->size; i += sizeof hash) {
        uint64_t word = 0;
        const size_t rest = string->size - i;
        memcpy(&word, string->data + i, rest < sizeof word ? rest : sizeof word);
        hash = mix(hash, word);
    }
    return hash | 1U; /* 0 is "not computed" */
}

static uint64_t hash_tuple(qr_jinja_run *run, const qr_jinja_list *list) {
    uint64_t hash = mix(HASH_START, (uint64_t)QR_JINJA_TUPLE);
    if (qr_jinja_enter(run)) {
        for (size_t i = 0; i < list->n_items && qr_jinja_step(run, 1); i++) {
            hash = mix(hash, qr_jinja_hash(run, list->items[i]));
        }
    }
    qr_jinja_leave(run);
    return hash;
}

uint64_t qr_jinja_hash(qr_jinja_run *run, qr_jinja_value value) {
    int64_t index;
    uint64_t word;
    double number;
    switch (value.type) {
        case QR_JINJA_STRING:
            if (value.string->hash != 0 || value.string->size == 0) { return value.string->hash; }
            (void)qr_jinja_walk(run, value.string->size);
            value.string->hash = hash_text(value.string);
            return value.string->hash;
        case QR_JINJA_FLOAT:
        case QR_JINJA_BIG:
            /* Equal numbers of different types are the same key. */
            number = qr_jinja_as_double(value);
            if (number >= -9223372036854775808.0 && number < 9223372036854775808.0 && number == floor(number)) {
                return qr_jinja_hash(run, qr_jinja_int((int64_t)number));
            }
            memcpy(&word, &number, sizeof word);
            return mix(HASH_START, word);
        case QR_JINJA_BOOL:
        case QR_JINJA_INT: (void)qr_jinja_as_index(value, &index); return mix(HASH_START, (uint64_t)index);
        case QR_JINJA_TUPLE: return hash_tuple(run, value.list);
        case QR_JINJA_LIST:
        case QR_JINJA_DICT: (void)qr_jinja_error(run, "unhashable type: '%s'", qr_jinja_type_name(value)); return 0;
        default: return mix(HASH_START, (uint64_t)value.type);
    }
}

bool qr_jinja_contains(qr_jinja_run *run, qr_jinja_value container, qr_jinja_value item) {
    switch (container.type) {
        case QR_JINJA_UNDEFINED: return false;
        case QR_JINJA_STRING:
            if (item.type != QR_JINJA_STRING) {
                (void)qr_jinja_error(run, "'in <string>' requires string as left operand, not %s",
                                     qr_jinja_type_name(item));
                return false;
            }
            return qr_jinja_search(run, container.string->data, container.string->size, item.string) != NULL;
        case QR_JINJA_DICT: return qr_jinja_dict_find(run, container.dict, item) != NULL;
        default: break;
    }
    if (!qr_jinja_is_iterable(container)) {
        (void)qr_jinja_error(run, "argument of type '%s' is not iterable", qr_jinja_type_name(container));
        return false;
    }
    qr_jinja_list *list = container.list;
    size_t i = container.type == QR_JINJA_ITERATOR ? list->cursor : 0;
    bool found = false;
    for (; i < list->n_items && !found && qr_jinja_step(run, 1); i++) {
        found = qr_jinja_equal(run, list->items[i], item);
    }
    if (container.type == QR_JINJA_ITERATOR) { list->cursor = i; }
    return found;
}

/* --- iteration --- */

bool qr_jinja_is_iterable(qr_jinja_value value) {
    return is_listlike(value) || value.type == QR_JINJA_ITERATOR || value.type == QR_JINJA_DICT ||
           value.type == QR_JINJA_STRING || value.type == QR_JINJA_UNDEFINED;
}

static void append_characters(qr_jinja_run *run, qr_jinja_list *list, const qr_jinja_string *string) {
    for (size_t i = 0; i < string->size && !qr_jinja_failed(run);) {
        size_t length = qr_utf8_sequence_length(string->data + i, string->size - i);
        if (length == 0) { length = 1; }
        qr_jinja_list_append(run, list, qr_jinja_lend(run, string->data + i, length));
        i += length;
    }
}

static void append_rest(qr_jinja_run *run, qr_jinja_list *list, qr_jinja_list *iterator) {
    while (iterator->cursor < iterator->n_items && qr_jinja_step(run, 1)) {
        qr_jinja_list_append(run, list, iterator->items[iterator->cursor++]);
    }
}

qr_jinja_list *qr_jinja_iterate(qr_jinja_run *run, qr_jinja_value value) {
    if (is_listlike(value)) { return value.list; }
    qr_jinja_list *list = qr_jinja_list_create(run, 0);
    if (!qr_jinja_is_iterable(value)) {
        (void)qr_jinja_error(run, "'%s' object is not iterable", qr_jinja_type_name(value));
    } else if (value.type == QR_JINJA_STRING) {
        append_characters(run, list, value.string);
    } else if (value.type == QR_JINJA_DICT) {
        for (size_t i = 0; i < value.dict->n_entries; i++) {
            qr_jinja_list_append(run, list, value.dict->entries[i].key);
        }
    } else if (value.type == QR_JINJA_ITERATOR) {
        append_rest(run, list, value.list);
    }
    return list;
}

/* --- str and repr --- */

static bool is_printable(uint32_t c) {
    return c >= 0x20U && c != 0x7FU && !(c >= 0x80U && c < 0xA1U) && c != 0xADU && c != 0x2028U && c != 0x2029U &&
           !(c >= 0x2000U && c <= 0x200FU) && c != 0xFEFFU && c != 0x3000U && !(c >= 0xE000U && c <= 0xF8FFU);
}

static void append_string_repr(qr_jinja_builder *builder, const qr_jinja_string *string) {
    const bool has_single = memchr(string->data, '\'', string->size) != NULL;
    const char quote = has_single && memchr(string->data, '"', string->size) == NULL ? '"' : '\'';
    if (string->safe) { qr_jinja_append_text(builder, "Markup("); }
    qr_jinja_append(builder, &quote, 1);
    for (size_t i = 0; i < string->size && !qr_jinja_failed(builder->run);) {
        const size_t start = i;
        const uint32_t c = qr_jinja_next_character(string, &i);
        char escape[16];
        if (c == '\\' || c == (uint32_t)quote) {
            snprintf(escape, sizeof escape, "\\%c", (char)c);
            qr_jinja_append_text(builder, escape);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            qr_jinja_append_text(builder, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        } else if (is_printable(c)) {
            qr_jinja_append(builder, string->data + start, i - start);
        } else {
            snprintf(escape, sizeof escape, c < 0x100U ? "\\x%02x" : c < 0x10000U ? "\\u%04x" : "\\U%08x", (unsigned)c);
            qr_jinja_append_text(builder, escape);
        }
    }
    qr_jinja_append(builder, &quote, 1);
    if (string->safe) { qr_jinja_append_text(builder, ")"); }
}

static void append_items(qr_jinja_builder *builder, const qr_jinja_list *list, const char *open, const char *close) {
    qr_jinja_append_text(builder, open);
    for (size_t i = 0; i < list->n_items && !qr_jinja_failed(builder->run); i++) {
        if (i > 0) { qr_jinja_append_text(builder, ", "); }
        qr_jinja_append_repr(builder, list->items[i]);
    }
    qr_jinja_append_text(builder, close);
}

static void append_dict(qr_jinja_builder *builder, const qr_jinja_dict *dict) {
    qr_jinja_append_text(builder, "{");
    for (size_t i = 0; i < dict->n_entries && !qr_jinja_failed(builder->run); i++) {
        if (i > 0) { qr_jinja_append_text(builder, ", "); }
        qr_jinja_append_repr(builder, dict->entries[i].key);
        qr_jinja_append_text(builder, ": ");
        qr_jinja_append_repr(builder, dict->entries[i].value);
    }
    qr_jinja_append_text(builder, "}");
}

static void append_range(qr_jinja_builder *builder, const qr_jinja_range *bounds) {
    char text[96];
    const char *format =
        bounds->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")";
    snprintf(text, sizeof text, format, bounds->start, bounds->stop, bounds->step);
    qr_jinja_append_text(builder, text);
}

static void append_container(qr_jinja_builder *builder, qr_jinja_value value) {
    switch (value.type) {
        case QR_JINJA_LIST: append_items(builder, value.list, "[", "]"); break;
        case QR_JINJA_TUPLE: append_items(builder, value.list, "(", value.list->n_items == 1 ? ",)" : ")"); break;
        case QR_JINJA_RANGE: append_range(builder, &value.list->bounds); break;
        case QR_JINJA_VIEW:
            qr_jinja_append_text(builder, value.list->kind);
            append_items(builder, value.list, "([", "])");
            break;
        case QR_JINJA_NAMESPACE:
            qr_jinja_append_text(builder, "<Namespace ");
            append_dict(builder, value.dict);
            qr_jinja_append_text(builder, ">");
            break;
        default: append_dict(builder, value.dict); break;
    }
}

static void append_scalar(qr_jinja_builder *builder, qr_jinja_value value) {
    char text[32];
    switch (value.type) {
        case QR_JINJA_MISSING:
        case QR_JINJA_UNDEFINED: qr_jinja_append_text(builder, "Undefined"); break;
        case QR_JINJA_NONE: qr_jinja_append_text(builder, "None"); break;
        case QR_JINJA_BOOL: qr_jinja_append_text(builder, value.boolean ? "True" : "False"); break;
        case QR_JINJA_INT:
            snprintf(text, sizeof text, "%" PRId64, value.integer);
            qr_jinja_append_text(builder, text);
            break;
        case QR_JINJA_BIG:
            if (qr_jinja_is_negative(value)) { qr_jinja_append_text(builder, "-"); }
            qr_jinja_append_digits(builder, value, 10);
            break;
        case QR_JINJA_FLOAT:
            qr_number_format(value.number, text);
            qr_jinja_append_text(builder, text);
            break;
        case QR_JINJA_STRING: append_string_repr(builder, value.string); break;
        default: /* Python would write an address */
            (void)qr_jinja_error(builder->run, "a value of type '%s' cannot be written as text",
                                 qr_jinja_type_name(value));
            break;
    }
}

void qr_jinja_append_repr(qr_jinja_builder *builder, qr_jinja_value value) {
    if (!qr_jinja_step(builder->run, 1)) { return; }
    const bool is_container = value.type == QR_JINJA_DICT || value.type == QR_JINJA_NAMESPACE || is_listlike(value);
    if (!is_container) {
        append_scalar(builder, value);
        return;
    }
    if (qr_jinja_enter(builder->run)) { append_container(builder, value); }
    qr_jinja_leave(builder->run);
}

void qr_jinja_append_value(qr_jinja_builder *builder, qr_jinja_value value) {
    if (value.type == QR_JINJA_STRING) {
        qr_jinja_append(builder, value.string->data, value.string->size);
    } else if (value.type != QR_JINJA_UNDEFINED && value.type != QR_JINJA_MISSING) {
        qr_jinja_append_repr(builder, value);
    }
}

qr_jinja_string *qr_jinja_str(qr_jinja_run *run, qr_jinja_value value) {
    if (value.type == QR_JINJA_STRING) { return value.string; }
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append_value(&builder, value);
    return qr_jinja_built(&builder).string;
}

qr_jinja_value qr_jinja_to_text(qr_jinja_run *run, qr_jinja_value value) {
    return (qr_jinja_value){.type = QR_JINJA_STRING, .string = qr_jinja_str(run, value)};
}
