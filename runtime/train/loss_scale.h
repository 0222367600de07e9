/* The loss scale: the factor of the loss where small gradients would become zero, as in F16. A dynamic one is as large
 * as the largest gradients allow, found as torch.amp.GradScaler finds it, with its defaults: it begins at 65536;
 * gradients that overflow halve it and their step is skipped; 2000 steps without an overflow double it. Unlike
 * GradScaler's it stays at 1 or above: what overflows at 1 does so for another reason. The gradients are divided by it
 * in F32, before their norm is measured and clipped. Powers of two cost no rounding. */
#ifndef QR_RUNTIME_TRAIN_LOSS_SCALE_H
#define QR_RUNTIME_TRAIN_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "qrun.h"

typedef struct qr_loss_scale {
    bool dynamic;           /* else the factor stays */
    double factor;          /* what a float holds, at least 1 */
    double growth, backoff; /* dynamic: what the factor is multiplied by */
    int64_t window;         /* dynamic: steps without an overflow before it grows */
    int64_t good_steps;     /* since it last changed */
} qr_loss_scale;

/* As the options say for a model that computes in act_dtype. */
qrun_status qr_loss_scale_make(const qrun_train_optimization *options, qr_dtype act_dtype, qr_loss_scale *scale,
                               qr_error *err);

/* Whether the loss is multiplied by anything, now or later. */
static inline bool qr_loss_scale_is_used(const qr_loss_scale *scale) { return scale->dynamic || scale->factor != 1; }

/* After the gradients of a step. True where the factor may have caused an overflow: a dynamic one is lower now, and the
 * step is to be skipped. An overflow for which it returns false is an error. */
bool qr_loss_scale_update(qr_loss_scale *scale, bool overflowed);

#endif
