/* staging.h: slots, and the pieces that a matrix is sent in. */
#include "kernels/cuda/backend/staging.h"

#include <condition_variable>
#include <mutex>
#include <new>

#include "kernels/cuda/device/transfer.h"

/* Enough for several threads to copy from the map while the bus is busy. */
enum { N_SLOTS = 8, ABSMAX_SHARE = 16 };

/* A piece's bytes, then F32 absmax of its blocks, in pinned memory and on the device alike. */
struct slot {
    unsigned char *host, *device;
    qr_device_event *done;
    bool is_taken;     /* by a thread that fills it */
    bool is_in_flight; /* `done` was recorded */
    float *absmax;     /* the caller's, owed n_absmax when the slot is done */
    int64_t n_absmax;
};

struct qr_cuda_staging {
    qr_device *device;
    size_t piece_bytes, absmax_bytes;
    slot slots[N_SLOTS];
    int next;        /* to be tried first: the one that was sent longest ago */
    std::mutex lock; /* guards next and is_taken */
    std::condition_variable was_freed;
    std::mutex issue; /* one thread at a time gives work to the device */
};

/* --- Slots --- */

static qrun_status finish(qr_cuda_staging *staging, slot *one, qr_error *err) {
    if (!one->is_in_flight) { return QRUN_OK; }
    one->is_in_flight = false;
    const qrun_status status = qr_device_event_wait(staging->device, one->done, err);
    if (status == QRUN_OK && one->n_absmax > 0) {
        memcpy(one->absmax, one->host + staging->piece_bytes, static_cast<size_t>(one->n_absmax) * sizeof *one->absmax);
    }
    one->n_absmax = 0;
    return status;
}

static slot *first_free(qr_cuda_staging *staging) {
    for (int i = 0; i < N_SLOTS; i++) {
        slot *one = &staging->slots[(staging->next + i) % N_SLOTS];
        if (one->is_taken) { continue; }
        staging->next = (staging->next + i + 1) % N_SLOTS;
        return one;
    }
    return NULL;
}

/* A slot that the device has done with; release frees it, also after an error. */
static slot *take(qr_cuda_staging *staging) {
    std::unique_lock<std::mutex> held(staging->lock);
    slot *one;
    while ((one = first_free(staging)) == NULL) { staging->was_freed.wait(held); }
    one->is_taken = true;
    return one;
}

static void release(qr_cuda_staging *staging, slot *one) {
    {
        const std::lock_guard<std::mutex> held(staging->lock);
        one->is_taken = false;
    }
    staging->was_freed.notify_one();
}

/* --- Beginning and end --- */

static void destroy(qr_cuda_staging *staging) {
    for (slot &one : staging->slots) {
        qr_device_event_destroy(staging->device, one.done);
        qr_device_memory_destroy(staging->device, QR_MEMORY_HOST, one.host);
        qr_device_memory_destroy(staging->device, QR_MEMORY_DEVICE, one.device);
    }
    staging->~qr_cuda_staging();
    qr_free(staging);
}

static qrun_status make_slots(qr_cuda_staging *staging, qr_error *err) {
    const size_t n_bytes = staging->piece_bytes + staging->absmax_bytes;
    for (slot &one : staging->slots) {
        void *host = NULL, *device = NULL;
        QR_RETURN_IF_ERROR(qr_device_memory_create(staging->device, QR_MEMORY_HOST, n_bytes, &host, err));
        one.host = static_cast<unsigned char *>(host);
        QR_RETURN_IF_ERROR(qr_device_memory_create(staging->device, QR_MEMORY_DEVICE, n_bytes, &device, err));
        one.device = static_cast<unsigned char *>(device);
        QR_RETURN_IF_ERROR(qr_device_event_create(staging->device, &one.done, err));
    }
    return QRUN_OK;
}

qrun_status qr_cuda_loading_begin(qr_backend *backend, qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    void *memory = qr_alloc_zeroed(sizeof(qr_cuda_staging));
    if (memory == NULL) { return qr_fail_memory(err, "the cuda backend", sizeof(qr_cuda_staging)); }
    qr_cuda_staging *staging = new (memory) qr_cuda_staging();
    staging->device = cuda->device;
    staging->piece_bytes = qr_device_piece_bytes(cuda->device);
    staging->absmax_bytes = staging->piece_bytes / ABSMAX_SHARE;
    qr_error refused = {};
    const qrun_status status = make_slots(staging, &refused);
    if (status == QRUN_OK) {
        cuda->staging = staging;
        backend->takes_sources = true;
        return QRUN_OK;
    }
    destroy(staging);
    if (status == QRUN_ERROR_MEMORY) { return QRUN_OK; } /* loading continues without staging */
    return qr_fail(err, status, "%s", refused.message);
}

qrun_status qr_cuda_loading_wait(qr_backend *backend, qr_error *err) {
    qr_cuda_staging *staging = qr_cuda(backend)->staging;
    qrun_status status = QRUN_OK;
    for (int i = 0; staging != NULL && i < N_SLOTS; i++) {
        const qrun_status of_slot = finish(staging, &staging->slots[i], status == QRUN_OK ? err : NULL);
        if (status == QRUN_OK) { status = of_slot; }
    }
    return status;
}

void qr_cuda_loading_end(qr_backend *backend) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    if (cuda->staging == NULL) { return; }
    backend->takes_sources = false;
    (void)qr_cuda_loading_wait(backend, NULL);
    destroy(cuda->staging);
    cuda->staging = NULL;
}

/* --- Pieces --- */

/* Fills a slot from the map, then calls `issue`, which gives the device its work. */
template <typename F>
static qrun_status send_piece(qr_cuda_staging *staging, const void *src, size_t n_bytes, F issue, qr_error *err) {
    slot *one = take(staging);
    qrun_status status = QRUN_OK;
    QR_TRY(finish(staging, one, err));
    memcpy(one->host, src, n_bytes);
    {
        const std::lock_guard<std::mutex> held(staging->issue);
        one->is_in_flight = true; /* also where it fails half-way */
        QR_TRY(issue(one));
        QR_TRY(qr_device_event_record(staging->device, one->done, err));
    }
out:
    release(staging, one);
    return status;
}

qrun_status qr_cuda_staging_send(qr_cuda_backend *cuda, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    qr_cuda_staging *staging = cuda->staging;
    qrun_status status = QRUN_OK;
    for (size_t sent = 0; sent < n_bytes && status == QRUN_OK;) {
        const size_t rest = n_bytes - sent, n = rest < staging->piece_bytes ? rest : staging->piece_bytes;
        unsigned char *to = static_cast<unsigned char *>(dst) + sent;
        const auto copy = [&](const slot *one) { return qr_device_copy_in_async(cuda->device, to, one->host, n, err); };
        status = send_piece(staging, static_cast<const unsigned char *>(src) + sent, n, copy, err);
        sent += n;
    }
    return status;
}

/* Elements that go through a slot at once: whole rows of INT8, else whole blocks. 0: not even one. */
static int64_t piece_elements(const qr_cuda_staging *staging, const qr_weight_desc *desc, qr_dtype dtype) {
    const int64_t most = static_cast<int64_t>(staging->piece_bytes / qr_dtype_bytes(dtype));
    if (desc->format == QR_WEIGHT_INT8) { return most / desc->cols * desc->cols; }
    if (!qr_weight_is_nf4(desc->format)) { return most; }
    const int64_t by_absmax = static_cast<int64_t>(staging->absmax_bytes / sizeof(float));
    return qr_min(most / desc->block, by_absmax) * desc->block;
}

static qrun_status send_elements(qr_cuda_backend *cuda, slot *one, qr_weight *weight, int64_t first, int64_t n,
                                 qr_dtype dtype, float *absmax, qr_error *err) {
    const size_t absmax_at = cuda->staging->piece_bytes;
    float *made = reinterpret_cast<float *>(one->device + absmax_at);
    QR_RETURN_IF_ERROR(qr_device_copy_in_async(cuda->device, one->device, one->host,
                                               static_cast<size_t>(n) * qr_dtype_bytes(dtype), err));
    QR_RETURN_IF_ERROR(qr_cuda_quantize(cuda, weight, first, n, dtype, one->device, made, err));
    if (weight->desc.format != QR_WEIGHT_NF4_DQ) { return QRUN_OK; }
    one->n_absmax = qr_ceil_div(n, weight->desc.block);
    one->absmax = absmax;
    QR_RETURN_IF_ERROR(qr_device_copy_out_async(cuda->device, one->host + absmax_at, made,
                                                static_cast<size_t>(one->n_absmax) * sizeof(float), err));
    return QRUN_OK;
}

static bool is_same_type(qr_weight_format format, qr_dtype dtype) {
    return (format == QR_WEIGHT_F32 && dtype == QR_DTYPE_F32) || (format == QR_WEIGHT_F16 && dtype == QR_DTYPE_F16) ||
           (format == QR_WEIGHT_BF16 && dtype == QR_DTYPE_BF16);
}

qrun_status qr_cuda_weight_put_source(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                      qr_dtype dtype, const void *src, float *absmax, qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    const qr_weight_desc *desc = &weight->desc;
    QR_RETURN_IF_ERROR(qr_check_weight_rows(desc, row, n_rows, err));
    if (is_same_type(desc->format, dtype)) { return qr_cuda_weight_put_rows(backend, weight, row, n_rows, src, err); }
    const int64_t begin = row * desc->cols, end = (row + n_rows) * desc->cols;
    const int64_t piece = piece_elements(cuda->staging, desc, dtype);
    if (piece == 0 || (qr_weight_is_nf4(desc->format) && begin % desc->block != 0)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "cuda: rows of %lld elements from row %lld cannot be quantised on the device",
                       static_cast<long long>(desc->cols), static_cast<long long>(row));
    }
    for (int64_t first = begin; first < end; first += piece) {
        const int64_t n = qr_min(piece, end - first);
        const size_t element = qr_dtype_bytes(dtype);
        float *owed = desc->format == QR_WEIGHT_NF4_DQ ? absmax + (first - begin) / desc->block : NULL;
        const auto issue = [&](slot *one) { return send_elements(cuda, one, weight, first, n, dtype, owed, err); };
        QR_RETURN_IF_ERROR(send_piece(
            cuda->staging, static_cast<const unsigned char *>(src) + static_cast<size_t>(first - begin) * element,
            static_cast<size_t>(n) * element, issue, err));
    }
    return QRUN_OK;
}
