/* Matrices stored as small codes with scales in tensors of their own. They are decoded to F32 row by row while they are
 * read, and then held as whatever is asked for. Only MXFP4 is a format that kernels compute with (quant/format.h): it
 * can be held as it is, too.
 *
 * Formats: OCP MX; transformers (fp8, mxfp4); AutoGPTQ and GPTQModel; AutoAWQ;
 * github.com/vllm-project/compressed-tensors (int, int8, float8, nvfp4). */
#ifndef QR_LOADERS_FILES_PACKED_WEIGHT_H
#define QR_LOADERS_FILES_PACKED_WEIGHT_H

#include "loaders/files/safetensors.h"
#include "quant/format.h"

/* A word is 32 bits, its first code in the lowest ones. G: groups of columns, each with a scale for every row. */
typedef enum qr_packing_kind {
    QR_PACKING_NONE,
    QR_PACKING_FP8,    /* <module>.weight [rows, cols] in F8 and .weight_scale_inv, which multiplies it */
    QR_PACKING_MXFP4,  /* stacks of experts alone: <stack>_blocks [E, rows, cols / 32, 16], two E2M1 codes a byte, the
                        * lower one first, and <stack>_scales [E, rows, cols / 32] in E8M0 */
    QR_PACKING_GPTQ,   /* .qweight: words [cols / 8, rows] of codes along columns; .qzeros: words [G, rows / 8] of codes
                        * along rows; .scales [G, rows]; .g_idx [cols], if columns are not in order of their groups */
    QR_PACKING_AWQ,    /* .qweight: words [cols, rows / 8] of codes along rows, those of rows 0 2 4 6 1 3 5 7; .qzeros:
                        * the same [G, rows / 8]; .scales [G, rows] */
    QR_PACKING_INT,    /* .weight_packed: words [rows, cols / 8] of codes along columns, the last one padded;
                        * .weight_scale [rows, G]; .weight_zero_point: words [rows / 8, G] of codes along rows, the last
                        * one padded; .weight_g_idx [cols]; .weight_shape */
    QR_PACKING_INT8,   /* .weight [rows, cols] in I8, .weight_scale and .weight_zero_point */
    QR_PACKING_FLOAT8, /* .weight [rows, cols] in F8 and .weight_scale, which multiplies it */
    QR_PACKING_LATENT, /* of GGUF: two tensors, of keys [H, cols, plain_dim] and of values [H, value_dim, cols]. Rows
                        * are those of keys and then of values for each head */
    QR_PACKING_NVFP4   /* .weight_packed [rows, cols / 2], two E2M1 codes a byte; .weight_scale [rows, cols / 16] in
                        * E4M3, divided by .weight_global_scale */
} qr_packing_kind;

enum { QR_NVFP4_BLOCK = 16 };

/* What config.json says of a folder's packed matrices. */
typedef struct qr_packing {
    qr_packing_kind kind;
    int64_t block_rows, block_cols; /* a scale is for a block of this size; 0: for the whole matrix */
    int bits;                       /* GPTQ, AWQ and INT: of a code, 4 or 8 */
    bool has_zeros;                 /* INT and INT8: a zero point beside each scale. GPTQ and AWQ always have it. */
    bool is_reordered;              /* GPTQ: desc_act, which needs g_idx */
    bool zeros_less_one;            /* GPTQ: words of zero points are less 1 in every code */
    struct qr_packing *next; /* INT and below: another that matrices of the folder have; NULL: no more. Owned by the
                              * config of the folder */
} qr_packing;

const char *qr_packing_kind_name(qr_packing_kind kind); /* "fp8"; as quantization_config names it */
/* The same of a folder: "mixed-precision" where its matrices are of several kinds. */
const char *qr_packing_name(const qr_packing *packing);

/* One matrix [rows, cols]. Its row r is row first_row + r · row_step of what is stored, which may be several matrices
 * in one. */
typedef struct qr_packed_weight {
    qr_packing_kind kind; /* NONE: the matrix is stored otherwise */
    bool is_ggml;         /* MXFP4 of a GGUF file: codes are blocks of QR_DTYPE_MXFP4, which have their scales */
    int64_t rows, cols, first_row, row_step;
    const unsigned char *codes;
    qr_dtype code_dtype;
    const qr_safetensors_tensor *scale_tensor;
    const unsigned char *scales; /* in scale_tensor: [blocks of rows, blocks of cols] */
    int64_t block_rows, block_cols;
    int bits;
    const qr_safetensors_tensor *zeros;  /* NULL: none */
    const qr_safetensors_tensor *groups; /* the group of each column, in I32; NULL: they are blocks in order */
    int64_t n_groups;
    const qr_latent_keys *keys; /* LATENT; codes are the values */
    uint32_t zero_step;         /* added to every word of zero points */
    float global_scale;         /* divides every scale */
} qr_packed_weight;

/* Whether `tensor` has the codes of a packed matrix: a folder leaves some matrices as they were. */
bool qr_packing_has_codes(const qr_packing *packing, const qr_safetensors_tensor *tensor);

/* The codes of a module that is packed; NULL: it is stored otherwise. */
const qr_safetensors_tensor *qr_packed_module_codes(const qr_safetensors *file, const qr_packing *packing,
                                                    const char *module);
/* Whether the tensor of that name belongs to the module with these codes and to nothing else: scales, zero points, or
 * the scales of its inputs. */
bool qr_packed_module_has(qr_packing_kind kind, const qr_safetensors_tensor *codes, const char *name);
/* Gives the matrix [rows, cols] of the module that has these codes. QRUN_ERROR_INPUT, with the tensor's name, for parts
 * that are missing, of another shape than `packing` says, or with columns of a group that is not there.
 *
 * Of several packings a matrix has the one that its tensors fit. QRUN_ERROR_UNSUPPORTED where two of them would read
 * the same tensors as different values. */
qrun_status qr_packed_module_find(const qr_safetensors *file, const qr_packing *packing, const char *module,
                                  const qr_safetensors_tensor *codes, int64_t rows, int64_t cols,
                                  qr_packed_weight *packed, qr_error *err);

/* The matrices [rows, cols] that `codes` holds, one after the other, and the scales that belong to them in the tensor
 * `scales_name`: one grid for each. Gives matrix `index`. QRUN_ERROR_INPUT for scales that are missing, or of another
 * grid than `packing` says. */
qrun_status qr_packed_weight_find(const qr_safetensors *file, const qr_packing *packing,
                                  const qr_safetensors_tensor *codes, const char *scales_name, int64_t rows,
                                  int64_t cols, int64_t index, qr_packed_weight *packed, qr_error *err);

/* dst [n_rows, cols] = rows [first, first + n_rows). */
void qr_packed_weight_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, float *dst);
/* The same rows of MXFP4 in canonical form: codes [n_rows, cols / 2] and scales [n_rows, cols / 32]. */
void qr_packed_weight_mxfp4_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, uint8_t *codes,
                                 uint8_t *scales);
/* QRUN_ERROR_INPUT, with the tensor's name, where a scale of these rows is in E8M0 and not a number. */
qrun_status qr_packed_weight_check_scales(const qr_packed_weight *packed, int64_t first, int64_t n_rows, qr_error *err);

#endif
