/* What the parts of the schema compiler share: schema.c chooses by keyword, and the other files make objects and lists,
 * strings, and numbers. */
#ifndef QR_RUNTIME_GRAMMAR_SCHEMA_COMPILER_H
#define QR_RUNTIME_GRAMMAR_SCHEMA_COMPILER_H

#include "loaders/files/json.h"
#include "runtime/grammar/json_pieces.h"
#include "runtime/grammar/schema.h"

/* A place in the schema, for messages. */
typedef struct qr_schema_path {
    const struct qr_schema_path *parent; /* NULL: a place by its whole name, "#/$defs/name" */
    const char *name;                    /* of the member; NULL: an item of a list */
    int64_t index;
} qr_schema_path;

/* A schema that is called: by "$ref", or from several places of a list. */
typedef struct qr_schema_rule {
    const qr_json *schema;
    int32_t rule;
    char *where; /* it was first called from, for messages */
} qr_schema_rule;

/* A rule whose texts may begin with those of another. */
typedef struct qr_schema_begin {
    int32_t rule, other;
} qr_schema_begin;

/* The names of the tags that a text without quotes must not end, as it stands in them; none begins as another does in
 * full. */
enum { QR_MAX_CLOSING_TAGS = 8, QR_MAX_TAG_BYTES = 32 };
typedef struct qr_closing_tags {
    char names[QR_MAX_CLOSING_TAGS][QR_MAX_TAG_BYTES];
    int n;
} qr_closing_tags;

typedef struct qr_schema_compiler {
    qr_json_pieces pieces;
    const qr_json *root;
    qr_schema_rule *rules; /* in order of their numbers; those before n_done are built */
    size_t n_rules, rules_capacity, n_done;
    qr_schema_begin *begins;
    size_t n_begins, begins_capacity;
    int32_t current_rule;
    int64_t n_compared;      /* names and values of alternatives of "oneOf" */
    qr_closing_tags closing; /* of the form that is added */
    qr_error *err;
} qr_schema_compiler;

/* One schema: where it is, and the states that its values lead from and to. */
typedef struct qr_schema_place {
    const qr_json *schema;
    qr_schema_path path;
    int32_t from, to;
    bool begins; /* nothing of the rule's text comes before it */
} qr_schema_place;

/* Fails with QRUN_ERROR_UNSUPPORTED, or with QRUN_ERROR_INPUT for what is no schema. */
qrun_status qr_schema_refuse(qr_schema_compiler *compiler, qrun_status status, const qr_schema_path *path,
                             const char *fmt, ...) QR_PRINTF(4, 5);

/* A schema and all in it. */
qrun_status qr_schema_add(qr_schema_compiler *compiler, const qr_schema_place *place);
/* A schema within, as a rule: however many places call it, it is built once. */
qrun_status qr_schema_call(qr_schema_compiler *compiler, const qr_schema_place *place);

/* What "$ref" names; *target is NULL after a refusal. */
qrun_status qr_schema_resolve(qr_schema_compiler *compiler, const qr_json *schema, const qr_schema_path *path,
                              const qr_json **target);

/* A member that is a whole number of at least 0, as lengths are; −1 where there is none. */
qrun_status qr_schema_count(qr_schema_compiler *compiler, const qr_schema_place *place, const char *key,
                            int64_t *count);

/* The keywords of one type each. */
qrun_status qr_schema_add_object(qr_schema_compiler *compiler, const qr_schema_place *place);
qrun_status qr_schema_add_array(qr_schema_compiler *compiler, const qr_schema_place *place);
qrun_status qr_schema_add_string(qr_schema_compiler *compiler, const qr_schema_place *place);
qrun_status qr_schema_add_integer(qr_schema_compiler *compiler, const qr_schema_place *place);
qrun_status qr_schema_add_number(qr_schema_compiler *compiler, const qr_schema_place *place);

/* A member that an object may have. */
typedef struct qr_object_member {
    const char *name;
    const qr_json *schema; /* NULL: any value */
    bool is_required, is_declared;
} qr_object_member;

typedef struct qr_object_form {
    const qr_schema_place *place;
    qr_object_member *members; /* [n] in their order; freed by the caller, also after an error */
    size_t n;
    bool has_others;
    const qr_json *others; /* the schema of other members; NULL: any value */
} qr_object_form;

qrun_status qr_schema_read_object(qr_schema_compiler *compiler, const qr_schema_place *place, qr_object_form *form);

/* Members between tags (schema_tags.c), and what their values may be where these are texts without quotes. */
qrun_status qr_schema_add_tags(qr_schema_compiler *compiler, const qr_schema_form *form, const qr_schema_place *place);
qrun_status qr_schema_add_bare_text(qr_schema_compiler *compiler, const qr_schema_place *place);
void qr_add_tagged_text(qr_schema_compiler *compiler, int32_t from, int32_t to); /* any, or none */
bool qr_tagged_text_fits(const qr_closing_tags *closing, const char *text);
/* Refuses a schema that is not that of an object alone. */
qrun_status qr_schema_require_object(qr_schema_compiler *compiler, const qr_schema_place *place);

/* Whether no value fits two of the alternatives, as far as types, constants and required members show. */
bool qr_schema_alternatives_exclude(qr_schema_compiler *compiler, const qr_json *alternatives);

/* A bit for each type, as "type" names them. */
typedef enum qr_schema_type {
    QR_TYPE_OBJECT = 1,
    QR_TYPE_ARRAY = 2,
    QR_TYPE_STRING = 4,
    QR_TYPE_NUMBER = 8,
    QR_TYPE_INTEGER = 16,
    QR_TYPE_BOOLEAN = 32,
    QR_TYPE_NULL = 64,
    QR_TYPE_ALL = QR_TYPE_OBJECT | QR_TYPE_ARRAY | QR_TYPE_STRING | QR_TYPE_NUMBER | QR_TYPE_BOOLEAN | QR_TYPE_NULL
} qr_schema_type;

/* Those of "type"; 0: there is none, or it is no list of types. */
unsigned qr_schema_types(const qr_json *schema);
/* Without "type", those that the schema's keywords are about; without these, all. */
unsigned qr_schema_types_of_keywords(const qr_json *schema);

/* The type of a value; of any number QR_TYPE_NUMBER. */
unsigned qr_schema_type_of_value(const qr_json *value);

/* Inside strings: a regular expression (pattern.c), on the characters of the string from its first quote to its last.
 * "minLength" and "maxLength" (low and high; -1: not given) may say no more than it does. */
qrun_status qr_schema_add_pattern(qr_schema_compiler *compiler, const char *pattern, int64_t low, int64_t high,
                                  const qr_schema_place *place);

#endif
