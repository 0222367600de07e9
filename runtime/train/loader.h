/* Loading that overlaps computing. While one micro-batch is computed, the loader's own thread reads the next one from
 * its data set and fills its arrays. While the last micro-batch of an epoch is computed, it makes the batches of the
 * next epoch. There is room for two micro-batches, in host memory of the backend.
 *
 * The result of a call depends on its arguments alone; preparing only makes it faster. One thread at a time makes
 * calls. */
#ifndef QR_RUNTIME_TRAIN_LOADER_H
#define QR_RUNTIME_TRAIN_LOADER_H

#include "loaders/data/epoch_batches.h"
#include "runtime/pass/pass.h"

/* Host arrays for the largest micro-batch, in memory that the owner provides. */
typedef struct qr_micro_arrays {
    int32_t *ids, *position, *target, *seq_start;
    int64_t *row_key;
    qr_train_batch batch; /* points into them */
} qr_micro_arrays;

/* Lays the arrays out in memory (64-byte aligned; NULL: only counts) and returns their bytes. */
size_t qr_micro_arrays_place(qr_micro_arrays *arrays, int64_t max_tokens, int64_t max_sequences, void *memory);

/* Concatenates the examples of a micro-batch, each with positions from 0; a pair is two sequences, the chosen answer
 * first. target[t]: the id of the next token where that counts in the loss, else −1. */
void qr_micro_arrays_fill(qr_micro_arrays *arrays, const qr_dataset *dataset, const qr_micro_batch *micro);

typedef struct qr_train_loader qr_train_loader;

/* Names a micro-batch. Data set and batches are lent. */
typedef struct qr_micro_source {
    const qr_dataset *dataset;
    const qr_epoch_batches *batches;
    int64_t index; /* of the micro-batch */
} qr_micro_source;

/* Host memory of a loader for micro-batches of this size. */
size_t qr_train_loader_bytes(int64_t max_tokens, int64_t max_sequences);

qrun_status qr_train_loader_create(qr_backend *backend, int64_t max_tokens, int64_t max_sequences,
                                   qr_train_loader **loader, qr_error *err);
void qr_train_loader_destroy(qr_train_loader *loader); /* NULL is fine */

/* The micro-batch, lent until the next take. Fills it now unless it was prepared. */
const qr_train_batch *qr_train_loader_take(qr_train_loader *loader, const qr_micro_source *source);

/* Begins to fill `next`; what was prepared before is dropped. */
void qr_train_loader_prepare(qr_train_loader *loader, const qr_micro_source *next);

/* Begins to make the batches of an epoch, and then to fill its first micro-batch. *view must live until the next call.
 */
void qr_train_loader_prepare_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                   const qr_batch_options *options, int64_t epoch);

/* Waits for what is being prepared and drops it: before its batches or data set are destroyed. */
void qr_train_loader_forget(qr_train_loader *loader);

/* The batches of an epoch, the caller's to destroy: those that were prepared, or made now. */
qrun_status qr_train_loader_take_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                       const qr_batch_options *options, int64_t epoch, qr_epoch_batches **batches,
                                       qr_error *err);

#endif
