#include "cli/requests/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/requests/answer.h"
#include "cli/requests/request_line.h"
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
    if (j->is_replica) { text_puts(&j->lines, "\n"); }
    if (r->answer.error != NULL) {
        if (j->n_failed == 0) { snprintf(j->first_failure, sizeof j->first_failure, "%s", r->answer.error); }
        j->n_failed++;
    }
    j->n_answered++;
    for (int32_t i = 0; i < r->answer.n_samples; i++) { j->n_answer_tokens += r->answer.samples[i].n_tokens; }
    if (j->stop_code == EXIT_OK) { j->stop_code = answer_file_write(j->output, &j->lines); }
    remove_request(r);
}

static void on_event(void *user, const qrun_event *event) {
    job_request *r = user;
    answer_take(&r->answer, event, qrun_model_tokenizer(r->owner->engine->model));
    if (event->is_last) { finish_request(r); }
}

static void refuse_request(job_request *r, const char *why) {
    const qrun_event event = {.struct_size = sizeof event, .type = QRUN_EVENT_ERROR, .message = why};
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

/* Submits the line that was read last. False: the session has no room for it until others have started. */
static bool submit_line(job *j) {
    const line_reader *reader = &j->requests->reader;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params defaults;
    job_request *r = add_request(j, j->requests->index, &defaults);
    char what[48];
    snprintf(what, sizeof what, "line %lld", (long long)reader->line_number);
    j->has_line = false;
    text_append(&r->answer.id, j->requests->id.data != NULL ? j->requests->id.data : "", j->requests->id.size);
    if (reader->too_long) {
        text_buffer why = {0};
        request_text_too_long(what, reader->max_bytes, &why);
        refuse_request(r, why.data);
        text_free(&why);
        return true;
    }
    const qrun_status status = qrun_session_submit_json(j->engine->session, reader->line.data, reader->line.size, what,
                                                        &defaults, j->chat, j->system, NULL, &error);
    if (status == QRUN_ERROR_FULL) {
        remove_request(r);
        j->has_line = true;
        return false;
    }
    if (status != QRUN_OK) {
        refuse_request(r, error.message);
    } else if (j->with_prompt) { /* it answers in a later step */
        request_line_copy_prompt(&reader->line, &r->answer.prompt);
    }
    return true;
}

static void submit_single(job *j) {
    j->all_read = true;
    if (answer_file_has(j->output, 0)) { return; }
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params request;
    job_request *r = add_request(j, 0, &request);
    if (j->with_prompt) {
        text_puts(&r->answer.prompt, ",\"prompt\":");
        text_json_string(&r->answer.prompt, j->prompt, strlen(j->prompt));
    }
    if (qrun_session_submit(j->engine->session, &request, NULL, &error) != QRUN_OK) {
        refuse_request(r, error.message);
    }
}

/* Reads the next line that is not answered yet; false at the end, and after a failure. */
static bool read_line(job *j) {
    bool read_failed;
    while (request_file_next(j->requests, &read_failed)) {
        j->has_line = !answer_file_has(j->output, j->requests->index);
        if (j->has_line) { return true; }
        j->n_resumed++;
    }
    j->all_read = !interrupted(); /* else the file may have more */
    if (read_failed) { j->stop_code = EXIT_FILE; }
    return false;
}

static void feed(job *j) {
    if (j->requests == NULL && !j->all_read) { submit_single(j); }
    while (!j->all_read && j->n_in_flight < j->max_in_flight && j->stop_code == EXIT_OK && !interrupted()) {
        if (!j->has_line && !read_line(j)) { break; }
        if (!submit_line(j)) { break; }
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

/* How many tokens all answers will have, going by those that are finished, or by the longest that is allowed where none
 * is; 0: nobody can tell. n_left: requests that are not answered. */
static double expect_tokens(const job *j, int64_t n_left, int64_t n_made) {
    const int64_t n_own = j->n_answered - j->n_failed;
    const double samples = j->defaults.n > 1 ? j->defaults.n : 1;
    const double each = n_own > 0 ? (double)j->n_answer_tokens / (double)n_own : j->defaults.max_tokens * samples;
    const double expected = (double)j->n_answer_tokens + each * (double)n_left;
    return n_left < 0 || each <= 0 ? 0 : expected > (double)n_made ? expected : (double)n_made;
}

static void show_progress(job *j) {
    if (!progress_due()) { return; }
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    if (qrun_session_get_stats(j->engine->session, &stats, NULL) != QRUN_OK) { return; }
    update_rate(j, stats.completion_tokens);
    const int64_t total = j->requests == NULL ? 1 : j->requests->n_requests;
    const int64_t done = j->n_answered + j->n_resumed;
    const int64_t waiting = total >= 0 ? total - done - stats.n_running : stats.n_waiting;
    const int64_t n_made = stats.completion_tokens;
    const double expected = expect_tokens(j, total >= 0 ? total - done : -1, n_made);
    char of_total[32] = "", eta[64] = "";
    if (total >= 0) { snprintf(of_total, sizeof of_total, "/%lld", (long long)total); }
    if (expected > 0 && j->tokens_per_second > 0) {
        snprintf(eta, sizeof eta, "  %s left", duration_text((expected - (double)n_made) / j->tokens_per_second).text);
    }
    const double kv_share = stats.pages_total > 0 ? 100.0 * (double)stats.pages_used / (double)stats.pages_total : 0;
    progress_draw((double)n_made, expected, "%lld%s%s  %.0f tokens/s  %d running  %lld waiting  KV %.0f%%%s",
                  (long long)done, of_total, eta, j->tokens_per_second, (int)stats.n_running,
                  (long long)(waiting > 0 ? waiting : 0), kv_share, j->n_failed > 0 ? "  (some failed)" : "");
}

int job_run(job *j) {
    qrun_error error = QRUN_ERROR_INIT;
    j->begin_seconds = j->rate_seconds = clock_seconds();
    bool has_work = false;
    if (j->requests != NULL) { j->requests->reader.max_bytes = request_text_limit(j->engine); }
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
