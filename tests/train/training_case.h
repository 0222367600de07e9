/* Batches, adapters and gradients of tests/fixtures/training, as training tests use them (tests/golden/README.md). */
#ifndef QR_TESTS_TRAINING_CASE_H
#define QR_TESTS_TRAINING_CASE_H

#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/pass/pass.h"
#include "runtime/pass/whole_parameters.h"

enum { TRAINING_MAX_TOKENS = 1024, TRAINING_MAX_SEQUENCES = 64 };

/* A context, and the index of the fixtures; false, after saying why, where one is missing. The caller releases both. */
bool training_begin(qrun_context **context, qr_json **index);

typedef struct training_batch {
    qr_train_batch batch;
    int64_t n_targets;
    int32_t ids[TRAINING_MAX_TOKENS], position[TRAINING_MAX_TOKENS], target[TRAINING_MAX_TOKENS];
    int32_t seq_start[TRAINING_MAX_SEQUENCES + 1];
    int64_t row_key[TRAINING_MAX_TOKENS];
} training_batch;

/* The examples [first, first + n) of a batch of the index, side by side; n −1: all. */
void training_batch_read(const qr_json *entry, int64_t first, int64_t n, training_batch *batch);

/* A base model of the index, the parameters of a PEFT folder (and modules trained whole), and a pass over them. */
typedef struct training_fixture {
    qrun_model *model;
    qr_parameters parameters;
    qr_train_pass *pass;
} training_fixture;

typedef struct training_options {
    qrun_dtype dtype;
    const char *policy; /* of checkpointing */
    int64_t max_tokens;
    int64_t tile_rows; /* 0: none */
    bool offload;      /* of the inputs of recomputed layers */
    qrun_offload experts;
    float dropout;
    int64_t logit_rows; /* 0: as many as pay */
    qr_preference preference;
    const char *layers; /* with LoRA; NULL: all of the adapter's */
} training_options;

/* Whether an entry is of full fine-tuning: it has no adapter. */
bool training_is_full(const qr_json *entry);

/* The name that transformers and PEFT have in memory for a tensor of a folder of old models with images. */
void training_name_in_memory(char *name, size_t name_bytes);

/* Of an entry of the index. One named "…-head" trains lm_head too; "…-from-adapter" has a reference of half its values.
 * False after a failed check. */
bool training_fixture_open(qrun_context *context, const qr_json *entry, const training_options *options,
                           training_fixture *fixture);
void training_fixture_close(training_fixture *fixture); /* fine for a zeroed one */

/* ‖a − b‖ / ‖b‖, or ‖a‖ where b is zero. */
double training_relative_error(const float *a, const float *b, int64_t n);

/* The relative error of all gradients together against the golden file, each of them within `bound`. Of whole weights
 * the file may hold some only, and no LoRA factors with them; else factors that it leaves out must be zero. */
double training_gradient_error(const training_fixture *fixture, const qr_safetensors *golden, double bound);

/* Copies a factor's gradient (or value) to the host; n floats. */
qrun_status training_read(const qr_parameters *parameters, const float *device, int64_t n, float *host, qr_error *err);

#endif
