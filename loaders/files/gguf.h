/* A GGUF file of llama.cpp (versions 2 and 3, little-endian): metadata by key, and the tensors as the file describes
 * them. Mapped read-only and checked completely before use: lengths, types, unique keys, alignment, tensors that lie in
 * the file and do not overlap. What the metadata means is loaders/source.
 * Format: github.com/ggml-org/ggml, docs/gguf.md. Writing is loaders/files/gguf_writer.h. */
#ifndef QR_LOADERS_FILES_GGUF_H
#define QR_LOADERS_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file_map.h"
#include "base/status.h"

/* X(enumerator suffix, name in messages, bytes of a value; 0: it says its own length). In the order of the format. */
#define QR_GGUF_TYPES(X) \
    X(U8, "u8", 1)       \
    X(I8, "i8", 1)       \
    X(U16, "u16", 2)     \
    X(I16, "i16", 2)     \
    X(U32, "u32", 4)     \
    X(I32, "i32", 4)     \
    X(F32, "f32", 4)     \
    X(BOOL, "bool", 1)   \
    X(STRING, "text", 0) \
    X(ARRAY, "list", 0)  \
    X(U64, "u64", 8)     \
    X(I64, "i64", 8)     \
    X(F64, "f64", 8)

typedef enum qr_gguf_type {
#define QR_X(suffix, name, bytes) QR_GGUF_##suffix,
    QR_GGUF_TYPES(QR_X)
#undef QR_X
        QR_GGUF_TYPE_COUNT
} qr_gguf_type;

/* Bytes of the file, not NUL-terminated. They may change while they are read; the length does not. */
typedef struct qr_gguf_text {
    const char *bytes;
    size_t n;
} qr_gguf_text;

/* The number of a tensor type in the format, for the types that are read; false for others. */
bool qr_gguf_dtype(uint32_t number, qr_dtype *dtype);
uint32_t qr_gguf_dtype_number(qr_dtype dtype); /* of F32, F16, BF16 and blocks */

typedef struct qr_gguf_tensor {
    qr_gguf_text name;
    qr_dtype dtype;
    int n_dims;
    int64_t dims[4]; /* row-major: the file has them the other way round */
    const unsigned char *data;
    size_t n_bytes;
} qr_gguf_tensor;

typedef struct qr_gguf qr_gguf;

/* Whether it is a regular file that begins as GGUF does. */
bool qr_gguf_recognise(const char *path);

/* QRUN_ERROR_INPUT for anything malformed; QRUN_ERROR_UNSUPPORTED for other versions, big-endian files, tensor types
 * that are not read, and one of several parts. */
qrun_status qr_gguf_open(const char *path, qr_gguf **file, qr_error *err);
void qr_gguf_close(qr_gguf *file); /* NULL is fine */

const char *qr_gguf_path(const qr_gguf *file);
size_t qr_gguf_tensor_count(const qr_gguf *file);
const qr_gguf_tensor *qr_gguf_get_tensor(const qr_gguf *file, size_t i);          /* in the file's order */
const qr_gguf_tensor *qr_gguf_find_tensor(const qr_gguf *file, const char *name); /* NULL when absent */

/* Hands the map over to its next owner; what was lent from it stays valid there. */
qr_file_map qr_gguf_take_map(qr_gguf *file);
/* QRUN_ERROR_IO when the file was cut short, so that what was read may be zeros. */
qrun_status qr_gguf_check(const qr_gguf *file, qr_error *err);

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

bool qr_gguf_has(const qr_gguf *file, const char *key);

/* Absent leaves *value untouched and succeeds; another type, or a value out of [low, high], fails with a message that
 * names file and key. An integer may have any integer type, a number any type of number. */
qrun_status qr_gguf_get_int(const qr_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value,
                            qr_error *err);
qrun_status qr_gguf_get_double(const qr_gguf *file, const char *key, double low, double high, double *value,
                               qr_error *err);
qrun_status qr_gguf_get_bool(const qr_gguf *file, const char *key, bool *value, qr_error *err);
qrun_status qr_gguf_get_text(const qr_gguf *file, const char *key, qr_gguf_text *value, qr_error *err);

/* Lists, in new qr_alloc'ed arrays; absent gives NULL and 0. Integers of any type. */
qrun_status qr_gguf_get_texts(const qr_gguf *file, const char *key, qr_gguf_text **values, size_t *n, qr_error *err);
qrun_status qr_gguf_get_ints(const qr_gguf *file, const char *key, int64_t **values, size_t *n, qr_error *err);
qrun_status qr_gguf_get_floats(const qr_gguf *file, const char *key, float **values, size_t *n, qr_error *err);
/* Whether the value of the key is a list. */
bool qr_gguf_is_list(const qr_gguf *file, const char *key);

/* Fails with "<path>: <key> is missing". */
qrun_status qr_gguf_fail_missing(const qr_gguf *file, const char *key, qr_error *err);

static inline bool qr_gguf_text_is(qr_gguf_text text, const char *other) {
    size_t i = 0;
    while (i < text.n && other[i] != '\0' && text.bytes[i] == other[i]) { i++; }
    return i == text.n && other[i] == '\0';
}

#endif
