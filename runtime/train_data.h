/* From the examples of a data set to the arrays of a micro-batch. Which examples those are is loaders/dataset_batch. */
#ifndef QR_RUNTIME_TRAIN_DATA_H
#define QR_RUNTIME_TRAIN_DATA_H

#include "loaders/dataset_batch.h"
#include "runtime/train_pass.h"

/* Host arrays for the largest micro-batch. */
typedef struct qr_train_data {
    int64_t max_tokens, max_sequences;
    int32_t *ids, *position, *target, *seq_start;
    int64_t *row_key;
    qr_train_batch batch; /* points into them */
} qr_train_data;

qrun_status qr_train_data_create(int64_t max_tokens, int64_t max_sequences, qr_train_data *data, qr_error *err);
void qr_train_data_destroy(qr_train_data *data); /* fine for a zeroed one */

/* Lays the examples of a micro-batch side by side, each with positions from 0; target[t] is the id that follows where
 * that counts in the loss. */
void qr_train_data_fill(qr_train_data *data, const qr_dataset *dataset, const qr_micro_batch *micro);

#endif
