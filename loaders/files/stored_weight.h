/* A weight matrix as a model stores it: plain (F32, F16, BF16), or quantised by bitsandbytes (NF4, NF4
 * double-quantised, LLM.int8; loaders/files/bnb_tensors.h has the names). Blocks of GGML and packed matrices count as
 * plain: they are decoded as they are read. Where nothing else is asked for, F16 holds blocks, the type of their
 * scales, and BF16 packed ones. A packed matrix in MXFP4 is either held as it is, or decoded too. */
#ifndef QR_LOADERS_FILES_STORED_WEIGHT_H
#define QR_LOADERS_FILES_STORED_WEIGHT_H

#include "loaders/files/packed_weight.h"
#include "loaders/files/safetensors.h"
#include "quant/format.h"

enum { QR_STORED_NAME_BYTES = 256 };

typedef struct qr_stored_weight {
    qr_weight_desc desc;                /* format and block as stored; rows and cols as asked for */
    const qr_safetensors_tensor *codes; /* the weights themselves, or the codes in canonical order */
    const unsigned char *data;          /* of the matrix, in codes: all of them, or a slice of a stack of matrices */
    size_t n_bytes;                     /* its own */
    bool is_last;                       /* no other matrix follows in codes */
    int64_t wide_rows;                  /* not 0: `data` is [cols, wide_rows], and row r of the matrix its column */
    int64_t first_row, row_step;        /* first_row + r · row_step */
    const qr_safetensors_tensor *row_absmax, *absmax, *nested_absmax; /* NULL where the format has none */
    float nested_offset;
    qr_packed_weight packed;
} qr_stored_weight;

/* Whether rows can be read as floats, and so become any format. */
static inline bool qr_stored_can_decode(const qr_stored_weight *stored) {
    return qr_weight_is_plain(stored->desc.format) || stored->packed.kind != QR_PACKING_NONE;
}

/* Finds the matrix of `module` ("model.layers.0.mlp.up_proj"), which must be [rows, cols]; with `transposed` a plain
 * matrix is stored [cols, rows] (Conv1D), a quantised one cannot be. `packing`: of the folder, NULL for none.
 * Everything about it is checked: shapes, code book, block sizes. FP4 is refused by name. */
qrun_status qr_stored_weight_find(const qr_safetensors *file, const char *module, int64_t rows, int64_t cols,
                                  bool transposed, const qr_packing *packing, qr_stored_weight *stored, qr_error *err);

/* A stack of the matrices of all experts of a layer, with n_parts matrices of each: [E, n_parts · rows, cols], parts
 * one after the other. With in_turn their rows are in turn, and a stack that is not packed is wide: [E, cols, n_parts ·
 * rows]. With may_be_wide one whose sizes say so is wide too, its columns one part after the other. */
typedef struct qr_stack {
    const char *name;
    int64_t n_experts, n_parts;
    bool in_turn, may_be_wide;
} qr_stack;

/* What follows a stack's name in that of its codes. */
#define QR_MXFP4_CODES_SUFFIX "_blocks"

/* Whether the file has a stack of that name, packed or not. */
bool qr_stored_has_stack(const qr_safetensors *file, const char *name);
/* The matrix [rows, cols] that is a part of an expert. */
qrun_status qr_stored_slice_find(const qr_safetensors *file, const qr_stack *stack, int64_t expert, int64_t part,
                                 int64_t rows, int64_t cols, const qr_packing *packing, qr_stored_weight *stored,
                                 qr_error *err);

/* The scales, copied to aligned memory of so many bytes. */
size_t qr_stored_scales_bytes(const qr_stored_weight *stored);
qr_weight_scales qr_stored_scales_copy(const qr_stored_weight *stored, void *memory);
/* The same in memory of their own. Zero-initialise; qr_stored_scales_free frees them. */
typedef struct qr_stored_scales {
    qr_weight_scales scales;
    void *memory;
} qr_stored_scales;
qrun_status qr_stored_scales_read(const qr_stored_weight *stored, qr_stored_scales *scales, qr_error *err);
void qr_stored_scales_free(qr_stored_scales *scales);

#endif
