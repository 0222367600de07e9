#include "runtime/grammar/schema.h"

#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/sizes.h"
#include "runtime/grammar/schema_compiler.h"

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void print_path(const qr_schema_path *path, qr_buffer *out) {
    if (path->parent == NULL) {
        qr_buffer_append_text(out, path->name);
        return;
    }
    print_path(path->parent, out);
    if (path->name != NULL) {
        qr_buffer_append_format(out, "/%.60s", path->name);
    } else {
        qr_buffer_append_format(out, "/%lld", (long long)path->index);
    }
}

qrun_status qr_schema_refuse(qr_schema_compiler *compiler, qrun_status status, const qr_schema_path *path,
                             const char *fmt, ...) {
    enum { SHOWN_BYTES = 160 };
    qr_buffer where = {0};
    char why[256];
    va_list args;
    print_path(path, &where);
    va_start(args, fmt);
    qr_vformat(why, sizeof why, fmt, args);
    va_end(args);
    const char *text = qr_buffer_ok(&where) ? where.data : "#";
    const bool is_long = strlen(text) > SHOWN_BYTES;
    status = qr_fail(compiler->err, status, "%s%s: %s", is_long ? "…" : "",
                     is_long ? text + strlen(text) - SHOWN_BYTES : text, why);
    qr_buffer_free(&where);
    return status;
}

/* ---- Keywords ---------------------------------------------------------------------------------------------------- */

typedef enum keyword_group {
    GROUP_NONE,   /* says nothing about a value */
    GROUP_TYPE,   /* "type" */
    GROUP_VALUES, /* lists values */
    GROUP_OTHERS, /* other schemas in its place */
    GROUP_OBJECT,
    GROUP_ARRAY,
    GROUP_STRING,
    GROUP_NUMBER,
    GROUP_REFUSED,
} keyword_group;

static const struct {
    const char *name;
    keyword_group group;
} keywords[] = {
    {"$schema", GROUP_NONE},
    {"$id", GROUP_NONE},
    {"$comment", GROUP_NONE},
    {"$defs", GROUP_NONE},
    {"definitions", GROUP_NONE},
    {"title", GROUP_NONE},
    {"description", GROUP_NONE},
    {"default", GROUP_NONE},
    {"example", GROUP_NONE},
    {"examples", GROUP_NONE},
    {"deprecated", GROUP_NONE},
    {"readOnly", GROUP_NONE},
    {"writeOnly", GROUP_NONE},
    {"discriminator", GROUP_NONE}, /* of OpenAPI: what it says, the alternatives say too */
    {"contentEncoding", GROUP_NONE},
    {"contentMediaType", GROUP_NONE},
    {"nullable", GROUP_NONE}, /* read apart */
    {"type", GROUP_TYPE},
    {"enum", GROUP_VALUES},
    {"const", GROUP_VALUES},
    {"$ref", GROUP_OTHERS},
    {"anyOf", GROUP_OTHERS},
    {"oneOf", GROUP_OTHERS},
    {"allOf", GROUP_OTHERS},
    {"properties", GROUP_OBJECT},
    {"required", GROUP_OBJECT},
    {"additionalProperties", GROUP_OBJECT},
    {"items", GROUP_ARRAY},
    {"prefixItems", GROUP_ARRAY},
    {"additionalItems", GROUP_ARRAY},
    {"minItems", GROUP_ARRAY},
    {"maxItems", GROUP_ARRAY},
    {"minLength", GROUP_STRING},
    {"maxLength", GROUP_STRING},
    {"pattern", GROUP_STRING},
    {"format", GROUP_STRING},
    {"minimum", GROUP_NUMBER},
    {"maximum", GROUP_NUMBER},
    {"exclusiveMinimum", GROUP_NUMBER},
    {"exclusiveMaximum", GROUP_NUMBER},
    {"multipleOf", GROUP_NUMBER},
};

static keyword_group group_of(const char *name) {
    for (size_t i = 0; i < QR_COUNT_OF(keywords); i++) {
        if (strcmp(keywords[i].name, name) == 0) { return keywords[i].group; }
    }
    return strncmp(name, "x-", 2) == 0 ? GROUP_NONE : GROUP_REFUSED;
}

/* "uniqueItems": false and the like constrain nothing. */
static bool is_without_effect(const qr_json *member) {
    return (strcmp(member->string, "uniqueItems") == 0 && cJSON_IsFalse(member)) ||
           (strcmp(member->string, "minProperties") == 0 && cJSON_IsNumber(member) && member->valuedouble <= 0);
}

/* Refuses what is not known. *groups: a bit for each group that the schema has a keyword of. */
static qrun_status read_groups(qr_schema_compiler *compiler, const qr_schema_place *place, unsigned *groups) {
    *groups = 0;
    for (const qr_json *member = qr_json_first(place->schema); member != NULL; member = member->next) {
        const keyword_group group = group_of(member->string);
        if (group == GROUP_REFUSED && !is_without_effect(member)) {
            return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                    "\"%.60s\" is not supported; leave it out, or check it in the answer",
                                    member->string);
        }
        if (group != GROUP_REFUSED) { *groups |= 1U << group; }
    }
    if (place->schema != compiler->root && qr_json_get(place->schema, "$id") != NULL) {
        /* within it, "#" would be this schema, and not the root */
        return qr_schema_refuse(
            compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
            "\"$id\" below the root is not supported; leave it out, and write each \"$ref\" from the "
            "root");
    }
    return QRUN_OK;
}

/* The first keyword beside `name` that says something about values; NULL: there is none. */
static const char *other_keyword(const qr_json *schema, const char *name, unsigned allowed) {
    for (const qr_json *member = qr_json_first(schema); member != NULL; member = member->next) {
        const keyword_group group = group_of(member->string);
        if (strcmp(member->string, name) != 0 && group != GROUP_NONE && group != GROUP_REFUSED &&
            (allowed >> group & 1) == 0) {
            return member->string;
        }
    }
    return NULL;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    qr_schema_type type;
} types[] = {
    {"object", QR_TYPE_OBJECT},   {"array", QR_TYPE_ARRAY},     {"string", QR_TYPE_STRING}, {"number", QR_TYPE_NUMBER},
    {"integer", QR_TYPE_INTEGER}, {"boolean", QR_TYPE_BOOLEAN}, {"null", QR_TYPE_NULL},
};

static unsigned type_named(const qr_json *name) {
    for (size_t i = 0; cJSON_IsString(name) && i < QR_COUNT_OF(types); i++) {
        if (strcmp(name->valuestring, types[i].name) == 0) { return types[i].type; }
    }
    return 0;
}

unsigned qr_schema_types(const qr_json *schema) {
    const qr_json *type = qr_json_get(schema, "type");
    unsigned found = type_named(type);
    if (!cJSON_IsArray(type)) { return found; }
    for (const qr_json *item = qr_json_first(type); item != NULL; item = item->next) {
        const unsigned named = type_named(item);
        if (named == 0) { return 0; }
        found |= named;
    }
    return found;
}

/* Without "type", the types whose keywords there are; without these, all. */
static unsigned types_of_groups(unsigned groups) {
    static const struct {
        keyword_group group;
        unsigned types;
    } by_group[] = {{GROUP_OBJECT, QR_TYPE_OBJECT},
                    {GROUP_ARRAY, QR_TYPE_ARRAY},
                    {GROUP_STRING, QR_TYPE_STRING},
                    {GROUP_NUMBER, QR_TYPE_NUMBER}};
    unsigned found = 0;
    for (size_t i = 0; i < QR_COUNT_OF(by_group); i++) {
        if ((groups >> by_group[i].group & 1) != 0) { found |= by_group[i].types; }
    }
    return found != 0 ? found : QR_TYPE_ALL;
}

unsigned qr_schema_types_of_keywords(const qr_json *schema) {
    unsigned groups = 0;
    for (const qr_json *member = qr_json_first(schema); member != NULL; member = member->next) {
        groups |= 1U << group_of(member->string);
    }
    return types_of_groups(groups);
}

unsigned qr_schema_type_of_value(const qr_json *value) {
    return cJSON_IsObject(value)   ? QR_TYPE_OBJECT
           : cJSON_IsArray(value)  ? QR_TYPE_ARRAY
           : cJSON_IsString(value) ? QR_TYPE_STRING
           : cJSON_IsBool(value)   ? QR_TYPE_BOOLEAN
           : cJSON_IsNull(value)   ? QR_TYPE_NULL
                                   : QR_TYPE_NUMBER;
}

static bool value_has_type(const qr_json *value, unsigned wanted) {
    int64_t integer;
    const bool is_integer = qr_json_as_int(value, INT64_MIN, INT64_MAX, &integer);
    return (wanted & qr_schema_type_of_value(value)) != 0 || ((wanted & QR_TYPE_INTEGER) != 0 && is_integer);
}

static qrun_status add_types(qr_schema_compiler *compiler, const qr_schema_place *place, unsigned wanted) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    if ((wanted & QR_TYPE_NULL) != 0) { qr_automaton_add_text(builder, place->from, "null", place->to); }
    if ((wanted & QR_TYPE_BOOLEAN) != 0) {
        qr_automaton_add_text(builder, place->from, "true", place->to);
        qr_automaton_add_text(builder, place->from, "false", place->to);
    }
    if ((wanted & QR_TYPE_OBJECT) != 0) { QR_RETURN_IF_ERROR(qr_schema_add_object(compiler, place)); }
    if ((wanted & QR_TYPE_ARRAY) != 0) { QR_RETURN_IF_ERROR(qr_schema_add_array(compiler, place)); }
    if ((wanted & QR_TYPE_STRING) != 0) { QR_RETURN_IF_ERROR(qr_schema_add_string(compiler, place)); }
    if ((wanted & QR_TYPE_NUMBER) != 0) { return qr_schema_add_number(compiler, place); }
    return (wanted & QR_TYPE_INTEGER) != 0 ? qr_schema_add_integer(compiler, place) : QRUN_OK;
}

/* ---- Values that are listed -------------------------------------------------------------------------------------- */

static qrun_status add_listed(qr_schema_compiler *compiler, const qr_schema_place *place, const qr_json *value,
                              unsigned wanted, int32_t root) {
    qr_buffer text = {0};
    if (!value_has_type(value, wanted)) { return QRUN_OK; }
    qr_json_append(&text, value);
    if (!qr_buffer_ok(&text)) {
        qr_buffer_free(&text);
        return qr_fail_memory(compiler->err, "a grammar", 0);
    }
    qr_automaton_merge_text(&compiler->pieces.builder, root, text.data, place->to);
    qr_buffer_free(&text);
    return QRUN_OK;
}

static qrun_status add_values(qr_schema_compiler *compiler, const qr_schema_place *place) {
    const qr_json *values = qr_json_get(place->schema, "enum"), *constant = qr_json_get(place->schema, "const");
    const char *name = values != NULL ? "enum" : "const";
    const char *other = other_keyword(place->schema, name, 1U << GROUP_TYPE);
    const unsigned named = qr_schema_types(place->schema);
    const unsigned null = cJSON_IsTrue(qr_json_get(place->schema, "nullable")) ? QR_TYPE_NULL : 0;
    const unsigned wanted = named != 0 ? named | null : QR_TYPE_ALL;
    if (other != NULL) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%.60s\" beside \"%s\" is not supported; list only the values that fit both", other,
                                name);
    }
    if (values != NULL && (!cJSON_IsArray(values) || qr_json_first(values) == NULL)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"enum\" must be a list of values");
    }
    const int32_t root = qr_automaton_add_state(&compiler->pieces.builder);
    qr_automaton_add_empty(&compiler->pieces.builder, place->from, root);
    if (values == NULL) { return add_listed(compiler, place, constant, wanted, root); }
    for (const qr_json *value = qr_json_first(values); value != NULL; value = value->next) {
        QR_RETURN_IF_ERROR(add_listed(compiler, place, value, wanted, root));
    }
    return QRUN_OK;
}

/* ---- Other schemas in the place of one --------------------------------------------------------------------------- */

/* The JSON pointer that is written after "#": "%20" is a byte (RFC 6901, section 6). False: a "%" stands for none, or
 * for NUL, which no name has. */
static bool decode_fragment(const char *fragment, qr_buffer *pointer) {
    for (const char *c = fragment; *c != '\0'; c++) {
        char byte = *c;
        if (byte == '%') {
            const int high = qr_hex_digit(c[1]), low = high >= 0 ? qr_hex_digit(c[2]) : -1;
            if (low < 0 || high + low == 0) { return false; }
            byte = (char)(high << 4 | low);
            c += 2;
        }
        qr_buffer_append_char(pointer, byte);
    }
    qr_buffer_append_char(pointer, '\0');
    return true;
}

/* Ends a part of a pointer where the next "/" is, and decodes it in place: "~1" is "/", "~0" is "~". The part after it;
 * NULL: it was the last. */
static char *cut_part(char *part) {
    char *out = part;
    while (*part != '\0' && *part != '/') {
        char c = *part++;
        if (c == '~' && (*part == '0' || *part == '1')) { c = *part++ == '0' ? '~' : '/'; }
        *out++ = c;
    }
    char *next = *part == '/' ? part + 1 : NULL;
    *out = '\0';
    return next;
}

static const qr_json *item_at(const qr_json *array, const char *digits) {
    int64_t index = 0;
    for (const char *c = digits; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || index > INT32_MAX) { return NULL; }
        index = index * 10 + (*c - '0');
    }
    const qr_json *item = qr_json_first(array);
    for (int64_t i = 0; i < index && item != NULL; i++) { item = item->next; }
    return digits[0] != '\0' ? item : NULL;
}

/* Where a pointer leads; its text is used up. `ref` is how it was written. */
static qrun_status follow_pointer(qr_schema_compiler *compiler, char *pointer, const char *ref,
                                  const qr_schema_path *path, const qr_json **target) {
    const qr_json *found = compiler->root;
    char *part = pointer[0] == '/' ? pointer + 1 : NULL, *next;
    for (; part != NULL && found != NULL; part = next) {
        next = cut_part(part);
        if (found != compiler->root && cJSON_IsString(qr_json_get(found, "$id"))) {
            return qr_schema_refuse(
                compiler, QRUN_ERROR_UNSUPPORTED, path,
                "\"$ref\": \"%.80s\" leads into a schema with an \"$id\" of its own; leave that out", ref);
        }
        found = cJSON_IsArray(found) ? item_at(found, part) : qr_json_get(found, part);
    }
    *target = found;
    if (found != NULL) { return QRUN_OK; }
    return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, path, "\"$ref\": the schema has no \"%.120s\"", ref);
}

qrun_status qr_schema_resolve(qr_schema_compiler *compiler, const qr_json *schema, const qr_schema_path *path,
                              const qr_json **target) {
    const qr_json *member = qr_json_get(schema, "$ref");
    const char *ref = cJSON_IsString(member) ? member->valuestring : "";
    const bool is_here = ref[0] == '#';
    qr_buffer pointer = {0};
    qrun_status status;
    *target = NULL;
    if (is_here && !decode_fragment(ref + 1, &pointer)) {
        status = qr_schema_refuse(compiler, QRUN_ERROR_INPUT, path,
                                  "\"$ref\": after each \"%%\" of \"%.80s\" must be two hexadecimal digits, not 00; "
                                  "\"%%25\" is \"%%\" itself",
                                  ref);
    } else if (is_here && !qr_buffer_ok(&pointer)) {
        status = qr_fail_memory(compiler->err, "a grammar", strlen(ref));
    } else if (!is_here || (pointer.data[0] != '\0' && pointer.data[0] != '/')) {
        status = qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, path,
                                  "\"$ref\" must be a place in this schema, such as \"#/$defs/name\"");
    } else {
        status = follow_pointer(compiler, pointer.data, ref, path, target);
    }
    qr_buffer_free(&pointer);
    return status;
}

static qrun_status find_rule(qr_schema_compiler *compiler, const qr_json *schema, const qr_schema_path *path,
                             int32_t *rule) {
    for (size_t i = 0; i < compiler->n_rules; i++) {
        *rule = compiler->rules[i].rule;
        if (compiler->rules[i].schema == schema) { return QRUN_OK; }
    }
    QR_RETURN_IF_ERROR(qr_array_grow(&compiler->rules, &compiler->rules_capacity, compiler->n_rules + 1,
                                     sizeof *compiler->rules, "a grammar", compiler->err));
    qr_buffer where = {0};
    print_path(path, &where);
    char *text = qr_buffer_take(&where);
    if (text == NULL) { return qr_fail_memory(compiler->err, "a grammar", 0); }
    *rule = qr_automaton_add_rule(&compiler->pieces.builder);
    compiler->rules[compiler->n_rules++] = (qr_schema_rule){schema, *rule, text};
    return compiler->pieces.builder.status;
}

qrun_status qr_schema_call(qr_schema_compiler *compiler, const qr_schema_place *place) {
    int32_t rule;
    QR_RETURN_IF_ERROR(find_rule(compiler, place->schema, &place->path, &rule));
    qr_automaton_add_call(&compiler->pieces.builder, place->from, rule, place->to);
    if (!place->begins) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_array_grow(&compiler->begins, &compiler->begins_capacity, compiler->n_begins + 1,
                                     sizeof *compiler->begins, "a grammar", compiler->err));
    compiler->begins[compiler->n_begins++] = (qr_schema_begin){compiler->current_rule, rule};
    return QRUN_OK;
}

static qrun_status add_alternatives(qr_schema_compiler *compiler, const qr_schema_place *place, const char *name) {
    const qr_json *list = qr_json_get(place->schema, name);
    const qr_schema_path path = {.parent = &place->path, .name = name};
    if (!cJSON_IsArray(list) || qr_json_first(list) == NULL) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"%s\" must be a list of schemas", name);
    }
    if (strcmp(name, "allOf") == 0 && qr_json_count(list) > 1) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &path,
                                "\"allOf\" of several schemas is not supported; write them as one");
    }
    if (strcmp(name, "oneOf") == 0 && !qr_schema_alternatives_exclude(compiler, list)) {
        if (compiler->err != NULL && compiler->err->status != QRUN_OK) { return compiler->err->status; }
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &path,
                                "the alternatives of \"oneOf\" may have values in common, or are more than the 256 "
                                "that are compared; use \"anyOf\"");
    }
    int64_t index = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, index++) {
        const qr_schema_place alternative = {.schema = item,
                                             .path = {.parent = &path, .index = index},
                                             .from = place->from,
                                             .to = place->to,
                                             .begins = place->begins};
        QR_RETURN_IF_ERROR(qr_schema_add(compiler, &alternative));
    }
    return QRUN_OK;
}

static qrun_status add_others(qr_schema_compiler *compiler, const qr_schema_place *place) {
    static const char *const names[] = {"$ref", "anyOf", "oneOf", "allOf"};
    size_t i = 0;
    while (qr_json_get(place->schema, names[i]) == NULL) { i++; }
    const char *other = other_keyword(place->schema, names[i], 0);
    if (other != NULL) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%.60s\" beside \"%s\" is not supported; move it into what that names", other,
                                names[i]);
    }
    if (i > 0) { return add_alternatives(compiler, place, names[i]); }
    qr_schema_place target = *place;
    QR_RETURN_IF_ERROR(qr_schema_resolve(compiler, place->schema, &place->path, &target.schema));
    target.path = (qr_schema_path){.parent = NULL, .name = qr_json_get(place->schema, "$ref")->valuestring};
    return qr_schema_call(compiler, &target);
}

/* ---- One schema -------------------------------------------------------------------------------------------------- */

qrun_status qr_schema_count(qr_schema_compiler *compiler, const qr_schema_place *place, const char *key,
                            int64_t *count) {
    const qr_json *member = qr_json_get(place->schema, key);
    *count = -1;
    if (member == NULL) { return QRUN_OK; }
    if (cJSON_IsNumber(member) && member->valuedouble >= 0 && member->valuedouble <= INT32_MAX &&
        member->valuedouble == (double)(int64_t)member->valuedouble) {
        *count = (int64_t)member->valuedouble;
        return QRUN_OK;
    }
    return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path,
                            "\"%s\" must be a whole number from 0 to 2147483647", key);
}

/* A list of values has null itself, or it is not allowed (OpenAPI 3.0.3). */
static qrun_status add_nullable(qr_schema_compiler *compiler, const qr_schema_place *place, bool has_list) {
    const qr_json *nullable = qr_json_get(place->schema, "nullable");
    if (nullable == NULL) { return QRUN_OK; }
    if (!cJSON_IsBool(nullable)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"nullable\" must be true or false");
    }
    if (cJSON_IsTrue(nullable) && !has_list) {
        qr_automaton_add_text(&compiler->pieces.builder, place->from, "null", place->to);
    }
    return QRUN_OK;
}

qrun_status qr_schema_add(qr_schema_compiler *compiler, const qr_schema_place *place) {
    unsigned groups;
    if (compiler->pieces.builder.status != QRUN_OK) { return compiler->pieces.builder.status; }
    if (cJSON_IsTrue(place->schema)) { qr_add_value(&compiler->pieces, place->from, place->to); }
    if (cJSON_IsBool(place->schema)) { return QRUN_OK; }
    if (!cJSON_IsObject(place->schema)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "a schema must be an object, true or false");
    }
    QR_RETURN_IF_ERROR(read_groups(compiler, place, &groups));
    QR_RETURN_IF_ERROR(add_nullable(compiler, place, (groups >> GROUP_VALUES & 1) != 0));
    if ((groups >> GROUP_OTHERS & 1) != 0) { return add_others(compiler, place); }
    const unsigned named = qr_schema_types(place->schema);
    if (named == 0 && (groups >> GROUP_TYPE & 1) != 0) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path,
                                "\"type\" must be object, array, string, number, integer, boolean or null, or a list "
                                "of these");
    }
    if ((groups >> GROUP_VALUES & 1) != 0) { return add_values(compiler, place); }
    if (named == 0 && groups >> GROUP_TYPE == 0) {
        qr_add_value(&compiler->pieces, place->from, place->to);
        return QRUN_OK;
    }
    return add_types(compiler, place, named != 0 ? named : types_of_groups(groups));
}

/* ---- Text without quotes ----------------------------------------------------------------------------------------- */

static qrun_status add_bare_value(qr_schema_compiler *compiler, const qr_schema_place *place, const qr_json *value) {
    if (!cJSON_IsString(value)) { return QRUN_OK; }
    if (!qr_tagged_text_fits(&compiler->closing, value->valuestring)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%.60s\" would end the call that it stands in", value->valuestring);
    }
    qr_automaton_add_text_or_none(&compiler->pieces.builder, place->from, value->valuestring, place->to);
    return compiler->pieces.builder.status;
}

qrun_status qr_schema_add_bare_text(qr_schema_compiler *compiler, const qr_schema_place *place) {
    const qr_json *values = qr_json_get(place->schema, "enum"), *constant = qr_json_get(place->schema, "const");
    const char *other = other_keyword(place->schema, "type", 1U << GROUP_VALUES);
    unsigned groups;
    QR_RETURN_IF_ERROR(read_groups(compiler, place, &groups));
    if (other != NULL || (values != NULL && constant != NULL)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%.60s\" is not supported of a text that is written without quotes; leave it out, or "
                                "check it in the answer",
                                other != NULL ? other : "const");
    }
    if ((groups >> GROUP_VALUES & 1) == 0) {
        qr_add_tagged_text(compiler, place->from, place->to);
        return compiler->pieces.builder.status;
    }
    if (values == NULL) { return add_bare_value(compiler, place, constant); }
    for (const qr_json *value = qr_json_first(values); value != NULL; value = value->next) {
        QR_RETURN_IF_ERROR(add_bare_value(compiler, place, value));
    }
    return QRUN_OK;
}

qrun_status qr_schema_require_object(qr_schema_compiler *compiler, const qr_schema_place *place) {
    const unsigned allowed = 1U << GROUP_NONE | 1U << GROUP_TYPE | 1U << GROUP_OBJECT;
    unsigned groups = 0;
    QR_RETURN_IF_ERROR(read_groups(compiler, place, &groups));
    const bool is_named = qr_schema_types(place->schema) == QR_TYPE_OBJECT;
    const bool is_meant = (groups & ~(1U << GROUP_NONE)) == 1U << GROUP_OBJECT;
    if ((groups & ~allowed) == 0 && (is_named || is_meant)) { return QRUN_OK; }
    return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                            "must be an object, said by \"type\" and \"properties\" and nothing beside them");
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* A schema that is itself before any byte of it is read would never end. Takes out rules that begin with no other, and
 * then what begins with these alone, until nothing is left. */
static qrun_status check_begins(qr_schema_compiler *compiler) {
    const size_t n_rules = compiler->pieces.builder.n_rules;
    int32_t *n_left = qr_alloc_array_zeroed(n_rules, sizeof *n_left);
    if (n_left == NULL) { return qr_fail_memory(compiler->err, "a grammar", n_rules * sizeof *n_left); }
    size_t n_begins = compiler->n_begins;
    for (size_t i = 0; i < n_begins; i++) { n_left[compiler->begins[i].rule]++; }
    for (bool changed = true; changed && n_begins > 0;) {
        size_t kept = 0;
        for (size_t i = 0; i < n_begins; i++) {
            const qr_schema_begin begin = compiler->begins[i];
            if (n_left[begin.other] > 0) {
                compiler->begins[kept++] = begin;
            } else {
                n_left[begin.rule]--;
            }
        }
        changed = kept < n_begins;
        n_begins = kept;
    }
    qr_free(n_left);
    if (n_begins == 0) { return QRUN_OK; }
    return qr_fail(compiler->err, QRUN_ERROR_INPUT,
                   "a \"$ref\" of the schema leads back to itself with nothing between");
}

/* Rules may add further ones while they are built. */
static qrun_status build_rules(qr_schema_compiler *compiler) {
    for (; compiler->n_done < compiler->n_rules; compiler->n_done++) {
        const qr_schema_rule rule = compiler->rules[compiler->n_done];
        const qr_grammar_rule states = compiler->pieces.builder.rules[rule.rule];
        const qr_schema_place place = {.schema = rule.schema,
                                       .path = {.parent = NULL, .name = rule.where},
                                       .from = states.start,
                                       .to = states.end,
                                       .begins = true};
        compiler->current_rule = rule.rule;
        QR_RETURN_IF_ERROR(qr_schema_add(compiler, &place));
    }
    return compiler->pieces.builder.status;
}

static void free_compiler(qr_schema_compiler *compiler) {
    qr_automaton_builder_free(&compiler->pieces.builder);
    for (size_t i = 0; i < compiler->n_rules; i++) { qr_free(compiler->rules[i].where); }
    qr_free(compiler->rules);
    qr_free(compiler->begins);
}

qrun_status qr_schema_compile(const qr_json *root, qr_automaton *made, qr_error *err) {
    qr_schema_compiler compiler = {.root = root, .err = err, .pieces = {.builder = {.err = err}}};
    const qr_schema_path path = {.parent = NULL, .name = "#"};
    qrun_status status;
    int32_t first;
    *made = (qr_automaton){0};
    QR_TRY(find_rule(&compiler, root, &path, &first));
    QR_TRY(build_rules(&compiler));
    QR_TRY(check_begins(&compiler));
    QR_TRY(qr_automaton_finish(&compiler.pieces.builder, made, err));
out:
    free_compiler(&compiler);
    return status;
}

/* From the start of the first rule to its end. A "$ref" is a place in the schema of its own form. */
static qrun_status add_form(qr_schema_compiler *compiler, const qr_schema_form *form) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t value = qr_automaton_add_state(builder), after = qr_automaton_add_state(builder);
    if (builder->status != QRUN_OK) { return builder->status; }
    const qr_grammar_rule whole = builder->rules[0];
    const qr_schema_place place = {.schema = form->root,
                                   .path = {.parent = NULL, .name = "#"},
                                   .from = value,
                                   .to = after,
                                   .begins = form->before[0] == '\0'};
    compiler->root = form->root;
    compiler->current_rule = 0;
    qr_automaton_add_text_or_none(builder, whole.start, form->before, value);
    qr_automaton_add_text_or_none(builder, after, form->after, whole.end);
    QR_RETURN_IF_ERROR(form->is_tagged ? qr_schema_add_tags(compiler, form, &place) : qr_schema_call(compiler, &place));
    return build_rules(compiler);
}

qrun_status qr_schema_compile_forms(const qr_schema_form *forms, size_t n_forms, qr_automaton *made, qr_error *err) {
    qr_schema_compiler compiler = {.err = err, .pieces = {.builder = {.err = err}}};
    qrun_status status = QRUN_OK;
    *made = (qr_automaton){0};
    (void)qr_automaton_add_rule(&compiler.pieces.builder);
    for (size_t i = 0; i < n_forms; i++) {
        status = add_form(&compiler, &forms[i]);
        if (status != QRUN_OK) { qr_error_prefix(err, forms[i].name); }
        QR_TRY(status);
    }
    QR_TRY(check_begins(&compiler));
    QR_TRY(qr_automaton_finish(&compiler.pieces.builder, made, err));
out:
    free_compiler(&compiler);
    return status;
}
