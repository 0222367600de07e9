/* The block formats of GGML that GGUF files hold (llama.cpp, ggml-quants.c), one after the other along a row. Decoding
 * gives the floats of the Python package gguf, to the bit: the same products and sums in the same order. Encoding gives
 * its bytes. */
#ifndef QR_QUANT_GGML_H
#define QR_QUANT_GGML_H

#include <stdint.h>

#include "base/dtype.h"

enum { QR_GGML_MAX_BLOCK = 256 /* elements */ };

/* dst[n_blocks · elements of a block] = the blocks of a type of QR_BLOCK_DTYPES; at any alignment. */
void qr_ggml_dequantize(qr_dtype dtype, const void *blocks, int64_t n_blocks, float *dst);

/* Elements [first, first + n) of a matrix of blocks, whose rows begin at a block. */
void qr_ggml_dequantize_range(qr_dtype dtype, const void *blocks, int64_t first, int64_t n, float *dst);

/* The inverse, for Q8_0 and Q4_0. Values are finite and at most as large as F16 can be. */
void qr_ggml_quantize(qr_dtype dtype, const float *src, int64_t n_blocks, void *blocks);

#endif
