#include "runtime/folders/merged_tensors.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "quant/int8.h"
#include "quant/nf4.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_writer.h"

enum { TASK_ROWS = 16 };

/* ---- What can be written ----------------------------------------------------------------------------------------- */

/* The largest values that do not round to an infinity. */
static float largest(qr_dtype dtype) {
    return dtype == QR_DTYPE_F16 ? 0x1.FFDFFEp15F : dtype == QR_DTYPE_BF16 ? 0x1.FEFFFEp127F : FLT_MAX;
}

bool qr_merge_fits(const float *values, int64_t n, qr_dtype dtype) {
    const float limit = largest(dtype);
    bool fits = true;
    for (int64_t i = 0; i < n; i++) { fits &= fabsf(values[i]) <= limit; }
    return fits;
}

qrun_status qr_merge_refuse_value(const char *name, qr_dtype dtype, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds a value that is not a number or too large for %s%s", name,
                   qr_dtype_name(dtype),
                   dtype == QR_DTYPE_F16 ? "; write bf16 or f32 instead" : "; are model and adapter intact?");
}

/* ---- W, row by row ----------------------------------------------------------------------------------------------- */

/* W in host memory. Plain: `codes` are its elements, of type dtype; else canonical codes, with their scales in F32. */
typedef struct weight_rows {
    qr_weight_desc desc;
    const unsigned char *codes;
    qr_dtype dtype;
    bool transposed;
    const qr_stored_weight *plain; /* read as it is stored; NULL: it was quantised here */
    const float *absmax, *row_absmax;
    qr_host_weight host;     /* owned; of a matrix that was quantised here */
    qr_stored_scales stored; /* owned; of one that was stored so */
    float *unnested;         /* owned; absmax of a double-quantised one */
} weight_rows;

static void rows_close(weight_rows *rows) {
    qr_host_weight_free(&rows->host);
    qr_stored_scales_free(&rows->stored);
    qr_free(rows->unnested);
}

static qrun_status use_scales(weight_rows *rows, const qr_weight_scales *scales, const char *name, qr_error *err) {
    rows->absmax = scales->absmax;
    rows->row_absmax = scales->row_absmax;
    if (rows->desc.format != QR_WEIGHT_NF4_DQ) { return QRUN_OK; }
    const int64_t n_blocks = qr_weight_blocks(&rows->desc);
    rows->unnested = qr_alloc_array((size_t)n_blocks, sizeof *rows->unnested);
    if (rows->unnested == NULL) { return qr_fail_memory(err, name, (unsigned long long)n_blocks * sizeof(float)); }
    qr_nf4_unnest(scales->absmax_codes, scales->nested_absmax, scales->nested_offset, 0, n_blocks, rows->unnested);
    rows->absmax = rows->unnested;
    return QRUN_OK;
}

static qrun_status quantize(qr_backend *backend, const qr_merge_matrix *matrix, weight_rows *rows, qr_error *err) {
    const qr_safetensors_tensor *tensor = matrix->stored.codes;
    const qr_row_source source = {.src = matrix->stored.data, .dtype = tensor->dtype, .transposed = matrix->transposed};
    rows->desc.format = matrix->quant;
    rows->desc.block = qr_weight_is_nf4(matrix->quant) ? QR_NF4_BLOCK : 0;
    QR_RETURN_IF_ERROR(qr_weight_quantize_host(backend, &rows->desc, &source, tensor->name, &rows->host, err));
    rows->codes = rows->host.codes;
    const qr_weight_scales scales = qr_host_weight_scales(&rows->host);
    return use_scales(rows, &scales, tensor->name, err);
}

static qrun_status rows_open(qr_backend *backend, const qr_merge_matrix *matrix, weight_rows *rows, qr_error *err) {
    const qr_safetensors_tensor *tensor = matrix->base != NULL ? matrix->base : matrix->stored.codes;
    *rows = (weight_rows){.desc = matrix->stored.desc,
                          .codes = matrix->base != NULL ? matrix->base->data : matrix->stored.data,
                          .dtype = tensor->dtype,
                          .transposed = matrix->transposed};
    if (matrix->base != NULL) {
        rows->desc.format = QR_WEIGHT_F32; /* whatever its type: plain */
        return QRUN_OK;
    }
    if (matrix->quantize) { return quantize(backend, matrix, rows, err); }
    rows->plain = &matrix->stored;
    if (matrix->stored.packed.kind != QR_PACKING_NONE) {
        return qr_packed_weight_check_scales(&matrix->stored.packed, 0, rows->desc.rows, err);
    }
    if (qr_weight_is_plain(rows->desc.format)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_stored_scales_read(&matrix->stored, &rows->stored, err));
    return use_scales(rows, &rows->stored.scales, tensor->name, err);
}

static void read_row(const weight_rows *rows, int64_t row, float *dst) {
    const int64_t n_rows = rows->desc.rows, cols = rows->desc.cols;
    if (rows->plain != NULL && rows->plain->packed.kind != QR_PACKING_NONE) {
        qr_packed_weight_rows(&rows->plain->packed, row, 1, dst);
        return;
    }
    if (rows->plain != NULL && rows->plain->wide_rows > 0) {
        qr_stored_rows_to_f32(rows->plain, false, row, 1, dst);
        return;
    }
    switch (rows->desc.format) {
        case QR_WEIGHT_NF4:
        case QR_WEIGHT_NF4_DQ:
            qr_nf4_dequantize(rows->codes, rows->absmax, rows->desc.block, row * cols, cols, dst);
            return;
        case QR_WEIGHT_INT8:
            qr_int8_dequantize_row((const int8_t *)rows->codes + row * cols, rows->row_absmax[row], cols, dst);
            return;
        default: break;
    }
    qr_matrix_rows_to_f32(rows->dtype, rows->codes, n_rows, cols, rows->transposed, row, 1, dst);
}

/* ---- The adapter's part ------------------------------------------------------------------------------------------ */

/* ΔW = left · right. For a linear layer left is B and right A. For an embedding, whose rows are looked up, left is Aᵀ
 * and right Bᵀ. */
typedef struct update {
    float *left, *right; /* [rows, rank], [rank, cols] */
    float *magnitude;    /* [rows]; NULL: plain LoRA */
    int64_t rank;
    float scale;
    float *memory;
} update;

/* The factors of one expert (expert_adapters.h); experts are innermost in B. */
static void read_expert(const qr_merge_matrix *matrix, update *u) {
    const qr_adapter_module *module = matrix->module;
    const int64_t rows = matrix->stored.desc.rows, cols = matrix->stored.desc.cols, rank = u->rank;
    qr_elements_to_f32(module->a->dtype, module->a->data, matrix->expert * rank * cols, rank * cols, u->right);
    for (int64_t i = 0; i < rows * rank; i++) {
        const int64_t row = matrix->first_row + i / rank * matrix->row_step;
        const int64_t at = (row * rank + i % rank) * module->n_stacked + matrix->expert;
        qr_elements_to_f32(module->b->dtype, module->b->data, at, 1, u->left + i);
    }
}

static qrun_status update_read(const qr_merge_matrix *matrix, update *u, qr_error *err) {
    const qr_adapter_module *module = matrix->module;
    *u = (update){0};
    if (module == NULL) { return QRUN_OK; }
    const int64_t rows = matrix->stored.desc.rows, cols = matrix->stored.desc.cols;
    const size_t n = (size_t)(module->rank * (rows + cols) + rows);
    u->memory = qr_alloc_array(n, sizeof *u->memory);
    if (u->memory == NULL) { return qr_fail_memory(err, module->name, n * sizeof *u->memory); }
    u->rank = module->rank;
    u->scale = (float)module->scale;
    u->left = u->memory;
    u->right = u->left + module->rank * rows;
    const qr_safetensors_tensor *left = module->is_embedding ? module->a : module->b;
    const qr_safetensors_tensor *right = module->is_embedding ? module->b : module->a;
    if (module->n_stacked > 1) {
        read_expert(matrix, u);
        return QRUN_OK;
    }
    qr_matrix_rows_to_f32(left->dtype, left->data, rows, u->rank, module->is_embedding, 0, rows, u->left);
    qr_matrix_rows_to_f32(right->dtype, right->data, u->rank, cols, module->is_embedding, 0, u->rank, u->right);
    if (module->magnitude != NULL) {
        u->magnitude = u->right + module->rank * cols;
        qr_elements_to_f32(module->magnitude->dtype, module->magnitude->data, 0, rows, u->magnitude);
    }
    return QRUN_OK;
}

/* w [cols] becomes the merged row; delta [cols] is scratch. */
static void merge_row(const update *u, int64_t row, int64_t cols, float *w, float *delta) {
    memset(delta, 0, (size_t)cols * sizeof *delta);
    for (int64_t j = 0; j < u->rank; j++) {
        const float factor = u->left[row * u->rank + j];
        const float *right = u->right + j * cols;
        for (int64_t c = 0; c < cols; c++) { delta[c] += factor * right[c]; }
    }
    for (int64_t c = 0; c < cols; c++) { w[c] += u->scale * delta[c]; }
    if (u->magnitude == NULL) { return; }
    double squares = 0;
    for (int64_t c = 0; c < cols; c++) { squares += (double)w[c] * (double)w[c]; }
    const float factor = (float)((double)u->magnitude[row] / sqrt(squares));
    for (int64_t c = 0; c < cols; c++) { w[c] *= factor; }
}

/* ---- All rows ---------------------------------------------------------------------------------------------------- */

typedef struct merge_job {
    weight_rows rows;
    update update;
    qr_dtype dtype;
    unsigned char *dst;
    int64_t width, first, step; /* not 0: row r is column first + r · step of dst [cols, width] */
    float *scratch;             /* per worker: two rows */
    atomic_bool is_broken;
} merge_job;

static void write_row(const merge_job *job, int64_t row, const float *values, void *scratch) {
    const int64_t cols = job->rows.desc.cols, column = job->first + row * job->step;
    const size_t element = qr_dtype_bytes(job->dtype);
    if (job->width == 0) {
        qr_elements_from_f32(job->dtype, values, cols, job->dst + (size_t)(row * cols) * element);
        return;
    }
    qr_elements_from_f32(job->dtype, values, cols, scratch);
    for (int64_t c = 0; c < cols; c++) {
        memcpy(job->dst + (size_t)(c * job->width + column) * element, (unsigned char *)scratch + (size_t)c * element,
               element);
    }
}

static void merge_task(void *arg, int64_t index, int worker) {
    merge_job *job = arg;
    const int64_t n_rows = job->rows.desc.rows, cols = job->rows.desc.cols;
    float *w = job->scratch + (int64_t)worker * 2 * cols, *scratch = w + cols;
    const int64_t end = qr_min(n_rows, (index + 1) * TASK_ROWS);
    for (int64_t row = index * TASK_ROWS; row < end; row++) {
        read_row(&job->rows, row, w);
        if (job->update.rank > 0) { merge_row(&job->update, row, cols, w, scratch); }
        if (!qr_merge_fits(w, cols, job->dtype)) { atomic_store(&job->is_broken, true); }
        write_row(job, row, w, scratch);
    }
}

qrun_status qr_merge_matrix_compute(qr_backend *backend, const qr_merge_matrix *matrix, qr_dtype dtype, void *dst,
                                    qr_error *err) {
    merge_job job = {.dtype = dtype, .dst = dst};
    const qr_weight_desc *desc = &matrix->stored.desc;
    const size_t n_scratch = (size_t)qr_threads_count(backend->threads) * 2 * (size_t)desc->cols;
    qrun_status status = QRUN_OK;
    if (matrix->transposed) { job.width = desc->rows, job.step = 1; }
    if (matrix->wide_rows > 0) {
        job.width = matrix->wide_rows, job.first = matrix->first_column, job.step = matrix->row_step;
    }
    QR_TRY(rows_open(backend, matrix, &job.rows, err));
    QR_TRY(update_read(matrix, &job.update, err));
    job.scratch = qr_alloc_array(n_scratch, sizeof *job.scratch);
    if (job.scratch == NULL) { QR_TRY(qr_fail_memory(err, matrix->stored.codes->name, n_scratch * sizeof(float))); }
    qr_threads_run(backend->threads, qr_ceil_div(desc->rows, TASK_ROWS), merge_task, &job);
    if (atomic_load(&job.is_broken)) { status = qr_merge_refuse_value(matrix->stored.codes->name, dtype, err); }
out:
    rows_close(&job.rows);
    qr_free(job.update.memory);
    qr_free(job.scratch);
    return status;
}
