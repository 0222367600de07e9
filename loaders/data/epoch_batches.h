/* Which examples are computed together: the batches of one epoch, made before it begins.
 *
 * An epoch is a list of micro-batches, each a list of rows, each a list of examples. A row only says how much memory
 * its examples take together: each example has positions from 0 and attends to itself alone. The batch of a step is
 * the micro-batches whose gradients are added up. The last micro-batch of an epoch may have fewer rows, and its last
 * batch fewer micro-batches.
 *
 * They are a pure function of view, options and epoch: (epoch, batch) is all it takes to resume. */
#ifndef QR_LOADERS_DATA_EPOCH_BATCHES_H
#define QR_LOADERS_DATA_EPOCH_BATCHES_H

#include "loaders/data/shares.h"

typedef enum qr_batch_mode {
    QR_BATCH_PLAIN, /* one example per row, in the epoch's order */
    QR_BATCH_PACK,  /* rows of up to row_tokens: each example goes into the first of the last OPEN_ROWS rows that has
                     * room for it, or begins a new one; no row is longer */
    QR_BATCH_GROUP  /* one example per row; examples of similar length together: each run of GROUP_EXAMPLES of the
                     * epoch's order is sorted by length and cut into micro-batches of up to batch_tokens. These are
                     * then put in random order */
} qr_batch_mode;

enum { QR_BATCH_OPEN_ROWS = 64, QR_BATCH_GROUP_EXAMPLES = 4096 };

typedef struct qr_batch_options {
    qr_batch_mode mode;
    int64_t row_tokens;   /* PACK: the sequence length; no example may be longer */
    int64_t batch_rows;   /* PLAIN, PACK: rows of a micro-batch */
    int64_t batch_tokens; /* GROUP: the most tokens of a micro-batch; a longer example has a micro-batch to itself */
    int64_t n_accumulate; /* micro-batches of a step */
    bool shuffle;         /* a new order each epoch; otherwise the view's */
    uint64_t seed;
    const qr_shares *shares; /* of the files, in the view; NULL: an epoch has every example of the view once. Lent */
} qr_batch_options;

typedef struct qr_epoch_batches qr_epoch_batches;

/* Holds 8 bytes per example of the epoch and 40 per micro-batch, and as much again per example and row four times over
 * while it is made. 0 ≤ epoch < 2³¹. */
qrun_status qr_epoch_batches_create(const qr_dataset_view *view, const qr_batch_options *options, int64_t epoch,
                                    qr_epoch_batches **batches, qr_error *err);
void qr_epoch_batches_destroy(qr_epoch_batches *batches); /* NULL is fine */

int64_t qr_epoch_batches_count_micro(const qr_epoch_batches *batches);
int64_t qr_epoch_batches_count_steps(const qr_epoch_batches *batches);

typedef struct qr_micro_batch {
    const int64_t *examples; /* [n_examples]: indices into the dataset, row after row */
    int64_t n_examples, n_rows;
    int64_t n_tokens, n_targets;
} qr_micro_batch;

/* Lent. */
qr_micro_batch qr_epoch_batches_micro(const qr_epoch_batches *batches, int64_t k);

typedef struct qr_step_batch {
    int64_t first, n_micro_batches;          /* of the epoch's */
    int64_t n_examples, n_tokens, n_targets; /* n_targets: what the loss of the step is divided by */
} qr_step_batch;

qr_step_batch qr_epoch_batches_step(const qr_epoch_batches *batches, int64_t i);

#endif
