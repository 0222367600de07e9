#include "serve/openai/blocks.h"

#include <string.h>

void answer_blocks_free(answer_blocks *b) {
    serve_text_free(&b->text);
    *b = (answer_blocks){.n = 0};
}

void answer_blocks_end(answer_blocks *b, const block_events *events, void *user) {
    if (b->open == BLOCK_NONE) { return; }
    events->end(user, b);
    b->open = BLOCK_NONE;
    b->call = NULL;
}

static void begin(answer_blocks *b, block_kind kind, cJSON *call, const block_events *events, void *user) {
    answer_blocks_end(b, events, user);
    serve_text_clear(&b->text);
    b->open = kind;
    b->call = call;
    b->number = b->n++;
    b->n_calls += kind == BLOCK_CALL;
    events->begin(user, b);
}

static void grow(answer_blocks *b, const char *bytes, size_t n_bytes, const block_events *events, void *user) {
    serve_text_add(&b->text, bytes, n_bytes);
    events->grow(user, b, bytes, n_bytes);
}

static void take_text(answer_blocks *b, block_kind kind, const char *bytes, size_t n_bytes, const block_events *events,
                      void *user) {
    if (n_bytes == 0) { return; }
    if (b->open != kind) {
        const bool separates = kind == BLOCK_TEXT && b->has_text && bytes[0] == '\n'; /* as the block does */
        begin(b, kind, NULL, events, user);
        bytes += separates;
        n_bytes -= separates;
    }
    b->has_text |= kind == BLOCK_TEXT;
    if (n_bytes > 0) { grow(b, bytes, n_bytes, events, user); }
}

static void take_call(answer_blocks *b, cJSON *call, const block_events *events, void *user) {
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(call, "arguments");
    begin(b, BLOCK_CALL, call, events, user);
    if (cJSON_IsString(arguments)) { grow(b, arguments->valuestring, strlen(arguments->valuestring), events, user); }
    answer_blocks_end(b, events, user);
}

void answer_blocks_take(answer_blocks *b, const answer_delta *delta, const block_events *events, void *user) {
    const serve_text *content = &delta->content;
    const cJSON *place = delta->calls_after != NULL ? delta->calls_after->child : NULL;
    cJSON *call;
    size_t n_taken = 0;
    take_text(b, BLOCK_THOUGHT, delta->thought.data, delta->thought.size, events, user);
    cJSON_ArrayForEach(call, delta->calls) {
        const size_t before = place != NULL ? (size_t)place->valuedouble : content->size;
        if (before > n_taken) { take_text(b, BLOCK_TEXT, content->data + n_taken, before - n_taken, events, user); }
        take_call(b, call, events, user);
        n_taken = before;
        place = place != NULL ? place->next : NULL;
    }
    if (content->size > n_taken) {
        take_text(b, BLOCK_TEXT, content->data + n_taken, content->size - n_taken, events, user);
    }
}
