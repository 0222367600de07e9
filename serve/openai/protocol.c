#include "serve/openai/protocol.h"

void answer_writer_free(answer_writer *w) {
    answer_blocks_free(&w->blocks);
    cJSON_Delete(w->done);
    *w = (answer_writer){.n_events = 0};
}

void protocol_write_event(serve_text *out, const char *name, cJSON *json) {
    char *printed = cJSON_PrintUnformatted(json);
    if (printed != NULL && name != NULL) { serve_text_add_format(out, "event: %s\n", name); }
    if (printed != NULL) { serve_text_add_format(out, "data: %s\n\n", printed); }
    cJSON_free(printed);
    cJSON_Delete(json);
}

void protocol_call_id(const openai_head *head, int index, int number, char id[PROTOCOL_CALL_ID_BYTES]) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = head->id; *c != '\0'; c++) { hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211); }
    hash = (hash ^ (uint64_t)index) * UINT64_C(1099511628211);
    hash = (hash ^ (uint64_t)number) * UINT64_C(1099511628211);
    hash ^= (uint64_t)head->created * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < PROTOCOL_CALL_ID_BYTES - 1; i++, hash /= 62) { id[i] = digits[hash % 62]; }
    id[PROTOCOL_CALL_ID_BYTES - 1] = '\0';
}
