/* Which tensor of a model folder holds which weight of the model. */
#ifndef QR_RUNTIME_MODEL_MODEL_TENSORS_H
#define QR_RUNTIME_MODEL_MODEL_TENSORS_H

#include <string.h>

#include "loaders/files/stored_weight.h"
#include "runtime/model/modules.h"

/* Sets model->prefix: the one under which the folder has the embedding; and model->family, where checkpoints of it have
 * one of two sets of names. QRUN_ERROR_INPUT where the folder has no embedding. */
qrun_status qr_model_find_prefix(qrun_model *model, const qr_safetensors *source, qr_error *err);

/* Settles shape.tied_head as transformers 5 does: a head in the folder that is not equal to the embedding is used,
 * whatever config.json says about tying. An equal one is a copy that some programs store. Needs the prefix. */
qrun_status qr_model_settle_head(qrun_model *model, const qr_safetensors *source, qr_error *err);

/* Whether the experts' choice has a bias, where the family's files may be without. Needs the prefix. */
void qr_model_settle_choice_bias(qrun_model *model, const qr_safetensors *source);

/* QRUN_ERROR_INPUT for a tensor inside the layers that the model would not read: config.json and weights do not belong
 * together, and the answers would be wrong without any error. Tensors elsewhere (an image encoder) are not checked.
 */
qrun_status qr_model_refuse_unknown_tensors(const qrun_model *model, const qr_safetensors *source, qr_error *err);

/* A bias of zeros in a module that has none: GPTQ's own layers have biases always. It is not read. */
bool qr_model_is_idle_bias(const qrun_model *model, const qr_safetensors_tensor *tensor);

/* Tensors that follow each other and belong to something that text does not need: an image encoder ("model.visual"),
 * heads that predict several tokens ("mtp"). */
typedef struct qr_left_out {
    const char *name; /* lent, with no 0 at its end */
    size_t name_bytes;
    int64_t n_tensors, total_bytes;
} qr_left_out;

/* The next of them from the folder's tensor *at on; moves *at past it. false: there are no more. */
bool qr_model_next_left_out(const qrun_model *model, const qr_safetensors *source, size_t *at, qr_left_out *part);

/* Sets model->left_out, their names. */
qrun_status qr_model_name_left_out(qrun_model *model, const qr_safetensors *source, qr_error *err);

/* The matrix [desc->rows, desc->cols] of a module as the folder stores it. */
qrun_status qr_model_find_stored(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                 int64_t layer, const qr_weight_desc *desc, qr_stored_weight *stored, qr_error *err);

/* The same of a module that is a matrix. A stack of matrices gives the slice that is the expert's. */
qrun_status qr_module_find_stored(const qrun_model *model, const qr_safetensors *source, const qr_module *module,
                                  qr_stored_weight *stored, qr_error *err);

/* Shapes in files; they return the number of dimensions. Of logarithms of decay rates (a_log_is_wide); and of a
 * convolution, as torch has one of every channel for itself. */
static inline int qr_wide_a_log_dims(int64_t n, int64_t dims[QR_MAX_DIMS]) {
    dims[0] = dims[1] = dims[3] = 1;
    dims[2] = n;
    return 4;
}
static inline int qr_model_conv_dims(const qrun_model *model, int64_t dims[3]) {
    const qr_recurrent_shape all = qr_recurrent_shape_of(&model->config);
    dims[0] = all.channels;
    dims[1] = 1;
    dims[2] = all.kernel;
    return 3;
}

/* Of what says how residual streams are mixed: of the router a row is as long as the stream, of others there is an
 * element for each stream. */
static inline int qr_stream_mix_dims(const qrun_model *model, qr_tensor_role role, int64_t n,
                                     int64_t dims[QR_MAX_DIMS]) {
    dims[1] = role == QR_ROLE_STREAM_ROUTER ? model->shape.hidden : model->shape.n_streams;
    dims[0] = n / dims[1];
    return 2;
}

/* Every which element of a stored vector is the module's: those of gate and up may be in turn. */
static inline int64_t qr_vector_step(const qrun_model *model, qr_tensor_role role) {
    const char *const *modules = model->family->modules;
    const bool is_either = role == QR_ROLE_EXPERT_GATE_BIAS || role == QR_ROLE_EXPERT_UP_BIAS;
    return is_either && strcmp(modules[QR_ROLE_EXPERT_GATE_BIAS], modules[QR_ROLE_EXPERT_UP_BIAS]) == 0 ? 2 : 1;
}

/* A vector as a folder stores it: one tensor, or of a convolution several, one after the other. */
typedef struct qr_stored_vector {
    const qr_safetensors_tensor *parts[QR_CONV_PARTS];
    int n_parts;
} qr_stored_vector;

static inline int64_t qr_stored_part_elements(const qr_safetensors_tensor *part) {
    int64_t n = 1;
    for (int i = 0; i < part->n_dims; i++) { n *= part->dims[i]; }
    return n;
}

/* The vector `suffix` ("weight", "bias") of a module as the folder stores it: n elements of a float type, or n times
 * qr_vector_step. */
qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, qr_stored_vector *vector,
                                  qr_error *err);

/* Of blocks of quantised weights, as a GGUF file has them, the type of most bytes ("Q8_0"); NULL: there are none. */
const char *qr_source_block_type(const qr_safetensors *source);

/* Whether files hold the matrix of a role as [in, out] (Conv1D). */
static inline bool qr_model_is_transposed(const qrun_model *model, qr_tensor_role role) {
    return model->family->transposed && !model->config.outputs_first && role >= QR_ROLE_Q;
}

/* dst [n_rows, cols] = rows [first, first + n_rows) of a matrix that is stored as [rows, cols] or, transposed, as
 * [cols, rows]. */
void qr_matrix_rows_to_f32(qr_dtype dtype, const void *data, int64_t rows, int64_t cols, bool transposed, int64_t first,
                           int64_t n_rows, float *dst);

/* The same of a matrix that is stored plain, which a slice of a stack may be. */
void qr_stored_rows_to_f32(const qr_stored_weight *stored, bool transposed, int64_t first, int64_t n_rows, float *dst);

#endif
