/* Optimisers over the trained tensors: their states in one block of device memory, and a step. */
#ifndef QR_RUNTIME_OPTIMIZER_H
#define QR_RUNTIME_OPTIMIZER_H

#include "runtime/parameters.h"

typedef struct qr_optimizer_options {
    qrun_optimizer kind;
    float weight_decay;
} qr_optimizer_options;

typedef struct qr_optimizer qr_optimizer;

/* Bytes of the states (and of Adafactor's scratch) for these parameters. */
size_t qr_optimizer_bytes(const qr_parameters *parameters, qrun_optimizer kind);

qrun_status qr_optimizer_create(qr_parameters *parameters, const qr_optimizer_options *options,
                                qr_optimizer **optimizer, qr_error *err);
void qr_optimizer_destroy(qr_optimizer *optimizer); /* NULL is fine */

/* The most workspace that its ops ask for. */
size_t qr_optimizer_workspace(const qr_parameters *parameters, qrun_optimizer kind);

/* Updates the parameters from grad_scale × their gradients; step counts from 1. */
qrun_status qr_optimizer_step(qr_optimizer *optimizer, int64_t step, float learning_rate, float grad_scale,
                              void *workspace, qr_error *err);

/* The states, for a checkpoint: device memory of n_bytes, all of it. */
void *qr_optimizer_states(qr_optimizer *optimizer, size_t *n_bytes);

#endif
