/* 4-bit NormalFloat (Dettmers et al., QLoRA, 2023) as bitsandbytes computes it on CUDA, bit for bit, in scalar C.
 * Element 2i of the flattened matrix is the high nibble of byte i. */
#ifndef QR_QUANT_NF4_H
#define QR_QUANT_NF4_H

#include <stdint.h>

extern const float qr_nf4_code[16];      /* ascending; code 7 is 0 */
extern const float qr_nf4_midpoints[15]; /* value > midpoint[i] takes a code above i; a tie takes the lower one */

/* The code nearest to x in [-1, 1] by the strict comparisons above. */
uint8_t qr_nf4_encode(float x);

/* Quantises n elements (any n; the last block may be short) in blocks of `block`. codes [ceil(n / 2)], absmax
 * [ceil(n / block)]. The spare nibble of an odd n is 7, that of a zero after the end. An all-zero block gives absmax 0
 * and codes 7 (value 0). A NaN takes code 0 and is not seen by absmax; an infinity makes absmax infinite; the caller
 * refuses such weights beforehand if it cares. */
void qr_nf4_quantize(const float *src, int64_t n, int block, uint8_t *codes, float *absmax);

/* dst[i] = code · absmax in F32 for elements [first, first + n) of the flattened matrix. */
void qr_nf4_dequantize(const uint8_t *codes, const float *absmax, int block, int64_t first, int64_t n, float *dst);

/* Double quantisation of n_blocks absmax values: offset = their mean (float64 sum, rounded once), then blocks of 256 by
 * the signed dynamic map. codes [n_blocks], nested_absmax [ceil(n_blocks / 256)]. */
float qr_nf4_nested_offset(const float *absmax, int64_t n_blocks);
void qr_nf4_nest(const float *absmax, int64_t n_blocks, float offset, uint8_t *codes, float *nested_absmax);
/* The inverse for blocks [first, first + n): map[code] · nested_absmax + offset, each operation rounded to F32. */
void qr_nf4_unnest(const uint8_t *codes, const float *nested_absmax, float offset, int64_t first, int64_t n,
                   float *absmax);

#endif
