/* SHA-256 (FIPS 180-4): names for content. Unlike the hashes of random.h, nobody can find two contents of one digest,
 * so equal digests need no further comparison. */
#ifndef QR_BASE_DIGEST_H
#define QR_BASE_DIGEST_H

#include <stdint.h>

enum { QR_DIGEST_BYTES = 32, QR_DIGEST_TEXT_BYTES = 2 * QR_DIGEST_BYTES + 1 };

typedef struct qr_digest {
    unsigned char bytes[QR_DIGEST_BYTES];
} qr_digest;

typedef struct qr_digest_state {
    uint32_t words[8];
    uint64_t n_bytes; /* so far */
    unsigned char block[64];
} qr_digest_state;

void qr_digest_begin(qr_digest_state *state);
void qr_digest_add(qr_digest_state *state, const void *bytes, uint64_t n_bytes);
qr_digest qr_digest_end(qr_digest_state *state);

/* In hexadecimal, NUL-terminated. */
void qr_digest_text(const qr_digest *digest, char text[QR_DIGEST_TEXT_BYTES]);

#endif
