/* Expressions: precedence and forms as in Jinja's own parser. */
#include <stdio.h>
#include <string.h>

#include "base/sizes.h"
#include "loaders/template/jinja_parser.h"

static qr_jinja_node *parse_conditional(qr_jinja_parser *p, bool allows_conditional);
static qr_jinja_node *parse_unary(qr_jinja_parser *p, bool with_filters);

static qr_jinja_node *make_binary(qr_jinja_parser *p, qr_jinja_kind kind, int op, qr_jinja_node *a, qr_jinja_node *b) {
    qr_jinja_node *node = qr_jinja_new_node(p, kind);
    node->op = op;
    node->a = a;
    node->b = b;
    return node;
}

/* Whether a list that ends with `close` continues. A comma precedes each item but the first, and may end the list. */
static bool more_items(qr_jinja_parser *p, bool has_some, int close, const char *expected) {
    if (qr_jinja_failed(p->run) || qr_jinja_skip_operator(p, close)) { return false; }
    return !has_some || (qr_jinja_expect_operator(p, ',', expected) && !qr_jinja_skip_operator(p, close));
}

/* --- calls --- */

static qr_jinja_node *parse_argument(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_ARGUMENT);
    if (qr_jinja_skip_operator(p, '*')) {
        node->kind = QR_JINJA_SPREAD;
    } else if (qr_jinja_skip_operator(p, QR_JINJA_OP('*', '*'))) {
        node->kind = QR_JINJA_SPREAD_NAMED;
    } else if (qr_jinja_peek(p)->kind == QR_JINJA_TOKEN_NAME && p->tokens[p->at + 1].kind == QR_JINJA_TOKEN_OPERATOR &&
               p->tokens[p->at + 1].op == '=') {
        node->value = qr_jinja_token_text(p, qr_jinja_next(p));
        (void)qr_jinja_next(p);
    }
    node->a = qr_jinja_parse_expression(p);
    return node;
}

/* After "(": arguments and the ")". */
static qr_jinja_node *parse_arguments(qr_jinja_parser *p) {
    qr_jinja_node *first = NULL, **tail = &first;
    int order = 0; /* positional, then *, keywords, then ** */
    while (more_items(p, first != NULL, ')', "',' or ')'")) {
        qr_jinja_node *node = parse_argument(p);
        if (qr_jinja_failed(p->run)) { break; }
        const int rank = node->kind == QR_JINJA_SPREAD_NAMED   ? 3
                         : node->kind == QR_JINJA_SPREAD       ? 1
                         : node->value.type == QR_JINJA_STRING ? 2
                                                               : 0;
        if (rank < order && !(rank == 1 && order == 2)) {
            (void)qr_jinja_error(p->run, "a positional argument follows a keyword or unpacked one");
        }
        if (rank > order) { order = rank; }
        qr_jinja_link(&tail, node);
    }
    return first;
}

static qr_jinja_node *parse_call(qr_jinja_parser *p, qr_jinja_node *callee) {
    (void)qr_jinja_next(p);
    qr_jinja_node *node = make_binary(p, QR_JINJA_CALL, 0, callee, NULL);
    node->list = parse_arguments(p);
    return node;
}

/* The name after "|" or "is"; a dotted name is one name. */
static qr_jinja_value parse_dotted_name(qr_jinja_parser *p, const char *expected) {
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) {
        (void)qr_jinja_unexpected(p, expected);
        return qr_jinja_undefined();
    }
    qr_jinja_value name = qr_jinja_token_text(p, qr_jinja_next(p));
    while (qr_jinja_at_operator(p, '.') && p->tokens[p->at + 1].kind == QR_JINJA_TOKEN_NAME) {
        (void)qr_jinja_next(p);
        qr_jinja_builder joined = {.run = p->run};
        qr_jinja_append_value(&joined, name);
        qr_jinja_append_text(&joined, ".");
        qr_jinja_append_value(&joined, qr_jinja_token_text(p, qr_jinja_next(p)));
        name = qr_jinja_built(&joined);
    }
    return name;
}

static void fail_unknown(qr_jinja_parser *p, const char *role, const qr_jinja_node *node) {
    if (qr_jinja_failed(p->run) || node->builtin != NULL || p->n_conditions > 0) { return; }
    (void)qr_jinja_error(p->run, "unknown %s '%.*s'", role, (int)node->value.string->size, node->value.string->data);
}

static qr_jinja_node *parse_filter(qr_jinja_parser *p, qr_jinja_node *input) {
    qr_jinja_node *node = make_binary(p, QR_JINJA_FILTER, 0, input, NULL);
    node->value = parse_dotted_name(p, "the name of a filter");
    if (qr_jinja_failed(p->run)) { return NULL; }
    node->builtin = qr_jinja_find_filter(node->value.string->data, node->value.string->size);
    fail_unknown(p, "filter", node);
    if (qr_jinja_skip_operator(p, '(')) { node->list = parse_arguments(p); }
    return node;
}

qr_jinja_node *qr_jinja_parse_filters(qr_jinja_parser *p, qr_jinja_node *input) {
    qr_jinja_node *node = input;
    if (input == NULL) {
        (void)qr_jinja_skip_operator(p, '|');
        node = parse_filter(p, NULL);
    }
    while (qr_jinja_skip_operator(p, '|')) { node = parse_filter(p, node); }
    return node;
}

static qr_jinja_node *parse_primary(qr_jinja_parser *p);
static qr_jinja_node *parse_postfix(qr_jinja_parser *p, qr_jinja_node *node);

/* A test may take one argument without parentheses: "x is divisibleby 3". */
static bool at_bare_argument(const qr_jinja_parser *p) {
    const qr_jinja_token *token = qr_jinja_peek(p);
    if (token->kind == QR_JINJA_TOKEN_NAME) {
        return !qr_jinja_at_name(p, "else") && !qr_jinja_at_name(p, "or") && !qr_jinja_at_name(p, "and") &&
               !qr_jinja_at_name(p, "if") && !qr_jinja_at_name(p, "recursive");
    }
    return token->kind == QR_JINJA_TOKEN_STRING || token->kind == QR_JINJA_TOKEN_INT ||
           token->kind == QR_JINJA_TOKEN_FLOAT || qr_jinja_at_operator(p, '[') || qr_jinja_at_operator(p, '{');
}

static qr_jinja_node *parse_test(qr_jinja_parser *p, qr_jinja_node *input) {
    (void)qr_jinja_next(p);
    const bool negated = qr_jinja_skip_name(p, "not");
    qr_jinja_node *node = make_binary(p, QR_JINJA_TEST, 0, input, NULL);
    node->value = parse_dotted_name(p, "the name of a test");
    if (qr_jinja_failed(p->run)) { return NULL; }
    node->builtin = qr_jinja_find_test(node->value.string->data, node->value.string->size);
    fail_unknown(p, "test", node);
    if (qr_jinja_skip_operator(p, '(')) {
        node->list = parse_arguments(p);
    } else if (qr_jinja_at_name(p, "is")) {
        (void)qr_jinja_error(p->run, "two tests with 'is' cannot be chained; join them with 'and'");
    } else if (at_bare_argument(p)) {
        node->list = qr_jinja_new_node(p, QR_JINJA_ARGUMENT);
        node->list->a = parse_postfix(p, parse_primary(p));
    }
    return negated ? make_binary(p, QR_JINJA_UNARY, '!', node, NULL) : node;
}

/* --- primaries --- */

/* [a:b:c] or an index, after "[". */
static qr_jinja_node *parse_subscripted(qr_jinja_parser *p) {
    qr_jinja_node *start = qr_jinja_at_operator(p, ':') ? NULL : qr_jinja_parse_expression(p);
    if (!qr_jinja_skip_operator(p, ':')) { return start; }
    qr_jinja_node *slice = make_binary(p, QR_JINJA_SLICE, 0, start, NULL);
    const bool has_stop =
        !qr_jinja_at_operator(p, ':') && !qr_jinja_at_operator(p, ']') && !qr_jinja_at_operator(p, ',');
    if (has_stop) { slice->b = qr_jinja_parse_expression(p); }
    if (qr_jinja_skip_operator(p, ':') && !qr_jinja_at_operator(p, ']') && !qr_jinja_at_operator(p, ',')) {
        slice->c = qr_jinja_parse_expression(p);
    }
    return slice;
}

/* After "[": a[x], a[x:y] or a[x, y]; a[] is a[()]. */
static qr_jinja_node *parse_subscript(qr_jinja_parser *p, qr_jinja_node *object) {
    qr_jinja_node *first = NULL, **tail = &first;
    while (!qr_jinja_failed(p->run) && !qr_jinja_skip_operator(p, ']')) {
        if (first != NULL && !qr_jinja_expect_operator(p, ',', "',' or ']'")) { break; }
        qr_jinja_node *item = parse_subscripted(p);
        if (item != NULL && item->kind == QR_JINJA_SLICE && (first != NULL || qr_jinja_at_operator(p, ','))) {
            (void)qr_jinja_error(p->run, "a slice cannot be an item of a tuple");
        }
        qr_jinja_link(&tail, item);
    }
    qr_jinja_node *key = first;
    if (first == NULL || first->next != NULL) {
        key = make_binary(p, QR_JINJA_TUPLE_OF, 0, NULL, NULL);
        if (key != NULL) { key->list = first; }
    }
    return make_binary(p, QR_JINJA_SUBSCRIPT, 0, object, key);
}

static qr_jinja_node *parse_int(qr_jinja_parser *p, const qr_jinja_token *token);

/* After ".": a name or a number. */
static qr_jinja_node *parse_attribute(qr_jinja_parser *p, qr_jinja_node *object) {
    if (qr_jinja_peek(p)->kind == QR_JINJA_TOKEN_INT) {
        qr_jinja_node *key = parse_int(p, qr_jinja_next(p));
        return make_binary(p, QR_JINJA_SUBSCRIPT, 0, object, key);
    }
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) { return qr_jinja_unexpected(p, "a name or a number"); }
    const qr_jinja_value name = qr_jinja_token_text(p, qr_jinja_next(p));
    qr_jinja_node *node = make_binary(p, QR_JINJA_ATTRIBUTE, 0, object, NULL);
    node->value = name;
    return node;
}

static qr_jinja_node *parse_postfix(qr_jinja_parser *p, qr_jinja_node *node) {
    while (!qr_jinja_failed(p->run)) {
        if (qr_jinja_skip_operator(p, '.')) {
            node = parse_attribute(p, node);
        } else if (qr_jinja_skip_operator(p, '[')) {
            node = parse_subscript(p, node);
        } else if (qr_jinja_at_operator(p, '(')) {
            node = parse_call(p, node);
        } else {
            return node;
        }
    }
    return NULL;
}

static qr_jinja_node *parse_filters_and_tests(qr_jinja_parser *p, qr_jinja_node *node) {
    while (!qr_jinja_failed(p->run)) {
        if (qr_jinja_at_operator(p, '|')) {
            node = qr_jinja_parse_filters(p, node);
        } else if (qr_jinja_at_name(p, "is")) {
            node = parse_test(p, node);
        } else if (qr_jinja_at_operator(p, '(')) {
            node = parse_call(p, node);
        } else {
            return node;
        }
    }
    return NULL;
}

static qr_jinja_node *make_constant(qr_jinja_parser *p, qr_jinja_value value) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_CONSTANT);
    node->value = value;
    return node;
}

static qr_jinja_node *parse_int(qr_jinja_parser *p, const qr_jinja_token *token) {
    const qr_jinja_value value = qr_jinja_parse_integer(p->run, token->text, token->size, 0);
    if (value.type == QR_JINJA_MISSING) {
        (void)qr_jinja_error(p->run, "'%.*s' is not a number", (int)token->size, token->text);
    }
    return qr_jinja_failed(p->run) ? NULL : make_constant(p, value);
}

static qr_jinja_node *parse_float(qr_jinja_parser *p, const qr_jinja_token *token) {
    double value;
    if (!qr_jinja_parse_double(token->text, token->size, &value)) {
        (void)qr_jinja_error(p->run, "a number of %zu characters is too long", token->size);
        return NULL;
    }
    return make_constant(p, qr_jinja_float(value));
}

static qr_jinja_node *parse_strings(qr_jinja_parser *p, const qr_jinja_token *token) {
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_STRING) { return make_constant(p, qr_jinja_token_text(p, token)); }
    qr_jinja_builder joined = {.run = p->run};
    qr_jinja_append(&joined, token->text, token->size);
    while (qr_jinja_peek(p)->kind == QR_JINJA_TOKEN_STRING) {
        token = qr_jinja_next(p);
        qr_jinja_append(&joined, token->text, token->size);
    }
    const qr_jinja_value text = qr_jinja_built(&joined);
    if (!qr_jinja_failed(p->run)) { (void)qr_jinja_hash(p->run, text); }
    return make_constant(p, text);
}

static bool is_word(const qr_jinja_token *token, const char *a, const char *b) {
    return (token->size == strlen(a) && memcmp(token->text, a, token->size) == 0) ||
           (token->size == strlen(b) && memcmp(token->text, b, token->size) == 0);
}

static qr_jinja_node *parse_name(qr_jinja_parser *p, const qr_jinja_token *token) {
    if (is_word(token, "true", "True")) { return make_constant(p, qr_jinja_bool(true)); }
    if (is_word(token, "false", "False")) { return make_constant(p, qr_jinja_bool(false)); }
    if (is_word(token, "none", "None")) { return make_constant(p, qr_jinja_none()); }
    p->uses |= is_word(token, "varargs", "varargs") ? QR_JINJA_USES_VARARGS : 0U;
    p->uses |= is_word(token, "kwargs", "kwargs") ? QR_JINJA_USES_KWARGS : 0U;
    p->uses |= is_word(token, "caller", "caller") ? QR_JINJA_USES_CALLER : 0U;
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_NAME);
    node->value = qr_jinja_token_text(p, token);
    return node;
}

static qr_jinja_node *parse_list(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_LIST_OF), **tail = &node->list;
    while (more_items(p, node->list != NULL, ']', "',' or ']'")) { qr_jinja_link(&tail, qr_jinja_parse_expression(p)); }
    return node;
}

static qr_jinja_node *parse_dict(qr_jinja_parser *p) {
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_DICT_OF), **tail = &node->list;
    while (more_items(p, node->list != NULL, '}', "',' or '}'")) {
        qr_jinja_link(&tail, qr_jinja_parse_expression(p));
        if (!qr_jinja_expect_operator(p, ':', "':'")) { break; }
        qr_jinja_link(&tail, qr_jinja_parse_expression(p));
    }
    return node;
}

static qr_jinja_node *parse_primary(qr_jinja_parser *p) {
    const qr_jinja_token *token = qr_jinja_peek(p);
    switch (token->kind) {
        case QR_JINJA_TOKEN_NAME: return parse_name(p, qr_jinja_next(p));
        case QR_JINJA_TOKEN_STRING: return parse_strings(p, qr_jinja_next(p));
        case QR_JINJA_TOKEN_INT: return parse_int(p, qr_jinja_next(p));
        case QR_JINJA_TOKEN_FLOAT: return parse_float(p, qr_jinja_next(p));
        default: break;
    }
    if (qr_jinja_skip_operator(p, '[')) { return parse_list(p); }
    if (qr_jinja_skip_operator(p, '{')) { return parse_dict(p); }
    if (!qr_jinja_skip_operator(p, '(')) { return qr_jinja_unexpected(p, "an expression"); }
    qr_jinja_node *node = qr_jinja_parse_tuple(p, QR_JINJA_TUPLE_PARENTHESISED);
    return qr_jinja_expect_operator(p, ')', "')'") ? node : NULL;
}

/* --- operators, from the tightest to the loosest --- */

static qr_jinja_node *parse_unary(qr_jinja_parser *p, bool with_filters) {
    qr_jinja_node *node = NULL;
    if (qr_jinja_enter(p->run)) {
        if (qr_jinja_at_operator(p, '-') || qr_jinja_at_operator(p, '+')) {
            const int op = qr_jinja_next(p)->op;
            node = parse_unary(p, false);
            node = make_binary(p, QR_JINJA_UNARY, op, node, NULL);
        } else {
            node = parse_primary(p);
        }
        node = parse_postfix(p, node);
        if (with_filters) { node = parse_filters_and_tests(p, node); }
    }
    qr_jinja_leave(p->run);
    return node;
}

/* A chain of operators leans to the left, so its tree is as deep as it is long: that counts as nesting too. */
static bool deepen(qr_jinja_parser *p, int *n_levels) {
    ++*n_levels;
    return qr_jinja_enter(p->run);
}

static qr_jinja_node *leave_levels(qr_jinja_parser *p, int n_levels, qr_jinja_node *node) {
    p->run->depth -= n_levels;
    return qr_jinja_failed(p->run) ? NULL : node;
}

/* Operators of one level: symbols, or a word. */
typedef struct level {
    qr_jinja_kind kind;
    int operators[4];
    const char *word;
    qr_jinja_node *(*parse_operand)(qr_jinja_parser *p);
} level;

static bool skip_operator_of(qr_jinja_parser *p, const level *at, int *op) {
    *op = 0;
    for (size_t i = 0; i < QR_COUNT_OF(at->operators) && at->operators[i] != 0; i++) {
        if (qr_jinja_skip_operator(p, at->operators[i])) {
            *op = at->operators[i];
            return true;
        }
    }
    return at->word != NULL && qr_jinja_skip_name(p, at->word);
}

static qr_jinja_node *parse_level(qr_jinja_parser *p, const level *at) {
    int n_levels = 0, op;
    qr_jinja_node *left = at->parse_operand(p);
    while (skip_operator_of(p, at, &op) && deepen(p, &n_levels)) {
        qr_jinja_node *right = at->parse_operand(p);
        left = make_binary(p, at->kind, op, left, right);
    }
    return leave_levels(p, n_levels, left);
}

static qr_jinja_node *parse_factor(qr_jinja_parser *p) { return parse_unary(p, true); }

static qr_jinja_node *parse_power(qr_jinja_parser *p) {
    return parse_level(p, &(level){QR_JINJA_BINARY, {QR_JINJA_OP('*', '*')}, NULL, parse_factor});
}

static qr_jinja_node *parse_product(qr_jinja_parser *p) {
    return parse_level(p, &(level){QR_JINJA_BINARY, {'*', '/', '%', QR_JINJA_OP('/', '/')}, NULL, parse_power});
}

static qr_jinja_node *parse_concat(qr_jinja_parser *p) {
    qr_jinja_node *first = parse_product(p);
    if (!qr_jinja_at_operator(p, '~')) { return first; }
    qr_jinja_node *node = make_binary(p, QR_JINJA_CONCAT, 0, NULL, NULL), **tail = &node->list;
    qr_jinja_link(&tail, first);
    while (qr_jinja_skip_operator(p, '~')) { qr_jinja_link(&tail, parse_product(p)); }
    return node;
}

static qr_jinja_node *parse_sum(qr_jinja_parser *p) {
    return parse_level(p, &(level){QR_JINJA_BINARY, {'+', '-'}, NULL, parse_concat});
}

/* 0 where no comparison follows; 'i' for in, QR_JINJA_OP('!', 'i') for not in. */
static int skip_comparison(qr_jinja_parser *p) {
    static const int operators[] = {
        QR_JINJA_OP('=', '='), QR_JINJA_OP('!', '='), QR_JINJA_OP('<', '='), QR_JINJA_OP('>', '='), '<', '>'};
    for (size_t i = 0; i < QR_COUNT_OF(operators); i++) {
        if (qr_jinja_skip_operator(p, operators[i])) { return operators[i]; }
    }
    if (qr_jinja_skip_name(p, "in")) { return 'i'; }
    const qr_jinja_token *after = &p->tokens[p->at + (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_END)];
    if (qr_jinja_at_name(p, "not") && after->kind == QR_JINJA_TOKEN_NAME && after->size == 2 &&
        memcmp(after->text, "in", 2) == 0) {
        p->at += 2;
        return QR_JINJA_OP('!', 'i');
    }
    return 0;
}

static qr_jinja_node *parse_comparison(qr_jinja_parser *p) {
    qr_jinja_node *first = parse_sum(p);
    int op = skip_comparison(p);
    if (op == 0) { return first; }
    qr_jinja_node *node = make_binary(p, QR_JINJA_COMPARISON, 0, first, NULL), **tail = &node->list;
    while (op != 0) {
        qr_jinja_node *operand = parse_sum(p);
        qr_jinja_link(&tail, make_binary(p, QR_JINJA_OPERAND, op, operand, NULL));
        op = skip_comparison(p);
    }
    return node;
}

static qr_jinja_node *parse_not(qr_jinja_parser *p) {
    if (!qr_jinja_skip_name(p, "not")) { return parse_comparison(p); }
    qr_jinja_node *node = qr_jinja_enter(p->run) ? parse_not(p) : NULL;
    qr_jinja_leave(p->run);
    return make_binary(p, QR_JINJA_UNARY, '!', node, NULL);
}

static qr_jinja_node *parse_and(qr_jinja_parser *p) {
    return parse_level(p, &(level){QR_JINJA_AND, {0}, "and", parse_not});
}

static qr_jinja_node *parse_or(qr_jinja_parser *p) {
    return parse_level(p, &(level){QR_JINJA_OR, {0}, "or", parse_and});
}

static qr_jinja_node *parse_conditional(qr_jinja_parser *p, bool allows_conditional) {
    qr_jinja_node *node = qr_jinja_enter(p->run) ? parse_or(p) : NULL;
    int n_levels = 0;
    while (allows_conditional && qr_jinja_skip_name(p, "if") && deepen(p, &n_levels)) {
        qr_jinja_node *condition = parse_or(p);
        qr_jinja_node *otherwise = qr_jinja_skip_name(p, "else") ? parse_conditional(p, true) : NULL;
        node = make_binary(p, QR_JINJA_CONDITIONAL, 0, node, condition);
        node->c = otherwise;
    }
    qr_jinja_leave(p->run);
    return leave_levels(p, n_levels, node);
}

qr_jinja_node *qr_jinja_parse_expression(qr_jinja_parser *p) { return parse_conditional(p, true); }

static bool at_tuple_end(const qr_jinja_parser *p) {
    const qr_jinja_token_kind kind = qr_jinja_peek(p)->kind;
    return kind == QR_JINJA_TOKEN_PRINT_END || kind == QR_JINJA_TOKEN_TAG_END || qr_jinja_at_operator(p, ')') ||
           qr_jinja_at_name(p, "recursive");
}

qr_jinja_node *qr_jinja_parse_tuple(qr_jinja_parser *p, qr_jinja_tuple_form form) {
    qr_jinja_node *first = NULL, **tail = &first;
    bool is_tuple = form == QR_JINJA_TUPLE_PARENTHESISED && at_tuple_end(p);
    while (!qr_jinja_failed(p->run) && !(at_tuple_end(p) && (first != NULL || is_tuple))) {
        qr_jinja_link(&tail, parse_conditional(p, form != QR_JINJA_TUPLE_NO_CONDITIONAL));
        if (!qr_jinja_skip_operator(p, ',')) { break; }
        is_tuple = true;
    }
    if (qr_jinja_failed(p->run)) { return NULL; }
    if (!is_tuple) { return first; }
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_TUPLE_OF);
    node->list = first;
    return node;
}

/* --- assignment targets --- */

static bool is_constant_name(const qr_jinja_token *token) {
    return is_word(token, "true", "True") || is_word(token, "false", "False") || is_word(token, "none", "None");
}

static qr_jinja_node *parse_target_item(qr_jinja_parser *p, bool allows_namespace) {
    if (qr_jinja_skip_operator(p, '(')) {
        qr_jinja_node *inner = qr_jinja_enter(p->run) ? qr_jinja_parse_target(p, allows_namespace) : NULL;
        qr_jinja_leave(p->run);
        return qr_jinja_expect_operator(p, ')', "')'") ? inner : NULL;
    }
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME || is_constant_name(qr_jinja_peek(p))) {
        return qr_jinja_unexpected(p, "the name of a variable to assign to");
    }
    const qr_jinja_token *token = qr_jinja_next(p);
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_NAME);
    node->value = qr_jinja_token_text(p, token);
    if (!allows_namespace || !qr_jinja_skip_operator(p, '.')) { return node; }
    if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME) { return qr_jinja_unexpected(p, "the name of an attribute"); }
    node->kind = QR_JINJA_NAMESPACE_ATTRIBUTE;
    node->a = make_constant(p, qr_jinja_token_text(p, qr_jinja_next(p)));
    return node;
}

qr_jinja_node *qr_jinja_parse_target_one(qr_jinja_parser *p) { return parse_target_item(p, false); }

qr_jinja_node *qr_jinja_parse_target(qr_jinja_parser *p, bool allows_namespace) {
    qr_jinja_node *first = parse_target_item(p, allows_namespace), **tail = first != NULL ? &first->next : NULL;
    if (!qr_jinja_at_operator(p, ',')) { return first; }
    while (qr_jinja_skip_operator(p, ',')) {
        if (qr_jinja_peek(p)->kind != QR_JINJA_TOKEN_NAME && !qr_jinja_at_operator(p, '(')) { break; }
        if (qr_jinja_at_name(p, "in")) { break; }
        qr_jinja_link(&tail, parse_target_item(p, allows_namespace));
    }
    qr_jinja_node *node = qr_jinja_new_node(p, QR_JINJA_TUPLE_OF);
    node->list = first;
    return qr_jinja_failed(p->run) ? NULL : node;
}
