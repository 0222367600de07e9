#include "runtime/ranks/ranks.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "loaders/files/checkpoint.h"

enum { MAX_RUN_BYTES = 1 << 20 }; /* a description of a run has some KiB */

qrun_status qr_ranks_lead(qr_collectives *ranks, qr_rank_action action, int64_t first, int64_t n, qr_error *err) {
    qr_rank_command command = {action, first, n};
    if (ranks == NULL) { return QRUN_OK; }
    if (ranks->rank != 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "rank %d follows rank 0: it calls qrun_trainer_run and nothing else",
                       (int)ranks->rank);
    }
    return qr_broadcast(ranks, &command, sizeof command, 0, err);
}

qrun_status qr_ranks_agree(qr_collectives *ranks, qrun_status own, qr_error *err) {
    return ranks != NULL ? qr_agree(ranks, own, err) : own;
}

qrun_status qr_ranks_share(qr_collectives *ranks, qrun_status own, const double *values, int n, double *all,
                           qr_error *err) {
    memcpy(all + (ptrdiff_t)qr_ranks_own(ranks) * n, values, (size_t)n * sizeof *all);
    QR_RETURN_IF_ERROR(qr_ranks_agree(ranks, own, err));
    return ranks != NULL ? qr_all_gather(ranks, all, (size_t)n * sizeof *all, err) : QRUN_OK;
}

qrun_status qr_ranks_first(qr_collectives *ranks, int64_t *index, qr_error *err) {
    int64_t found[QR_MAX_RANKS];
    found[ranks->rank] = *index;
    QR_RETURN_IF_ERROR(qr_all_gather(ranks, found, sizeof found[0], err));
    for (int32_t r = 0; r < ranks->n_ranks; r++) {
        if (found[r] >= 0 && (*index < 0 || found[r] < *index)) { *index = found[r]; }
    }
    return QRUN_OK;
}

/* "a is 1 here and 2 there", here being this rank and there rank 0. */
static qrun_status name_difference(const char *own, const char *first, qr_error *err) {
    qr_json *here = NULL, *there = NULL;
    char *difference = NULL;
    qrun_status status = QRUN_OK;
    if (strcmp(own, first) == 0) { return QRUN_OK; }
    QR_TRY(qr_json_parse(own, strlen(own), "this rank", &here, err));
    QR_TRY(qr_json_parse(first, strlen(first), "rank 0", &there, err));
    difference = qr_checkpoint_difference(here, there);
    if (difference == NULL) { QR_TRY(qr_fail_memory(err, "a message", 0)); }
    status = qr_fail(err, QRUN_ERROR_INPUT, "runs something else than rank 0 (there): %s",
                     difference[0] != '\0' ? difference : "the options of evaluation and saving differ");
out:
    qr_json_free(here);
    qr_json_free(there);
    qr_free(difference);
    return status;
}

qrun_status qr_ranks_compare(qr_collectives *ranks, const char *run, qr_error *err) {
    char *first = NULL;
    uint64_t n = strlen(run);
    qrun_status status = QRUN_OK;
    if (ranks == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_broadcast(ranks, &n, sizeof n, 0, err));
    if (n > MAX_RUN_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "rank 0 describes its run in %llu bytes", (unsigned long long)n);
    }
    first = qr_alloc_zeroed(n + 1);
    if (first == NULL) { status = qr_fail_memory(err, "the options of rank 0", n + 1); }
    QR_TRY(qr_agree(ranks, status, err));
    if (ranks->rank == 0) { (void)snprintf(first, n + 1, "%s", run); }
    QR_TRY(qr_broadcast(ranks, first, n, 0, err));
    status = qr_agree(ranks, name_difference(run, first, err), err);
out:
    qr_free(first);
    return status;
}
