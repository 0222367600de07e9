/* A LoRA adapter as llama.cpp takes it: A and B of each matrix, and one alpha for all. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/adapter/adapter.h"
#include "loaders/files/gguf.h"
#include "runtime/folders/gguf_export.h"
#include "runtime/folders/gguf_metadata.h"
#include "runtime/folders/merged_tensors.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_writer.h"

typedef struct lora_job {
    const qrun_export_params *params;
    qrun_model model; /* described; no weights */
    qr_safetensors *source;
    qr_adapter *adapter;
    qr_merged_tensors merged; /* made for its checks */
    const qr_gguf_arch *arch;
    qr_gguf_writer writer;
    qr_dtype dtype;
    double alpha;
} lora_job;

/* ---- What can be written ----------------------------------------------------------------------------------------- */

static qrun_status refuse(const lora_job *job, const char *module, const char *what, qr_error *err) {
    /* Only a folder has weights to merge it into. */
    const char *way_out = qr_gguf_recognise(job->params->path)
                              ? "train plain LoRA on this file, or this adapter on the model's original folder"
                              : "export the model with it merged: `format=gguf`";
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s %s, which a GGUF adapter cannot hold; %s", job->params->adapter,
                   module, what, way_out);
}

static qrun_status check_modules(const lora_job *job, qr_error *err) {
    const qr_adapter *adapter = job->adapter;
    if (adapter->n_modules == 0) { return refuse(job, "the adapter", "changes no matrix by LoRA", err); }
    for (size_t i = 0; i < adapter->n_parameters; i++) { /* what LoRA is added to is compared later */
        const qr_adapter_parameter *parameter = &adapter->parameters[i];
        if (!parameter->is_base) { return refuse(job, parameter->name, "is brought whole", err); }
    }
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *module = &adapter->modules[i];
        if (module->magnitude != NULL) { return refuse(job, module->name, "is DoRA", err); }
        if (module->is_embedding) { return refuse(job, module->name, "adapts an embedding", err); }
    }
    return QRUN_OK;
}

static qrun_status gguf_name(const lora_job *job, const qr_adapter_module *module, char name[QR_GGUF_NAME_BYTES],
                             qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    const char *bare = module->name, *prefix;
    for (size_t i = 1; (prefix = qr_family_prefix(job->model.family, i)) != NULL; i++) {
        if (strncmp(module->name, prefix, strlen(prefix)) == 0) { bare = module->name + strlen(prefix); }
    }
    (void)snprintf(path, sizeof path, "%s.weight", bare);
    qr_gguf_part parts[2];
    const qr_gguf_heads heads = qr_gguf_heads_of(&job->model);
    if (qr_gguf_split(&heads, job->arch, path, module->b->dims[0], parts) > 0) {
        return refuse(job, module->name, "is two tensors in llama.cpp", err);
    }
    if (qr_gguf_name_from_hf(job->arch, path, name)) { return QRUN_OK; }
    return refuse(job, module->name, "has no tensor in llama.cpp", err);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static void add_tensor(lora_job *job, const char *name, const char *suffix, const qr_safetensors_tensor *tensor) {
    char full[QR_GGUF_NAME_BYTES + 8];
    (void)snprintf(full, sizeof full, "%s%s", name, suffix);
    qr_gguf_add_tensor(&job->writer, full, job->dtype, 2, tensor->dims);
}

/* Rows as the file wants them, multiplied by `scale`. */
static qrun_status write_tensor(lora_job *job, const qr_safetensors_tensor *tensor, const qr_row_order *row_order,
                                const qr_row_order *column_order, double scale, qr_error *err) {
    const int64_t rows = tensor->dims[0], cols = tensor->dims[1];
    float *values = qr_alloc_array((size_t)cols * 2, sizeof *values), *read = values;
    void *row = qr_alloc_array((size_t)cols, sizeof *values);
    qrun_status status = QRUN_OK;
    if (values == NULL || row == NULL) { QR_TRY(qr_fail_memory(err, tensor->name, (size_t)cols * sizeof *values)); }
    if (!qr_row_order_is_usual(column_order)) { read += cols; }
    for (int64_t r = 0; r < rows; r++) {
        qr_elements_to_f32(tensor->dtype, tensor->data, qr_row_of_stored(row_order, r) * cols, cols, read);
        for (int64_t c = 0; read != values && c < cols; c++) { values[c] = read[qr_row_of_stored(column_order, c)]; }
        for (int64_t c = 0; scale != 1 && c < cols; c++) { values[c] = (float)((double)values[c] * scale); }
        if (!qr_merge_fits(values, cols, job->dtype)) { QR_TRY(qr_merge_refuse_value(tensor->name, job->dtype, err)); }
        qr_elements_from_f32(job->dtype, values, cols, row);
        QR_TRY(qr_gguf_write(&job->writer, row, (size_t)cols * qr_dtype_bytes(job->dtype), err));
    }
    QR_TRY(qr_gguf_end_tensor(&job->writer, err));
out:
    qr_free(values);
    qr_free(row);
    return status;
}

/* llama.cpp scales by alpha / rank with one alpha: modules that have another one are scaled in B. */
static double effective_alpha(const qr_adapter_module *module) { return module->scale * (double)module->rank; }

static qrun_status write_module(lora_job *job, const qr_adapter_module *module, qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    (void)snprintf(path, sizeof path, "%s.weight", module->name);
    const qr_gguf_heads heads = qr_gguf_heads_of(&job->model);
    const qr_row_order rows = qr_gguf_row_order(&heads, job->arch, path), none = {0};
    const qr_row_order columns = qr_gguf_column_order(&heads, job->arch, path);
    QR_RETURN_IF_ERROR(write_tensor(job, module->a, &none, &columns, 1, err));
    return write_tensor(job, module->b, &rows, &none, effective_alpha(module) / job->alpha, err);
}

static qrun_status write_all(lora_job *job, qr_error *err) {
    const qr_adapter *adapter = job->adapter;
    qr_gguf_writer *w = &job->writer;
    char name[QR_GGUF_NAME_BYTES];
    job->alpha = effective_alpha(&adapter->modules[0]);
    qr_gguf_put_text(w, "general.architecture", job->arch->name, strlen(job->arch->name));
    qr_gguf_put_text(w, "general.type", "adapter", 7);
    qr_gguf_put_text(w, "adapter.type", "lora", 4);
    qr_gguf_put_f32(w, "adapter.lora.alpha", (float)job->alpha);
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *module = &adapter->modules[i];
        QR_RETURN_IF_ERROR(gguf_name(job, module, name, err));
        add_tensor(job, name, ".lora_a", module->a);
        add_tensor(job, name, ".lora_b", module->b);
    }
    if (job->params->check_only) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_gguf_writer_begin(w, job->params->out, err));
    for (size_t i = 0; i < adapter->n_modules; i++) {
        QR_RETURN_IF_ERROR(write_module(job, &adapter->modules[i], err));
    }
    return qr_safetensors_check(adapter->file, err);
}

/* Whether the adapter's own weights of a matrix are those of the model. */
static qrun_status compare_base(const qr_merge_matrix *matrix, bool *are_equal, qr_error *err) {
    const qr_weight_desc *desc = &matrix->stored.desc;
    float *rows = qr_alloc_array((size_t)desc->cols * 2, sizeof *rows), *other = rows + desc->cols;
    if (rows == NULL) { return qr_fail_memory(err, matrix->base->name, (size_t)desc->cols * 2 * sizeof *rows); }
    *are_equal = qr_weight_is_plain(desc->format);
    for (int64_t r = 0; *are_equal && r < desc->rows; r++) {
        qr_stored_rows_to_f32(&matrix->stored, false, r, 1, rows);
        qr_matrix_rows_to_f32(matrix->base->dtype, matrix->base->data, desc->rows, desc->cols, false, r, 1, other);
        *are_equal = memcmp(rows, other, (size_t)desc->cols * sizeof *rows) == 0;
    }
    qr_free(rows);
    return QRUN_OK;
}

static qrun_status check_bases(const lora_job *job, qr_error *err) {
    for (size_t i = 0; i < job->merged.n_matrices; i++) {
        const qr_merge_matrix *matrix = &job->merged.matrices[i];
        bool are_equal = true;
        if (matrix->base != NULL) { QR_RETURN_IF_ERROR(compare_base(matrix, &are_equal, err)); }
        if (!are_equal) { return refuse(job, matrix->base->name, "is not what the model has", err); }
    }
    return QRUN_OK;
}

static qrun_status open_all(lora_job *job, qrun_context *context, qr_error *err) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = job->params->path;
    QR_RETURN_IF_ERROR(qr_model_prepare(context, &params, &job->model, &job->source, err));
    QR_RETURN_IF_ERROR(qr_gguf_choose_arch(&job->model, &job->arch, err));
    QR_RETURN_IF_ERROR(qr_adapter_open(job->params->adapter, &job->adapter, err));
    QR_RETURN_IF_ERROR(check_modules(job, err));
    job->merged.model = &job->model;
    job->merged.source = job->source;
    job->merged.adapter = job->adapter;
    job->merged.dtype = QR_DTYPE_F32;
    const qrun_status status = qr_merged_tensors_list(&job->merged, err);
    if (status != QRUN_OK) { qr_error_prefix(err, job->params->adapter); }
    return status == QRUN_OK ? check_bases(job, err) : status;
}

qrun_status qr_gguf_export_lora(qrun_context *context, const qrun_export_params *params, qrun_export_result *result,
                                qr_error *err) {
    lora_job job = {.params = params, .dtype = QR_DTYPE_F32};
    qrun_status status = QRUN_OK;
    if (params->adapter == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`format=gguf-lora` writes an adapter; give it as `adapter`");
    }
    if (params->type != QRUN_GGUF_AUTO) { job.dtype = qr_gguf_type_dtype(params->type); }
    if (qr_dtype_is_blocks(job.dtype)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "an adapter is written as f32, f16 or bf16, not %s",
                       qr_dtype_name(job.dtype));
    }
    QR_TRY(open_all(&job, context, err));
    QR_TRY(write_all(&job, err));
    if (params->check_only) { goto out; }
    if (result != NULL) {
        *result = (qrun_export_result){.struct_size = sizeof *result,
                                       .type = params->type == QRUN_GGUF_AUTO ? QRUN_GGUF_F32 : params->type,
                                       .n_tensors = (int64_t)job.writer.n_tensors,
                                       .n_bytes = job.writer.file.offset};
    }
    QR_TRY(qr_gguf_writer_commit(&job.writer, err));
out:
    qr_gguf_writer_free(&job.writer);
    qr_merged_tensors_free(&job.merged);
    qr_adapter_close(job.adapter);
    qr_safetensors_close(job.source);
    if (job.model.context != NULL) { qr_model_release(&job.model); }
    return status;
}
