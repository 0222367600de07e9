/* The parameters of a run on a backend that plans (kernels/plan): for the very code that will run to be run on it. */
#ifndef QR_RUNTIME_TRAIN_PLANNED_PARAMETERS_H
#define QR_RUNTIME_TRAIN_PLANNED_PARAMETERS_H

#include "runtime/model/parameters.h"

/* Parameters as they are, or as they will be where they are only described: in memory that is counted and not made, and
 * in the place of the model's weights where they will be there. The same for a model that is described and not loaded.
 * Meanwhile nothing else uses the model; `end` leaves it as it was. */
qrun_status qr_planned_parameters_begin(const qr_parameters *parameters, qr_parameters *planned, qr_error *err);
void qr_planned_parameters_end(qr_parameters *planned); /* fine after a begin that failed */

#endif
