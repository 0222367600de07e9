#include "cli/requests/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/requests/answer.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"

typedef struct job_request {
    job *owner;
    answer answer;
    struct job_request *previous, *next;
} job_request;

/* ---- Requests in flight ------------------------------------------------------------------------------------------ */

static void remove_request(job_request *r) {
    job *j = r->owner;
    if (r->previous != NULL) {
        r->previous->next = r->next;
    } else {
        j->in_flight = r->next;
    }
    if (r->next != NULL) { r->next->previous = r->previous; }
    j->n_in_flight--;
    answer_free(&r->answer);
    free(r);
}

/* Writes what the request came to and forgets it. */
static void finish_request(job_request *r) {
    job *j = r->owner;
    text_clear(&j->lines);
    answer_write(&r->answer, &j->lines);
    if (r->answer.error != NULL) {
        if (j->n_failed == 0) { snprintf(j->first_failure, sizeof j->first_failure, "%s", r->answer.error); }
        j->n_failed++;
    }
    j->n_answered++;
    if (j->stop_code == EXIT_OK) { j->stop_code = answer_file_write(j->output, &j->lines); }
    remove_request(r);
}

static void on_event(void *user, const qrun_event *event) {
    job_request *r = user;
    answer_take(&r->answer, event, qrun_model_tokenizer(r->owner->engine->model));
    if (event->is_last) { finish_request(r); }
}

static void refuse_request(job_request *r, const qrun_error *error) {
    const qrun_event event = {.struct_size = sizeof event, .type = QRUN_EVENT_ERROR, .message = error->message};
    answer_take(&r->answer, &event, NULL);
    finish_request(r);
}

/* ---- Submitting -------------------------------------------------------------------------------------------------- */

/* *params becomes what the request has unless its line says otherwise. */
static job_request *add_request(job *j, int64_t index, qrun_request_params *params) {
    job_request *r = allocate(sizeof *r);
    r->owner = j;
    r->answer.index = index;
    r->next = j->in_flight;
    if (r->next != NULL) { r->next->previous = r; }
    j->in_flight = r;
    j->n_in_flight++;
    *params = j->defaults;
    params->on_event = on_event;
    params->user = r;
    return r;
}

static void submit_line(job *j, const char *line, size_t n_bytes) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params defaults;
    job_request *r = add_request(j, j->requests->index, &defaults);
    char what[48];
    snprintf(what, sizeof what, "line %lld", (long long)j->requests->line_number);
    const qrun_status status =
        qrun_session_submit_json(j->engine->session, line, n_bytes, what, &defaults, j->chat, j->system, NULL, &error);
    if (status != QRUN_OK) { refuse_request(r, &error); }
}

static void submit_single(job *j) {
    j->all_read = true;
    if (answer_file_has(j->output, 0)) { return; }
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params request;
    job_request *r = add_request(j, 0, &request);
    if (qrun_session_submit(j->engine->session, &request, NULL, &error) != QRUN_OK) { refuse_request(r, &error); }
}

static void feed(job *j) {
    if (j->requests == NULL && !j->all_read) { submit_single(j); }
    while (!j->all_read && j->n_in_flight < j->max_in_flight && j->stop_code == EXIT_OK && !interrupted()) {
        const char *line;
        size_t n_bytes;
        bool read_failed;
        if (!request_file_next(j->requests, &line, &n_bytes, &read_failed)) {
            j->all_read = true;
            if (read_failed) { j->stop_code = EXIT_FILE; }
        } else if (answer_file_has(j->output, j->requests->index)) {
            j->n_resumed++;
        } else {
            submit_line(j, line, n_bytes);
        }
    }
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

static void update_rate(job *j, int64_t tokens) {
    const double now = clock_seconds(), elapsed = now - j->rate_seconds;
    if (elapsed < 0.05) { return; } /* too short to tell */
    const double current = (double)(tokens - j->rate_tokens) / elapsed;
    j->tokens_per_second = j->tokens_per_second == 0 ? current : 0.7 * j->tokens_per_second + 0.3 * current;
    j->rate_seconds = now;
    j->rate_tokens = tokens;
}

static void show_progress(job *j) {
    if (!progress_due()) { return; }
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    if (qrun_session_get_stats(j->engine->session, &stats, NULL) != QRUN_OK) { return; }
    update_rate(j, stats.completion_tokens);
    const int64_t total = j->requests == NULL ? 1 : j->requests->n_requests;
    const int64_t done = j->n_answered + j->n_resumed;
    const int64_t waiting = total >= 0 ? total - done - stats.n_running : stats.n_waiting;
    char of_total[32] = "";
    if (total >= 0) { snprintf(of_total, sizeof of_total, "/%lld", (long long)total); }
    const double kv_share = stats.pages_total > 0 ? 100.0 * (double)stats.pages_used / (double)stats.pages_total : 0;
    progress_draw((double)done, (double)total, "%lld%s  %.0f tokens/s  %d running  %lld waiting  KV %.0f%%%s",
                  (long long)done, of_total, j->tokens_per_second, (int)stats.n_running,
                  (long long)(waiting > 0 ? waiting : 0), kv_share, j->n_failed > 0 ? "  (some failed)" : "");
}

int job_run(job *j) {
    qrun_error error = QRUN_ERROR_INIT;
    j->begin_seconds = j->rate_seconds = clock_seconds();
    bool has_work = false;
    while (j->stop_code == EXIT_OK && !interrupted()) {
        feed(j);
        if (j->stop_code != EXIT_OK || interrupted() || (j->all_read && j->n_in_flight == 0)) { break; }
        if (qrun_session_step(j->engine->session, &has_work, &error) != QRUN_OK) {
            j->stop_code = complain_error(&error);
        } else if (!has_work && j->n_in_flight > 0) {
            j->stop_code =
                complain(EXIT_ENGINE, "the session ended with %lld requests unanswered", (long long)j->n_in_flight);
        }
        show_progress(j);
    }
    progress_clear();
    if (j->stop_code != EXIT_OK) { return j->stop_code; }
    return j->all_read && j->n_in_flight == 0 ? EXIT_OK : EXIT_INTERRUPTED;
}

void job_free(job *j) {
    while (j->in_flight != NULL) { remove_request(j->in_flight); }
    text_free(&j->lines);
}
