/* Expressions: the tree walked. */
#include <string.h>

#include "base/units.h"
#include "loaders/template/jinja_run.h"

qr_jinja_value qr_jinja_lookup(qr_jinja_run *run, qr_jinja_value name) {
    for (const qr_jinja_scope *scope = run->scope; scope != NULL; scope = scope->outer) {
        const qr_jinja_value *found = qr_jinja_dict_find(run, scope->names, name);
        if (found != NULL) { return *found; }
        if (!qr_jinja_step(run, 1)) { return qr_jinja_undefined(); }
    }
    const qr_jinja_builtin *global = qr_jinja_find_global(name.string->data, name.string->size);
    if (global != NULL) { return (qr_jinja_value){.type = QR_JINJA_FUNCTION, .function = global}; }
    return qr_jinja_absent(run, QR_JINJA_NO_NAME, NULL, name);
}

static qr_jinja_list *evaluate_items(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_list *list = qr_jinja_list_create(run, 0);
    for (; node != NULL && !qr_jinja_failed(run); node = node->next) {
        qr_jinja_list_append(run, list, qr_jinja_evaluate(run, node));
    }
    return list;
}

static qr_jinja_value evaluate_dict(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_dict *dict = qr_jinja_dict_create(run);
    for (const qr_jinja_node *key = node->list; key != NULL && !qr_jinja_failed(run); key = key->next->next) {
        const qr_jinja_value name = qr_jinja_evaluate(run, key);
        const qr_jinja_value value = qr_jinja_evaluate(run, key->next);
        if (!qr_jinja_failed(run)) { (void)qr_jinja_dict_set(run, dict, name, value); }
    }
    return qr_jinja_from_dict(dict);
}

static qr_jinja_value evaluate_unary(qr_jinja_run *run, const qr_jinja_node *node) {
    const qr_jinja_value a = qr_jinja_evaluate(run, node->a);
    if (qr_jinja_failed(run)) { return a; }
    if (node->op == '!') { return qr_jinja_bool(!qr_jinja_truth(a)); }
    if (a.type == QR_JINJA_UNDEFINED) { return qr_jinja_undefined_error(run, a); }
    if (!qr_jinja_is_number(a)) {
        return qr_jinja_error(run, "bad operand type for unary %c: '%s'", (char)node->op, qr_jinja_type_name(a));
    }
    if (node->op == '+') { return a.type == QR_JINJA_BOOL ? qr_jinja_int(a.boolean) : a; }
    if (a.type == QR_JINJA_FLOAT) { return qr_jinja_float(-a.number); }
    return qr_jinja_binary(run, '-', qr_jinja_int(0), a);
}

bool qr_jinja_holds(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    switch (op) {
        case 'i': return qr_jinja_contains(run, b, a);
        case QR_JINJA_OP('!', 'i'): return !qr_jinja_contains(run, b, a);
        case QR_JINJA_OP('=', '='): return qr_jinja_equal(run, a, b);
        case QR_JINJA_OP('!', '='): return !qr_jinja_equal(run, a, b);
        case '<': return qr_jinja_compare(run, a, b, "<") == -1;
        case '>': return qr_jinja_compare(run, a, b, ">") == 1;
        default: break;
    }
    const bool less = op == QR_JINJA_OP('<', '=');
    const int order = qr_jinja_compare(run, a, b, less ? "<=" : ">=");
    return order == 0 || order == (less ? -1 : 1);
}

static qr_jinja_value evaluate_comparison(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_value left = qr_jinja_evaluate(run, node->a);
    for (const qr_jinja_node *operand = node->list; operand != NULL && !qr_jinja_failed(run); operand = operand->next) {
        const qr_jinja_value right = qr_jinja_evaluate(run, operand->a);
        if (qr_jinja_failed(run) || !qr_jinja_holds(run, operand->op, left, right)) { return qr_jinja_bool(false); }
        left = right;
    }
    return qr_jinja_bool(true);
}

static qr_jinja_value evaluate_concat(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_builder builder = {.run = run};
    for (const qr_jinja_node *part = node->list; part != NULL && !qr_jinja_failed(run); part = part->next) {
        qr_jinja_append_value(&builder, qr_jinja_evaluate(run, part));
    }
    return qr_jinja_built(&builder);
}

static qr_jinja_value evaluate_conditional(qr_jinja_run *run, const qr_jinja_node *node) {
    const bool chosen = qr_jinja_truth(qr_jinja_evaluate(run, node->b));
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    if (chosen) { return qr_jinja_evaluate(run, node->a); }
    return node->c != NULL ? qr_jinja_evaluate(run, node->c) : qr_jinja_undefined();
}

static qr_jinja_value evaluate_subscript(qr_jinja_run *run, const qr_jinja_node *node) {
    const qr_jinja_value object = qr_jinja_evaluate(run, node->a);
    const qr_jinja_node *key = node->b;
    if (qr_jinja_failed(run)) { return object; }
    if (key->kind != QR_JINJA_SLICE) {
        const qr_jinja_value value = qr_jinja_evaluate(run, key);
        return qr_jinja_failed(run) ? value : qr_jinja_get_item(run, object, value);
    }
    const qr_jinja_value start = key->a != NULL ? qr_jinja_evaluate(run, key->a) : qr_jinja_none();
    const qr_jinja_value stop = key->b != NULL ? qr_jinja_evaluate(run, key->b) : qr_jinja_none();
    const qr_jinja_value step = key->c != NULL ? qr_jinja_evaluate(run, key->c) : qr_jinja_none();
    return qr_jinja_failed(run) ? qr_jinja_undefined() : qr_jinja_get_slice(run, object, start, stop, step);
}

/* --- calls --- */

static void add_named(qr_jinja_run *run, qr_jinja_args *args, qr_jinja_value name, qr_jinja_value value) {
    if (args->named == NULL) { args->named = qr_jinja_dict_create(run); }
    if (!qr_jinja_failed(run) && qr_jinja_dict_find(run, args->named, name) != NULL) {
        (void)qr_jinja_error(run, "the keyword argument '%.*s' is given twice", (int)name.string->size,
                             name.string->data);
    }
    if (!qr_jinja_failed(run)) { (void)qr_jinja_dict_set(run, args->named, name, value); }
}

static void spread_named(qr_jinja_run *run, qr_jinja_args *args, qr_jinja_value value) {
    if (value.type != QR_JINJA_DICT) {
        (void)qr_jinja_error(run, "argument after ** must be a mapping, not %s", qr_jinja_type_name(value));
        return;
    }
    for (size_t i = 0; i < value.dict->n_entries && !qr_jinja_failed(run); i++) {
        const qr_jinja_entry *entry = &value.dict->entries[i];
        if (entry->key.type != QR_JINJA_STRING) { (void)qr_jinja_error(run, "keywords must be strings"); }
        if (!qr_jinja_failed(run)) { add_named(run, args, entry->key, entry->value); }
    }
}

qr_jinja_args qr_jinja_evaluate_args(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_args args = {0};
    if (node == NULL) { return args; }
    qr_jinja_list *positional = qr_jinja_list_create(run, 0);
    for (; node != NULL && !qr_jinja_failed(run); node = node->next) {
        const qr_jinja_value value = qr_jinja_evaluate(run, node->a);
        if (qr_jinja_failed(run)) { break; }
        if (node->kind == QR_JINJA_SPREAD_NAMED) {
            spread_named(run, &args, value);
        } else if (node->kind == QR_JINJA_SPREAD) {
            const qr_jinja_list *items = qr_jinja_iterate(run, value);
            qr_jinja_list_extend(run, positional, items->items, items->n_items);
        } else if (node->value.type == QR_JINJA_STRING) {
            add_named(run, &args, node->value, value);
        } else {
            qr_jinja_list_append(run, positional, value);
        }
    }
    args.items = positional->items;
    args.n_items = positional->n_items;
    return args;
}

static bool same_name(const qr_jinja_string *string, const char *name, size_t size) {
    return string->size == size && memcmp(string->data, name, size) == 0;
}

static bool bind(qr_jinja_run *run, const qr_jinja_builtin *builtin, const char *role, const qr_jinja_args *args,
                 qr_jinja_value *values) {
    size_t n_named_used = 0;
    int n = 0;
    for (const char *name = builtin->params; *name != '\0'; n++) {
        const size_t size = strcspn(name, " ");
        if ((size_t)n < args->n_items) { values[n] = args->items[n]; }
        for (size_t i = 0; args->named != NULL && i < args->named->n_entries; i++) {
            const qr_jinja_entry *entry = &args->named->entries[i];
            if (!same_name(entry->key.string, name, size)) { continue; }
            if (values[n].type != QR_JINJA_MISSING) {
                (void)qr_jinja_error(run, "the %s '%s' got its argument '%.*s' twice", role, builtin->name, (int)size,
                                     name);
            }
            values[n] = entry->value;
            n_named_used++;
        }
        if (n < builtin->n_required && values[n].type == QR_JINJA_MISSING) {
            (void)qr_jinja_error(run, "the %s '%s' needs the argument '%.*s'", role, builtin->name, (int)size, name);
        }
        name += size + (name[size] == ' ');
    }
    if (args->n_items > (size_t)n) {
        (void)qr_jinja_error(run, "the %s '%s' takes at most %d argument%s, not %zu", role, builtin->name, n,
                             qr_plural(n), args->n_items);
    } else if (args->named != NULL && n_named_used < args->named->n_entries) {
        (void)qr_jinja_error(run, "the %s '%s' got an argument that it does not know (it takes: %s)", role,
                             builtin->name, n > 0 ? builtin->params : "none");
    }
    return !qr_jinja_failed(run);
}

const qr_jinja_builtin *qr_jinja_find_builtin(const qr_jinja_table *table, const char *name, size_t size) {
    for (size_t i = 0; i < table->n; i++) {
        if (same_name(&(qr_jinja_string){.data = name, .size = size}, table->rows[i].name,
                      strlen(table->rows[i].name))) {
            return &table->rows[i];
        }
    }
    return NULL;
}

/* Charges what a builtin will walk over: see qr_jinja_cost. */
static bool charge_given(qr_jinja_run *run, qr_jinja_value value) {
    switch (value.type) {
        case QR_JINJA_STRING: return qr_jinja_walk(run, value.string->size);
        case QR_JINJA_LIST:
        case QR_JINJA_TUPLE:
        case QR_JINJA_RANGE:
        case QR_JINJA_VIEW:
        case QR_JINJA_ITERATOR: return qr_jinja_step(run, value.list->n_items);
        case QR_JINJA_DICT:
        case QR_JINJA_NAMESPACE: return qr_jinja_step(run, value.dict->n_entries);
        default: return !qr_jinja_failed(run);
    }
}

static bool charge_call(qr_jinja_run *run, const qr_jinja_builtin *builtin, qr_jinja_value self,
                        const qr_jinja_args *args) {
    if (!qr_jinja_step(run, 1) || builtin->cost == QR_JINJA_FLAT) { return !qr_jinja_failed(run); }
    bool paid = charge_given(run, self);
    for (size_t i = 0; i < args->n_items && paid; i++) { paid = charge_given(run, args->items[i]); }
    for (size_t i = 0; args->named != NULL && i < args->named->n_entries && paid; i++) {
        paid = charge_given(run, args->named->entries[i].value);
    }
    return paid;
}

qr_jinja_value qr_jinja_call_builtin(qr_jinja_run *run, const qr_jinja_builtin *builtin, const char *role,
                                     qr_jinja_value self, const qr_jinja_args *args) {
    qr_jinja_value values[QR_JINJA_MAX_PARAMETERS] = {0};
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    const bool any = builtin->params == NULL;
    if (!charge_call(run, builtin, self, args)) { return qr_jinja_undefined(); }
    if (!any && !bind(run, builtin, role, args, values)) { return qr_jinja_undefined(); }
    return builtin->call(run, &(qr_jinja_invocation){builtin, self, any ? NULL : values, args});
}

static qr_jinja_value call_joiner(qr_jinja_run *run, qr_jinja_list *joiner) {
    if (joiner->cursor == 0) {
        joiner->cursor = 1;
        return qr_jinja_text(run, "");
    }
    return joiner->items[0];
}

qr_jinja_value qr_jinja_call(qr_jinja_run *run, qr_jinja_value callee, const qr_jinja_args *args) {
    if (qr_jinja_failed(run)) { return qr_jinja_undefined(); }
    switch (callee.type) {
        case QR_JINJA_FUNCTION:
            return qr_jinja_call_builtin(run, callee.function, "function", qr_jinja_undefined(), args);
        case QR_JINJA_METHOD:
            return qr_jinja_call_builtin(run, callee.method->builtin, "method", callee.method->self, args);
        case QR_JINJA_MACRO: return qr_jinja_call_macro(run, callee.macro, args);
        case QR_JINJA_JOINER: return call_joiner(run, callee.list);
        case QR_JINJA_UNDEFINED: return qr_jinja_undefined_error(run, callee);
        case QR_JINJA_LOOP:
            if (args->n_items == 1 && args->named == NULL) {
                return qr_jinja_loop_recurse(run, callee.loop, args->items[0]);
            }
            return qr_jinja_error(run, "loop() takes the items of the next level");
        default: return qr_jinja_error(run, "'%s' object is not callable", qr_jinja_type_name(callee));
    }
}

static qr_jinja_value evaluate_call(qr_jinja_run *run, const qr_jinja_node *node) {
    const qr_jinja_value callee = qr_jinja_evaluate(run, node->a);
    const qr_jinja_args args = qr_jinja_evaluate_args(run, node->list);
    run->line = node->line;
    return qr_jinja_call(run, callee, &args);
}

/* --- filters and tests --- */

/* The filter or test of a node on its subject. */
static qr_jinja_value apply(qr_jinja_run *run, const qr_jinja_node *node, const char *role, qr_jinja_value subject) {
    const qr_jinja_args args = qr_jinja_evaluate_args(run, node->list);
    run->line = node->line;
    if (node->builtin == NULL) {
        return qr_jinja_error(run, "unknown %s '%.*s'", role, (int)node->value.string->size, node->value.string->data);
    }
    return qr_jinja_call_builtin(run, node->builtin, role, subject, &args);
}

qr_jinja_value qr_jinja_apply_filters(qr_jinja_run *run, const qr_jinja_node *node, qr_jinja_value input) {
    qr_jinja_value result = qr_jinja_undefined();
    if (qr_jinja_enter(run)) {
        if (node->a != NULL) { input = qr_jinja_apply_filters(run, node->a, input); }
        result = apply(run, node, "filter", input);
    }
    qr_jinja_leave(run);
    return result;
}

static qr_jinja_value evaluate_node(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_value a;
    switch (node->kind) {
        case QR_JINJA_CONSTANT: return node->value;
        case QR_JINJA_NAME: return qr_jinja_lookup(run, node->value);
        case QR_JINJA_TUPLE_OF: return qr_jinja_from_list(QR_JINJA_TUPLE, evaluate_items(run, node->list));
        case QR_JINJA_LIST_OF: return qr_jinja_from_list(QR_JINJA_LIST, evaluate_items(run, node->list));
        case QR_JINJA_DICT_OF: return evaluate_dict(run, node);
        case QR_JINJA_UNARY: return evaluate_unary(run, node);
        case QR_JINJA_AND:
            a = qr_jinja_evaluate(run, node->a);
            return qr_jinja_failed(run) || !qr_jinja_truth(a) ? a : qr_jinja_evaluate(run, node->b);
        case QR_JINJA_OR:
            a = qr_jinja_evaluate(run, node->a);
            return qr_jinja_failed(run) || qr_jinja_truth(a) ? a : qr_jinja_evaluate(run, node->b);
        case QR_JINJA_COMPARISON: return evaluate_comparison(run, node);
        case QR_JINJA_CONCAT: return evaluate_concat(run, node);
        case QR_JINJA_CONDITIONAL: return evaluate_conditional(run, node);
        case QR_JINJA_SUBSCRIPT: return evaluate_subscript(run, node);
        case QR_JINJA_CALL: return evaluate_call(run, node);
        case QR_JINJA_FILTER: return apply(run, node, "filter", qr_jinja_evaluate(run, node->a));
        case QR_JINJA_TEST: return apply(run, node, "test", qr_jinja_evaluate(run, node->a));
        case QR_JINJA_ATTRIBUTE:
            a = qr_jinja_evaluate(run, node->a);
            run->line = node->line;
            return qr_jinja_failed(run) ? a : qr_jinja_get_attribute(run, a, node->value);
        case QR_JINJA_BINARY: {
            a = qr_jinja_evaluate(run, node->a);
            const qr_jinja_value b = qr_jinja_failed(run) ? a : qr_jinja_evaluate(run, node->b);
            run->line = node->line;
            return qr_jinja_binary(run, node->op, a, b);
        }
        default: break;
    }
    return qr_jinja_error(run, "not an expression");
}

qr_jinja_value qr_jinja_evaluate(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_value value = qr_jinja_undefined();
    run->line = node->line;
    if (qr_jinja_enter(run) && qr_jinja_step(run, 1)) { value = evaluate_node(run, node); }
    qr_jinja_leave(run);
    return qr_jinja_failed(run) ? qr_jinja_undefined() : value;
}
