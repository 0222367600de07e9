/* Which examples an epoch has where the files of a data set are given shares of it.
 *
 * A file's share of an epoch's examples is its weight over the sum of the weights. An epoch is as short as it can be
 * without leaving an example out: the file with the most examples for its weight gives each of them once, and the
 * others repeat some or all of theirs. (interleave_datasets of Hugging Face calls this all_exhausted; here the counts
 * are exact, not sampled.)
 *
 * A file's examples are taken in one random order, over and over, and an epoch continues where the one before ended.
 * After any number of epochs, the counts of how often two examples of a file were taken differ by one at most. */
#ifndef QR_LOADERS_DATA_SHARES_H
#define QR_LOADERS_DATA_SHARES_H

#include "loaders/data/order.h"

/* Immutable once made. */
typedef struct qr_shares qr_shares;

enum { QR_SHARES_MOST_REPEATS = 1000 };

/* weights: [files of the view's data set], each > 0. Holds 8 bytes per example of the view. QRUN_ERROR_ARGUMENT where
 * the view has no example of a file, or an epoch would have one more than QR_SHARES_MOST_REPEATS times. */
qrun_status qr_shares_create(const qr_dataset_view *view, const double *weights, uint64_t seed, qr_shares **shares,
                             qr_error *err);
void qr_shares_destroy(qr_shares *shares); /* NULL is fine */

int64_t qr_shares_count(const qr_shares *shares);                  /* examples of an epoch, below 2^31 */
int64_t qr_shares_count_of(const qr_shares *shares, int64_t file); /* of them, of this file */
/* The data set's index of an epoch's k-th example, file after file. */
int64_t qr_shares_index(const qr_shares *shares, int64_t epoch, int64_t k);

#endif
