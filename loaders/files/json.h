/* JSON from outside, checked strictly: RFC 8259 grammar, UTF-8, depth, duplicate keys, the range of integers. The tree
 * has cJSON's nodes and works with its predicates (cJSON_IsArray …), but it is made here and lives in an arena: read
 * it, never change it, and free it with qr_json_free only. The accessors add the checks that a reader of untrusted
 * values needs. */
#ifndef QR_LOADERS_FILES_JSON_H
#define QR_LOADERS_FILES_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"

typedef struct cJSON qr_json;

enum {
    QR_JSON_MAX_DEPTH = 128,
    QR_JSON_FLOAT = 1 << 16 /* in the type of a number that was written with a fraction or exponent, such as 1.0 */
};

/* Parses text[0, n_bytes). `what` names the text in messages (a file name, "line 12"); the message carries line and
 * column. A leading byte-order mark is refused. Integers that a double would round are refused unless written with a
 * fraction or exponent. So are numbers too large for a double, half surrogate pairs, and \u0000, because strings here
 * end in NUL. Memory comes from qr_alloc. */
qrun_status qr_json_parse(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err);

/* The same for text that came as a line or an argument: messages name the position in words ("line 12, column 3: …"),
 * and the line within the text only where there are several. */
qrun_status qr_json_parse_line(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err);

/* qr_json_parse for what Python has written: Infinity and -Infinity are numbers too, and qr_json_append writes them so.
 */
qrun_status qr_json_parse_python(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err);

/* qr_json_parse for a file; what = path. Refuses more than max_bytes. */
qrun_status qr_json_read(const char *path, size_t max_bytes, qr_json **root, qr_error *err);

void qr_json_free(qr_json *root); /* NULL is fine; frees the whole tree of a root */

/* Appends the value as JSON without spaces. Numbers read back as the same value, and integers as integers. */
void qr_json_append(qr_buffer *out, const qr_json *value);

/* Member of an object (exact, case-sensitive name), or NULL: also when object is NULL or not an object. JSON null
 * counts as present here; qr_json_is_null tells. */
const qr_json *qr_json_get(const qr_json *object, const char *key);
bool qr_json_is_null(const qr_json *value); /* true for NULL too */

/* The one rule of what an integer is: a number written in digits, so not 2.0, 2e3 or -0, of at most 2^53 and in
 * [low, high]. False leaves *integer untouched; a value of NULL or of another type is false too. */
bool qr_json_as_int(const qr_json *value, int64_t low, int64_t high, int64_t *integer);

/* Typed members of an object. Absent or null leaves *value untouched and succeeds, so set the default first; another
 * type or a value out of [low, high] fails with a message naming `what` and the key. Strings lend from the tree. */
qrun_status qr_json_get_int(const qr_json *object, const char *key, int64_t low, int64_t high, int64_t *value,
                            const char *what, qr_error *err);
qrun_status qr_json_get_double(const qr_json *object, const char *key, double low, double high, double *value,
                               const char *what, qr_error *err);
qrun_status qr_json_get_bool(const qr_json *object, const char *key, bool *value, const char *what, qr_error *err);
/* Of a switch that is on by default in a file of Python's: null is off, as None is there. */
qrun_status qr_json_get_switch(const qr_json *object, const char *key, bool *value, const char *what, qr_error *err);
qrun_status qr_json_get_string(const qr_json *object, const char *key, const char **value, const char *what,
                               qr_error *err);

/* for (const qr_json *item = qr_json_first(array_or_object); item != NULL; item = item->next) …; an object's items
 * carry their names in item->string. */
const qr_json *qr_json_first(const qr_json *container);
size_t qr_json_count(const qr_json *container); /* its items; 0 for NULL */

/* Whether both hold the same, the members of objects in the same order. */
bool qr_json_equal(const qr_json *a, const qr_json *b);

#endif
