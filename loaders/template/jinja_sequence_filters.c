/* Filters that walk a sequence or mapping. What Jinja makes lazily is made at once here, as an iterator: it can be
 * walked once, and shows as a generator. */
#include <string.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

static qr_jinja_value iterator(qr_jinja_list *list) { return qr_jinja_from_list(QR_JINJA_ITERATOR, list); }

/* --- attribute arguments --- */

/* What a path such as "a.b.0", or a number, leads to from an item. */

static qr_jinja_value get_path(qr_jinja_run *run, qr_jinja_value item, qr_jinja_value path, qr_jinja_value otherwise) {
    if (path.type == QR_JINJA_MISSING || path.type == QR_JINJA_NONE) { return item; }
    if (path.type != QR_JINJA_STRING) {
        const qr_jinja_value found = qr_jinja_get_item(run, item, path);
        return found.type == QR_JINJA_UNDEFINED && otherwise.type != QR_JINJA_MISSING ? otherwise : found;
    }
    const char *at = path.string->data, *end = at + path.string->size;
    for (bool more = true; more && !qr_jinja_failed(run);) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        const size_t size = (size_t)((dot != NULL ? dot : end) - at);
        item = qr_jinja_get_item(run, item, qr_jinja_path_key(run, at, size));
        if (item.type == QR_JINJA_UNDEFINED && otherwise.type != QR_JINJA_MISSING) { item = otherwise; }
        more = dot != NULL;
        at = dot != NULL ? dot + 1 : end;
    }
    return item;
}

static qr_jinja_value fold_case(qr_jinja_run *run, qr_jinja_value key, bool case_sensitive) {
    return key.type == QR_JINJA_STRING && !case_sensitive ? qr_jinja_map_case(run, key.string, QR_JINJA_LOWER) : key;
}

/* What an item is compared by: its attribute, in lower case unless case matters. */
static qr_jinja_value comparison_key(qr_jinja_run *run, qr_jinja_value item, qr_jinja_value path, bool case_sensitive) {
    return fold_case(run, get_path(run, item, path, (qr_jinja_value){0}), case_sensitive);
}

/* Several attributes "a,b" give a list of keys. */
static qr_jinja_value sort_key(qr_jinja_run *run, qr_jinja_value item, qr_jinja_value path, bool case_sensitive) {
    const bool several = path.type == QR_JINJA_STRING && memchr(path.string->data, ',', path.string->size) != NULL;
    if (!several) { return comparison_key(run, item, path, case_sensitive); }
    qr_jinja_list *keys = qr_jinja_list_create(run, 2);
    const char *at = path.string->data, *end = at + path.string->size;
    while (at <= end && !qr_jinja_failed(run)) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        qr_jinja_list_append(run, keys,
                             comparison_key(run, item, qr_jinja_lend(run, at, (size_t)(stop - at)), case_sensitive));
        at = stop + 1;
    }
    return qr_jinja_from_list(QR_JINJA_LIST, keys);
}

/* --- order --- */

static qr_jinja_value sort_list(qr_jinja_run *run, qr_jinja_list *items, qr_jinja_value path, bool case_sensitive,
                                bool reverse) {
    qr_jinja_list *keys = qr_jinja_list_create(run, items->n_items);
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        qr_jinja_list_append(run, keys, sort_key(run, items->items[i], path, case_sensitive));
    }
    return qr_jinja_failed(run) ? qr_jinja_undefined() : qr_jinja_sorted(run, items, keys, reverse);
}

static qr_jinja_value filter_sort(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return sort_list(run, qr_jinja_iterate(run, call->self), call->args[2], qr_jinja_truth(call->args[1]),
                     qr_jinja_truth(call->args[0]));
}

static qr_jinja_value filter_dictsort(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const qr_jinja_value *args = call->args;
    const char *by = args[1].type == QR_JINJA_MISSING ? "key" : qr_jinja_cstring(run, args[1]);
    const bool by_value = strcmp(by, "value") == 0;
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (!by_value && strcmp(by, "key") != 0) {
        return qr_jinja_error(run, "You can only sort by either \"key\" or \"value\"");
    }
    if (self.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, self); }
    if (self.type != QR_JINJA_DICT) {
        return qr_jinja_error(run, "'%s' object has no attribute 'items'", qr_jinja_type_name(self));
    }
    return sort_list(run, qr_jinja_pairs(run, self.dict), qr_jinja_int(by_value ? 1 : 0), qr_jinja_truth(args[0]),
                     qr_jinja_truth(args[2]));
}

/* min and max: the variant is the comparison that a better item meets. */
static qr_jinja_value filter_extreme(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const bool largest = call->builtin->variant == '>', case_sensitive = qr_jinja_truth(call->args[0]);
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    if (items->n_items == 0) {
        return qr_jinja_absent(run, QR_JINJA_EMPTY_SEQUENCE, largest ? "max" : "min", qr_jinja_none());
    }
    qr_jinja_value best = items->items[0], best_key = comparison_key(run, best, call->args[1], case_sensitive);
    for (size_t i = 1; i < items->n_items && !qr_jinja_failed(run); i++) {
        const qr_jinja_value key = comparison_key(run, items->items[i], call->args[1], case_sensitive);
        if (qr_jinja_failed(run) || !qr_jinja_holds(run, call->builtin->variant, key, best_key)) { continue; }
        best = items->items[i];
        best_key = key;
    }
    return best;
}

static qr_jinja_value filter_unique(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    qr_jinja_list *kept = qr_jinja_list_create(run, 0);
    qr_jinja_dict *seen = qr_jinja_dict_create(run);
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        const qr_jinja_value key = comparison_key(run, items->items[i], call->args[1], qr_jinja_truth(call->args[0]));
        if (qr_jinja_failed(run) || qr_jinja_dict_find(run, seen, key) != NULL) { continue; }
        (void)qr_jinja_dict_set(run, seen, key, qr_jinja_none());
        qr_jinja_list_append(run, kept, items->items[i]);
    }
    return iterator(kept);
}

static qr_jinja_value filter_reverse(qr_jinja_run *run, const qr_jinja_invocation *call) {
    if (call->self.type == QR_JINJA_STRING) {
        return qr_jinja_get_slice(run, call->self, qr_jinja_none(), qr_jinja_none(), qr_jinja_int(-1));
    }
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    qr_jinja_list *reversed = qr_jinja_list_create(run, items->n_items);
    for (size_t i = items->n_items; i-- > 0 && !qr_jinja_failed(run);) {
        qr_jinja_list_append(run, reversed, items->items[i]);
    }
    return iterator(reversed);
}

static qr_jinja_value filter_groupby(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const bool case_sensitive = qr_jinja_truth(args[2]);
    qr_jinja_list *items = qr_jinja_iterate(run, call->self), *keys = qr_jinja_list_create(run, 0),
                  *groups = qr_jinja_list_create(run, 0);
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        const qr_jinja_value key = get_path(run, items->items[i], args[0], args[1]);
        qr_jinja_list_append(run, keys, fold_case(run, key, case_sensitive));
    }
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    const qr_jinja_value sorted = qr_jinja_sorted(run, items, keys, false),
                         sorted_keys = qr_jinja_sorted(run, keys, keys, false);
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run);) {
        qr_jinja_list *members = qr_jinja_list_create(run, 0);
        const qr_jinja_value key = sorted_keys.list->items[i];
        const qr_jinja_value shown = get_path(run, sorted.list->items[i], args[0], args[1]);
        while (i < items->n_items && !qr_jinja_failed(run) && qr_jinja_equal(run, key, sorted_keys.list->items[i])) {
            qr_jinja_list_append(run, members, sorted.list->items[i++]);
        }
        const qr_jinja_value group = qr_jinja_pair(run, shown, qr_jinja_from_list(QR_JINJA_LIST, members));
        if (qr_jinja_failed(run)) { break; }
        if (members->n_items == 0) { i++; } /* NaN equals nothing */
        group.list->is_group = true;
        qr_jinja_list_append(run, groups, group);
    }
    return qr_jinja_from_list(QR_JINJA_LIST, groups);
}

/* --- parts --- */

static qr_jinja_value filter_first(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    if (self.type == QR_JINJA_ITERATOR && self.list->cursor < self.list->n_items) {
        return self.list->items[self.list->cursor++];
    }
    const qr_jinja_list *items = qr_jinja_iterate(run, self);
    return items->n_items > 0 ? items->items[0]
                              : qr_jinja_absent(run, QR_JINJA_EMPTY_SEQUENCE, "first", qr_jinja_none());
}

static qr_jinja_value filter_last(qr_jinja_run *run, const qr_jinja_invocation *call) {
    if (call->self.type == QR_JINJA_ITERATOR) { return qr_jinja_error(run, "'generator' object is not reversible"); }
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    return items->n_items > 0 ? items->items[items->n_items - 1]
                              : qr_jinja_absent(run, QR_JINJA_EMPTY_SEQUENCE, "last", qr_jinja_none());
}

static qr_jinja_value filter_list(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_from_list(QR_JINJA_LIST, qr_jinja_iterate(run, call->self));
}

static qr_jinja_value filter_items(qr_jinja_run *run, const qr_jinja_invocation *call) {
    if (call->self.type == QR_JINJA_UNDEFINED) { return iterator(qr_jinja_list_create(run, 0)); }
    if (call->self.type != QR_JINJA_DICT) { return qr_jinja_error(run, "Can only get item pairs from a mapping."); }
    return iterator(qr_jinja_pairs(run, call->self.dict));
}

static qr_jinja_value filter_batch(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    const int64_t size = qr_jinja_integer_or(run, args[0], 1);
    qr_jinja_list *batches = qr_jinja_list_create(run, 0), *batch = NULL;
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        if (batch == NULL || (int64_t)batch->n_items == size) {
            batch = qr_jinja_list_create(run, 0);
            qr_jinja_list_append(run, batches, qr_jinja_from_list(QR_JINJA_LIST, batch));
        }
        qr_jinja_list_append(run, batch, items->items[i]);
    }
    const bool fills = args[1].type != QR_JINJA_MISSING && args[1].type != QR_JINJA_NONE;
    while (batch != NULL && fills && (int64_t)batch->n_items < size && !qr_jinja_failed(run)) {
        qr_jinja_list_append(run, batch, args[1]);
    }
    return iterator(batches);
}

static qr_jinja_value filter_slice(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value *args = call->args;
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    const int64_t n_slices = qr_jinja_integer_or(run, args[0], 1), n = (int64_t)items->n_items;
    if (n_slices <= 0) { return qr_jinja_error(run, "integer division or modulo by zero"); }
    const int64_t size = n / n_slices, n_longer = n % n_slices;
    const bool fills = args[1].type != QR_JINJA_MISSING && args[1].type != QR_JINJA_NONE;
    qr_jinja_list *slices = qr_jinja_list_create(run, 0);
    for (int64_t s = 0, at = 0; s < n_slices && qr_jinja_step(run, 1); s++) {
        qr_jinja_list *slice = qr_jinja_list_create(run, 0);
        for (const int64_t end = at + size + (s < n_longer); at < end; at++) {
            qr_jinja_list_append(run, slice, items->items[at]);
        }
        if (fills && s >= n_longer) { qr_jinja_list_append(run, slice, args[1]); }
        qr_jinja_list_append(run, slices, qr_jinja_from_list(QR_JINJA_LIST, slice));
    }
    return iterator(slices);
}

/* --- sums --- */

static qr_jinja_value filter_join(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    qr_jinja_builder builder = {.run = run};
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        if (i > 0) { qr_jinja_append_value(&builder, call->args[0]); }
        qr_jinja_append_value(&builder, get_path(run, items->items[i], call->args[1], (qr_jinja_value){0}));
    }
    return qr_jinja_built(&builder);
}

static qr_jinja_value filter_sum(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    qr_jinja_value total = call->args[1].type == QR_JINJA_MISSING ? qr_jinja_int(0) : call->args[1];
    if (total.type == QR_JINJA_STRING) {
        return qr_jinja_error(run, "sum() can't sum strings [use ''.join(seq) instead]");
    }
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        total = qr_jinja_binary(run, '+', total, get_path(run, items->items[i], call->args[0], (qr_jinja_value){0}));
    }
    return total;
}

/* --- map, select and reject: of whatever is false they give nothing, and look at no argument --- */

static const qr_jinja_value *named_argument(qr_jinja_run *run, const qr_jinja_args *raw, const char *name) {
    return raw->named != NULL ? qr_jinja_dict_find_text(run, raw->named, name) : NULL;
}

static qr_jinja_value map_filter(qr_jinja_run *run, const qr_jinja_list *items, const qr_jinja_args *raw) {
    qr_jinja_list *mapped = qr_jinja_list_create(run, items->n_items);
    const char *name = qr_jinja_cstring(run, raw->items[0]);
    const qr_jinja_builtin *filter = qr_jinja_find_filter(name, strlen(name));
    const qr_jinja_args rest = {.items = raw->items + 1, .n_items = raw->n_items - 1, .named = raw->named};
    if (filter == NULL) { return qr_jinja_error(run, "unknown filter '%s'", name); }
    for (size_t i = 0; i < items->n_items && qr_jinja_step(run, 1); i++) {
        qr_jinja_list_append(run, mapped, qr_jinja_call_builtin(run, filter, "filter", items->items[i], &rest));
    }
    return iterator(mapped);
}

static qr_jinja_value filter_map(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_args *raw = call->raw;
    const qr_jinja_value *attribute = named_argument(run, raw, "attribute");
    const qr_jinja_value *otherwise = named_argument(run, raw, "default");
    if (!qr_jinja_truth(call->self)) { return iterator(qr_jinja_list_create(run, 0)); }
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (raw->n_items > 0) { return map_filter(run, items, raw); }
    if (attribute == NULL) { return qr_jinja_error(run, "map requires a filter argument"); }
    if (raw->named->n_entries > (otherwise != NULL ? 2U : 1U)) {
        return qr_jinja_error(run, "map: unexpected keyword argument");
    }
    qr_jinja_list *mapped = qr_jinja_list_create(run, items->n_items);
    for (size_t i = 0; i < items->n_items && qr_jinja_step(run, 1); i++) {
        qr_jinja_list_append(
            run, mapped,
            get_path(run, items->items[i], *attribute, otherwise != NULL ? *otherwise : (qr_jinja_value){0}));
    }
    return iterator(mapped);
}

/* select and reject; with BY_ATTRIBUTE the first argument says what of an item is tested. */
enum { KEEPS = 1, BY_ATTRIBUTE = 2 };

static qr_jinja_value filter_select(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_args *raw = call->raw;
    const bool keeps = (call->builtin->variant & KEEPS) != 0,
               by_attribute = (call->builtin->variant & BY_ATTRIBUTE) != 0;
    const size_t n_own = by_attribute ? 1 : 0;
    if (!qr_jinja_truth(call->self)) { return iterator(qr_jinja_list_create(run, 0)); }
    if (raw->n_items < n_own) { return qr_jinja_error(run, "Missing parameter for attribute name"); }
    const qr_jinja_builtin *test = NULL;
    if (raw->n_items > n_own) {
        const char *name = qr_jinja_cstring(run, raw->items[n_own]);
        test = qr_jinja_find_test(name, strlen(name));
        if (test == NULL) { return qr_jinja_error(run, "unknown test '%s'", name); }
    }
    qr_jinja_args rest = {.named = raw->named};
    if (test != NULL) {
        rest.items = raw->items + n_own + 1;
        rest.n_items = raw->n_items - n_own - 1;
    }
    const qr_jinja_list *items = qr_jinja_iterate(run, call->self);
    qr_jinja_list *kept = qr_jinja_list_create(run, 0);
    for (size_t i = 0; i < items->n_items && qr_jinja_step(run, 1); i++) {
        qr_jinja_value subject =
            by_attribute ? get_path(run, items->items[i], raw->items[0], (qr_jinja_value){0}) : items->items[i];
        if (test != NULL) { subject = qr_jinja_call_builtin(run, test, "test", subject, &rest); }
        if (!qr_jinja_failed(run) && qr_jinja_truth(subject) == keeps) {
            qr_jinja_list_append(run, kept, items->items[i]);
        }
    }
    return iterator(kept);
}

static const qr_jinja_builtin filters[] = {
    {"batch", "linecount fill_with", 1, filter_batch, 0, QR_JINJA_BY_SIZE},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0, QR_JINJA_BY_SIZE},
    {"first", "", 0, filter_first, 0, QR_JINJA_FLAT},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, 0, QR_JINJA_BY_SIZE},
    {"items", "", 0, filter_items, 0, QR_JINJA_FLAT},
    {"join", "d attribute", 0, filter_join, 0, QR_JINJA_BY_SIZE},
    {"last", "", 0, filter_last, 0, QR_JINJA_FLAT},
    {"list", "", 0, filter_list, 0, QR_JINJA_FLAT},
    {"map", NULL, 0, filter_map, 0, QR_JINJA_BY_SIZE},
    {"max", "case_sensitive attribute", 0, filter_extreme, '>', QR_JINJA_BY_SIZE},
    {"min", "case_sensitive attribute", 0, filter_extreme, '<', QR_JINJA_BY_SIZE},
    {"reject", NULL, 0, filter_select, 0, QR_JINJA_BY_SIZE},
    {"rejectattr", NULL, 0, filter_select, BY_ATTRIBUTE, QR_JINJA_BY_SIZE},
    {"reverse", "", 0, filter_reverse, 0, QR_JINJA_BY_SIZE},
    {"select", NULL, 0, filter_select, KEEPS, QR_JINJA_BY_SIZE},
    {"selectattr", NULL, 0, filter_select, KEEPS | BY_ATTRIBUTE, QR_JINJA_BY_SIZE},
    {"slice", "slices fill_with", 1, filter_slice, 0, QR_JINJA_BY_SIZE},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0, QR_JINJA_BY_SIZE},
    {"sum", "attribute start", 0, filter_sum, 0, QR_JINJA_BY_SIZE},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0, QR_JINJA_BY_SIZE},
};

const qr_jinja_table qr_jinja_sequence_filters = {"filter", filters, QR_COUNT_OF(filters)};
