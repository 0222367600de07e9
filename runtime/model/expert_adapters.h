/* LoRA on the experts of a layer, as PEFT has it on their stacked parameters (`target_parameters`): one pair for gate
 * and up of all experts together, and one for their last matrices. A pair of E experts has a [E, rank, in] and
 * b [E, out, rank] in device memory. In files, A is [E · rank, in] and B [out, rank · E], experts innermost. Rows of
 * gate come before those of up, but in files of families that have them in turn (gpt-oss). */
#ifndef QR_RUNTIME_MODEL_EXPERT_ADAPTERS_H
#define QR_RUNTIME_MODEL_EXPERT_ADAPTERS_H

#include "loaders/adapter/adapter.h"
#include "runtime/model/model.h"

/* The role QR_ROLE_EXPERT_GATE stands for gate and up, QR_ROLE_EXPERT_OUT for the last matrices. */
enum { QR_EXPERT_PAIRS = 2 };
static const qr_tensor_role qr_expert_pair_roles[QR_EXPERT_PAIRS] = {QR_ROLE_EXPERT_GATE, QR_ROLE_EXPERT_OUT};

typedef struct qr_expert_pair_shape {
    int64_t in, out; /* of one expert; of a model that is split, this rank's rows of B */
    int32_t slot;    /* in the table of factors */
} qr_expert_pair_shape;

qr_expert_pair_shape qr_expert_pair_shape_of(const qrun_model *model, const qr_layer *layer, qr_tensor_role role);

/* Rows of B in files are those of so many matrices in turn: 2 of gate and up of some families, else 1. */
int64_t qr_expert_pair_turns(const qrun_model *model, qr_tensor_role role);

/* "mlp.experts.gate_up_proj": what follows the layer's number in the name of the stacked parameter. NULL: the family
 * has no experts. */
const char *qr_expert_parameter_name(const qrun_model *model, qr_tensor_role role);

/* The module that PEFT stores the pair under: that of the experts, and for gate and up, where the last matrices have a
 * pair too, the ".base_layer" in it. */
void qr_expert_pair_module_name(const qrun_model *model, const char *prefix, int64_t layer, bool is_inner, char *name,
                                size_t name_bytes);

/* The pair of these experts in an adapter, under whatever prefix; NULL: it has none. */
const qr_adapter_module *qr_expert_pair_find(const qrun_model *model, const qr_adapter *adapter, int64_t layer,
                                             qr_tensor_role role);

/* Which rows of one expert's B those are, of all that a file has. */
qr_row_share qr_expert_pair_share(const qrun_model *model, const qr_layer *layer, qr_tensor_role role);

/* QRUN_ERROR_INPUT where the pair does not fit the model. */
qrun_status qr_expert_pair_check(const qrun_model *model, const qr_adapter_module *module, const qr_layer *layer,
                                 qr_tensor_role role, qr_error *err);

/* B between its two layouts; in files its rows are those of `turns` matrices in turn. From a file, of the rows of a
 * share. */
void qr_expert_b_from_file(const float *file, int64_t n_experts, const qr_row_share *share, int64_t rank, int64_t turns,
                           float *b);
void qr_expert_b_to_file(const float *b, int64_t n_experts, int64_t out, int64_t rank, int64_t turns, float *file);

/* Both factors of a module into device memory, of B the rows of a share. */
qrun_status qr_expert_pair_put(qr_backend *backend, const qr_adapter_module *module, const qr_row_share *share,
                               int64_t turns, float *a, float *b, qr_error *err);

#endif
