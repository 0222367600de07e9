/* An adapter as a part of linear: B t is added to the sums of a panel of outputs before they are stored. The bits are
 * those of the op lora on what linear has stored. */
#ifndef QR_KERNELS_CPU_LINEAR_LORA_H
#define QR_KERNELS_CPU_LINEAR_LORA_H

#include "kernels/cpu/linear/linear.h"

enum { QR_CPU_LORA_MAX_RANK = 64 }; /* a panel of B, 64 outputs, then has 16 KiB and stays in L1 */

typedef struct qr_cpu_lora_sums {
    const qr_lora_factor *factor; /* of all rows */
    const float *t;               /* A x: [n_rows, t_stride] */
    int64_t t_stride;
    const qr_cpu_matmul *matmul; /* its combine */
} qr_cpu_lora_sums;

/* The part of the workspace of lora that `sums` refers to: its beginning. */
size_t qr_cpu_lora_kept_bytes(const qr_backend *backend, const qr_lora_args *args);

/* Computes A x in a workspace of lora. False, and nothing is done: the rows do not all have one adapter that applies.
 */
bool qr_cpu_lora_prepare(qr_backend *backend, const qr_lora_args *args, void *workspace, qr_cpu_lora_sums *sums);

/* panel [rank, QR_CPU_PANEL_ROWS] = Bᵀ of n_rows outputs from `row` on, zeros past them. */
void qr_cpu_lora_panel(const qr_cpu_lora_sums *sums, int64_t row, int64_t n_rows, float *panel);

/* y[r, o] += scale · (B t)[i + r, skip + o] for n_rows rows of x from i on and n outputs of the panel. */
void qr_cpu_lora_add(const qr_cpu_lora_sums *sums, const float *panel, int64_t i, int64_t n_rows, int64_t skip,
                     int64_t n, float *y, int64_t y_stride);

#endif
