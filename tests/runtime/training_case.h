/* Batches, adapters and gradients of tests/fixtures/training, as training tests use them (tests/golden/README.md). */
#ifndef QR_TESTS_TRAINING_CASE_H
#define QR_TESTS_TRAINING_CASE_H

#include "loaders/json.h"
#include "runtime/lora_parameters.h"
#include "runtime/train_pass.h"

enum { TRAINING_MAX_TOKENS = 1024, TRAINING_MAX_SEQUENCES = 64 };

typedef struct training_batch {
    qr_train_batch batch;
    int64_t n_targets;
    int32_t ids[TRAINING_MAX_TOKENS], position[TRAINING_MAX_TOKENS], target[TRAINING_MAX_TOKENS];
    int32_t seq_start[TRAINING_MAX_SEQUENCES + 1];
} training_batch;

/* The examples [first, first + n) of a batch of the index, side by side; n −1: all. */
void training_batch_read(const qr_json *entry, int64_t first, int64_t n, training_batch *batch);

/* Parameters of the shape of a PEFT folder, with its values in them. */
qrun_status training_parameters_open(qrun_model *model, const char *folder, qr_parameters *parameters,
                                     qr_error *err);

/* Copies a factor's gradient (or value) to the host; n floats. */
qrun_status training_read(const qr_parameters *parameters, const float *device, int64_t n, float *host,
                          qr_error *err);

#endif
