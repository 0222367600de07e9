#include "base/digest.h"

#include <stddef.h>
#include <string.h>

static const uint32_t CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t read_word(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void put_word(unsigned char *p, uint32_t word) {
    for (int i = 0; i < 4; i++) { p[i] = (unsigned char)(word >> (24 - 8 * i)); }
}

static void add_block(uint32_t words[8], const unsigned char *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) { w[i] = read_word(block + (ptrdiff_t)(4 * i)); }
    for (int i = 16; i < 64; i++) {
        const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, words, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        const uint32_t t1 = v[7] + s1 + choice + CONSTANTS[i] + w[i];
        const uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++) { words[i] += v[i]; }
}

void qr_digest_begin(qr_digest_state *state) {
    *state = (qr_digest_state){
        .words = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void qr_digest_add(qr_digest_state *state, const void *bytes, uint64_t n_bytes) {
    const unsigned char *p = bytes;
    for (uint64_t left = n_bytes; left > 0;) {
        const uint64_t used = state->n_bytes % sizeof state->block, room = sizeof state->block - used;
        const uint64_t n = left < room ? left : room;
        memcpy(state->block + used, p, n);
        state->n_bytes += n;
        p += n;
        left -= n;
        if (n == room) { add_block(state->words, state->block); }
    }
}

qr_digest qr_digest_end(qr_digest_state *state) {
    static const unsigned char padding[64] = {0x80};
    const uint64_t n_bits = 8 * state->n_bytes, used = state->n_bytes % 64;
    unsigned char length[8];
    qr_digest digest;
    put_word(length, (uint32_t)(n_bits >> 32));
    put_word(length + 4, (uint32_t)n_bits);
    qr_digest_add(state, padding, used < 56 ? 56 - used : 120 - used);
    qr_digest_add(state, length, sizeof length);
    for (int i = 0; i < 8; i++) { put_word(digest.bytes + (ptrdiff_t)(4 * i), state->words[i]); }
    return digest;
}

void qr_digest_text(const qr_digest *digest, char text[QR_DIGEST_TEXT_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < QR_DIGEST_BYTES; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    text[QR_DIGEST_TEXT_BYTES - 1] = '\0';
}
