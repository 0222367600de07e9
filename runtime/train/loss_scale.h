/* The loss scale: the factor of the loss in F16, where small gradients would become zero. It is as large as the largest
 * gradients allow, found as torch.amp.GradScaler finds it. It begins at 65536; gradients that overflow halve it and
 * their step is skipped; 2000 steps without an overflow double it. Unlike GradScaler's it stays at 1 or above: what
 * overflows at 1 does so for another reason. The gradients are divided by it in F32, before their norm is measured and
 * clipped. */
#ifndef QR_RUNTIME_TRAIN_LOSS_SCALE_H
#define QR_RUNTIME_TRAIN_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

typedef struct qr_loss_scale {
    bool dynamic;       /* false: not F16; the factor stays 1 */
    double factor;      /* a power of two that a float holds, so that it costs no rounding */
    int64_t good_steps; /* since it last changed */
} qr_loss_scale;

qr_loss_scale qr_loss_scale_initial(qr_dtype act_dtype);

/* After the gradients of a step. True where the factor caused an overflow: it was halved, and the step is to be
 * skipped. An overflow for which it returns false is an error. */
bool qr_loss_scale_update(qr_loss_scale *scale, bool overflowed);

#endif
