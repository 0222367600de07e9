/* The parameters of a run on a backend that plans (kernels/plan): for the very code that will run to be run on it. */
#ifndef QR_RUNTIME_PASS_PLANNED_PARAMETERS_H
#define QR_RUNTIME_PASS_PLANNED_PARAMETERS_H

#include "runtime/layers/parameters.h"

/* The parameters as they are or, if they are only described, as they will be, at addresses that are counted but not
 * allocated. The model is treated alike, and has the trained weights in it. Until `end` nothing else may use the model.
 */
qrun_status qr_planned_parameters_begin(const qr_parameters *parameters, qr_parameters *planned, qr_error *err);
void qr_planned_parameters_end(qr_parameters *planned); /* fine after a begin that failed */

#endif
