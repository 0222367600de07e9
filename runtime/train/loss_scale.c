#include "runtime/train/loss_scale.h"

#include <math.h>

enum { DEFAULT_WINDOW = 2000 };
static const double INITIAL = 65536, GROWTH = 2, BACKOFF = 0.5, LEAST = 1;

static double or_default(double value, double fallback) { return value != 0 ? value : fallback; }

static qrun_status check_dynamic(const qrun_train_optimization *o, bool dynamic, qr_error *err) {
    const bool given = o->loss_scale_initial != 0 || o->loss_scale_growth != 0 || o->loss_scale_backoff != 0 ||
                       o->loss_scale_window != 0;
    if (dynamic || !given) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "`loss_scale_initial`, `loss_scale_growth`, `loss_scale_backoff` and `loss_scale_window` are of a "
                   "dynamic `loss_scale`, and this run has %s",
                   o->loss_scale > 0 ? "a constant one" : "none");
}

qrun_status qr_loss_scale_make(const qrun_train_optimization *options, qr_dtype act_dtype, qr_loss_scale *scale,
                               qr_error *err) {
    const bool dynamic = options->loss_scale == QRUN_AUTO || (options->loss_scale == 0 && act_dtype == QR_DTYPE_F16);
    const double initial = or_default((double)options->loss_scale_initial, INITIAL);
    const double constant = or_default((double)options->loss_scale, LEAST);
    QR_RETURN_IF_ERROR(check_dynamic(options, dynamic, err));
    *scale = (qr_loss_scale){.dynamic = dynamic,
                             .factor = (double)(float)(dynamic ? initial : constant),
                             .growth = or_default(options->loss_scale_growth, GROWTH),
                             .backoff = or_default(options->loss_scale_backoff, BACKOFF),
                             .window = options->loss_scale_window != 0 ? options->loss_scale_window : DEFAULT_WINDOW};
    return QRUN_OK;
}

/* Products are rounded as GradScaler rounds them: its factor is a float. */
bool qr_loss_scale_update(qr_loss_scale *scale, bool overflowed) {
    if (!scale->dynamic) { return overflowed && scale->factor > LEAST; }
    if (overflowed) {
        scale->good_steps = 0;
        if (scale->factor <= LEAST) { return false; }
        scale->factor = fmax(LEAST, (double)(float)(scale->factor * scale->backoff));
        return true;
    }
    if (++scale->good_steps == scale->window) {
        const float grown = (float)(scale->factor * scale->growth);
        scale->good_steps = 0;
        if (isfinite(grown)) { scale->factor = (double)grown; }
    }
    return false;
}
