/* Element types of tensors in files and in memory, under the names safetensors gives them. */
#ifndef QR_BASE_DTYPE_H
#define QR_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(enumerator suffix, safetensors name, bits per element) */
#define QR_DTYPES(X)         \
    X(F32, "F32", 32)        \
    X(F16, "F16", 16)        \
    X(BF16, "BF16", 16)      \
    X(I8, "I8", 8)           \
    X(U8, "U8", 8)           \
    X(I32, "I32", 32)        \
    X(I64, "I64", 64)        \
    X(F64, "F64", 64)        \
    X(I16, "I16", 16)        \
    X(U16, "U16", 16)        \
    X(U32, "U32", 32)        \
    X(U64, "U64", 64)        \
    X(BOOL, "BOOL", 8)       \
    X(F8_E4M3, "F8_E4M3", 8) \
    X(F8_E5M2, "F8_E5M2", 8) \
    X(F8_E8M0, "F8_E8M0", 8) \
    X(F6_E2M3, "F6_E2M3", 6) \
    X(F6_E3M2, "F6_E3M2", 6) \
    X(F4, "F4", 4)           \
    X(C64, "C64", 64)

typedef enum qr_dtype {
#define QR_X(suffix, name, bits) QR_DTYPE_##suffix,
    QR_DTYPES(QR_X)
#undef QR_X
        QR_DTYPE_COUNT
} qr_dtype;

enum { QR_MAX_DIMS = 8 };

const char *qr_dtype_name(qr_dtype dtype); /* "F32" …; "?" for a value out of range */
int qr_dtype_bits(qr_dtype dtype);         /* 4 … 64 */
bool qr_dtype_from_name(const char *name, size_t length, qr_dtype *dtype);

/* Bytes per element of the types that fill whole bytes. */
static inline size_t qr_dtype_bytes(qr_dtype dtype) { return (size_t)qr_dtype_bits(dtype) / 8; }

#endif
