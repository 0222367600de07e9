/* Writing a model folder with its linear layers quantised, as transformers with bitsandbytes stores them.
 *
 * In the file format every tensor's size precedes the data, and large elements precede small ones. So a matrix is
 * quantised twice: for its scales, and again when its codes are written. That costs time but no memory: at most one
 * quantised matrix is held (and, with double quantisation, one float per 16,384 weights of all). */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "loaders/config/quantized_config.h"
#include "loaders/files/bnb_tensors.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"
#include "runtime/folders/folder_copy.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_writer.h"

/* A linear layer's matrix. */
typedef struct linear_matrix {
    const qr_safetensors_tensor *source;
    qr_weight_desc desc; /* as it is written */
    float nested_offset; /* double-quantised: kept from the first time, with nested_absmax */
    float *nested_absmax;
    char state[QR_BNB_QUANT_STATE_BYTES];
    size_t state_bytes;
} linear_matrix;

/* A tensor of the new folder: a part of a matrix, or a tensor of the old folder. */
typedef struct planned_tensor {
    const qr_safetensors_tensor *source;
    linear_matrix *matrix; /* NULL: kept */
    qr_bnb_part part;
    char *name; /* owned; NULL where the source's is taken */
} planned_tensor;

typedef struct folder_job {
    const qrun_quantize_params *params;
    qr_weight_format format;
    qr_folder_copy copy;
    linear_matrix *matrices; /* [model.n_slots], in slot order */
    planned_tensor *outputs;
    qr_safetensors_spec *specs; /* [n_outputs], of the same tensors */
    size_t n_outputs;
    qr_host_weight host; /* of host_matrix */
    const linear_matrix *host_matrix;
} folder_job;

/* ---- What to write ----------------------------------------------------------------------------------------------- */

static qrun_status check_params(const qrun_quantize_params *params, qr_weight_format *format, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_quantize_params, params, err));
    QR_RETURN_IF_ERROR(qr_folder_copy_check(params->path, params->out, params->max_shard_bytes, err));
    if (qr_quant_to_format(params->quant, format) && !qr_weight_is_plain(*format)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "quant %d cannot be written; nf4-dq, nf4 and int8 can",
                   (int)params->quant);
}

static qrun_status refuse_quantised(const folder_job *job, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is already quantised; use it unchanged, or quantise the original model instead",
                   job->copy.model.folder);
}

static qrun_status collect_matrix(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                  qr_error *err) {
    folder_job *job = arg;
    const qr_weight_desc *shape = &linear->weight.desc;
    qr_stored_weight stored;
    const qr_folder_copy *copy = &job->copy;
    QR_RETURN_IF_ERROR(qr_model_find_stored(&copy->model, copy->source, role, layer, shape, &stored, err));
    if (!qr_weight_is_plain(stored.desc.format)) { return refuse_quantised(job, err); }
    linear_matrix *matrix = &job->matrices[linear->slot];
    matrix->source = stored.codes;
    matrix->desc = *shape;
    matrix->desc.format = job->format;
    matrix->desc.block = qr_weight_is_nf4(job->format) ? QR_NF4_BLOCK : 0;
    return QRUN_OK;
}

static linear_matrix *find_matrix(const folder_job *job, const qr_safetensors_tensor *source) {
    for (int32_t i = 0; i < job->copy.model.n_slots; i++) {
        if (job->matrices[i].source == source) { return &job->matrices[i]; }
    }
    return NULL;
}

/* "model.layers.0.mlp.up_proj.weight" and "SCB" make "model.layers.0.mlp.up_proj.SCB". */
static char *part_name(const qr_safetensors_tensor *source, qr_bnb_part part) {
    qr_buffer name = {0};
    qr_buffer_append(&name, source->name, strlen(source->name) - strlen(QR_BNB_CODES_NAME));
    qr_buffer_append_text(&name, qr_bnb_part_suffix(part));
    return qr_buffer_take(&name);
}

static qr_safetensors_spec spec_of(const planned_tensor *output) {
    if (output->matrix == NULL) { return qr_tensor_spec(output->source); }
    qr_safetensors_spec spec = qr_bnb_part_spec(&output->matrix->desc, output->part, output->matrix->state_bytes);
    spec.name = output->name;
    return spec;
}

static qrun_status add_matrix(folder_job *job, linear_matrix *matrix, qr_error *err) {
    for (int part = 0; part < QR_BNB_PART_COUNT; part++) {
        if (!qr_bnb_has_part(job->format, (qr_bnb_part)part)) { continue; }
        planned_tensor *output = &job->outputs[job->n_outputs++];
        *output = (planned_tensor){.source = matrix->source, .matrix = matrix, .part = (qr_bnb_part)part};
        output->name = part_name(matrix->source, output->part);
        if (output->name == NULL) { return qr_fail_memory(err, matrix->source->name, strlen(matrix->source->name)); }
    }
    return QRUN_OK;
}

/* The matrices and, in the order of the old files, every tensor of the new folder. */
static qrun_status plan_outputs(folder_job *job, qr_error *err) {
    const size_t n_sources = qr_safetensors_count(job->copy.source);
    const size_t most = n_sources + (size_t)job->copy.model.n_slots * QR_BNB_PART_COUNT;
    job->matrices = qr_alloc_array_zeroed((size_t)job->copy.model.n_slots, sizeof *job->matrices);
    job->outputs = qr_alloc_array(most, sizeof *job->outputs);
    job->specs = qr_alloc_array(most, sizeof *job->specs);
    if (job->matrices == NULL || job->outputs == NULL || job->specs == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *job->outputs);
    }
    QR_RETURN_IF_ERROR(qr_model_each_linear(&job->copy.model, collect_matrix, job, err));
    const int64_t n_times = 2; /* a matrix is read for its scales and for its codes */
    for (size_t i = 0; i < n_sources; i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(job->copy.source, i);
        linear_matrix *matrix = find_matrix(job, tensor);
        job->copy.total_bytes += (int64_t)tensor->n_bytes * (matrix != NULL ? n_times : 1);
        if (matrix != NULL) {
            QR_RETURN_IF_ERROR(add_matrix(job, matrix, err));
        } else {
            job->outputs[job->n_outputs++] = (planned_tensor){.source = tensor};
        }
    }
    return QRUN_OK;
}

/* ---- Quantising -------------------------------------------------------------------------------------------------- */

static qrun_status check_finite(const linear_matrix *matrix, const qr_host_weight *host, qr_error *err) {
    const float *scales = host->row_absmax != NULL ? host->row_absmax : host->absmax;
    const int64_t n = host->row_absmax != NULL ? matrix->desc.rows : qr_weight_blocks(&matrix->desc);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(scales[i])) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds a value that is not finite%s; is the download damaged?",
                           matrix->source->name, host->row_absmax != NULL ? " in F16" : "");
        }
    }
    return QRUN_OK;
}

/* Fills job->host with this matrix, unless it has it. */
static qrun_status quantize_matrix(folder_job *job, const linear_matrix *matrix, qr_error *err) {
    if (job->host_matrix == matrix) { return QRUN_OK; }
    job->host_matrix = NULL;
    qr_host_weight_free(&job->host);
    qrun_context *context = job->copy.model.context;
    const qr_row_source rows = {
        .src = matrix->source->data, .dtype = matrix->source->dtype, .transposed = job->copy.model.family->transposed};
    pthread_mutex_lock(&context->compute_lock);
    const qrun_status status =
        qr_weight_quantize_host(context->backend, &matrix->desc, &rows, matrix->source->name, &job->host, err);
    pthread_mutex_unlock(&context->compute_lock);
    QR_RETURN_IF_ERROR(status);
    QR_RETURN_IF_ERROR(check_finite(matrix, &job->host, err));
    job->host_matrix = matrix;
    qr_safetensors_drop(job->copy.source, matrix->source);
    return qr_folder_copy_advance(&job->copy, (int64_t)matrix->source->n_bytes, err);
}

/* The length of a state depends on the digits of the offset, so double-quantised matrices are read before anything is
 * written. */
static qrun_status make_states(folder_job *job, qr_error *err) {
    for (int32_t i = 0; i < job->copy.model.n_slots && job->format != QR_WEIGHT_INT8; i++) {
        linear_matrix *matrix = &job->matrices[i];
        if (job->format == QR_WEIGHT_NF4_DQ) {
            QR_RETURN_IF_ERROR(quantize_matrix(job, matrix, err));
            matrix->nested_offset = job->host.nested_offset;
            matrix->nested_absmax = job->host.nested_absmax; /* owned from here on */
            job->host.nested_absmax = NULL;
        }
        matrix->state_bytes =
            qr_bnb_quant_state(&matrix->desc, matrix->source->dtype, matrix->nested_offset, matrix->state);
    }
    return QRUN_OK;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* Whether a part comes from job->host. The others are already known. */
static bool is_in_host(qr_bnb_part part) {
    return part == QR_BNB_CODES || part == QR_BNB_ROW_ABSMAX || part == QR_BNB_ABSMAX;
}

static const void *part_bytes(const folder_job *job, const planned_tensor *output) {
    static const unsigned char row_major = 0;
    const linear_matrix *matrix = output->matrix;
    switch (output->part) {
        case QR_BNB_CODES: return job->host.codes;
        case QR_BNB_ABSMAX:
            return job->format == QR_WEIGHT_NF4_DQ ? (const void *)job->host.absmax_codes : job->host.absmax;
        case QR_BNB_QUANT_MAP: return qr_nf4_code;
        case QR_BNB_NESTED_ABSMAX: return matrix->nested_absmax;
        case QR_BNB_NESTED_QUANT_MAP: return qr_dynamic8_map(true);
        case QR_BNB_QUANT_STATE: return matrix->state;
        case QR_BNB_ROW_ABSMAX: return job->host.row_absmax;
        case QR_BNB_WEIGHT_FORMAT:
        case QR_BNB_PART_COUNT: break;
    }
    return &row_major;
}

static qrun_status write_part(folder_job *job, qr_safetensors_writer *writer, const planned_tensor *output,
                              const qr_safetensors_spec *spec, qr_error *err) {
    size_t n_bytes = 0;
    QR_RETURN_IF_ERROR(qr_tensor_spec_add_bytes(spec, &n_bytes, err));
    if (is_in_host(output->part)) { QR_RETURN_IF_ERROR(quantize_matrix(job, output->matrix, err)); }
    return qr_safetensors_writer_write(writer, part_bytes(job, output), n_bytes, err);
}

static qrun_status write_output(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    folder_job *job = arg;
    const planned_tensor *output = &job->outputs[i];
    return output->matrix != NULL ? write_part(job, writer, output, &job->specs[i], err)
                                  : qr_folder_copy_tensor(&job->copy, writer, output->source, err);
}

static qrun_status write_tensors(folder_job *job, qr_error *err) {
    for (size_t i = 0; i < job->n_outputs; i++) { job->specs[i] = spec_of(&job->outputs[i]); }
    return qr_tensors_write(job->copy.folder.partial_path, job->specs, job->n_outputs, job->params->max_shard_bytes,
                            write_output, job, err);
}

/* Of Gemma 3 with an image encoder only the text model is quantised. Older and newer transformers spell the rest
 * differently. */
static const char *const multimodal_skips[] = {"lm_head", "vision_tower", "multi_modal_projector", "model.vision_tower",
                                               "model.multi_modal_projector"};

static qrun_status edit_config(void *arg, qr_buffer *config, const char *what, qr_error *err) {
    const folder_job *job = arg;
    qr_buffer edited = {0};
    const size_t n_skips = job->copy.model.config.is_multimodal ? QR_COUNT_OF(multimodal_skips) : 0;
    const qrun_status status = qr_quantized_config_append(config->data, config->size, what, job->format,
                                                          multimodal_skips, n_skips, &edited, err);
    qr_buffer_free(config);
    *config = edited;
    return status;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void job_free(folder_job *job) {
    for (size_t i = 0; i < job->n_outputs; i++) { qr_free(job->outputs[i].name); }
    const int32_t n_matrices = job->matrices != NULL ? job->copy.model.n_slots : 0;
    for (int32_t i = 0; i < n_matrices; i++) { qr_free(job->matrices[i].nested_absmax); }
    qr_free(job->outputs);
    qr_free(job->specs);
    qr_free(job->matrices);
    qr_host_weight_free(&job->host);
    qr_folder_copy_release(&job->copy);
}

qrun_status qrun_quantize_folder(qrun_context *context, const qrun_quantize_params *params, qrun_error *error) {
    folder_job job = {.params = params};
    qrun_status status = QRUN_OK;
    QR_RETURN_IF_ERROR(check_params(params, &job.format, error));
    job.copy =
        (qr_folder_copy){.verb = "quantising", .progress = params->progress, .progress_user = params->progress_user};
    QR_TRY(qr_folder_copy_read(&job.copy, context, params->path, error));
    if (job.copy.model.prequantized) { QR_TRY(refuse_quantised(&job, error)); }
    QR_TRY(qr_folder_writer_open(&job.copy.folder, params->out, error));
    QR_TRY(plan_outputs(&job, error));
    QR_TRY(make_states(&job, error));
    QR_TRY(write_tensors(&job, error));
    /* A matrix alone in a shard is read once, so bytes may be missing. */
    QR_TRY(qr_folder_copy_advance(&job.copy, job.copy.total_bytes - job.copy.done_bytes, error));
    QR_TRY(qr_folder_copy_finish(&job.copy, edit_config, &job, error));
out:
    job_free(&job);
    return status;
}
