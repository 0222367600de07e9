/* Objects as some models write the arguments of calls: a member is "<parameter=name>", its value and "</parameter>",
 * each on lines of their own. A value whose schema says "type": "string" is the text itself; others are JSON.
 *
 * Narrower than JSON: members that "properties" and "required" do not name are left out. A text has no closing tag of a
 * call in it, and no control characters but line breaks and tabs. */
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/grammar/schema_compiler.h"

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* After "</", what would end the value, or what it stands in. */
static const char *const closing_tags[] = {"parameter", "function", "tool_call"};

bool qr_tagged_text_fits(const char *text) {
    for (const char *at = text; (at = strstr(at, "</")) != NULL; at++) {
        for (size_t i = 0; i < QR_COUNT_OF(closing_tags); i++) {
            if (strncmp(at + 2, closing_tags[i], strlen(closing_tags[i])) == 0) { return false; }
        }
    }
    return true;
}

/* The bytes that may follow in a state of a text: those of `taken` lead further into a closing tag, "<" to the first
 * state of one, and all others out of it. */
static void add_others(qr_json_pieces *pieces, int32_t state, const char *taken, int32_t opened, int32_t outside) {
    qr_automaton_builder *builder = &pieces->builder;
    qr_add_utf8_range(pieces, state, 0x80, 0x10FFFF, outside);
    qr_automaton_add_bytes(builder, state, '<', '<', opened);
    qr_automaton_add_bytes(builder, state, '\t', '\n', outside);
    for (int first = 0x20; first < 0x80; first++) {
        int end = first;
        while (end < 0x80 && end != '<' && strchr(taken, end) == NULL) { end++; }
        if (end > first) { qr_automaton_add_bytes(builder, state, (uint8_t)first, (uint8_t)(end - 1), outside); }
        first = end;
    }
}

/* A closing tag begins with "<" and has no other, so a text that leaves one is outside, or at the first byte of the
 * next. */
void qr_add_tagged_text(qr_json_pieces *pieces, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const int32_t outside = qr_automaton_add_state(builder), opened = qr_automaton_add_state(builder);
    const int32_t closing = qr_automaton_add_state(builder);
    char firsts[QR_COUNT_OF(closing_tags) + 1] = "";
    qr_automaton_add_empty(builder, from, outside);
    add_others(pieces, outside, "", opened, outside);
    add_others(pieces, opened, "/", opened, outside);
    qr_automaton_add_bytes(builder, opened, '/', '/', closing);
    for (size_t i = 0; i < QR_COUNT_OF(closing_tags); i++) {
        const char *tag = closing_tags[i];
        int32_t at = closing;
        firsts[i] = tag[0];
        for (size_t k = 0; tag[k + 1] != '\0'; k++) { /* its last byte leads nowhere */
            const int32_t next = qr_automaton_add_state(builder);
            const char after[2] = {tag[k + 1], '\0'};
            qr_automaton_add_bytes(builder, at, (uint8_t)tag[k], (uint8_t)tag[k], next);
            add_others(pieces, next, after, opened, outside);
            qr_automaton_add_empty(builder, next, to);
            at = next;
        }
    }
    add_others(pieces, closing, firsts, opened, outside);
    qr_automaton_add_empty(builder, outside, to);
    qr_automaton_add_empty(builder, opened, to);
    qr_automaton_add_empty(builder, closing, to);
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

static bool is_bare(const qr_object_member *member) {
    const qr_json *type = qr_json_get(member->schema, "type");
    return member->is_declared && cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0;
}

static qrun_status add_value(qr_schema_compiler *compiler, const qr_object_form *form, const qr_object_member *member,
                             int32_t from, int32_t to) {
    const qr_schema_path properties = {.parent = &form->place->path, .name = "properties"};
    const qr_schema_place place = {.schema = member->schema,
                                   .path = {.parent = member->is_declared ? &properties : &form->place->path,
                                            .name = member->is_declared ? member->name : "additionalProperties"},
                                   .from = from,
                                   .to = to};
    if (member->schema == NULL) {
        qr_add_value(&compiler->pieces, from, to);
        return compiler->pieces.builder.status;
    }
    return is_bare(member) ? qr_schema_add_bare_text(compiler, &place) : qr_schema_add(compiler, &place);
}

static qrun_status add_member(qr_schema_compiler *compiler, const qr_object_form *form, const qr_object_member *member,
                              int32_t from, int32_t to) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t name = qr_automaton_add_state(builder), name_end = qr_automaton_add_state(builder);
    const int32_t value = qr_automaton_add_state(builder), value_end = qr_automaton_add_state(builder);
    const size_t n = strlen(member->name);
    if (n == 0 || strpbrk(member->name, ">\n\r\t") != NULL || member->name[0] == ' ' || member->name[n - 1] == ' ') {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &form->place->path,
                                "the name \"%.60s\" cannot stand in a tag", member->name);
    }
    qr_automaton_add_text(builder, from, "<parameter=", name);
    qr_automaton_add_text(builder, name, member->name, name_end);
    qr_automaton_add_text(builder, name_end, ">\n", value);
    qr_automaton_add_text(builder, value_end, "\n</parameter>\n", to);
    if (!member->is_required) { qr_automaton_add_empty(builder, from, to); }
    return add_value(compiler, form, member, value, value_end);
}

qrun_status qr_schema_add_tags(qr_schema_compiler *compiler, const qr_schema_place *place) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    qr_object_form form;
    QR_RETURN_IF_ERROR(qr_schema_require_object(compiler, place));
    qrun_status status = qr_schema_read_object(compiler, place, &form);
    int32_t at = place->from;
    for (size_t i = 0; status == QRUN_OK && i < form.n; i++) {
        const int32_t next = qr_automaton_add_state(builder);
        status = add_member(compiler, &form, &form.members[i], at, next);
        at = next;
    }
    qr_free(form.members);
    qr_automaton_add_empty(builder, at, place->to);
    return status == QRUN_OK ? builder->status : status;
}
