#include "base/random.h"

#include <math.h>

static void multiply(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
    const uint64_t product = (uint64_t)a * b;
    *high = (uint32_t)(product >> 32);
    *low = (uint32_t)product;
}

void qr_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint32_t high0, low0, high1, low1;
        multiply(0xD2511F53U, c0, &high0, &low0);
        multiply(0xCD9E8D57U, c2, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void draw(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    qr_philox(seed, counter, out);
}

static double to_unit(uint32_t high, uint32_t low) {
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

double qr_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t out[4];
    draw(seed, stream, index, out);
    return to_unit(out[0], out[1]);
}

double qr_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t out[4];
    draw(seed, stream, index, out);
    const double radius = sqrt(-2.0 * log(1.0 - to_unit(out[0], out[1])));
    return radius * cos(6.283185307179586 * to_unit(out[2], out[3]));
}

uint64_t qr_hash_bytes(uint64_t hash, const void *bytes, uint64_t n_bytes) {
    const unsigned char *p = bytes;
    for (uint64_t i = 0; i < n_bytes; i++) { hash = (hash ^ p[i]) * UINT64_C(0x100000001B3); }
    return hash;
}

uint64_t qr_hash_mix(uint64_t hash) { /* the finaliser of SplitMix64 (Steele, Lea, Flood 2014) */
    hash = (hash ^ hash >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94D049BB133111EB);
    return hash ^ hash >> 31;
}
