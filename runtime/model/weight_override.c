#include "runtime/model/weight_override.h"

#include <assert.h>

#include "base/alloc.h"

qrun_status qr_weight_overrides_reserve(qr_weight_overrides *overrides, int64_t most, qr_error *err) {
    overrides->list = qr_alloc_array((size_t)most, sizeof *overrides->list);
    overrides->capacity = most;
    return overrides->list != NULL
               ? QRUN_OK
               : qr_fail_memory(err, "the replaced weights", (size_t)most * sizeof *overrides->list);
}

static void add(qr_weight_overrides *overrides, const qr_weight_override *override) {
    assert(overrides->n < overrides->capacity);
    overrides->list[overrides->n++] = *override;
}

void qr_override_matrix(qr_weight_overrides *overrides, qr_weight *target, const qr_weight *matrix) {
    add(overrides, &(qr_weight_override){.matrix = target, .original_matrix = *target});
    *target = *matrix;
}

void qr_override_vector(qr_weight_overrides *overrides, const float **target, const float *vector) {
    add(overrides, &(qr_weight_override){.vector = target, .original_vector = *target});
    *target = vector;
}

void qr_weight_overrides_undo(qr_weight_overrides *overrides) {
    while (overrides->n > 0) {
        const qr_weight_override *last = &overrides->list[--overrides->n];
        if (last->matrix != NULL) {
            *last->matrix = last->original_matrix;
        } else {
            *last->vector = last->original_vector;
        }
    }
    qr_free(overrides->list);
    *overrides = (qr_weight_overrides){0};
}
