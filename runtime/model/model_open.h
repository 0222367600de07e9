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

/* Opens the tokenizer of the model's folder, where there is one; the caller ends with qrun_tokenizer_destroy. */
qrun_status qr_model_open_tokenizer(qrun_model *model, qr_error *err);

/* tokenizer.json and the chat template of a folder. */
qrun_status qr_text_tools_open(const char *folder, qrun_tokenizer **tools, qr_error *err);

#endif
