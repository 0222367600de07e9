/* An adapter as a part of linear: B t is added to the sums of a panel of outputs before they are stored. The bits are
 * those of the op lora on what linear has stored. */
#ifndef QR_KERNELS_CPU_LINEAR_LORA_H
#define QR_KERNELS_CPU_LINEAR_LORA_H

#include "kernels/cpu/linear/linear_tiles.h"

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

/* c [rank, n], or [n, rank], += hᵀ x over the rows, ascending; x in BF16. */
typedef struct qr_cpu_pairs_gradient_args {
    const float *h;    /* [n_rows, rank] */
    const uint16_t *x; /* [n_rows, n], rows x_stride apart */
    int64_t n_rows, rank, n, x_stride;
    float *c;
    bool c_transposed; /* [n, rank] */
} qr_cpu_pairs_gradient_args;

/* LoRA's products by pairs (in_pairs of the ops) on vectors: of an instruction set that has no tiles for them. */
typedef struct qr_cpu_lora_pairs {
    /* Of either, for k columns of W, or as many rows of h. */
    size_t (*workspace_bytes)(int64_t rank, int64_t k);
    void (*down)(qr_backend *backend, const qr_cpu_pairs_args *args, void *workspace);
    void (*gradient)(qr_backend *backend, const qr_cpu_pairs_gradient_args *args, void *workspace);
} qr_cpu_lora_pairs;

extern const qr_cpu_lora_pairs qr_cpu_lora_pairs_bf16; /* AVX-512 BF16 */

#endif
