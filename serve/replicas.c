#include "serve/replicas.h"

#include <stdio.h>

static void on_failed(void *user, qrun_status status, const char *message) {
    const replica *one = user;
    const replicas *all = one->all;
    char text[600];
    (void)snprintf(text, sizeof text, "replica %d: %s", one->number, message);
    all->on_failure(all->user, status, all->n > 1 ? text : message);
}

bool serve_replicas_start(replicas *r, const serve_params *params, struct event_base *base, worker_event_fn on_event,
                          worker_failure_fn on_failure, void *user) {
    r->on_failure = on_failure;
    r->user = user;
    r->n = params->n_replicas;
    placement_open(&r->placement, r->n);
    for (int i = 0; i < r->n; i++) {
        replica *one = &r->each[i];
        *one = (replica){.all = r, .number = i, .of = &params->replicas[i]};
        one->worker = worker_start(one->of->session, base, on_event, on_failed, one);
        if (one->worker == NULL) { return false; }
    }
    return true;
}

void serve_replicas_stop(replicas *r) {
    if (r->n == 0) { return; }
    for (int i = 0; i < r->n; i++) { worker_stop(r->each[i].worker); }
    placement_close(&r->placement);
    r->n = 0;
}

static void add(qrun_session_stats *sum, const qrun_session_stats *one) {
    sum->n_waiting += one->n_waiting;
    sum->n_running += one->n_running;
    sum->max_sequences += one->max_sequences;
    sum->waiting_bytes += one->waiting_bytes;
    sum->n_finished += one->n_finished;
    sum->n_preemptions += one->n_preemptions;
    sum->pages_total += one->pages_total;
    sum->pages_used += one->pages_used;
    sum->pages_shared += one->pages_shared;
    sum->pages_cached += one->pages_cached;
    sum->prompt_tokens += one->prompt_tokens;
    sum->cached_prompt_tokens += one->cached_prompt_tokens;
    sum->completion_tokens += one->completion_tokens;
    sum->steps += one->steps;
    sum->step_seconds += one->step_seconds;
    sum->planned_bytes += one->planned_bytes;
    sum->peak_bytes += one->peak_bytes;
    if (one->context_tokens < sum->context_tokens) { sum->context_tokens = one->context_tokens; }
}

void serve_replicas_stats(const replicas *r, qrun_session_stats *stats) {
    *stats = (qrun_session_stats)QRUN_SESSION_STATS_INIT;
    for (int i = 0; i < r->n; i++) {
        qrun_session_stats one = QRUN_SESSION_STATS_INIT;
        (void)qrun_session_get_stats(r->each[i].of->session, &one, NULL); /* fails for arguments alone */
        if (i == 0) {
            *stats = one;
        } else {
            add(stats, &one);
        }
    }
}
