/* Floats of 8 and 4 bits, as the OCP formats define them: what quantised folders store weights and scales in. */
#ifndef QR_QUANT_SMALL_FLOATS_H
#define QR_QUANT_SMALL_FLOATS_H

#include <stdint.h>

#include "base/dtype.h"

/* The values of all codes of F8_E4M3 (no infinities, a NaN of each sign) or F8_E5M2. */
void qr_float8_values(qr_dtype dtype, float values[256]);

/* E2M1: the values of its 16 codes; the upper half is negative. */
extern const float qr_float4_values[16];

/* E8M0: a power of two, 2^(code − 127); 255 is NaN. */
float qr_e8m0_to_f32(uint8_t code);

#endif
