#include "cli/requests/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"

static void on_event(void *user, const qrun_event *event) {
    text_stream *stream = user;
    if (event->type == QRUN_EVENT_ERROR) {
        const char *message = event->message != NULL ? event->message : "the request failed";
        stream->error = api_names_copy(message);
    } else if (event->sample < stream->n_samples && event->text != NULL) {
        text_append(&stream->samples[event->sample], event->text, event->text_bytes);
        if (event->sample == 0 && event->text_bytes > 0) {
            progress_clear();
            fwrite(event->text, 1, event->text_bytes, stdout);
            if (fflush(stdout) != 0) { (void)complain_stdout(errno); }
        }
    }
    if (event->type == QRUN_EVENT_DONE) {
        stream->completion_tokens += event->completion_tokens;
        if (event->sample == 0) {
            snprintf(stream->finish_reason, sizeof stream->finish_reason, "%s", event->finish_reason);
        }
    }
    stream->over = stream->over || event->is_last;
}

static void show_progress(const engine *e, const qrun_request_params *request) {
    if (terminal_is(stdout) || !progress_due()) { return; } /* the text itself shows how far it is */
    qrun_session_stats s = QRUN_SESSION_STATS_INIT;
    if (qrun_session_get_stats(e->session, &s, NULL) != QRUN_OK || s.step_seconds <= 0) { return; }
    const double expected = (double)request->max_tokens * (request->n > 1 ? request->n : 1);
    progress_draw((double)s.completion_tokens, expected, "%lld tokens  %.1f tokens/s", (long long)s.completion_tokens,
                  (double)s.completion_tokens / s.step_seconds);
}

static void put_other_samples(const text_stream *stream) {
    for (int32_t i = 1; i < stream->n_samples; i++) {
        printf("\n--- %d of %d ---\n", (int)i + 1, (int)stream->n_samples);
        if (stream->samples[i].size > 0) { fwrite(stream->samples[i].data, 1, stream->samples[i].size, stdout); }
    }
}

int stream_request(text_stream *stream, const engine *e, const qrun_request_params *request) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params params = *request;
    uint64_t number;
    bool has_work = true, cancelled = false;
    stream->n_samples = request->n > 1 ? request->n : 1;
    stream->samples = allocate(sizeof *stream->samples * (size_t)stream->n_samples);
    params.on_event = on_event;
    params.user = stream;
    if (qrun_session_submit(e->session, &params, &number, &error) != QRUN_OK) { return complain_error(&error); }
    while (!stream->over && has_work) {
        if (interrupted() && !cancelled) {
            cancelled = true;
            (void)qrun_session_cancel(e->session, number, NULL);
        }
        if (qrun_session_step(e->session, &has_work, &error) != QRUN_OK) {
            stream->session_failed = true;
            return complain_error(&error);
        }
        if (ferror(stdout) && !cancelled) { return EXIT_FILE; /* finish_stdout says why */ }
        show_progress(e, request);
    }
    progress_clear();
    if (!stream->over) { return complain(EXIT_ENGINE, "the session ended without an answer"); }
    if (stream->error != NULL) { return complain(EXIT_SOME_FAILED, "%s", stream->error); }
    put_other_samples(stream);
    return cancelled ? EXIT_INTERRUPTED : EXIT_OK;
}

void stream_free(text_stream *stream) {
    for (int32_t i = 0; i < stream->n_samples; i++) { text_free(&stream->samples[i]); }
    free(stream->samples);
    free(stream->error);
    *stream = (text_stream){0};
}
