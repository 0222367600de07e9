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

/* Blocks of GGML, which GGUF files hold and safetensors do not (quant/ggml.h decodes them):
 * X(enumerator suffix, GGML's name, elements of a block, bytes of a block) */
#define QR_BLOCK_DTYPES(X)      \
    X(Q4_0, "Q4_0", 32, 18)     \
    X(Q4_1, "Q4_1", 32, 20)     \
    X(Q5_0, "Q5_0", 32, 22)     \
    X(Q5_1, "Q5_1", 32, 24)     \
    X(Q8_0, "Q8_0", 32, 34)     \
    X(Q4_K, "Q4_K", 256, 144)   \
    X(Q5_K, "Q5_K", 256, 176)   \
    X(Q6_K, "Q6_K", 256, 210)   \
    X(IQ4_NL, "IQ4_NL", 32, 18) \
    X(MXFP4, "MXFP4", 32, 17)

typedef enum qr_dtype {
#define QR_X(suffix, name, bits) QR_DTYPE_##suffix,
    QR_DTYPES(QR_X)
#undef QR_X
#define QR_X(suffix, name, elements, bytes) QR_DTYPE_##suffix,
        QR_BLOCK_DTYPES(QR_X)
#undef QR_X
            QR_DTYPE_COUNT
} qr_dtype;

enum { QR_MAX_DIMS = 8 };

const char *qr_dtype_name(qr_dtype dtype); /* "F32" …; "?" for a value out of range */
int qr_dtype_bits(qr_dtype dtype);         /* 4 … 64; 0 for blocks */
/* Of the types of safetensors alone. */
bool qr_dtype_from_name(const char *name, size_t length, qr_dtype *dtype);

/* Elements and bytes of a block; both 0 for a type that is none. */
int qr_dtype_block_elements(qr_dtype dtype);
int qr_dtype_block_bytes(qr_dtype dtype);
static inline bool qr_dtype_is_blocks(qr_dtype dtype) { return dtype >= QR_DTYPE_Q4_0; }

/* Bytes per element of the types that fill whole bytes. */
static inline size_t qr_dtype_bytes(qr_dtype dtype) { return (size_t)qr_dtype_bits(dtype) / 8; }

#endif
