/* Experts of a mixture in host memory, beside a device with memory of its own. Routers, shared experts and all other
 * weights are on the device. One of two ways holds for a model, for all of its tokens, from when it is opened:
 *
 * Fetched: the device has a stage with room for the experts of one layer. Before their products, forward and backward,
 * those that the router chose are brought there by an op (expert_fetch): a step moves the experts that its tokens go
 * to, and no others. The bytes in the stage are those that would be resident, so results are the same to the bit. The
 * context's compute lock guards the stage.
 *
 * Computed: the context's processor computes them where they are, forward alone (runtime/layers/layer_experts.h).
 * They are in the processor's layout. So are the vectors that only their ops read: biases and the scales of shares. A
 * token's bits are then made of both: they depend on its own sequence alone, and differ from those of fetched experts.
 *
 * In all places an expert's matrices lie one after the other: gate, up, out. */
#ifndef QR_RUNTIME_MODEL_HOST_EXPERTS_H
#define QR_RUNTIME_MODEL_HOST_EXPERTS_H

#include "runtime/model/modules.h"

/* Decides what params ask for, of a described model, and places its weights anew; AUTO: where they do not fit
 * otherwise.
 */
qrun_status qr_host_experts_describe(qrun_model *model, const qrun_model_params *params, qr_error *err);
/* Whether it would take memory from the device, and is not done. */
bool qr_host_experts_would_help(const qrun_model *model);
/* Makes host memory; weights are placed afterwards. */
qrun_status qr_host_experts_create(qrun_model *model, qr_error *err);
void qr_host_experts_destroy(qrun_model *model); /* fine without any */
/* Until qr_model_plan_end, what is computed has addresses in the planning backend. */
qrun_status qr_host_experts_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err);

/* Whether the module's matrix is an expert's that is in host memory. */
bool qr_host_experts_has(const qrun_model *model, const qr_module *module);
/* Whether the processor reads the module, and not the device. */
bool qr_host_experts_computes(const qrun_model *model, const qr_module *module);
/* Whose layout the module's weights are in, and that of experts' matrices. */
qr_backend *qr_module_backend(const qrun_model *model, const qr_module *module);
qr_backend *qr_host_experts_backend(const qrun_model *model);
/* Where it is within the stage, or among the layer's experts in host memory. */
size_t qr_host_experts_offset(const qrun_model *model, const qr_module *module);
/* What each expert of a layer takes, in bytes. */
size_t qr_host_experts_bytes_each(const qrun_model *model, const qr_layer *layer);
/* While loading: the matrix has been written to the stage, where it is fetched to. Copies it to host memory. */
qrun_status qr_host_experts_keep(qrun_model *model, const qr_module *module, qr_error *err);

/* Those of a layer in host memory; NULL: there is none yet. */
const void *qr_host_experts_of_layer(const qrun_model *model, const qr_layer *layer);

#endif
