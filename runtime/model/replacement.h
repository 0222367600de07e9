/* Weights that replace the model's for a while: those of a trainer, or of an adapter with modules_to_save. */
#ifndef QR_RUNTIME_MODEL_REPLACEMENT_H
#define QR_RUNTIME_MODEL_REPLACEMENT_H

#include "kernels/weight.h"

typedef struct qr_replacement {
    qr_weight *matrix;         /* in the model; NULL: a vector */
    qr_weight original_matrix; /* the model's own */
    const float **vector;
    const float *original_vector;
} qr_replacement;

typedef struct qr_replacements {
    qr_replacement *list;
    int64_t n, capacity;
} qr_replacements;

/* Room for `most`, from the zero state: replacing cannot fail afterwards. */
qrun_status qr_replacements_reserve(qr_replacements *replacements, int64_t most, qr_error *err);
void qr_replace_matrix(qr_replacements *replacements, qr_weight *target, const qr_weight *matrix);
void qr_replace_vector(qr_replacements *replacements, const float **target, const float *vector);

/* The model has its own weights again. Fine for a zeroed one. */
void qr_replacements_undo(qr_replacements *replacements);

#endif
