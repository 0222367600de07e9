/* One draw from one row of logits, in scalar C with F64 sums: the sample op of the reference and of the processor, and
 * what the runtime draws with where it changed the logits first (penalties, masks). */
#ifndef QR_KERNELS_SAMPLE_H
#define QR_KERNELS_SAMPLE_H

#include "kernels/ops.h"

/* Scratch for one vocabulary, of one thread at a time. */
typedef struct qr_sample_scratch {
    double *weights; /* [vocab] of the ids taken off the heap */
    int32_t *heap;   /* [vocab] ids; the likeliest on top, then the chosen ones in order at the end */
} qr_sample_scratch;

/* Its bytes, a multiple of 64, and its parts at 64-byte aligned memory of that size. */
size_t qr_sample_scratch_bytes(int64_t vocab);
qr_sample_scratch qr_sample_scratch_at(void *memory, int64_t vocab);

/* The token that `draw` (its row is not looked at) takes from logits [vocab]: numbers, or −∞ for what must not be
 * drawn; at least one is a number. */
int32_t qr_sample_token(const qr_sample_draw *draw, const float *logits, int64_t vocab,
                        const qr_sample_scratch *scratch);

/* The op's whole answer for one row. */
qr_sampled qr_sample_row(const qr_sample_draw *draw, const float *logits, int64_t vocab,
                         const qr_sample_scratch *scratch);

/* Whether every value is a number, none infinite. */
bool qr_logits_are_finite(const float *logits, int64_t vocab);

/* log of the sum of exp(logits): log p(id) is logits[id] − that. */
double qr_log_sum_exp(const float *logits, int64_t vocab);

#endif
