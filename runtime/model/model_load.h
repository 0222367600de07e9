/* Filling a described and placed model with weights: read and quantised from a folder in parallel, or random. */
#ifndef QR_RUNTIME_MODEL_MODEL_LOAD_H
#define QR_RUNTIME_MODEL_MODEL_LOAD_H

#include "runtime/model/model.h"

/* Reads every weight from `source`, quantising tensor by tensor straight from the map into the model's memory; pages of
 * the map are dropped once they are read. progress (may be NULL) is told bytes of the file.
 *
 * With source NULL the weights are random, of the size that initialisation gives (normal, σ = 0.02; norms at 1), and
 * the same every time: for measuring a shape. progress is told bytes of the weights. */
qrun_status qr_model_load_weights(qrun_model *model, const qr_safetensors *source, qrun_progress_fn progress,
                                  void *progress_user, qr_error *err);

#endif
