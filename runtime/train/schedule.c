#include "runtime/train/schedule.h"

#include <math.h>

#include "base/sizes.h"

double qr_schedule_factor(qrun_schedule schedule, int64_t step, int64_t n_warmup, int64_t n_steps) {
    const int64_t done = step - 1;
    if (done < n_warmup) { return (double)done / (double)n_warmup; }
    if (schedule == QRUN_SCHEDULE_CONSTANT) { return 1.0; }
    const double length = (double)qr_max(1, n_steps - n_warmup);
    const double progress = (double)(done - n_warmup) / length;
    if (schedule == QRUN_SCHEDULE_LINEAR) { return fmax(0.0, 1.0 - progress); }
    return fmax(0.0, 0.5 * (1.0 + cos(3.14159265358979323846 * progress)));
}
