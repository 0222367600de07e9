/* Objects and lists. */
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "runtime/grammar/schema_compiler.h"

enum { MAX_PROPERTIES = 1000 }; /* after a comma each may be three states of a set (QR_MATCH_MAX_CONFIGS) */

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static bool is_listed(const qr_json *list, const char *name) {
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) { return true; }
    }
    return false;
}

static qrun_status refuse_form(qr_schema_compiler *compiler, const qr_schema_place *place, const char *key,
                               const char *wanted) {
    return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"%s\" must be %s", key, wanted);
}

/* Names that are required and not declared are members like others, but they come. */
static qrun_status add_undeclared(qr_schema_compiler *compiler, qr_object_form *form, const qr_json *properties,
                                  const qr_json *required) {
    for (const qr_json *item = qr_json_first(required); item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) { return refuse_form(compiler, form->place, "required", "a list of names"); }
        if (qr_json_get(properties, item->valuestring) != NULL) { continue; }
        bool is_known = false;
        for (size_t i = form->n; i-- > 0 && !form->members[i].is_declared && !is_known;) {
            is_known = strcmp(form->members[i].name, item->valuestring) == 0;
        }
        if (is_known) { continue; }
        form->members[form->n++] =
            (qr_object_member){.name = item->valuestring, .schema = form->others, .is_required = true};
    }
    return QRUN_OK;
}

qrun_status qr_schema_read_object(qr_schema_compiler *compiler, const qr_schema_place *place, qr_object_form *form) {
    *form = (qr_object_form){.place = place};
    const qr_json *properties = qr_json_get(place->schema, "properties");
    const qr_json *required = qr_json_get(place->schema, "required");
    const qr_json *others = qr_json_get(place->schema, "additionalProperties");
    if (properties != NULL && !cJSON_IsObject(properties)) {
        return refuse_form(compiler, place, "properties", "an object of schemas");
    }
    if (required != NULL && !cJSON_IsArray(required)) {
        return refuse_form(compiler, place, "required", "a list of names");
    }
    if (others != NULL && !cJSON_IsBool(others) && !cJSON_IsObject(others)) {
        return refuse_form(compiler, place, "additionalProperties", "a schema, true or false");
    }
    const size_t most = qr_json_count(properties) + qr_json_count(required);
    if (most > MAX_PROPERTIES) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "an object may have %d declared members", MAX_PROPERTIES);
    }
    form->has_others = others != NULL ? !cJSON_IsFalse(others) : properties == NULL;
    form->others = cJSON_IsObject(others) || cJSON_IsFalse(others) ? others : NULL;
    form->members = qr_alloc_array(most + 1, sizeof *form->members);
    if (form->members == NULL) { return qr_fail_memory(compiler->err, "a grammar", most * sizeof *form->members); }
    for (const qr_json *item = qr_json_first(properties); item != NULL; item = item->next) {
        form->members[form->n++] = (qr_object_member){.name = item->string,
                                                      .schema = item,
                                                      .is_required = is_listed(required, item->string),
                                                      .is_declared = true};
    }
    return add_undeclared(compiler, form, properties, required);
}

/* The name as it is written, with its quotes; the caller frees it. */
static qrun_status write_name(qr_schema_compiler *compiler, const char *name, qr_buffer *text) {
    qr_buffer_append_json_string(text, name, strlen(name));
    return qr_buffer_ok(text) ? QRUN_OK : qr_fail_memory(compiler->err, "a grammar", strlen(name));
}

/* After the name: the colon and a value. */
static qrun_status add_member_value(qr_schema_compiler *compiler, const qr_schema_path *path, const qr_json *schema,
                                    int32_t from, int32_t to) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t colon = qr_automaton_add_state(builder), value = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, from, ':', ':', colon);
    qr_add_space(&compiler->pieces, colon, value);
    if (schema == NULL) {
        qr_add_value(&compiler->pieces, value, to);
        return builder->status;
    }
    const qr_schema_place place = {.schema = schema, .path = *path, .from = value, .to = to};
    return qr_schema_add(compiler, &place);
}

/* A character that leads away from all names, and the rest of such a name. Names have U+007F as an escape, so it leads
 * away from none. */
static void leave_names(qr_schema_compiler *compiler, int32_t from, bool may_end, int32_t to) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t rest = qr_automaton_add_state(builder);
    bool has_long = false;
    for (int byte = 0x20; byte < 0x100; byte++) {
        const bool is_taken = qr_automaton_find_byte(builder, from, (uint8_t)byte) >= 0;
        has_long = has_long || (is_taken && byte >= 0x80);
        if (byte >= 0x7F || byte == '"' || byte == '\\' || is_taken) { continue; }
        int last = byte;
        while (last + 1 < 0x7F && last + 1 != '"' && last + 1 != '\\' &&
               qr_automaton_find_byte(builder, from, (uint8_t)(last + 1)) < 0) {
            last++;
        }
        qr_automaton_add_bytes(builder, from, (uint8_t)byte, (uint8_t)last, rest);
        byte = last;
    }
    if (!has_long) { qr_add_character(&compiler->pieces, from, false, rest); }
    if (may_end) { qr_automaton_add_bytes(builder, from, '"', '"', to); }
    qr_add_string_rest(&compiler->pieces, rest, to);
}

/* Marks, by their distance from the root, the states that a name has characters before; an escape is one character. A
 * text may not leave it in the middle of one. */
static void mark_characters(const qr_automaton_builder *builder, int32_t root, const char *text, bool *marks) {
    size_t n_left = strlen(text);
    for (int32_t at = root; builder->status == QRUN_OK;) {
        marks[at - root] = true;
        if (n_left == 0) { return; }
        size_t n_bytes = text[0] != '\\' ? qr_utf8_sequence_length(text, n_left) : text[1] == 'u' ? 6 : 2;
        for (; n_bytes > 0; n_bytes--, n_left--) { at = qr_automaton_find_byte(builder, at, (uint8_t)*text++); }
    }
}

/* The names from the root on; they lead nowhere. */
static qrun_status add_names(qr_schema_compiler *compiler, const qr_object_form *form, int32_t root, int32_t nowhere,
                             bool *marks) {
    for (size_t i = 0; i < form->n; i++) {
        qr_buffer text = {0};
        QR_RETURN_IF_ERROR(write_name(compiler, form->members[i].name, &text));
        text.data[text.size - 1] = '\0';
        if (marks == NULL) {
            qr_automaton_merge_text(&compiler->pieces.builder, root, text.data + 1, nowhere);
        } else {
            mark_characters(&compiler->pieces.builder, root, text.data + 1, marks);
        }
        qr_buffer_free(&text);
    }
    return compiler->pieces.builder.status;
}

static void leave_all_names(qr_schema_compiler *compiler, int32_t root, int32_t nowhere, const bool *marks,
                            int32_t n_states, int32_t to) {
    const qr_automaton_builder *builder = &compiler->pieces.builder;
    for (int32_t s = 0; s < n_states && builder->status == QRUN_OK; s++) {
        bool is_name = false;
        if (!marks[s]) { continue; }
        for (int32_t e = builder->states[root + s].last_edge; e >= 0; e = builder->edges[e].previous) {
            is_name = is_name || builder->edges[e].edge.target == nowhere;
        }
        leave_names(compiler, root + s, !is_name, to);
    }
}

/* A name that is none of the members': its characters stand for themselves until it differs from all of them, because
 * an escape might spell one of theirs. */
static qrun_status add_other_name(qr_schema_compiler *compiler, const qr_object_form *form, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    if (form->n == 0) {
        qr_add_string(&compiler->pieces, from, to);
        return builder->status;
    }
    const int32_t nowhere = qr_automaton_add_state(builder), root = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, from, '"', '"', root);
    QR_RETURN_IF_ERROR(add_names(compiler, form, root, nowhere, NULL));
    const int32_t n_states = (int32_t)builder->n_states - root;
    bool *marks = qr_alloc_array_zeroed((size_t)n_states, sizeof *marks);
    if (marks == NULL) { return qr_fail_memory(compiler->err, "a grammar", 0); }
    const qrun_status status = add_names(compiler, form, root, nowhere, marks);
    if (status == QRUN_OK) { leave_all_names(compiler, root, nowhere, marks, n_states, to); }
    qr_free(marks);
    return status != QRUN_OK ? status : builder->status;
}

/* The states before each member: where none has come yet, and where some have. */
typedef struct object_states {
    int32_t first, rest;
} object_states;

static void pass_comma(qr_schema_compiler *compiler, object_states at, int32_t name) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t comma = qr_automaton_add_state(builder);
    qr_automaton_add_empty(builder, at.first, name);
    qr_automaton_add_bytes(builder, at.rest, ',', ',', comma);
    qr_add_space(&compiler->pieces, comma, name);
}

static qrun_status add_member(qr_schema_compiler *compiler, const qr_object_form *form, const qr_object_member *member,
                              object_states at, object_states next) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const qr_schema_path properties = {.parent = &form->place->path, .name = "properties"};
    const qr_schema_path path = {.parent = member->is_declared ? &properties : &form->place->path,
                                 .name = member->is_declared ? member->name : "additionalProperties"};
    const int32_t name = qr_automaton_add_state(builder), after = qr_automaton_add_state(builder);
    qr_buffer text = {0};
    pass_comma(compiler, at, name);
    const qrun_status status = write_name(compiler, member->name, &text);
    if (status == QRUN_OK) { qr_automaton_add_text(builder, name, text.data, after); }
    qr_buffer_free(&text);
    if (status != QRUN_OK) { return status; }
    if (!member->is_required) {
        qr_automaton_add_empty(builder, at.first, next.first);
        qr_automaton_add_empty(builder, at.rest, next.rest);
    }
    return add_member_value(compiler, &path, member->schema, after, next.rest);
}

static qrun_status add_others(qr_schema_compiler *compiler, const qr_object_form *form, object_states at) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const qr_schema_path path = {.parent = &form->place->path, .name = "additionalProperties"};
    const int32_t name = qr_automaton_add_state(builder), after = qr_automaton_add_state(builder);
    if (!form->has_others) { return QRUN_OK; }
    pass_comma(compiler, at, name);
    QR_RETURN_IF_ERROR(add_other_name(compiler, form, name, after));
    return add_member_value(compiler, &path, form->others, after, at.rest);
}

static qrun_status add_object(qr_schema_compiler *compiler, const qr_object_form *form) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t open = qr_automaton_add_state(builder), close = qr_automaton_add_state(builder);
    object_states at = {qr_automaton_add_state(builder), qr_automaton_add_state(builder)};
    qr_automaton_add_bytes(builder, form->place->from, '{', '{', open);
    qr_add_space(&compiler->pieces, open, at.first);
    for (size_t i = 0; i < form->n; i++) {
        const object_states next = {qr_automaton_add_state(builder), qr_automaton_add_state(builder)};
        QR_RETURN_IF_ERROR(add_member(compiler, form, &form->members[i], at, next));
        at = next;
    }
    QR_RETURN_IF_ERROR(add_others(compiler, form, at));
    qr_automaton_add_empty(builder, at.first, close);
    qr_add_space(&compiler->pieces, at.rest, close);
    qr_automaton_add_bytes(builder, close, '}', '}', form->place->to);
    return builder->status;
}

qrun_status qr_schema_add_object(qr_schema_compiler *compiler, const qr_schema_place *place) {
    qr_object_form form;
    qrun_status status = qr_schema_read_object(compiler, place, &form);
    if (status == QRUN_OK && form.n == 0 && form.has_others && form.others == NULL) {
        qr_add_object(&compiler->pieces, place->from, place->to);
    } else if (status == QRUN_OK) {
        status = add_object(compiler, &form);
    }
    qr_free(form.members);
    return status;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

typedef struct array_form {
    const qr_schema_place *place;
    const qr_json *prefix; /* a list of schemas; NULL: none */
    int64_t n_prefix;
    bool has_items;       /* after the prefix */
    const qr_json *items; /* their schema; NULL: any value */
    int64_t low, high;    /* items; high −1: no end */
} array_form;

static qrun_status read_array(qr_schema_compiler *compiler, const qr_schema_place *place, array_form *form) {
    const qr_json *items = qr_json_get(place->schema, "items"), *prefix = qr_json_get(place->schema, "prefixItems");
    *form = (array_form){.place = place};
    if (prefix == NULL && cJSON_IsArray(items)) { /* as drafts before 2020 have it */
        prefix = items;
        items = qr_json_get(place->schema, "additionalItems");
    }
    if (prefix != NULL && !cJSON_IsArray(prefix)) {
        return refuse_form(compiler, place, "prefixItems", "a list of schemas");
    }
    if (items != NULL && !cJSON_IsBool(items) && !cJSON_IsObject(items)) {
        return refuse_form(compiler, place, "items", "a schema, true or false");
    }
    form->prefix = prefix;
    form->n_prefix = (int64_t)qr_json_count(prefix);
    form->has_items = items != NULL ? !cJSON_IsFalse(items) : prefix == NULL;
    form->items = cJSON_IsObject(items) ? items : NULL;
    QR_RETURN_IF_ERROR(qr_schema_count(compiler, place, "minItems", &form->low));
    QR_RETURN_IF_ERROR(qr_schema_count(compiler, place, "maxItems", &form->high));
    form->low = qr_max(form->low, 0);
    if (!form->has_items) { form->high = form->high < 0 ? form->n_prefix : qr_min(form->high, form->n_prefix); }
    if (form->high >= 0 && form->low > form->high) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path,
                                "at least %lld items and at most %lld: no list fits", (long long)form->low,
                                (long long)form->high);
    }
    return QRUN_OK;
}

/* Item number `index`, from 0; `prefix` is its schema where it is one of the first. */
static qrun_status add_item(qr_schema_compiler *compiler, const array_form *form, const qr_json *prefix, int64_t index,
                            int32_t from, int32_t to) {
    const qr_schema_path list = {.parent = &form->place->path, .name = "prefixItems"};
    const qr_schema_path of_prefix = {.parent = &list, .index = index};
    const qr_schema_path of_items = {.parent = &form->place->path, .name = "items"};
    const qr_schema_place place = {.schema = prefix != NULL ? prefix : form->items,
                                   .path = prefix != NULL ? of_prefix : of_items,
                                   .from = from,
                                   .to = to};
    if (prefix != NULL) { return qr_schema_add(compiler, &place); }
    if (form->items != NULL) { return qr_schema_call(compiler, &place); }
    qr_add_value(&compiler->pieces, from, to);
    return compiler->pieces.builder.status;
}

/* Items from number `index` on, in the state after the one before; `end` is where the list may end. */
static qrun_status add_items(qr_schema_compiler *compiler, const array_form *form, int32_t at, int32_t end) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int64_t n_alone = form->high >= 0 ? form->high : qr_max(qr_max(form->low, form->n_prefix), 1);
    const qr_json *prefix = qr_json_first(form->prefix);
    int32_t value = at;
    for (int64_t i = 0; i < n_alone && builder->status == QRUN_OK; i++) {
        const int32_t after = qr_automaton_add_state(builder);
        QR_RETURN_IF_ERROR(add_item(compiler, form, prefix, i, value, after));
        if (prefix != NULL) { prefix = prefix->next; }
        if (i + 1 >= form->low) { qr_add_space(&compiler->pieces, after, end); }
        const bool repeats = i + 1 == n_alone && form->high < 0;
        if (i + 1 == n_alone && !repeats) { break; }
        const int32_t comma = qr_automaton_add_state(builder);
        value = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, after, ',', ',', comma);
        qr_add_space(&compiler->pieces, comma, value);
        if (repeats) { return add_item(compiler, form, NULL, i + 1, value, after); }
    }
    return builder->status;
}

qrun_status qr_schema_add_array(qr_schema_compiler *compiler, const qr_schema_place *place) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    array_form form;
    QR_RETURN_IF_ERROR(read_array(compiler, place, &form));
    const int32_t open = qr_automaton_add_state(builder), first = qr_automaton_add_state(builder);
    const int32_t end = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, place->from, '[', '[', open);
    qr_add_space(&compiler->pieces, open, first);
    qr_automaton_add_bytes(builder, end, ']', ']', place->to);
    if (form.low == 0) { qr_automaton_add_bytes(builder, first, ']', ']', place->to); }
    return form.high != 0 ? add_items(compiler, &form, first, end) : builder->status;
}
