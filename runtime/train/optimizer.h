/* Optimisers over the trained tensors: their states in one block of device or host memory, and a step. */
#ifndef QR_RUNTIME_TRAIN_OPTIMIZER_H
#define QR_RUNTIME_TRAIN_OPTIMIZER_H

#include "runtime/layers/shards.h"

/* Zeroed: the defaults. */
typedef struct qr_optimizer_options {
    qrun_optimizer kind;
    float weight_decay;
    bool decay_all;   /* norms and biases too, which otherwise never decay, as in the Hugging Face Trainer */
    float lr_ratio_b; /* LoRA+ (Hayou et al. 2024): rate of B and of vectors over that of the rest; 0: 1 */
    /* States in host memory: a step streams them through two stages on the device. Where the parameters' values are in
     * host memory too, the processor updates all of it there, and there are no stages. */
    bool offload;
    int64_t stage_elements; /* offload: of a tensor staged at a time, a multiple of 256; 0: 2^20 */
    /* Lent: this rank has the states of its shard, and updates that alone. NULL: everything. Those of Adafactor are
     * cut between whole tensors. */
    const qr_shards *shards;
} qr_optimizer_options;

typedef struct qr_optimizer qr_optimizer;

/* Device memory: the states or, with offload, the stages; and Adafactor's scratch. None where the processor updates. */
size_t qr_optimizer_bytes(const qr_parameters *parameters, const qr_optimizer_options *options);
/* Host memory: the states, with offload, and Adafactor's scratch where the processor updates; else 0. */
size_t qr_optimizer_host_bytes(const qr_parameters *parameters, const qr_optimizer_options *options);

qrun_status qr_optimizer_create(qr_parameters *parameters, const qr_optimizer_options *options,
                                qr_optimizer **optimizer, qr_error *err);
void qr_optimizer_destroy(qr_optimizer *optimizer); /* NULL is fine */

const qr_shards *qr_optimizer_shards(const qr_optimizer *optimizer); /* of its options */

/* Of one step. */
typedef struct qr_optimizer_numbers {
    const float *gradients; /* where the values are: of all parameters, or of this rank's shard */
    bool of_all;            /* the former */
    int64_t step;           /* from 1 */
    float learning_rate;
    float grad_scale; /* what gradients are multiplied by first */
} qr_optimizer_numbers;

/* Updates the parameters, or this rank's shard of them. The bits do not depend on offload. */
qrun_status qr_optimizer_step(qr_optimizer *optimizer, const qr_optimizer_numbers *numbers, qr_workspace workspace,
                              qr_error *err);
/* The same for the parameters of layer l alone (−1: of none), where the processor updates. A step is all layers, once
 * each and in any order. */
qrun_status qr_optimizer_step_layer(qr_optimizer *optimizer, const qr_optimizer_numbers *numbers, int64_t l,
                                    qr_workspace workspace, qr_error *err);

/* The states of all ranks as bytes, for a checkpoint: the same wherever they are held, and by how many. Of bytes that
 * another rank holds, `read` gives zeros, and `write` takes none. */
size_t qr_optimizer_states_bytes(const qr_optimizer *optimizer);
qrun_status qr_optimizer_states_read(const qr_optimizer *optimizer, size_t offset, size_t n_bytes, void *host,
                                     qr_error *err);
qrun_status qr_optimizer_states_write(qr_optimizer *optimizer, size_t offset, size_t n_bytes, const void *host,
                                      qr_error *err);

/* Where they are in shards: of bytes [offset, offset + n_bytes) those that a rank holds, one after the other. */
size_t qr_optimizer_states_count(const qr_optimizer *optimizer, int32_t rank, size_t offset, size_t n_bytes);
/* This rank's. */
qrun_status qr_optimizer_states_pack(const qr_optimizer *optimizer, size_t offset, size_t n_bytes, void *packed,
                                     qr_error *err);
/* Another rank's to their places; host has [offset, offset + n_bytes). */
void qr_optimizer_states_unpack(const qr_optimizer *optimizer, int32_t rank, size_t offset, size_t n_bytes,
                                const void *packed, void *host);

#endif
