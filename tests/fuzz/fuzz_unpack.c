/* The input is data in gzip, in Zstandard or in neither. Whole and byte by byte it gives the same bytes and the same
 * answer, and never more than the bound allows. */
#include "base/random.h"
#include "fuzz.h"
#include "loaders/data/unpack.h"

typedef struct taken {
    uint64_t hash, n_bytes;
} taken;

static qrun_status take(void *user, const void *bytes, size_t n_bytes, qr_error *err) {
    taken *t = user;
    (void)err;
    FUZZ_CHECK(n_bytes > 0);
    t->hash = qr_hash_bytes(t->hash, bytes, n_bytes);
    t->n_bytes += n_bytes;
    return QRUN_OK;
}

/* In pieces of so many bytes. */
static bool unpack(const uint8_t *data, size_t size, size_t piece, taken *t) {
    qr_unpacker *unpacker;
    qr_error err = {0};
    *t = (taken){QR_HASH_START, 0};
    FUZZ_CHECK(qr_unpacker_create("data", data, size, take, t, &unpacker, &err) == QRUN_OK);
    qrun_status status = QRUN_OK;
    for (size_t at = 0; status == QRUN_OK && at < size; at += piece) {
        status = qr_unpacker_push(unpacker, data + at, size - at < piece ? size - at : piece, &err);
    }
    if (status == QRUN_OK) { status = qr_unpacker_finish(unpacker, &err); }
    FUZZ_CHECK(status == QRUN_OK || (status == QRUN_ERROR_INPUT && err.message[0] != '\0'));
    FUZZ_CHECK(t->n_bytes <= QR_UNPACK_FREE_BYTES + (uint64_t)QR_UNPACK_RATIO * (size + 1));
    qr_unpacker_destroy(unpacker);
    return status == QRUN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    taken whole, bytes;
    const bool good = unpack(data, size, size > 0 ? size : 1, &whole);
    const bool again = unpack(data, size, 1, &bytes);
    FUZZ_CHECK(again == good || whole.n_bytes > QR_UNPACK_FREE_BYTES); /* the bound counts what was read so far */
    if (again != good) { return 0; }
    if (good) { FUZZ_CHECK(whole.hash == bytes.hash && whole.n_bytes == bytes.n_bytes); }
    if (good && !qr_unpack_is_compressed(data, size)) { FUZZ_CHECK(whole.n_bytes == size); }
    return 0;
}
