#include "loaders/data/chat.h"

#include <string.h>

typedef struct rendering {
    const qr_conversation *conversation;
    const qr_chat_template *chat_template;
    qr_messages messages;
    qr_buffer before, after, plain;
    qr_buffer word; /* occurs nowhere in the whole rendering */
} rendering;

static void rendering_free(rendering *r) {
    qr_messages_free(&r->messages);
    qr_buffer_free(&r->before);
    qr_buffer_free(&r->after);
    qr_buffer_free(&r->plain);
    qr_buffer_free(&r->word);
}

/* The first n messages, n ≥ 0, into a cleared *out. */
static qrun_status render(rendering *r, size_t n, bool add_generation_prompt, qr_buffer *out, qr_error *err) {
    const qr_conversation *c = r->conversation;
    qr_json *nodes = r->messages.nodes;
    const qr_json list = {.type = cJSON_Array, .child = n > 0 ? nodes : NULL};
    if (n > 0) { nodes[n - 1].next = NULL; }
    qr_buffer_clear(out);
    const qrun_status status =
        qr_chat_template_render(r->chat_template, &list, c->tools, c->extra, add_generation_prompt, c->now, out, err);
    if (n > 0 && n < r->messages.n) { nodes[n - 1].next = &nodes[n]; }
    if (status == QRUN_OK && !qr_buffer_ok(out)) { return qr_fail_memory(err, "a conversation", out->size); }
    return status;
}

static bool begins_with(const qr_buffer *text, const qr_buffer *start) {
    return text->size >= start->size && (start->size == 0 || memcmp(text->data, start->data, start->size) == 0);
}

static size_t common_bytes(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) { n++; }
    while (n > 0 && n < n_a && ((unsigned char)a[n] & 0xC0U) == 0x80U) { n--; } /* back to a character's edge */
    return n;
}

/* A rendering that may fail because the template does not take such messages: *done is then false. */
static qrun_status try_render(rendering *r, size_t n, bool prompt, qr_buffer *out, bool *done, qr_error *err) {
    qr_error detail = {0};
    const qrun_status status = render(r, n, prompt, out, &detail);
    *done = status == QRUN_OK;
    return *done || status == QRUN_ERROR_INPUT ? QRUN_OK : qr_fail(err, status, "%s", detail.message);
}

/* R(i, prompt) into r->before and R(i + 1) into r->after; *holds is false where W does not begin with the latter. */
static qrun_status render_turn(rendering *r, size_t i, const qr_buffer *whole, bool *holds, qr_error *err) {
    QR_RETURN_IF_ERROR(try_render(r, i, true, &r->before, holds, err));
    if (*holds) { QR_RETURN_IF_ERROR(try_render(r, i + 1, false, &r->after, holds, err)); }
    *holds = *holds && begins_with(whole, &r->after);
    return QRUN_OK;
}

/* The first way of data/chat.h; *found is false where it does not apply. */
static qrun_status find_by_prefix(rendering *r, size_t i, const qr_buffer *whole, qr_text_span *span, bool *found,
                                  qr_error *err) {
    QR_RETURN_IF_ERROR(render_turn(r, i, whole, found, err));
    *found = *found && begins_with(&r->after, &r->before);
    *span = (qr_text_span){r->before.size, r->after.size};
    return QRUN_OK;
}

/* The third way. */
static qrun_status find_by_parting(rendering *r, size_t i, const qr_buffer *whole, qr_text_span *span, bool *found,
                                   qr_error *err) {
    QR_RETURN_IF_ERROR(render_turn(r, i, whole, found, err));
    if (*found) { QR_RETURN_IF_ERROR(try_render(r, i, false, &r->plain, found, err)); }
    if (!*found) { return QRUN_OK; }
    span->start = common_bytes(r->after.data, r->after.size, r->before.data, r->before.size);
    span->end = r->after.size;
    *found = begins_with(&r->after, &r->plain) && span->start >= r->plain.size;
    return QRUN_OK;
}

/* Rendering the first n messages with another text in a place of theirs, into a cleared *out; *done is false where the
 * template does not take it. */
static qrun_status render_with_text(rendering *r, qr_json *place, char *text, size_t n, qr_buffer *out, bool *done,
                                    qr_error *err) {
    const qr_json kept = *place;
    place->type = cJSON_String;
    place->valuestring = text;
    const qrun_status status = try_render(r, n, false, out, done, err);
    *place = kept;
    return status;
}

static qrun_status choose_word(rendering *r, const qr_buffer *whole, qr_error *err) {
    if (r->word.size > 0) { return QRUN_OK; }
    qr_buffer_append_text(&r->word, "qrunanswer");
    while (qr_buffer_ok(&r->word) && strstr(whole->data, r->word.data) != NULL) {
        qr_buffer_append_char(&r->word, 'q');
    }
    return qr_buffer_ok(&r->word) ? QRUN_OK : qr_fail_memory(err, "a conversation", r->word.size);
}

/* What comes before and after the word, where it occurs once. */
static bool split_at_word(const rendering *r, const qr_buffer *text, size_t *n_before, const char **rest) {
    const char *found = text->size > 0 ? strstr(text->data, r->word.data) : NULL;
    if (found == NULL) { return false; }
    *n_before = (size_t)(found - text->data);
    *rest = found + r->word.size;
    return strstr(*rest, r->word.data) == NULL;
}

/* Where a text of message i begins in W, and where the turn ends; *found is false where the word in its place does not
 * show it. */
static qrun_status find_place(rendering *r, size_t i, qr_json *place, const qr_buffer *whole, qr_text_span *span,
                              bool *found, qr_error *err) {
    bool done;
    size_t n_before, n_ignored;
    const char *rest, *tail;
    *found = false;
    if (!cJSON_IsString(place)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(choose_word(r, whole, err));
    QR_RETURN_IF_ERROR(render_with_text(r, place, r->word.data, r->messages.n, &r->before, &done, err));
    if (done) { QR_RETURN_IF_ERROR(render_with_text(r, place, r->word.data, i + 1, &r->after, &done, err)); }
    if (!done || !split_at_word(r, &r->before, &n_before, &rest) || !split_at_word(r, &r->after, &n_ignored, &tail)) {
        return QRUN_OK;
    }
    const size_t n_after = strlen(rest);
    if (whole->size < n_before + n_after || memcmp(whole->data, r->before.data, n_before) != 0 ||
        memcmp(whole->data + whole->size - n_after, rest, n_after) != 0) {
        return QRUN_OK;
    }
    *span = (qr_text_span){n_before, whole->size - n_after + common_bytes(rest, n_after, tail, strlen(tail))};
    *found = true;
    return QRUN_OK;
}

/* The second way. */
static qrun_status find_by_word(rendering *r, size_t i, const qr_buffer *whole, qr_text_span *span, bool *found,
                                qr_error *err) {
    return find_place(r, i, qr_message_content(&r->messages.nodes[i]), whole, span, found, err);
}

/* The fourth way. */
static qrun_status find_by_call(rendering *r, size_t i, const qr_buffer *whole, qr_text_span *span, bool *found,
                                qr_error *err) {
    const qr_json *message = &r->messages.nodes[i];
    const qr_json *call = qr_json_first(qr_json_get(message, "tool_calls")), *function = qr_json_get(call, "function");
    const qr_json *name = qr_json_get(function != NULL ? function : call, "name");
    QR_RETURN_IF_ERROR(find_place(r, i, (qr_json *)(uintptr_t)name, whole, span, found, err));
    if (*found) { QR_RETURN_IF_ERROR(try_render(r, i, true, &r->before, found, err)); }
    if (*found) { QR_RETURN_IF_ERROR(try_render(r, i, false, &r->plain, found, err)); }
    if (!*found) { return QRUN_OK; }
    const size_t start = common_bytes(whole->data, whole->size, r->before.data, r->before.size);
    *found = begins_with(whole, &r->plain) && start >= r->plain.size && start <= span->start;
    span->start = start;
    return QRUN_OK;
}

static qrun_status mark_message(rendering *r, size_t i, qr_marked_text *marked, qr_error *err) {
    const char *role = qr_message_role(&r->messages.nodes[i]);
    const bool is_answer = strcmp(role, "assistant") == 0;
    qr_text_span span = {0, 0};
    bool found = false;
    if (is_answer) { QR_RETURN_IF_ERROR(find_by_prefix(r, i, &marked->text, &span, &found, err)); }
    if (!found) { QR_RETURN_IF_ERROR(find_by_word(r, i, &marked->text, &span, &found, err)); }
    if (!found && is_answer) { QR_RETURN_IF_ERROR(find_by_parting(r, i, &marked->text, &span, &found, err)); }
    if (!found && is_answer) { QR_RETURN_IF_ERROR(find_by_call(r, i, &marked->text, &span, &found, err)); }
    const size_t least = marked->n_spans > 0 ? marked->spans[marked->n_spans - 1].end : 0;
    if (!found || span.start < least) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "what the %.40s wrote in message %zu cannot be found in what the chat template makes of the "
                       "conversation; give this example as prompt and completion",
                       role, i + 1 - r->messages.n_added);
    }
    return qr_marked_text_add(marked, span.start, span.end, err);
}

/* What an answer that counts has, and the template leaves out: an answer that is nothing but lost calls would teach to
 * say nothing. */
static qrun_status note_left_out(rendering *r, size_t i, qr_message_notes *notes, qr_error *err) {
    const qr_conversation *c = r->conversation;
    const qr_json *message = &r->messages.nodes[i], *content = qr_message_content(message);
    if (!qr_chat_template_writes_calls(r->chat_template, message, c->tools, c->extra, c->now)) {
        if (!cJSON_IsString(content) || content->valuestring[0] == '\0') {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "message %zu is a call of a tool, and the chat template has no place for calls",
                           i + 1 - r->messages.n_added);
        }
        qr_buffer_append(&notes->unknown_members, "tool_calls", sizeof "tool_calls");
    }
    if (!qr_chat_template_writes_thoughts(r->chat_template, message, c->extra, c->now)) {
        qr_buffer_append(&notes->unknown_members, "reasoning_content", sizeof "reasoning_content");
    }
    return QRUN_OK;
}

qrun_status qr_conversation_render(const qr_conversation *conversation, const qr_chat_template *chat_template,
                                   qr_marked_text *marked, qr_message_notes *notes, qr_error *err) {
    rendering r = {.conversation = conversation, .chat_template = chat_template};
    qrun_status status;
    QR_TRY(qr_messages_read(&conversation->messages, &r.messages, notes, err));
    QR_TRY(render(&r, r.messages.n, false, &marked->text, err));
    for (size_t i = 0; i < r.messages.n && marked->text.size > 0; i++) {
        if (!r.messages.counts[i]) { continue; }
        QR_TRY(note_left_out(&r, i, notes, err));
        QR_TRY(mark_message(&r, i, marked, err));
    }
    if (!qr_chat_template_writes_tools(chat_template, conversation->tools, conversation->extra, conversation->now)) {
        qr_buffer_append(&notes->unknown_members, "tools", sizeof "tools");
    }
out:
    rendering_free(&r);
    return status;
}
