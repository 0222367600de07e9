/* What happens to every tensor of a model folder when an adapter is merged into it: kept, converted, merged, replaced
 * or left out. Nothing is computed here, but every error of the adapter is found here. */
#ifndef QR_RUNTIME_FOLDERS_MERGED_TENSORS_H
#define QR_RUNTIME_FOLDERS_MERGED_TENSORS_H

#include "loaders/adapter/adapter.h"
#include "loaders/files/safetensors_writer.h"
#include "loaders/files/stored_weight.h"
#include "runtime/model/model.h"

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* One matrix of a merged model: W + scale · B·A (Hu et al., LoRA, 2021), its rows then scaled to the adapter's
 * magnitudes where it is a DoRA (Liu et al., 2024). W is what the folder stores, or the
 * same quantised and dequantised. The sums are F32 as in PEFT, and each element of the result is rounded once. */
typedef struct qr_merge_matrix {
    qr_stored_weight stored; /* its desc is that of W: [rows, cols] */
    bool transposed;         /* the result is [cols, rows] (Conv1D), and so is a plain W */
    bool quantize;           /* quantise a plain W to `quant` and dequantise it first */
    qr_weight_format quant;
    const qr_adapter_module *module;   /* NULL: W alone */
    const qr_safetensors_tensor *base; /* W, where the adapter has it; NULL: it is the stored one */
    int64_t expert;                    /* of a module on experts: whose matrix it is */
    int64_t first_row, row_step;       /* the same: its row r has row first_row + r · row_step of B */
    int64_t wide_rows, first_column; /* not 0: the result is columns first_column + r · row_step of [cols, wide_rows] */
} qr_merge_matrix;

/* Writes the matrix, [rows, cols] or transposed, as `dtype` (F32, F16, BF16) to dst; or its columns of one that is
 * wider. QRUN_ERROR_INPUT where a value is not a number or too large for the type. Holds W's codes where it quantises,
 * else only a few rows. */
qrun_status qr_merge_matrix_compute(qr_backend *backend, const qr_merge_matrix *matrix, qr_dtype dtype, void *dst,
                                    qr_error *err);

/* Whether the values can be written as dtype: none is NaN or infinite after rounding. */
bool qr_merge_fits(const float *values, int64_t n, qr_dtype dtype);
qrun_status qr_merge_refuse_value(const char *name, qr_dtype dtype, qr_error *err);

/* ---- The list of tensors ----------------------------------------------------------------------------------------- */

/* A tensor of the new folder. */
typedef struct qr_merge_output {
    const qr_safetensors_tensor *source; /* whose values it has, or begins from */
    const qr_merge_matrix *matrix;       /* NULL: the source's own */
    int64_t n_matrices;                  /* of them, one after the other: more than one of a stack */
    int64_t n_parts;                     /* so many of them are columns of one matrix; else 1 */
} qr_merge_output;

typedef struct qr_merged_tensors {
    /* Set by the caller; lent. */
    qrun_model *model;
    const qr_safetensors *source;
    const qr_adapter *adapter;
    bool quantize; /* linear layers that are stored plain are quantised to `quant` and dequantised first */
    qr_weight_format quant;
    qr_dtype dtype;    /* of every floating-point tensor of the new folder */
    bool keeps_packed; /* experts in MXFP4 stay so. False once the list is made if the adapter changes any */

    qr_merge_matrix *matrices; /* those that may change; linear layers first, by slot */
    size_t n_matrices, n_linear;
    size_t n_merged_pairs; /* modules on experts that have found their matrices */
    int64_t n_replaced;    /* parameters that the adapter brings whole */
    qr_merge_output *outputs;
    qr_safetensors_spec *specs;                  /* [n_outputs], of the same tensors */
    char (*decoded_names)[QR_STORED_NAME_BYTES]; /* of stacks that are decoded */
    size_t n_decoded;
    size_t n_outputs;
    bool unties_head;      /* the tied head becomes a matrix of its own */
    qr_merge_matrix *head; /* of a tied model: its new head; NULL: head_source */
    const qr_safetensors_tensor *head_source;
    const qr_safetensors_tensor **replaced; /* [count of source]: the adapter's own tensor, or NULL */
    char head_name[QR_STORED_NAME_BYTES];
} qr_merged_tensors;

/* QRUN_ERROR_INPUT when the adapter was made for another model: no part of it is ignored silently. The caller ends with
 * qr_merged_tensors_free, on failure too. */
qrun_status qr_merged_tensors_list(qr_merged_tensors *merged, qr_error *err);
void qr_merged_tensors_free(qr_merged_tensors *merged);

/* The matrices of a layer's experts, of role QR_ROLE_EXPERT_GATE, UP or OUT: expert e's is *step · e after the first.
 */
const qr_merge_matrix *qr_merged_experts(const qr_merged_tensors *merged, int64_t layer, qr_tensor_role role,
                                         int64_t *step);

/* QRUN_ERROR_UNSUPPORTED for a folder of packed matrices: what is computed from them would have to be packed again. One
 * of experts in MXFP4 can be merged into. */
qrun_status qr_merge_refuse_packed(const qrun_model *model, qr_error *err);
static inline bool qr_merge_is_mxfp4(const qrun_model *model) {
    return model->config.quantization.packing.kind == QR_PACKING_MXFP4;
}

#endif
