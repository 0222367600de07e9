#include "loaders/template/jinja.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "loaders/template/jinja_json.h"

struct qr_jinja_template {
    qr_jinja_arena arena; /* holds the source and the tree */
    qr_jinja_node *nodes;
    char *what;
};

/* Line ends become "\n", and one at the very end is dropped, as Jinja reads a source. Returns the new size. */
static size_t normalise_lines(const char *text, size_t size, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\r') {
            out[n++] = '\n';
            i += i + 1 < size && text[i + 1] == '\n';
        } else {
            out[n++] = text[i];
        }
    }
    return n > 0 && out[n - 1] == '\n' ? n - 1 : n;
}

qrun_status qr_jinja_parse(const char *text, size_t n_bytes, const char *what, qr_jinja_template **parsed,
                           qr_error *err) {
    *parsed = NULL;
    const size_t n_valid = qr_utf8_valid_prefix(text, n_bytes);
    if (n_valid < n_bytes) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: byte %zu is not UTF-8", what, n_valid); }
    qr_jinja_template *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, what, sizeof *made); }
    made->what = qr_strdup(what);
    char *source = made->what != NULL ? qr_jinja_arena_take(&made->arena, n_bytes + 1) : NULL;
    qr_jinja_run run = {.arena = &made->arena, .err = err, .what = what, .line = 1};
    if (source == NULL) {
        run.status = qr_fail_memory(err, what, n_bytes);
    } else {
        const size_t size = normalise_lines(text, n_bytes, source);
        qr_jinja_token *tokens;
        if (qr_jinja_tokenise(&run, source, size, &tokens)) { made->nodes = qr_jinja_parse_tokens(&run, tokens); }
    }
    if (run.status != QRUN_OK) {
        qr_jinja_free(made);
        return run.status;
    }
    *parsed = made;
    return QRUN_OK;
}

void qr_jinja_free(qr_jinja_template *parsed) {
    if (parsed == NULL) { return; }
    qr_jinja_arena_free(&parsed->arena);
    qr_free(parsed->what);
    qr_free(parsed);
}

static qr_jinja_value give(qr_jinja_run *run, const qr_jinja_variable *variable) {
    switch (variable->kind) {
        case QR_JINJA_GIVE_BOOL: return qr_jinja_bool(variable->boolean);
        case QR_JINJA_GIVE_TEXT: return qr_jinja_text(run, variable->text);
        case QR_JINJA_GIVE_JSON: return qr_jinja_from_json(run, variable->json);
        case QR_JINJA_GIVE_NONE: break;
    }
    return qr_jinja_none();
}

qrun_status qr_jinja_render(const qr_jinja_template *parsed, const qr_jinja_variable *variables, size_t n_variables,
                            int64_t now, qr_buffer *out, qr_error *err) {
    int64_t n_steps;
    return qr_jinja_render_counted(parsed, variables, n_variables, now, out, &n_steps, err);
}

qrun_status qr_jinja_render_counted(const qr_jinja_template *parsed, const qr_jinja_variable *variables,
                                    size_t n_variables, int64_t now, qr_buffer *out, int64_t *n_steps, qr_error *err) {
    qr_jinja_arena arena = {0};
    qr_jinja_run run = {.arena = &arena, .err = err, .what = parsed->what, .line = 1, .now = now};
    qr_jinja_builder text = {.run = &run};
    /* Two scopes, so that a template's own assignments do not hide that a variable was given. */
    qr_jinja_scope given = {.names = qr_jinja_dict_create(&run)};
    qr_jinja_scope own = {.outer = &given, .names = qr_jinja_dict_create(&run)};
    for (size_t i = 0; i < n_variables && !qr_jinja_failed(&run); i++) {
        const qr_jinja_value name = qr_jinja_text(&run, variables[i].name);
        const qr_jinja_value value = give(&run, &variables[i]);
        if (!qr_jinja_failed(&run)) { (void)qr_jinja_dict_set(&run, given.names, name, value); }
    }
    run.out = &text;
    run.scope = &own;
    if (!qr_jinja_failed(&run)) { qr_jinja_render_nodes(&run, parsed->nodes); }
    if (!qr_jinja_failed(&run) && text.size > 0) {
        const size_t before = out->size;
        qr_buffer_append(out, text.data, text.size);
        if (!qr_buffer_ok(out)) {
            out->size = before;
            run.status = qr_fail_memory(err, parsed->what, text.size);
        }
    }
    qr_jinja_arena_free(&arena);
    *n_steps = (int64_t)(run.n_walked / QR_JINJA_STEP_BYTES);
    return run.status;
}
