#include "serve/openai/answer_parser.h"

#include <string.h>

#include "serve/openai/call_text.h"
#include "serve/openai/tool_calls.h"

void answer_delta_free(answer_delta *delta) {
    serve_text_free(&delta->content);
    serve_text_free(&delta->thought);
    cJSON_Delete(delta->calls);
    cJSON_Delete(delta->calls_after);
    *delta = (answer_delta){0};
}

void answer_parser_start(answer_parser *p, const answer_format *format, const cJSON *tools, bool thinks) {
    *p = (answer_parser){.format = format, .tools = cJSON_GetArraySize(tools) > 0 ? tools : NULL};
    if (format->calls == CALLS_HARMONY) { p->state = PARSER_HEADER; }
    if (!thinks) { return; }
    p->state = PARSER_THOUGHT;
    p->trims = true;
}

void answer_parser_free(answer_parser *p) {
    serve_text_free(&p->pending);
    serve_text_free(&p->lead);
    *p = (answer_parser){0};
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static size_t find(const serve_text *t, const char *mark) {
    const size_t n = strlen(mark);
    for (size_t i = 0; i + n <= t->size; i++) {
        if (memcmp(t->data + i, mark, n) == 0) { return i; }
    }
    return SIZE_MAX;
}

/* Bytes at the end that may be the beginning of a marker. */
static size_t partial_bytes(const serve_text *t, const char *mark) {
    const size_t n = strlen(mark);
    for (size_t k = n - 1 < t->size ? n - 1 : t->size; k > 0; k--) {
        if (memcmp(t->data + t->size - k, mark, k) == 0) { return k; }
    }
    return 0;
}

static void drop_space(serve_text *t) {
    size_t n = 0;
    while (n < t->size && call_is_space(t->data[n])) { n++; }
    serve_text_drop_front(t, n);
}

static void give_text(answer_parser *p, const char *bytes, size_t n_bytes, answer_delta *delta) {
    if (n_bytes == 0) { return; }
    if (p->separates) { serve_text_add(&delta->content, "\n", 1); }
    p->separates = false;
    serve_text_add(&delta->content, bytes, n_bytes);
    p->has_text = true;
    p->has_content = true;
}

/* Of a call that is none: the markers that the answer's text leaves out stay out. */
static void give_failed(answer_parser *p, const char *bytes, size_t n_bytes, answer_delta *delta) {
    for (size_t i = 0; i < n_bytes;) {
        size_t n_hidden = 0;
        for (int h = 0; h < p->format->n_hidden && n_hidden == 0; h++) {
            const size_t n = strlen(p->format->hidden[h].text);
            if (n <= n_bytes - i && memcmp(bytes + i, p->format->hidden[h].text, n) == 0) { n_hidden = n; }
        }
        if (n_hidden == 0) { give_text(p, bytes + i, 1, delta); }
        i += n_hidden > 0 ? n_hidden : 1;
    }
    p->has_text = p->has_text || n_bytes > 0;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static bool is_wanted(const answer_parser *p, int mark) {
    return p->tools != NULL && call_marks[mark].style == p->format->calls;
}

/* Where the end marker of the call that pending begins with stands. */
static size_t find_end(const answer_parser *p, const char *mark, bool is_last) {
    const char *body = p->pending.data;
    const char *end = tool_calls_find_end(p->format->calls, mark, body, p->pending.size, is_last);
    return end != NULL ? (size_t)(end - body) : SIZE_MAX;
}

/* Whether an end marker of the call came since this was asked last: so what is pending is not read again each time. */
static bool sees_end(answer_parser *p, const char *const *marks, int n_marks) {
    bool found = false;
    for (int i = 0; i < n_marks && !found; i++) {
        const size_t n = strlen(marks[i]), first = p->n_searched < n ? 0 : p->n_searched - n + 1;
        const cursor added = {p->pending.data + first, p->pending.data + p->pending.size};
        found = first < p->pending.size && cursor_find(&added, marks[i]) != NULL;
    }
    p->n_searched = p->pending.size;
    return found;
}

/* Calls were read from a text, or none were. True: some. */
static bool count_calls(answer_parser *p, bool are_calls, answer_delta *delta) {
    if (delta->calls_after == NULL) { delta->calls_after = cJSON_CreateArray(); }
    for (int n = cJSON_GetArraySize(delta->calls_after); n < cJSON_GetArraySize(delta->calls); n++) {
        cJSON_AddItemToArray(delta->calls_after, cJSON_CreateNumber((double)delta->content.size));
        p->n_calls++;
    }
    return are_calls;
}

/* pending[0, n) is a call, or stays text, with what led to it and the n_end bytes of its end marker. */
static void end_call(answer_parser *p, size_t n, size_t n_end, answer_delta *delta) {
    if (delta->calls == NULL) { delta->calls = cJSON_CreateArray(); }
    const bool is_call =
        count_calls(p, n > 0 && tool_calls_parse(p->format->calls, p->pending.data, n, p->tools, delta->calls), delta);
    if (is_call) {
        p->has_text = true;
        p->separates = p->has_content;
    } else {
        give_failed(p, p->lead.data, p->lead.size, delta);
        give_failed(p, p->pending.data, n + n_end, delta);
    }
    p->trims = is_call;
    serve_text_clear(&p->lead);
    serve_text_drop_front(&p->pending, n + n_end);
    p->state = PARSER_TEXT;
}

/* ---- Text and thoughts ------------------------------------------------------------------------------------------- */

static bool may_think(const answer_parser *p) {
    return p->format->think_begin != NULL && !p->has_text && !p->has_thought;
}

/* Everything up to the first marker, which is taken and changes the state. False: there is none yet. */
static bool take_marker(answer_parser *p, answer_delta *delta) {
    size_t first = SIZE_MAX;
    int mark = -1;
    for (int i = 0; i < n_call_marks; i++) {
        const size_t at = is_wanted(p, i) ? find(&p->pending, call_marks[i].begin) : SIZE_MAX;
        if (at < first) { first = at, mark = i; }
    }
    const size_t thought = may_think(p) ? find(&p->pending, p->format->think_begin) : SIZE_MAX;
    if (thought < first && call_without_space(p->pending.data, thought) == 0) {
        serve_text_drop_front(&p->pending, thought + strlen(p->format->think_begin));
        p->state = PARSER_THOUGHT;
        p->trims = true;
        return true;
    }
    if (mark < 0) { return false; }
    const size_t n_shown = call_without_space(p->pending.data, first);
    const size_t n_mark = call_marks[mark].in_body ? 0 : strlen(call_marks[mark].begin);
    give_text(p, p->pending.data, n_shown, delta);
    serve_text_clear(&p->lead);
    serve_text_add(&p->lead, p->pending.data + n_shown, first - n_shown + n_mark);
    serve_text_drop_front(&p->pending, first + n_mark);
    p->state = call_marks[mark].end != NULL ? PARSER_CALL : PARSER_CALL_REST;
    p->n_searched = 0;
    p->mark = mark;
    return true;
}

/* The part of pending that no marker can reach into, without the space before one that may come. */
static size_t certain_bytes(const answer_parser *p) {
    size_t n_held = 0;
    for (int i = 0; i < n_call_marks; i++) {
        const size_t n = is_wanted(p, i) ? partial_bytes(&p->pending, call_marks[i].begin) : 0;
        n_held = n > n_held ? n : n_held;
    }
    const size_t n_thought = may_think(p) ? partial_bytes(&p->pending, p->format->think_begin) : 0;
    n_held = n_thought > n_held ? n_thought : n_held;
    if (p->tools == NULL && !may_think(p)) { return p->pending.size; }
    return call_without_space(p->pending.data, p->pending.size - n_held);
}

static bool step_text(answer_parser *p, bool is_last, answer_delta *delta) {
    if (p->trims) { drop_space(&p->pending); }
    if (p->pending.size == 0) { return false; }
    p->trims = false;
    const bool may_be_call = p->tools != NULL && !p->has_text && !p->is_no_call;
    if (may_be_call && tool_calls_may_begin(p->format->calls, p->pending.data, p->pending.size, p->tools)) {
        serve_text_clear(&p->lead);
        p->state = PARSER_CALL_REST;
        p->mark = -1;
        return true;
    }
    if (take_marker(p, delta)) { return true; }
    size_t n = is_last ? p->pending.size : certain_bytes(p);
    if (is_last && p->n_calls > 0) { n = call_without_space(p->pending.data, n); }
    give_text(p, p->pending.data, n, delta);
    serve_text_drop_front(&p->pending, n);
    return false;
}

static bool step_thought(answer_parser *p, bool is_last, answer_delta *delta) {
    const char *mark = p->format->think_end;
    if (p->trims) { drop_space(&p->pending); }
    if (p->pending.size == 0) { return false; }
    p->trims = false;
    const size_t end = find(&p->pending, mark);
    const bool is_over = end != SIZE_MAX;
    size_t n = is_over ? end : p->pending.size - (is_last ? 0 : partial_bytes(&p->pending, mark));
    const size_t n_shown = call_without_space(p->pending.data, n);
    serve_text_add(&delta->thought, p->pending.data, n_shown);
    serve_text_drop_front(&p->pending, is_over ? end + strlen(mark) : is_last ? p->pending.size : n_shown);
    if (!is_over) { return false; }
    p->state = PARSER_TEXT;
    p->trims = true;
    p->has_thought = true;
    p->is_no_call = false; /* what comes now may be one */
    return true;
}

static bool step_call(answer_parser *p, bool is_last, answer_delta *delta) {
    const bool may_end = p->state == PARSER_CALL && (is_last || sees_end(p, &call_marks[p->mark].end, 1));
    const size_t end = may_end ? find_end(p, call_marks[p->mark].end, is_last) : SIZE_MAX;
    if (end != SIZE_MAX) {
        const size_t n_end = strlen(call_marks[p->mark].end);
        const bool in_body = call_marks[p->mark].in_body;
        end_call(p, in_body ? end + n_end : end, in_body ? 0 : n_end, delta);
        return true;
    }
    const bool can_go_on =
        p->mark >= 0 || tool_calls_may_begin(p->format->calls, p->pending.data, p->pending.size, p->tools);
    if (!is_last && can_go_on) { return false; }
    if (is_last) {
        end_call(p, p->pending.size, 0, delta);
    } else { /* it only began like one */
        p->is_no_call = true;
        p->state = PARSER_TEXT;
    }
    return p->pending.size > 0;
}

/* ---- Harmony: <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>… --------------- */

static const char MESSAGE_BEGIN[] = "<|message|>";
static const char *const message_ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};
enum { NEXT_START = 3, N_MESSAGE_ENDS = sizeof message_ends / sizeof message_ends[0] };

typedef enum header_begin { HEADER_NONE, HEADER_MAYBE, HEADER_SURELY } header_begin;

/* Whether text that follows a message, or begins an answer, begins a header. */
static header_begin header_of(const char *text, size_t n_bytes) {
    static const char *const begins[] = {"<|start|>", "<|channel|>", MESSAGE_BEGIN, "<|constrain|>", "to="};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        const size_t n = strlen(begins[i]);
        if (memcmp(text, begins[i], n < n_bytes ? n : n_bytes) != 0) { continue; }
        return n <= n_bytes && begins[i][0] == '<' ? HEADER_SURELY : HEADER_MAYBE;
    }
    return HEADER_NONE;
}

/* Tools that are none of the request's serve the model's thoughts: their messages are no answer. */
static message_kind kind_of_message(const answer_parser *p) {
    const size_t to = find(&p->lead, "to="), functions = find(&p->lead, "to=functions.");
    if (functions != SIZE_MAX) { return p->tools != NULL ? MESSAGE_CALL : MESSAGE_TEXT; }
    return to != SIZE_MAX || find(&p->lead, "<|channel|>analysis") != SIZE_MAX ? MESSAGE_THOUGHT : MESSAGE_TEXT;
}

static void begin_message(answer_parser *p, size_t n_header) {
    serve_text_clear(&p->lead);
    serve_text_add(&p->lead, p->pending.data, n_header);
    serve_text_drop_front(&p->pending, n_header);
    p->message = kind_of_message(p);
    p->separates = p->message == MESSAGE_THOUGHT ? p->has_thought : p->has_text;
    p->state = PARSER_MESSAGE;
    p->n_searched = 0;
    p->n_messages++;
}

static bool step_header(answer_parser *p, bool is_last) {
    size_t n_space = 0;
    while (n_space < p->pending.size && call_is_space(p->pending.data[n_space])) { n_space++; }
    const size_t n_left = p->pending.size - n_space;
    if (p->pending.size == 0 || (n_left == 0 && !is_last)) { return false; }
    const header_begin begin = n_left > 0 ? header_of(p->pending.data + n_space, n_left) : HEADER_NONE;
    const size_t at = begin != HEADER_NONE ? find(&p->pending, MESSAGE_BEGIN) : SIZE_MAX;
    if (at != SIZE_MAX) {
        begin_message(p, at + strlen(MESSAGE_BEGIN));
    } else if (begin == HEADER_SURELY || (n_left == 0 && p->n_messages > 0)) {
        if (is_last) { serve_text_clear(&p->pending); } /* a header that was cut short, or space */
        return false;
    } else if (begin == HEADER_MAYBE && !is_last) {
        return false;
    } else {
        begin_message(p, 0);
    }
    return true;
}

static void give_message(answer_parser *p, size_t n_bytes, answer_delta *delta) {
    const bool is_thought = p->message == MESSAGE_THOUGHT;
    if (n_bytes == 0) { return; }
    serve_text *into = is_thought ? &delta->thought : &delta->content;
    if (p->separates) { serve_text_add(into, "\n", 1); }
    p->separates = false;
    serve_text_add(into, p->pending.data, n_bytes);
    p->has_thought = p->has_thought || is_thought;
    p->has_text = p->has_text || !is_thought;
}

/* pending[0, n) is the body of a call, which stays text where it is none. */
static void give_call(answer_parser *p, size_t n_bytes, answer_delta *delta) {
    if (delta->calls == NULL) { delta->calls = cJSON_CreateArray(); }
    serve_text_add(&p->lead, p->pending.data, n_bytes);
    if (count_calls(
            p, !p->lead.failed && tool_calls_parse(CALLS_HARMONY, p->lead.data, p->lead.size, p->tools, delta->calls),
            delta)) {
        return;
    }
    p->message = MESSAGE_TEXT;
    give_message(p, n_bytes, delta);
}

static bool step_message(answer_parser *p, bool is_last, answer_delta *delta) {
    size_t end = SIZE_MAX, n_held = 0;
    int mark = -1;
    const bool is_call = p->message == MESSAGE_CALL;
    if (is_call && !is_last && !sees_end(p, message_ends, N_MESSAGE_ENDS)) { return false; }
    for (int i = 0; i < N_MESSAGE_ENDS; i++) {
        const size_t at = is_call ? find_end(p, message_ends[i], is_last) : find(&p->pending, message_ends[i]);
        const size_t n = partial_bytes(&p->pending, message_ends[i]);
        if (at < end) { end = at, mark = i; }
        n_held = n > n_held ? n : n_held;
    }
    const bool is_over = mark >= 0 || is_last;
    if (is_call && !is_over) { return false; }
    const size_t n_body = mark >= 0 ? end : p->pending.size - (is_last ? 0 : n_held);
    if (is_call) {
        give_call(p, n_body, delta);
    } else {
        give_message(p, n_body, delta);
    }
    serve_text_drop_front(&p->pending, n_body + (mark >= 0 && mark != NEXT_START ? strlen(message_ends[mark]) : 0));
    if (mark >= 0) { p->state = PARSER_HEADER; }
    return mark >= 0;
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static void run(answer_parser *p, bool is_last, answer_delta *delta) {
    bool goes_on = true;
    while (goes_on) {
        switch (p->state) {
            case PARSER_TEXT: goes_on = step_text(p, is_last, delta); break;
            case PARSER_THOUGHT: goes_on = step_thought(p, is_last, delta); break;
            case PARSER_CALL:
            case PARSER_CALL_REST: goes_on = step_call(p, is_last, delta); break;
            case PARSER_HEADER: goes_on = step_header(p, is_last); break;
            case PARSER_MESSAGE: goes_on = step_message(p, is_last, delta); break;
        }
    }
}

void answer_parser_push(answer_parser *p, const char *bytes, size_t n_bytes, answer_delta *delta) {
    serve_text_add(&p->pending, bytes, n_bytes);
    run(p, false, delta);
}

static bool ends_message(const char *marker) {
    bool found = false;
    for (int i = 0; i < N_MESSAGE_ENDS; i++) { found = found || strcmp(marker, message_ends[i]) == 0; }
    return found;
}

/* Outside of calls, markers that begin or end something count. */
static bool counts(const answer_parser *p, const char *marker) {
    if (p->state == PARSER_THOUGHT) { return strcmp(marker, p->format->think_end) == 0; }
    if (p->state == PARSER_MESSAGE) { return ends_message(marker); }
    if (p->state != PARSER_TEXT) { return true; }
    bool found = may_think(p) && strcmp(marker, p->format->think_begin) == 0;
    for (int i = 0; i < n_call_marks; i++) {
        found = found || (is_wanted(p, i) && strcmp(marker, call_marks[i].begin) == 0);
    }
    return found;
}

void answer_parser_push_hidden(answer_parser *p, const char *marker, answer_delta *delta) {
    if (counts(p, marker)) { answer_parser_push(p, marker, strlen(marker), delta); }
}

void answer_parser_finish(answer_parser *p, answer_delta *delta) { run(p, true, delta); }
