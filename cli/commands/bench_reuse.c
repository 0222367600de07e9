#include "cli/commands/bench_reuse.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

static const char *const workload_names[N_BENCH_WORKLOADS] = {"editing a text", "plain prose"};

/* ---- One request ------------------------------------------------------------------------------------------------- */

enum { MOST_TOKENS = 128, LEAST_TOKENS = 24 };

/* What a request has said so far, and when. */
typedef struct hearing {
    int32_t tokens[MOST_TOKENS];
    int32_t n_tokens;
    double first_seconds, last_seconds; /* of the clock */
    double first_token_seconds;         /* since it was submitted */
    int32_t cached_tokens;
    bool over, failed;
} hearing;

static void on_event(void *user, const qrun_event *event) {
    hearing *h = user;
    if (event->type == QRUN_EVENT_TOKEN) {
        h->last_seconds = clock_seconds();
        if (h->n_tokens == 0) { h->first_seconds = h->last_seconds; }
        if (h->n_tokens < MOST_TOKENS) { h->tokens[h->n_tokens++] = event->token_id; }
    }
    if (event->type == QRUN_EVENT_DONE) {
        h->first_token_seconds = event->first_token_seconds;
        h->cached_tokens = event->cached_tokens;
    }
    h->failed = h->failed || event->type == QRUN_EVENT_ERROR;
    h->over = h->over || event->is_last;
}

static int run_request(const engine *e, const int32_t *ids, int64_t n_ids, int32_t max_tokens, const char *rules,
                       hearing *h) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    bool has_work = true;
    *h = (hearing){.n_tokens = 0};
    request.token_ids = ids, request.n_token_ids = n_ids, request.max_tokens = max_tokens;
    request.generation_json = rules, request.ignore_eos = true;
    request.on_event = on_event, request.user = h;
    if (qrun_session_submit(e->session, &request, NULL, &error) != QRUN_OK) { return complain_error(&error); }
    while (!h->over && has_work) {
        if (interrupted()) { return complain(EXIT_INTERRUPTED, "interrupted"); }
        if (qrun_session_step(e->session, &has_work, &error) != QRUN_OK) { return complain_error(&error); }
    }
    return h->failed || !h->over ? complain(EXIT_ENGINE, "a measured request failed") : EXIT_OK;
}

static void close_session(engine *e) {
    qrun_session_destroy(e->session);
    e->session = NULL;
}

/* ---- Drafts ------------------------------------------------------------------------------------------------------ */

typedef struct script {
    int32_t prompt[MOST_TOKENS + 2], answer[MOST_TOKENS];
    int32_t n; /* of the answer; the prompt has two more */
    text_buffer rules;
} script;

/* The i-th of many different tokens: a step that shares no factor with how many there are. */
static int32_t different_token(const engine *e, int32_t i) {
    enum { FIRST = 10, STEP = 7919 };
    const int64_t n = e->info.vocab_size - FIRST;
    return (int32_t)(FIRST + (int64_t)i * (n % STEP != 0 ? STEP : 1) % n);
}

/* Every token of the answer is so likely after the two before it that the model has no choice. */
static void write_rules(script *s) {
    int32_t before[2] = {s->prompt[s->n], s->prompt[s->n + 1]};
    text_puts(&s->rules, "{\"sequence_bias\":[");
    for (int32_t i = 0; i < s->n; i++) {
        text_format(&s->rules, "%s[[%d,%d,%d],1e6]", i > 0 ? "," : "", (int)before[0], (int)before[1],
                    (int)s->answer[i]);
        before[0] = before[1];
        before[1] = s->answer[i];
    }
    text_puts(&s->rules, "]}");
}

static int write_script(const engine *e, bench_workload workload, script *s) {
    enum { EDIT_EVERY = 12, PAIR_EVERY = 10 };
    const int32_t by_context = (e->info.context_tokens - 4) / 2, by_vocabulary = (e->info.vocab_size - 16) / 3;
    const int32_t most = by_context < by_vocabulary ? by_context : by_vocabulary;
    s->n = most < MOST_TOKENS ? most : MOST_TOKENS;
    if (s->n < LEAST_TOKENS) { return complain(EXIT_USAGE, "this model is too small for --speculate to be measured"); }
    for (int32_t i = 0; i < s->n + 2; i++) { s->prompt[i] = different_token(e, i); }
    for (int32_t i = 0; i < s->n; i++) {
        const int32_t other = different_token(e, s->n + 2 + i);
        const bool is_pair = i % PAIR_EVERY >= PAIR_EVERY - 2;
        if (workload == BENCH_EDITING) {
            s->answer[i] = i % EDIT_EVERY == EDIT_EVERY - 1 ? other : s->prompt[i];
        } else {
            s->answer[i] = is_pair ? s->prompt[i] : other;
        }
    }
    write_rules(s);
    return EXIT_OK;
}

/* Tokens per second of the answer after its first token, with a session of its own. */
static int run_script(engine *e, const qrun_session_params *params, const script *s, double *rate,
                      qrun_session_stats *stats) {
    hearing *h = allocate(sizeof *h);
    int code = engine_open_session(e, params);
    if (code == EXIT_OK) { code = run_request(e, s->prompt, s->n + 2, s->n, s->rules.data, h); }
    for (int32_t i = 0; i < s->n && code == EXIT_OK; i++) {
        if (i >= h->n_tokens || h->tokens[i] != s->answer[i]) {
            code = complain(EXIT_ENGINE, "the model left the answer that it was given to write");
        }
    }
    *rate = (double)(s->n - 1) / (h->last_seconds - h->first_seconds);
    *stats = (qrun_session_stats)QRUN_SESSION_STATS_INIT;
    if (code == EXIT_OK) { (void)qrun_session_get_stats(e->session, stats, NULL); }
    close_session(e);
    free(h);
    return code;
}

/* Without drafts, and each workload with them, in turns, so that what else the machine does meets all. Without drafts
 * the tokens make no difference. */
static int measure_round(engine *e, const qrun_session_params *params, const script *scripts, int i,
                         double rates[N_BENCH_WORKLOADS + 1][MEASURE_REPEAT_MAX], bench_reuse_result *result) {
    qrun_session_params plain = *params;
    qrun_session_stats stats;
    plain.speculate = "off";
    RETURN_IF_FAILED(run_script(e, &plain, &scripts[i % N_BENCH_WORKLOADS], &rates[N_BENCH_WORKLOADS][i], &stats));
    for (int w = 0; w < N_BENCH_WORKLOADS; w++) {
        RETURN_IF_FAILED(run_script(e, params, &scripts[w], &rates[w][i], &stats));
        result->drafts[w].n_drafted += stats.draft_tokens;
        result->drafts[w].n_right += stats.accepted_draft_tokens;
    }
    return EXIT_OK;
}

int bench_drafts_measure(engine *e, const qrun_session_params *params, int n_repeat, bench_reuse_result *result) {
    double rates[N_BENCH_WORKLOADS + 1][MEASURE_REPEAT_MAX];
    qrun_session_params alone = *params;
    int code = EXIT_OK;
    alone.max_sequences = 1;
    alone.prefix_cache_bytes = 0;
    result->speculate = params->speculate;
    script *scripts = allocate(N_BENCH_WORKLOADS * sizeof *scripts);
    for (int w = 0; w < N_BENCH_WORKLOADS && code == EXIT_OK; w++) {
        code = write_script(e, (bench_workload)w, &scripts[w]);
    }
    alone.sequence_tokens = 2 * (int64_t)scripts[0].n + 2;
    for (int i = 0; i < n_repeat && code == EXIT_OK; i++) {
        progress_draw(i, n_repeat, "answers with drafts and without");
        code = measure_round(e, &alone, scripts, i, rates, result);
    }
    for (int w = 0; w < N_BENCH_WORKLOADS; w++) {
        text_free(&scripts[w].rules);
        if (code != EXIT_OK) { continue; }
        result->drafts[w].on = measure_median(rates[w], n_repeat);
        result->drafts[w].off = measure_median(rates[N_BENCH_WORKLOADS], n_repeat);
    }
    free(scripts);
    return code;
}

/* ---- Prefixes ---------------------------------------------------------------------------------------------------- */

enum { N_PROMPTS = 2 }; /* each leaves the other no pages, so that what was computed is to be brought back */

static int time_prompt(engine *e, const int32_t *ids, int32_t n_tokens, double *seconds, int32_t *n_cached) {
    hearing *h = allocate(sizeof *h);
    const int code = run_request(e, ids, n_tokens, 1, NULL, h);
    *seconds = h->first_token_seconds;
    *n_cached = h->cached_tokens;
    free(h);
    return code;
}

/* Computes each prompt once; then they come back in turns. */
static int measure_prompts(engine *e, const int32_t *ids, int32_t n_tokens, int n_repeat, bench_reuse_result *result) {
    double computed[N_PROMPTS], restored[MEASURE_REPEAT_MAX];
    int32_t n_cached;
    for (int i = 0; i < N_PROMPTS; i++) {
        progress_draw(i, N_PROMPTS, "a prefix of %d tokens, computed", (int)n_tokens);
        RETURN_IF_FAILED(time_prompt(e, ids + (ptrdiff_t)i * n_tokens, n_tokens, &computed[i], &n_cached));
    }
    for (int i = 0; i < n_repeat; i++) {
        const ptrdiff_t prompt = i % N_PROMPTS;
        RETURN_IF_FAILED(time_prompt(e, ids + prompt * n_tokens, n_tokens, &restored[i], &n_cached));
        if (i == 0 || n_cached < result->restored_tokens) { result->restored_tokens = n_cached; }
    }
    result->computed_seconds = measure_median(computed, N_PROMPTS);
    result->restored_seconds = measure_median(restored, n_repeat);
    return EXIT_OK;
}

int bench_prefix_measure(engine *e, const qrun_session_params *params, int32_t prompt_tokens, int n_repeat,
                         bench_reuse_result *result) {
    enum { PAGE_SLACK_TOKENS = 32 };
    qrun_session_params one_prompt = *params;
    one_prompt.max_sequences = 1;
    one_prompt.speculate = "off";
    one_prompt.kv_tokens = prompt_tokens + PAGE_SLACK_TOKENS;
    if (one_prompt.context_tokens == 0) { one_prompt.context_tokens = prompt_tokens; }
    int32_t *ids = allocate(N_PROMPTS * (size_t)prompt_tokens * sizeof *ids);
    for (int32_t i = 0; i < N_PROMPTS * prompt_tokens; i++) {
        ids[i] = different_token(e, i % (e->info.vocab_size - 10));
    }
    ids[prompt_tokens] = ids[0] == 10 ? 11 : 10; /* the second prompt begins otherwise */
    result->prefix_tokens = prompt_tokens;
    int code = engine_open_session(e, &one_prompt);
    if (code == EXIT_OK) { code = measure_prompts(e, ids, prompt_tokens, n_repeat, result); }
    close_session(e);
    free(ids);
    return code;
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

void bench_reuse_print(const bench_reuse_result *result) {
    if (result->speculate != NULL) {
        printf("\n%-22s%12s%22s%12s%12s\n", "drafts", "without", result->speculate, "ratio", "right");
        for (int w = 0; w < N_BENCH_WORKLOADS; w++) {
            const bench_drafts_result *d = &result->drafts[w];
            printf("%-22s%12.1f%22.1f%11.2fx%11.1f%%\n", workload_names[w], d->off, d->on, ratio(d->on, d->off),
                   100 * ratio((double)d->n_right, (double)d->n_drafted));
        }
    }
    if (result->prefix_tokens > 0) {
        printf("\nA prefix of %lld tokens took %.4f s to the first token, and %.4f s (%.1f times faster) when %lld of "
               "them came back.\n",
               (long long)result->prefix_tokens, result->computed_seconds, result->restored_seconds,
               ratio(result->computed_seconds, result->restored_seconds), (long long)result->restored_tokens);
    }
}

void bench_reuse_json(const bench_reuse_result *result, text_buffer *out) {
    static const char *const keys[N_BENCH_WORKLOADS] = {"editing", "prose"};
    if (result->speculate != NULL) {
        text_puts(out, "\"drafts\":{\"speculate\":");
        text_json_string(out, result->speculate, strlen(result->speculate));
        for (int w = 0; w < N_BENCH_WORKLOADS; w++) {
            const bench_drafts_result *d = &result->drafts[w];
            text_format(out,
                        ",\"%s\":{\"without\":%.6g,\"with\":%.6g,\"ratio\":%.6g,\"draft_tokens\":%lld,"
                        "\"accepted_draft_tokens\":%lld}",
                        keys[w], d->off, d->on, ratio(d->on, d->off), (long long)d->n_drafted, (long long)d->n_right);
        }
        text_puts(out, "},");
    }
    if (result->prefix_tokens > 0) {
        text_format(out,
                    "\"prefix\":{\"tokens\":%lld,\"restored_tokens\":%lld,\"computed_seconds\":%.6g,"
                    "\"restored_seconds\":%.6g},",
                    (long long)result->prefix_tokens, (long long)result->restored_tokens, result->computed_seconds,
                    result->restored_seconds);
    }
}
