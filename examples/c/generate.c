/* Several prompts at once through libqrun: each is submitted, all run in one batch, and every answer is printed when it
 * is complete.
 *
 *     cc generate.c $(pkg-config --cflags --libs qrun) -o generate
 *     ./generate path/to/model "Once upon a time" "The sea is" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qrun.h"

typedef struct answer {
    const char *prompt;
    char text[4096];
} answer;

static void on_event(void *user, const qrun_event *event) {
    answer *a = user;
    if (event->type == QRUN_EVENT_ERROR) {
        fprintf(stderr, "%s: %s\n", a->prompt, event->message);
        return;
    }
    /* TOKEN brings whole characters; DONE may bring what was held back for a stop text. */
    const size_t used = strlen(a->text);
    if (event->text_bytes > 0 && event->text_bytes < sizeof a->text - used) {
        memcpy(a->text + used, event->text, event->text_bytes);
    }
    if (event->type == QRUN_EVENT_DONE) {
        printf("%s|%s\n[%s after %d tokens]\n", a->prompt, a->text, event->finish_reason, event->completion_tokens);
    }
}

static int generate(qrun_session *session, char **prompts, int n_prompts, qrun_error *error) {
    answer *answers = calloc((size_t)n_prompts, sizeof *answers);
    if (answers == NULL) { return 1; }
    int failed = 0;
    for (int i = 0; i < n_prompts && !failed; i++) {
        qrun_request_params request = QRUN_REQUEST_PARAMS_INIT; /* greedy */
        answers[i].prompt = request.prompt = prompts[i];
        request.max_tokens = 40;
        request.on_event = on_event;
        request.user = &answers[i];
        failed = qrun_session_submit(session, &request, NULL, error) != QRUN_OK;
    }
    if (!failed) { failed = qrun_session_run(session, error) != QRUN_OK; }
    free(answers); /* a session calls nobody back once it is destroyed */
    return failed;
}

int main(int argc, char **argv) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_session *session = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT...\n");
        return 2;
    }
    model_params.path = argv[1];
    int failed = qrun_context_create(NULL, &context, &error) != QRUN_OK ||
                 qrun_model_open(context, &model_params, &model, &error) != QRUN_OK ||
                 qrun_session_create(model, &session_params, &session, &error) != QRUN_OK ||
                 generate(session, argv + 2, argc - 2, &error);
    if (failed) { fprintf(stderr, "generate: %s\n", error.message); }
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return failed;
}
