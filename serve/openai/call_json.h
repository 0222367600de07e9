/* What calls are made of, in every form: a name, and arguments that are put together as JSON text. */
#ifndef QRUN_SERVE_OPENAI_CALL_JSON_H
#define QRUN_SERVE_OPENAI_CALL_JSON_H

#include <cjson/cJSON.h>

#include "serve/openai/call_text.h"
#include "serve/openai/text.h"

enum { CALL_MAX_NAME_BYTES = 128, CALL_MAX_DEPTH = 32 };

/* ---- JSON as it is written --------------------------------------------------------------------------------------- */

/* All of the text as one value; NULL where there is more, or none. */
cJSON *call_json_parse(const cursor *c);
/* Over one value; whether it is well formed is for the parser. */
bool call_json_skip_value(cursor *c);
/* Over a number of JSON: -12.5e+3, and not +1, 01, .5 or 1. as some parsers take them. */
bool call_json_skip_number(cursor *c);
/* The text of a member of an object that was parsed before; false: it has none. */
bool call_json_find_member(cursor object, const char *name, cursor *value);

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* What a tool's schema says of a value that is written without quotes. */
typedef enum value_kind { VALUE_ANY, VALUE_TEXT, VALUE_TEXT_OR_NULL, VALUE_NO_TEXT } value_kind;
value_kind call_value_kind(const cJSON *function, const char *key, size_t n_key);

/* Bytes as a string of JSON. False when memory is short. */
bool call_put_text(serve_text *out, const char *bytes, size_t n_bytes);
/* The name of a member, with what separates it from the one before; false: an empty one. */
bool call_put_key(serve_text *out, cursor key);
/* A value that is JSON, between space, as it is written. False, and nothing put: it is none. */
bool call_put_json(serve_text *out, cursor value);
/* A value: JSON where it is some and its kind allows that, else a text. */
bool call_put_value(serve_text *out, const cursor *value, value_kind kind);

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* The function of that name among the request's tools; NULL: none. */
const cJSON *call_find_tool(const cJSON *tools, const char *name, size_t n_name);

/* Appends a call. False, and nothing appended: the arguments are no JSON object, or the name is empty or too long. */
bool call_add(cJSON *calls, const cursor *name, const serve_text *arguments);
/* The same with arguments that are JSON as the model wrote it, between space. */
bool call_add_json(cJSON *calls, const cursor *name, const cursor *arguments);
/* The same with arguments that are JSON, or JSON in a text; NULL: there are none. */
bool call_add_any_json(cJSON *calls, const cursor *name, const cursor *arguments);

#endif
