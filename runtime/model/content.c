#include "runtime/model/content.h"

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"

enum { PIECE_BYTES = 1 << 20, N_PIECES = 32 };

/* A part of the weights in host memory, summed by all threads. */
typedef struct hashing {
    unsigned char *bytes; /* [N_PIECES · PIECE_BYTES] */
    size_t n_bytes;
    uint64_t sums[N_PIECES];
} hashing;

static void hash_piece(void *arg, int64_t index, int worker) {
    hashing *h = arg;
    const size_t first = (size_t)index * PIECE_BYTES, left = h->n_bytes - first;
    (void)worker;
    h->sums[index] = qr_hash_words(QR_HASH_START, h->bytes + first, left < PIECE_BYTES ? left : PIECE_BYTES);
}

static qrun_status add_memory(const qrun_model *model, const void *memory, size_t n_bytes, hashing *h,
                              qr_digest_state *state, qr_error *err) {
    qrun_context *context = model->context;
    const uint64_t total = n_bytes;
    qr_digest_add(state, &total, sizeof total);
    for (size_t done = 0; done < n_bytes; done += h->n_bytes) {
        const size_t left = n_bytes - done, most = (size_t)N_PIECES * PIECE_BYTES;
        h->n_bytes = left < most ? left : most;
        qr_compute_lock(context);
        const qrun_status status = context->backend->copy_out(context->backend, h->bytes,
                                                              (const unsigned char *)memory + done, h->n_bytes, err);
        qr_compute_unlock(context);
        if (status != QRUN_OK) { return status; }
        const int64_t n_pieces = qr_ceil_div((int64_t)h->n_bytes, PIECE_BYTES);
        qr_threads_run(context->threads, n_pieces, hash_piece, h);
        qr_digest_add(state, h->sums, (uint64_t)n_pieces * sizeof *h->sums);
    }
    return QRUN_OK;
}

qrun_status qr_model_content(const qrun_model *model, qr_digest *digest, qr_error *err) {
    hashing h = {.bytes = qr_alloc((size_t)N_PIECES * PIECE_BYTES)};
    if (h.bytes == NULL) { return qr_fail_memory(err, "naming the weights", (size_t)N_PIECES * PIECE_BYTES); }
    qr_digest_state state;
    qr_digest_begin(&state);
    qr_digest_add(&state, &model->config.content_hash, sizeof model->config.content_hash);
    qrun_status status = add_memory(model, model->weight_memory, model->weight_bytes, &h, &state, err);
    if (status == QRUN_OK) { status = add_memory(model, model->table_memory, model->table_bytes, &h, &state, err); }
    *digest = qr_digest_end(&state);
    qr_free(h.bytes);
    return status;
}
