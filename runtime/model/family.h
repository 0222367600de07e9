/* Model families as data: which tensors a family has, what they are called, and the few switches that the forward pass
 * reads. Adding a family is a row in family.c plus a golden test. */
#ifndef QR_RUNTIME_MODEL_FAMILY_H
#define QR_RUNTIME_MODEL_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "loaders/config/model_config.h"

/* Every module with weights that a model may have: first those it has once, then those of each layer. */
typedef enum qr_tensor_role {
    QR_ROLE_EMBEDDING,
    QR_ROLE_POSITION_EMBEDDING,
    QR_ROLE_FINAL_NORM,
    QR_ROLE_HEAD,
    QR_ROLE_ATTN_NORM, /* the first role of a layer */
    QR_ROLE_POST_ATTN_NORM,
    QR_ROLE_MLP_NORM,
    QR_ROLE_POST_MLP_NORM,
    QR_ROLE_Q_NORM,
    QR_ROLE_K_NORM,
    QR_ROLE_Q,
    QR_ROLE_K,
    QR_ROLE_V,
    QR_ROLE_QKV,
    QR_ROLE_ATTN_OUT,
    QR_ROLE_GATE,
    QR_ROLE_UP,
    QR_ROLE_GATE_UP,
    QR_ROLE_MLP_OUT,
    QR_ROLE_COUNT
} qr_tensor_role;

typedef struct qr_family {
    qr_model_family family;
    const char *name;
    /* Module names with %d for the layer, without ".weight"; NULL where the family has no such tensor. A checkpoint may
     * put one of `prefixes` before all of them. */
    const char *modules[QR_ROLE_COUNT];
    const char *prefixes[4]; /* NULL-terminated; besides "" (qr_family_prefix) */
    bool layer_norm;         /* LayerNorm with bias instead of RMSNorm */
    bool transposed;         /* linear weights are stored [in, out] (Conv1D) */
} qr_family;

/* The description of a family; never NULL for a family that model_config accepts. */
const qr_family *qr_family_find(qr_model_family family);

/* The i-th prefix that a checkpoint or an adapter may put before all module names: "" first; NULL after the last. */
const char *qr_family_prefix(const qr_family *family, size_t i);

/* Whether the linear layer of this role carries a bias. */
bool qr_family_has_bias(const qr_model_config *config, qr_tensor_role role);

/* Writes "<prefix><module>" into name. layer is ignored by roles that a model has once. */
void qr_family_module_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer, char *name,
                           size_t name_bytes);

#endif
