#include "base/random.h"

#include <math.h>

static void sample(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    qr_philox(seed, counter, out);
}

static double to_unit(uint32_t high, uint32_t low) { return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53; }

double qr_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t out[4];
    sample(seed, stream, index, out);
    return to_unit(out[0], out[1]);
}

double qr_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t out[4];
    sample(seed, stream, index, out);
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

uint64_t qr_hash_words(uint64_t hash, const void *bytes, uint64_t n_bytes) {
    const unsigned char *p = bytes;
    for (; n_bytes >= 8; p += 8, n_bytes -= 8) {
        const uint64_t low = p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
        const uint64_t high = p[4] | (uint64_t)p[5] << 8 | (uint64_t)p[6] << 16 | (uint64_t)p[7] << 24;
        hash = qr_hash_mix(hash ^ (low | high << 32));
    }
    return qr_hash_bytes(hash, p, n_bytes);
}
