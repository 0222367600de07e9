/* From the examples of a data set to the arrays of a micro-batch. Which examples those are is loaders/dataset_batch;
 * that it happens ahead of time is train_loader.h. */
#ifndef QR_RUNTIME_TRAIN_DATA_H
#define QR_RUNTIME_TRAIN_DATA_H

#include "loaders/dataset_batch.h"
#include "runtime/train_pass.h"

/* Host arrays for the largest micro-batch, in memory of the owner's. */
typedef struct qr_train_data {
    int32_t *ids, *position, *target, *seq_start;
    int64_t *row_key;
    qr_train_batch batch; /* points into them */
} qr_train_data;

/* Lays the arrays out in memory (64-byte aligned; NULL: only counts) and returns their bytes. */
size_t qr_train_data_place(qr_train_data *data, int64_t max_tokens, int64_t max_sequences, void *memory);

/* Lays the examples of a micro-batch side by side, each with positions from 0; target[t] is the id that follows where
 * that counts in the loss. */
void qr_train_data_fill(qr_train_data *data, const qr_dataset *dataset, const qr_micro_batch *micro);

#endif
