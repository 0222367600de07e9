/* What the two halves of the parser share: the position among the tokens, and expressions. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_PARSER_H
#define QR_LOADERS_TEMPLATE_JINJA_PARSER_H

#include "loaders/template/jinja_run.h"

typedef struct qr_jinja_parser {
    qr_jinja_run *run;
    const qr_jinja_token *tokens; /* the last one is QR_JINJA_TOKEN_END */
    size_t at;
    int n_loops;      /* open around this position, up to the macro */
    int n_conditions; /* {% if %} around this position: an unknown filter or test there fails only when it is reached */
    unsigned uses;    /* QR_JINJA_USES_… seen since the macro began */
    qr_jinja_node failed; /* the node of a failed parse */
} qr_jinja_parser;

/* After a failure no token matches, every new node is the same one, and what parses returns soon: callers need not
 * ask. The tree is then not used. */
const qr_jinja_token *qr_jinja_peek(const qr_jinja_parser *p);
const qr_jinja_token *qr_jinja_next(qr_jinja_parser *p); /* also makes its line the current one */
bool qr_jinja_at_name(const qr_jinja_parser *p, const char *name);
bool qr_jinja_at_operator(const qr_jinja_parser *p, int op);
bool qr_jinja_skip_name(qr_jinja_parser *p, const char *name);
bool qr_jinja_skip_operator(qr_jinja_parser *p, int op);
bool qr_jinja_expect_operator(qr_jinja_parser *p, int op, const char *expected);
qr_jinja_node *qr_jinja_unexpected(qr_jinja_parser *p,
                                   const char *expected); /* the error "found X where Y should be"; NULL */
qr_jinja_node *qr_jinja_new_node(qr_jinja_parser *p, qr_jinja_kind kind); /* never NULL */
qr_jinja_value qr_jinja_token_text(qr_jinja_parser *p, const qr_jinja_token *token);
void qr_jinja_link(qr_jinja_node ***tail, qr_jinja_node *node);

/* What these return after a failure means nothing. */
qr_jinja_node *qr_jinja_parse_expression(qr_jinja_parser *p);
typedef enum qr_jinja_tuple_form {
    QR_JINJA_TUPLE_FREE,           /* a, b without parentheses: at least one item */
    QR_JINJA_TUPLE_NO_CONDITIONAL, /* the same, and "x if y" is not read as a conditional */
    QR_JINJA_TUPLE_PARENTHESISED   /* may be empty */
} qr_jinja_tuple_form;
qr_jinja_node *qr_jinja_parse_tuple(qr_jinja_parser *p,
                                    qr_jinja_tuple_form form); /* the expression itself where there is no comma */
qr_jinja_node *qr_jinja_parse_target(qr_jinja_parser *p, bool allows_namespace);
qr_jinja_node *qr_jinja_parse_target_one(qr_jinja_parser *p); /* one name, without a tuple around it */
/* A chain of filters. input NULL: at the head of a block, with the first "|" optional. */
qr_jinja_node *qr_jinja_parse_filters(qr_jinja_parser *p, qr_jinja_node *input);

#endif
