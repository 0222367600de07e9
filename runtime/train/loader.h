/* Loading that overlaps computing: while one micro-batch is computed, the next is read from the map of its data set and
 * laid out by a thread of the loader's own, and so is the plan of the next epoch while the last micro-batch of the one
 * before is computed. There is room for two micro-batches, in host memory of the backend.
 *
 * What a call gives depends on what it asks for alone; what was prepared decides only how long it takes. One thread at
 * a time makes calls. */
#ifndef QR_RUNTIME_TRAIN_LOADER_H
#define QR_RUNTIME_TRAIN_LOADER_H

#include "loaders/data/batch.h"
#include "runtime/train/pass.h"

/* Host arrays for the largest micro-batch, in memory of the owner's. */
typedef struct qr_micro_arrays {
    int32_t *ids, *position, *target, *seq_start;
    int64_t *row_key;
    qr_train_batch batch; /* points into them */
} qr_micro_arrays;

/* Lays the arrays out in memory (64-byte aligned; NULL: only counts) and returns their bytes. */
size_t qr_micro_arrays_place(qr_micro_arrays *arrays, int64_t max_tokens, int64_t max_sequences, void *memory);

/* Lays the examples of a micro-batch side by side, each with positions from 0; target[t] is the id that follows where
 * that counts in the loss. */
void qr_micro_arrays_fill(qr_micro_arrays *arrays, const qr_dataset *dataset, const qr_micro_batch *micro);

typedef struct qr_train_loader qr_train_loader;

/* A micro-batch by its place. Data set and plan are lent. */
typedef struct qr_micro_source {
    const qr_dataset *dataset;
    const qr_batch_plan *plan;
    int64_t index; /* in the plan */
} qr_micro_source;

/* Host memory that a loader for micro-batches of this size takes. */
size_t qr_train_loader_bytes(int64_t max_tokens, int64_t max_sequences);

qrun_status qr_train_loader_create(qr_backend *backend, int64_t max_tokens, int64_t max_sequences,
                                   qr_train_loader **loader, qr_error *err);
void qr_train_loader_destroy(qr_train_loader *loader); /* NULL is fine */

/* The micro-batch, lent until the next call that takes one. Fills it now unless it is the one that was prepared. */
const qr_train_batch *qr_train_loader_take(qr_train_loader *loader, const qr_micro_source *source);

/* Begins to fill `next`, in place of what was prepared before. */
void qr_train_loader_prepare(qr_train_loader *loader, const qr_micro_source *next);

/* Begins to plan an epoch, and then to fill its first micro-batch. *view must live until the next call. */
void qr_train_loader_prepare_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                   const qr_batch_options *options, int64_t epoch);

/* Ends what is being prepared and forgets it: before its plan or data set goes. */
void qr_train_loader_forget(qr_train_loader *loader);

/* Gives the plan of an epoch away: the one that was prepared, or one made now. */
qrun_status qr_train_loader_plan_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                       const qr_batch_options *options, int64_t epoch, qr_batch_plan **plan,
                                       qr_error *err);

#endif
