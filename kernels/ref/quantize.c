/* quantize: the source is converted to F32 piece by piece and passed to quant/. */
#include "base/half.h"
#include "base/sizes.h"
#include "kernels/ref/ref.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { PIECE = 4096 }; /* elements; the largest NF4 block */

static void load_piece(const qr_quantize_args *args, int64_t first, int64_t n, float *piece) {
    for (int64_t i = 0; i < n; i++) { piece[i] = qr_ref_load(args->src, args->src_dtype, first + i); }
}

static void quantize_nf4(const qr_quantize_args *args) {
    float piece[PIECE];
    const int64_t n = args->n_rows * args->cols;
    for (int64_t first = 0; first < n; first += PIECE) {
        const int64_t length = qr_min(PIECE, n - first);
        load_piece(args, first, length, piece);
        qr_nf4_quantize(piece, length, args->block, (uint8_t *)args->codes + first / 2,
                        args->absmax + first / args->block);
    }
}

static void quantize_int8(const qr_quantize_args *args) {
    float piece[PIECE];
    for (int64_t row = 0; row < args->n_rows; row++) {
        const int64_t begin = row * args->cols;
        float absmax = 0.0F;
        for (int64_t c = 0; c < args->cols; c += PIECE) {
            const int64_t length = qr_min(PIECE, args->cols - c);
            load_piece(args, begin + c, length, piece);
            const float largest = qr_int8_absmax(piece, length);
            absmax = largest > absmax ? largest : absmax;
        }
        args->absmax[row] = absmax;
        for (int64_t c = 0; c < args->cols; c += PIECE) {
            const int64_t length = qr_min(PIECE, args->cols - c);
            load_piece(args, begin + c, length, piece);
            qr_int8_encode(piece, length, absmax, (int8_t *)args->codes + begin + c);
        }
    }
}

static void convert(const qr_quantize_args *args, qr_dtype dtype) {
    for (int64_t i = 0; i < args->n_rows * args->cols; i++) {
        qr_ref_store(args->codes, dtype, i, (double)qr_ref_load(args->src, args->src_dtype, i));
    }
}

void qr_ref_quantize(const qr_quantize_args *args, void *workspace) {
    (void)workspace;
    switch (args->format) {
        case QR_WEIGHT_NF4:
        case QR_WEIGHT_NF4_DQ: quantize_nf4(args); break;
        case QR_WEIGHT_INT8: quantize_int8(args); break;
        default: convert(args, qr_ref_plain_dtype(args->format)); break;
    }
}
