/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 * A number is a pure function of key and counter, so that a draw never depends on how many came before it. */
#ifndef QR_BASE_RANDOM_H
#define QR_BASE_RANDOM_H

#include <stdint.h>

/* Four independent 32-bit numbers for (key, counter). */
void qr_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* A double in [0, 1) with 53 random bits for (seed, stream, index). */
double qr_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* A standard normal number (Box-Muller) for (seed, stream, index). */
double qr_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* FNV-1a over bytes, chained through `hash` (start with QR_HASH_START), then finalised by qr_hash_mix where good low
 * bits matter. Not for hostile keys: whoever uses it compares the keys too. */
#define QR_HASH_START UINT64_C(0xCBF29CE484222325)
uint64_t qr_hash_bytes(uint64_t hash, const void *bytes, uint64_t n_bytes);
uint64_t qr_hash_mix(uint64_t hash);

#endif
