/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 * A number is a pure function of key and counter, so it never depends on how many came before it. */
#ifndef QR_BASE_RANDOM_H
#define QR_BASE_RANDOM_H

#include <stdint.h>

/* Four independent 32-bit numbers for (key, counter). Inline, and without a loop once compiled, so that a loop over
 * counters becomes vector instructions. */
static inline void qr_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53U * c0, product1 = (uint64_t)0xCD9E8D57U * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* A double in [0, 1) with 53 random bits for (seed, stream, index). */
double qr_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* A standard normal number (Box-Muller) for (seed, stream, index). */
double qr_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* FNV-1a over bytes, chained through `hash` (start with QR_HASH_START), then finalised by qr_hash_mix where good low
 * bits matter. Not for hostile keys: whoever uses it compares the keys too. */
#define QR_HASH_START UINT64_C(0xCBF29CE484222325)
uint64_t qr_hash_bytes(uint64_t hash, const void *bytes, uint64_t n_bytes);
uint64_t qr_hash_mix(uint64_t hash);
/* A sum over many bytes, eight at a time: 3 GB/s. Pieces chain as the whole does where all but the last have a length
 * divisible by 8. The same on every machine. */
uint64_t qr_hash_words(uint64_t hash, const void *bytes, uint64_t n_bytes);

#endif
