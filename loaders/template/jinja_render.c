/* Statements: text is written, variables are set, loops and macros run. */
#include "loaders/template/jinja_run.h"

#include <string.h>

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow render(qr_jinja_run *run, const qr_jinja_node *node);

static qr_jinja_scope *create_scope(qr_jinja_run *run, qr_jinja_scope *outer) {
    qr_jinja_scope *scope = qr_jinja_take(run, sizeof *scope);
    if (scope == NULL) { return NULL; }
    scope->outer = outer;
    scope->names = qr_jinja_dict_create(run);
    return scope;
}

static void clear_scope(qr_jinja_run *run, qr_jinja_scope *scope) {
    scope->names->n_entries = 0;
    if (scope->names->n_slots > 0 && qr_jinja_walk(run, scope->names->n_slots)) {
        memset(scope->names->slots, 0, scope->names->n_slots * sizeof *scope->names->slots);
    }
}

/* Renders nodes in the given scope. */
static flow render_in(qr_jinja_run *run, const qr_jinja_node *nodes, qr_jinja_scope *scope) {
    qr_jinja_scope *const outer = run->scope;
    if (scope == NULL) { return FLOW_NEXT; }
    run->scope = scope;
    const flow result = render(run, nodes);
    run->scope = outer;
    return result;
}

/* The same in a scope of their own inside the current one. */
static flow render_inner(qr_jinja_run *run, const qr_jinja_node *nodes) {
    return render_in(run, nodes, create_scope(run, run->scope));
}

/* The same, with the text caught. */
static qr_jinja_value render_caught(qr_jinja_run *run, const qr_jinja_node *nodes, flow *result) {
    qr_jinja_builder caught = {.run = run};
    qr_jinja_builder *const out = run->out;
    run->out = &caught;
    *result = render_inner(run, nodes);
    run->out = out;
    return qr_jinja_built(&caught);
}

/* --- assignment --- */

static void assign(qr_jinja_run *run, const qr_jinja_node *target, qr_jinja_value value);

static void assign_attribute(qr_jinja_run *run, const qr_jinja_node *target, qr_jinja_value value) {
    const qr_jinja_value object = qr_jinja_lookup(run, target->value);
    const qr_jinja_string *name = target->a->value.string;
    if (object.type != QR_JINJA_NAMESPACE) {
        (void)qr_jinja_error(run, "cannot assign attribute '%.*s' on non-namespace object '%.*s'", (int)name->size,
                             name->data, (int)target->value.string->size, target->value.string->data);
    } else if (name->size > 0 && name->data[0] == '_') {
        (void)qr_jinja_error(run, "templates cannot store underscore-prefixed attributes on a namespace: '%.*s'",
                             (int)name->size, name->data);
    } else {
        (void)qr_jinja_dict_set(run, object.dict, target->a->value, value);
    }
}

static void assign_items(qr_jinja_run *run, const qr_jinja_node *target, qr_jinja_value value) {
    if (value.type == QR_JINJA_UNDEFINED) {
        (void)qr_jinja_undefined_error(run, value);
        return;
    }
    size_t n_targets = 0;
    for (const qr_jinja_node *item = target->list; item != NULL; item = item->next) { n_targets++; }
    const qr_jinja_list *items = qr_jinja_iterate(run, value);
    if (qr_jinja_failed(run)) { return; }
    if (items->n_items != n_targets) {
        (void)qr_jinja_error(run, "%s values to unpack (expected %zu, got %zu)",
                             items->n_items < n_targets ? "not enough" : "too many", n_targets, items->n_items);
        return;
    }
    size_t i = 0;
    for (const qr_jinja_node *item = target->list; item != NULL && !qr_jinja_failed(run); item = item->next) {
        assign(run, item, items->items[i++]);
    }
}

static void assign(qr_jinja_run *run, const qr_jinja_node *target, qr_jinja_value value) {
    if (qr_jinja_failed(run)) { return; }
    switch (target->kind) {
        case QR_JINJA_NAME: (void)qr_jinja_dict_set(run, run->scope->names, target->value, value); break;
        case QR_JINJA_NAMESPACE_ATTRIBUTE: assign_attribute(run, target, value); break;
        default: assign_items(run, target, value); break;
    }
}

/* --- loops --- */

static qr_jinja_list *filter_items(qr_jinja_run *run, const qr_jinja_node *node, qr_jinja_list *items) {
    qr_jinja_list *kept = qr_jinja_list_create(run, 0);
    qr_jinja_scope *const outer = run->scope;
    qr_jinja_scope *scope = create_scope(run, outer);
    if (scope == NULL) { return kept; }
    run->scope = scope;
    for (size_t i = 0; i < items->n_items && !qr_jinja_failed(run); i++) {
        clear_scope(run, scope);
        assign(run, node->a, items->items[i]);
        if (!qr_jinja_failed(run) && qr_jinja_truth(qr_jinja_evaluate(run, node->c))) {
            qr_jinja_list_append(run, kept, items->items[i]);
        }
    }
    run->scope = outer;
    return kept;
}

/* The iterations of a loop over given items. They share one scope, which is cleared before each:
 * what a body sets is gone in the next one. */
static void render_iterations(qr_jinja_run *run, const qr_jinja_node *node, qr_jinja_loop *loop) {
    static const char name[] = "loop";
    const qr_jinja_value loop_name = qr_jinja_lend(run, name, sizeof name - 1);
    qr_jinja_scope *scope = create_scope(run, loop->scope);
    if (scope == NULL) { return; }
    run->scope = scope;
    for (size_t i = 0; i < loop->items->n_items && qr_jinja_step(run, 1); i++) {
        clear_scope(run, scope);
        loop->index = i;
        (void)qr_jinja_dict_set(run, scope->names, loop_name, (qr_jinja_value){.type = QR_JINJA_LOOP, .loop = loop});
        assign(run, node->a, loop->items->items[i]);
        if (render(run, node->body) == FLOW_BREAK) { break; }
    }
}

static void render_loop(qr_jinja_run *run, const qr_jinja_node *node, qr_jinja_value iterable, qr_jinja_scope *outer,
                        int depth) {
    qr_jinja_scope *const saved = run->scope;
    run->scope = outer;
    qr_jinja_list *items = qr_jinja_failed(run) ? NULL : qr_jinja_iterate(run, iterable);
    if (!qr_jinja_failed(run) && node->c != NULL) { items = filter_items(run, node, items); }
    qr_jinja_loop *loop = qr_jinja_take(run, sizeof *loop);
    if (loop != NULL) {
        *loop = (qr_jinja_loop){.items = items, .depth = depth, .recursive = node->flag ? node : NULL, .scope = outer};
        if (items->n_items == 0) {
            (void)render_inner(run, node->else_body);
        } else {
            render_iterations(run, node, loop);
        }
    }
    run->scope = saved;
}

qr_jinja_value qr_jinja_loop_recurse(qr_jinja_run *run, qr_jinja_loop *loop, qr_jinja_value items) {
    if (loop->recursive == NULL) { return qr_jinja_error(run, "only a loop marked 'recursive' can be called"); }
    qr_jinja_builder caught = {.run = run};
    qr_jinja_builder *const out = run->out;
    run->out = &caught;
    if (qr_jinja_enter(run)) { render_loop(run, loop->recursive, items, loop->scope, loop->depth + 1); }
    qr_jinja_leave(run);
    run->out = out;
    return qr_jinja_built(&caught);
}

/* --- macros --- */

static void bind_parameters(qr_jinja_run *run, const qr_jinja_macro *macro, const qr_jinja_args *args,
                            size_t *n_positional) {
    *n_positional = 0;
    qr_jinja_dict *names = run->scope->names;
    for (const qr_jinja_node *parameter = macro->node->list; parameter != NULL && !qr_jinja_failed(run);
         parameter = parameter->next) {
        const qr_jinja_value *named =
            args->named != NULL ? qr_jinja_dict_find(run, args->named, parameter->value) : NULL;
        qr_jinja_value value;
        if (*n_positional < args->n_items) {
            if (named != NULL) { (void)qr_jinja_error(run, "macro '%s' got an argument twice", macro->name); }
            value = args->items[(*n_positional)++];
        } else if (named != NULL) {
            value = *named;
        } else if (parameter->a != NULL) {
            value = qr_jinja_evaluate(run, parameter->a);
        } else {
            value = qr_jinja_absent(run, QR_JINJA_NO_ARGUMENT, NULL, parameter->value);
        }
        if (!qr_jinja_failed(run)) { (void)qr_jinja_dict_set(run, names, parameter->value, value); }
    }
}

static bool is_parameter(qr_jinja_run *run, const qr_jinja_macro *macro, const qr_jinja_string *name) {
    for (const qr_jinja_node *parameter = macro->node->list; parameter != NULL && qr_jinja_step(run, 1);
         parameter = parameter->next) {
        const qr_jinja_string *own = parameter->value.string;
        if (own->size == name->size && memcmp(own->data, name->data, name->size) == 0) { return true; }
    }
    return false;
}

/* varargs, kwargs and caller exist where the body uses them; arguments that nothing takes are an error. */
static void bind_rest(qr_jinja_run *run, const qr_jinja_macro *macro, const qr_jinja_args *args, size_t n_positional) {
    const unsigned uses = macro->node->uses;
    qr_jinja_dict *names = run->scope->names;
    if (args->n_items > n_positional && (uses & QR_JINJA_USES_VARARGS) == 0) {
        (void)qr_jinja_error(run, "macro '%s' takes not more than %zu argument(s)", macro->name, n_positional);
        return;
    }
    qr_jinja_list *varargs = qr_jinja_list_create(run, 0);
    if (args->n_items > n_positional) {
        qr_jinja_list_extend(run, varargs, args->items + n_positional, args->n_items - n_positional);
    }
    qr_jinja_dict *kwargs = qr_jinja_dict_create(run);
    qr_jinja_value caller = qr_jinja_absent(run, QR_JINJA_NO_NAME, NULL, qr_jinja_text(run, "caller"));
    for (size_t i = 0; args->named != NULL && i < args->named->n_entries && !qr_jinja_failed(run); i++) {
        const qr_jinja_entry *entry = &args->named->entries[i];
        const qr_jinja_string *name = entry->key.string;
        if (is_parameter(run, macro, name)) { continue; }
        if ((uses & QR_JINJA_USES_CALLER) != 0 && name->size == 6 && memcmp(name->data, "caller", 6) == 0) {
            caller = entry->value;
        } else if ((uses & QR_JINJA_USES_KWARGS) != 0) {
            (void)qr_jinja_dict_set(run, kwargs, entry->key, entry->value);
        } else {
            (void)qr_jinja_error(run, "macro '%s' takes no keyword argument '%.*s'", macro->name, (int)name->size,
                                 name->data);
        }
    }
    if (qr_jinja_failed(run)) { return; }
    if ((uses & QR_JINJA_USES_VARARGS) != 0) {
        (void)qr_jinja_dict_set(run, names, qr_jinja_text(run, "varargs"), qr_jinja_from_list(QR_JINJA_TUPLE, varargs));
    }
    if ((uses & QR_JINJA_USES_KWARGS) != 0) {
        (void)qr_jinja_dict_set(run, names, qr_jinja_text(run, "kwargs"), qr_jinja_from_dict(kwargs));
    }
    if ((uses & QR_JINJA_USES_CALLER) != 0 && qr_jinja_dict_find_text(run, names, "caller") == NULL) {
        (void)qr_jinja_dict_set(run, names, qr_jinja_text(run, "caller"), caller);
    }
}

qr_jinja_value qr_jinja_call_macro(qr_jinja_run *run, const qr_jinja_macro *macro, const qr_jinja_args *args) {
    qr_jinja_scope *const outer = run->scope;
    qr_jinja_builder *const out = run->out;
    qr_jinja_builder caught = {.run = run};
    qr_jinja_scope *scope = create_scope(run, macro->scope);
    if (scope == NULL) { return qr_jinja_undefined(); }
    run->scope = scope;
    run->out = &caught;
    if (qr_jinja_enter(run)) {
        size_t n_positional;
        bind_parameters(run, macro, args, &n_positional);
        if (!qr_jinja_failed(run)) { bind_rest(run, macro, args, n_positional); }
        (void)render(run, macro->node->body);
    }
    qr_jinja_leave(run);
    run->scope = outer;
    run->out = out;
    return qr_jinja_built(&caught);
}

static qr_jinja_value create_macro(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_macro *macro = qr_jinja_take(run, sizeof *macro);
    if (macro == NULL) { return qr_jinja_undefined(); }
    *macro = (qr_jinja_macro){.node = node, .scope = run->scope, .name = "caller"};
    if (node->kind == QR_JINJA_DEFINE_MACRO) { macro->name = qr_jinja_cstring(run, node->value); }
    return (qr_jinja_value){.type = QR_JINJA_MACRO, .macro = macro};
}

static void render_call_block(qr_jinja_run *run, const qr_jinja_node *node) {
    const qr_jinja_value caller = create_macro(run, node);
    const qr_jinja_value callee = qr_jinja_evaluate(run, node->a->a);
    qr_jinja_args args = qr_jinja_evaluate_args(run, node->a->list);
    if (qr_jinja_failed(run)) { return; }
    if (args.named == NULL) { args.named = qr_jinja_dict_create(run); }
    if (qr_jinja_dict_set(run, args.named, qr_jinja_text(run, "caller"), caller)) {
        qr_jinja_append_value(run->out, qr_jinja_call(run, callee, &args));
    }
}

/* --- the rest --- */

static flow render_with(qr_jinja_run *run, const qr_jinja_node *node) {
    qr_jinja_scope *const outer = run->scope;
    qr_jinja_scope *scope = create_scope(run, outer);
    if (scope == NULL) { return FLOW_NEXT; }
    for (const qr_jinja_node *set = node->list; set != NULL && !qr_jinja_failed(run); set = set->next) {
        const qr_jinja_value value = qr_jinja_evaluate(run, set->b);
        run->scope = scope;
        assign(run, set->a, value);
        run->scope = outer;
    }
    return render_in(run, node->body, scope);
}

static flow render_if(qr_jinja_run *run, const qr_jinja_node *node) {
    for (; node != NULL && node->kind == QR_JINJA_IF && !qr_jinja_failed(run); node = node->else_body) {
        const bool chosen = qr_jinja_truth(qr_jinja_evaluate(run, node->a));
        if (qr_jinja_failed(run)) { return FLOW_NEXT; }
        if (chosen) { return render(run, node->body); }
        /* An {% else %} body that begins with an if of its own is a body, not an elif. */
        if (!node->flag) { return render(run, node->else_body); }
    }
    return FLOW_NEXT;
}

static flow render_statement(qr_jinja_run *run, const qr_jinja_node *node) {
    flow result = FLOW_NEXT;
    qr_jinja_value value;
    switch (node->kind) {
        case QR_JINJA_DATA: qr_jinja_append_value(run->out, node->value); break;
        case QR_JINJA_PRINT:
            value = qr_jinja_evaluate(run, node->a);
            if (!qr_jinja_failed(run)) { qr_jinja_append_value(run->out, value); }
            break;
        case QR_JINJA_IF: return render_if(run, node);
        case QR_JINJA_FOR: render_loop(run, node, qr_jinja_evaluate(run, node->b), run->scope, 0); break;
        case QR_JINJA_SET:
            value = qr_jinja_evaluate(run, node->b);
            assign(run, node->a, value);
            break;
        case QR_JINJA_SET_BLOCK:
            value = render_caught(run, node->body, &result);
            if (node->b != NULL && !qr_jinja_failed(run)) { value = qr_jinja_apply_filters(run, node->b, value); }
            assign(run, node->a, value);
            break;
        case QR_JINJA_FILTER_BLOCK:
            value = render_caught(run, node->body, &result);
            if (!qr_jinja_failed(run)) { value = qr_jinja_apply_filters(run, node->a, value); }
            if (!qr_jinja_failed(run)) { qr_jinja_append_value(run->out, value); }
            break;
        case QR_JINJA_DEFINE_MACRO:
            (void)qr_jinja_dict_set(run, run->scope->names, node->value, create_macro(run, node));
            break;
        case QR_JINJA_CALL_BLOCK: render_call_block(run, node); break;
        case QR_JINJA_WITH: return render_with(run, node);
        case QR_JINJA_SCOPE: return render_inner(run, node->body);
        case QR_JINJA_BREAK: return FLOW_BREAK;
        case QR_JINJA_CONTINUE: return FLOW_CONTINUE;
        default: (void)qr_jinja_error(run, "not a statement"); break;
    }
    return result;
}

static flow render(qr_jinja_run *run, const qr_jinja_node *node) {
    flow result = FLOW_NEXT;
    if (qr_jinja_enter(run)) {
        for (; node != NULL && result == FLOW_NEXT && qr_jinja_step(run, 1); node = node->next) {
            run->line = node->line;
            result = render_statement(run, node);
        }
    }
    qr_jinja_leave(run);
    return result;
}

void qr_jinja_render_nodes(qr_jinja_run *run, const qr_jinja_node *nodes) { (void)render(run, nodes); }
