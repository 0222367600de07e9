/* A model, with an adapter merged into it or without, as one GGUF file; or an adapter alone (gguf_lora.c). */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/params.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"
#include "loaders/source/model_source.h"
#include "quant/ggml.h"
#include "runtime/folders/gguf_export.h"
#include "runtime/folders/gguf_metadata.h"
#include "runtime/folders/merged_tensors.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_writer.h"

enum { CHUNK_ELEMENTS = 1 << 22, TASK_ROWS = 16 };

/* A tensor of the file: a matrix [rows, cols], a vector as one of a column, or such matrices of all experts. */
typedef struct output_tensor {
    char name[QR_GGUF_NAME_BYTES];
    size_t output;                  /* of the merged tensors: whose values it has */
    const qr_merge_matrix *experts; /* [n_experts], each `step` after the one before; NULL: it is no stack */
    const qr_merge_matrix *ups;     /* as many more, each of which follows one of `experts`; NULL: none */
    int64_t n_experts, step;
    int64_t source_bytes;
    int n_dims;
    int64_t dims[2];
    qr_dtype dtype;
    bool transposed; /* the values are [cols, rows] */
    bool adds_one;
    bool is_log; /* what is written is minus its exponential */
    qr_row_order rows, columns;
    const qr_gguf_part *part; /* it has these rows of the values; NULL: all */
    int64_t n_source_rows;    /* of the values */
} output_tensor;

typedef struct export_job {
    const qrun_export_params *params;
    qrun_export_result result;
    qrun_model model; /* described; no weights */
    qr_safetensors *source;
    qr_adapter *adapter, none;
    qr_merged_tensors merged;
    const qr_gguf_arch *arch;
    qr_dtype dtype;
    output_tensor *tensors;
    size_t n_tensors;
    qr_gguf_part *parts; /* of matrices that are two in the file */
    qr_gguf_writer writer;
    unsigned char *chunk;
    float *scratch; /* two rows for each worker */
    int64_t done_bytes, total_bytes;
} export_job;

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

qr_dtype qr_gguf_type_dtype(qrun_gguf_type type) {
    static const qr_dtype dtypes[] = {
        [QRUN_GGUF_AUTO] = QR_DTYPE_Q8_0, [QRUN_GGUF_F32] = QR_DTYPE_F32,   [QRUN_GGUF_F16] = QR_DTYPE_F16,
        [QRUN_GGUF_BF16] = QR_DTYPE_BF16, [QRUN_GGUF_Q8_0] = QR_DTYPE_Q8_0, [QRUN_GGUF_Q4_0] = QR_DTYPE_Q4_0,
    };
    return dtypes[type];
}

static qrun_status check_params(const qrun_export_params *params, const qrun_export_result *result, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_export_params, params, err));
    if (result != NULL) { QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_export_result, result, err)); }
    if (params->path == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no model path was given"); }
    if (params->out == NULL || params->out[0] == '\0') {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "no file to write was given");
    }
    if ((unsigned)params->format > QRUN_EXPORT_GGUF_LORA) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "format %d is not one of qrun_export_format", (int)params->format);
    }
    if ((unsigned)params->type > QRUN_GGUF_Q4_0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "type %d is not one of qrun_gguf_type", (int)params->type);
    }
    if (qr_file_is_folder(params->out)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: is a folder, and a GGUF model is one file; give a name that ends "
                       "in .gguf",
                       params->out);
    }
    return QRUN_OK;
}

/* ---- The list of tensors ----------------------------------------------------------------------------------------- */

/* Without the prefix of this checkpoint. */
static const char *bare_name(const qrun_model *model, const char *name) {
    const size_t n = strlen(model->prefix);
    return strncmp(name, model->prefix, n) == 0 ? name + n : name;
}

static qr_dtype choose_dtype(const export_job *job, const output_tensor *tensor) {
    const bool is_table = strncmp(tensor->name, "token_embd", 10) == 0 || strncmp(tensor->name, "output.", 7) == 0 ||
                          strncmp(tensor->name, "per_layer_token_embd", 20) == 0;
    const bool is_kept_wide =
        strstr(tensor->name, ".ffn_gate_inp") != NULL || strstr(tensor->name, ".ssm_conv1d") != NULL ||
        strstr(tensor->name, ".shortconv.conv.") != NULL || qr_ends_with(tensor->name, "_norm.weight") ||
        qr_ends_with(tensor->name, ".ssm_a") || qr_ends_with(tensor->name, ".ssm_d");
    if (is_kept_wide || qr_ends_with(tensor->name, ".bias")) { return QR_DTYPE_F32; }
    if (tensor->n_dims == 1 || strncmp(tensor->name, "position_embd", 13) == 0) { return QR_DTYPE_F32; }
    if (!qr_dtype_is_blocks(job->dtype)) { return job->dtype; }
    if (tensor->dims[1] % qr_dtype_block_elements(job->dtype) != 0) { return QR_DTYPE_F16; }
    return is_table ? QR_DTYPE_Q8_0 : job->dtype;
}

/* Whether it is of a layer after the last, which predicts tokens further on. */
static bool is_ahead(const export_job *job, const char *gguf) {
    static const char block[] = "blk.";
    if (strncmp(gguf, block, sizeof block - 1) != 0) { return false; }
    return strtoll(gguf + sizeof block - 1, NULL, 10) >= job->model.shape.n_layers;
}

/* Vectors of a state space are matrices there: of one column, or of a row for each group. */
static void shape_space_vector(const export_job *job, output_tensor *tensor) {
    if (qr_ends_with(tensor->name, ".ssm_a") || qr_ends_with(tensor->name, ".ssm_d")) { tensor->n_dims = 2; }
    if (!qr_ends_with(tensor->name, ".ssm_norm.weight")) { return; }
    tensor->n_dims = 2;
    tensor->dims[1] = tensor->dims[0] / job->model.shape.recurrent.n_key_heads;
    tensor->dims[0] = tensor->n_source_rows = job->model.shape.recurrent.n_key_heads;
}

/* False for a tensor that the file does not have: an image encoder's. name: of transformers. */
static bool describe_tensor(const export_job *job, size_t output, const char *name, output_tensor *tensor) {
    const qrun_model *model = &job->model;
    const qr_safetensors_spec *spec = &job->merged.specs[output];
    *tensor = (output_tensor){.output = output, .n_dims = spec->n_dims};
    if (!qr_gguf_name_from_hf(job->arch, name, tensor->name) || is_ahead(job, tensor->name)) { return false; }
    const bool is_conv = spec->n_dims == 3 && spec->dims[1] == 1; /* [C, 1, kernel] */
    if (is_conv) { tensor->n_dims = 2; }
    if (spec->n_dims < 1 || (spec->n_dims > 2 && !is_conv)) { return false; }
    const bool is_linear =
        spec->n_dims == 2 && qr_is_last_part(tensor->name, "weight") && strncmp(tensor->name, "blk.", 4) == 0;
    tensor->transposed = is_linear && model->family->transposed;
    tensor->dims[0] = spec->dims[tensor->transposed ? 1 : 0];
    tensor->n_source_rows = tensor->dims[0];
    tensor->dims[1] = spec->n_dims == 1 ? 1 : spec->dims[is_conv ? 2 : tensor->transposed ? 0 : 1];
    if (job->arch->has_spaces) { shape_space_vector(job, tensor); }
    tensor->adds_one = job->arch->adds_one && qr_ends_with(name, "norm.weight") && strstr(name, "linear_attn") == NULL;
    tensor->is_log = qr_ends_with(name, ".A_log");
    const qr_gguf_heads heads = qr_gguf_heads_of(model);
    tensor->rows = qr_gguf_row_order(&heads, job->arch, name);
    tensor->columns = qr_gguf_column_order(&heads, job->arch, name);
    tensor->dtype = choose_dtype(job, tensor);
    tensor->source_bytes = (int64_t)job->merged.outputs[output].source->n_bytes;
    return true;
}

/* The matrices of a layer's experts as one tensor. */
static output_tensor *add_stack(export_job *job, int64_t layer, qr_tensor_role role, const char *part) {
    output_tensor *t = &job->tensors[job->n_tensors++];
    *t = (output_tensor){.n_dims = 2, .n_experts = job->model.shape.n_experts};
    (void)snprintf(t->name, sizeof t->name, "blk.%lld.ffn_%s_exps.weight", (long long)layer, part);
    t->experts = qr_merged_experts(&job->merged, layer, role, &t->step);
    t->dims[0] = t->n_source_rows = t->experts->stored.desc.rows;
    t->dims[1] = t->experts->stored.desc.cols;
    t->dtype = choose_dtype(job, t);
    t->source_bytes = (int64_t)t->experts->stored.n_bytes * t->n_experts;
    return t;
}

/* Gate and up are two, or where llama.cpp's converter leaves them as the folder has them one. */
static void add_stacks(export_job *job) {
    const bool is_fused = job->arch->experts != NULL && job->arch->experts->joins_gate_up;
    for (int64_t l = 0; l < job->model.shape.n_layers; l++) {
        if (job->model.layers[l].expert_gate == NULL) { continue; }
        if (qr_family_experts_in(job->model.family) == 1) { /* no gate: the one matrix is in its place */
            (void)add_stack(job, l, QR_ROLE_EXPERT_GATE, "up");
            (void)add_stack(job, l, QR_ROLE_EXPERT_OUT, "down");
            continue;
        }
        output_tensor *gate = add_stack(job, l, QR_ROLE_EXPERT_GATE, is_fused ? "gate_up" : "gate");
        if (is_fused) {
            gate->ups = qr_merged_experts(&job->merged, l, QR_ROLE_EXPERT_UP, &gate->step);
            gate->source_bytes *= 2;
        } else {
            (void)add_stack(job, l, QR_ROLE_EXPERT_UP, "up");
        }
        (void)add_stack(job, l, QR_ROLE_EXPERT_OUT, "down");
    }
}

/* Adds the parts of a matrix that is two in the file; false: it is not. */
static bool add_parts(export_job *job, size_t output, const char *name, qr_gguf_part parts[2]) {
    const qr_safetensors_spec *spec = &job->merged.specs[output];
    const qr_gguf_heads heads = qr_gguf_heads_of(&job->model);
    const int n_parts = spec->n_dims == 2 ? qr_gguf_split(&heads, job->arch, name, spec->dims[0], parts) : 0;
    for (int i = 0; i < n_parts; i++) {
        output_tensor *tensor = &job->tensors[job->n_tensors++];
        (void)describe_tensor(job, output, parts[i].name, tensor);
        tensor->part = &parts[i];
        tensor->dims[0] = 0;
        for (size_t g = 0; g < QR_COUNT_OF(parts[i].groups); g++) { tensor->dims[0] += parts[i].groups[g].n_rows; }
        if (parts[i].is_turned) {
            const int64_t of_head = tensor->dims[0] / parts[i].n_heads;
            tensor->dims[0] = parts[i].n_heads * tensor->dims[1];
            tensor->dims[1] = of_head;
            tensor->dtype = choose_dtype(job, tensor);
        }
        tensor->source_bytes /= n_parts;
    }
    return n_parts > 0;
}

static qrun_status list_tensors(export_job *job, qr_error *err) {
    const size_t n_layers = (size_t)job->model.shape.n_layers, n_stacks = 3 * n_layers;
    size_t n_split = 0;
    job->tensors = qr_alloc_array(job->merged.n_outputs + n_stacks + n_layers + 1, sizeof *job->tensors);
    job->parts = qr_alloc_array(2 * n_layers, sizeof *job->parts); /* a layer has one such matrix at most */
    if (job->tensors == NULL || job->parts == NULL) {
        return qr_fail_memory(err, "the list of tensors", job->merged.n_outputs);
    }
    const output_tensor *embedding = NULL;
    bool has_head = false;
    for (size_t i = 0; i < job->merged.n_outputs; i++) {
        output_tensor *tensor = &job->tensors[job->n_tensors];
        const char *name = bare_name(&job->model, job->merged.specs[i].name);
        if (n_split < n_layers && add_parts(job, i, name, job->parts + 2 * n_split)) {
            n_split++;
            continue;
        }
        if (!describe_tensor(job, i, name, tensor)) { continue; }
        if (strcmp(tensor->name, "token_embd.weight") == 0) { embedding = tensor; }
        has_head |= strcmp(tensor->name, "output.weight") == 0;
        job->n_tensors++;
    }
    if (embedding == NULL) { return qr_fail(err, QRUN_ERROR_INTERNAL, "%s: there is no embedding", job->model.folder); }
    if (!has_head && strcmp(job->arch->name, "olmo2") == 0) { /* llama.cpp has no tied head there */
        output_tensor *head = &job->tensors[job->n_tensors++];
        *head = *embedding;
        (void)snprintf(head->name, sizeof head->name, "output.weight");
    }
    add_stacks(job);
    for (size_t i = 0; i < job->n_tensors; i++) { job->total_bytes += job->tensors[i].source_bytes; }
    return QRUN_OK;
}

static int64_t vocab_rows(const export_job *job) {
    for (size_t i = 0; i < job->n_tensors; i++) {
        if (strcmp(job->tensors[i].name, "token_embd.weight") == 0) { return job->tensors[i].dims[0]; }
    }
    return 0;
}

static qrun_status open_all(export_job *job, qrun_context *context, qr_error *err) {
    const qrun_export_params *params = job->params;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = params->path;
    QR_RETURN_IF_ERROR(qr_model_prepare(context, &model_params, &job->model, &job->source, err));
    QR_RETURN_IF_ERROR(qr_source_require_folder(job->model.folder, "exporting", err));
    QR_RETURN_IF_ERROR(qr_merge_refuse_packed(&job->model, err));
    QR_RETURN_IF_ERROR(qr_gguf_choose_arch(&job->model, &job->arch, err));
    if (params->adapter != NULL) { QR_RETURN_IF_ERROR(qr_adapter_open(params->adapter, &job->adapter, err)); }
    job->merged.model = &job->model;
    job->merged.source = job->source;
    job->merged.adapter = job->adapter != NULL ? job->adapter : &job->none;
    job->merged.dtype = QR_DTYPE_F32;
    const qrun_status status = qr_merged_tensors_list(&job->merged, err);
    if (status != QRUN_OK && params->adapter != NULL) { qr_error_prefix(err, params->adapter); }
    return status == QRUN_OK ? list_tensors(job, err) : status;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Where the values of a tensor come from: F32 that were computed, or elements of a stored tensor. */
typedef struct row_job {
    const export_job *job;
    const output_tensor *tensor;
    qr_dtype dtype;
    const void *data;
    int64_t first, n_rows; /* of this chunk */
    size_t row_bytes;
    atomic_bool is_broken;
} row_job;

/* The row of the values that row `row` of the tensor has. */
static int64_t source_row(const output_tensor *t, int64_t row) {
    if (t->part == NULL) { return qr_row_of_stored(&t->rows, row); }
    const qr_row_groups *groups = t->part->groups;
    for (; row >= groups->n_rows; groups++) { row -= groups->n_rows; }
    return qr_grouped_row(groups, row);
}

/* Row c of a head is column c of the head's rows. */
static void read_turned(const row_job *rows, int64_t row, float *values) {
    const output_tensor *t = rows->tensor;
    const int64_t n_columns = t->dims[0] / t->part->n_heads, head = row / n_columns, column = row % n_columns;
    for (int64_t i = 0; i < t->dims[1]; i++) {
        const int64_t source = qr_grouped_row(&t->part->groups[0], head * t->dims[1] + i);
        qr_elements_to_f32(rows->dtype, rows->data, source * n_columns + column, 1, values + i);
    }
}

static void write_row(const row_job *rows, int64_t row, float *values, unsigned char *dst) {
    const output_tensor *t = rows->tensor;
    const int64_t cols = t->dims[1];
    const bool in_order = qr_row_order_is_usual(&t->columns);
    float *read = in_order ? values : values + cols;
    if (t->part != NULL && t->part->is_turned) {
        read_turned(rows, row, read);
    } else {
        qr_matrix_rows_to_f32(rows->dtype, rows->data, t->n_source_rows, cols, t->transposed, source_row(t, row), 1,
                              read);
    }
    for (int64_t c = 0; !in_order && c < cols; c++) { values[c] = read[qr_row_of_stored(&t->columns, c)]; }
    for (int64_t c = 0; t->adds_one && c < cols; c++) { values[c] += 1.0F; }
    for (int64_t c = 0; t->is_log && c < cols; c++) { values[c] = -expf(values[c]); }
    if (qr_dtype_is_blocks(t->dtype)) {
        qr_ggml_quantize(t->dtype, values, cols / qr_dtype_block_elements(t->dtype), dst);
    } else {
        qr_elements_from_f32(t->dtype, values, cols, dst);
    }
}

static void row_task(void *arg, int64_t index, int worker) {
    row_job *rows = arg;
    const output_tensor *t = rows->tensor;
    float *values = rows->job->scratch + (int64_t)worker * 2 * t->dims[1];
    const int64_t end = qr_min(rows->n_rows, (index + 1) * TASK_ROWS);
    for (int64_t r = index * TASK_ROWS; r < end; r++) {
        write_row(rows, rows->first + r, values, rows->job->chunk + (size_t)r * rows->row_bytes);
        const qr_dtype limit = qr_dtype_is_blocks(t->dtype) ? QR_DTYPE_F16 : t->dtype;
        if (!qr_merge_fits(values, t->dims[1], limit)) { atomic_store(&rows->is_broken, true); }
    }
}

static qrun_status write_rows(export_job *job, const output_tensor *t, qr_dtype dtype, const void *data,
                              qr_error *err) {
    qr_threads *threads = job->model.context->backend->threads;
    row_job rows = {.job = job, .tensor = t, .dtype = dtype, .data = data};
    const int64_t most_rows = qr_max(CHUNK_ELEMENTS / t->dims[1], 1);
    const int64_t row_dims[1] = {t->dims[1]};
    rows.row_bytes = (size_t)qr_gguf_tensor_bytes(t->dtype, 1, row_dims);
    const size_t n_scratch = (size_t)qr_threads_count(threads) * 2 * (size_t)t->dims[1];
    qrun_status status = QRUN_OK;
    job->chunk = qr_alloc_array((size_t)qr_min(most_rows, t->dims[0]), rows.row_bytes);
    job->scratch = qr_alloc_array(n_scratch, sizeof *job->scratch);
    if (job->chunk == NULL || job->scratch == NULL) { QR_TRY(qr_fail_memory(err, t->name, n_scratch * sizeof(float))); }
    for (rows.first = 0; rows.first < t->dims[0]; rows.first += rows.n_rows) {
        rows.n_rows = qr_min(most_rows, t->dims[0] - rows.first);
        qr_threads_run(threads, qr_ceil_div(rows.n_rows, TASK_ROWS), row_task, &rows);
        if (atomic_load(&rows.is_broken)) {
            QR_TRY(qr_merge_refuse_value(t->name, qr_dtype_is_blocks(t->dtype) ? QR_DTYPE_F16 : t->dtype, err));
        }
        QR_TRY(qr_gguf_write(&job->writer, job->chunk, (size_t)rows.n_rows * rows.row_bytes, err));
    }
out:
    qr_free(job->chunk);
    qr_free(job->scratch);
    job->chunk = NULL;
    job->scratch = NULL;
    return status;
}

/* A matrix that the adapter changes, or that is stored quantised, is computed whole in F32; and so is an expert's. */
static qrun_status write_computed(export_job *job, const output_tensor *t, const qr_merge_matrix *matrix,
                                  qr_error *err) {
    const int64_t cols = t->part != NULL && t->part->is_turned ? t->dims[0] / t->part->n_heads : t->dims[1];
    const size_t n_bytes = (size_t)(t->n_source_rows * cols) * sizeof(float);
    float *values = qr_alloc(n_bytes);
    qrun_status status = QRUN_OK;
    if (values == NULL) { return qr_fail_memory(err, t->name, n_bytes); }
    QR_TRY(qr_merge_matrix_compute(job->model.context->backend, matrix, QR_DTYPE_F32, values, err));
    QR_TRY(write_rows(job, t, QR_DTYPE_F32, values, err));
out:
    qr_free(values);
    return status;
}

static qrun_status write_matrices(export_job *job, const output_tensor *t, qr_error *err) {
    for (int64_t e = 0; e < t->n_experts; e++) {
        QR_RETURN_IF_ERROR(write_computed(job, t, t->experts + e * t->step, err));
        if (t->ups != NULL) { QR_RETURN_IF_ERROR(write_computed(job, t, t->ups + e * t->step, err)); }
    }
    if (t->n_experts > 0) { return QRUN_OK; }
    const qr_merge_output *output = &job->merged.outputs[t->output];
    return output->matrix != NULL ? write_computed(job, t, output->matrix, err)
                                  : write_rows(job, t, output->source->dtype, output->source->data, err);
}

static qrun_status write_tensor(export_job *job, const output_tensor *t, qr_error *err) {
    qr_compute_lock(job->model.context);
    qrun_status status = write_matrices(job, t, err);
    qr_compute_unlock(job->model.context);
    return status == QRUN_OK ? qr_gguf_end_tensor(&job->writer, err) : status;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static uint32_t file_type(qr_dtype dtype) {
    return dtype == QR_DTYPE_F32    ? 0
           : dtype == QR_DTYPE_F16  ? 1
           : dtype == QR_DTYPE_Q4_0 ? 2
           : dtype == QR_DTYPE_Q8_0 ? 7
                                    : 32;
}

static qrun_status begin_file(export_job *job, const char *const names[2], int n_factors, qr_error *err) {
    qr_gguf_writer *w = &job->writer;
    qr_gguf_put_model(w, &job->model, job->arch);
    qr_gguf_put_u32(w, "general.file_type", file_type(job->dtype));
    qr_gguf_put_u32(w, "general.quantization_version", 2);
    QR_RETURN_IF_ERROR(qr_gguf_put_tokenizer(w, &job->model, vocab_rows(job), err));
    const int64_t half = job->model.config.rope.rotary_dim / 2;
    for (int i = 0; i < n_factors; i++) { qr_gguf_add_tensor(w, names[i], QR_DTYPE_F32, 1, &half); }
    for (size_t i = 0; i < job->n_tensors; i++) {
        const output_tensor *t = &job->tensors[i];
        const int64_t n_heads = t->part != NULL ? t->part->n_heads : 0, n = t->n_experts > 0 ? t->n_experts : n_heads;
        const int64_t n_rows = n_heads > 0 ? t->dims[0] / n_heads : (t->ups != NULL ? 2 : 1) * t->dims[0];
        const int64_t stack[] = {n, n_rows, t->dims[1]};
        qr_gguf_add_tensor(w, t->name, t->dtype, n > 0 ? 3 : t->n_dims, n > 0 ? stack : t->dims);
    }
    job->result.n_tensors = (int64_t)w->n_tensors;
    return qr_gguf_writer_begin(w, job->params->out, err);
}

static qrun_status advance(export_job *job, const output_tensor *t, qr_error *err) {
    const qrun_export_params *params = job->params;
    job->done_bytes += t->source_bytes;
    if (params->progress == NULL || params->progress(params->progress_user, job->done_bytes, job->total_bytes)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "exporting %s was cancelled", job->model.folder);
}

static qrun_status write_file(export_job *job, qr_error *err) {
    const int64_t half = job->model.config.rope.rotary_dim / 2;
    const char *names[2];
    qrun_status status = QRUN_OK;
    float *factors = qr_alloc_array((size_t)half * 2 + 1, sizeof *factors);
    if (factors == NULL) { return qr_fail_memory(err, "the rotary factors", (size_t)half * 2 * sizeof *factors); }
    const int n_factors = qr_gguf_rope_factors(&job->model, names, factors);
    QR_TRY(begin_file(job, names, n_factors, err));
    for (int i = 0; i < n_factors; i++) {
        QR_TRY(qr_gguf_write(&job->writer, factors + i * half, (size_t)half * sizeof *factors, err));
        QR_TRY(qr_gguf_end_tensor(&job->writer, err));
    }
    for (size_t i = 0; i < job->n_tensors; i++) {
        QR_TRY(write_tensor(job, &job->tensors[i], err));
        QR_TRY(advance(job, &job->tensors[i], err));
    }
    QR_TRY(qr_safetensors_check(job->source, err));
    if (job->adapter != NULL) { QR_TRY(qr_safetensors_check(job->adapter->file, err)); }
    job->result.n_bytes = job->writer.file.offset;
    QR_TRY(qr_gguf_writer_commit(&job->writer, err));
out:
    qr_free(factors);
    return status;
}

static void job_free(export_job *job) {
    qr_gguf_writer_free(&job->writer);
    qr_free(job->tensors);
    qr_free(job->parts);
    qr_merged_tensors_free(&job->merged);
    qr_adapter_close(job->adapter);
    qr_safetensors_close(job->source);
    if (job->model.context != NULL) { qr_model_release(&job->model); }
}

qrun_status qrun_export(qrun_context *context, const qrun_export_params *params, qrun_export_result *result,
                        qrun_error *error) {
    QR_RETURN_IF_ERROR(check_params(params, result, error));
    if (params->format == QRUN_EXPORT_GGUF_LORA) { return qr_gguf_export_lora(context, params, result, error); }
    qrun_status status = QRUN_OK;
    export_job job = {.params = params, .result = QRUN_EXPORT_RESULT_INIT, .dtype = qr_gguf_type_dtype(params->type)};
    QR_TRY(open_all(&job, context, error));
    if (params->check_only) {
        QR_TRY(qr_gguf_put_tokenizer(&job.writer, &job.model, vocab_rows(&job), error));
        goto out;
    }
    QR_TRY(write_file(&job, error));
    job.result.type = params->type == QRUN_GGUF_AUTO ? QRUN_GGUF_Q8_0 : params->type;
    job.result.context_tokens = qr_gguf_context_tokens(&job.model);
    if (result != NULL) { *result = job.result; }
out:
    job_free(&job);
    return status;
}
