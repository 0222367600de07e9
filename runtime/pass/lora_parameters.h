/* The LoRA factors of a model as trainable tensors, and the table that the lora op reads them by. */
#ifndef QR_RUNTIME_PASS_LORA_PARAMETERS_H
#define QR_RUNTIME_PASS_LORA_PARAMETERS_H

#include "runtime/layers/parameters.h"

typedef struct qr_lora_options {
    const char *targets;        /* "all", "attn", "mlp", "none", or module names ("q_proj,v_proj") */
    const char *expert_targets; /* "experts", or names of their parameters ("mlp.experts.down_proj"); NULL: none */
    const char *layers;         /* "0,1,8-15"; NULL: all */
    int32_t rank;
    float alpha;
    bool rslora;        /* scale α / √r instead of α / r */
    bool dora;          /* outputs scaled by trained magnitudes over the norms of W + scale · B A */
    double dropout;     /* of the adapters' input while training; 0: none */
    bool has_reference; /* the values to begin with are kept (qr_lora_parameters_keep_reference) */
    uint64_t seed;
} qr_lora_options;

/* "q_proj" of "model.layers.0.self_attn.q_proj": the name of a layer among targets. Lent. */
const char *qr_lora_target_name(const char *module);

/* Chooses the layers and adds their factors to the parameters (whose model is set); no device memory yet.
 * QRUN_ERROR_ARGUMENT when targets name no layer. Also after an error, qr_parameters_destroy releases everything. */
qrun_status qr_lora_parameters_describe(qr_parameters *parameters, const qr_lora_options *options, qr_error *err);

/* Makes the table and initialises the factors, whose arenas exist, as PEFT does: A kaiming-uniform(√5), B zero,
 * magnitudes the norms of the frozen matrices' rows. */
qrun_status qr_lora_parameters_create(qr_parameters *parameters, uint64_t seed, qr_error *err);

/* Makes the table, and DoRA's norms and ratios, without filling them: for a plan. */
qrun_status qr_lora_parameters_reserve(qr_parameters *parameters, qr_error *err);

/* DoRA: norms and ratios from the parameters as they are. Does nothing for plain LoRA. Of layers in shards the second
 * does so, once the layer is in its stage. */
qrun_status qr_lora_parameters_refresh(qr_parameters *parameters, qr_workspace workspace, qr_error *err);
qrun_status qr_lora_parameters_refresh_layer(qr_parameters *parameters, int64_t l, qr_workspace workspace,
                                             qr_error *err);

/* DoRA on layers in shards: the magnitudes to begin with, which creation cannot know. All ranks call it. */
qrun_status qr_lora_parameters_put_magnitudes(const qr_parameters *parameters, qr_workspace workspace, qr_error *err);

/* Keeps the values as they are for the reference of a run, where it has one. */
qrun_status qr_lora_parameters_keep_reference(const qr_parameters *parameters, qr_error *err);
/* The parameters that answers are compared with: those values, or no adapter. Lent; for forward passes. */
qr_parameters qr_lora_parameters_of_reference(const qr_parameters *parameters);

/* The pair of a linear layer; NULL: not adapted. */
const qr_lora_pair *qr_lora_pair_of(const qr_parameters *parameters, const qr_linear_layer *linear);
/* The pair of a slot; NULL: not adapted. */
const qr_lora_pair *qr_lora_pair_of_slot(const qr_parameters *parameters, int32_t slot);

#endif
