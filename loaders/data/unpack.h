/* Bytes in gzip (RFC 1952, with any number of members) or Zstandard (RFC 8878, with any number of frames), unpacked
 * piece by piece; bytes in neither pass through. What is in which of them is told by the first four bytes.
 *
 * Memory stays below 150 MB whatever the input: a Zstandard window is at most 128 MiB. What unpacks to more than
 * QR_UNPACK_FREE_BYTES, and to more than QR_UNPACK_RATIO times what was read so far, is refused. */
#ifndef QR_LOADERS_DATA_UNPACK_H
#define QR_LOADERS_DATA_UNPACK_H

#include <stdint.h>

#include "base/status.h"

enum { QR_UNPACK_START_BYTES = 4, QR_UNPACK_RATIO = 1000, QR_UNPACK_FREE_BYTES = 1 << 26 };

/* Takes what was unpacked. */
typedef qrun_status (*qr_unpack_fn)(void *user, const void *bytes, size_t n_bytes, qr_error *err);

typedef struct qr_unpacker qr_unpacker;

/* Whether bytes that begin so are compressed. Fewer than QR_UNPACK_START_BYTES are not. */
bool qr_unpack_is_compressed(const void *start, size_t n_bytes);

/* start: the first bytes, QR_UNPACK_START_BYTES or all there are; they are pushed with the others. `path` names the
 * data in messages; it is lent. */
qrun_status qr_unpacker_create(const char *path, const void *start, size_t n_bytes, qr_unpack_fn take, void *user,
                               qr_unpacker **unpacker, qr_error *err);
/* QRUN_ERROR_INPUT for what is damaged. */
qrun_status qr_unpacker_push(qr_unpacker *unpacker, const void *bytes, size_t n_bytes, qr_error *err);
/* After the last byte: QRUN_ERROR_INPUT where the data were cut off. */
qrun_status qr_unpacker_finish(qr_unpacker *unpacker, qr_error *err);
void qr_unpacker_destroy(qr_unpacker *unpacker); /* NULL is fine */

#endif
