/* One micro-batch through the model and back: logits in chunks, loss, and the gradient of every trained tensor.
 * Explicit backward, no tape. Batches are ragged: sequences side by side, each its own attention (packed rows and
 * batches of rows are the same thing). */
#ifndef QR_RUNTIME_PASS_PASS_H
#define QR_RUNTIME_PASS_PASS_H

#include <stdatomic.h>

#include "runtime/layers/parameters.h"
#include "runtime/model/layer_stream.h"
#include "runtime/pass/activations.h"
#include "runtime/pass/preference.h"

/* Host arrays; T tokens. With pairs, sequences 2 i and 2 i + 1 are the chosen and the rejected answer of one. */
typedef struct qr_train_batch {
    int64_t n_tokens, n_sequences;
    const int32_t *ids, *position; /* [T]; positions begin at 0 in every sequence */
    const int32_t *target;         /* [T]: the id that follows, or −1 where the loss does not look */
    const int32_t *seq_start;      /* [n_sequences + 1] */
    const int64_t *row_key;        /* [T]: example and position in it, for dropout; unread without dropout */
    uint64_t dropout_key;          /* of the run and the step */
} qr_train_batch;

typedef struct qr_train_limits {
    int64_t max_tokens, max_sequences;
    qr_recompute_policy policy;
    qr_preference preference;
    int64_t logit_rows; /* whose logits are there at once; 0: as many as pay */
} qr_train_limits;

/* What one micro-batch of max_tokens takes forward and backward. */
typedef struct qr_train_cost {
    double flops;         /* op_flops.h */
    int64_t copied_bytes; /* to and from host memory, of what is offloaded */
    qr_gathered gathered; /* of layers that come from other ranks */
} qr_train_cost;

typedef struct qr_train_pass qr_train_pass;

/* Adds what a pass takes to the plan: activations, workspace, tables, logits; and host memory, where the policy says.
 * *cost: where one sequence is as long as max_tokens. The parameters may be described only, and the model not loaded
 * (planned_parameters.h). */
qrun_status qr_train_pass_plan(const qr_parameters *parameters, const qr_train_limits *limits, qr_plan *plan,
                               qr_train_cost *cost, qr_error *err);
/* Of the parameters' model; lent while the pass lives. */
qrun_status qr_train_pass_create(qr_parameters *parameters, const qr_train_limits *limits, qr_train_pass **pass,
                                 qr_error *err);
void qr_train_pass_destroy(qr_train_pass *pass); /* NULL is fine */

/* A pass that runs ends with QRUN_ERROR_CANCELLED soon after *flag becomes true; lent, NULL: never. */
void qr_train_pass_watch(qr_train_pass *pass, const atomic_bool *flag);

/* Called by a backward pass after each layer, from the last to the first, once its gradients are complete; an error
 * ends the pass. NULL: nothing. */
typedef qrun_status (*qr_train_layer_fn)(void *user, int64_t layer, qr_error *err);
void qr_train_pass_on_layer(qr_train_pass *pass, qr_train_layer_fn fn, void *user);

/* Adds the gradient of loss_scale times the sum over targets of −log p(target), or over pairs of their loss, to the
 * parameters' gradients (nothing when backward is false), and gives that sum, unscaled, in sums[QR_SUM_LOSS], with the
 * others of preference.h where there are pairs. */
qrun_status qr_train_pass_run(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                              double *sums, qr_error *err);
/* The part of a rank that has no batch in a pass that others run: where each layer is gathered from all ranks
 * (layer_stream.h), it takes part in that, and `on_layer` is called as in a pass. */
qrun_status qr_train_pass_follow(qr_train_pass *pass, bool backward, qr_error *err);
/* DoRA on layers in shards: the magnitudes to begin with. All ranks call it. */
qrun_status qr_train_pass_put_magnitudes(qr_train_pass *pass, qr_error *err);

#endif
