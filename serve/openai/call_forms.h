/* The forms in which models write calls of tools, a file for each kind: JSON (calls_json.c), tags (calls_tags.c),
 * Python (calls_python.c) and Gemma's own (calls_gemma.c). tool_calls.c has the table of which style is which form.
 *
 * A taker reads all of a body, the text between the markers of a call, and appends calls; false: not all of it is
 * calls, and what was appended is not meant. tools: those of the request. A finder of ends is for bodies in which the
 * end marker may occur before their end: NULL where it is not there yet. is_last: no more of the answer will come, so
 * that the first end marker counts where a string or a tag is still open. */
#ifndef QRUN_SERVE_OPENAI_CALL_FORMS_H
#define QRUN_SERVE_OPENAI_CALL_FORMS_H

#include <cjson/cJSON.h>

#include "serve/openai/call_text.h"
#include "serve/openai/text.h"

/* The first end marker that follows the closing text, but for space; else, in the last call, the first. */
const char *calls_end_after(cursor body, const char *closing, const char *mark, bool is_last);

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

bool calls_take_json(cursor *c, const cJSON *tools, cJSON *calls); /* {"name", "arguments"} …, or a list of them */
bool calls_take_known_json(cursor *c, const cJSON *tools, cJSON *calls); /* the same, of tools of the request */
bool calls_take_mistral(cursor *c, const cJSON *tools, cJSON *calls);    /* [{…}, …], or name[ARGS]{…} */
bool calls_take_harmony(cursor *c, const cJSON *tools, cJSON *calls);    /* header<|message|>{…} */
bool calls_take_list(cursor *c, const cJSON *tools, cJSON *calls);       /* JSON, which "functools" may precede */
/* Calls between tokens of their own, in which the name and the arguments are separated by another. */
bool calls_take_deepseek(cursor *c, const cJSON *tools, cJSON *calls);
bool calls_take_kimi(cursor *c, const cJSON *tools, cJSON *calls);

/* Whether text at the beginning of an answer can still become {"name": …}. */
bool calls_json_may_begin(cursor text, const cJSON *tools);
/* The first end marker that does not stand in a string, of a body that begins as JSON; else the first. */
const char *calls_json_end(cursor body, const char *mark, bool is_last);
/* The first end marker after the token that ends a call. */
const char *calls_deepseek_end(cursor body, const char *mark, bool is_last);
const char *calls_kimi_end(cursor body, const char *mark, bool is_last);

/* ---- Tags -------------------------------------------------------------------------------------------------------- */

/* <function=name> <parameter=key> value </parameter> </function>, or JSON in its place. */
bool calls_take_tagged(cursor *c, const cJSON *tools, cJSON *calls);
bool calls_take_seed(cursor *c, const cJSON *tools, cJSON *calls); /* the same, where values are exact to the space */
/* name <arg_key>key</arg_key> <arg_value>value</arg_value> */
bool calls_take_arg_keys(cursor *c, const cJSON *tools, cJSON *calls);
/* <invoke name="name"> <parameter name="key">value</parameter> </invoke> */
bool calls_take_invoke(cursor *c, const cJSON *tools, cJSON *calls);

/* The first end marker after the tag that closes a call, or its last value; of JSON as above. */
const char *calls_tagged_end(cursor body, const char *mark, bool is_last);
const char *calls_seed_end(cursor body, const char *mark, bool is_last);
const char *calls_arg_keys_end(cursor body, const char *mark, bool is_last);
const char *calls_invoke_end(cursor body, const char *mark, bool is_last);

/* ---- Python ------------------------------------------------------------------------------------------------------ */

/* [name(key=value), …], or calls on lines of their own, or JSON in their place. */
bool calls_take_python(cursor *c, const cJSON *tools, cJSON *calls);
bool calls_take_known_python(cursor *c, const cJSON *tools, cJSON *calls); /* [name(…)] of tools of the request */
/* Whether text at the beginning of an answer can still become the latter. */
bool calls_python_may_begin(cursor text, const cJSON *tools);
/* The first end marker that does not stand in a text. */
const char *calls_python_end(cursor body, const char *mark, bool is_last);
/* A literal as JSON. False, and nothing put: it is none. */
bool calls_put_python(serve_text *out, cursor value);

/* ---- Gemma ------------------------------------------------------------------------------------------------------- */

bool calls_take_gemma(cursor *c, const cJSON *tools, cJSON *calls); /* call:name{key:value} */

#endif
