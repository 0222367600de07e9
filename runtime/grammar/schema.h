/* From a JSON Schema to an automaton whose texts are JSON values that the schema accepts. It may accept fewer than the
 * schema does, and never others: what cannot be expressed is refused by its name and place.
 *
 * Fewer: members come in the order of "properties", those without a declared name last; an object with "properties" has
 * others only where "additionalProperties" says so, and a list with "prefixItems" where "items" does; space and numbers
 * are those of json_pieces.h. */
#ifndef QR_RUNTIME_GRAMMAR_SCHEMA_H
#define QR_RUNTIME_GRAMMAR_SCHEMA_H

#include "loaders/files/json.h"
#include "runtime/grammar/automaton.h"

/* An object as some models write the arguments of calls: each member is before_name, its name, after_name, its value
 * and after_value (schema_tags.c). */
typedef struct qr_schema_tags {
    const char *before_name, *after_name, *after_value;
} qr_schema_tags;

/* A form that a text may have: the value between two texts. */
typedef struct qr_schema_form {
    const char *name;           /* in messages */
    const char *before, *after; /* bytes, as token_trie.h has those of tokens */
    const qr_json *root;        /* of the value's schema */
    bool is_tagged;             /* the value is an object whose members stand between tags */
    qr_schema_tags tags;        /* then; bytes too */
} qr_schema_form;

/* `root` is what a schema was read into. Messages name a place in it as "#/properties/name". *made is the caller's. */
qrun_status qr_schema_compile(const qr_json *root, qr_automaton *made, qr_error *err);
/* The same for texts that have one of the forms; messages begin with its name. */
qrun_status qr_schema_compile_forms(const qr_schema_form *forms, size_t n_forms, qr_automaton *made, qr_error *err);

#endif
