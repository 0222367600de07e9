/* Objects as some models write the arguments of calls: a member is "<parameter=name>", its value and "</parameter>", or
 * stands between other texts (qr_schema_tags). A value whose schema says "type": "string" is the text itself; others
 * are JSON.
 *
 * Narrower than JSON: members that "properties" and "required" do not name are left out. A text has no closing tag in
 * it that its member or its call ends with, and no control characters but line breaks and tabs. */
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/grammar/schema_compiler.h"
#include "runtime/grammar/token_trie.h"

/* ---- Closing tags ------------------------------------------------------------------------------------------------ */

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* One that begins as another does is met where that is. */
static void add_closing(qr_closing_tags *closing, const char *name) {
    int n = 0;
    for (int i = 0; i < closing->n; i++) {
        if (begins_with(name, closing->names[i])) { return; }
    }
    for (int i = 0; i < closing->n; i++) {
        if (begins_with(closing->names[i], name)) { continue; }
        if (n != i) { memcpy(closing->names[n], closing->names[i], sizeof closing->names[i]); }
        n++;
    }
    memcpy(closing->names[n], name, strlen(name) + 1);
    closing->n = n + 1;
}

/* The tags that a text ends: "</", a name, ">". */
static bool add_closing_of(qr_closing_tags *closing, const char *text) {
    for (const char *at = text; (at = strstr(at, "</")) != NULL;) {
        char name[QR_MAX_TAG_BYTES] = "";
        at += 2;
        const size_t n = strcspn(at, ">");
        if (n == 0 || n >= sizeof name || closing->n == QR_MAX_CLOSING_TAGS) { return false; }
        memcpy(name, at, n);
        add_closing(closing, name);
    }
    return true;
}

/* Of a member's end, one at least, and of the form's. */
static bool read_closing(qr_closing_tags *closing, const qr_schema_form *form) {
    closing->n = 0;
    return add_closing_of(closing, form->tags.after_value) && closing->n > 0 && add_closing_of(closing, form->after);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

bool qr_tagged_text_fits(const qr_closing_tags *closing, const char *text) {
    for (const char *at = text; (at = strstr(at, "</")) != NULL; at++) {
        for (int i = 0; i < closing->n; i++) {
            if (begins_with(at + 2, closing->names[i])) { return false; }
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

/* The first tag that begins with n bytes as tag i does. */
static int first_alike(const qr_closing_tags *closing, int i, size_t n) {
    int first = 0;
    while (strncmp(closing->names[first], closing->names[i], n) != 0) { first++; }
    return first;
}

/* A closing tag begins with "<" and has no other, so a text that leaves one is outside, or at the first byte of the
 * next. The states within a tag are those of its beginnings, which tags may have in common. */
void qr_add_tagged_text(qr_schema_compiler *compiler, int32_t from, int32_t to) {
    qr_json_pieces *pieces = &compiler->pieces;
    qr_automaton_builder *builder = &pieces->builder;
    const qr_closing_tags *closing = &compiler->closing;
    const int32_t outside = qr_automaton_add_state(builder), opened = qr_automaton_add_state(builder);
    const int32_t slash = qr_automaton_add_state(builder);
    int32_t states[QR_MAX_CLOSING_TAGS][QR_MAX_TAG_BYTES];
    qr_automaton_add_empty(builder, from, outside);
    add_others(pieces, outside, "", opened, outside);
    add_others(pieces, opened, "/", opened, outside);
    qr_automaton_add_bytes(builder, opened, '/', '/', slash);
    qr_automaton_add_empty(builder, outside, to);
    qr_automaton_add_empty(builder, opened, to);
    for (int i = 0; i < closing->n; i++) {
        const char *name = closing->names[i];
        for (size_t k = 0; name[k] != '\0'; k++) { /* after k bytes; the last byte leads nowhere */
            char taken[QR_MAX_CLOSING_TAGS + 1] = "";
            const int first = first_alike(closing, i, k);
            if (first != i) {
                states[i][k] = states[first][k];
            } else {
                states[i][k] = k == 0 ? slash : qr_automaton_add_state(builder);
                for (int j = i, n = 0; j < closing->n; j++) {
                    if (strncmp(closing->names[j], name, k) == 0) { taken[n++] = closing->names[j][k]; }
                }
                add_others(pieces, states[i][k], taken, opened, outside);
                qr_automaton_add_empty(builder, states[i][k], to);
            }
            if (k > 0 && first == i) {
                qr_automaton_add_bytes(builder, states[i][k - 1], (uint8_t)name[k - 1], (uint8_t)name[k - 1],
                                       states[i][k]);
            }
        }
    }
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

/* Whether a name can stand before this text, and be told from it. */
static bool name_fits(const char *name, const char *after_name) {
    const size_t n = strlen(name);
    const char ends[2] = {after_name[(uint8_t)after_name[0] == QR_SPECIAL_MARK ? 1 : 0], '\0'};
    return n > 0 && strpbrk(name, "\n\r\t") == NULL && strpbrk(name, ends) == NULL && name[0] != ' ' &&
           name[n - 1] != ' ';
}

static qrun_status add_member(qr_schema_compiler *compiler, const qr_object_form *form, const qr_schema_tags *tags,
                              const qr_object_member *member, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int32_t name = qr_automaton_add_state(builder), name_end = qr_automaton_add_state(builder);
    const int32_t value = qr_automaton_add_state(builder), value_end = qr_automaton_add_state(builder);
    if (!name_fits(member->name, tags->after_name)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &form->place->path,
                                "the name \"%.60s\" cannot stand in a tag", member->name);
    }
    qr_automaton_add_text_or_none(builder, from, tags->before_name, name);
    qr_automaton_add_text(builder, name, member->name, name_end);
    qr_automaton_add_text_or_none(builder, name_end, tags->after_name, value);
    qr_automaton_add_text(builder, value_end, tags->after_value, to);
    if (!member->is_required) { qr_automaton_add_empty(builder, from, to); }
    return add_value(compiler, form, member, value, value_end);
}

qrun_status qr_schema_add_tags(qr_schema_compiler *compiler, const qr_schema_form *answer,
                               const qr_schema_place *place) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    qr_object_form form;
    if (!read_closing(&compiler->closing, answer)) {
        return qr_fail(
            compiler->err, QRUN_ERROR_ARGUMENT,
            "the text after a value has to end a tag, as \"</name>\", and there may be up to %d such ends, of "
            "names of up to %d bytes",
            QR_MAX_CLOSING_TAGS, QR_MAX_TAG_BYTES - 1);
    }
    QR_RETURN_IF_ERROR(qr_schema_require_object(compiler, place));
    qrun_status status = qr_schema_read_object(compiler, place, &form);
    int32_t at = place->from;
    for (size_t i = 0; status == QRUN_OK && i < form.n; i++) {
        const int32_t next = qr_automaton_add_state(builder);
        status = add_member(compiler, &form, &answer->tags, &form.members[i], at, next);
        at = next;
    }
    qr_free(form.members);
    qr_automaton_add_empty(builder, at, place->to);
    return status == QRUN_OK ? builder->status : status;
}
