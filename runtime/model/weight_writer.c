#include "runtime/model/weight_writer.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "quant/nf4.h"

/* Elements of a chunk: its source (2 MB in BF16) stays in the L2 cache between being read and being packed. */
enum { CHUNK_ELEMENTS = 1 << 20, NEST_CHUNK_BLOCKS = 64 * QR_NESTED_BLOCK };

static qr_weight_format plain_format(qr_dtype dtype) {
    return dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16 : dtype == QR_DTYPE_BF16 ? QR_WEIGHT_BF16 : QR_WEIGHT_F32;
}

static int64_t chunk_rows(const qr_weight_desc *desc) {
    return qr_max(CHUNK_ELEMENTS / desc->cols / QR_WEIGHT_ROW_GROUP, 1) * QR_WEIGHT_ROW_GROUP;
}

/* One matrix on its way: shared by the workers. */
typedef struct write_job {
    qr_backend *backend;
    qr_weight *weight; /* NULL: codes go to `codes` */
    qr_weight_desc desc;
    const qr_row_source *source;
    unsigned char *codes; /* host: the whole matrix, or one chunk per worker */
    unsigned char *rows;  /* per worker: gathered source rows; NULL where chunks lie contiguous in the source */
    float *scales;        /* of the whole matrix */
    int64_t rows_per_chunk;
    size_t codes_per_worker, rows_per_worker; /* bytes */
    pthread_mutex_t lock;                     /* guards status and err */
    qrun_status status;
    qr_error err;
} write_job;

/* Whether the device takes the source's rows as they are. */
static bool is_direct(const write_job *job) { return job->weight != NULL && job->backend->takes_sources; }

/* Whether scales pass through the host: those that the device makes itself do only to be nested. */
static bool needs_scales(const write_job *job) {
    return job->desc.format == QR_WEIGHT_NF4_DQ || (job->desc.format >= QR_WEIGHT_INT8 && !is_direct(job));
}

static void gather_transposed(const qr_row_source *source, const qr_weight_desc *desc, int64_t first, int64_t n_rows,
                              unsigned char *dst) {
    const size_t element = qr_dtype_bytes(source->dtype);
    for (int64_t c = 0; c < desc->cols; c++) {
        const unsigned char *src = source->src + (size_t)(c * desc->rows + first) * element;
        for (int64_t r = 0; r < n_rows; r++) {
            memcpy(dst + (size_t)(r * desc->cols + c) * element, src + (size_t)r * element, element);
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

static const unsigned char *source_rows(const write_job *job, int64_t first, int64_t n_rows, int worker) {
    if (job->rows == NULL) {
        return job->source->src + (size_t)(first * job->desc.cols) * qr_dtype_bytes(job->source->dtype);
    }
    unsigned char *dst = job->rows + (size_t)worker * job->rows_per_worker;
    if (job->source->transposed) {
        gather_transposed(job->source, &job->desc, first, n_rows, dst);
    } else {
        gather_periodic(job->source, &job->desc, first, n_rows, dst);
    }
    return dst;
}

static qrun_status write_chunk(write_job *job, int64_t first, int64_t n_rows, int worker, qr_error *err) {
    const unsigned char *src = source_rows(job, first, n_rows, worker);
    const qr_weight_desc *desc = &job->desc;
    const int64_t first_scale = qr_weight_is_nf4(desc->format) ? first * desc->cols / desc->block : first;
    float *scales = job->scales != NULL ? job->scales + first_scale : NULL;
    if (is_direct(job)) {
        return job->backend->weight_put_source(job->backend, job->weight, first, n_rows, job->source->dtype, src,
                                               scales, err);
    }
    if (job->weight != NULL && plain_format(job->source->dtype) == desc->format) {
        return job->backend->weight_put_rows(job->backend, job->weight, first, n_rows, src, err);
    }
    unsigned char *codes = job->weight != NULL ? job->codes + (size_t)worker * job->codes_per_worker
                                               : job->codes + qr_weight_row_offset(desc, first);
    const qr_quantize_args args = {
        .format = desc->format == QR_WEIGHT_NF4_DQ ? QR_WEIGHT_NF4 : desc->format,
        .block = desc->block,
        .src_dtype = job->source->dtype,
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

static void write_chunk_task(void *arg, int64_t index, int worker) {
    write_job *job = arg;
    const int64_t first = index * job->rows_per_chunk;
    qr_error err = {0};
    const qrun_status status =
        write_chunk(job, first, qr_min(job->rows_per_chunk, job->desc.rows - first), worker, &err);
    if (status == QRUN_OK) { return; }
    pthread_mutex_lock(&job->lock);
    if (job->status == QRUN_OK) { job->status = status, job->err = err; }
    pthread_mutex_unlock(&job->lock);
}

/* What is still on its way to a weight, or from it to its scales. */
static qrun_status wait_for_device(qr_backend *backend, const qr_weight *weight, qr_error *err) {
    return weight != NULL && backend->loading_wait != NULL ? backend->loading_wait(backend, err) : QRUN_OK;
}

static qrun_status run_chunks(write_job *job, qr_error *err) {
    pthread_mutex_init(&job->lock, NULL);
    qr_threads_run(job->backend->threads, qr_ceil_div(job->desc.rows, job->rows_per_chunk), write_chunk_task, job);
    pthread_mutex_destroy(&job->lock);
    const qrun_status status = wait_for_device(job->backend, job->weight, err);
    return job->status == QRUN_OK ? status : qr_fail(err, job->status, "%s", job->err.message);
}

/* Memory that the chunks need beside the source: `codes` when they go through the backend, gathered rows. */
static qrun_status make_staging(write_job *job, const char *name, qr_error *err) {
    const int n_workers = qr_threads_count(job->backend->threads);
    const qr_weight_desc chunk = {job->desc.format, job->desc.block, qr_min(job->rows_per_chunk, job->desc.rows),
                                  job->desc.cols};
    if (job->weight != NULL && !is_direct(job) && plain_format(job->source->dtype) != job->desc.format) {
        job->codes_per_worker = (qr_weight_code_bytes(&chunk) + 63) / 64 * 64;
        job->codes = qr_alloc_array((size_t)n_workers, job->codes_per_worker);
        if (job->codes == NULL) { return qr_fail_memory(err, name, job->codes_per_worker * (size_t)n_workers); }
    }
    if (job->source->transposed || job->source->period_rows > 0) {
        job->rows_per_worker = (size_t)(chunk.rows * chunk.cols) * qr_dtype_bytes(job->source->dtype);
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
    nest_job job = {host->absmax, n_blocks, host->nested_offset, host->absmax_codes, host->nested_absmax};
    qr_threads_run(backend->threads, qr_ceil_div(n_blocks, NEST_CHUNK_BLOCKS), nest_task, &job);
    return QRUN_OK;
}

static qrun_status make_scales(const qr_weight_desc *desc, const char *name, qr_host_weight *host, qr_error *err) {
    const int64_t n = desc->format == QR_WEIGHT_INT8 ? desc->rows : qr_weight_blocks(desc);
    float *scales = qr_alloc_array((size_t)n, sizeof(float));
    if (scales == NULL) { return qr_fail_memory(err, name, (unsigned long long)n * sizeof(float)); }
    if (desc->format == QR_WEIGHT_INT8) {
        host->row_absmax = scales;
    } else {
        host->absmax = scales;
    }
    return QRUN_OK;
}

/* Quantises into host->codes, or into `weight` when that is not NULL; fills the scales of `host` either way, but for
 * those that `weight` has already. */
static qrun_status quantize(qr_backend *backend, const qr_weight_desc *desc, const qr_row_source *source,
                            const char *name, qr_weight *weight, qr_host_weight *host, qr_error *err) {
    qrun_status status = QRUN_OK;
    write_job job = {.backend = backend,
                     .weight = weight,
                     .desc = *desc,
                     .source = source,
                     .codes = host->codes,
                     .rows_per_chunk = chunk_rows(desc)};
    if (needs_scales(&job)) { QR_TRY(make_scales(desc, name, host, err)); }
    job.scales = host->absmax != NULL ? host->absmax : host->row_absmax;
    QR_TRY(make_staging(&job, name, err));
    QR_TRY(run_chunks(&job, err));
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
        const qr_weight_scales scales = {host.row_absmax, host.absmax, host.absmax_codes, host.nested_absmax,
                                         host.nested_offset};
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

void qr_host_weight_free(qr_host_weight *host) {
    qr_free(host->codes);
    qr_free(host->row_absmax);
    qr_free(host->absmax);
    qr_free(host->absmax_codes);
    qr_free(host->nested_absmax);
    *host = (qr_host_weight){0};
}

/* ---- Weights that are stored in their own format ----------------------------------------------------------------- */

typedef struct put_job {
    qr_backend *backend;
    qr_weight *weight;
    const unsigned char *codes;
    int64_t rows_per_chunk;
    pthread_mutex_t lock;
    qrun_status status;
    qr_error err;
} put_job;

static void put_task(void *arg, int64_t index, int worker) {
    (void)worker;
    put_job *job = arg;
    const qr_weight_desc *desc = &job->weight->desc;
    const int64_t first = index * job->rows_per_chunk;
    qr_error err = {0};
    const qrun_status status =
        job->backend->weight_put_rows(job->backend, job->weight, first, qr_min(job->rows_per_chunk, desc->rows - first),
                                      job->codes + qr_weight_row_offset(desc, first), &err);
    if (status == QRUN_OK) { return; }
    pthread_mutex_lock(&job->lock);
    if (job->status == QRUN_OK) { job->status = status, job->err = err; }
    pthread_mutex_unlock(&job->lock);
}

qrun_status qr_weight_write_stored(qr_backend *backend, qr_weight *weight, const qr_stored_weight *stored,
                                   qr_error *err) {
    put_job job = {.backend = backend,
                   .weight = weight,
                   .codes = stored->codes->data,
                   .rows_per_chunk = chunk_rows(&weight->desc)};
    pthread_mutex_init(&job.lock, NULL);
    qr_threads_run(backend->threads, qr_ceil_div(weight->desc.rows, job.rows_per_chunk), put_task, &job);
    pthread_mutex_destroy(&job.lock);
    qrun_status status = wait_for_device(backend, weight, err);
    if (job.status != QRUN_OK) { return qr_fail(err, job.status, "%s: %s", stored->codes->name, job.err.message); }
    if (status != QRUN_OK || weight->desc.format < QR_WEIGHT_INT8) { return status; }
    qr_stored_scales scales;
    status = qr_stored_scales_read(stored, &scales, err);
    if (status == QRUN_OK) { status = backend->weight_put_scales(backend, weight, &scales.scales, err); }
    qr_stored_scales_free(&scales);
    return status;
}
