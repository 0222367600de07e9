/* Statements: tokens to the tree of a template. Expressions are in jinja_expression.c. */
#include "loaders/template/jinja_parser.h"

#include <string.h>

/* --- tokens --- */

const qr_jinja_token *qr_jinja_peek(const qr_jinja_parser *p) { return &p->tokens[p->at]; }

const qr_jinja_token *qr_jinja_next(qr_jinja_parser *p) {
    const qr_jinja_token *token = &p->tokens[p->at];
    p->run->line = token->line;
    if (token->kind != QR_JINJA_TOKEN_END) { p->at++; }
    return token;
}

static bool is_word(const qr_jinja_token *token, const char *word, size_t size) {
    return token->kind == QR_JINJA_TOKEN_NAME && token->size == size && memcmp(token->text, word, size) == 0;
}

bool qr_jinja_at_name(const qr_jinja_parser *p, const char *name) {
    return !qr_jinja_failed(p->run) && is_word(qr_jinja_peek(p), name, strlen(name));
}

bool qr_jinja_at_operator(const qr_jinja_parser *p, int op) {
    return !qr_jinja_failed(p->run) && qr_jinja_peek(p)->kind == QR_JINJA_TOKEN_OPERATOR && qr_jinja_peek(p)->op == op;
}

bool qr_jinja_skip_name(qr_jinja_parser *p, const char *name) {
    const bool found = qr_jinja_at_name(p, name);
    if (found) { (void)qr_jinja_next(p); }
    return found;
}

bool qr_jinja_skip_operator(qr_jinja_parser *p, int op) {
    const bool found = qr_jinja_at_operator(p, op);
    if (found) { (void)qr_jinja_next(p); }
    return found;
}

static void describe(const qr_jinja_token *token, char out[64]) {
    static const char *const names[] = {
        [QR_JINJA_TOKEN_END] = "the end of the template",
        [QR_JINJA_TOKEN_DATA] = "text",
        [QR_JINJA_TOKEN_PRINT_BEGIN] = "{{",
        [QR_JINJA_TOKEN_PRINT_END] = "}}",
        [QR_JINJA_TOKEN_TAG_BEGIN] = "{%",
        [QR_JINJA_TOKEN_TAG_END] = "%}",
    };
    if (token->kind == QR_JINJA_TOKEN_OPERATOR) {
        out[0] = '\'';
        out[1] = (char)(token->op & 0xFF);
        out[2] = token->op > 0xFF ? (char)(token->op >> 8) : '\'';
        out[3] = token->op > 0xFF ? '\'' : '\0';
        out[4] = '\0';
        return;
    }
    const bool has_text = token->kind >= QR_JINJA_TOKEN_NAME;
    const char *text = has_text ? token->text : names[token->kind];
    size_t size = has_text ? token->size : strlen(text);
    if (size > 40) { size = 40; }
    size_t n = 0;
    if (has_text) { out[n++] = '\''; }
    if (size > 0) { memcpy(out + n, text, size); }
    n += size;
    if (has_text) { out[n++] = '\''; }
    out[n] = '\0';
}

qr_jinja_node *qr_jinja_unexpected(qr_jinja_parser *p, const char *expected) {
    char found[64];
    describe(qr_jinja_peek(p), found);
    p->run->line = qr_jinja_peek(p)->line;
    (void)qr_jinja_error(p->run, "found %s where %s should be", found, expected);
    return NULL;
}

bool qr_jinja_expect_operator(qr_jinja_parser *p, int op, const char *expected) {
    if (qr_jinja_skip_operator(p, op)) { return true; }
    (void)qr_jinja_unexpected(p, expected);
    return false;
}

qr_jinja_node *qr_jinja_new_node(qr_jinja_parser *p, qr_jinja_kind kind) {
    qr_jinja_node *node = qr_jinja_take(p->run, sizeof *node);
    if (node == NULL) { node = &p->failed; }
    node->kind = kind;
    node->line = p->run->line;
    return node;
}

qr_jinja_value qr_jinja_token_text(qr_jinja_parser *p, const qr_jinja_token *token) {
    const qr_jinja_value text = qr_jinja_lend(p->run, token->text, token->size);
    /* Hashed now, because a parsed template is never written to. */
    if (!qr_jinja_failed(p->run)) { (void)qr_jinja_hash(p->run, text); }
    return text;
}

void qr_jinja_link(qr_jinja_node ***tail, qr_jinja_node *node) {
    if (node == NULL) { return; }
    **tail = node;
    *tail = &node->next;
}

/* --- statements --- */

static bool expect_tag_end(qr_jinja_parser *p) {
    if (qr_jinja_failed(p->run) || qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_TAG_END) {
        (void)qr_jinja_unexpected(p, "the end of the tag, %},");
        return false;
    }
    (void)qr_jinja_next(p);
    return true;
}

static bool is_one_of(const qr_jinja_token *token, const char *names) {
    const char *at = names;
    while (*at != '\0') {
        const size_t length = strcspn(at, " ");
        if (is_word(token, at, length)) { return true; }
        at += length + (at[length] == ' ');
    }
    return false;
}

static qr_jinja_node *parse_statement(qr_jinja_parser *p);

/* Statements up to a tag that begins with one of the words of `stops` ("" = the end of the template), which is left
 * to be read; `opener` and its line name the block whose end is missing. */
static qr_jinja_node *parse_body(qr_jinja_parser *p, const char *stops, const char *opener, int opener_line) {
    qr_jinja_node *first = NULL, **tail = &first;
    while (!qr_jinja_failed(p->run)) {
        const qr_jinja_token *token = qr_jinja_next(p);
        qr_jinja_node *node = NULL;
        if (token->kind == QR_JINJA_TOKEN_DATA) {
            node = qr_jinja_new_node(p, QR_JINJA_DATA);
            node->value = qr_jinja_lend(p->run, token->text, token->size);
        } else if (token->kind == QR_JINJA_TOKEN_PRINT_BEGIN) {
            node = qr_jinja_new_node(p, QR_JINJA_PRINT);
            node->a = qr_jinja_parse_tuple(p, QR_JINJA_TUPLE_FREE);
            if (!qr_jinja_failed(p->run) && qr_jinja_next(p)->kind != QR_JINJA_TOKEN_PRINT_END) {
                p->at--;
                (void)qr_jinja_unexpected(p, "the end of the print, }},");
            }
        } else if (token->kind == QR_JINJA_TOKEN_TAG_BEGIN) {
            if (is_one_of(qr_jinja_peek(p), stops)) { return first; }
            node = parse_statement(p);
        } else if (stops[0] == '\0') {
            return first;
        } else {
            p->run->line = opener_line;
            (void)qr_jinja_error(p->run, "{%% %s %%} has no end: {%% %s %%} is missing", opener,
                                 strrchr(stops, ' ') != NULL ? strrchr(stops, ' ') + 1 : stops);
        }
        qr_jinja_link(&tail, node);
    }
    return NULL;
}

/* The body of a block that ends with {% end %}, including that tag. */
static qr_jinja_node *parse_block(qr_jinja_parser *p, const char *end, const char *opener) {
    const int line = p->run->line;
    (void)expect_tag_end(p);
    qr_jinja_node *body = parse_body(p, end, opener, line);
    (void)qr_jinja_next(p);
    return expect_tag_end(p) ? body : NULL;
}

/* After "if" or "elif". */
static qr_jinja_node *parse_if(qr_jinja_parser *p) {
    qr_jinja_node *first = NULL, **slot = &first;
    p->n_conditions++;
    for (bool more = true; more && !qr_jinja_failed(p->run);) {
        qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_IF);
        const int line = node->line;
        *slot = node;
        slot = &node->else_body;
        node->a = qr_jinja_parse_tuple(p, QR_JINJA_TUPLE_NO_CONDITIONAL);
        if (!expect_tag_end(p)) { break; }
        node->body = parse_body(p, "elif else endif", "if", line);
        if (qr_jinja_failed(p->run)) { break; }
        node->flag = more = qr_jinja_skip_name(p, "elif");
        if (!more && qr_jinja_skip_name(p, "else")) {
            *slot = parse_block(p, "endif", "if");
        } else if (qr_jinja_skip_name(p, "endif")) {
            (void)expect_tag_end(p);
        }
    }
    p->n_conditions--;
    return first;
}

static qr_jinja_node *parse_for(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_FOR);
    node->a = qr_jinja_parse_target(p, false);
    if (!qr_jinja_skip_name(p, "in")) { return qr_jinja_unexpected(p, "'in'"); }
    node->b = qr_jinja_parse_tuple(p, QR_JINJA_TUPLE_NO_CONDITIONAL);
    if (qr_jinja_skip_name(p, "if")) { node->c = qr_jinja_parse_expression(p); }
    node->flag = qr_jinja_skip_name(p, "recursive");
    if (!expect_tag_end(p)) { return NULL; }
    p->n_loops++;
    node->body = parse_body(p, "else endfor", "for", node->line);
    p->n_loops--;
    if (qr_jinja_failed(p->run)) { return NULL; }
    if (qr_jinja_skip_name(p, "else")) {
        node->else_body = parse_block(p, "endfor", "for");
    } else {
        (void)qr_jinja_next(p);
        (void)expect_tag_end(p);
    }
    return node;
}

static qr_jinja_node *parse_set(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_SET);
    node->a = qr_jinja_parse_target(p, true);
    if (qr_jinja_failed(p->run)) { return NULL; }
    if (qr_jinja_skip_operator(p, '=')) {
        node->b = qr_jinja_parse_tuple(p, QR_JINJA_TUPLE_FREE);
        return !expect_tag_end(p) ? NULL : node;
    }
    node->kind = QR_JINJA_SET_BLOCK;
    if (qr_jinja_at_operator(p, '|')) { node->b = qr_jinja_parse_filters(p, NULL); }
    node->body = parse_block(p, "endset", "set");
    return node;
}

/* (a, b=1, …) of a macro or call block. */
static qr_jinja_node *parse_parameters(qr_jinja_parser *p) {
    qr_jinja_node *first = NULL, **tail = &first;
    bool has_default = false;
    if (!qr_jinja_expect_operator(p, '(', "'('")) { return NULL; }
    while (!qr_jinja_failed(p->run) && !qr_jinja_skip_operator(p, ')')) {
        if (first != NULL && !qr_jinja_expect_operator(p, ',', "',' or ')'")) { break; }
        if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) { return qr_jinja_unexpected(p, "a parameter's name"); }
        qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_ARGUMENT);
        node->value = qr_jinja_token_text(p, qr_jinja_next(p));
        if (qr_jinja_skip_operator(p, '=')) {
            node->a = qr_jinja_parse_expression(p);
            has_default = true;
        } else if (has_default) {
            (void)qr_jinja_error(p->run, "a parameter without a default follows one with a default");
        }
        qr_jinja_link(&tail, node);
    }
    return first;
}

/* The body of a macro or call block; which of the special names it uses is known when it is parsed. Loops outside
 * cannot be left from within. */
static void parse_macro_body(qr_jinja_parser *p, qr_jinja_node *node, const char *end, const char *opener) {
    const unsigned outer_uses = p->uses;
    const int outer_loops = p->n_loops;
    p->uses = 0;
    p->n_loops = 0;
    node->body = parse_block(p, end, opener);
    node->uses = p->uses;
    p->uses = outer_uses;
    p->n_loops = outer_loops;
}

static qr_jinja_node *parse_macro(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_DEFINE_MACRO);
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) { return qr_jinja_unexpected(p, "the macro's name"); }
    node->value = qr_jinja_token_text(p, qr_jinja_next(p));
    node->list = parse_parameters(p);
    parse_macro_body(p, node, "endmacro", "macro");
    return node;
}

static qr_jinja_node *parse_call_block(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_CALL_BLOCK);
    if (qr_jinja_at_operator(p, '(')) { node->list = parse_parameters(p); }
    node->a = qr_jinja_parse_expression(p);
    if (qr_jinja_failed(p->run)) { return NULL; }
    if (node->a->kind != QR_JINJA_CALL) {
        (void)qr_jinja_error(p->run, "{%% call %%} needs the call of a macro");
        return NULL;
    }
    parse_macro_body(p, node, "endcall", "call");
    return node;
}

static qr_jinja_node *parse_filter_block(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_FILTER_BLOCK);
    node->a = qr_jinja_parse_filters(p, NULL);
    node->body = parse_block(p, "endfilter", "filter");
    return node;
}

static qr_jinja_node *parse_with(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_WITH), **tail = &node->list;
    while (!qr_jinja_failed(p->run) && qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_TAG_END) {
        if (node->list != NULL && !qr_jinja_expect_operator(p, ',', "',' or the end of the tag")) { break; }
        qr_jinja_node *set = qr_jinja_new_node(p, QR_JINJA_SET);
        if (set == NULL) { break; }
        set->a = qr_jinja_parse_target_one(p);
        if (qr_jinja_expect_operator(p, '=', "'='")) { set->b = qr_jinja_parse_expression(p); }
        qr_jinja_link(&tail, set);
    }
    node->body = parse_block(p, "endwith", "with");
    return node;
}

static qr_jinja_node *parse_generation(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_SCOPE);
    node->body = parse_block(p, "endgeneration", "generation");
    return node;
}

static qr_jinja_node *parse_jump(qr_jinja_parser *p, qr_jinja_kind kind, const char *name) {
    if (p->n_loops == 0) {
        (void)qr_jinja_error(p->run, "{%% %s %%} outside of a loop", name);
        return NULL;
    }
    return expect_tag_end(p) ? qr_jinja_new_node(p, kind) : NULL;
}

static qr_jinja_node *parse_break(qr_jinja_parser *p) { return parse_jump(p, QR_JINJA_BREAK, "break"); }
static qr_jinja_node *parse_continue(qr_jinja_parser *p) { return parse_jump(p, QR_JINJA_CONTINUE, "continue"); }

static qr_jinja_node *fail_tag(qr_jinja_parser *p, const qr_jinja_token *token) {
    static const char known[] = "include import from extends block autoescape trans do debug print";
    char name[64];
    describe(token, name);
    if (strncmp(name, "'end", 4) == 0 || is_one_of(token, "else elif")) {
        (void)qr_jinja_error(p->run, "the tag %s closes nothing that is open", name);
    } else if (is_one_of(token, known)) {
        (void)qr_jinja_error(p->run, "the tag %s is not supported in chat templates", name);
    } else {
        (void)qr_jinja_error(p->run, "unknown tag %s", name);
    }
    return NULL;
}

static qr_jinja_node *parse_statement(qr_jinja_parser *p) {
    static const struct {
        const char *name;
        qr_jinja_node *(*parse)(qr_jinja_parser *p);
    } tags[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
        {"break", parse_break},     {"continue", parse_continue},
    };
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) { return qr_jinja_unexpected(p, "the name of a tag"); }
    const qr_jinja_token *token = qr_jinja_next(p);
    qr_jinja_node *node = NULL;
    if (qr_jinja_enter(p->run)) {
        size_t i = 0;
        while (i < sizeof tags / sizeof tags[0] && !is_one_of(token, tags[i].name)) { i++; }
        node = i < sizeof tags / sizeof tags[0] ? tags[i].parse(p) : fail_tag(p, token);
    }
    qr_jinja_leave(p->run);
    return node;
}

qr_jinja_node *qr_jinja_parse_tokens(qr_jinja_run *run, const qr_jinja_token *tokens) {
    qr_jinja_parser parser = {.run = run, .tokens = tokens};
    qr_jinja_node *nodes = parse_body(&parser, "", "", 1);
    /* The nodes are in the run's memory; clang's analyser loses that. */
    return qr_jinja_failed(run) ? NULL : nodes; /* NOLINT(clang-analyzer-core.StackAddressEscape) */
}
