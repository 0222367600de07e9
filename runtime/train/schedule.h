/* The learning rate over a run, as transformers' get_scheduler has it. */
#ifndef QR_RUNTIME_TRAIN_SCHEDULE_H
#define QR_RUNTIME_TRAIN_SCHEDULE_H

#include <stdint.h>

#include "qrun.h"

/* Factor on the base learning rate for step 1 … n_steps: rises from 0 over n_warmup steps, then stays, falls linearly,
 * or along half a cosine, to 0 after the last step. */
double qr_schedule_factor(qrun_schedule schedule, int64_t step, int64_t n_warmup, int64_t n_steps);

#endif
