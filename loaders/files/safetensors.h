/* Tensors in safetensors files, mapped read-only and checked completely before anything is used: header of at most
 * 100 MB, unique names, known types, sizes equal to shape × type, data that the tensors cover exactly once and whole.
 * The data may change or end while it is read; the header is read once and copied.
 * Format: github.com/huggingface/safetensors. Writing is loaders/files/safetensors_writer.h. */
#ifndef QR_LOADERS_FILES_SAFETENSORS_H
#define QR_LOADERS_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file_map.h"
#include "base/status.h"
#include "loaders/files/row_order.h"

enum { QR_SAFETENSORS_MAX_HEADER_BYTES = 100000000, QR_SAFETENSORS_MAX_SHARDS = 1000 };

/* A matrix of keys and values that are made of a latent, as GGUF has it (packed_weight.h): the part of keys. */
typedef struct qr_latent_keys {
    const unsigned char *data; /* [H, rank, plain_dim]; NULL: it is no such matrix */
    qr_dtype dtype;
    int64_t plain_dim, value_dim;
} qr_latent_keys;

/* One tensor, lent by the qr_safetensors it came from. */
typedef struct qr_safetensors_tensor {
    const char *name;
    qr_dtype dtype;
    int n_dims;
    int64_t dims[QR_MAX_DIMS]; /* row-major; a scalar has none */
    const unsigned char *data; /* little-endian, in the map; any alignment, because the format promises none */
    size_t n_bytes;
    int shard;                  /* for qr_safetensors_shard_path */
    qr_row_order rows, columns; /* of GGUF; of a vector, and of a convolution's elements, the first */
    qr_latent_keys keys;        /* of GGUF: `data` has the values alone, [H, value_dim, rank] */
    bool is_negative_exp;       /* the file has −e^x of each value x */
} qr_safetensors_tensor;

/* Sets of types for qr_safetensors_require. */
typedef uint32_t qr_dtype_set;
#define QR_DTYPE_BIT(dtype) ((qr_dtype_set)1 << (dtype))
#define QR_DTYPES_FLOAT (QR_DTYPE_BIT(QR_DTYPE_F32) | QR_DTYPE_BIT(QR_DTYPE_F16) | QR_DTYPE_BIT(QR_DTYPE_BF16))
#define QR_DTYPES_BLOCKS (QR_DTYPE_BIT(QR_DTYPE_COUNT) - QR_DTYPE_BIT(QR_DTYPE_Q4_0))
_Static_assert(QR_DTYPE_COUNT < 32, "a set has a bit for each type");

typedef struct qr_safetensors qr_safetensors;

/* Opens one file, or a folder with model.safetensors or else model.safetensors.index.json and its shards. In a
 * sharded model every tensor of the index must be in the shard that the index names. QRUN_ERROR_INPUT for anything
 * malformed, QRUN_ERROR_NOT_FOUND when there is nothing to open. Reading it is thread-safe from then on. */
qrun_status qr_safetensors_open(const char *path, qr_safetensors **file, qr_error *err);
void qr_safetensors_close(qr_safetensors *file); /* NULL is fine */

/* The tensors of a mapped file of another format, which its own reader has checked: their names lie in `names`, their
 * data in the map. Takes over all three, on failure too. QRUN_ERROR_INPUT where a name occurs twice. */
qrun_status qr_safetensors_from_map(const char *path, qr_file_map *map, qr_safetensors_tensor *tensors,
                                    size_t n_tensors, char *names, qr_safetensors **file, qr_error *err);

/* Other tensors in place of the file's, in the same order: some may be rows of one of those, or have other names, which
 * lie in `names`. Takes over both, on failure too, after which the file can be closed alone. QRUN_ERROR_INPUT where a
 * name occurs twice. */
qrun_status qr_safetensors_replace(qr_safetensors *file, qr_safetensors_tensor *tensors, size_t n_tensors, char *names,
                                   qr_error *err);

/* Tensors come shard by shard, in the order of their bytes: reading them in this order reads the disk forwards. */
size_t qr_safetensors_count(const qr_safetensors *file);
const qr_safetensors_tensor *qr_safetensors_get(const qr_safetensors *file, size_t i);
const qr_safetensors_tensor *qr_safetensors_find(const qr_safetensors *file, const char *name); /* NULL when absent */

/* The tensor of that name, which must have a type of the set and exactly these dims (-1 = any size). One message
 * says which of these fails and what was found instead. */
qrun_status qr_safetensors_require(const qr_safetensors *file, const char *name, qr_dtype_set dtypes, int n_dims,
                                   const int64_t *dims, const qr_safetensors_tensor **tensor, qr_error *err);

/* A tensor has been read: its pages may go. QRUN_ERROR_IO when its file was cut short meanwhile, so that what was read
 * may be zeros (base/file_map.h). Who reads tensors calls one of these two before trusting what was read. */
qrun_status qr_safetensors_finish(const qr_safetensors *file, const qr_safetensors_tensor *tensor, qr_error *err);
/* Part of a tensor will be read soon: [data, data + n_bytes) of its map is asked for. */
void qr_safetensors_want(const qr_safetensors *file, const qr_safetensors_tensor *tensor, const unsigned char *data,
                         size_t n_bytes);
/* As qr_safetensors_finish, for every tensor, whose pages stay. */
qrun_status qr_safetensors_check(const qr_safetensors *file, qr_error *err);

/* A value of the first shard's __metadata__, or NULL. */
const char *qr_safetensors_metadata(const qr_safetensors *file, const char *key);
const char *qr_safetensors_shard_path(const qr_safetensors *file, int shard);

/* Bytes of a tensor of this type and shape; false on overflow, for a negative size and where sub-byte elements do not
 * fill whole bytes. */
bool qr_safetensors_tensor_bytes(qr_dtype dtype, int n_dims, const int64_t *dims, size_t *n_bytes);

#endif
