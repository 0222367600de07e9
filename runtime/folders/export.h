/* What was trained: an adapter as PEFT reads it, or a whole model as a Hugging Face folder. */
#ifndef QR_RUNTIME_FOLDERS_EXPORT_H
#define QR_RUNTIME_FOLDERS_EXPORT_H

#include "runtime/layers/parameters.h"

/* What adapter_config.json says of a run besides its parameters. */
typedef struct qr_adapter_export_options {
    double alpha, dropout;
    bool rslora;
} qr_adapter_export_options;

/* Writes adapter_config.json and adapter_model.safetensors into an existing folder; each file appears whole. */
qrun_status qr_adapter_export(const qr_parameters *parameters, const qr_adapter_export_options *options,
                              const char *folder, qr_error *err);

/* QRUN_ERROR_ARGUMENT where `folder` is the model's own. */
qrun_status qr_model_export_check(const qrun_model *model, const char *folder, qr_error *err);

/* Writes weights (from the F32 masters, in the compute type), config.json and the files that describe the model into an
 * existing folder, which must not be the model's own. Every file appears whole, config.json last. Tensors of the old
 * folder that are no part of the model (an image encoder) are copied unchanged. */
qrun_status qr_model_export(const qr_parameters *parameters, const char *folder, qr_error *err);

#endif
