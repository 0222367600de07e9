#include "loaders/data/unpack.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/alloc.h"

enum { OUT_BYTES = 1 << 17, GZIP_HEADER = 16 /* zlib: gzip, and nothing else */ };

typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct qr_unpacker {
    const char *path;
    packing kind;
    qr_unpack_fn take;
    void *user;
    uint64_t n_in, n_out;
    bool is_between; /* nothing of a member or frame has begun that has not ended */
    z_stream gzip;
    ZSTD_DStream *zstd;
    unsigned char out[OUT_BYTES];
};

static packing find_packing(const void *start, size_t n_bytes) {
    if (n_bytes < QR_UNPACK_START_BYTES) { return PLAIN; }
    if (memcmp(start, "\x1F\x8B\x08", 3) == 0) { return GZIP; }
    const unsigned char *bytes = start;
    const bool is_skippable = (bytes[0] & 0xF0U) == 0x50U && memcmp(bytes + 1, "\x2A\x4D\x18", 3) == 0;
    return is_skippable || memcmp(start, "\x28\xB5\x2F\xFD", 4) == 0 ? ZSTD : PLAIN;
}

bool qr_unpack_is_compressed(const void *start, size_t n_bytes) { return find_packing(start, n_bytes) != PLAIN; }

static void *allocate(void *unused, uInt count, uInt size) {
    (void)unused;
    return qr_alloc_array_zeroed(count, size);
}

static void release(void *unused, void *block) {
    (void)unused;
    qr_free(block);
}

qrun_status qr_unpacker_create(const char *path, const void *start, size_t n_bytes, qr_unpack_fn take, void *user,
                               qr_unpacker **unpacker, qr_error *err) {
    qr_unpacker *made = qr_alloc_zeroed(sizeof *made);
    *unpacker = NULL;
    if (made == NULL) { return qr_fail_memory(err, path, sizeof *made); }
    made->path = path;
    made->kind = find_packing(start, n_bytes);
    made->take = take;
    made->user = user;
    made->is_between = true;
    made->gzip = (z_stream){.zalloc = allocate, .zfree = release};
    bool done = true;
    if (made->kind == GZIP) { done = inflateInit2(&made->gzip, MAX_WBITS + GZIP_HEADER) == Z_OK; }
    if (made->kind == ZSTD) { done = (made->zstd = ZSTD_createDStream()) != NULL; }
    if (!done) {
        qr_free(made); /* zlib and zstd hold nothing when they have failed */
        return qr_fail_memory(err, path, sizeof *made);
    }
    *unpacker = made;
    return QRUN_OK;
}

void qr_unpacker_destroy(qr_unpacker *unpacker) {
    if (unpacker == NULL) { return; }
    if (unpacker->kind == GZIP) { (void)inflateEnd(&unpacker->gzip); }
    (void)ZSTD_freeDStream(unpacker->zstd);
    qr_free(unpacker);
}

static qrun_status give(qr_unpacker *u, size_t n_bytes, qr_error *err) {
    u->n_out += n_bytes;
    if (u->n_out > QR_UNPACK_FREE_BYTES && u->n_out / QR_UNPACK_RATIO > u->n_in) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: unpacks to more than %d times its size; unpack it yourself if that is right", u->path,
                       QR_UNPACK_RATIO);
    }
    return n_bytes > 0 ? u->take(u->user, u->out, n_bytes, err) : QRUN_OK;
}

static qrun_status fail_damaged(const qr_unpacker *u, const char *why, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: is damaged and cannot be unpacked: %s", u->path, why);
}

/* One step of inflate: until the member ends, or `out` is full, or there is no input. */
static qrun_status inflate_some(qr_unpacker *u, qr_error *err) {
    z_stream *z = &u->gzip;
    if (u->is_between && z->total_in > 0) { (void)inflateReset(z); } /* another member begins */
    u->is_between = false;
    z->next_out = u->out;
    z->avail_out = OUT_BYTES;
    const int result = inflate(z, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) { return qr_fail_memory(err, u->path, OUT_BYTES); }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return fail_damaged(u, z->msg != NULL ? z->msg : "it is not gzip", err);
    }
    u->is_between = result == Z_STREAM_END;
    return give(u, OUT_BYTES - z->avail_out, err);
}

static qrun_status push_gzip(qr_unpacker *u, const unsigned char *bytes, size_t n_bytes, qr_error *err) {
    z_stream *z = &u->gzip;
    z->next_in = (unsigned char *)(uintptr_t)bytes; /* zlib reads it only */
    z->avail_in = (uInt)n_bytes;
    do { QR_RETURN_IF_ERROR(inflate_some(u, err)); } while (z->avail_in > 0 || (z->avail_out == 0 && !u->is_between));
    return QRUN_OK;
}

static qrun_status push_zstd(qr_unpacker *u, const unsigned char *bytes, size_t n_bytes, qr_error *err) {
    ZSTD_inBuffer in = {bytes, n_bytes, 0};
    ZSTD_outBuffer out;
    do {
        out = (ZSTD_outBuffer){u->out, OUT_BYTES, 0};
        const size_t left = ZSTD_decompressStream(u->zstd, &out, &in);
        if (ZSTD_isError(left)) { return fail_damaged(u, ZSTD_getErrorName(left), err); }
        u->is_between = left == 0;
        QR_RETURN_IF_ERROR(give(u, out.pos, err));
    } while (in.pos < in.size || (out.pos == out.size && !u->is_between));
    return QRUN_OK;
}

qrun_status qr_unpacker_push(qr_unpacker *u, const void *bytes, size_t n_bytes, qr_error *err) {
    const unsigned char *from = bytes;
    u->n_in += n_bytes;
    if (n_bytes == 0) { return QRUN_OK; }
    if (u->kind == PLAIN) { return u->take(u->user, bytes, n_bytes, err); }
    if (n_bytes > INT_MAX) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: too many bytes at once", u->path); }
    return u->kind == GZIP ? push_gzip(u, from, n_bytes, err) : push_zstd(u, from, n_bytes, err);
}

qrun_status qr_unpacker_finish(qr_unpacker *unpacker, qr_error *err) {
    if (unpacker->is_between) { return QRUN_OK; }
    return fail_damaged(unpacker, "it ends too early; was it cut off?", err);
}
