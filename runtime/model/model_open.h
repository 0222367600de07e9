/* Opening a model in two halves, so that a plan can be made without loading anything. */
#ifndef QR_RUNTIME_MODEL_MODEL_OPEN_H
#define QR_RUNTIME_MODEL_MODEL_OPEN_H

#include "runtime/model/model.h"

/* Reads the configs, opens the weights' files (not for random weights: *source is then NULL) and describes the model:
 * everything but memory, weights and tokenizer. On success and on failure the caller ends with qr_model_release and
 * qr_safetensors_close. `model` is overwritten. */
qrun_status qr_model_prepare(qrun_context *context, const qrun_model_params *params, qrun_model *model,
                             qr_safetensors **source, qr_error *err);
void qr_model_release(qrun_model *model);
/* qrun_model_open of a model that this rank alone opens. */
qrun_status qr_model_open_alone(qrun_context *context, const qrun_model_params *params, qrun_model **model,
                                qr_error *error);

/* The longest sequence that the model's config allows. */
qrun_status qr_model_read_context(qrun_context *context, const qrun_model_params *params, int64_t *n_tokens,
                                  qr_error *err);

/* The one format that a value of qrun_quant names (AUTO: NF4_DQ). False where it is none of them, or MIXED. */
bool qr_quant_to_format(qrun_quant quant, qr_weight_format *format);

#endif
