/* Writing a model folder with an adapter merged into it: tensor by tensor, in 16 or 32 bits. */
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/folders/folder_copy.h"
#include "runtime/folders/merged_tensors.h"
#include "runtime/model/model_open.h"
#include "runtime/model/weight_writer.h"

enum { PIECE_ELEMENTS = 1 << 16 };

typedef struct merge_job {
    const qrun_merge_params *params;
    qrun_merge_result result;
    qr_folder_copy copy;
    qr_adapter *adapter;
    qr_merged_tensors merged;
    float *values; /* [PIECE_ELEMENTS]: a piece of a tensor that is converted */
    void *piece;   /* the same, converted */
} merge_job;

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

static qrun_status check_params(const qrun_merge_params *params, const qrun_merge_result *result, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_merge_params, params, err));
    if (result != NULL) { QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_merge_result, result, err)); }
    QR_RETURN_IF_ERROR(qr_folder_copy_check(params->path, params->out, params->max_shard_bytes, err));
    if (params->adapter == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no adapter to merge was given"); }
    if ((int)params->onto < QRUN_MERGE_AUTO || params->onto > QRUN_MERGE_QUANTIZED) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "onto %d is not one of qrun_merge_onto", (int)params->onto);
    }
    return QRUN_OK;
}

/* Experts in MXFP4 are the model's own weights: they stay so, unless the adapter changes them or a type is asked for.
 */
static qrun_status choose_mxfp4(merge_job *job, qr_error *err) {
    if (job->params->onto == QRUN_MERGE_QUANTIZED) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: has experts in mxfp4 and nothing else quantised, which is the original model; leave `onto` "
                       "out",
                       job->copy.model.folder);
    }
    job->result.onto = QRUN_MERGE_ORIGINAL;
    job->result.base_quant = QRUN_QUANT_MXFP4;
    job->merged.keeps_packed = job->params->dtype == QRUN_QUANT_AUTO;
    return QRUN_OK;
}

static qrun_status choose_onto(merge_job *job, qr_error *err) {
    const qrun_merge_params *params = job->params;
    const qrun_model *model = &job->copy.model;
    qrun_merge_result *result = &job->result;
    result->onto = params->onto;
    if (qr_merge_is_mxfp4(model)) { return choose_mxfp4(job, err); }
    if (params->onto == QRUN_MERGE_AUTO) {
        result->onto = model->prequantized ? QRUN_MERGE_QUANTIZED : QRUN_MERGE_ORIGINAL;
    }
    if (result->onto == QRUN_MERGE_ORIGINAL) {
        if (!model->prequantized) { return QRUN_OK; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: is stored quantised and has no original weights; merge onto the quantised ones, or into "
                       "the original model",
                       model->folder);
    }
    if (model->prequantized) { return QRUN_OK; }
    job->merged.quantize = true;
    if (!qr_quant_to_format(params->quant, &job->merged.quant) || qr_weight_is_plain(job->merged.quant)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "quant %d cannot be merged onto; nf4-dq, nf4 and int8 can",
                       (int)params->quant);
    }
    result->base_quant = params->quant == QRUN_QUANT_AUTO ? QRUN_QUANT_NF4_DQ : params->quant;
    return QRUN_OK;
}

static qrun_status choose_dtype(merge_job *job, qr_error *err) {
    qrun_quant dtype = job->params->dtype;
    if (dtype == QRUN_QUANT_AUTO) {
        dtype = job->copy.model.config.dtype == QR_DTYPE_F16 ? QRUN_QUANT_F16 : QRUN_QUANT_BF16;
    }
    job->result.dtype = dtype;
    switch (dtype) {
        case QRUN_QUANT_BF16: job->merged.dtype = QR_DTYPE_BF16; return QRUN_OK;
        case QRUN_QUANT_F16: job->merged.dtype = QR_DTYPE_F16; return QRUN_OK;
        case QRUN_QUANT_F32: job->merged.dtype = QR_DTYPE_F32; return QRUN_OK;
        default: break;
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "a merged model is written as bf16, f16 or f32, not %d", (int)dtype);
}

/* The type that represents every linear layer of the folder exactly. */
static qrun_quant plain_quant(const qr_merged_tensors *merged) {
    static const qrun_quant quants[] = {
        [QR_WEIGHT_F32] = QRUN_QUANT_F32, [QR_WEIGHT_F16] = QRUN_QUANT_F16, [QR_WEIGHT_BF16] = QRUN_QUANT_BF16};
    const qr_weight_format first = merged->matrices[0].stored.desc.format;
    for (int32_t i = 1; i < merged->model->n_slots; i++) {
        if (merged->matrices[i].stored.desc.format != first) { return QRUN_QUANT_F32; }
    }
    return quants[first];
}

static qrun_status open_all(merge_job *job, qrun_context *context, qr_error *err) {
    const qrun_merge_params *params = job->params;
    QR_RETURN_IF_ERROR(qr_folder_copy_read(&job->copy, context, params->path, err));
    if (!qr_merge_is_mxfp4(&job->copy.model)) { QR_RETURN_IF_ERROR(qr_merge_refuse_packed(&job->copy.model, err)); }
    QR_RETURN_IF_ERROR(choose_onto(job, err));
    QR_RETURN_IF_ERROR(choose_dtype(job, err));
    QR_RETURN_IF_ERROR(qr_adapter_open(params->adapter, &job->adapter, err));
    job->merged.model = &job->copy.model;
    job->merged.source = job->copy.source;
    job->merged.adapter = job->adapter;
    const qrun_status status = qr_merged_tensors_list(&job->merged, err);
    if (status != QRUN_OK) {
        qr_error_prefix(err, params->adapter);
        return status;
    }
    const bool is_mxfp4 = qr_merge_is_mxfp4(&job->copy.model);
    if (is_mxfp4) { job->result.expert_quant = job->merged.keeps_packed ? QRUN_QUANT_MXFP4 : job->result.dtype; }
    if (job->result.onto == QRUN_MERGE_ORIGINAL && !is_mxfp4) { job->result.base_quant = plain_quant(&job->merged); }
    job->result.n_merged = (int64_t)job->adapter->n_modules;
    job->result.n_replaced = job->merged.n_replaced;
    job->result.head_untied = job->merged.unties_head;
    job->result.n_tensors = (int64_t)job->merged.n_outputs;
    for (size_t i = 0; i < job->merged.n_outputs; i++) {
        job->copy.total_bytes += (int64_t)job->merged.outputs[i].source->n_bytes;
    }
    return QRUN_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* One matrix, or those that are columns of one: they are of one shape. */
static qrun_status write_matrix(merge_job *job, const qr_merge_matrix *matrix, int64_t n_parts,
                                const qr_safetensors_spec *spec, qr_safetensors_writer *writer, qr_error *err) {
    qrun_context *context = job->copy.model.context;
    const size_t n_bytes = (size_t)(n_parts * qr_weight_elements(&matrix->stored.desc)) * qr_dtype_bytes(spec->dtype);
    void *merged = qr_alloc(n_bytes);
    if (merged == NULL) { return qr_fail_memory(err, spec->name, n_bytes); }
    qrun_status status = QRUN_OK;
    qr_compute_lock(context);
    for (int64_t i = 0; i < n_parts && status == QRUN_OK; i++) {
        status = qr_merge_matrix_compute(context->backend, matrix + i, spec->dtype, merged, err);
    }
    qr_compute_unlock(context);
    if (status == QRUN_OK) { status = qr_safetensors_writer_write(writer, merged, n_bytes, err); }
    qr_free(merged);
    return status;
}

static qrun_status write_matrices(merge_job *job, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    const qr_merge_output *output = &job->merged.outputs[i];
    for (int64_t m = 0; m < output->n_matrices; m += output->n_parts) {
        QR_RETURN_IF_ERROR(write_matrix(job, output->matrix + m, output->n_parts, &job->merged.specs[i], writer, err));
    }
    const qr_packed_weight *packed = &output->matrix->stored.packed;
    return packed->kind != QR_PACKING_NONE ? qr_safetensors_finish(job->copy.source, packed->scale_tensor, err)
                                           : QRUN_OK;
}

static qrun_status write_converted(merge_job *job, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    const qr_safetensors_tensor *tensor = job->merged.outputs[i].source;
    const qr_dtype dtype = job->merged.specs[i].dtype;
    const int64_t n_elements = qr_tensor_elements(tensor);
    for (int64_t first = 0; first < n_elements; first += PIECE_ELEMENTS) {
        const int64_t n = qr_min(PIECE_ELEMENTS, n_elements - first);
        qr_elements_to_f32(tensor->dtype, tensor->data, first, n, job->values);
        if (!qr_merge_fits(job->values, n, dtype)) { return qr_merge_refuse_value(tensor->name, dtype, err); }
        qr_elements_from_f32(dtype, job->values, n, job->piece);
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, job->piece, (size_t)n * qr_dtype_bytes(dtype), err));
    }
    return QRUN_OK;
}

static qrun_status write_output(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    merge_job *job = arg;
    const qr_merge_output *output = &job->merged.outputs[i];
    const qr_safetensors_tensor *source = output->source;
    if (output->matrix == NULL && source->dtype == job->merged.specs[i].dtype) {
        return qr_folder_copy_tensor(&job->copy, writer, source, err);
    }
    QR_RETURN_IF_ERROR(output->matrix != NULL ? write_matrices(job, i, writer, err)
                                              : write_converted(job, i, writer, err));
    QR_RETURN_IF_ERROR(qr_safetensors_finish(job->copy.source, source, err));
    return qr_folder_copy_advance(&job->copy, (int64_t)source->n_bytes, err);
}

/* The new folder has shards as large as those of the old one. */
static int64_t shard_bytes(const merge_job *job) {
    if (job->params->max_shard_bytes > 0) { return job->params->max_shard_bytes; }
    const qr_safetensors *source = job->copy.source;
    int64_t largest = 0, held = 0;
    int shard = 0;
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        held = tensor->shard == shard ? held + (int64_t)tensor->n_bytes : (int64_t)tensor->n_bytes;
        shard = tensor->shard;
        largest = qr_max(largest, held);
    }
    return shard == 0 ? qr_max(largest, QR_SAFETENSORS_SHARD_BYTES) : largest;
}

static qrun_status write_tensors(merge_job *job, qr_error *err) {
    job->values = qr_alloc_array(PIECE_ELEMENTS, sizeof *job->values);
    job->piece = qr_alloc_array(PIECE_ELEMENTS, sizeof *job->values);
    if (job->values == NULL || job->piece == NULL) {
        return qr_fail_memory(err, "a piece of a tensor", PIECE_ELEMENTS * sizeof *job->values);
    }
    size_t n_bytes = 0;
    for (size_t i = 0; i < job->merged.n_outputs; i++) {
        QR_RETURN_IF_ERROR(qr_tensor_spec_add_bytes(&job->merged.specs[i], &n_bytes, err));
    }
    job->result.n_bytes = (int64_t)n_bytes;
    return qr_tensors_write(job->copy.folder.partial_path, job->merged.specs, job->merged.n_outputs, shard_bytes(job),
                            write_output, job, err);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void job_free(merge_job *job) {
    qr_free(job->values);
    qr_free(job->piece);
    qr_merged_tensors_free(&job->merged);
    qr_adapter_close(job->adapter);
    qr_folder_copy_release(&job->copy);
}

qrun_status qrun_merge_folder(qrun_context *context, const qrun_merge_params *params, qrun_merge_result *result,
                              qrun_error *error) {
    QR_RETURN_IF_ERROR(check_params(params, result, error));
    qrun_status status = QRUN_OK;
    merge_job job = {.params = params, .result = QRUN_MERGE_RESULT_INIT};
    job.copy =
        (qr_folder_copy){.verb = "merging into", .progress = params->progress, .progress_user = params->progress_user};
    QR_TRY(open_all(&job, context, error));
    QR_TRY(qr_folder_writer_open(&job.copy.folder, params->out, error));
    QR_TRY(write_tensors(&job, error));
    QR_TRY(qr_safetensors_check(job.adapter->file, error));
    qr_config_changes changes = {.dtype = job.merged.dtype,
                                 .unties_head = job.merged.unties_head || qr_model_has_own_head(&job.copy.model),
                                 .keeps_quantization = job.merged.keeps_packed};
    QR_TRY(qr_folder_copy_finish(&job.copy, qr_config_apply, &changes, error));
    if (result != NULL) { *result = job.result; }
out:
    job_free(&job);
    return status;
}
