/* Hashes for tables whose keys come from others: files, prompts. They are made under a key that each process draws once
 * at random, so nobody can choose keys of a table that collide. The order of such a table differs from run to run, and
 * nothing may depend on it. */
#ifndef QR_BASE_KEYED_HASH_H
#define QR_BASE_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct qr_hash_key {
    uint64_t k0, k1;
} qr_hash_key;

/* The same in every call. */
qr_hash_key qr_hash_key_of_process(void);

/* SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012). */
uint64_t qr_hash_keyed(const qr_hash_key *key, const void *bytes, size_t n_bytes);

/* Of one word: a permutation of all words between two additions of the key, at a third of the cost. */
static inline uint64_t qr_hash_keyed_word(const qr_hash_key *key, uint64_t word) {
    uint64_t hash = word + key->k0;
    hash = (hash ^ hash >> 30) * UINT64_C(0xBF58476D1CE4E5B9); /* the finaliser of SplitMix64 */
    hash = ((hash ^ hash >> 27) + key->k1) * UINT64_C(0x94D049BB133111EB);
    return hash ^ hash >> 31;
}

#endif
