/* Tensors in safetensors files, mapped read-only and checked completely before anything is used: header of at most
 * 100 MB, unique names, known types, sizes equal to shape × type, data that the tensors cover exactly once and whole.
 * Format: github.com/huggingface/safetensors. Writing is loaders/files/safetensors_writer.h. */
#ifndef QR_LOADERS_FILES_SAFETENSORS_H
#define QR_LOADERS_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum { QR_SAFETENSORS_MAX_HEADER_BYTES = 100000000, QR_SAFETENSORS_MAX_SHARDS = 1000 };

/* One tensor, lent by the qr_safetensors it came from. */
typedef struct qr_safetensors_tensor {
    const char *name;
    qr_dtype dtype;
    int n_dims;
    int64_t dims[QR_MAX_DIMS]; /* row-major; a scalar has none */
    const unsigned char *data; /* little-endian, in the map; any alignment, because the format promises none */
    size_t n_bytes;
    int shard; /* for qr_safetensors_shard_path */
} qr_safetensors_tensor;

/* Sets of types for qr_safetensors_require. */
typedef uint32_t qr_dtype_set;
#define QR_DTYPE_BIT(dtype) ((qr_dtype_set)1 << (dtype))
#define QR_DTYPES_FLOAT (QR_DTYPE_BIT(QR_DTYPE_F32) | QR_DTYPE_BIT(QR_DTYPE_F16) | QR_DTYPE_BIT(QR_DTYPE_BF16))

typedef struct qr_safetensors qr_safetensors;

/* Opens one file, or a folder with model.safetensors or else model.safetensors.index.json and its shards. In a
 * sharded model every tensor of the index must be in the shard that the index names. QRUN_ERROR_INPUT for anything
 * malformed, QRUN_ERROR_NOT_FOUND when there is nothing to open. Reading it is thread-safe from then on. */
qrun_status qr_safetensors_open(const char *path, qr_safetensors **file, qr_error *err);
void qr_safetensors_close(qr_safetensors *file); /* NULL is fine */

/* Tensors come shard by shard, in the order of their bytes: reading them in this order reads the disk forwards. */
size_t qr_safetensors_count(const qr_safetensors *file);
const qr_safetensors_tensor *qr_safetensors_get(const qr_safetensors *file, size_t i);
const qr_safetensors_tensor *qr_safetensors_find(const qr_safetensors *file, const char *name); /* NULL when absent */

/* The tensor of that name, which must have a type of the set and exactly these dims (-1 = any size). One message
 * says which of these fails and what was found instead. */
qrun_status qr_safetensors_require(const qr_safetensors *file, const char *name, qr_dtype_set dtypes, int n_dims,
                                   const int64_t *dims, const qr_safetensors_tensor **tensor, qr_error *err);

/* Tells the kernel that a tensor has been read and its pages may go. */
void qr_safetensors_drop(const qr_safetensors *file, const qr_safetensors_tensor *tensor);

/* A value of the first shard's __metadata__, or NULL. */
const char *qr_safetensors_metadata(const qr_safetensors *file, const char *key);
const char *qr_safetensors_shard_path(const qr_safetensors *file, int shard);

/* Bytes of a tensor of this type and shape; false on overflow, for a negative size and where sub-byte elements do not
 * fill whole bytes. */
bool qr_safetensors_tensor_bytes(qr_dtype dtype, int n_dims, const int64_t *dims, size_t *n_bytes);

#endif
