/* Arithmetic, attributes, items and slices. */
#include <math.h>

#include "base/sizes.h"
#include "loaders/template/jinja_run.h"

/* --- undefined --- */

static const char *object_name(qr_jinja_value object) {
    switch (object.type) {
        case QR_JINJA_NONE: return "None";
        case QR_JINJA_DICT: return "dict object";
        case QR_JINJA_LIST: return "list object";
        case QR_JINJA_TUPLE: return "tuple object";
        case QR_JINJA_STRING: return "str object";
        case QR_JINJA_INT:
        case QR_JINJA_BIG: return "int object";
        case QR_JINJA_FLOAT: return "float object";
        case QR_JINJA_BOOL: return "bool object";
        default: return qr_jinja_type_name(object);
    }
}

static qr_jinja_value absent_from(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value key) {
    return qr_jinja_absent(run, key.type == QR_JINJA_STRING ? QR_JINJA_NO_ATTRIBUTE : QR_JINJA_NO_ELEMENT,
                           object_name(object), key);
}

qr_jinja_value qr_jinja_undefined_error(qr_jinja_run *run, qr_jinja_value value) {
    const qr_jinja_absence *why = value.absence;
    if (why == NULL || qr_jinja_failed(run)) { return qr_jinja_error(run, "a value is undefined"); }
    const char *key = qr_jinja_cstring(run, why->key);
    switch (why->reason) {
        case QR_JINJA_NO_NAME: return qr_jinja_error(run, "'%s' is undefined", key);
        case QR_JINJA_NO_ATTRIBUTE: return qr_jinja_error(run, "'%s' has no attribute '%s'", why->owner, key);
        case QR_JINJA_NO_ELEMENT: return qr_jinja_error(run, "%s has no element %s", why->owner, key);
        case QR_JINJA_NO_ARGUMENT: return qr_jinja_error(run, "parameter '%s' was not provided", key);
        case QR_JINJA_EMPTY_SEQUENCE: return qr_jinja_error(run, "the sequence of %s is empty", why->owner);
        default: break;
    }
    return qr_jinja_error(run, "access to attribute '%s' of '%s' object is unsafe: templates cannot change values", key,
                          why->owner);
}

/* --- attributes and items --- */

static bool find_attribute(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value name, qr_jinja_value *found) {
    if (object.type == QR_JINJA_NAMESPACE) {
        const qr_jinja_value *item = qr_jinja_dict_find(run, object.dict, name);
        if (item != NULL) { *found = *item; }
        return item != NULL;
    }
    const qr_jinja_builtin *builtin = qr_jinja_find_method(object, name.string->data, name.string->size);
    if (builtin != NULL && builtin->call == NULL) {
        *found = qr_jinja_absent(run, QR_JINJA_FORBIDDEN, qr_jinja_type_name(object), name);
        return true;
    }
    if (builtin != NULL) {
        qr_jinja_method *method = qr_jinja_take(run, sizeof *method);
        if (method == NULL) { return false; }
        *method = (qr_jinja_method){.builtin = builtin, .self = object};
        *found = (qr_jinja_value){.type = QR_JINJA_METHOD, .method = method};
        return true;
    }
    *found = qr_jinja_undefined();
    if (object.type == QR_JINJA_LOOP) { *found = qr_jinja_loop_attribute(object.loop, name); }
    if (object.type == QR_JINJA_CYCLER) { *found = qr_jinja_cycler_attribute(object, name); }
    if (object.type == QR_JINJA_TUPLE && object.list->is_group) {
        if (qr_jinja_is_text(name.string, "grouper")) { *found = object.list->items[0]; }
        if (qr_jinja_is_text(name.string, "list")) { *found = object.list->items[1]; }
    }
    if (object.type == QR_JINJA_MACRO && qr_jinja_is_text(name.string, "name")) {
        *found = qr_jinja_text(run, object.macro->name);
    }
    return found->type != QR_JINJA_UNDEFINED;
}

static bool find_index(qr_jinja_run *run, qr_jinja_value object, int64_t index, qr_jinja_value *found) {
    size_t length;
    const bool indexed = object.type == QR_JINJA_LIST || object.type == QR_JINJA_TUPLE ||
                         object.type == QR_JINJA_RANGE || object.type == QR_JINJA_STRING;
    if (!indexed || !qr_jinja_length(run, object, &length)) { return false; }
    if (index < 0) { index += (int64_t)length; }
    if (index < 0 || index >= (int64_t)length) { return false; }
    if (object.type != QR_JINJA_STRING) {
        *found = object.list->items[index];
        return true;
    }
    const qr_jinja_string *string = object.string;
    const size_t start = qr_jinja_char_offset(run, string->data, string->size, (size_t)index);
    const size_t end = start + qr_jinja_char_offset(run, string->data + start, string->size - start, 1);
    *found = qr_jinja_lend(run, string->data + start, end - start);
    return true;
}

static bool find_item(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value key, qr_jinja_value *found) {
    int64_t index;
    if (object.type == QR_JINJA_DICT) {
        const bool hashable = key.type != QR_JINJA_LIST && key.type != QR_JINJA_DICT;
        const qr_jinja_value *item = hashable ? qr_jinja_dict_find(run, object.dict, key) : NULL;
        if (item != NULL) { *found = *item; }
        return item != NULL;
    }
    return qr_jinja_as_index(key, &index) && find_index(run, object, index, found);
}

qr_jinja_value qr_jinja_get_attribute(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value name) {
    qr_jinja_value found;
    if (object.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, object); }
    if (find_attribute(run, object, name, &found) || find_item(run, object, name, &found)) { return found; }
    return absent_from(run, object, name);
}

qr_jinja_value qr_jinja_get_item(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value key) {
    qr_jinja_value found;
    if (object.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, object); }
    if (find_item(run, object, key, &found)) { return found; }
    if (key.type == QR_JINJA_STRING && find_attribute(run, object, key, &found)) { return found; }
    return absent_from(run, object, key);
}

qr_jinja_value qr_jinja_path_key(qr_jinja_run *run, const char *text, size_t size) {
    const bool starts_as_number = size > 0 && text[0] >= '0' && text[0] <= '9';
    const qr_jinja_value index =
        starts_as_number ? qr_jinja_parse_integer(run, text, size, 10) : (qr_jinja_value){.type = QR_JINJA_MISSING};
    return index.type == QR_JINJA_MISSING ? qr_jinja_lend(run, text, size) : index;
}

/* --- slices --- */

/* An integer as a slice takes it: what does not fit is as far as can be. */
static bool saturate(qr_jinja_value value, int64_t *index) {
    if (value.type == QR_JINJA_BIG) { *index = qr_jinja_is_negative(value) ? -INT64_MAX : INT64_MAX; }
    return value.type == QR_JINJA_BIG || qr_jinja_as_index(value, index);
}

/* Python's slice.indices for one bound. */
static bool clamp_bound(qr_jinja_value bound, int64_t length, bool backwards, int64_t *result) {
    if (bound.type == QR_JINJA_NONE || bound.type == QR_JINJA_MISSING) { return true; }
    int64_t index;
    if (!saturate(bound, &index)) { return false; }
    const int64_t low = backwards ? -1 : 0, high = backwards ? length - 1 : length;
    if (index < 0) { index = index < -length ? low : index + length; }
    *result = qr_max(low, qr_min(high, index));
    return true;
}

static qr_jinja_value slice_string(qr_jinja_run *run, const qr_jinja_string *string, int64_t start, int64_t stop,
                                   int64_t step) {
    if (step == 1) {
        const size_t from = qr_jinja_char_offset(run, string->data, string->size, (size_t)start);
        const size_t n = stop > start ? (size_t)(stop - start) : 0;
        return qr_jinja_lend(run, string->data + from,
                             qr_jinja_char_offset(run, string->data + from, string->size - from, n));
    }
    const qr_jinja_list *characters = qr_jinja_iterate(
        run, (qr_jinja_value){.type = QR_JINJA_STRING, .string = (qr_jinja_string *)(uintptr_t)string});
    qr_jinja_builder builder = {.run = run};
    for (int64_t i = start; !qr_jinja_failed(run) && (step > 0 ? i < stop : i > stop); i += step) {
        qr_jinja_append_value(&builder, characters->items[i]);
    }
    return qr_jinja_built(&builder);
}

qr_jinja_value qr_jinja_get_slice(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value start, qr_jinja_value stop,
                                  qr_jinja_value step) {
    size_t length;
    const bool sliceable = object.type == QR_JINJA_LIST || object.type == QR_JINJA_TUPLE ||
                           object.type == QR_JINJA_RANGE || object.type == QR_JINJA_STRING;
    if (object.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, object); }
    int64_t by = 1;
    const bool has_step = step.type != QR_JINJA_MISSING && step.type != QR_JINJA_NONE;
    if (!sliceable || !qr_jinja_length(run, object, &length) || (has_step && !saturate(step, &by))) {
        return absent_from(run, object, qr_jinja_none());
    }
    if (by == 0) { return qr_jinja_error(run, "slice step cannot be zero"); }
    const int64_t n = (int64_t)length;
    by = qr_max(-n - 1, qr_min(n + 1, by));
    int64_t from = by > 0 ? 0 : n - 1, to = by > 0 ? n : -1;
    if (!clamp_bound(start, n, by < 0, &from) || !clamp_bound(stop, n, by < 0, &to)) {
        return absent_from(run, object, qr_jinja_none());
    }
    if (object.type == QR_JINJA_STRING) { return slice_string(run, object.string, from, to, by); }
    qr_jinja_list *list = qr_jinja_list_create(run, 0);
    for (int64_t i = from; !qr_jinja_failed(run) && (by > 0 ? i < to : i > to); i += by) {
        qr_jinja_list_append(run, list, object.list->items[i]);
    }
    if (object.type == QR_JINJA_RANGE && !qr_jinja_failed(run)) {
        const qr_jinja_range all = object.list->bounds;
        qr_jinja_range *part = &list->bounds;
        const bool fits = qr_count_mul(from, all.step, &part->start) &&
                          qr_count_add(all.start, part->start, &part->start) &&
                          qr_count_mul(to, all.step, &part->stop) && qr_count_add(all.start, part->stop, &part->stop) &&
                          qr_count_mul(all.step, by, &part->step);
        if (!fits) { return qr_jinja_error(run, "a slice of a range goes beyond 64 bits"); }
    }
    return qr_jinja_from_list(object.type, list);
}

/* --- arithmetic --- */

static qr_jinja_value fail_operands(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    if (a.type == QR_JINJA_UNDEFINED || b.type == QR_JINJA_UNDEFINED) {
        return qr_jinja_undefined_error(run, a.type == QR_JINJA_UNDEFINED ? a : b);
    }
    if (op == '+' && (a.type == QR_JINJA_STRING || a.type == QR_JINJA_LIST || a.type == QR_JINJA_TUPLE)) {
        return qr_jinja_error(run, "can only concatenate %s (not \"%s\") to %s", qr_jinja_type_name(a),
                              qr_jinja_type_name(b), qr_jinja_type_name(a));
    }
    const char name[3] = {(char)(op & 0xFF), (char)(op >> 8), '\0'};
    return qr_jinja_error(run, "unsupported operand type(s) for %s: '%s' and '%s'", name, qr_jinja_type_name(a),
                          qr_jinja_type_name(b));
}

/* In 64 bits where they suffice. */
static qr_jinja_value integer_arithmetic(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    int64_t i, j, result = 0;
    bool fits = qr_jinja_as_index(a, &i) && qr_jinja_as_index(b, &j);
    if (!fits) { return qr_jinja_integer_arithmetic(run, op, a, b); }
    switch (op) {
        case '+': fits = qr_count_add(i, j, &result); break;
        case '-': fits = !__builtin_sub_overflow(i, j, &result); break;
        case '*': fits = qr_count_mul(i, j, &result); break;
        case QR_JINJA_OP('*', '*'): fits = false; break;
        default: /* // and %, which round towards minus infinity */
            fits = j != -1;
            if (fits) {
                const int64_t quotient = i / j, rest = i % j;
                const bool adjust = rest != 0 && (rest < 0) != (j < 0);
                result = op == '%' ? (adjust ? rest + j : rest) : quotient - adjust;
            }
            break;
    }
    return fits ? qr_jinja_int(result) : qr_jinja_integer_arithmetic(run, op, a, b);
}

static double floor_modulo(double a, double b) {
    const double rest = fmod(a, b);
    if (rest == 0.0) { return copysign(0.0, b); }
    return (rest < 0) != (b < 0) ? rest + b : rest;
}

/* Whole, although a − rest and b are rounded. */
static double floor_quotient(double a, double b) {
    const double quotient = (a - floor_modulo(a, b)) / b;
    if (quotient == 0.0) { return copysign(0.0, a / b); }
    return floor(quotient) + (quotient - floor(quotient) > 0.5);
}

static qr_jinja_value double_power(qr_jinja_run *run, double a, double b) {
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) {
        return qr_jinja_error(run, "a negative number has no real power %g", b);
    }
    const double result = pow(a, b);
    const bool overflows = isinf(result) && isfinite(a) && isfinite(b);
    return overflows ? qr_jinja_error(run, "the power %g of %g is too large for a float", b, a)
                     : qr_jinja_float(result);
}

static qr_jinja_value double_arithmetic(qr_jinja_run *run, int op, double a, double b) {
    switch (op) {
        case '+': return qr_jinja_float(a + b);
        case '-': return qr_jinja_float(a - b);
        case '*': return qr_jinja_float(a * b);
        case '/': return qr_jinja_float(a / b);
        case '%': return qr_jinja_float(floor_modulo(a, b));
        case QR_JINJA_OP('/', '/'): return qr_jinja_float(floor_quotient(a, b));
        default: return double_power(run, a, b);
    }
}

static qr_jinja_value arithmetic(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    const bool divides = op == '/' || op == '%' || op == QR_JINJA_OP('/', '/'), raises = op == QR_JINJA_OP('*', '*');
    const double x = qr_jinja_as_double(a), y = qr_jinja_as_double(b);
    if ((divides && y == 0.0) || (raises && x == 0.0 && y < 0)) { return qr_jinja_error(run, "division by zero"); }
    if (qr_jinja_is_integer(a) && qr_jinja_is_integer(b)) {
        if (op == '/') { return qr_jinja_integer_ratio(run, a, b); }
        if (!raises || y >= 0) { return integer_arithmetic(run, op, a, b); }
    }
    if ((a.type == QR_JINJA_BIG && isinf(x)) || (b.type == QR_JINJA_BIG && isinf(y))) {
        return qr_jinja_error(run, "int too large to convert to float");
    }
    return double_arithmetic(run, op, x, y);
}

static qr_jinja_value concatenate(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b) {
    if (a.type == QR_JINJA_STRING) {
        const bool safe = a.string->safe || b.string->safe;
        if (safe && !a.string->safe) { a = qr_jinja_escape_html(run, a.string); }
        if (safe && !b.string->safe) { b = qr_jinja_escape_html(run, b.string); }
        qr_jinja_builder builder = {.run = run};
        qr_jinja_append_value(&builder, a);
        qr_jinja_append_value(&builder, b);
        return qr_jinja_with_safety(run, qr_jinja_built(&builder), safe);
    }
    qr_jinja_list *list = qr_jinja_list_create(run, a.list->n_items + b.list->n_items);
    qr_jinja_list_extend(run, list, a.list->items, a.list->n_items);
    qr_jinja_list_extend(run, list, b.list->items, b.list->n_items);
    return qr_jinja_from_list(a.type, list);
}

static qr_jinja_value repeat(qr_jinja_run *run, qr_jinja_value sequence, int64_t times) {
    if (sequence.type == QR_JINJA_STRING) {
        qr_jinja_builder builder = {.run = run};
        for (int64_t i = 0; i < times && sequence.string->size > 0 && qr_jinja_step(run, 1); i++) {
            qr_jinja_append_value(&builder, sequence);
        }
        return qr_jinja_built(&builder);
    }
    qr_jinja_list *list = qr_jinja_list_create(run, 0);
    for (int64_t n = 0; n < times && sequence.list->n_items > 0 && qr_jinja_step(run, sequence.list->n_items); n++) {
        qr_jinja_list_extend(run, list, sequence.list->items, sequence.list->n_items);
    }
    return qr_jinja_from_list(sequence.type, list);
}

static bool is_sequence(qr_jinja_value value) {
    return value.type == QR_JINJA_STRING || value.type == QR_JINJA_LIST || value.type == QR_JINJA_TUPLE;
}

qr_jinja_value qr_jinja_binary(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    int64_t times;
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (qr_jinja_is_number(a) && qr_jinja_is_number(b)) { return arithmetic(run, op, a, b); }
    if (op == '+' && is_sequence(a) && a.type == b.type) { return concatenate(run, a, b); }
    if (op == '*' && is_sequence(a) && qr_jinja_as_index(b, &times)) { return repeat(run, a, times); }
    if (op == '*' && is_sequence(b) && qr_jinja_as_index(a, &times)) { return repeat(run, b, times); }
    if (op == '%' && a.type == QR_JINJA_STRING) { return qr_jinja_format_percent(run, a.string, b); }
    return fail_operands(run, op, a, b);
}
