/* One update of the parameters from what their gradients have accumulated: norm, clipping, optimiser. */
#ifndef QR_RUNTIME_TRAIN_UPDATE_H
#define QR_RUNTIME_TRAIN_UPDATE_H

#include "runtime/ranks/gradient_sum.h"
#include "runtime/train/optimizer.h"

typedef struct qr_update_args {
    int64_t step; /* of the optimiser: updates before it, and 1 */
    double learning_rate, max_grad_norm;
    float loss_scale; /* what the gradients are divided by first: 1, or a power of two */
    /* Of an optimiser with shards, where each rank updates its own and receives the others', or of gradients in host
     * memory. NULL: the others are not asked, as in a plan. */
    qr_gradient_sum *sum;
    bool defers_layers; /* where the processor updates: it leaves layers to qr_update_layer */
} qr_update_args;

typedef struct qr_update_result {
    double grad_norm; /* L2 over all trained parameters, before clipping */
    bool skipped;     /* a gradient was not finite: nothing was changed */
    bool began;       /* parameters or states may have been changed; after an error, by a part of the update */
    qr_optimizer_numbers numbers; /* for qr_update_layer */
} qr_update_result;

/* Memory that an update needs besides parameters and states, where these are, and what it copies to and from host
 * memory. The parameters may be described only. */
qrun_status qr_update_plan(const qr_parameters *parameters, const qr_optimizer_options *options, size_t *scratch_bytes,
                           int64_t *copied_bytes, qr_error *err);

/* Clips to max_grad_norm (0 or less: not at all) as torch's clip_grad_norm_ does, and steps. scratch:
 * qr_update_plan's bytes. The gradients stay as they are. */
qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args,
                          qr_workspace scratch, qr_update_result *result, qr_error *err);

/* Of an update that defers layers: layer l, before it is used, and before its gradients are made anew. */
qrun_status qr_update_layer(qr_parameters *parameters, qr_optimizer *optimizer, const qr_optimizer_numbers *numbers,
                            int64_t l, qr_workspace scratch, qr_error *err);

/* The first tensor of the table with a gradient that is not finite, −1 for none: to be asked after a step was skipped.
 * Where ranks have shards: of what this one has. sum: of qr_update_args. */
qrun_status qr_update_find_nonfinite(const qr_parameters *parameters, const qr_optimizer *optimizer,
                                     const qr_gradient_sum *sum, qr_workspace scratch, int64_t *index, qr_error *err);

#endif
