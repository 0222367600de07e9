#include "runtime/train/loss_scale.h"

#include <math.h>

enum { GROWTH_STEPS = 2000 };
static const float INITIAL = 65536.0F, GROWTH = 2.0F, BACKOFF = 0.5F, LEAST = 1.0F;

qr_loss_scale qr_loss_scale_initial(qr_dtype act_dtype) {
    const bool dynamic = act_dtype == QR_DTYPE_F16;
    return (qr_loss_scale){.dynamic = dynamic, .factor = dynamic ? INITIAL : 1.0F};
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
        const float larger = scale->factor * GROWTH;
        if (isfinite(larger)) { scale->factor = larger; }
    }
    return false;
}
