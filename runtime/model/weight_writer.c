#include "runtime/model/weight_writer.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "quant/ggml.h"
#include "quant/nf4.h"

/* Elements of a chunk: its source (2 MB in BF16) stays in the L2 cache between being read and being packed. */
enum { CHUNK_ELEMENTS = 1 << 20, NEST_CHUNK_BLOCKS = 64 * QR_NESTED_BLOCK };

/* ---- Chunks of rows, in parallel --------------------------------------------------------------------------------- */

/* The work on one chunk: rows [first, first + n_rows). */
typedef qrun_status (*chunk_fn)(void *arg, int64_t first, int64_t n_rows, int worker, qr_error *err);

typedef struct chunk_run {
    chunk_fn put;
    void *arg;
    int64_t n_rows, rows_per_chunk;
    pthread_mutex_t lock; /* guards status and err: those of the first failure */
    qrun_status status;
    qr_error err;
} chunk_run;

static int64_t chunk_rows(const qr_weight_desc *desc) {
    return qr_max(CHUNK_ELEMENTS / desc->cols / QR_WEIGHT_ROW_GROUP, 1) * QR_WEIGHT_ROW_GROUP;
}

static void chunk_task(void *arg, int64_t index, int worker) {
    chunk_run *run = arg;
    const int64_t first = index * run->rows_per_chunk;
    qr_error err = {0};
    const qrun_status status =
        run->put(run->arg, first, qr_min(run->rows_per_chunk, run->n_rows - first), worker, &err);
    if (status == QRUN_OK) { return; }
    pthread_mutex_lock(&run->lock);
    if (run->status == QRUN_OK) { run->status = status, run->err = err; }
    pthread_mutex_unlock(&run->lock);
}

/* Puts all chunks. With `to_device` it waits for what is still on its way to the weight, or from it to its scales. */
static qrun_status run_chunks(qr_backend *backend, const qr_weight_desc *desc, bool to_device, chunk_fn put, void *arg,
                              qr_error *err) {
    chunk_run run = {.put = put, .arg = arg, .n_rows = desc->rows, .rows_per_chunk = chunk_rows(desc)};
    pthread_mutex_init(&run.lock, NULL);
    qr_threads_run(backend->threads, qr_ceil_div(run.n_rows, run.rows_per_chunk), chunk_task, &run);
    pthread_mutex_destroy(&run.lock);
    if (run.status != QRUN_OK) { (void)qr_fail(err, run.status, "%s", run.err.message); }
    const bool waits = to_device && backend->loading_wait != NULL;
    const qrun_status status = waits ? backend->loading_wait(backend, err) : QRUN_OK;
    return run.status != QRUN_OK ? run.status : status;
}

/* ---- From a plain source ----------------------------------------------------------------------------------------- */

/* One matrix being written: shared by the workers. */
typedef struct write_job {
    qr_backend *backend;
    qr_weight *weight; /* NULL: codes go to `codes` */
    qr_weight_desc desc;
    const qr_row_source *source;
    const char *name;     /* of the tensor, for messages */
    qr_dtype rows_dtype;  /* of the source's rows, once decoded */
    unsigned char *codes; /* host: the whole matrix, or one chunk per worker */
    unsigned char *rows;  /* per worker: gathered source rows; NULL where chunks are contiguous in the source */
    float *scales;        /* of the whole matrix */
    size_t codes_per_worker, rows_per_worker; /* bytes */
} write_job;

static bool is_in_order(const qr_row_source *source) {
    return qr_row_order_is_usual(&source->order) && qr_row_order_is_usual(&source->column_order);
}

/* Whether the device itself quantises or converts the source's rows. */
static bool is_direct(const write_job *job) { return job->weight != NULL && job->backend->takes_sources; }

/* Whether scales pass through the host. Those that the device computes do so only for double quantisation. */
static bool needs_scales(const write_job *job) {
    return job->desc.format == QR_WEIGHT_NF4_DQ || (!qr_weight_is_plain(job->desc.format) && !is_direct(job));
}

static void gather_transposed(const qr_row_source *source, const qr_weight_desc *desc, int64_t first, int64_t n_rows,
                              unsigned char *dst) {
    const size_t element = qr_dtype_bytes(source->dtype);
    const bool is_part = source->wide_rows > 0;
    const int64_t width = is_part ? source->wide_rows : desc->rows, step = is_part ? source->row_step : 1;
    for (int64_t c = 0; c < desc->cols; c++) {
        const unsigned char *src = source->src + (size_t)(c * width + source->first_row + first * step) * element;
        for (int64_t r = 0; r < n_rows; r++) {
            memcpy(dst + (size_t)(r * desc->cols + c) * element, src + (size_t)(r * step) * element, element);
        }
    }
}

static void gather_periodic(const qr_row_source *source, const qr_weight_desc *desc, int64_t first, int64_t n_rows,
                            unsigned char *dst) {
    const size_t row_bytes = (size_t)desc->cols * qr_dtype_bytes(source->dtype);
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t row = (first + r) % source->period_rows;
        memcpy(dst + (size_t)r * row_bytes, source->src + (size_t)row * row_bytes, row_bytes);
    }
}

/* Row r of dst from a stored row whose columns lie in heads of another order: a head at a time. */
static void gather_columns(const qr_row_source *source, int64_t row, int64_t cols, unsigned char *dst, int64_t r) {
    const qr_row_order *order = &source->column_order;
    const size_t element = qr_dtype_bytes(source->dtype);
    for (int64_t c = 0; c < cols; c += order->head_len) {
        const int64_t at = row * cols + qr_stored_row(order, c);
        if (qr_dtype_is_blocks(source->dtype)) {
            float *values = (float *)(void *)dst + r * cols + c;
            qr_ggml_dequantize_range(source->dtype, source->src, at, order->head_len, values);
        } else {
            memcpy(dst + (size_t)(r * cols + c) * element, source->src + (size_t)at * element,
                   (size_t)order->head_len * element);
        }
    }
}

static void gather_stored(const qr_row_source *source, const qr_weight_desc *desc, int64_t first, int64_t n_rows,
                          unsigned char *dst) {
    const int64_t cols = desc->cols;
    const size_t row_bytes = (size_t)cols * qr_dtype_bytes(source->dtype);
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t row = qr_stored_row(&source->order, first + r);
        if (!qr_row_order_is_usual(&source->column_order)) {
            gather_columns(source, row, cols, dst, r);
        } else if (qr_dtype_is_blocks(source->dtype)) {
            qr_ggml_dequantize_range(source->dtype, source->src, row * cols, cols, (float *)(void *)dst + r * cols);
        } else {
            memcpy(dst + (size_t)r * row_bytes, source->src + (size_t)row * row_bytes, row_bytes);
        }
    }
}

static const unsigned char *source_rows(const write_job *job, int64_t first, int64_t n_rows, int worker) {
    if (job->rows == NULL) {
        return job->source->src + (size_t)(first * job->desc.cols) * qr_dtype_bytes(job->source->dtype);
    }
    unsigned char *dst = job->rows + (size_t)worker * job->rows_per_worker;
    if (job->source->packed != NULL) {
        qr_packed_weight_rows(job->source->packed, first, n_rows, (float *)(void *)dst);
    } else if (job->source->transposed) {
        gather_transposed(job->source, &job->desc, first, n_rows, dst);
    } else if (job->source->period_rows == 0) {
        gather_stored(job->source, &job->desc, first, n_rows, dst);
    } else {
        gather_periodic(job->source, &job->desc, first, n_rows, dst);
    }
    return dst;
}

/* Whether the source's rows are the codes. */
static bool is_copy(const write_job *job) {
    return job->weight != NULL && qr_weight_plain_format(job->rows_dtype) == job->desc.format;
}

/* A NaN would get an ordinary code, and nothing after that could tell. */
static qrun_status check_finite(const write_job *job, const unsigned char *src, int64_t n_rows, qr_error *err) {
    if (qr_weight_is_plain(job->desc.format)) { return QRUN_OK; }
    if (qr_elements_are_finite(job->rows_dtype, src, n_rows * job->desc.cols)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds a value that is not finite; is the download damaged?", job->name);
}

static qrun_status write_chunk(void *arg, int64_t first, int64_t n_rows, int worker, qr_error *err) {
    const write_job *job = arg;
    const qr_packed_weight *packed = job->source->packed;
    if (packed != NULL) { QR_RETURN_IF_ERROR(qr_packed_weight_check_scales(packed, first, n_rows, err)); }
    const unsigned char *src = source_rows(job, first, n_rows, worker);
    QR_RETURN_IF_ERROR(check_finite(job, src, n_rows, err));
    const qr_weight_desc *desc = &job->desc;
    const int64_t first_scale = qr_weight_is_nf4(desc->format) ? first * desc->cols / desc->block : first;
    float *scales = job->scales != NULL ? job->scales + first_scale : NULL;
    if (is_direct(job)) {
        return job->backend->weight_put_source(job->backend, job->weight, first, n_rows, job->rows_dtype, src, scales,
                                               err);
    }
    if (is_copy(job)) { return job->backend->weight_put_rows(job->backend, job->weight, first, n_rows, src, err); }
    unsigned char *codes = job->weight != NULL ? job->codes + (size_t)worker * job->codes_per_worker
                                               : job->codes + qr_weight_row_offset(desc, first);
    const qr_quantize_args args = {
        .format = desc->format == QR_WEIGHT_NF4_DQ ? QR_WEIGHT_NF4 : desc->format,
        .block = desc->block,
        .src_dtype = job->rows_dtype,
        .src = src,
        .n_rows = n_rows,
        .cols = desc->cols,
        .codes = codes,
        .absmax = scales,
    };
    const qrun_status status = qr_quantize(job->backend, &args, QR_NO_WORKSPACE, err);
    if (status != QRUN_OK || job->weight == NULL) { return status; }
    return job->backend->weight_put_rows(job->backend, job->weight, first, n_rows, codes, err);
}

/* Memory that the chunks need besides the source: their codes on the way to the weight, gathered rows. */
static qrun_status make_staging(write_job *job, const char *name, qr_error *err) {
    const int n_workers = qr_threads_count(job->backend->threads);
    qr_weight_desc chunk = job->desc;
    chunk.rows = qr_min(chunk_rows(&job->desc), job->desc.rows);
    if (job->weight != NULL && !is_direct(job) && !is_copy(job)) {
        job->codes_per_worker = (qr_weight_code_bytes(&chunk) + 63) / 64 * 64;
        job->codes = qr_alloc_array((size_t)n_workers, job->codes_per_worker);
        if (job->codes == NULL) { return qr_fail_memory(err, name, job->codes_per_worker * (size_t)n_workers); }
    }
    if (job->source->packed != NULL || job->source->transposed || job->source->period_rows > 0 ||
        !is_in_order(job->source) || qr_dtype_is_blocks(job->source->dtype)) {
        job->rows_per_worker = (size_t)(chunk.rows * chunk.cols) * qr_dtype_bytes(job->rows_dtype);
        job->rows = qr_alloc_array((size_t)n_workers, job->rows_per_worker);
        if (job->rows == NULL) { return qr_fail_memory(err, name, job->rows_per_worker * (size_t)n_workers); }
    }
    return QRUN_OK;
}

/* ---- Double quantisation of the absmax of a whole matrix --------------------------------------------------------- */

typedef struct nest_job {
    const float *absmax;
    int64_t n_blocks;
    float offset;
    uint8_t *codes;
    float *nested_absmax;
} nest_job;

static void nest_task(void *arg, int64_t index, int worker) {
    (void)worker;
    const nest_job *job = arg;
    const int64_t first = index * NEST_CHUNK_BLOCKS;
    qr_nf4_nest(job->absmax + first, qr_min(NEST_CHUNK_BLOCKS, job->n_blocks - first), job->offset, job->codes + first,
                job->nested_absmax + first / QR_NESTED_BLOCK);
}

static qrun_status nest(qr_backend *backend, const qr_weight_desc *desc, qr_host_weight *host, qr_error *err) {
    const int64_t n_blocks = qr_weight_blocks(desc);
    host->absmax_codes = qr_alloc((size_t)n_blocks);
    host->nested_absmax = qr_alloc_array((size_t)qr_ceil_div(n_blocks, QR_NESTED_BLOCK), sizeof(float));
    if (host->absmax_codes == NULL || host->nested_absmax == NULL) {
        return qr_fail_memory(err, "double quantisation", (unsigned long long)n_blocks);
    }
    host->nested_offset = qr_nf4_nested_offset(host->absmax, n_blocks);
    nest_job job = {.absmax = host->absmax,
                    .n_blocks = n_blocks,
                    .offset = host->nested_offset,
                    .codes = host->absmax_codes,
                    .nested_absmax = host->nested_absmax};
    qr_threads_run(backend->threads, qr_ceil_div(n_blocks, NEST_CHUNK_BLOCKS), nest_task, &job);
    return QRUN_OK;
}

static qrun_status make_scales(const qr_weight_desc *desc, const char *name, qr_host_weight *host, qr_error *err) {
    const int64_t n = desc->format == QR_WEIGHT_INT8 ? desc->rows : qr_weight_blocks(desc);
    float **scales = desc->format == QR_WEIGHT_INT8 ? &host->row_absmax : &host->absmax;
    *scales = qr_alloc_array((size_t)n, sizeof **scales);
    return *scales != NULL ? QRUN_OK : qr_fail_memory(err, name, (unsigned long long)n * sizeof **scales);
}

/* Quantises into host->codes, or into `weight` where that is not NULL. Fills the scales of `host` either way, except
 * those that the device has put into `weight` itself. */
static qrun_status quantize(qr_backend *backend, const qr_weight_desc *desc, const qr_row_source *source,
                            const char *name, qr_weight *weight, qr_host_weight *host, qr_error *err) {
    qrun_status status = QRUN_OK;
    write_job job = {
        .backend = backend, .weight = weight, .desc = *desc, .source = source, .name = name, .codes = host->codes};
    job.rows_dtype = source->packed != NULL || qr_dtype_is_blocks(source->dtype) ? QR_DTYPE_F32 : source->dtype;
    if (needs_scales(&job)) { QR_TRY(make_scales(desc, name, host, err)); }
    job.scales = host->absmax != NULL ? host->absmax : host->row_absmax;
    QR_TRY(make_staging(&job, name, err));
    QR_TRY(run_chunks(backend, desc, weight != NULL, write_chunk, &job, err));
    if (desc->format == QR_WEIGHT_NF4_DQ) { QR_TRY(nest(backend, desc, host, err)); }
out:
    if (weight != NULL) { qr_free(job.codes); }
    qr_free(job.rows);
    return status;
}

qrun_status qr_weight_write(qr_backend *backend, qr_weight *weight, const qr_row_source *source, const char *name,
                            qr_error *err) {
    qr_host_weight host = {0};
    qrun_status status = quantize(backend, &weight->desc, source, name, weight, &host, err);
    if (status == QRUN_OK && (host.absmax != NULL || host.row_absmax != NULL)) {
        const qr_weight_scales scales = qr_host_weight_scales(&host);
        status = backend->weight_put_scales(backend, weight, &scales, err);
    }
    qr_host_weight_free(&host);
    return status;
}

qrun_status qr_weight_quantize_host(qr_backend *backend, const qr_weight_desc *desc, const qr_row_source *source,
                                    const char *name, qr_host_weight *host, qr_error *err) {
    *host = (qr_host_weight){.desc = *desc};
    host->codes = qr_alloc(qr_weight_code_bytes(desc));
    qrun_status status = host->codes != NULL ? QRUN_OK : qr_fail_memory(err, name, qr_weight_code_bytes(desc));
    if (status == QRUN_OK) { status = quantize(backend, desc, source, name, NULL, host, err); }
    if (status != QRUN_OK) { qr_host_weight_free(host); }
    return status;
}

qr_weight_scales qr_host_weight_scales(const qr_host_weight *host) {
    return (qr_weight_scales){.row_absmax = host->row_absmax,
                              .absmax = host->absmax,
                              .absmax_codes = host->absmax_codes,
                              .nested_absmax = host->nested_absmax,
                              .nested_offset = host->nested_offset};
}

void qr_host_weight_free(qr_host_weight *host) {
    qr_free(host->codes);
    qr_free(host->row_absmax);
    qr_free(host->absmax);
    qr_free(host->absmax_codes);
    qr_free(host->nested_absmax);
    *host = (qr_host_weight){0};
}

/* ---- Stored in the weight's own format, or as floats ------------------------------------------------------------- */

typedef struct put_job {
    qr_backend *backend;
    qr_weight *weight;
    int64_t first_row;          /* of the weight, a multiple of QR_WEIGHT_ROW_GROUP */
    const unsigned char *codes; /* from that row on */
} put_job;

static qrun_status put_chunk(void *arg, int64_t first, int64_t n_rows, int worker, qr_error *err) {
    (void)worker;
    const put_job *job = arg;
    const unsigned char *codes = job->codes + qr_weight_row_offset(&job->weight->desc, first);
    return job->backend->weight_put_rows(job->backend, job->weight, job->first_row + first, n_rows, codes, err);
}

/* Rows of MXFP4, which lie between those of another matrix and have codes in another order than the canonical one. */
typedef struct mxfp4_job {
    qr_backend *backend;
    qr_weight *weight;
    const qr_packed_weight *packed;
    int64_t first_row; /* of those that are packed, the weight's first */
    uint8_t *codes;    /* one chunk per worker */
    size_t codes_per_worker;
    uint8_t *scales; /* of the whole matrix */
} mxfp4_job;

static qrun_status put_mxfp4_chunk(void *arg, int64_t first, int64_t n_rows, int worker, qr_error *err) {
    const mxfp4_job *job = arg;
    uint8_t *codes = job->codes + (size_t)worker * job->codes_per_worker;
    QR_RETURN_IF_ERROR(qr_packed_weight_check_scales(job->packed, job->first_row + first, n_rows, err));
    qr_packed_weight_mxfp4_rows(job->packed, job->first_row + first, n_rows, codes,
                                job->scales + first * (job->weight->desc.cols / QR_MXFP4_BLOCK));
    return job->backend->weight_put_rows(job->backend, job->weight, first, n_rows, codes, err);
}

static qrun_status write_mxfp4(qr_backend *backend, qr_weight *weight, const qr_stored_weight *stored,
                               int64_t first_row, qr_error *err) {
    qrun_status status = QRUN_OK;
    qr_weight_desc chunk = weight->desc;
    chunk.rows = qr_min(chunk_rows(&weight->desc), weight->desc.rows);
    mxfp4_job job = {.backend = backend, .weight = weight, .packed = &stored->packed, .first_row = first_row};
    job.codes_per_worker = (qr_weight_code_bytes(&chunk) + 63) / 64 * 64;
    job.codes = qr_alloc_array((size_t)qr_threads_count(backend->threads), job.codes_per_worker);
    job.scales = qr_alloc((size_t)qr_weight_blocks(&weight->desc));
    if (job.codes == NULL || job.scales == NULL) {
        QR_TRY(qr_fail_memory(err, stored->codes->name, job.codes_per_worker));
    }
    QR_TRY(run_chunks(backend, &weight->desc, true, put_mxfp4_chunk, &job, err));
    const qr_weight_scales scales = {.absmax_codes = job.scales};
    status = backend->weight_put_scales(backend, weight, &scales, err);
out:
    qr_free(job.codes);
    qr_free(job.scales);
    return status;
}

qrun_status qr_weight_write_stored(qr_backend *backend, qr_weight *weight, const qr_stored_weight *stored, void *room,
                                   qr_error *err) {
    if (stored->packed.kind != QR_PACKING_NONE) { return write_mxfp4(backend, weight, stored, 0, err); }
    put_job job = {.backend = backend, .weight = weight, .codes = stored->data};
    qrun_status status = run_chunks(backend, &weight->desc, true, put_chunk, &job, err);
    if (status != QRUN_OK) {
        qr_error_prefix(err, stored->codes->name);
        return status;
    }
    if (qr_weight_is_plain(weight->desc.format)) { return QRUN_OK; }
    qr_stored_scales made = {0};
    if (room == NULL) { QR_RETURN_IF_ERROR(qr_stored_scales_read(stored, &made, err)); }
    const qr_weight_scales scales = room != NULL ? qr_stored_scales_copy(stored, room) : made.scales;
    status = backend->weight_put_scales(backend, weight, &scales, err);
    qr_stored_scales_free(&made);
    return status;
}

/* ---- Some rows of a matrix --------------------------------------------------------------------------------------- */

/* Scales of a whole matrix, at any alignment: of rows, of blocks or their codes; and what these are nested in. */
typedef struct whole_scales {
    const unsigned char *first, *nested;
    float nested_offset;
} whole_scales;

static whole_scales scales_of(qr_weight_format format, const qr_weight_scales *scales) {
    const void *first = format == QR_WEIGHT_INT8  ? (const void *)scales->row_absmax
                        : format == QR_WEIGHT_NF4 ? (const void *)scales->absmax
                                                  : (const void *)scales->absmax_codes;
    return (whole_scales){first, (const unsigned char *)scales->nested_absmax, scales->nested_offset};
}

/* What a share takes while it is put: its own scales, those that one range is nested in, and a group of rows where
 * ranges meet. In one piece of memory, `base`; NULL: only its size counts. */
typedef struct share_room {
    qr_host_weight own; /* without codes */
    float *nested;
    unsigned char *group;
    size_t n_bytes;
} share_room;

static void *take_room(share_room *room, unsigned char *base, size_t n_bytes) {
    void *at = base != NULL ? base + room->n_bytes : NULL;
    room->n_bytes += (size_t)qr_round_up((int64_t)n_bytes, 64);
    return at;
}

static share_room lay_out_room(const qr_weight_desc *own, const qr_weight_desc *whole, const qr_row_share *share,
                               unsigned char *base) {
    share_room room = {.own = {.desc = *own}};
    const size_t n_blocks = (size_t)qr_weight_blocks(own);
    const size_t n_nested = (size_t)qr_ceil_div((int64_t)n_blocks, QR_NESTED_BLOCK) + 1; /* begins inside of one */
    if (own->format == QR_WEIGHT_INT8) {
        room.own.row_absmax = take_room(&room, base, (size_t)own->rows * sizeof(float));
    } else if (own->format == QR_WEIGHT_NF4) {
        room.own.absmax = take_room(&room, base, n_blocks * sizeof(float));
        if (whole->format == QR_WEIGHT_NF4_DQ) { room.nested = take_room(&room, base, n_nested * sizeof(float)); }
    } else if (own->format == QR_WEIGHT_NF4_DQ) {
        room.own.absmax_codes = take_room(&room, base, n_blocks);
        room.own.nested_absmax = take_room(&room, base, n_nested * sizeof(float));
    }
    if (share->n_ranges > 1) {
        qr_weight_desc group = *own;
        group.rows = qr_min(QR_WEIGHT_ROW_GROUP, own->rows);
        room.group = take_room(&room, base, qr_weight_code_bytes(&group));
    }
    return room;
}

/* The scales of a range of rows, which is from row first_own on in the share. Nested ones become F32 where the share is
 * held so. */
static void take_scales(const qr_weight_desc *whole, const whole_scales *of, const qr_row_range *range,
                        int64_t first_own, share_room *room) {
    qr_host_weight *own = &room->own;
    const int64_t n_rows = range->n, cols = whole->cols;
    if (whole->format == QR_WEIGHT_INT8) {
        memcpy(own->row_absmax + first_own, of->first + (size_t)range->first * sizeof(float),
               (size_t)n_rows * sizeof(float));
        return;
    }
    const int64_t block = range->first * cols / whole->block, at = first_own * cols / whole->block;
    const int64_t n = qr_ceil_div(n_rows * cols, whole->block), nested = block / QR_NESTED_BLOCK;
    const unsigned char *nested_scales = of->nested + (size_t)nested * sizeof(float);
    const size_t nested_bytes = (size_t)(qr_ceil_div(block + n, QR_NESTED_BLOCK) - nested) * sizeof(float);
    if (whole->format == QR_WEIGHT_NF4) {
        memcpy(own->absmax + at, of->first + (size_t)block * sizeof(float), (size_t)n * sizeof(float));
    } else if (own->desc.format == QR_WEIGHT_NF4) {
        memcpy(room->nested, nested_scales, nested_bytes);
        qr_nf4_unnest(of->first + nested * QR_NESTED_BLOCK, room->nested, of->nested_offset, block % QR_NESTED_BLOCK, n,
                      own->absmax + at);
    } else {
        memcpy(own->absmax_codes + at, of->first + block, (size_t)n);
        memcpy(own->nested_absmax + at / QR_NESTED_BLOCK, nested_scales, nested_bytes);
    }
}

static qrun_status put_own_scales(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                                  const qr_row_share *share, const whole_scales *of, share_room *room, qr_error *err) {
    int64_t first_own = 0;
    room->own.nested_offset = of->nested_offset;
    for (int32_t i = 0; i < share->n_ranges; i++) {
        take_scales(whole, of, &share->ranges[i], first_own, room);
        first_own += share->ranges[i].n;
    }
    const qr_weight_scales scales = qr_host_weight_scales(&room->own);
    return backend->weight_put_scales(backend, weight, &scales, err);
}

/* n_rows rows of the weight from first_row on. */
static qrun_status put_codes(qr_backend *backend, qr_weight *weight, int64_t first_row, int64_t n_rows,
                             const unsigned char *codes, qr_error *err) {
    put_job job = {.backend = backend, .weight = weight, .first_row = first_row, .codes = codes};
    qr_weight_desc part = weight->desc;
    part.rows = n_rows;
    return run_chunks(backend, &part, true, put_chunk, &job, err);
}

/* A group of rows that lies in several ranges: from range i on, of which n_done rows are put. Where rows do not fill
 * bytes, ranges begin where groups do, and there is none. */
static void gather_group(const qr_weight_desc *whole, const qr_row_share *share, const unsigned char *codes, int32_t i,
                         int64_t n_done, int64_t n_rows, unsigned char *group) {
    for (; n_rows > 0; i++, n_done = 0) {
        const int64_t n = qr_min(n_rows, share->ranges[i].n - n_done);
        const size_t n_bytes = qr_weight_row_offset(whole, n);
        memcpy(group, codes + qr_weight_row_offset(whole, share->ranges[i].first + n_done), n_bytes);
        group += n_bytes;
        n_rows -= n;
    }
}

/* The codes of all ranges, one after the other: whole groups of rows as they lie there, and those where ranges meet by
 * way of `group`. */
static qrun_status put_ranges(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                              const qr_row_share *share, const unsigned char *codes, unsigned char *group,
                              qr_error *err) {
    const int64_t rows = weight->desc.rows;
    int64_t at = 0, first_own = 0; /* rows that are put; those before range i */
    for (int32_t i = 0; i < share->n_ranges; first_own += share->ranges[i++].n) {
        const int64_t end = first_own + share->ranges[i].n;
        const int64_t n = (end == rows ? end : end / QR_WEIGHT_ROW_GROUP * QR_WEIGHT_ROW_GROUP) - at;
        if (n > 0) {
            const unsigned char *from = codes + qr_weight_row_offset(whole, share->ranges[i].first + at - first_own);
            QR_RETURN_IF_ERROR(put_codes(backend, weight, at, n, from, err));
            at += n;
        }
        if (at >= end) { continue; }
        const int64_t n_group = qr_min(QR_WEIGHT_ROW_GROUP, rows - at);
        gather_group(whole, share, codes, i, at - first_own, n_group, group);
        QR_RETURN_IF_ERROR(put_codes(backend, weight, at, n_group, group, err));
        at += n_group;
    }
    return QRUN_OK;
}

/* Of canonical codes and scales of the whole matrix. memory: as much as lay_out_room says. */
static qrun_status put_rows_of(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                               const qr_row_share *share, const unsigned char *codes, const whole_scales *of,
                               void *memory, qr_error *err) {
    share_room room = lay_out_room(&weight->desc, whole, share, memory);
    if (share->n_ranges == 1) {
        const unsigned char *from = codes + qr_weight_row_offset(whole, share->ranges[0].first);
        QR_RETURN_IF_ERROR(put_codes(backend, weight, 0, weight->desc.rows, from, err));
    } else {
        QR_RETURN_IF_ERROR(put_ranges(backend, weight, whole, share, codes, room.group, err));
    }
    if (qr_weight_is_plain(whole->format)) { return QRUN_OK; }
    return put_own_scales(backend, weight, whole, share, of, &room, err);
}

size_t qr_weight_share_room(const qr_weight_desc *own, const qr_weight_desc *whole, const qr_row_share *share) {
    return lay_out_room(own, whole, share, NULL).n_bytes;
}

/* The same with memory of its own. */
static qrun_status put_rows_once(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                                 const qr_row_share *share, const unsigned char *codes, const whole_scales *of,
                                 const char *name, qr_error *err) {
    const size_t n_bytes = qr_weight_share_room(&weight->desc, whole, share);
    void *memory = qr_alloc(n_bytes);
    if (memory == NULL && n_bytes > 0) { return qr_fail_memory(err, name, n_bytes); }
    const qrun_status status = put_rows_of(backend, weight, whole, share, codes, of, memory, err);
    qr_free(memory);
    return status;
}

/* Whether the source's rows lie one after the other, so that some of them are a source too. Nested scales depend on all
 * rows. */
static bool rows_are_apart(const qr_row_source *source, const qr_weight_desc *whole) {
    return source->packed == NULL && !source->transposed && source->period_rows == 0 && is_in_order(source) &&
           !qr_dtype_is_blocks(source->dtype) && whole->format != QR_WEIGHT_NF4_DQ;
}

qrun_status qr_weight_write_rows_of(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                                    const qr_row_share *share, const qr_row_source *source, const char *name,
                                    qr_error *err) {
    qr_row_source own = *source;
    qr_host_weight host;
    if (share->n_ranges == 1 && rows_are_apart(source, whole)) {
        own.src += (size_t)(share->ranges[0].first * whole->cols) * qr_dtype_bytes(source->dtype);
        return qr_weight_write(backend, weight, &own, name, err);
    }
    QR_RETURN_IF_ERROR(qr_weight_quantize_host(backend, whole, source, name, &host, err));
    const qr_weight_scales scales = qr_host_weight_scales(&host);
    const whole_scales of = scales_of(whole->format, &scales);
    const qrun_status status = put_rows_once(backend, weight, whole, share, host.codes, &of, name, err);
    qr_host_weight_free(&host);
    return status;
}

static const unsigned char *data_of(const qr_safetensors_tensor *tensor) {
    return tensor != NULL ? tensor->data : NULL;
}

qrun_status qr_weight_write_stored_rows(qr_backend *backend, qr_weight *weight, const qr_row_share *share,
                                        const qr_stored_weight *stored, void *room, qr_error *err) {
    const char *name = stored->codes->name;
    const whole_scales of = {data_of(stored->row_absmax != NULL ? stored->row_absmax : stored->absmax),
                             data_of(stored->nested_absmax), stored->nested_offset};
    if (stored->packed.kind != QR_PACKING_NONE) {
        return write_mxfp4(backend, weight, stored, share->ranges[0].first, err);
    }
    const qrun_status status = room != NULL
                                   ? put_rows_of(backend, weight, &stored->desc, share, stored->data, &of, room, err)
                                   : put_rows_once(backend, weight, &stored->desc, share, stored->data, &of, name, err);
    if (status != QRUN_OK) { qr_error_prefix(err, name); }
    return status;
}

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

qrun_status qr_weight_write_floats(qr_backend *backend, float *device, const qr_safetensors_tensor *tensor,
                                   qr_error *err) {
    const qr_float_range all = {.step = 1, .n = qr_tensor_elements(tensor)};
    return qr_weight_write_some_floats(backend, device, tensor, &all, err);
}

static qrun_status take_logarithms(const qr_safetensors_tensor *tensor, float *values, int64_t n, qr_error *err) {
    for (int64_t i = 0; i < n; i++) {
        if (!(values[i] < 0)) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "%s: holds %g, where only negative numbers are possible; is the file "
                           "damaged?",
                           tensor->name, (double)values[i]);
        }
        values[i] = logf(-values[i]);
    }
    return QRUN_OK;
}

qrun_status qr_weight_write_some_floats(qr_backend *backend, float *device, const qr_safetensors_tensor *tensor,
                                        const qr_float_range *range, qr_error *err) {
    const int64_t n = range->n;
    const bool in_order = qr_row_order_is_usual(&tensor->rows) && range->step == 1;
    float *values = qr_alloc_array((size_t)n, sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, tensor->name, (size_t)n * sizeof *values); }
    if (in_order) { qr_elements_to_f32(tensor->dtype, tensor->data, range->first, n, values); }
    for (int64_t i = 0; !in_order && i < n; i++) {
        const int64_t at = qr_stored_row(&tensor->rows, range->first + i * range->step);
        qr_elements_to_f32(tensor->dtype, tensor->data, at, 1, &values[i]);
    }
    qrun_status status = tensor->is_negative_exp ? take_logarithms(tensor, values, n, err) : QRUN_OK;
    if (status == QRUN_OK) { status = backend->copy_in(backend, device, values, (size_t)n * sizeof *values, err); }
    qr_free(values);
    return status;
}
