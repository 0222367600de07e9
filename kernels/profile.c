#include "kernels/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/op_flops.h"

/* More ops of different sizes than a step has, and as many ops as are noted before the device is asked. */
enum { MOST_ENTRIES = 512, MOST_PENDING = 2048 };

struct qr_profile {
    int32_t n_entries, n_pending;
    qr_op_time entries[MOST_ENTRIES];
    int32_t pending[MOST_PENDING]; /* the entry of the op between marks 2 · i and 2 · i + 1 */
};

qrun_status qr_profile_begin(qr_backend *backend, qr_error *err) {
    if (backend->profile != NULL || backend->timeline != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "ops are being timed already");
    }
    qr_profile *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "times of ops", sizeof *made); }
    const qrun_status status =
        backend->mark != NULL ? backend->marks_begin(backend, 2 * MOST_PENDING, true, err) : QRUN_OK;
    if (status != QRUN_OK) {
        qr_free(made);
        return status;
    }
    backend->profile = made;
    return QRUN_OK;
}

/* Ops of the same sizes. The last entry takes all that there is no other for. */
static int32_t entry_of(qr_backend *backend, qr_op op, const void *args) {
    qr_profile *profile = backend->profile;
    qr_op_time new = {.op = op};
    qr_op_shape(op, args, new.shape);
    int32_t i = 0;
    for (; i < profile->n_entries; i++) {
        const qr_op_time *entry = &profile->entries[i];
        if (entry->op == op && strcmp(entry->shape, new.shape) == 0) { break; }
    }
    if (i == MOST_ENTRIES) { i = MOST_ENTRIES - 1; }
    if (i == profile->n_entries) { profile->entries[profile->n_entries++] = new; }
    profile->entries[i].n_calls++;
    profile->entries[i].bytes += qr_op_bytes(backend, op, args);
    profile->entries[i].flops += qr_op_flops(op, args);
    return i;
}

/* Asks the device for the times of what it has been given; waits. */
static qrun_status collect(qr_backend *backend, qr_error *err) {
    qr_profile *profile = backend->profile;
    const int32_t n = profile->n_pending;
    profile->n_pending = 0;
    for (int32_t i = 0; i < n; i++) {
        double seconds = 0.0;
        QR_RETURN_IF_ERROR(backend->mark_seconds(backend, 2 * i, 2 * i + 1, &seconds, err));
        profile->entries[profile->pending[i]].seconds += seconds;
    }
    return QRUN_OK;
}

static qrun_status run_by_host_clock(qr_backend *backend, qr_op op, const void *args, void *workspace, qr_error *err) {
    qr_op_time *entry = &backend->profile->entries[entry_of(backend, op, args)];
    const double began = qr_now_seconds();
    const qrun_status status = backend->ops[op].run(backend, args, workspace, err);
    entry->seconds += qr_now_seconds() - began;
    return status;
}

qrun_status qr_profile_run(qr_backend *backend, qr_op op, const void *args, void *workspace, qr_error *err) {
    qr_profile *profile = backend->profile;
    if (backend->mark == NULL) { return run_by_host_clock(backend, op, args, workspace, err); }
    if (profile->n_pending == MOST_PENDING) {
        QR_RETURN_IF_ERROR(collect(backend, err));
        QR_RETURN_IF_ERROR(backend->marks_begin(backend, 2 * MOST_PENDING, true, err));
    }
    const int32_t i = profile->n_pending;
    profile->pending[i] = entry_of(backend, op, args);
    QR_RETURN_IF_ERROR(backend->mark(backend, 2 * i, err));
    QR_RETURN_IF_ERROR(backend->ops[op].run(backend, args, workspace, err));
    QR_RETURN_IF_ERROR(backend->mark(backend, 2 * i + 1, err));
    profile->n_pending++;
    return QRUN_OK;
}

static int longest_first(const void *a, const void *b) {
    const double x = ((const qr_op_time *)a)->seconds, y = ((const qr_op_time *)b)->seconds;
    return (x < y) - (x > y);
}

qrun_status qr_profile_end(qr_backend *backend, qr_op_time **times, int32_t *n_times, qr_error *err) {
    qr_profile *profile = backend->profile;
    if (times != NULL) { *times = NULL; }
    if (profile == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no ops are being timed"); }
    qrun_status status = times != NULL ? collect(backend, err) : QRUN_OK;
    backend->profile = NULL;
    if (status == QRUN_OK && times != NULL) {
        const size_t n_bytes = (size_t)profile->n_entries * sizeof *profile->entries;
        *n_times = profile->n_entries;
        *times = qr_alloc(n_bytes > 0 ? n_bytes : 1);
        if (*times == NULL) {
            status = qr_fail_memory(err, "times of ops", n_bytes);
        } else {
            memcpy(*times, profile->entries, n_bytes);
            qsort(*times, (size_t)profile->n_entries, sizeof **times, longest_first);
        }
    }
    qr_free(profile);
    return status;
}
