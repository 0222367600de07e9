/* Filters on single values. Those that walk sequences are in jinja_sequence_filters.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

int64_t qr_jinja_integer_or(qr_jinja_run *run, qr_jinja_value value, int64_t otherwise) {
    int64_t number = otherwise;
    if (value.type == QR_JINJA_BIG) {
        (void)qr_jinja_error(run, "an integer beyond 64 bits cannot be a size or a position");
    } else if (value.type != QR_JINJA_MISSING && !qr_jinja_as_index(value, &number)) {
        (void)qr_jinja_error(run, "'%s' object cannot be interpreted as an integer", qr_jinja_type_name(value));
    }
    return number;
}

/* --- text --- */

/* The method of the same name, on the value as a text. */
static qr_jinja_value filter_method(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const char *name = call->builtin->name;
    const qr_jinja_value text = qr_jinja_to_text(run, call->self);
    return qr_jinja_call_builtin(run, qr_jinja_find_method(text, name, strlen(name)), "filter", text, call->raw);
}

static qr_jinja_value filter_center(qr_jinja_run *run, const qr_jinja_invocation *call) {
    qr_jinja_value width = call->args[0].type == QR_JINJA_MISSING ? qr_jinja_int(80) : call->args[0];
    qr_jinja_invocation with_width = *call;
    with_width.raw = &(qr_jinja_args){.items = &width, .n_items = 1};
    return filter_method(run, &with_width);
}

/* Words begin after space, '-', '(', '{', '[' and '<': not where str.title sees them. */
static qr_jinja_value filter_title(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = qr_jinja_str(run, call->self);
    qr_jinja_builder builder = {.run = run};
    size_t start = 0;
    for (size_t i = 0; i <= text->size && !qr_jinja_failed(run);) {
        uint32_t c = 0;
        size_t length = i < text->size ? qr_utf8_decode(text->data + i, text->size - i, &c) : 0;
        const bool separates =
            i == text->size || qr_jinja_is_space(c) || (c < 0x80U && strchr("-({[<", (int)c) != NULL);
        if (length == 0) { length = 1; }
        if (separates) {
            const qr_jinja_string word = {.data = text->data + start, .size = i - start};
            qr_jinja_append_value(&builder, qr_jinja_map_case(run, &word, QR_JINJA_CAPITAL));
            if (i < text->size) { qr_jinja_append(&builder, text->data + i, length); }
            start = i + length;
        }
        i += length;
    }
    return qr_jinja_built(&builder);
}

static qr_jinja_value filter_trim(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_strip(run, qr_jinja_str(run, call->self), call->args[0], true, true);
}

static qr_jinja_value filter_replace(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const int64_t count = args[2].type == QR_JINJA_NONE ? -1 : qr_jinja_integer_or(run, args[2], -1);
    return qr_jinja_replace(run, qr_jinja_str(run, call->self), qr_jinja_str(run, args[0]), qr_jinja_str(run, args[1]),
                            count);
}

static qr_jinja_value filter_string(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_to_text(run, call->self);
}

static qr_jinja_value filter_safe(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = qr_jinja_str(run, call->self);
    return qr_jinja_with_safety(run, qr_jinja_lend(run, text->data, text->size), true);
}

enum { FORCED = 1 };

static qr_jinja_value filter_escape(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const bool keeps = call->builtin->variant != FORCED && self.type == QR_JINJA_STRING && self.string->safe;
    return keeps ? self : qr_jinja_escape_html(run, qr_jinja_str(run, self));
}

static qr_jinja_value filter_striptags(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_strip_tags(run, qr_jinja_str(run, call->self));
}

static qr_jinja_value filter_indent(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    qr_jinja_builder builder = {.run = run}, indentation = {.run = run}, quirk = {.run = run};
    if (args[0].type == QR_JINJA_STRING) {
        qr_jinja_append_value(&indentation, args[0]);
    } else {
        const int64_t width = qr_jinja_integer_or(run, args[0], 4);
        qr_jinja_append_times(&indentation, " ", 1, width);
    }
    if (call->self.type != QR_JINJA_STRING) {
        return qr_jinja_error(run, "can only indent str, not %s", qr_jinja_type_name(call->self));
    }
    qr_jinja_append_value(&quirk, call->self);
    qr_jinja_append_text(&quirk, "\n"); /* so that a final line end counts as a line */
    const qr_jinja_value text = qr_jinja_built(&quirk);
    const qr_jinja_list *lines = qr_jinja_split_lines(run, text.string, false);
    const bool first = qr_jinja_truth(args[1]), blank = qr_jinja_truth(args[2]);
    for (size_t i = 0; i < lines->n_items && !qr_jinja_failed(run); i++) {
        const qr_jinja_string *line = lines->items[i].string;
        if (i > 0) { qr_jinja_append_text(&builder, "\n"); }
        if (i == 0 ? first : blank || line->size > 0) { qr_jinja_append(&builder, indentation.data, indentation.size); }
        qr_jinja_append(&builder, line->data, line->size);
    }
    return qr_jinja_built(&builder);
}

static qr_jinja_value filter_truncate(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const qr_jinja_string dots = {.data = "...", .size = 3};
    const qr_jinja_string *end = args[2].type == QR_JINJA_MISSING ? &dots : qr_jinja_str(run, args[2]);
    const int64_t length = qr_jinja_integer_or(run, args[0], 255), leeway = qr_jinja_integer_or(run, args[3], 5);
    const int64_t n_end = (int64_t)qr_jinja_char_count(run, end->data, end->size);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (length < n_end || leeway < 0) {
        return qr_jinja_error(run, "truncate: expected length >= %lld", (long long)n_end);
    }
    size_t n_items;
    if (!qr_jinja_length(run, call->self, &n_items)) {
        return qr_jinja_error(run, "object of type '%s' has no len()", qr_jinja_type_name(call->self));
    }
    if ((int64_t)n_items <= length + qr_min(leeway, INT64_MAX - length)) { return call->self; }
    if (call->self.type != QR_JINJA_STRING) {
        return qr_jinja_error(run, "truncate: a long %s is not text", qr_jinja_type_name(call->self));
    }
    const qr_jinja_string *text = call->self.string;
    size_t cut = qr_jinja_char_offset(run, text->data, text->size, (size_t)(length - n_end));
    if (!qr_jinja_truth(args[1])) {
        size_t space = cut;
        while (space > 0 && text->data[space - 1] != ' ') { space--; }
        if (space > 0) { cut = space - 1; }
    }
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append(&builder, text->data, cut);
    qr_jinja_append(&builder, end->data, end->size);
    return qr_jinja_built(&builder);
}

static qr_jinja_value filter_wordcount(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *text = qr_jinja_str(run, call->self);
    int64_t n = 0;
    bool in_word = false;
    (void)qr_jinja_walk(run, 2 * text->size); /* looking up the class of a character takes longer than copying it */
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run);) {
        const uint32_t c = qr_jinja_next_character(text, &i);
        const bool is_word = c == '_' || qr_jinja_is_alnum(c);
        n += is_word && !in_word;
        in_word = is_word;
    }
    return qr_jinja_int(n);
}

static qr_jinja_value filter_format(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_args *raw = call->raw;
    if (raw->n_items > 0 && raw->named != NULL) {
        return qr_jinja_error(run, "can't handle positional and keyword arguments at the same time");
    }
    if (raw->named != NULL) {
        return qr_jinja_format_percent(run, qr_jinja_str(run, call->self), qr_jinja_from_dict(raw->named));
    }
    return qr_jinja_format_percent(run, qr_jinja_str(run, call->self), qr_jinja_tuple(run, raw->items, raw->n_items));
}

static qr_jinja_value filter_urlencode(qr_jinja_run *run, const qr_jinja_invocation *call) {
    if (call->self.type != QR_JINJA_STRING && call->self.type != QR_JINJA_UNDEFINED &&
        qr_jinja_is_iterable(call->self)) {
        return qr_jinja_error(run, "urlencode of a %s is not supported", qr_jinja_type_name(call->self));
    }
    const qr_jinja_string *text = qr_jinja_str(run, call->self);
    qr_jinja_builder builder = {.run = run};
    for (size_t i = 0; i < text->size && !qr_jinja_failed(run); i++) {
        const unsigned char c = (unsigned char)text->data[i];
        const bool plain = (c >= '0' && c <= '9') || ((c | 0x20U) >= 'a' && (c | 0x20U) <= 'z') ||
                           (c != 0 && strchr("_.-~/", c) != NULL);
        const char escape[] = {'%', "0123456789ABCDEF"[c >> 4], "0123456789ABCDEF"[c & 15U]};
        qr_jinja_append(&builder, plain ? &text->data[i] : escape, plain ? 1 : sizeof escape);
    }
    return qr_jinja_built(&builder);
}

/* --- numbers --- */

static qr_jinja_value default_or(qr_jinja_value given, qr_jinja_value otherwise) {
    return given.type == QR_JINJA_MISSING ? otherwise : given;
}

static qr_jinja_value filter_int(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const qr_jinja_value otherwise = default_or(call->args[0], qr_jinja_int(0));
    const int64_t base = qr_jinja_integer_or(run, call->args[1], 10);
    double number;
    if (base < 0 || base == 1 || base > 36) { return otherwise; }
    if (self.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, self); }
    if (self.type == QR_JINJA_BIG || self.type == QR_JINJA_INT) { return self; }
    if (self.type == QR_JINJA_BOOL) { return qr_jinja_int(self.boolean); }
    if (self.type == QR_JINJA_STRING) {
        const qr_jinja_value value = qr_jinja_parse_integer(run, self.string->data, self.string->size, (int)base);
        if (value.type != QR_JINJA_MISSING) { return value; }
        if (!qr_jinja_parse_double(self.string->data, self.string->size, &number)) { return otherwise; }
    } else if (self.type == QR_JINJA_FLOAT) {
        number = self.number;
    } else {
        return otherwise;
    }
    if (isinf(number)) { return qr_jinja_error(run, "cannot convert float infinity to integer"); }
    return isnan(number) ? otherwise : qr_jinja_integer_from_double(run, number);
}

static qr_jinja_value filter_float(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    double number;
    if (self.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, self); }
    if (qr_jinja_is_number(self)) { return qr_jinja_float(qr_jinja_as_double(self)); }
    const bool parsed =
        self.type == QR_JINJA_STRING && qr_jinja_parse_double(self.string->data, self.string->size, &number);
    return parsed ? qr_jinja_float(number) : default_or(call->args[0], qr_jinja_float(0.0));
}

static qr_jinja_value filter_abs(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    if (self.type == QR_JINJA_FLOAT) { return qr_jinja_float(fabs(self.number)); }
    if (self.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, self); }
    if (!qr_jinja_is_integer(self)) {
        return qr_jinja_error(run, "bad operand type for abs(): '%s'", qr_jinja_type_name(self));
    }
    return qr_jinja_binary(run, qr_jinja_is_negative(self) ? '-' : '+', qr_jinja_int(0), self);
}

/* Half to even on the exact binary value, as Python rounds. */
static double round_half_even(double value, int64_t precision) {
    if (precision < 0) {
        const double scale = pow(10.0, (double)-precision);
        return isfinite(scale) ? nearbyint(value / scale) * scale : 0.0;
    }
    char text[400];
    double rounded;
    if (precision > 340 || fabs(value) > 1e22) { return value; }
    (void)qr_format(text, sizeof text, "%.*f", (int)precision, value);
    return qr_jinja_parse_double(text, strlen(text), &rounded) ? rounded : value;
}

/* An integer to a multiple of 10^n: half to even. */
static qr_jinja_value round_integer(qr_jinja_run *run, qr_jinja_value integer, int64_t n) {
    static const int floor_divide = QR_JINJA_OP('/', '/');
    const qr_jinja_value two = qr_jinja_int(2);
    const qr_jinja_value unit = qr_jinja_binary(run, QR_JINJA_OP('*', '*'), qr_jinja_int(10), qr_jinja_int(n));
    const qr_jinja_value rest = qr_jinja_binary(run, '%', integer, unit);
    qr_jinja_value quotient = qr_jinja_binary(run, floor_divide, integer, unit);
    const qr_jinja_value is_odd = qr_jinja_binary(run, '%', quotient, two);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    const int half = qr_jinja_compare(run, qr_jinja_binary(run, '*', rest, two), unit, "<");
    if (half > 0 || (half == 0 && qr_jinja_truth(is_odd))) {
        quotient = qr_jinja_binary(run, '+', quotient, qr_jinja_int(1));
    }
    return qr_jinja_binary(run, '*', quotient, unit);
}

/* math.ceil or math.floor of value × 10^precision, divided by that again. */
static qr_jinja_value round_towards(qr_jinja_run *run, double (*direction)(double), qr_jinja_value value,
                                    int64_t precision) {
    const int raise = QR_JINJA_OP('*', '*');
    const qr_jinja_value scale = qr_jinja_binary(run, raise, qr_jinja_int(10), qr_jinja_int(precision));
    qr_jinja_value scaled = qr_jinja_binary(run, '*', value, scale);
    if (!qr_jinja_failed(run) && scaled.type == QR_JINJA_FLOAT) {
        if (!isfinite(scaled.number)) { return qr_jinja_error(run, "cannot convert float infinity or NaN to integer"); }
        scaled = qr_jinja_integer_from_double(run, direction(scaled.number));
    }
    return qr_jinja_binary(run, '/', scaled, scale);
}

static qr_jinja_value filter_round(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const int64_t precision = qr_jinja_integer_or(run, call->args[0], 0);
    const char *method = call->args[1].type == QR_JINJA_STRING ? qr_jinja_cstring(run, call->args[1]) : "common";
    if (self.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, self); }
    if (!qr_jinja_is_number(self)) {
        return qr_jinja_error(run, "type %s doesn't define round", qr_jinja_type_name(self));
    }
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (strcmp(method, "ceil") == 0) { return round_towards(run, ceil, self, precision); }
    if (strcmp(method, "floor") == 0) { return round_towards(run, floor, self, precision); }
    if (strcmp(method, "common") != 0) { return qr_jinja_error(run, "method must be common, ceil or floor"); }
    if (self.type == QR_JINJA_FLOAT) { return qr_jinja_float(round_half_even(self.number, precision)); }
    return precision < 0 ? round_integer(run, self, -qr_max(precision, -QR_JINJA_MAX_BITS))
                         : qr_jinja_binary(run, '+', qr_jinja_int(0), self);
}

/* --- any value --- */

static qr_jinja_value filter_default(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const bool replaced =
        call->self.type == QR_JINJA_UNDEFINED || (qr_jinja_truth(call->args[1]) && !qr_jinja_truth(call->self));
    return !replaced ? call->self : call->args[0].type == QR_JINJA_MISSING ? qr_jinja_text(run, "") : call->args[0];
}

static qr_jinja_value filter_attr(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value name = qr_jinja_to_text(run, call->args[0]);
    /* Attributes only, unlike object.name: the items of a dict are not attributes. */
    if (call->self.type == QR_JINJA_DICT &&
        qr_jinja_find_method(call->self, name.string->data, name.string->size) == NULL) {
        return qr_jinja_absent(run, QR_JINJA_NO_ATTRIBUTE, "dict object", name);
    }
    return qr_jinja_failed(run) ? qr_jinja_undefined() : qr_jinja_get_attribute(run, call->self, name);
}

static void read_separators(qr_jinja_run *run, qr_jinja_value separators, qr_jinja_json_style *style) {
    if (separators.type == QR_JINJA_MISSING || separators.type == QR_JINJA_NONE) { return; }
    const bool pair = (separators.type == QR_JINJA_TUPLE || separators.type == QR_JINJA_LIST) &&
                      separators.list->n_items == 2 && separators.list->items[0].type == QR_JINJA_STRING &&
                      separators.list->items[1].type == QR_JINJA_STRING;
    if (!pair) {
        (void)qr_jinja_error(run, "tojson: separators must be two strings");
        return;
    }
    style->item_separator = separators.list->items[0].string;
    style->key_separator = separators.list->items[1].string;
}

static qr_jinja_value filter_tojson(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    static const qr_jinja_string comma = {.data = ",", .size = 1}, comma_space = {.data = ", ", .size = 2};
    static const qr_jinja_string colon_space = {.data = ": ", .size = 2};
    qr_jinja_json_style style = {
        .ensure_ascii = qr_jinja_truth(args[0]), .sort_keys = qr_jinja_truth(args[3]), .key_separator = &colon_space};
    qr_jinja_builder indentation = {.run = run}, builder = {.run = run};
    qr_jinja_value indent = qr_jinja_none();
    if (args[1].type == QR_JINJA_STRING) {
        indent = args[1];
    } else if (args[1].type != QR_JINJA_MISSING && args[1].type != QR_JINJA_NONE) {
        const int64_t width = qr_jinja_integer_or(run, args[1], 0);
        qr_jinja_append_times(&indentation, " ", 1, width);
        indent = qr_jinja_built(&indentation);
    }
    style.indent = indent.type == QR_JINJA_STRING ? indent.string : NULL;
    style.item_separator = style.indent != NULL ? &comma : &comma_space;
    read_separators(run, args[2], &style);
    qr_jinja_append_json(&builder, call->self, &style);
    return qr_jinja_built(&builder);
}

static qr_jinja_value filter_length(qr_jinja_run *run, const qr_jinja_invocation *call) {
    size_t length;
    if (!qr_jinja_length(run, call->self, &length)) {
        return qr_jinja_error(run, "object of type '%s' has no len()", qr_jinja_type_name(call->self));
    }
    return qr_jinja_int((int64_t)length);
}

static const qr_jinja_builtin filters[] = {
    {"abs", "", 0, filter_abs, 0, QR_JINJA_BY_SIZE},
    {"attr", "name", 1, filter_attr, 0, QR_JINJA_FLAT},
    {"capitalize", "", 0, filter_method, 0, QR_JINJA_BY_SIZE},
    {"center", "width", 0, filter_center, 0, QR_JINJA_BY_SIZE},
    {"count", "", 0, filter_length, 0, QR_JINJA_FLAT},
    {"d", "default_value boolean", 0, filter_default, 0, QR_JINJA_FLAT},
    {"default", "default_value boolean", 0, filter_default, 0, QR_JINJA_FLAT},
    {"e", "", 0, filter_escape, 0, QR_JINJA_BY_SIZE},
    {"escape", "", 0, filter_escape, 0, QR_JINJA_BY_SIZE},
    {"float", "default", 0, filter_float, 0, QR_JINJA_BY_SIZE},
    {"forceescape", "", 0, filter_escape, FORCED, QR_JINJA_BY_SIZE},
    {"format", NULL, 0, filter_format, 0, QR_JINJA_BY_SIZE},
    {"indent", "width first blank", 0, filter_indent, 0, QR_JINJA_BY_SIZE},
    {"int", "default base", 0, filter_int, 0, QR_JINJA_BY_SIZE},
    {"length", "", 0, filter_length, 0, QR_JINJA_FLAT},
    {"lower", "", 0, filter_method, 0, QR_JINJA_BY_SIZE},
    {"replace", "old new count", 2, filter_replace, 0, QR_JINJA_BY_SIZE},
    {"round", "precision method", 0, filter_round, 0, QR_JINJA_BY_SIZE},
    {"safe", "", 0, filter_safe, 0, QR_JINJA_FLAT},
    {"string", "", 0, filter_string, 0, QR_JINJA_FLAT},
    {"striptags", "", 0, filter_striptags, 0, QR_JINJA_BY_SIZE},
    {"title", "", 0, filter_title, 0, QR_JINJA_BY_SIZE},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson, 0, QR_JINJA_BY_SIZE},
    {"trim", "chars", 0, filter_trim, 0, QR_JINJA_BY_SIZE},
    {"truncate", "length killwords end leeway", 0, filter_truncate, 0, QR_JINJA_BY_SIZE},
    {"upper", "", 0, filter_method, 0, QR_JINJA_BY_SIZE},
    {"urlencode", "", 0, filter_urlencode, 0, QR_JINJA_BY_SIZE},
    {"wordcount", "", 0, filter_wordcount, 0, QR_JINJA_BY_SIZE},
};

const qr_jinja_table qr_jinja_value_filters = {"filter", filters, QR_COUNT_OF(filters)};

const qr_jinja_builtin *qr_jinja_find_filter(const char *name, size_t size) {
    const qr_jinja_builtin *found = qr_jinja_find_builtin(&qr_jinja_value_filters, name, size);
    return found != NULL ? found : qr_jinja_find_builtin(&qr_jinja_sequence_filters, name, size);
}
