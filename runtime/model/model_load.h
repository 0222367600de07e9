/* Filling a described and placed model with weights: read and quantised from a folder in parallel, or random. */
#ifndef QR_RUNTIME_MODEL_MODEL_LOAD_H
#define QR_RUNTIME_MODEL_MODEL_LOAD_H

#include "runtime/model/model.h"

/* Reads every weight from `source`, quantising tensor by tensor straight from the map into the model's memory; the
 * pages of the map are dropped behind the reader. progress (may be NULL) is told bytes of the file. */
qrun_status qr_model_load_weights(qrun_model *model, const qr_safetensors *source, qrun_progress_fn progress,
                                  void *progress_user, qr_error *err);

/* Random weights of the size that initialisation gives (normal, σ = 0.02; norms at 1): for measuring a shape. The same
 * seedless values every time. */
qrun_status qr_model_load_random(qrun_model *model, qrun_progress_fn progress, void *progress_user, qr_error *err);

#endif
