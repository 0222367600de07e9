/* The state of one parse or one rendering, and what the parts of the interpreter ask of each other. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_RUN_H
#define QR_LOADERS_TEMPLATE_JINJA_RUN_H

#include "loaders/template/jinja_syntax.h"
#include "loaders/template/jinja_value.h"

/* Variables by name. A lookup goes outwards; an assignment goes to the innermost. */
typedef struct qr_jinja_scope qr_jinja_scope;
struct qr_jinja_scope {
    qr_jinja_scope *outer;
    qr_jinja_dict *names;
};

struct qr_jinja_run {
    qr_jinja_arena *arena;
    qrun_status status;
    qr_error *err;
    const char *what; /* names the template in messages */
    int line;         /* of what is being tokenised, parsed or evaluated */
    int depth;
    size_t n_walked;       /* bytes; a step is QR_JINJA_STEP_BYTES */
    int64_t now;           /* unix time, for strftime_now */
    qr_jinja_builder *out; /* where text goes */
    qr_jinja_scope *scope;
};

typedef struct qr_jinja_args {
    qr_jinja_value *items; /* [n_items] positional */
    size_t n_items;
    qr_jinja_dict *named; /* NULL when there are none */
} qr_jinja_args;

enum { QR_JINJA_MAX_PARAMETERS = 6 };

/* One call of a builtin. args holds one value for each parameter, QR_JINJA_MISSING where it was not given; a builtin
 * that takes any arguments reads them from raw instead, and args is NULL. */
typedef struct qr_jinja_invocation {
    const qr_jinja_builtin *builtin;
    qr_jinja_value self; /* what is filtered or tested, or whose method it is */
    const qr_jinja_value *args;
    const qr_jinja_args *raw;
} qr_jinja_invocation;

/* What a call is charged before the builtin runs. What grows faster than that, the builtin charges itself. */
typedef enum qr_jinja_cost {
    QR_JINJA_BY_SIZE, /* the bytes and items of everything that it is given */
    QR_JINJA_FLAT     /* a step: it looks at nothing that grows, or all that it calls charges */
} qr_jinja_cost;

/* A filter, test, method or function. params lists the parameters' names separated by spaces; NULL: any arguments. */
struct qr_jinja_builtin {
    const char *name;
    const char *params;
    int n_required;
    qr_jinja_value (*call)(qr_jinja_run *run, const qr_jinja_invocation *call); /* NULL: the sandbox forbids it */
    int variant;                                                                /* of builtins that share a function */
    qr_jinja_cost cost;
};

typedef struct qr_jinja_table {
    const char *role; /* "filter", "test", "function", or whose methods they are: "str", "list" … */
    const qr_jinja_builtin *rows;
    size_t n;
} qr_jinja_table;

extern const qr_jinja_table qr_jinja_value_filters, qr_jinja_sequence_filters, qr_jinja_tests, qr_jinja_globals;
extern const qr_jinja_table qr_jinja_methods[QR_JINJA_CYCLER + 1]; /* by the type of the object */

struct qr_jinja_method {
    const qr_jinja_builtin *builtin;
    qr_jinja_value self;
};

struct qr_jinja_macro {
    const qr_jinja_node *node; /* QR_JINJA_DEFINE_MACRO or QR_JINJA_CALL_BLOCK */
    qr_jinja_scope *scope;     /* where it was defined */
    const char *name;
};

struct qr_jinja_loop {
    const qr_jinja_list *items;
    size_t index;
    int depth;                      /* from 0; of recursive loops */
    const qr_jinja_node *recursive; /* the QR_JINJA_FOR, or NULL */
    qr_jinja_scope *scope;          /* outside of the loop */
    bool has_changed_value;
    qr_jinja_value changed_value;
};

/* NULL for an unknown name. */
const qr_jinja_builtin *qr_jinja_find_filter(const char *name, size_t size);
const qr_jinja_builtin *qr_jinja_find_test(const char *name, size_t size);
const qr_jinja_builtin *qr_jinja_find_global(const char *name, size_t size);
const qr_jinja_builtin *qr_jinja_find_method(qr_jinja_value self, const char *name, size_t size);
const qr_jinja_builtin *qr_jinja_find_builtin(const qr_jinja_table *table, const char *name, size_t size);

/* --- what the builtins share --- */
/* An optional integer argument; fails for another type. */
int64_t qr_jinja_integer_or(qr_jinja_run *run, qr_jinja_value value, int64_t otherwise);
/* A NUL-terminated copy of str(value), for comparing with names; "" after a failure. */
const char *qr_jinja_cstring(qr_jinja_run *run, qr_jinja_value value);
/* A list of (key, value). */
qr_jinja_list *qr_jinja_pairs(qr_jinja_run *run, const qr_jinja_dict *dict);

/* Binds the arguments and calls. `role` is "filter", "test", "function" or "method" for messages. */
qr_jinja_value qr_jinja_call_builtin(qr_jinja_run *run, const qr_jinja_builtin *builtin, const char *role,
                                     qr_jinja_value self, const qr_jinja_args *args);
qr_jinja_value qr_jinja_call(qr_jinja_run *run, qr_jinja_value callee, const qr_jinja_args *args);

/* object.name and object[key] as Jinja resolves them: undefined where there is none. */
qr_jinja_value qr_jinja_get_attribute(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value name);
qr_jinja_value qr_jinja_get_item(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value key);
qr_jinja_value qr_jinja_get_slice(qr_jinja_run *run, qr_jinja_value object, qr_jinja_value start, qr_jinja_value stop,
                                  qr_jinja_value step);
qr_jinja_value qr_jinja_binary(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b);
/* a op b for a comparison or, with 'i' and QR_JINJA_OP('!', 'i'), for in and not in. */
bool qr_jinja_holds(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b);
qr_jinja_value qr_jinja_loop_attribute(const qr_jinja_loop *loop, qr_jinja_value name);
qr_jinja_value qr_jinja_cycler_attribute(qr_jinja_value cycler, qr_jinja_value name);
/* A part of a path such as "a.0", or of a field of str.format: an index where it is a number, else a name. */
qr_jinja_value qr_jinja_path_key(qr_jinja_run *run, const char *text, size_t size);
/* Fails with the reason why the value is undefined. */
qr_jinja_value qr_jinja_undefined_error(qr_jinja_run *run, qr_jinja_value value);

/* jinja_render.c: statements. */
void qr_jinja_render_nodes(qr_jinja_run *run, const qr_jinja_node *nodes);
qr_jinja_value qr_jinja_call_macro(qr_jinja_run *run, const qr_jinja_macro *macro, const qr_jinja_args *args);
qr_jinja_value qr_jinja_loop_recurse(qr_jinja_run *run, qr_jinja_loop *loop, qr_jinja_value items);

/* jinja_evaluate.c: expressions. */
qr_jinja_value qr_jinja_evaluate(qr_jinja_run *run, const qr_jinja_node *node);
qr_jinja_value qr_jinja_apply_filters(qr_jinja_run *run, const qr_jinja_node *filter,
                                      qr_jinja_value input); /* a chain whose head has no a */
qr_jinja_args qr_jinja_evaluate_args(qr_jinja_run *run, const qr_jinja_node *list);
qr_jinja_value qr_jinja_lookup(qr_jinja_run *run,
                               qr_jinja_value name); /* a variable or global; undefined where there is none */

/* jinja_json.c: tojson and the way in for JSON values. */
typedef struct qr_jinja_json_style {
    bool ensure_ascii;
    bool sort_keys;
    const qr_jinja_string *indent; /* NULL: on one line */
    const qr_jinja_string *item_separator;
    const qr_jinja_string *key_separator;
} qr_jinja_json_style;
void qr_jinja_append_json(qr_jinja_builder *builder, qr_jinja_value value, const qr_jinja_json_style *style);

/* jinja_format.c */
qr_jinja_value qr_jinja_format_braces(qr_jinja_run *run, const qr_jinja_string *format,
                                      const qr_jinja_args *args); /* str.format */
qr_jinja_value qr_jinja_format_percent(qr_jinja_run *run, const qr_jinja_string *format,
                                       qr_jinja_value args); /* format % args */
qr_jinja_value qr_jinja_format_time(qr_jinja_run *run, const qr_jinja_string *format,
                                    int64_t now); /* local time, naive */

/* jinja_text.c: case mapping. */
typedef enum qr_jinja_case {
    QR_JINJA_UPPER,
    QR_JINJA_LOWER,
    QR_JINJA_TITLE,
    QR_JINJA_CAPITAL,
    QR_JINJA_SWAP
} qr_jinja_case;
qr_jinja_value qr_jinja_map_case(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_case mapping);
qr_jinja_value qr_jinja_strip(qr_jinja_run *run, const qr_jinja_string *text, qr_jinja_value chars, bool left,
                              bool right);
qr_jinja_value qr_jinja_replace(qr_jinja_run *run, const qr_jinja_string *text, const qr_jinja_string *old,
                                const qr_jinja_string *by, int64_t count);
qr_jinja_list *qr_jinja_split_lines(qr_jinja_run *run, const qr_jinja_string *text, bool keep_ends);
/* Without comments and tags, spaces collapsed, &lt; and its like resolved. */
qr_jinja_value qr_jinja_strip_tags(qr_jinja_run *run, const qr_jinja_string *text);
qr_jinja_value qr_jinja_escape_html(qr_jinja_run *run, const qr_jinja_string *text);
qr_jinja_value qr_jinja_sorted(qr_jinja_run *run, qr_jinja_list *list, qr_jinja_list *keys,
                               bool reverse); /* stable; reorders list by keys */

#endif
