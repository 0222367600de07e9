#include "base/keyed_hash.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static qr_hash_key process_key;
static pthread_once_t drawn = PTHREAD_ONCE_INIT;

/* Where the kernel has no random numbers yet, the time and where this code lies are hard to guess too. */
static void draw(void) {
    if (getrandom(&process_key, sizeof process_key, GRND_NONBLOCK) == (ssize_t)sizeof process_key) { return; }
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    process_key.k0 = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec;
    process_key.k1 = (uint64_t)(uintptr_t)&now ^ (uint64_t)(uintptr_t)&process_key << 20;
}

qr_hash_key qr_hash_key_of_process(void) {
    (void)pthread_once(&drawn, draw);
    return process_key;
}

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void round_of(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

uint64_t qr_hash_keyed(const qr_hash_key *key, const void *bytes, size_t n_bytes) {
    uint64_t v[4] = {key->k0 ^ UINT64_C(0x736F6D6570736575), key->k1 ^ UINT64_C(0x646F72616E646F6D),
                     key->k0 ^ UINT64_C(0x6C7967656E657261), key->k1 ^ UINT64_C(0x7465646279746573)};
    const unsigned char *at = bytes;
    uint64_t last = (uint64_t)n_bytes << 56;
    for (; n_bytes >= 8; at += 8, n_bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        v[3] ^= word;
        round_of(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < n_bytes; i++) { last |= (uint64_t)at[i] << 8 * i; }
    v[3] ^= last;
    round_of(v);
    v[0] ^= last;
    v[2] ^= 0xFF;
    for (int i = 0; i < 3; i++) { round_of(v); }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
