/* The dynamic 8-bit maps of bitsandbytes (7 exponent bits), signed and unsigned, and nearest-code lookup.
 * Dettmers et al., "8-bit optimizers via block-wise quantization", 2021. */
#ifndef QR_QUANT_DYNAMIC8_H
#define QR_QUANT_DYNAMIC8_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* 256 ascending values, built once, thread-safe. signed: zero at 127, first −0.99296874, last 1.0. */
const float *qr_dynamic8_map(bool is_signed);

/* The nearest code to x in [-1, 1], as bitsandbytes' CUDA quantiser finds it: of two at the same distance, the even
 * one. */
uint8_t qr_dynamic8_encode(float x, bool is_signed);

/* What the encoder searches: x has a code above c exactly if x > bounds[c]; 255 ascending values, then infinity. For
 * kernels that search for many codes at once. */
const float *qr_dynamic8_bounds(bool is_signed);

/* Where such a search may begin. The first 16 bits of a float are a cell, and no cell has more than one of the bounds
 * within it. So with c = cells[qr_dynamic8_cell(x)] the code of x is c + (x > bounds[c]), unless x is NaN. */
enum {
    QR_DYNAMIC8_FIRST_CELL = 0x3480, /* from 2^-22 on; all below, to which no code but that of 0 is near, are one */
    QR_DYNAMIC8_LAST_CELL = 0x3F80,  /* from 1 on, which is the greatest code's */
    QR_DYNAMIC8_CELLS = QR_DYNAMIC8_LAST_CELL - QR_DYNAMIC8_FIRST_CELL + 2 /* of each sign */
};
const uint8_t *qr_dynamic8_cells(bool is_signed); /* [2, QR_DYNAMIC8_CELLS]: of positive numbers, then negative ones */

static inline uint32_t qr_dynamic8_cell(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t first = QR_DYNAMIC8_FIRST_CELL, last = QR_DYNAMIC8_LAST_CELL, high = bits >> 16 & 0x7FFF;
    const uint32_t cell = high < first ? 0 : (high < last ? high : last) - first + 1;
    return (bits >> 31) * (uint32_t)QR_DYNAMIC8_CELLS + cell;
}

#endif
