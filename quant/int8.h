/* Row-wise INT8 as LLM.int8 stores weights (Dettmers et al., 2022): the row is cast to F16 first, SCB is its absolute
 * maximum, q = rint(w · (127 · (1 / SCB))), and w ≈ q · SCB · (1 / 127); each operation rounded to F32. */
#ifndef QR_QUANT_INT8_H
#define QR_QUANT_INT8_H

#include <stdint.h>

/* Quantises one row of n elements; returns SCB. An all-zero row gives zeros and SCB 0. */
float qr_int8_quantize_row(const float *src, int64_t n, int8_t *codes);
/* Its two steps, for rows that arrive in pieces: the absolute maximum after the cast to F16, and the codes. An element
 * that is NaN, or infinite in F16, is not on the scale: its code is 0. */
float qr_int8_absmax(const float *src, int64_t n);
void qr_int8_encode(const float *src, int64_t n, float row_absmax, int8_t *codes);

void qr_int8_dequantize_row(const int8_t *codes, float row_absmax, int64_t n, float *dst);

#endif
