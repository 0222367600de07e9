/* A fully trained model as a Hugging Face folder. */
#ifndef QR_RUNTIME_FOLDERS_MODEL_EXPORT_H
#define QR_RUNTIME_FOLDERS_MODEL_EXPORT_H

#include "runtime/model/parameters.h"

/* QRUN_ERROR_ARGUMENT where `folder` is the model's own. */
qrun_status qr_model_export_check(const qrun_model *model, const char *folder, qr_error *err);

/* Writes weights (from the F32 masters, in the compute type), config.json and the files that describe the model into an
 * existing folder, which must not be the model's own. Every file appears whole, config.json last. Tensors of the old
 * folder that are no part of the model (an image encoder) are copied unchanged. */
qrun_status qr_model_export(const qr_parameters *parameters, const char *folder, qr_error *err);

#endif
