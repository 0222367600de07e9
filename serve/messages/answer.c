#include "serve/messages/answer.h"

#include <string.h>

#include "serve/messages/request.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static const char *type_of(int status) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].status == status) { return types[i].type; }
    }
    return status >= 500 ? "api_error" : "invalid_request_error";
}

static cJSON *error_of(const openai_error *error) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "type", "error");
    cJSON *inner = cJSON_AddObjectToObject(root, "error");
    cJSON_AddStringToObject(inner, "type", type_of(error->status));
    cJSON_AddStringToObject(inner, "message", error->message);
    return root;
}

char *messages_error_text(const openai_error *error) {
    cJSON *root = error_of(error);
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

static void write_error(answer_writer *w, const openai_error *error, serve_text *out) {
    (void)w;
    protocol_write_event(out, "error", error_of(error));
}

/* ---- The message around its blocks ------------------------------------------------------------------------------- */

/* What was read from a cache does not count as input: the prompt's tokens are the sum of both. */
static cJSON *usage_of(const openai_usage *usage) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "input_tokens", (double)(usage->prompt_tokens - usage->cached_tokens));
    cJSON_AddNumberToObject(object, "cache_creation_input_tokens", 0);
    cJSON_AddNumberToObject(object, "cache_read_input_tokens", (double)usage->cached_tokens);
    cJSON_AddNumberToObject(object, "output_tokens", (double)usage->completion_tokens);
    return object;
}

static const char *stop_reason_of(const answer_piece *piece) {
    if (piece->stop_text != NULL) { return "stop_sequence"; }
    if (strcmp(piece->finish_reason, "length") == 0) { return "max_tokens"; }
    return piece->n_calls > 0 ? "tool_use" : "end_turn";
}

/* piece NULL, or one that does not end: there is no reason yet. */
static void add_stop(cJSON *object, const answer_piece *piece) {
    const bool is_over = piece != NULL && piece->finish_reason != NULL;
    const bool has_text = is_over && piece->stop_text != NULL;
    cJSON_AddItemToObject(object, "stop_reason",
                          is_over ? cJSON_CreateString(stop_reason_of(piece)) : cJSON_CreateNull());
    cJSON_AddItemToObject(object, "stop_sequence",
                          has_text ? cJSON_CreateString(piece->stop_text) : cJSON_CreateNull());
}

/* Takes content; piece NULL: the message begins. */
static cJSON *message_of(const openai_head *head, cJSON *content, const answer_piece *piece,
                         const openai_usage *usage) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "id", head->id);
    cJSON_AddStringToObject(message, "type", "message");
    cJSON_AddStringToObject(message, "role", "assistant");
    cJSON_AddStringToObject(message, "model", head->model);
    cJSON_AddItemToObject(message, "content", content);
    add_stop(message, piece);
    cJSON_AddItemToObject(message, "usage", usage_of(usage));
    return message;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* As it begins, without its text, or as it is in a message. Arguments of a call are the text of a JSON object. */
static cJSON *block_of(const answer_writer *w, const answer_blocks *b, bool is_whole) {
    cJSON *block = cJSON_CreateObject();
    char id[PROTOCOL_CALL_ID_BYTES];
    const char *text = is_whole && b->text.data != NULL ? b->text.data : "";
    const size_t n_bytes = is_whole ? b->text.size : 0;
    switch (b->open) {
        case BLOCK_THOUGHT:
            cJSON_AddStringToObject(block, "type", "thinking");
            cJSON_AddItemToObject(block, "thinking", serve_text_to_json(text, n_bytes));
            cJSON_AddStringToObject(block, "signature", "");
            break;
        case BLOCK_CALL:
            protocol_call_id(&w->head, 0, b->n_calls - 1, id);
            cJSON_AddStringToObject(block, "type", "tool_use");
            cJSON_AddStringToObject(block, "id", id);
            cJSON_AddItemToObject(block, "name",
                                  cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(b->call, "name"), false));
            cJSON_AddItemToObject(block, "input", n_bytes > 0 ? cJSON_CreateRaw(text) : cJSON_CreateObject());
            break;
        default:
            cJSON_AddStringToObject(block, "type", "text");
            cJSON_AddItemToObject(block, "text", serve_text_to_json(text, n_bytes));
            break;
    }
    return block;
}

static cJSON *event_of(const char *type) {
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "type", type);
    return event;
}

static cJSON *event_of_block(const char *type, const answer_blocks *b) {
    cJSON *event = event_of(type);
    cJSON_AddNumberToObject(event, "index", b->number);
    return event;
}

/* Takes the event, which has a type. */
static void write_event(const answer_writer *w, cJSON *event) {
    protocol_write_event(w->out, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "type")), event);
}

static void on_begin(void *user, const answer_blocks *b) {
    answer_writer *w = user;
    if (w->out == NULL) { return; }
    cJSON *event = event_of_block("content_block_start", b);
    cJSON_AddItemToObject(event, "content_block", block_of(w, b, false));
    write_event(w, event);
}

static void on_grow(void *user, const answer_blocks *b, const char *bytes, size_t n_bytes) {
    static const char *const types[][2] = {[BLOCK_THOUGHT] = {"thinking_delta", "thinking"},
                                           [BLOCK_TEXT] = {"text_delta", "text"},
                                           [BLOCK_CALL] = {"input_json_delta", "partial_json"}};
    answer_writer *w = user;
    if (w->out == NULL) { return; }
    cJSON *event = event_of_block("content_block_delta", b);
    cJSON *delta = cJSON_AddObjectToObject(event, "delta");
    cJSON_AddStringToObject(delta, "type", types[b->open][0]);
    cJSON_AddItemToObject(delta, types[b->open][1], serve_text_to_json(bytes, n_bytes));
    write_event(w, event);
}

static void on_end(void *user, const answer_blocks *b) {
    answer_writer *w = user;
    if (w->out != NULL) {
        write_event(w, event_of_block("content_block_stop", b));
    } else {
        cJSON_AddItemToArray(w->done, block_of(w, b, true));
    }
}

static const block_events events = {on_begin, on_grow, on_end};

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static void write_begin(answer_writer *w, const openai_usage *usage) {
    cJSON *event = event_of("message_start");
    cJSON_AddItemToObject(event, "message", message_of(&w->head, cJSON_CreateArray(), NULL, usage));
    write_event(w, event);
    write_event(w, event_of("ping"));
}

static void write_end(answer_writer *w, const answer_piece *piece) {
    cJSON *event = event_of("message_delta");
    add_stop(cJSON_AddObjectToObject(event, "delta"), piece);
    cJSON_AddItemToObject(event, "usage", usage_of(&piece->usage));
    write_event(w, event);
    write_event(w, event_of("message_stop"));
}

static bool write_piece(answer_writer *w, answer_piece *piece, serve_text *out) {
    w->out = out;
    if (piece->is_first) { write_begin(w, &piece->usage); }
    answer_blocks_take(&w->blocks, piece->delta, &events, w);
    if (piece->finish_reason != NULL) {
        answer_blocks_end(&w->blocks, &events, w);
        write_end(w, piece);
    }
    w->out = NULL;
    return true;
}

/* How many tokens the prompt has is not known yet; the end says it. */
static void write_wait(answer_writer *w, bool is_first, serve_text *out) {
    static const openai_usage none = {0};
    w->out = out;
    if (is_first) {
        write_begin(w, &none);
    } else {
        write_event(w, event_of("ping"));
    }
    w->out = NULL;
}

static cJSON *whole_message(answer_writer *w, answer_piece *pieces, int n, const openai_usage *usage) {
    if (n != 1) { return NULL; }
    w->done = cJSON_CreateArray();
    answer_blocks_take(&w->blocks, pieces[0].delta, &events, w);
    answer_blocks_end(&w->blocks, &events, w);
    cJSON *content = w->done;
    w->done = NULL;
    return message_of(&w->head, content, &pieces[0], usage);
}

#define MESSAGES                                                                                     \
    .kind = OPENAI_CHAT, .id_prefix = "msg_", .id_header = "request-id", .write_piece = write_piece, \
    .write_wait = write_wait, .write_error = write_error, .whole = whole_message, .error_text = messages_error_text
const answer_protocol messages_protocol = {MESSAGES, .translate = messages_to_chat};
const answer_protocol messages_count_protocol = {MESSAGES, .translate = messages_to_count, .counts = true};
