/* Weights that replace the model's for a while: those of a trainer, or of an adapter with modules_to_save. */
#ifndef QR_RUNTIME_MODEL_WEIGHT_OVERRIDE_H
#define QR_RUNTIME_MODEL_WEIGHT_OVERRIDE_H

#include "kernels/weight.h"

typedef struct qr_weight_override {
    qr_weight *matrix;         /* in the model; NULL: a vector */
    qr_weight original_matrix; /* the model's own */
    const float **vector;
    const float *original_vector;
} qr_weight_override;

typedef struct qr_weight_overrides {
    qr_weight_override *list;
    int64_t n, capacity;
} qr_weight_overrides;

/* Room for `most`, from the zero state: replacing cannot fail afterwards. */
qrun_status qr_weight_overrides_reserve(qr_weight_overrides *overrides, int64_t most, qr_error *err);
void qr_override_matrix(qr_weight_overrides *overrides, qr_weight *target, const qr_weight *matrix);
void qr_override_vector(qr_weight_overrides *overrides, const float **target, const float *vector);

/* The model has its own weights again. Fine for a zeroed one. */
void qr_weight_overrides_undo(qr_weight_overrides *overrides);

#endif
