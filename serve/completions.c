#include "serve/completions.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <event2/util.h>

#include "serve/messages/answer.h"
#include "serve/openai/answer.h"
#include "serve/openai/answer_parser.h"
#include "serve/openai/chat_prompt.h"
#include "serve/responses/answer.h"

static const uint64_t MOST_SEED = (UINT64_C(1) << 53) - 1; /* of those that JSON's numbers hold exactly */

/* One sample of one prompt: what has come of it. */
typedef struct choice {
    answer_parser parser; /* where the answer takes its samples apart */
    answer_delta whole;   /* of a whole answer */
    serve_text echo;      /* of a stream: the prompt's text, until it is sent */
    int n_calls;
    cJSON *logprobs; /* of a whole answer; owned until it is sent */
    openai_logprobs lists;
    int64_t n_characters; /* of text in the pieces that were sent */
    const char *unread;   /* of an echoed text: what comes after the tokens so far; NULL: it was none. Lent */
    bool is_begun;
    char finish_reason[16];
    char *stop_text; /* that ended it; NULL: none did */
    int64_t n_thought_tokens;
    cJSON *embedding;
} choice;

/* One prompt: a request of the session. */
typedef struct part {
    struct answer *answer;
    int prompt;
    bool is_open;
    replica *replica; /* that has it; NULL: none yet */
    uint64_t request;
    worker_request taken_by;
} part;

typedef struct answer {
    completions *owner;
    struct answer **link, *next; /* among the owner's */
    http_exchange *exchange;     /* NULL: nobody waits any more */
    const answer_protocol *protocol;
    answer_writer writer;
    openai_request request;
    tool_choice choice; /* until the engine has the request */
    int64_t n_counted;  /* of the prompt's tokens, where they are what is asked for */
    openai_usage usage;
    uint64_t seed; /* of the first prompt's samples, where neither the request nor the command line has one; the next
                    * prompts count on */
    double queue_seconds, first_token_seconds; /* of the first sample of the first prompt */
    char model[256];
    part *parts; /* [n_parts] */
    int n_parts, n_open;
    choice *choices; /* [n_parts · n_samples] */
    bool parses;     /* the choices are taken apart */
    bool streams;    /* the first piece was sent */
    bool is_silent;  /* nothing was sent since completions_tick */
    /* While it is prepared, the job's thread alone looks at all of it but these: */
    job job;
    http_body *body;
    bool is_preparing, is_cancelled; /* is_cancelled: as soon as it is prepared */
    bool is_counted;                 /* not among the owner's n_unsubmitted any more */
    atomic_bool is_left;             /* nobody waits any more */
    bool is_refused;                 /* by the job */
    openai_error error;
    char adapter[MODELS_NAME_BYTES + 1]; /* "": none */
} answer;

static int n_choices(const answer *a) { return a->choices != NULL ? a->n_parts * a->request.n_samples : 0; }

/* ---- Replies ----------------------------------------------------------------------------------------------------- */

/* In all forms at once. */
static const char out_of_memory[] =
    "{\"type\":\"error\",\"error\":{\"message\":\"the server is out of memory\",\"type\":\"server_error\"}}";

const answer_protocol *completions_protocol(const char *path) {
    static const struct {
        const char *path;
        const answer_protocol *protocol;
    } table[] = {{"/v1/chat/completions", &openai_chat_protocol},         {"/v1/completions", &openai_text_protocol},
                 {"/v1/embeddings", &openai_embedding_protocol},          {"/v1/messages", &messages_protocol},
                 {"/v1/messages/count_tokens", &messages_count_protocol}, {"/v1/responses", &responses_protocol}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(path, table[i].path) == 0) { return table[i].protocol; }
    }
    return NULL;
}

void completions_reply_json(http_exchange *exchange, int status, cJSON *json) {
    char *printed = cJSON_PrintUnformatted(json);
    if (printed != NULL) {
        http_reply(exchange, status, "application/json", printed, strlen(printed));
    } else {
        http_reply(exchange, 503, "application/json", out_of_memory, sizeof out_of_memory - 1);
    }
    cJSON_free(printed);
    cJSON_Delete(json);
}

void completions_refuse(http_exchange *exchange, const openai_error *error) {
    const answer_protocol *protocol = completions_protocol(http_path(exchange));
    char *printed = protocol != NULL ? protocol->error_text(error) : openai_error_text(error);
    if (error->status == 429) { http_add_header(exchange, "Retry-After", "1"); }
    if (error->status == 401) { http_add_header(exchange, "WWW-Authenticate", "Bearer"); }
    http_reply(exchange, printed != NULL ? error->status : 503, "application/json",
               printed != NULL ? printed : out_of_memory, printed != NULL ? strlen(printed) : sizeof out_of_memory - 1);
    cJSON_free(printed);
}

static int http_status_of(qrun_status status) {
    switch (status) {
        case QRUN_ERROR_ARGUMENT:
        case QRUN_ERROR_INPUT:
        case QRUN_ERROR_UNSUPPORTED:
        case QRUN_ERROR_MEMORY: return 400; /* the request alone is too large: nothing else is refused for memory */
        case QRUN_ERROR_NOT_FOUND: return 404;
        case QRUN_ERROR_BUSY:
        case QRUN_ERROR_FULL: return 429;
        default: return 500;
    }
}

/* ---- The life of an answer --------------------------------------------------------------------------------------- */

static void choice_free(choice *c) {
    answer_parser_free(&c->parser);
    answer_delta_free(&c->whole);
    serve_text_free(&c->echo);
    cJSON_Delete(c->logprobs);
    cJSON_Delete(c->embedding);
    free(c->stop_text);
}

void completions_open(completions *c) { c->n_open++; }

void completions_close(completions *c) {
    c->n_open--;
    if (c->n_open == 0 && c->on_idle != NULL) { c->on_idle(c->user); }
}

/* The engine counts it among those that wait, or it was refused. */
static void be_counted(answer *a) {
    if (a->is_counted) { return; }
    a->is_counted = true;
    atomic_fetch_sub(&a->owner->n_unsubmitted, 1);
}

static void answer_free(answer *a) {
    completions *owner = a->owner;
    *a->link = a->next;
    if (a->next != NULL) { a->next->link = a->link; }
    for (int i = 0; i < n_choices(a); i++) { choice_free(&a->choices[i]); }
    for (int i = 0; a->parts != NULL && i < a->n_parts; i++) { worker_forget(&a->parts[i].taken_by); }
    free(a->choices);
    free(a->parts);
    if (a->adapter[0] != '\0') { models_release(owner->models, a->adapter); }
    answer_writer_free(&a->writer);
    openai_request_free(&a->request);
    tool_choice_free(&a->choice);
    http_body_free(a->body);
    be_counted(a);
    free(a);
    completions_close(owner);
}

static void cancel(const answer *a) {
    for (int i = 0; i < a->n_parts; i++) {
        const part *p = &a->parts[i];
        if (p->is_open) { (void)qrun_session_cancel(p->replica->of->session, p->request, NULL); }
    }
}

void completions_cancel_all(completions *c) {
    for (answer *a = c->answers; a != NULL; a = a->next) {
        if (a->is_preparing) {
            a->is_cancelled = true;
        } else {
            cancel(a);
        }
    }
}

void completions_drop(completions *c) {
    c->on_idle = NULL;
    while (c->answers != NULL) {
        if (c->answers->exchange != NULL) { http_on_left(c->answers->exchange, NULL, NULL); }
        answer_free(c->answers);
    }
}

static void on_left(void *user) {
    answer *a = user;
    a->exchange = NULL;
    if (!a->is_preparing) {
        cancel(a);
    } else if (jobs_drop(completions_jobs(a->owner, a->body), &a->job)) {
        answer_free(a);
    } else {
        atomic_store(&a->is_left, true);
    }
}

/* The request is over for its client: refused, or failed before its first piece. What runs of it ends unheard. */
static void refuse(answer *a, const openai_error *error) {
    http_exchange *exchange = a->exchange;
    a->exchange = NULL;
    cancel(a);
    completions_refuse(exchange, error);
}

static void refuse_for_memory(answer *a) {
    const openai_error error = {.status = 503, .message = "the server is out of memory"};
    refuse(a, &error);
}

static void note_usage(const answer *a) {
    http_note(a->exchange, " prompt_tokens=%lld cached_tokens=%lld completion_tokens=%lld",
              (long long)a->usage.prompt_tokens, (long long)a->usage.cached_tokens,
              (long long)a->usage.completion_tokens);
    http_note(a->exchange, " queue_seconds=%.6f first_token_seconds=%.6f", a->queue_seconds, a->first_token_seconds);
}

/* ---- What an event adds to a choice ------------------------------------------------------------------------------ */

static void add_calls(choice *c, answer_delta *delta) {
    if (delta->calls == NULL) { return; }
    c->n_calls += cJSON_GetArraySize(delta->calls);
    if (cJSON_GetArraySize(delta->calls) > 0) { return; }
    cJSON_Delete(delta->calls);
    delta->calls = NULL;
}

/* Of the text that a token stands for: in an echo, a special token for its name, where the client has written it. */
static int64_t count_characters(const answer *a, choice *c, const qrun_event *event) {
    const char *text = event->text, *name;
    size_t n_bytes = event->text_bytes, n_name;
    if (event->type == QRUN_EVENT_PROMPT && c->unread != NULL) {
        name = n_bytes > 0
                   ? NULL
                   : openai_special_name(qrun_model_tokenizer(a->owner->params->model), event->token_id, &n_name);
        if (name != NULL && strncmp(c->unread, name, n_name) == 0) { text = name, n_bytes = n_name; }
        c->unread += strnlen(c->unread, n_bytes);
    }
    return serve_text_count_characters(text, n_bytes);
}

static void take_text(const answer *a, choice *c, const qrun_event *event, answer_delta *delta) {
    const bool is_done = event->type == QRUN_EVENT_DONE;
    if (event->type == QRUN_EVENT_PROMPT) { return; } /* an echo has the prompt as the client wrote it */
    if (!a->parses) {
        serve_text_add(&delta->content, event->text, event->text_bytes);
    } else {
        c->n_thought_tokens += !is_done && answer_parser_thinks(&c->parser);
        answer_parser_push(&c->parser, event->text, event->text_bytes, delta);
        const char *hidden = is_done ? NULL : answer_format_hidden(&a->owner->format, event->token_id);
        if (hidden != NULL) { answer_parser_push_hidden(&c->parser, hidden, delta); }
        if (is_done) { answer_parser_finish(&c->parser, delta); }
    }
    add_calls(c, delta);
    if (!is_done) { return; }
    /* OpenAI's server says "stop" after a call that was asked for by its name. */
    const bool calls = c->n_calls > 0 && a->request.called == NULL && strcmp(event->finish_reason, "stop") == 0;
    (void)snprintf(c->finish_reason, sizeof c->finish_reason, "%s", calls ? "tool_calls" : event->finish_reason);
}

static bool has_failed(const choice *c, const answer_delta *delta) {
    return delta->content.failed || delta->thought.failed || c->parser.pending.failed || c->parser.lead.failed;
}

static openai_usage usage_of(const choice *c, const qrun_event *event) {
    return (openai_usage){event->prompt_tokens, event->cached_tokens, event->completion_tokens, c->n_thought_tokens};
}

/* ---- Pieces of a stream ------------------------------------------------------------------------------------------ */

/* Sends what was written, and frees it. It may end the exchange. */
static void send_text(answer *a, serve_text *out) {
    if (out->size > 0) {
        a->is_silent = false;
        if (!a->streams) { http_stream_begin(a->exchange, "text/event-stream"); }
        a->streams = true;
        http_stream_write(a->exchange, out->data, out->size);
    }
    serve_text_free(out);
}

/* False: memory was short, and nothing is sent. */
static bool stream_event(answer *a, choice *c, int index, const qrun_event *event) {
    const bool is_done = event->type == QRUN_EVENT_DONE;
    const bool has_token = event->has_logprob || event->type == QRUN_EVENT_PROMPT;
    const int64_t n_characters = count_characters(a, c, event);
    answer_delta delta = {.calls = NULL};
    cJSON *logprobs = NULL;
    serve_text_add(&delta.content, c->echo.data, c->echo.size);
    serve_text_free(&c->echo);
    take_text(a, c, event, &delta);
    if (has_failed(c, &delta)) {
        answer_delta_free(&delta);
        return false;
    }
    if (has_token) {
        logprobs = openai_logprobs_begin(a->writer.head.is_chat, c->n_characters, &c->lists);
        openai_logprobs_add(&c->lists, event, n_characters, qrun_model_tokenizer(a->owner->params->model));
    }
    c->n_characters += n_characters;
    answer_piece piece = {.index = index,
                          .is_first = !c->is_begun,
                          .delta = &delta,
                          .n_calls = c->n_calls,
                          .logprobs = logprobs,
                          .finish_reason = is_done ? c->finish_reason : NULL,
                          .stop_text = event->stop_text,
                          .usage = usage_of(c, event)};
    serve_text out = {0};
    c->is_begun = a->protocol->write_piece(&a->writer, &piece, &out) || c->is_begun;
    send_text(a, &out);
    answer_delta_free(&delta);
    return true;
}

static void end_stream(answer *a) {
    serve_text out = {0};
    if (a->protocol->write_end != NULL) { a->protocol->write_end(&a->writer, &a->usage, &out); }
    send_text(a, &out);
    if (a->exchange == NULL) { return; }
    note_usage(a);
    http_stream_end(a->exchange);
    a->exchange = NULL;
}

/* It is with the engine, and its client has not heard of it for a while. */
static void keep_waiting(answer *a) {
    choice *c = &a->choices[0];
    serve_text out = {0};
    a->protocol->write_wait(&a->writer, !c->is_begun, &out);
    c->is_begun = true;
    send_text(a, &out);
}

void completions_tick(completions *c) {
    for (answer *a = c->answers, *next; a != NULL; a = next) {
        next = a->next;
        const bool waits = a->exchange != NULL && !a->is_preparing && a->request.stream && !a->protocol->counts;
        if (waits && a->is_silent && a->protocol->write_wait != NULL) { keep_waiting(a); }
        a->is_silent = waits;
    }
}

/* ---- Whole answers ----------------------------------------------------------------------------------------------- */

static void collect_event(answer *a, choice *c, const qrun_event *event) {
    const bool has_token = event->has_logprob || event->type == QRUN_EVENT_PROMPT;
    if (has_token && c->logprobs == NULL) { c->logprobs = openai_logprobs_begin(a->writer.head.is_chat, 0, &c->lists); }
    if (has_token) {
        const int64_t n_characters = count_characters(a, c, event);
        openai_logprobs_add(&c->lists, event, n_characters, qrun_model_tokenizer(a->owner->params->model));
    }
    take_text(a, c, event, &c->whole);
    if (event->stop_text != NULL) { c->stop_text = strdup(event->stop_text); }
    if (has_failed(c, &c->whole)) { refuse_for_memory(a); }
}

/* All of a choice. */
static answer_piece whole_choice(const answer *a, choice *c, int index) {
    const answer_piece piece = {.index = index,
                                .is_first = true,
                                .delta = &c->whole,
                                .n_calls = c->whole.calls != NULL ? cJSON_GetArraySize(c->whole.calls) : 0,
                                .logprobs = c->logprobs,
                                .finish_reason = c->finish_reason,
                                .stop_text = c->stop_text,
                                .usage = a->usage};
    c->logprobs = NULL;
    return piece;
}

static cJSON *embedding_of(choice *c, int index) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "object", "embedding");
    cJSON_AddNumberToObject(item, "index", index);
    cJSON_AddItemToObject(item, "embedding", c->embedding);
    c->embedding = NULL;
    return item;
}

static cJSON *whole_answer(answer *a) {
    answer_piece *pieces = calloc((size_t)n_choices(a), sizeof *pieces);
    if (pieces == NULL) { return NULL; }
    for (int i = 0; i < n_choices(a); i++) {
        a->usage.thought_tokens += a->choices[i].n_thought_tokens;
        pieces[i] = whole_choice(a, &a->choices[i], i);
    }
    cJSON *json = a->protocol->whole(&a->writer, pieces, n_choices(a), &a->usage);
    free(pieces);
    return json;
}

static cJSON *whole_embeddings(answer *a) {
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < n_choices(a); i++) { cJSON_AddItemToArray(list, embedding_of(&a->choices[i], i)); }
    return openai_embeddings(&a->writer.head, list, &a->usage);
}

static cJSON *whole_count(const answer *a) {
    cJSON *count = cJSON_CreateObject();
    cJSON_AddNumberToObject(count, "input_tokens", (double)a->n_counted);
    return count;
}

static void send_whole(answer *a) {
    http_exchange *exchange = a->exchange;
    note_usage(a);
    a->exchange = NULL;
    completions_reply_json(exchange, 200,
                           a->protocol->counts                   ? whole_count(a)
                           : a->request.kind == OPENAI_EMBEDDING ? whole_embeddings(a)
                                                                 : whole_answer(a));
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void fail(answer *a, int status, const char *member, const char *message) {
    openai_error error = {.status = status};
    (void)openai_refuse(&error, status, member, "%s", message);
    if (!a->streams) {
        refuse(a, &error);
        return;
    }
    serve_text out = {0};
    a->protocol->write_error(&a->writer, &error, &out);
    cancel(a);
    send_text(a, &out);
    if (a->exchange == NULL) { return; }
    http_note(a->exchange, " failed=true");
    http_stream_end(a->exchange);
    a->exchange = NULL;
}

void completions_fail_all(completions *c) {
    static const char why[] = "the server has failed and ends; its own messages say why";
    answer *next;
    for (answer *a = c->answers; a != NULL; a = next) {
        http_exchange *exchange = a->exchange;
        next = a->next;
        if (exchange == NULL) { continue; }
        if (!a->is_preparing) {
            fail(a, 500, NULL, why);
            continue;
        }
        openai_error error = {.status = 500};
        (void)openai_refuse(&error, 500, NULL, "%s", why);
        http_on_left(exchange, NULL, NULL);
        on_left(a); /* a job has the rest of it */
        completions_refuse(exchange, &error);
    }
}

/* What has the schemas that an answer is held to. */
static const char *member_of_form(const answer *a) {
    return a->request.has_format ? "response_format" : a->request.must_call ? "tools" : NULL;
}

/* A schema that cannot be followed could not be at another time either. What else fails may be the server's fault. */
static void fail_by_event(answer *a, const qrun_event *event) {
    const char *member = event->status == QRUN_ERROR_UNSUPPORTED ? member_of_form(a) : NULL;
    fail(a, member != NULL ? 400 : 500, member, event->message);
}

/* Ended by the server, and not by its client: what there is of the answer must not pass for all of it. */
static bool is_cut_short(const qrun_event *event) {
    return event->type == QRUN_EVENT_DONE && strcmp(event->finish_reason, "cancelled") == 0;
}

/* Events of the prompt are for all of its samples. */
static void take_for_choices(answer *a, const part *p, const qrun_event *event) {
    const bool for_all = event->type == QRUN_EVENT_PROMPT;
    const int first = p->prompt * a->request.n_samples + (for_all ? 0 : event->sample);
    const int n = for_all ? a->request.n_samples : 1;
    for (int i = first; i < first + n && a->exchange != NULL; i++) {
        choice *c = &a->choices[i];
        if (event->type == QRUN_EVENT_EMBEDDING) {
            c->embedding = openai_embedding(event->embedding, event->n_embedding, a->request.in_base64);
        } else if (!a->request.stream) {
            collect_event(a, c, event);
        } else if (!stream_event(a, c, i, event)) {
            fail(a, 503, NULL, "the server is out of memory");
        }
    }
}

/* The replica has nothing of the part any more. */
static void part_left(const answer *a, const part *p) {
    placement_end(&a->owner->replicas->placement, p->replica->number, a->request.n_samples);
}

/* One of what the answer waits for is over. */
static void end_part(answer *a) {
    if (--a->n_open > 0) { return; }
    if (a->exchange != NULL) { a->request.stream && !a->protocol->counts ? end_stream(a) : send_whole(a); }
    answer_free(a);
}

void completions_take(void *user, const qrun_event *event) {
    part *p = user;
    answer *a = p->answer;
    if (a->exchange == NULL) {
    } else if (event->type == QRUN_EVENT_ERROR) {
        fail_by_event(a, event);
    } else if (is_cut_short(event)) {
        fail(a, 503, NULL, "the server is shutting down");
    } else {
        take_for_choices(a, p, event);
    }
    if (event->type == QRUN_EVENT_DONE) {
        a->usage.completion_tokens += event->completion_tokens;
        if (event->sample == 0) {
            a->usage.prompt_tokens += event->prompt_tokens;
            a->usage.cached_tokens += event->cached_tokens;
        }
        if (event->sample == 0 && p->prompt == 0) {
            a->queue_seconds = event->queue_seconds;
            a->first_token_seconds = event->first_token_seconds;
        }
    }
    if (!event->is_last) { return; }
    p->is_open = false;
    part_left(a, p);
    end_part(a);
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

/* A request that is being handed to the session at this moment may count twice: as waiting there, and here. */
static bool has_room(const completions *c, openai_error *error) {
    qrun_session_stats stats;
    if (c->is_closing) { return openai_refuse(error, 503, NULL, "the server is shutting down"); }
    serve_replicas_stats(c->replicas, &stats);
    const int64_t n_waiting = stats.n_waiting + atomic_load(&c->n_unsubmitted);
    if (n_waiting < c->params->max_waiting) { return true; }
    return openai_refuse(error, 429, NULL, "%lld answers are waiting already; try again later", (long long)n_waiting);
}

/* The same for one that is read: with all its answers, of which some may run at once. */
static bool has_room_for_samples(const completions *c, int64_t n_samples, openai_error *error) {
    qrun_session_stats stats;
    serve_replicas_stats(c->replicas, &stats);
    const int64_t n_most = c->params->max_waiting + stats.max_sequences;
    const int64_t n_free = stats.max_sequences > stats.n_running ? stats.max_sequences - stats.n_running : 0;
    if (n_samples > n_most) {
        return openai_refuse(error, 400, NULL, "asks for %lld answers; %lld may run and wait at once (--max-waiting)",
                             (long long)n_samples, (long long)n_most);
    }
    return stats.n_waiting + n_samples <= c->params->max_waiting + n_free ||
           openai_refuse(error, 429, NULL, "%d answers are waiting already, and this asks for %lld; try again later",
                         (int)stats.n_waiting, (long long)n_samples);
}

/* What is surely longer than the context is not tokenised; the rule is that of lines of `qrun generate`. */
static int64_t most_line_bytes(const completions *c) {
    enum { BYTES_A_TOKEN = 64, OTHER_BYTES = 1 << 20 };
    qrun_session_stats stats;
    serve_replicas_stats(c->replicas, &stats);
    return OTHER_BYTES + BYTES_A_TOKEN * stats.context_tokens;
}

static bool has_room_for(const completions *c, size_t n_bytes, openai_error *error) {
    return (int64_t)n_bytes <= most_line_bytes(c) ||
           openai_refuse(error, 400, NULL, "the prompt has %zu bytes, far more than the context holds", n_bytes);
}

/* Deals the part to a replica; it has its samples until part_left. */
static void deal_part(const answer *a, part *p) {
    replicas *all = a->owner->replicas;
    beginnings b = {.n = 0};
    if (all->n > 1) {
        beginnings_of(cJSON_GetArrayItem(a->request.prompts, p->prompt),
                      cJSON_GetObjectItemCaseSensitive(a->request.body, "tools"), a->adapter, &b);
    }
    p->replica = &all->each[placement_choose(&all->placement, &b, a->request.n_samples)];
}

/* The member whose schema a message is about: it names the form. NULL: none. */
static const char *member_named(const answer *a, const char *message) {
    if (strstr(message, "\"response_format\"") != NULL) { return member_of_form(a); }
    for (int i = 0; i < a->choice.n_forms; i++) {
        if (strstr(message, a->choice.forms[i].name) != NULL) { return member_of_form(a); }
    }
    return NULL;
}

static bool submit(answer *a, part *p, openai_error *error) {
    qrun_request_params defaults = a->owner->params->defaults;
    qrun_error why = QRUN_ERROR_INIT;
    char *line = openai_request_line(&a->request, p->prompt, a->adapter);
    if (line == NULL) { return openai_refuse(error, 503, NULL, "the server is out of memory"); }
    if (!has_room_for(a->owner, strlen(line), error)) {
        cJSON_free(line);
        return false;
    }
    deal_part(a, p);
    p->taken_by = (worker_request){.worker = p->replica->worker, .user = p};
    if (!defaults.has_seed) {
        defaults.has_seed = true;
        defaults.seed = (a->seed + (uint64_t)p->prompt) & MOST_SEED;
    }
    defaults.on_event = worker_take_event;
    defaults.user = &p->taken_by;
    defaults.pooling = a->request.pooling;
    defaults.generation_json = p->replica->of->generation_json;
    defaults.answer_forms = a->choice.forms;
    defaults.n_answer_forms = a->choice.n_forms;
    const qrun_status status = qrun_session_submit_json(p->replica->of->session, line, strlen(line), "request",
                                                        &defaults, false, NULL, &p->request, &why);
    cJSON_free(line);
    if (status != QRUN_OK) {
        part_left(a, p);
        return openai_refuse(error, http_status_of(status), member_named(a, why.message), "%s", why.message);
    }
    p->is_open = true;
    a->n_open++;
    return true;
}

/* The text of a prompt: as it was sent, or that of its tokens. */
static void echo_prompt(const answer *a, int prompt, serve_text *into) {
    const cJSON *value = cJSON_GetArrayItem(a->request.prompts, prompt), *item;
    const qrun_tokenizer *tokenizer = qrun_model_tokenizer(a->owner->params->model);
    if (cJSON_IsString(value)) {
        serve_text_add(into, value->valuestring, strlen(value->valuestring));
        return;
    }
    int32_t *ids = malloc(((size_t)cJSON_GetArraySize(value) + 1) * sizeof *ids);
    int64_t n = 0;
    char *decoded;
    size_t n_bytes;
    cJSON_ArrayForEach(item, value) {
        if (ids != NULL) { ids[n++] = item->valueint; }
    }
    if (tokenizer != NULL && ids != NULL &&
        qrun_detokenize(tokenizer, ids, n, true, &decoded, &n_bytes, NULL) == QRUN_OK) {
        serve_text_add(into, decoded, n_bytes);
        qrun_free(decoded);
    }
    free(ids);
}

/* Whether the rendered prompt ends within a thought. */
static bool prompt_thinks(const answer *a) {
    const answer_format *format = &a->owner->format;
    qrun_error why = QRUN_ERROR_INIT;
    char *rendered;
    size_t n_bytes;
    if (format->think_begin == NULL || chat_prompt_render(&a->request, qrun_model_tokenizer(a->owner->params->model),
                                                          &rendered, &n_bytes, &why) != QRUN_OK) {
        return false;
    }
    const bool thinks = answer_format_prompt_thinks(format, rendered, n_bytes);
    qrun_free(rendered);
    return thinks;
}

/* How the answer is made of what comes: taken apart, after the prompt's text. */
static void prepare_choices(answer *a, bool thinks) {
    const answer_format *format = &a->owner->format;
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(a->request.body, "tools");
    for (int i = 0; i < n_choices(a); i++) {
        choice *c = &a->choices[i];
        if (a->parses) { answer_parser_start(&c->parser, format, tools, thinks); }
        if (a->request.echo) {
            c->unread = cJSON_GetStringValue(cJSON_GetArrayItem(a->request.prompts, i / a->request.n_samples));
            echo_prompt(a, i / a->request.n_samples, a->request.stream ? &c->echo : &c->whole.content);
            c->n_characters = a->request.logprobs >= 0 ? 0 : serve_text_count_characters(c->echo.data, c->echo.size);
        }
    }
}

/* Whether an answer may have more than text. */
static bool parses(const answer *a) {
    const answer_format *format = &a->owner->format;
    const bool has_tools = cJSON_GetObjectItemCaseSensitive(a->request.body, "tools") != NULL;
    return a->writer.head.is_chat && !a->request.has_format &&
           ((format->calls != CALLS_NONE && has_tools) || format->think_begin != NULL ||
            format->calls == CALLS_HARMONY);
}

static bool make_choice(answer *a, bool thinks, openai_error *error) {
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(a->request.body, "tools");
    return !a->request.must_call || tool_choice_make(&a->owner->call_form, tools, a->request.called,
                                                     thinks ? a->owner->format.think_end : NULL, &a->choice, error);
}

static bool make_parts(answer *a, openai_error *error) {
    const size_t n_parts = (size_t)cJSON_GetArraySize(a->request.prompts);
    a->parts = calloc(n_parts, sizeof *a->parts);
    a->choices = calloc(n_parts * (size_t)a->request.n_samples, sizeof *a->choices);
    if (a->parts == NULL || a->choices == NULL) {
        return openai_refuse(error, 503, NULL, "the server is out of memory");
    }
    a->n_parts = (int)n_parts;
    for (int i = 0; i < a->n_parts; i++) { a->parts[i] = (part){.answer = a, .prompt = i}; }
    return true;
}

/* ---- The job: from the request's text to the engine -------------------------------------------------------------- */

/* A bias for no token would change nothing, and nobody would know. */
static bool check_biases(const answer *a, openai_error *error) {
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    if (a->request.largest_bias_id == 0 || qrun_model_get_info(a->owner->params->model, &info, NULL) != QRUN_OK) {
        return true;
    }
    return a->request.largest_bias_id < info.vocab_size ||
           openai_refuse(error, 400, "logit_bias", "\"logit_bias\": %d is not a token of this model (ids are below %d)",
                         (int)a->request.largest_bias_id, (int)info.vocab_size);
}

/* The tokens of a chat's prompt, as a request for an answer has them; qrun_free. */
static bool tokenize_prompt(const answer *a, int32_t **ids, int64_t *n_ids, openai_error *error) {
    const qrun_tokenizer *tokenizer = qrun_model_tokenizer(a->owner->params->model);
    qrun_error why = QRUN_ERROR_INIT;
    char *rendered;
    size_t n_bytes;
    if (tokenizer == NULL) { return openai_refuse(error, 400, NULL, "this model has no tokenizer"); }
    qrun_status status = chat_prompt_render(&a->request, tokenizer, &rendered, &n_bytes, &why);
    if (status != QRUN_OK) { return openai_refuse(error, http_status_of(status), NULL, "%s", why.message); }
    if (!has_room_for(a->owner, n_bytes, error)) {
        qrun_free(rendered);
        return false;
    }
    status = qrun_tokenize(tokenizer, rendered, n_bytes, false, true, ids, n_ids, &why);
    qrun_free(rendered);
    return status == QRUN_OK || openai_refuse(error, http_status_of(status), NULL, "%s", why.message);
}

static bool count_prompt(answer *a, openai_error *error) {
    int32_t *ids;
    if (!tokenize_prompt(a, &ids, &a->n_counted, error)) { return false; }
    qrun_free(ids);
    return true;
}

/* The engine begins an answer after the messages; what continues the last of them it gets as tokens. */
static bool cut_prompt(answer *a, openai_error *error) {
    int32_t *ids;
    int64_t n_ids;
    if (!tokenize_prompt(a, &ids, &n_ids, error)) { return false; }
    const bool is_set = chat_prompt_set(&a->request, ids, n_ids);
    qrun_free(ids);
    return is_set || openai_refuse_for_memory(error);
}

static bool prepare(answer *a, openai_error *error) {
    size_t n_bytes;
    const char *body = http_body_bytes(a->body, &n_bytes);
    if (body == NULL) { return openai_refuse(error, 503, NULL, "the server is out of memory"); }
    if (!openai_request_read(body, n_bytes, a->request.kind, a->protocol->translate, &a->request, error) ||
        !check_biases(a, error) || !models_find(a->owner->models, a->request.model, a->adapter, error) ||
        !make_parts(a, error)) {
        return false;
    }
    if (a->protocol->translate != NULL && !a->owner->format.has_late_system &&
        !openai_request_move_late_system(&a->request, error)) {
        return false;
    }
    if (a->owner->format.has_text_arguments && !openai_request_keep_text_arguments(&a->request, error)) {
        return false;
    }
    if (a->protocol->counts) { return count_prompt(a, error); }
    const char *model = a->adapter[0] != '\0' ? a->adapter : a->owner->params->model_name;
    (void)snprintf(a->model, sizeof a->model, "%s", model);
    a->parses = parses(a);
    const bool thinks = a->parses && prompt_thinks(a);
    if (!make_choice(a, thinks, error) || (a->request.continues && !cut_prompt(a, error)) ||
        !has_room_for_samples(a->owner, n_choices(a), error)) {
        return false;
    }
    for (int i = 0; i < a->n_parts && !atomic_load(&a->is_left); i++) {
        if (!submit(a, &a->parts[i], error)) { return false; }
    }
    tool_choice_free(&a->choice); /* the engine has its own copies */
    prepare_choices(a, thinks);
    return true;
}

static void on_work(void *user) {
    answer *a = user;
    a->is_refused = !prepare(a, &a->error);
    be_counted(a);
}

/* ---- Before and after it, on the loop's thread ------------------------------------------------------------------- */

/* With it, a client can ask for the same answer again. */
static void tell_seed(answer *a) {
    char text[24];
    if (a->owner->params->defaults.has_seed || a->request.has_seed) { return; }
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)a->seed);
    http_add_header(a->exchange, "X-Seed", text);
}

static void on_prepared(void *user) {
    answer *a = user;
    a->is_preparing = false;
    http_body_free(a->body);
    a->body = NULL;
    a->n_open++; /* until all parts are looked at */
    if (a->exchange != NULL && a->is_refused) {
        refuse(a, &a->error);
    } else if (a->exchange == NULL || a->is_cancelled) {
        cancel(a);
    } else if (a->request.kind != OPENAI_EMBEDDING && !a->protocol->counts) {
        tell_seed(a);
    }
    if (a->exchange != NULL && a->adapter[0] != '\0') { http_note(a->exchange, " adapter=%s", a->adapter); }
    for (int i = 0; i < a->n_parts; i++) {
        if (a->parts[i].is_open) { worker_deliver(&a->parts[i].taken_by); }
    }
    end_part(a);
}

jobs *completions_jobs(const completions *c, const http_body *body) {
    enum { SMALL_BYTES = 64 << 10 };
    return http_body_size(body) <= SMALL_BYTES ? c->quick : c->slow;
}

static answer *make_answer(completions *c, http_exchange *exchange, const answer_protocol *protocol) {
    answer *a = calloc(1, sizeof *a);
    http_body *body = http_take_body(exchange);
    if (a == NULL || body == NULL) {
        free(a);
        http_body_free(body);
        return NULL;
    }
    *a = (answer){.owner = c,
                  .exchange = exchange,
                  .protocol = protocol,
                  .writer = {.head = {.is_chat = protocol->kind == OPENAI_CHAT,
                                      .model = a->model,
                                      .created = (int64_t)time(NULL)},
                             .request = &a->request},
                  .request = {.kind = protocol->kind},
                  .job = {.work = on_work, .done = on_prepared, .user = a},
                  .body = body,
                  .is_preparing = true,
                  .link = &c->answers,
                  .next = c->answers};
    (void)snprintf(a->writer.head.id, sizeof a->writer.head.id, "%s%08x%llu", protocol->id_prefix,
                   (unsigned)c->id_start, (unsigned long long)++c->n_answers);
    evutil_secure_rng_get_bytes(&a->seed, sizeof a->seed);
    a->seed &= MOST_SEED;
    if (a->next != NULL) { a->next->link = &a->next; }
    c->answers = a;
    atomic_fetch_add(&c->n_unsubmitted, 1);
    completions_open(c);
    return a;
}

void completions_begin(completions *c, http_exchange *exchange, const answer_protocol *protocol) {
    openai_error error = {0};
    answer *a = has_room(c, &error) ? make_answer(c, exchange, protocol) : NULL;
    if (a == NULL) {
        if (error.status == 0) { (void)openai_refuse(&error, 503, NULL, "the server is out of memory"); }
        completions_refuse(exchange, &error);
        return;
    }
    http_note(exchange, " id=%s", a->writer.head.id);
    http_add_header(exchange, "X-Request-Id", a->writer.head.id);
    if (protocol->id_header != NULL) { http_add_header(exchange, protocol->id_header, a->writer.head.id); }
    http_on_left(exchange, on_left, a);
    jobs_add(completions_jobs(c, a->body), &a->job);
}
