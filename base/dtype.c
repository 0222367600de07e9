#include "base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    int bits, block_elements, block_bytes;
} dtypes[QR_DTYPE_COUNT] = {
#define QR_X(suffix, name, bits) {name, bits, 0, 0},
    QR_DTYPES(QR_X)
#undef QR_X
#define QR_X(suffix, name, elements, bytes) {name, 0, elements, bytes},
        QR_BLOCK_DTYPES(QR_X)
#undef QR_X
};

const char *qr_dtype_name(qr_dtype dtype) { return (unsigned)dtype < QR_DTYPE_COUNT ? dtypes[dtype].name : "?"; }

int qr_dtype_bits(qr_dtype dtype) { return (unsigned)dtype < QR_DTYPE_COUNT ? dtypes[dtype].bits : 0; }

int qr_dtype_block_elements(qr_dtype dtype) {
    return (unsigned)dtype < QR_DTYPE_COUNT ? dtypes[dtype].block_elements : 0;
}

int qr_dtype_block_bytes(qr_dtype dtype) { return (unsigned)dtype < QR_DTYPE_COUNT ? dtypes[dtype].block_bytes : 0; }

bool qr_dtype_from_name(const char *name, size_t length, qr_dtype *dtype) {
    for (int i = 0; i < QR_DTYPE_COUNT && !qr_dtype_is_blocks((qr_dtype)i); i++) {
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) {
            *dtype = (qr_dtype)i;
            return true;
        }
    }
    return false;
}
