#include "runtime/model/replacement.h"

#include <assert.h>

#include "base/alloc.h"

qrun_status qr_replacements_reserve(qr_replacements *replacements, int64_t most, qr_error *err) {
    replacements->list = qr_alloc_array((size_t)most, sizeof *replacements->list);
    replacements->capacity = most;
    return replacements->list != NULL
               ? QRUN_OK
               : qr_fail_memory(err, "the replaced weights", (size_t)most * sizeof *replacements->list);
}

static void add(qr_replacements *replacements, const qr_replacement *replacement) {
    assert(replacements->n < replacements->capacity);
    replacements->list[replacements->n++] = *replacement;
}

void qr_replace_matrix(qr_replacements *replacements, qr_weight *target, const qr_weight *matrix) {
    add(replacements, &(qr_replacement){.matrix = target, .original_matrix = *target});
    *target = *matrix;
}

void qr_replace_vector(qr_replacements *replacements, const float **target, const float *vector) {
    add(replacements, &(qr_replacement){.vector = target, .original_vector = *target});
    *target = vector;
}

void qr_replacements_undo(qr_replacements *replacements) {
    while (replacements->n > 0) {
        const qr_replacement *last = &replacements->list[--replacements->n];
        if (last->matrix != NULL) {
            *last->matrix = last->original_matrix;
        } else {
            *last->vector = last->original_vector;
        }
    }
    qr_free(replacements->list);
    *replacements = (qr_replacements){0};
}
