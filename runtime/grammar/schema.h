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

/* `root` is what a schema was read into. Messages name a place in it as "#/properties/name". *made is the caller's. */
qrun_status qr_schema_compile(const qr_json *root, qr_automaton *made, qr_error *err);

#endif
