/* The syntax of a template: tokens and the tree that the parser makes of them. Both live in the template's arena. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_SYNTAX_H
#define QR_LOADERS_TEMPLATE_JINJA_SYNTAX_H

#include "loaders/template/jinja_value.h"

typedef enum qr_jinja_token_kind {
    QR_JINJA_TOKEN_END,
    QR_JINJA_TOKEN_DATA,
    QR_JINJA_TOKEN_PRINT_BEGIN, /* {{ */
    QR_JINJA_TOKEN_PRINT_END,
    QR_JINJA_TOKEN_TAG_BEGIN, /* {% */
    QR_JINJA_TOKEN_TAG_END,
    QR_JINJA_TOKEN_NAME,
    QR_JINJA_TOKEN_STRING, /* text is the decoded string */
    QR_JINJA_TOKEN_INT,
    QR_JINJA_TOKEN_FLOAT,
    QR_JINJA_TOKEN_OPERATOR
} qr_jinja_token_kind;

/* An operator is its characters: QR_JINJA_OP('=', '='). */
#define QR_JINJA_OP(first, second) ((int)(first) | (int)(second) << 8)

typedef struct qr_jinja_token {
    qr_jinja_token_kind kind;
    int line; /* from 1 */
    int op;
    const char *text;
    size_t size;
} qr_jinja_token;

/* Expressions and statements. What a, b, c, list and names hold is said at each kind; [x] is optional. */
typedef enum qr_jinja_kind {
    /* expressions */
    QR_JINJA_CONSTANT,    /* value */
    QR_JINJA_NAME,        /* value: the name */
    QR_JINJA_TUPLE_OF,    /* list: items; as assignment target too */
    QR_JINJA_LIST_OF,     /* list: items */
    QR_JINJA_DICT_OF,     /* list: key, value, key, value … */
    QR_JINJA_UNARY,       /* op '-' '+' '!' (not), a */
    QR_JINJA_BINARY,      /* op, a, b; arithmetic */
    QR_JINJA_AND,         /* a, b */
    QR_JINJA_OR,          /* a, b */
    QR_JINJA_COMPARISON,  /* a, list: operands, each QR_JINJA_OPERAND with op and a; chained as in Python */
    QR_JINJA_OPERAND,     /* op ('i' in, '!','i' not in, comparison), a */
    QR_JINJA_CONCAT,      /* list: parts of a ~ b ~ c */
    QR_JINJA_CONDITIONAL, /* a if b [else c] */
    QR_JINJA_ATTRIBUTE,   /* a.value */
    QR_JINJA_SUBSCRIPT,   /* a[b] */
    QR_JINJA_SLICE,       /* [a]:[b]:[c], only as b of a subscript */
    QR_JINJA_CALL, /* a(list); value of an argument is its keyword; QR_JINJA_SPREAD and QR_JINJA_SPREAD_NAMED for * and
                    ** */
    QR_JINJA_FILTER, /* [a] | builtin(list); value: the name. a is absent at the head of a filter block or block set */
    QR_JINJA_TEST,   /* a is builtin(list); value: the name */
    QR_JINJA_ARGUMENT,     /* a; value: keyword or missing */
    QR_JINJA_SPREAD,       /* *a */
    QR_JINJA_SPREAD_NAMED, /* **a */
    /* statements */
    QR_JINJA_DATA,                /* value: text */
    QR_JINJA_PRINT,               /* a */
    QR_JINJA_IF,                  /* a: condition, body, else_body; flag: that is the if of an elif */
    QR_JINJA_FOR,                 /* a: target, b: iterable, [c]: filter, body, else_body, flag: recursive */
    QR_JINJA_SET,                 /* a: target, b: value */
    QR_JINJA_SET_BLOCK,           /* a: target, [b]: filters, body */
    QR_JINJA_NAMESPACE_ATTRIBUTE, /* target of a set: value: the namespace's name, a: QR_JINJA_CONSTANT attribute */
    QR_JINJA_DEFINE_MACRO, /* value: name, list: parameters (QR_JINJA_ARGUMENT: value name, [a] default), body, uses */
    QR_JINJA_CALL_BLOCK,   /* a: QR_JINJA_CALL, list: parameters of caller, body, uses */
    QR_JINJA_FILTER_BLOCK, /* a: filters, body */
    QR_JINJA_WITH,         /* list: QR_JINJA_SET nodes, body */
    QR_JINJA_SCOPE,        /* body (generation) */
    QR_JINJA_BREAK,
    QR_JINJA_CONTINUE
} qr_jinja_kind;

enum { QR_JINJA_USES_VARARGS = 1, QR_JINJA_USES_KWARGS = 2, QR_JINJA_USES_CALLER = 4 };

typedef struct qr_jinja_node qr_jinja_node;
struct qr_jinja_node {
    qr_jinja_kind kind;
    int line;
    int op;
    bool flag;
    unsigned uses; /* of the special names in a macro's body */
    qr_jinja_node *a, *b, *c;
    qr_jinja_node *list; /* linked by next */
    qr_jinja_node *body;
    qr_jinja_node *else_body;
    qr_jinja_node *next;
    const qr_jinja_builtin *builtin; /* NULL: unknown, an error when it is reached */
    qr_jinja_value value;
};

/* Splits source (valid UTF-8, line ends already "\n") into tokens with trim_blocks and lstrip_blocks on. The run's
 * arena holds them. */
bool qr_jinja_tokenise(qr_jinja_run *run, const char *source, size_t size, qr_jinja_token **tokens);

/* The statements of a whole template, linked by next; NULL for an empty template or after a failure. The last token
 * is QR_JINJA_TOKEN_END. */
qr_jinja_node *qr_jinja_parse_tokens(qr_jinja_run *run, const qr_jinja_token *tokens);

#endif
