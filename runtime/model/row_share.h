/* What one of several ranks has of a matrix or a vector that is split among them (split.h). */
#ifndef QR_RUNTIME_MODEL_ROW_SHARE_H
#define QR_RUNTIME_MODEL_ROW_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/format.h"

enum { QR_MAX_ROW_RANGES = 5 }; /* what makes a state space in one matrix */

/* Rows [first, first + n) of the whole matrix. */
typedef struct qr_row_range {
    int64_t first, n;
} qr_row_range;

/* Rows of a matrix, or elements of a vector. Where a vector has a part for each expert, those of one part. */
typedef struct qr_row_share {
    int64_t all;                            /* of the whole matrix; 0: it is not split */
    int32_t n_ranges;                       /* the rank has them one after the other */
    qr_row_range ranges[QR_MAX_ROW_RANGES]; /* ascending */
    qr_weight_format whole_format;          /* of the whole matrix, on one device */
} qr_row_share;

static inline bool qr_row_share_is_part(const qr_row_share *share) { return share->all > 0; }

/* How many rows the rank has; 0 where nothing is split. */
static inline int64_t qr_row_share_rows(const qr_row_share *share) {
    int64_t n = 0;
    for (int32_t i = 0; i < share->n_ranges; i++) { n += share->ranges[i].n; }
    return n;
}

#endif
