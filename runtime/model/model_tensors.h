/* Which tensor of a model folder holds which weight of the model. */
#ifndef QR_RUNTIME_MODEL_MODEL_TENSORS_H
#define QR_RUNTIME_MODEL_MODEL_TENSORS_H

#include "loaders/files/stored_weight.h"
#include "runtime/model/model.h"

/* Sets model->prefix: the one under which the folder has the embedding. QRUN_ERROR_INPUT where it has none. */
qrun_status qr_model_find_prefix(qrun_model *model, const qr_safetensors *source, qr_error *err);

/* QRUN_ERROR_INPUT for a tensor inside the layers that the model would not read: config.json and weights do not belong
 * together, and the answers would be wrong without any error. Tensors elsewhere (an image encoder) are not checked.
 */
qrun_status qr_model_refuse_unknown_tensors(const qrun_model *model, const qr_safetensors *source, qr_error *err);

/* The matrix [desc->rows, desc->cols] of a module as the folder stores it. */
qrun_status qr_model_find_stored(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                 int64_t layer, const qr_weight_desc *desc, qr_stored_weight *stored, qr_error *err);

/* The vector `suffix` ("weight", "bias") of a module as the folder stores it: n elements of a float type. */
qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, const qr_safetensors_tensor **tensor,
                                  qr_error *err);

/* Whether files hold the matrix of a role as [in, out] (Conv1D). */
static inline bool qr_model_is_transposed(const qrun_model *model, qr_tensor_role role) {
    return model->family->transposed && role >= QR_ROLE_Q;
}

/* dst [n_rows, cols] = rows [first, first + n_rows) of a matrix that is stored as [rows, cols] or, transposed, as
 * [cols, rows]. */
void qr_matrix_rows_to_f32(qr_dtype dtype, const void *data, int64_t rows, int64_t cols, bool transposed, int64_t first,
                           int64_t n_rows, float *dst);

#endif
