/* Functions that every template can call. */
#include <string.h>

#include "base/sizes.h"
#include "loaders/template/jinja_run.h"

const char *qr_jinja_cstring(qr_jinja_run *run, qr_jinja_value value) {
    qr_jinja_builder builder = {.run = run};
    qr_jinja_append_value(&builder, value);
    qr_jinja_append(&builder, "", 1);
    return qr_jinja_failed(run) ? "" : builder.data;
}

static qr_jinja_value global_range(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const bool has_start = args[1].type != QR_JINJA_MISSING;
    const int64_t start = has_start ? qr_jinja_integer_or(run, args[0], 0) : 0;
    const int64_t stop = qr_jinja_integer_or(run, has_start ? args[1] : args[0], 0);
    const int64_t step = qr_jinja_integer_or(run, args[2], 1);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (step == 0) { return qr_jinja_error(run, "range() arg 3 must not be zero"); }
    const bool any = step > 0 ? start < stop : start > stop;
    const uint64_t distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    const uint64_t stride = step > 0 ? (uint64_t)step : 0U - (uint64_t)step;
    const uint64_t n = any ? (distance - 1) / stride + 1 : 0;
    if (n > QR_JINJA_MAX_RANGE) {
        return qr_jinja_error(run, "range too big: the sandbox blocks ranges larger than %d", (int)QR_JINJA_MAX_RANGE);
    }
    qr_jinja_list *list = qr_jinja_list_create(run, (size_t)n);
    for (uint64_t i = 0; i < n && !qr_jinja_failed(run); i++) {
        qr_jinja_list_append(run, list, qr_jinja_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
    }
    if (!qr_jinja_failed(run)) { list->bounds = (qr_jinja_range){start, stop, step}; }
    return qr_jinja_from_list(QR_JINJA_RANGE, list);
}

/* dict(mapping or pairs, **items) */
static qr_jinja_value make_dict(qr_jinja_run *run, const qr_jinja_args *raw, const char *what) {
    qr_jinja_dict *dict = qr_jinja_dict_create(run);
    if (raw->n_items > 1) {
        return qr_jinja_error(run, "%s() takes at most 1 positional argument, not %zu", what, raw->n_items);
    }
    if (raw->n_items == 1 && raw->items[0].type == QR_JINJA_DICT) {
        const qr_jinja_dict *from = raw->items[0].dict;
        for (size_t i = 0; i < from->n_entries && !qr_jinja_failed(run); i++) {
            (void)qr_jinja_dict_set(run, dict, from->entries[i].key, from->entries[i].value);
        }
    } else if (raw->n_items == 1) {
        const qr_jinja_list *pairs = qr_jinja_iterate(run, raw->items[0]);
        for (size_t i = 0; i < pairs->n_items && !qr_jinja_failed(run); i++) {
            const qr_jinja_list *pair = qr_jinja_iterate(run, pairs->items[i]);
            if (qr_jinja_failed(run)) { break; }
            if (pair->n_items != 2) {
                return qr_jinja_error(run, "%s(): element %zu has length %zu; 2 is required", what, i, pair->n_items);
            }
            (void)qr_jinja_dict_set(run, dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; raw->named != NULL && i < raw->named->n_entries && !qr_jinja_failed(run); i++) {
        (void)qr_jinja_dict_set(run, dict, raw->named->entries[i].key, raw->named->entries[i].value);
    }
    return qr_jinja_from_dict(dict);
}

static qr_jinja_value global_dict(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return make_dict(run, call->raw, "dict");
}

static qr_jinja_value global_namespace(qr_jinja_run *run, const qr_jinja_invocation *call) {
    qr_jinja_value made = make_dict(run, call->raw, "namespace");
    if (qr_jinja_failed(run)) { return made; }
    for (size_t i = 0; i < made.dict->n_entries; i++) {
        const qr_jinja_value key = made.dict->entries[i].key;
        if (key.type == QR_JINJA_STRING && key.string->size > 0 && key.string->data[0] == '_') {
            return qr_jinja_error(run, "templates cannot store underscore-prefixed attributes on a namespace: '%s'",
                                  qr_jinja_cstring(run, key));
        }
    }
    made.type = QR_JINJA_NAMESPACE;
    return made;
}

static qr_jinja_value global_cycler(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_args *raw = call->raw;
    if (raw->n_items == 0) { return qr_jinja_error(run, "at least one item has to be provided"); }
    qr_jinja_list *list = qr_jinja_list_create(run, raw->n_items);
    qr_jinja_list_extend(run, list, raw->items, raw->n_items);
    return qr_jinja_from_list(QR_JINJA_CYCLER, list);
}

static qr_jinja_value global_joiner(qr_jinja_run *run, const qr_jinja_invocation *call) {
    qr_jinja_list *list = qr_jinja_list_create(run, 1);
    qr_jinja_list_append(run, list, call->args[0].type == QR_JINJA_MISSING ? qr_jinja_text(run, ", ") : call->args[0]);
    return qr_jinja_from_list(QR_JINJA_JOINER, list);
}

/* The template's own message, and nothing around it. */
static qr_jinja_value global_raise_exception(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const char *message = qr_jinja_cstring(run, call->args[0]);
    if (run->status == QRUN_OK) { run->status = qr_fail(run->err, QRUN_ERROR_INPUT, "%s", message); }
    return qr_jinja_undefined();
}

static qr_jinja_value global_strftime_now(qr_jinja_run *run, const qr_jinja_invocation *call) {
    if (call->args[0].type != QR_JINJA_STRING) {
        return qr_jinja_error(run, "strftime_now() takes a format, not %s", qr_jinja_type_name(call->args[0]));
    }
    return qr_jinja_format_time(run, call->args[0].string, run->now);
}

static const qr_jinja_builtin globals[] = {
    {"range", "start stop step", 1, global_range, 0, QR_JINJA_BY_SIZE},
    {"dict", NULL, 0, global_dict, 0, QR_JINJA_BY_SIZE},
    {"namespace", NULL, 0, global_namespace, 0, QR_JINJA_BY_SIZE},
    {"cycler", NULL, 0, global_cycler, 0, QR_JINJA_BY_SIZE},
    {"joiner", "sep", 0, global_joiner, 0, QR_JINJA_BY_SIZE},
    {"raise_exception", "message", 1, global_raise_exception, 0, QR_JINJA_BY_SIZE},
    {"strftime_now", "format", 1, global_strftime_now, 0, QR_JINJA_BY_SIZE},
};

const qr_jinja_table qr_jinja_globals = {"function", globals, QR_COUNT_OF(globals)};

const qr_jinja_builtin *qr_jinja_find_global(const char *name, size_t size) {
    return qr_jinja_find_builtin(&qr_jinja_globals, name, size);
}
