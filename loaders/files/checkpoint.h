/* The checkpoint of a training run, read back: a folder of three files that must all be whole.
 *     state.json         how far the run is: {"version": 1, "step", "epoch", "batch", "checksum", "run_checksum"} and
 * what else belongs to it (runtime/train/checkpoint.c); checksum: qr_hash_words over the data of both tensors, in
 * hexadecimal; run_checksum: qr_hash_bytes over run.json, so that the files of two runs are not taken for one's
 *     run.json           what the run is: an object of everything that must be equal to resume
 *     state.safetensors  "parameters" F32 [n], and "optimizer" U8 [n_bytes]: its states
 * The folder also has the adapter, which is for use and is not read here. */
#ifndef QR_LOADERS_FILES_CHECKPOINT_H
#define QR_LOADERS_FILES_CHECKPOINT_H

#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"

enum { QR_CHECKPOINT_JSON_BYTES = 1 << 20 };

typedef struct qr_checkpoint {
    int64_t step, epoch, batch; /* batch: the next one of the epoch */
    qr_json *state, *run;       /* the objects themselves */
    qr_safetensors *tensors;
    const qr_safetensors_tensor *parameters, *optimizer; /* in the map of the file */
} qr_checkpoint;

/* Whether the folder is a checkpoint of ours, be it a damaged one: its run.json or its state.json has the members that
 * only ours have. Nothing else may be removed, or taken for a checkpoint. Fails only where memory is short. */
qrun_status qr_checkpoint_recognise(const char *folder, bool *is_ours, qr_error *err);

/* QRUN_ERROR_INPUT or QRUN_ERROR_NOT_FOUND for a folder that is not whole. Close it also after a failure. */
qrun_status qr_checkpoint_open(const char *folder, qr_checkpoint *checkpoint, qr_error *err);
void qr_checkpoint_close(qr_checkpoint *checkpoint); /* fine for a zeroed one */

/* The name that a member of state.json has in this one: "batch" was "window" in those of earlier versions. */
const char *qr_checkpoint_key(const qr_json *state, const char *name);

/* Where two runs (objects of run.json) differ, for a message: "rank is 8 here and 4 there, …", at most three of them.
 * Empty where they are equal; more total steps here, and evaluation data where there are none there, are no difference:
 * they extend that run. The text is qr_alloc'ed; NULL when memory is short. */
char *qr_checkpoint_difference(const qr_json *here, const qr_json *there);

#endif
