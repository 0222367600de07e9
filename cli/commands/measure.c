#include "cli/commands/measure.h"

#include <stdlib.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

static void on_event(void *user, const qrun_event *event) {
    measure_counts *count = user;
    if (event->type == QRUN_EVENT_TOKEN) {
        count->n_tokens++;
        if (event->request > count->last_started) {
            count->last_started = event->request;
            count->n_started++;
        }
    }
    if (event->type == QRUN_EVENT_DONE) { count->first_token_seconds = event->first_token_seconds; }
    if (event->type == QRUN_EVENT_ERROR) { count->failed = true; }
    if (event->is_last) { count->n_over++; }
}

/* splitmix64: the same tokens in every run of the program. */
static int32_t random_token(uint64_t *state, int32_t vocab_size) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (int32_t)((z ^ (z >> 31)) % (uint64_t)vocab_size);
}

static int submit_random(const engine *e, int32_t n_prompt, int32_t max_tokens, uint64_t *state,
                         measure_counts *count) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    int32_t *ids = allocate(sizeof *ids * (size_t)n_prompt);
    for (int32_t i = 0; i < n_prompt; i++) { ids[i] = random_token(state, e->info.vocab_size); }
    request.token_ids = ids;
    request.n_token_ids = n_prompt;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.on_event = on_event;
    request.user = count;
    const qrun_status status = qrun_session_submit(e->session, &request, NULL, &error);
    free(ids);
    return status == QRUN_OK ? EXIT_OK : complain_error(&error);
}

static int step_once(const engine *e, const measure_counts *count) {
    qrun_error error = QRUN_ERROR_INIT;
    bool has_work;
    if (interrupted()) { return complain(EXIT_INTERRUPTED, "interrupted"); }
    if (qrun_session_step(e->session, &has_work, &error) != QRUN_OK) { return complain_error(&error); }
    return count->failed ? complain(EXIT_ENGINE, "a measured request failed") : EXIT_OK;
}

int measure_work_begin(measure_work *work) {
    work->counts = (measure_counts){0};
    for (int32_t i = 0; i < work->n_sequences; i++) {
        RETURN_IF_FAILED(submit_random(work->e, work->n_prompt, work->n_tokens, &work->state, &work->counts));
    }
    return EXIT_OK;
}

int measure_work_step(measure_work *work) { return step_once(work->e, &work->counts); }

int measure_work_until_written(measure_work *work, int32_t n) {
    while (work->counts.n_tokens < (int64_t)n * work->n_sequences) { RETURN_IF_FAILED(measure_work_step(work)); }
    return EXIT_OK;
}

int measure_work_end(measure_work *work) {
    while (work->counts.n_over < work->n_sequences) { RETURN_IF_FAILED(measure_work_step(work)); }
    return EXIT_OK;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 == 1 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

void measure_summarise(double *rates, int count, measure_result *result) {
    result->tokens_per_second = measure_median(rates, count);
    result->least = rates[0];
    result->most = rates[count - 1];
}

int measure_prefill(const engine *e, int32_t n_tokens, int n_repeat, measure_result *result) {
    double rates[MEASURE_REPEAT_MAX], first[MEASURE_REPEAT_MAX];
    uint64_t state = 1;
    for (int i = -1; i < n_repeat; i++) { /* the first run warms up */
        measure_counts count = {0};
        progress_draw(i + 1, n_repeat + 1, "prefill of %d tokens", (int)n_tokens);
        const double begin = clock_seconds();
        int code = submit_random(e, n_tokens, 1, &state, &count);
        while (code == EXIT_OK && count.n_over == 0) { code = step_once(e, &count); }
        if (code != EXIT_OK) { return code; }
        if (i < 0) { continue; }
        rates[i] = (double)n_tokens / (clock_seconds() - begin);
        first[i] = count.first_token_seconds;
    }
    measure_summarise(rates, n_repeat, result);
    result->first_token_seconds = measure_median(first, n_repeat);
    return EXIT_OK;
}

/* One run of all sequences. */
static int decode_once(const engine *e, int32_t n_sequences, int32_t n_prompt, int32_t n_tokens, uint64_t *state,
                       double *rate) {
    measure_counts count = {0};
    int code = EXIT_OK;
    for (int32_t i = 0; i < n_sequences && code == EXIT_OK; i++) {
        code = submit_random(e, n_prompt, n_tokens + 1, state, &count);
    }
    int64_t tokens_before = 0;
    double begin = 0;
    while (code == EXIT_OK && count.n_over < n_sequences) {
        code = step_once(e, &count);
        if (begin == 0 && count.n_started == n_sequences) {
            begin = clock_seconds();
            tokens_before = count.n_tokens;
        }
    }
    *rate = (double)(count.n_tokens - tokens_before) / (clock_seconds() - begin);
    return code;
}

int measure_decode(const engine *e, int32_t n_sequences, int32_t n_prompt, int32_t n_tokens, int n_repeat,
                   measure_result *result) {
    double rates[MEASURE_REPEAT_MAX], warm_up;
    uint64_t state = 2;
    const int32_t warm_up_tokens = n_tokens < 4 ? n_tokens : 4;
    int code = decode_once(e, n_sequences, n_prompt, warm_up_tokens, &state, &warm_up);
    for (int i = 0; i < n_repeat && code == EXIT_OK; i++) {
        progress_draw(i, n_repeat, "decode of %d tokens after %d in %d sequences", (int)n_tokens, (int)n_prompt,
                      (int)n_sequences);
        code = decode_once(e, n_sequences, n_prompt, n_tokens, &state, &rates[i]);
    }
    if (code == EXIT_OK) { measure_summarise(rates, n_repeat, result); }
    return code;
}
