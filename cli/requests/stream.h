/* One request whose text goes to stdout as it arrives; used by generate and chat. */
#ifndef QRUN_CLI_REQUESTS_STREAM_H
#define QRUN_CLI_REQUESTS_STREAM_H

#include "cli/options/engine.h"
#include "cli/terminal/text.h"

typedef struct text_stream {
    text_buffer *samples; /* [n_samples]: everything that arrived */
    int32_t n_samples;
    char finish_reason[16];
    int32_t completion_tokens;
    char *error; /* of the request, after it was accepted */
    bool over;
    bool session_failed; /* a step failed: the session still holds the request, and must not be stepped again */
} text_stream;

/* Runs `request` (its callbacks are set here) to its end; when interrupted, cancels it. Sample 0 is written as it
 * arrives, the others after it. Returns 0 or an exit code, after telling the user. */
int stream_request(text_stream *stream, const engine *e, const qrun_request_params *request);
void stream_free(text_stream *stream);

#endif
