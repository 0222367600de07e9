/* The trainable LoRA factors of a model: one arena of F32 parameters and one of gradients, and the table that the lora
 * op reads them by. */
#ifndef QR_RUNTIME_LORA_PARAMETERS_H
#define QR_RUNTIME_LORA_PARAMETERS_H

#include "runtime/layer.h"

typedef struct qr_lora_options {
    const char *targets; /* "all", "attn", "mlp", or module names ("q_proj,v_proj") */
    int32_t rank;
    float alpha;
    bool rslora;         /* scale α / √r instead of α / r */
    uint64_t seed;
} qr_lora_options;

/* One adapted layer. Offsets count floats in the arenas. */
typedef struct qr_lora_pair {
    const qr_linear_layer *linear;
    int64_t layer;
    qr_tensor_role role;
    int64_t a_offset, b_offset; /* A [rank, in], B [out, rank] */
    int64_t in, out;
} qr_lora_pair;

typedef struct qr_lora_parameters {
    qrun_model *model;
    int32_t rank;
    float scale;
    qr_lora_pair *pairs;  /* [n_pairs] in slot order */
    int64_t n_pairs;
    int64_t *pair_of_slot; /* [n_slots], −1: not adapted */
    int64_t n_floats;     /* of each arena; every factor begins at a multiple of 16 */
    float *values, *gradients; /* device, [n_floats] */
    qr_lora_factor *table; /* device, [n_slots] */
    size_t table_bytes;
} qr_lora_parameters;

/* Chooses the layers and lays the arenas out; no device memory yet. QRUN_ERROR_ARGUMENT when nothing is chosen. */
qrun_status qr_lora_parameters_describe(qrun_model *model, const qr_lora_options *options,
                                        qr_lora_parameters *parameters, qr_error *err);
/* Makes the arenas and initialises them as PEFT does: A kaiming-uniform(√5), B zero. */
qrun_status qr_lora_parameters_create(qr_lora_parameters *parameters, uint64_t seed, qr_error *err);
void qr_lora_parameters_destroy(qr_lora_parameters *parameters); /* fine for a zeroed one */

/* The module's path as PEFT names it: "model.layers.0.self_attn.q_proj". */
void qr_lora_pair_name(const qr_lora_parameters *parameters, const qr_lora_pair *pair, char *name, size_t name_bytes);

#endif
