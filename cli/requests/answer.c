#include "cli/requests/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/api_names.h"

static answer_sample *sample_at(answer *a, int32_t number) {
    if (number >= a->n_samples) {
        a->samples = reallocate(a->samples, sizeof *a->samples * (size_t)(number + 1));
        memset(a->samples + a->n_samples, 0, sizeof *a->samples * (size_t)(number + 1 - a->n_samples));
        a->n_samples = number + 1;
    }
    return &a->samples[number];
}

static void write_token(text_buffer *out, int32_t id, const qrun_tokenizer *tokenizer) {
    text_format(out, "{\"token_id\":%d", (int)id);
    size_t n_bytes = 0;
    const char *spelled = tokenizer != NULL ? qrun_token_text(tokenizer, id, &n_bytes) : NULL;
    if (spelled != NULL) {
        text_puts(out, ",\"token\":");
        text_json_string(out, spelled, n_bytes);
    }
}

static void write_logprob(text_buffer *out, float logprob) {
    text_format(out, ",\"logprob\":%s", json_float((double)logprob).text);
}

/* The first token of a prompt has no log probability. */
static void add_logprobs(text_buffer *out, const qrun_event *event, const qrun_tokenizer *tokenizer) {
    if (out->size > 0) { text_puts(out, ","); }
    write_token(out, event->token_id, tokenizer);
    if (event->has_logprob) {
        write_logprob(out, event->logprob);
    } else {
        text_puts(out, ",\"logprob\":null");
    }
    text_puts(out, ",\"top\":[");
    for (int32_t i = 0; i < event->n_top; i++) {
        if (i > 0) { text_puts(out, ","); }
        write_token(out, event->top[i].token_id, tokenizer);
        write_logprob(out, event->top[i].logprob);
        text_puts(out, "}");
    }
    text_puts(out, "]}");
}

void answer_take(answer *a, const qrun_event *event, const qrun_tokenizer *tokenizer) {
    if (event->type == QRUN_EVENT_ERROR) {
        const char *message = event->message != NULL ? event->message : "unknown error";
        free(a->error);
        a->error = api_names_copy(message);
        return;
    }
    if (event->type == QRUN_EVENT_PROMPT) {
        add_logprobs(&a->prompt_logprobs, event, tokenizer);
        return;
    }
    answer_sample *s = sample_at(a, event->sample);
    if (event->text != NULL) { text_append(&s->content, event->text, event->text_bytes); }
    if (event->type == QRUN_EVENT_TOKEN) {
        s->token_ids = reallocate_for_more(s->token_ids, s->n_tokens, &s->capacity, sizeof *s->token_ids);
        s->token_ids[s->n_tokens++] = event->token_id;
        if (event->has_logprob) { add_logprobs(&s->logprobs, event, tokenizer); }
        return;
    }
    snprintf(s->finish_reason, sizeof s->finish_reason, "%s", event->finish_reason);
    s->end = *event;
}

/* The beginning of a line: which request it answers. */
static void put_request(const answer *a, text_buffer *out) {
    text_format(out, "{\"index\":%lld", (long long)a->index);
    if (a->id.size > 0) { text_append(out, a->id.data, a->id.size); }
    if (a->prompt.size > 0) { text_append(out, a->prompt.data, a->prompt.size); }
}

static void write_sample(const answer *a, int32_t number, text_buffer *out) {
    const answer_sample *s = &a->samples[number];
    put_request(a, out);
    text_format(out, ",\"sample\":%d", (int)number);
    if (a->n_samples > 1) { text_format(out, ",\"n\":%d", (int)a->n_samples); }
    text_puts(out, ",\"text\":");
    text_json_string(out, s->content.data != NULL ? s->content.data : "", s->content.size);
    text_puts(out, ",\"token_ids\":[");
    for (int64_t i = 0; i < s->n_tokens; i++) { text_format(out, "%s%d", i > 0 ? "," : "", (int)s->token_ids[i]); }
    text_format(out,
                "],\"finish_reason\":\"%s\",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d,"
                "\"times\":{\"queue\":%.6f,\"first_token\":%.6f,\"total\":%.6f}",
                s->finish_reason, (int)s->end.prompt_tokens, (int)s->end.completion_tokens, (int)s->end.cached_tokens,
                s->end.queue_seconds, s->end.first_token_seconds, s->end.total_seconds);
    if (s->logprobs.size > 0) { text_format(out, ",\"logprobs\":[%s]", s->logprobs.data); }
    if (a->prompt_logprobs.size > 0 && number == 0) {
        text_format(out, ",\"prompt_logprobs\":[%s]", a->prompt_logprobs.data);
    }
    text_puts(out, "}\n");
}

/* What came before an error is no answer: it would look like a whole one. */
void answer_write(const answer *a, text_buffer *out) {
    if (a->error != NULL) {
        put_request(a, out);
        text_puts(out, ",\"error\":");
        text_json_string(out, a->error, strlen(a->error));
        text_puts(out, "}\n");
        return;
    }
    for (int32_t i = 0; i < a->n_samples; i++) { write_sample(a, i, out); }
}

void answer_free(answer *a) {
    for (int32_t i = 0; i < a->n_samples; i++) {
        text_free(&a->samples[i].content);
        text_free(&a->samples[i].logprobs);
        free(a->samples[i].token_ids);
    }
    free(a->samples);
    text_free(&a->id);
    text_free(&a->prompt);
    text_free(&a->prompt_logprobs);
    free(a->error);
    *a = (answer){0};
}
