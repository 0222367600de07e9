/* Weights that are trained whole: all of a model (full fine-tuning), or single modules together with LoRA (PEFT's
 * modules_to_save).
 *
 * Their master values are F32, in the arena of the parameters. While the parameters live, the model uses norms and
 * biases directly from the arena. Matrices are held in the model's own format or the compute type, and written again
 * from their masters after every update (qr_whole_parameters_refresh). In full fine-tuning they are in the model's own
 * memory; those of single modules are in new memory, so that the frozen ones stay. Where the masters are in host memory
 * (qr_parameters_hold_on_host), the model has all in memory of its own.
 *
 * Tables that get rows for new tokens are in new memory in both cases, and the model has their vocabulary.
 *
 * When the parameters are destroyed, a fully trained model keeps the trained weights; one with single modules gets its
 * original weights back. */
#ifndef QR_RUNTIME_PASS_WHOLE_PARAMETERS_H
#define QR_RUNTIME_PASS_WHOLE_PARAMETERS_H

#include "runtime/layers/parameters.h"

typedef struct qr_whole_options {
    bool full;           /* every weight; a head that is the embedding's matrix is trained with it */
    const char *modules; /* else: names with commas ("lm_head,embed_tokens"); NULL: none. A head that is the embedding's
                            matrix becomes one of its own, as in PEFT */
    bool random;         /* full: begin from random weights instead of the model's */
    int64_t n_token_rows; /* wanted rows of embedding and head, where both are trained; never fewer than they have. New
                             rows begin at the mean of the old ones, or as random as these */
    double embedding_std; /* random: of the embeddings; 0: as of the other matrices, the config's initializer_range */
    uint64_t seed;
} qr_whole_options;

/* Chooses the modules and adds their tensors to the parameters; no device memory yet. Call it before LoRA is described,
 * which leaves out what is trained whole. QRUN_ERROR_ARGUMENT for a name that is not a module of the model, and where a
 * matrix to be trained is held quantised. */
qrun_status qr_whole_parameters_describe(qr_parameters *parameters, const qr_whole_options *options, qr_error *err);

/* Fills the masters, whose arena exists, from the model's files or at random, and lets the model use them. Call refresh
 * next. */
qrun_status qr_whole_parameters_create(qr_parameters *parameters, const qr_whole_options *options, qr_error *err);

/* The same without values, for a plan: memory for the matrices, and the model uses them until they are released. */
qrun_status qr_whole_parameters_reserve(qr_parameters *parameters, qr_error *err);
void qr_whole_parameters_release(qr_parameters *parameters); /* fine where nothing is reserved */

/* Writes the matrices from their masters: before the first step, and after every update. */
qrun_status qr_whole_parameters_refresh(qr_parameters *parameters, qr_workspace workspace, qr_error *err);
/* The same for layer l alone (−1: what belongs to none), where the masters are in host memory. */
qrun_status qr_whole_parameters_refresh_layer(qr_parameters *parameters, int64_t l, qr_error *err);

/* Whether a matrix of the model (by its address in it) is trained whole. */
bool qr_whole_is_trained(const qr_parameters *parameters, const qr_weight *matrix);

/* The gradient of a matrix [rows, cols] of the model; NULL: it is frozen. */
float *qr_whole_gradient(const qr_parameters *parameters, const qr_weight *matrix);
/* The same of the matrices [n] of a layer's experts: that of the first, and how many floats there are from one to the
 * next. */
float *qr_whole_expert_gradients(const qr_parameters *parameters, const qr_weight *matrices, int64_t n,
                                 int64_t *stride);

#endif
