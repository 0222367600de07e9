/* One sample from one row of logits, in scalar C with F64 sums: the sample op of the ref and the cpu backend. The
 * runtime samples with it too when it has changed the logits (penalties, masks). */
#ifndef QR_KERNELS_TOP_K_TOP_P_H
#define QR_KERNELS_TOP_K_TOP_P_H

#include "kernels/ops.h"

/* Scratch for one vocabulary, of one thread at a time. */
typedef struct qr_sample_scratch {
    double *weights; /* [vocab] of the ids popped off the heap */
    int32_t *heap;   /* [vocab] ids: a heap with the most likely on top, then the popped ones */
} qr_sample_scratch;

/* Its bytes, a multiple of 64, and its parts at 64-byte aligned memory of that size. */
size_t qr_sample_scratch_bytes(int64_t vocab);
qr_sample_scratch qr_sample_scratch_at(void *memory, int64_t vocab);

/* The token that `params` samples from logits [vocab]: finite values, or −∞ for ids that are excluded; at least one is
 * finite. params->row is not read. */
int32_t qr_sample_token(const qr_sample_params *params, const float *logits, int64_t vocab,
                        const qr_sample_scratch *scratch);

/* The ids that top_k, top_p and min_p leave of logits as above, at a temperature above 0: their number. The i-th in
 * falling order is scratch->heap[vocab − 1 − i], with scratch->weights[i] in proportion to its probability. */
int64_t qr_sample_filter(const qr_sample_params *params, const float *logits, int64_t vocab,
                         const qr_sample_scratch *scratch);

/* Of weights [n] the one that `uniform` in [0, 1) falls on. */
int64_t qr_sample_weights(const double *weights, int64_t n, double uniform);

/* The op's result for one row. */
qr_sampled qr_sample_row(const qr_sample_params *params, const float *logits, int64_t vocab,
                         const qr_sample_scratch *scratch);

/* Whether every value is finite. */
bool qr_logits_are_finite(const float *logits, int64_t vocab);

/* log of the sum of exp(logits): log p(id) is logits[id] − that. */
double qr_log_sum_exp(const float *logits, int64_t vocab);

#endif
