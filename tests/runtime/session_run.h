/* Requests through the public interface, with everything they gave recorded. */
#ifndef QR_TESTS_SESSION_RUN_H
#define QR_TESTS_SESSION_RUN_H

#include <qrun.h>

enum { RUN_MAX_TOKENS = 256, RUN_MAX_TOP = 20 };

/* What one sample gave. */
typedef struct run_sample {
    int32_t n_tokens;
    int32_t tokens[RUN_MAX_TOKENS];
    float logprobs[RUN_MAX_TOKENS];
    qrun_top_logprob top[RUN_MAX_TOKENS][RUN_MAX_TOP];
    int32_t n_top;
    uint64_t text_hash; /* of all texts, and of where one event ends and the next begins */
    char finish_reason[16];
    int32_t cached_tokens;
} run_sample;

/* What one request gave; `user` of its parameters. */
typedef struct run_record {
    run_sample samples[4];
    int n_done, n_errors, n_last; /* events seen */
    bool malformed;               /* an event after the last, or of a sample that was over */
} run_record;

void run_on_event(void *user, const qrun_event *event);

/* Whether two samples gave the same tokens and the same bits of log probabilities; says where they differ. */
bool run_samples_are_equal(const run_sample *a, const run_sample *b, const char *what);

/* The model of tests/fixtures/<folder>; NULL after a failed check. */
qrun_model *run_open_fixture(qrun_context *context, const char *folder, qrun_quant quant, qrun_dtype dtype);

/* A session; NULL after a failed check. */
qrun_session *run_session(qrun_model *model, const qrun_session_params *params);

#endif
