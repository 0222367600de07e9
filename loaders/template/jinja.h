/* A small interpreter of the Jinja template language, as far as chat templates use it. It does what Jinja2 3.1 does
 * with the settings of transformers: trim_blocks, lstrip_blocks, loop controls, the generation tag, its own tojson, and
 * the sandbox that forbids changing lists and dicts.
 *
 * Statements: if, for (filter, else, recursive, loop.*), set (also of namespaces, tuples, blocks), macro, call, filter,
 * with, generation, break, continue, raw. Expressions: Python's operators, literals, slices, filters, tests, methods.
 * Not supported: include, import, extends, block, do, autoescape, integers beyond 4,300 digits, \N{…} in strings. What
 * is not supported is refused with a message that names it.
 *
 * Templates and values come from outside: nesting, steps, memory and range lengths are limited, each with one clear
 * error, and nothing a template does reaches beyond its own arena. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_H
#define QR_LOADERS_TEMPLATE_JINJA_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "loaders/files/json.h"

/* Immutable after parsing: any number of threads may render it at once. */
typedef struct qr_jinja_template qr_jinja_template;

/* Parses text[0, n_bytes), UTF-8. `what` names the template in this and every later message. Errors carry the line:
 * QRUN_ERROR_INPUT. An unknown filter or test inside an {% if %} is an error only when it is reached, as in Jinja. */
qrun_status qr_jinja_parse(const char *text, size_t n_bytes, const char *what, qr_jinja_template **parsed,
                           qr_error *err);
void qr_jinja_free(qr_jinja_template *parsed); /* NULL is fine */

/* A variable of a rendering; what is not listed is undefined. Everything is lent and must last for the call. */
typedef struct qr_jinja_variable {
    const char *name;
    enum { QR_JINJA_GIVE_NONE, QR_JINJA_GIVE_BOOL, QR_JINJA_GIVE_TEXT, QR_JINJA_GIVE_JSON } kind;
    bool boolean;
    const char *text; /* UTF-8, NUL-terminated */
    const qr_json *json;
} qr_jinja_variable;

/* Appends the rendered text to out; nothing is appended when it fails. Of two variables with one name the later wins.
 * now: unix time for strftime_now, shown in local time. raise_exception(message) gives QRUN_ERROR_INPUT with exactly
 * that message; every other error names the template and the line. */
qrun_status qr_jinja_render(const qr_jinja_template *parsed, const qr_jinja_variable *variables, size_t n_variables,
                            int64_t now, qr_buffer *out, qr_error *err);

/* The same. *n_steps is how many steps it took, of QR_JINJA_MAX_STEPS (jinja_value.h), also where it failed. */
qrun_status qr_jinja_render_counted(const qr_jinja_template *parsed, const qr_jinja_variable *variables,
                                    size_t n_variables, int64_t now, qr_buffer *out, int64_t *n_steps, qr_error *err);

#endif
