/* The names of a model's weights in memory. */
#ifndef QR_RUNTIME_MODEL_WEIGHT_NAMES_H
#define QR_RUNTIME_MODEL_WEIGHT_NAMES_H

#include "runtime/model/model.h"

/* The timeline of the model's backend, if it has one, learns every weight that is held on the device. Those that come
 * through stages are not among them. */
void qr_model_name_weights(qrun_model *model);

#endif
