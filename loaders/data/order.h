/* The order in which examples are taken, and which of them are kept for evaluation: pure functions of seeds, computed
 * one index at a time. */
#ifndef QR_LOADERS_DATA_ORDER_H
#define QR_LOADERS_DATA_ORDER_H

#include "loaders/data/dataset.h"

/* A permutation of 0 … n − 1: eight rounds of a Feistel network with Philox as its round function, over the smallest
 * even number of bits that holds n. Indices that leave the range go round again, four times on average at most (cycle
 * walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). */
typedef struct qr_permutation {
    uint64_t seed;
    uint32_t stream;
    int64_t n;
    int half_bits;
} qr_permutation;

/* Streams of one seed are independent of each other. */
qr_permutation qr_permutation_make(uint64_t seed, uint32_t stream, int64_t n);
int64_t qr_permutation_at(const qr_permutation *permutation, int64_t i); /* 0 ≤ i < n */

/* Some of a data set's examples. */
typedef struct qr_dataset_view {
    const qr_dataset *dataset; /* lent */
    qr_permutation split;      /* n = 0: every example, in the file's order */
    int64_t first, n;
} qr_dataset_view;

qr_dataset_view qr_dataset_view_all(const qr_dataset *dataset);

/* Keeps round(fraction · n) examples for evaluation, at least one and never all; 0 < fraction < 1. */
qrun_status qr_dataset_split(const qr_dataset *dataset, double fraction, uint64_t seed, qr_dataset_view *train,
                             qr_dataset_view *eval, qr_error *err);

/* The dataset's index of the view's k-th example, 0 ≤ k < n. */
int64_t qr_dataset_view_index(const qr_dataset_view *view, int64_t k);

#endif
