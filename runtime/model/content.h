/* What a model computes with, as one digest: equal for models that give equal results on one backend, wherever their
 * folders lie. */
#ifndef QR_RUNTIME_MODEL_CONTENT_H
#define QR_RUNTIME_MODEL_CONTENT_H

#include "base/digest.h"
#include "runtime/model/model.h"

/* Of config.json and of all weights as they are held, which are read for it. Adapters have content_hash. */
qrun_status qr_model_content(const qrun_model *model, qr_digest *digest, qr_error *err);

#endif
