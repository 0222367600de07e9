/* Whether alternatives of "oneOf" have values in common. Where they surely have none, "one of" and "any of" are the
 * same.
 */
#include <string.h>

#include "base/sizes.h"
#include "runtime/grammar/schema_compiler.h"

enum { MAX_REFS = 16, MAX_ALTERNATIVES = 256, MAX_COMPARED = 1 << 22, PAIR_COMPARED = 8 };

/* Follows "$ref"; NULL where that leads nowhere. */
static const qr_json *target_of(qr_schema_compiler *compiler, const qr_json *schema) {
    const qr_schema_path root = {.parent = NULL, .name = "#"};
    for (int i = 0; i < MAX_REFS && qr_json_get(schema, "$ref") != NULL; i++) {
        if (qr_schema_resolve(compiler, schema, &root, &schema) != QRUN_OK) { return NULL; }
    }
    return schema;
}

/* The types of the values that are listed; 0: none are. */
static unsigned types_of_listed(qr_schema_compiler *compiler, const qr_json *schema) {
    const qr_json *constant = qr_json_get(schema, "const"), *values = qr_json_get(schema, "enum");
    unsigned types = constant != NULL ? qr_schema_type_of_value(constant) : 0;
    for (const qr_json *value = qr_json_first(values); value != NULL && constant == NULL; value = value->next) {
        if (++compiler->n_compared > MAX_COMPARED) { return QR_TYPE_ALL; }
        types |= qr_schema_type_of_value(value);
    }
    return types;
}

/* The types that a value may have, where INTEGER and NUMBER are one. Without "type" a schema accepts values of all
 * types, and its answers are `made` of those that its keywords are about. */
static unsigned types_of(qr_schema_compiler *compiler, const qr_json *schema, bool made) {
    unsigned types = qr_schema_types(schema);
    if (types == 0) { types = types_of_listed(compiler, schema); }
    if (types == 0) { types = made ? qr_schema_types_of_keywords(schema) : QR_TYPE_ALL; }
    if ((types & QR_TYPE_INTEGER) != 0) { types |= QR_TYPE_NUMBER; }
    if (cJSON_IsTrue(qr_json_get(schema, "nullable"))) { types |= QR_TYPE_NULL; }
    return types & QR_TYPE_ALL;
}

/* Whether two values are surely not the same; the parts of lists and objects are not looked at. 1.0 is 1. */
static bool differ(const qr_json *a, const qr_json *b) {
    const unsigned type = qr_schema_type_of_value(a);
    if (type != qr_schema_type_of_value(b)) { return true; }
    if (type == QR_TYPE_STRING) { return strcmp(a->valuestring, b->valuestring) != 0; }
    if (type == QR_TYPE_NUMBER) { return a->valuedouble != b->valuedouble; }
    return type == QR_TYPE_BOOLEAN && cJSON_IsTrue(a) != cJSON_IsTrue(b);
}

/* Whether `value` may be among the values that are all that a schema allows; *closed: it has such a list. */
static bool allows_value(qr_schema_compiler *compiler, const qr_json *schema, const qr_json *value, bool *closed) {
    const qr_json *constant = qr_json_get(schema, "const"), *values = qr_json_get(schema, "enum");
    *closed = constant != NULL || cJSON_IsArray(values);
    if (constant != NULL) { return !differ(constant, value); }
    for (const qr_json *listed = qr_json_first(values); listed != NULL; listed = listed->next) {
        if (++compiler->n_compared > MAX_COMPARED || !differ(listed, value)) { return true; }
    }
    return !*closed;
}

/* Whether both allow listed values alone, and none that is in both lists. "nullable" adds nothing to a list. */
static bool lists_exclude(qr_schema_compiler *compiler, const qr_json *a, const qr_json *b) {
    const qr_json *constant = qr_json_get(a, "const"), *values = qr_json_get(a, "enum");
    bool closed = false;
    if (constant != NULL) { return !allows_value(compiler, b, constant, &closed) && closed; }
    for (const qr_json *value = qr_json_first(values); value != NULL; value = value->next) {
        if (allows_value(compiler, b, value, &closed)) { return false; }
    }
    return qr_json_first(values) != NULL && closed;
}

static bool requires(const qr_json *schema, const char *name) {
    const qr_json *required = qr_json_get(schema, "required");
    for (const qr_json *item = qr_json_first(required); item != NULL; item = item->next) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) { return true; }
    }
    return false;
}

/* Whether a member that both require tells two objects apart. */
static bool members_exclude(qr_schema_compiler *compiler, const qr_json *a, const qr_json *b) {
    const qr_json *members = qr_json_get(a, "properties"), *others = qr_json_get(b, "properties");
    const size_t n_names =
        qr_json_count(others) + qr_json_count(qr_json_get(a, "required")) + qr_json_count(qr_json_get(b, "required"));
    for (const qr_json *member = qr_json_first(members); member != NULL; member = member->next) {
        const bool has_list = qr_json_get(member, "const") != NULL || qr_json_get(member, "enum") != NULL;
        compiler->n_compared += has_list ? 1 + (int64_t)n_names : 1;
        if (compiler->n_compared > MAX_COMPARED) { return false; }
        const qr_json *other = has_list ? qr_json_get(others, member->string) : NULL;
        if (other != NULL && requires(a, member->string) && requires(b, member->string) &&
            lists_exclude(compiler, member, other)) {
            return true;
        }
    }
    return false;
}

static bool exclude(qr_schema_compiler *compiler, const qr_json *a, const qr_json *b) {
    compiler->n_compared += PAIR_COMPARED; /* about as many names are looked for below */
    if (compiler->n_compared > MAX_COMPARED) { return false; }
    const unsigned common = (types_of(compiler, a, true) & types_of(compiler, b, false)) |
                            (types_of(compiler, a, false) & types_of(compiler, b, true));
    if (common == 0) { return true; }
    return lists_exclude(compiler, a, b) || (common == QR_TYPE_OBJECT && members_exclude(compiler, a, b));
}

bool qr_schema_alternatives_exclude(qr_schema_compiler *compiler, const qr_json *alternatives) {
    const qr_json *targets[MAX_ALTERNATIVES];
    size_t n = 0;
    for (const qr_json *item = qr_json_first(alternatives); item != NULL; item = item->next) {
        if (n == MAX_ALTERNATIVES) { return false; }
        const qr_json *target = target_of(compiler, item);
        if (target != item && cJSON_IsTrue(qr_json_get(item, "nullable"))) { return false; }
        if (!cJSON_IsObject(target) || qr_json_get(target, "anyOf") != NULL || qr_json_get(target, "oneOf") != NULL ||
            qr_json_get(target, "allOf") != NULL || qr_json_get(target, "$ref") != NULL) {
            return false;
        }
        for (size_t i = 0; i < n; i++) {
            if (!exclude(compiler, targets[i], target)) { return false; }
        }
        targets[n++] = target;
    }
    return true;
}
