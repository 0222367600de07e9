#include "serve/responses/answer.h"

#include <stdio.h>
#include <string.h>

#include "serve/responses/request.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

char *responses_error_text(const openai_error *error) {
    static const char *const names[][2] = {
        {"messages", "input"}, {"max_tokens", "max_output_tokens"}, {"response_format", "text.format"}};
    openai_error renamed = *error;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(error->member, names[i][0]) == 0) {
            (void)snprintf(renamed.member, sizeof renamed.member, "%s", names[i][1]);
        }
    }
    return openai_error_text(&renamed);
}

/* ---- The response around its items ------------------------------------------------------------------------------- */

static void add_number_of(cJSON *object, const char *name, const cJSON *number) {
    cJSON_AddItemToObject(object, name, number != NULL ? cJSON_Duplicate(number, false) : cJSON_CreateNull());
}

/* The tools of a chat as this API has them. */
static cJSON *tools_of(const openai_request *request) {
    cJSON *list = cJSON_CreateArray();
    const cJSON *tool;
    cJSON_ArrayForEach(tool, cJSON_GetObjectItemCaseSensitive(request->body, "tools")) {
        cJSON *made = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(tool, "function"), true);
        cJSON_AddStringToObject(made, "type", "function");
        cJSON_AddItemToArray(list, made);
    }
    return list;
}

static cJSON *choice_of(const openai_request *request) {
    if (request->called == NULL) { return cJSON_CreateString(request->must_call ? "required" : "auto"); }
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddStringToObject(choice, "type", "function");
    cJSON_AddStringToObject(choice, "name", request->called);
    return choice;
}

static void add_usage(cJSON *response, const openai_usage *usage) {
    cJSON *object = cJSON_AddObjectToObject(response, "usage");
    cJSON_AddNumberToObject(object, "input_tokens", (double)usage->prompt_tokens);
    cJSON *details = cJSON_AddObjectToObject(object, "input_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", (double)usage->cached_tokens);
    cJSON_AddNumberToObject(object, "output_tokens", (double)usage->completion_tokens);
    details = cJSON_AddObjectToObject(object, "output_tokens_details");
    cJSON_AddNumberToObject(details, "reasoning_tokens", (double)usage->thought_tokens);
    cJSON_AddNumberToObject(object, "total_tokens", (double)(usage->prompt_tokens + usage->completion_tokens));
}

/* What was asked for, as far as it is still known under its name. */
static void add_request(cJSON *response, const openai_request *request) {
    add_number_of(response, "max_output_tokens", cJSON_GetObjectItemCaseSensitive(request->body, "max_tokens"));
    add_number_of(response, "temperature", cJSON_GetObjectItemCaseSensitive(request->body, "temperature"));
    add_number_of(response, "top_p", cJSON_GetObjectItemCaseSensitive(request->body, "top_p"));
    cJSON_AddItemToObject(response, "tools", tools_of(request));
    cJSON_AddItemToObject(response, "tool_choice", choice_of(request));
    cJSON_AddTrueToObject(response, "parallel_tool_calls");
    cJSON_AddNullToObject(response, "previous_response_id");
    cJSON_AddFalseToObject(response, "store");
}

/* Takes output. usage NULL: not known yet. */
static cJSON *response_of(const answer_writer *w, const char *status, cJSON *output, const openai_error *error,
                          const openai_usage *usage) {
    cJSON *response = cJSON_CreateObject();
    cJSON_AddStringToObject(response, "id", w->head.id);
    cJSON_AddStringToObject(response, "object", "response");
    cJSON_AddNumberToObject(response, "created_at", (double)w->head.created);
    cJSON_AddStringToObject(response, "status", status);
    cJSON_AddStringToObject(response, "model", w->head.model);
    if (error != NULL) {
        cJSON *object = cJSON_AddObjectToObject(response, "error");
        cJSON_AddStringToObject(object, "code", error->status >= 500 ? "server_error" : "invalid_prompt");
        cJSON_AddStringToObject(object, "message", error->message);
    } else {
        cJSON_AddNullToObject(response, "error");
    }
    if (strcmp(status, "incomplete") == 0) {
        cJSON *details = cJSON_AddObjectToObject(response, "incomplete_details");
        cJSON_AddStringToObject(details, "reason", "max_output_tokens");
    } else {
        cJSON_AddNullToObject(response, "incomplete_details");
    }
    cJSON_AddNullToObject(response, "instructions");
    cJSON_AddObjectToObject(response, "metadata");
    add_request(response, w->request);
    cJSON_AddItemToObject(response, "output", output);
    if (usage != NULL) {
        add_usage(response, usage);
    } else {
        cJSON_AddNullToObject(response, "usage");
    }
    return response;
}

/* ---- Items ------------------------------------------------------------------------------------------------------- */

enum { ITEM_ID_BYTES = 80 };

static void item_id(const answer_writer *w, const answer_blocks *b, char id[ITEM_ID_BYTES]) {
    static const char *const prefixes[] = {[BLOCK_THOUGHT] = "rs", [BLOCK_TEXT] = "msg", [BLOCK_CALL] = "fc"};
    (void)snprintf(id, ITEM_ID_BYTES, "%s_%s_%d", prefixes[b->open], w->head.id, b->number);
}

/* The one part of an item that is no call: its text, or an empty one. */
static cJSON *part_of(const answer_blocks *b, bool is_whole) {
    cJSON *part = cJSON_CreateObject();
    const bool is_text = b->open == BLOCK_TEXT;
    cJSON_AddStringToObject(part, "type", is_text ? "output_text" : "reasoning_text");
    cJSON_AddItemToObject(part, "text", serve_text_to_json(b->text.data, is_whole ? b->text.size : 0));
    if (!is_text) { return part; }
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddArrayToObject(part, "logprobs");
    return part;
}

/* As it begins, or as a response has it. */
static cJSON *item_of(const answer_writer *w, const answer_blocks *b, bool is_whole) {
    static const char *const types[] = {
        [BLOCK_THOUGHT] = "reasoning", [BLOCK_TEXT] = "message", [BLOCK_CALL] = "function_call"};
    char id[ITEM_ID_BYTES], call_id[PROTOCOL_CALL_ID_BYTES];
    cJSON *item = cJSON_CreateObject();
    item_id(w, b, id);
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "type", types[b->open]);
    cJSON_AddStringToObject(item, "status", !is_whole ? "in_progress" : w->is_cut ? "incomplete" : "completed");
    if (b->open == BLOCK_CALL) {
        protocol_call_id(&w->head, 0, b->n_calls - 1, call_id);
        cJSON_AddStringToObject(item, "call_id", call_id);
        cJSON_AddItemToObject(item, "name", cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(b->call, "name"), false));
        cJSON_AddItemToObject(item, "arguments", serve_text_to_json(b->text.data, is_whole ? b->text.size : 0));
        return item;
    }
    if (b->open == BLOCK_TEXT) { cJSON_AddStringToObject(item, "role", "assistant"); }
    if (b->open == BLOCK_THOUGHT) { cJSON_AddArrayToObject(item, "summary"); }
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    if (is_whole) { cJSON_AddItemToArray(content, part_of(b, true)); }
    return item;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static cJSON *event_of(answer_writer *w, const char *type) {
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "type", type);
    cJSON_AddNumberToObject(event, "sequence_number", (double)w->n_events++);
    return event;
}

/* About a part of an item, or a call. */
static cJSON *event_of_part(answer_writer *w, const answer_blocks *b, const char *type) {
    char id[ITEM_ID_BYTES];
    cJSON *event = event_of(w, type);
    item_id(w, b, id);
    cJSON_AddStringToObject(event, "item_id", id);
    cJSON_AddNumberToObject(event, "output_index", b->number);
    if (b->open != BLOCK_CALL) { cJSON_AddNumberToObject(event, "content_index", 0); }
    return event;
}

/* Takes the event, which has a type. */
static void write_event(const answer_writer *w, cJSON *event) {
    protocol_write_event(w->out, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "type")), event);
}

static void write_item(answer_writer *w, const answer_blocks *b, const char *type, cJSON *item) {
    cJSON *event = event_of(w, type);
    cJSON_AddNumberToObject(event, "output_index", b->number);
    cJSON_AddItemToObject(event, "item", item);
    write_event(w, event);
}

static void write_part(answer_writer *w, const answer_blocks *b, const char *type, bool is_whole) {
    cJSON *event = event_of_part(w, b, type);
    cJSON_AddItemToObject(event, "part", part_of(b, is_whole));
    write_event(w, event);
}

/* By kind: an event as the block grows, one when it ends, and what that calls all of it. */
static const struct {
    const char *grows, *ends, *whole;
} kinds[] = {
    [BLOCK_THOUGHT] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
    [BLOCK_TEXT] = {"response.output_text.delta", "response.output_text.done", "text"},
    [BLOCK_CALL] = {"response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments"},
};

static void on_begin(void *user, const answer_blocks *b) {
    answer_writer *w = user;
    if (w->out == NULL) { return; }
    write_item(w, b, "response.output_item.added", item_of(w, b, false));
    if (b->open != BLOCK_CALL) { write_part(w, b, "response.content_part.added", false); }
}

static void on_grow(void *user, const answer_blocks *b, const char *bytes, size_t n_bytes) {
    answer_writer *w = user;
    if (w->out == NULL) { return; }
    cJSON *event = event_of_part(w, b, kinds[b->open].grows);
    cJSON_AddItemToObject(event, "delta", serve_text_to_json(bytes, n_bytes));
    if (b->open == BLOCK_TEXT) { cJSON_AddArrayToObject(event, "logprobs"); }
    write_event(w, event);
}

static void on_end(void *user, const answer_blocks *b) {
    answer_writer *w = user;
    cJSON_AddItemToArray(w->done, item_of(w, b, true));
    if (w->out == NULL) { return; }
    cJSON *event = event_of_part(w, b, kinds[b->open].ends);
    cJSON_AddItemToObject(event, kinds[b->open].whole, serve_text_to_json(b->text.data, b->text.size));
    if (b->open == BLOCK_TEXT) { cJSON_AddArrayToObject(event, "logprobs"); }
    if (b->open == BLOCK_CALL) {
        cJSON_AddItemToObject(event, "name", cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(b->call, "name"), false));
    }
    write_event(w, event);
    if (b->open != BLOCK_CALL) { write_part(w, b, "response.content_part.done", true); }
    write_item(w, b, "response.output_item.done", item_of(w, b, true));
}

static const block_events events = {on_begin, on_grow, on_end};

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* Takes the response. */
static void write_response(answer_writer *w, const char *type, cJSON *response) {
    cJSON *event = event_of(w, type);
    cJSON_AddItemToObject(event, "response", response);
    write_event(w, event);
}

static cJSON *take_items(answer_writer *w) {
    cJSON *items = w->done;
    w->done = NULL;
    return items != NULL ? items : cJSON_CreateArray();
}

static void write_begin(answer_writer *w) {
    static const char *const types[] = {"response.created", "response.in_progress"};
    w->done = cJSON_CreateArray();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        write_response(w, types[i], response_of(w, "in_progress", cJSON_CreateArray(), NULL, NULL));
    }
}

/* The end of the last item and of the response; its status. */
static const char *end_items(answer_writer *w, const answer_piece *piece) {
    w->is_cut = strcmp(piece->finish_reason, "length") == 0;
    answer_blocks_end(&w->blocks, &events, w);
    return w->is_cut ? "incomplete" : "completed";
}

static bool write_piece(answer_writer *w, answer_piece *piece, serve_text *out) {
    w->out = out;
    if (piece->is_first) { write_begin(w); }
    answer_blocks_take(&w->blocks, piece->delta, &events, w);
    if (piece->finish_reason != NULL) {
        const char *status = end_items(w, piece);
        write_response(w, w->is_cut ? "response.incomplete" : "response.completed",
                       response_of(w, status, take_items(w), NULL, &piece->usage));
    }
    w->out = NULL;
    return true;
}

/* There is no event that means nothing. */
static void write_wait(answer_writer *w, bool is_first, serve_text *out) {
    w->out = out;
    if (is_first) { write_begin(w); }
    w->out = NULL;
}

static void write_error(answer_writer *w, const openai_error *error, serve_text *out) {
    w->out = out;
    write_response(w, "response.failed", response_of(w, "failed", take_items(w), error, NULL));
    w->out = NULL;
}

static cJSON *whole_response(answer_writer *w, answer_piece *pieces, int n, const openai_usage *usage) {
    if (n != 1) { return NULL; }
    w->done = cJSON_CreateArray();
    answer_blocks_take(&w->blocks, pieces[0].delta, &events, w);
    const char *status = end_items(w, &pieces[0]);
    return response_of(w, status, take_items(w), NULL, usage);
}

const answer_protocol responses_protocol = {.kind = OPENAI_CHAT,
                                            .id_prefix = "resp_",
                                            .translate = responses_to_chat,
                                            .write_piece = write_piece,
                                            .write_wait = write_wait,
                                            .write_error = write_error,
                                            .whole = whole_response,
                                            .error_text = responses_error_text};
