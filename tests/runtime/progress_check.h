/* A qrun_progress_fn that checks what it is told: done never falls nor passes total, and total stays. */
#ifndef QR_TESTS_PROGRESS_CHECK_H
#define QR_TESTS_PROGRESS_CHECK_H

#include "check.h"

/* Begin with {0}. */
typedef struct progress {
    int64_t last, total;
    int stop_after; /* the call that cancels; 0: none */
    int n_calls;
} progress;

static inline bool progress_follow(void *user, int64_t done, int64_t total) {
    progress *seen = user;
    CHECK(done >= seen->last && done <= total && (seen->n_calls == 0 || total == seen->total));
    seen->last = done;
    seen->total = total;
    return ++seen->n_calls != seen->stop_after;
}

#endif
