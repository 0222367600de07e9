#include "runtime/train/loss_scale.h"

#include <float.h>

enum { GROWTH_STEPS = 2000 };
static const double INITIAL = 65536, GROWTH = 2, BACKOFF = 0.5, LEAST = 1;

qr_loss_scale qr_loss_scale_initial(qr_dtype act_dtype) {
    const bool dynamic = act_dtype == QR_DTYPE_F16;
    return (qr_loss_scale){.dynamic = dynamic, .factor = dynamic ? INITIAL : 1};
}

bool qr_loss_scale_update(qr_loss_scale *scale, bool overflowed) {
    if (!scale->dynamic) { return false; }
    if (overflowed) {
        scale->good_steps = 0;
        if (scale->factor <= LEAST) { return false; }
        scale->factor *= BACKOFF;
        return true;
    }
    if (++scale->good_steps == GROWTH_STEPS) {
        scale->good_steps = 0;
        if (scale->factor * GROWTH <= (double)FLT_MAX) { scale->factor *= GROWTH; }
    }
    return false;
}
