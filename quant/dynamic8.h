/* The dynamic 8-bit maps of bitsandbytes (7 exponent bits), signed and unsigned, and nearest-code lookup.
 * Dettmers et al., "8-bit optimizers via block-wise quantization", 2021. */
#ifndef QR_QUANT_DYNAMIC8_H
#define QR_QUANT_DYNAMIC8_H

#include <stdbool.h>
#include <stdint.h>

/* 256 ascending values, built once, thread-safe. signed: zero at 127, first −0.99296874, last 1.0. */
const float *qr_dynamic8_map(bool is_signed);

/* The nearest code to x in [-1, 1], as bitsandbytes' CUDA quantiser finds it: of two at the same distance, the even
 * one. */
uint8_t qr_dynamic8_encode(float x, bool is_signed);

/* What the encoder searches: x has a code above c exactly if x > bounds[c]; 255 ascending values. For kernels that
 * search for many codes at once. */
const float *qr_dynamic8_bounds(bool is_signed);

#endif
