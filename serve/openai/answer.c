#include "serve/openai/answer.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai/text.h"

/* ---- Log probabilities ------------------------------------------------------------------------------------------- */

/* A number that reads as this float, also where it is read as a double. cJSON's own may differ in the last bit. */
static cJSON *exact_number(float value) {
    char printed[40];
    int n_digits = 9;
    const double number = value > -FLT_MAX ? (double)value : -(double)FLT_MAX; /* JSON has no infinity */
    do {
        (void)snprintf(printed, sizeof printed, "%.*g", n_digits, number);
    } while (n_digits++ < 17 && strtod(printed, NULL) != number);
    return cJSON_CreateRaw(printed);
}

cJSON *openai_logprobs_begin(bool is_chat, int64_t n_characters_before, openai_logprobs *into) {
    cJSON *object = cJSON_CreateObject();
    *into = (openai_logprobs){.n_characters = n_characters_before};
    if (is_chat) {
        into->content = cJSON_AddArrayToObject(object, "content");
    } else {
        into->tokens = cJSON_AddArrayToObject(object, "tokens");
        into->token_logprobs = cJSON_AddArrayToObject(object, "token_logprobs");
        into->top_logprobs = cJSON_AddArrayToObject(object, "top_logprobs");
        into->offsets = cJSON_AddArrayToObject(object, "text_offset");
    }
    return object;
}

/* Decoders drop a space at the very beginning, so the token is decoded after itself. *text is NULL or for qrun_free;
 * the token's bytes are the last *n_bytes of it. */
static const char *decoded_token(const qrun_tokenizer *tokenizer, int32_t id, char **text, size_t *n_bytes) {
    const int32_t twice[] = {id, id};
    char *once = NULL;
    size_t n_once = 0, n_twice = 0;
    *text = NULL;
    *n_bytes = 0;
    if (tokenizer == NULL || qrun_detokenize(tokenizer, twice, 1, false, &once, &n_once, NULL) != QRUN_OK) {
        return "";
    }
    qrun_free(once);
    if (qrun_detokenize(tokenizer, twice, 2, false, text, &n_twice, NULL) != QRUN_OK) { return ""; }
    *n_bytes = n_twice > n_once ? n_twice - n_once : 0;
    return *text + (n_twice - *n_bytes);
}

/* What a token adds to a text, which may be a part of a character: *is_part. *text as above. */
static const char *token_bytes(const qrun_tokenizer *tokenizer, int32_t id, char **text, size_t *n_bytes,
                               bool *is_part) {
    static const char replacement[] = "\xEF\xBF\xBD";
    char *part = NULL;
    size_t n_part = 0;
    const char *bytes = decoded_token(tokenizer, id, text, n_bytes);
    *is_part = false;
    if (*text == NULL || *n_bytes == 0 || (strstr(bytes, replacement) == NULL && serve_text_is_utf8(bytes, *n_bytes)) ||
        qrun_token_bytes(tokenizer, id, &part, &n_part, NULL) != QRUN_OK) {
        return bytes;
    }
    qrun_free(*text);
    *text = part;
    *n_bytes = n_part;
    *is_part = !serve_text_is_utf8(part, n_part);
    return part;
}

/* A part of a character as OpenAI's servers name it: "bytes:\xf0\x9f". */
static cJSON *part_string(const char *bytes, size_t n_bytes) {
    serve_text name = {0};
    serve_text_add(&name, "bytes:", 6);
    for (size_t i = 0; i < n_bytes; i++) {
        char byte[8];
        const int n = snprintf(byte, sizeof byte, "\\x%02x", (unsigned char)bytes[i]);
        serve_text_add(&name, byte, (size_t)n);
    }
    cJSON *string = serve_text_to_json(name.data, name.size);
    serve_text_free(&name);
    return string;
}

static cJSON *token_string(const qrun_tokenizer *tokenizer, int32_t id) {
    char *text;
    size_t n_bytes;
    bool is_part;
    const char *bytes = token_bytes(tokenizer, id, &text, &n_bytes, &is_part);
    cJSON *string = is_part ? part_string(bytes, n_bytes) : serve_text_to_json(bytes, n_bytes);
    qrun_free(text);
    return string;
}

static cJSON *chat_token(const qrun_tokenizer *tokenizer, int32_t id, float logprob) {
    char *text;
    size_t n_bytes;
    bool is_part;
    const char *bytes = token_bytes(tokenizer, id, &text, &n_bytes, &is_part);
    cJSON *token = cJSON_CreateObject();
    cJSON_AddItemToObject(token, "token", serve_text_to_json(bytes, n_bytes));
    cJSON_AddItemToObject(token, "logprob", exact_number(logprob));
    cJSON *list = cJSON_AddArrayToObject(token, "bytes");
    for (size_t i = 0; i < n_bytes; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)(unsigned char)bytes[i]));
    }
    qrun_free(text);
    return token;
}

static void add_by_text(cJSON *top, const qrun_tokenizer *tokenizer, int32_t id, float logprob) {
    cJSON *name = token_string(tokenizer, id);
    if (cJSON_IsString(name) && cJSON_GetObjectItemCaseSensitive(top, name->valuestring) == NULL) {
        cJSON_AddItemToObject(top, name->valuestring, exact_number(logprob));
    }
    cJSON_Delete(name);
}

/* By the tokens' texts; of several with one text the best. The token itself is among them, or one more. */
static cJSON *top_of(const qrun_event *event, const qrun_tokenizer *tokenizer) {
    cJSON *top = cJSON_CreateObject();
    for (int32_t i = 0; i < event->n_top; i++) {
        add_by_text(top, tokenizer, event->top[i].token_id, event->top[i].logprob);
    }
    add_by_text(top, tokenizer, event->token_id, event->logprob);
    return top;
}

const char *openai_special_name(const qrun_tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    char *kept = NULL, *skipped = NULL;
    size_t n_kept = 0, n_skipped = 0;
    const bool is_special =
        tokenizer != NULL && qrun_detokenize(tokenizer, &id, 1, false, &kept, &n_kept, NULL) == QRUN_OK &&
        qrun_detokenize(tokenizer, &id, 1, true, &skipped, &n_skipped, NULL) == QRUN_OK && n_kept > 0 && n_skipped == 0;
    qrun_free(kept);
    qrun_free(skipped);
    return is_special ? qrun_token_text(tokenizer, id, n_bytes) : NULL;
}

void openai_logprobs_add(openai_logprobs *lists, const qrun_event *event, int64_t n_characters,
                         const qrun_tokenizer *tokenizer) {
    if (lists->content != NULL) {
        cJSON *token = chat_token(tokenizer, event->token_id, event->logprob);
        cJSON *top = cJSON_AddArrayToObject(token, "top_logprobs");
        for (int32_t i = 0; i < event->n_top; i++) {
            cJSON_AddItemToArray(top, chat_token(tokenizer, event->top[i].token_id, event->top[i].logprob));
        }
        cJSON_AddItemToArray(lists->content, token);
        return;
    }
    /* The first token of a prompt has none. */
    const bool has = event->has_logprob;
    cJSON_AddItemToArray(lists->tokens, token_string(tokenizer, event->token_id));
    cJSON_AddItemToArray(lists->token_logprobs, has ? exact_number(event->logprob) : cJSON_CreateNull());
    cJSON_AddItemToArray(lists->offsets, cJSON_CreateNumber((double)lists->n_characters));
    cJSON_AddItemToArray(lists->top_logprobs, has ? top_of(event, tokenizer) : cJSON_CreateNull());
    lists->n_characters += n_characters;
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static void add_usage(cJSON *answer, const openai_usage *usage) {
    cJSON *object = cJSON_AddObjectToObject(answer, "usage");
    cJSON_AddNumberToObject(object, "prompt_tokens", (double)usage->prompt_tokens);
    cJSON_AddNumberToObject(object, "completion_tokens", (double)usage->completion_tokens);
    cJSON_AddNumberToObject(object, "total_tokens", (double)(usage->prompt_tokens + usage->completion_tokens));
    cJSON *details = cJSON_AddObjectToObject(object, "prompt_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", (double)usage->cached_tokens);
}

/* The object of a whole answer around its choices (taken), or of a piece of a stream; usage NULL: not said. */
static cJSON *answer_of(const openai_head *head, bool is_piece, cJSON *choices, const openai_usage *usage) {
    cJSON *answer = cJSON_CreateObject();
    cJSON_AddStringToObject(answer, "id", head->id);
    cJSON_AddStringToObject(answer, "object",
                            !head->is_chat ? "text_completion"
                            : is_piece     ? "chat.completion.chunk"
                                           : "chat.completion");
    cJSON_AddNumberToObject(answer, "created", (double)head->created);
    cJSON_AddStringToObject(answer, "model", head->model);
    cJSON_AddItemToObject(answer, "choices", choices);
    if (usage != NULL) { add_usage(answer, usage); }
    return answer;
}

static void add_end(cJSON *choice, cJSON *logprobs, const char *finish_reason) {
    cJSON_AddItemToObject(choice, "logprobs", logprobs != NULL ? logprobs : cJSON_CreateNull());
    cJSON_AddItemToObject(choice, "finish_reason",
                          finish_reason != NULL ? cJSON_CreateString(finish_reason) : cJSON_CreateNull());
}

/* {"name", "arguments"} … as a message has them; the first one is the choice's first-th. */
static cJSON *message_calls(const openai_head *head, int index, int first, bool is_piece, const cJSON *calls) {
    cJSON *list = cJSON_CreateArray();
    int number = first;
    const cJSON *call;
    cJSON_ArrayForEach(call, calls) {
        char id[PROTOCOL_CALL_ID_BYTES];
        protocol_call_id(head, index, number, id);
        cJSON *item = cJSON_CreateObject();
        if (is_piece) { cJSON_AddNumberToObject(item, "index", number); }
        cJSON_AddStringToObject(item, "id", id);
        cJSON_AddStringToObject(item, "type", "function");
        cJSON_AddItemToObject(item, "function", cJSON_Duplicate(call, true));
        cJSON_AddItemToArray(list, item);
        number++;
    }
    return list;
}

/* A text; a piece of a chat that has none leaves it out. */
static cJSON *text_of(const answer_piece *piece) {
    const serve_text *content = &piece->delta->content;
    return serve_text_to_json(content->data, content->size);
}

/* The parts of a chat's message. Of a piece, those that it has. */
static void add_message(cJSON *message, const openai_head *head, const answer_piece *piece, bool is_piece) {
    const answer_delta *delta = piece->delta;
    const bool has_text = delta->content.size > 0;
    if (delta->thought.size > 0) {
        cJSON_AddItemToObject(message, "reasoning_content",
                              serve_text_to_json(delta->thought.data, delta->thought.size));
    }
    if (has_text || (is_piece ? piece->is_first : delta->calls == NULL)) {
        cJSON_AddItemToObject(message, "content", text_of(piece));
    } else if (!is_piece) { /* calls alone */
        cJSON_AddNullToObject(message, "content");
    }
    if (delta->calls != NULL) {
        const int first = piece->n_calls - cJSON_GetArraySize(delta->calls);
        cJSON_AddItemToObject(message, "tool_calls", message_calls(head, piece->index, first, is_piece, delta->calls));
    }
}

static cJSON *choice_of(const openai_head *head, answer_piece *piece, bool is_piece) {
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", piece->index);
    if (head->is_chat) {
        cJSON *message = cJSON_AddObjectToObject(choice, is_piece ? "delta" : "message");
        if (piece->is_first) { cJSON_AddStringToObject(message, "role", "assistant"); }
        add_message(message, head, piece, is_piece);
    } else {
        cJSON_AddItemToObject(choice, "text", text_of(piece));
    }
    add_end(choice, piece->logprobs, piece->finish_reason);
    piece->logprobs = NULL;
    return choice;
}

static bool write_piece(answer_writer *w, answer_piece *piece, serve_text *out) {
    const answer_delta *delta = piece->delta;
    const bool is_empty = delta->content.size == 0 && delta->thought.size == 0 && delta->calls == NULL;
    if (is_empty && piece->finish_reason == NULL && piece->logprobs == NULL) { return false; }
    cJSON *choices = cJSON_CreateArray();
    cJSON_AddItemToArray(choices, choice_of(&w->head, piece, true));
    cJSON *json = answer_of(&w->head, true, choices, NULL);
    if (w->request->include_usage) { cJSON_AddNullToObject(json, "usage"); } /* comes with the last piece */
    protocol_write_event(out, NULL, json);
    return true;
}

static void write_end(answer_writer *w, const openai_usage *usage, serve_text *out) {
    if (w->request->include_usage) {
        protocol_write_event(out, NULL, answer_of(&w->head, true, cJSON_CreateArray(), usage));
    }
    serve_text_add_format(out, "data: [DONE]\n\n");
}

static void write_error(answer_writer *w, const openai_error *error, serve_text *out) {
    char *printed = openai_error_text(error);
    (void)w;
    if (printed != NULL) { serve_text_add_format(out, "data: %s\n\n", printed); }
    cJSON_free(printed);
}

static cJSON *whole_answer(answer_writer *w, answer_piece *pieces, int n, const openai_usage *usage) {
    cJSON *choices = cJSON_CreateArray();
    for (int i = 0; i < n; i++) { cJSON_AddItemToArray(choices, choice_of(&w->head, &pieces[i], false)); }
    return answer_of(&w->head, false, choices, usage);
}

#define OPENAI_ANSWERS                                                                                     \
    .write_piece = write_piece, .write_end = write_end, .write_error = write_error, .whole = whole_answer, \
    .error_text = openai_error_text
const answer_protocol openai_text_protocol = {.kind = OPENAI_TEXT, .id_prefix = "cmpl-", OPENAI_ANSWERS};
const answer_protocol openai_chat_protocol = {.kind = OPENAI_CHAT, .id_prefix = "chatcmpl-", OPENAI_ANSWERS};
const answer_protocol openai_embedding_protocol = {.kind = OPENAI_EMBEDDING, .id_prefix = "embd-", OPENAI_ANSWERS};

/* ---- Embeddings -------------------------------------------------------------------------------------------------- */

/* F32, little-endian, as OpenAI's client reads them. */
static cJSON *to_base64(const float *values, int32_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    const size_t n_bytes = (size_t)n * sizeof *values;
    char *out = malloc((n_bytes + 2) / 3 * 4 + 1), *end = out;
    if (out == NULL) { return NULL; }
    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t left = n_bytes - i;
        const uint32_t group = (uint32_t)bytes[i] << 16 | (uint32_t)(left > 1 ? bytes[i + 1] : 0) << 8 |
                               (uint32_t)(left > 2 ? bytes[i + 2] : 0);
        *end++ = digits[group >> 18];
        *end++ = digits[group >> 12 & 63];
        *end++ = left > 1 ? digits[group >> 6 & 63] : '=';
        *end++ = left > 2 ? digits[group & 63] : '=';
    }
    *end = '\0';
    cJSON *string = cJSON_CreateString(out);
    free(out);
    return string;
}

cJSON *openai_embedding(const float *values, int32_t n, bool in_base64) {
    if (in_base64) { return to_base64(values, n); }
    cJSON *list = cJSON_CreateArray();
    for (int32_t i = 0; i < n; i++) {
        char printed[40];
        (void)snprintf(printed, sizeof printed, "%.9g", (double)values[i]); /* tells a float from its neighbours */
        cJSON_AddItemToArray(list, cJSON_CreateRaw(printed));
    }
    return list;
}

cJSON *openai_embeddings(const openai_head *head, cJSON *list, const openai_usage *usage) {
    cJSON *answer = cJSON_CreateObject();
    cJSON_AddStringToObject(answer, "object", "list");
    cJSON_AddItemToObject(answer, "data", list);
    cJSON_AddStringToObject(answer, "model", head->model);
    cJSON *object = cJSON_AddObjectToObject(answer, "usage");
    cJSON_AddNumberToObject(object, "prompt_tokens", (double)usage->prompt_tokens);
    cJSON_AddNumberToObject(object, "total_tokens", (double)usage->prompt_tokens);
    return answer;
}
