/* Writing a model folder with its linear layers quantised, as transformers with bitsandbytes stores them. A table of
 * tokens in INT8 has the layout of a linear layer in INT8.
 *
 * In the file format every tensor's size precedes the data, and large elements precede small ones. So a matrix is
 * quantised twice: for its scales, and again when its codes are written. That costs time but no memory: at most one
 * quantised matrix is held (and, with double quantisation, one float per 16,384 weights of all). */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/params.h"
#include "base/sizes.h"
#include "loaders/config/quantized_config.h"
#include "loaders/files/bnb_tensors.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"
#include "runtime/folders/folder_copy.h"
#include "runtime/model/mixed_formats.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_writer.h"

/* The matrix of a linear layer or of an expert. */
typedef struct linear_matrix {
    qr_stored_weight stored; /* in the old folder */
    qr_tensor_role role;
    int64_t layer, expert;
    qr_weight_desc desc; /* as it is written */
    float nested_offset; /* double-quantised: kept from the first time, with nested_absmax */
    float *nested_absmax;
    char state[QR_BNB_QUANT_STATE_BYTES];
    size_t state_bytes;
} linear_matrix;

/* A tensor of the new folder: a part of a matrix, or a tensor of the old folder. */
typedef struct output_tensor {
    const qr_safetensors_tensor *source;
    linear_matrix *matrix; /* NULL: kept */
    qr_bnb_part part;
    char *name; /* owned; NULL where the source's is taken */
} output_tensor;

typedef struct folder_job {
    const qrun_quantize_params *params;
    qr_weight_format format; /* of all matrices, but for those that mixed formats raise */
    qr_folder_copy copy;
    linear_matrix *matrices;
    size_t n_matrices;
    output_tensor *outputs;
    qr_safetensors_spec *specs; /* [n_outputs], of the same tensors */
    size_t n_outputs;
    qr_host_weight host; /* of host_matrix */
    const linear_matrix *host_matrix;
} folder_job;

/* ---- What to write ----------------------------------------------------------------------------------------------- */

static qrun_status check_params(const qrun_quantize_params *params, qr_weight_format *format, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_quantize_params, params, err));
    QR_RETURN_IF_ERROR(qr_folder_copy_check(params->path, params->out, params->max_shard_bytes, err));
    if ((params->quant == QRUN_QUANT_MIXED) != (params->mixed != NULL)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`quant=mixed` and `mixed`, what was measured for it, go together: one of them is missing");
    }
    if (params->mixed != NULL && params->quant_embedding_int8) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`quant=mixed` has a budget for tables in their own type, so `quant_embedding_int8` does not go "
                       "with it; give it when the folder is opened");
    }
    if (params->quant == QRUN_QUANT_MXFP4 && params->quant_embedding_int8) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`quant=mxfp4` copies a folder as it is, so `quant_embedding_int8` does not go with it; give it "
                       "when the folder is opened");
    }
    const qrun_quant most = params->quant == QRUN_QUANT_MIXED ? QRUN_QUANT_NF4_DQ : params->quant;
    if (qr_quant_to_format(most, format) && !qr_weight_is_plain(*format)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "quant %d cannot be written; nf4-dq, nf4, int8, mxfp4 and mixed can",
                   (int)params->quant);
}

static qrun_status check_measured(const folder_job *job, qr_error *err) {
    const qrun_mixed *mixed = job->params->mixed;
    if (mixed == NULL || strcmp(mixed->folder, job->copy.model.folder) == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: `mixed` was measured on another model, %s", job->copy.model.folder,
                   mixed->folder);
}

/* Experts in MXFP4 are copied as they are, with everything else: no other matrix becomes that. */
static bool copies_mxfp4(const folder_job *job) { return job->format == QR_WEIGHT_MXFP4; }

static qrun_status check_mxfp4(const folder_job *job, qr_error *err) {
    const qr_packing *packing = &job->copy.model.config.quantization.packing;
    if (!copies_mxfp4(job) || packing->kind == QR_PACKING_MXFP4) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is not stored as mxfp4, and nothing is quantised to it; choose another `quant`",
                   job->copy.model.folder);
}

static qrun_status refuse_quantised(const folder_job *job, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is already quantised; use it unchanged, or quantise the original model instead",
                   job->copy.model.folder);
}

/* The rows of a router stay as they are, as everywhere. */
static bool is_quantised(const qr_module *module) {
    return module->matrix != NULL && qr_role_is_quantised(module->role);
}

/* A table of tokens that is held in INT8 when it is asked for at load (`quant_embedding_int8`). */
static bool is_int8_table(const folder_job *job, const qr_module *module) {
    const bool is_of_tokens = module->role == QR_ROLE_EMBEDDING || module->role == QR_ROLE_INPUTS_EMBEDDING;
    return job->params->quant_embedding_int8 && module->matrix != NULL && is_of_tokens;
}

static qrun_status count_matrix(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    *(size_t *)arg += module->matrix != NULL;
    return QRUN_OK;
}

/* A table keeps its type, but bitsandbytes' folders have no place for the scales of a packed one. */
static qrun_status refuse_packed_table(const qr_stored_weight *stored, qr_error *err) {
    if (stored->packed.kind == QR_PACKING_NONE) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: is stored as %s, and a quantised folder keeps tables as they are",
                   stored->codes->name, qr_packing_kind_name(stored->packed.kind));
}

/* Whether the old folder's tensor is the matrix as it is to be written: in this type, and nothing else. */
static bool is_kept_whole(const qr_stored_weight *stored, qr_weight_format format) {
    return qr_weight_is_plain(format) && stored->packed.kind == QR_PACKING_NONE && stored->desc.format == format &&
           stored->n_bytes == stored->codes->n_bytes;
}

static qrun_status collect_matrix(void *arg, const qr_module *module, qr_error *err) {
    folder_job *job = arg;
    qr_stored_weight stored;
    const qr_folder_copy *copy = &job->copy;
    if (module->matrix == NULL || qr_module_is_tied_head(&copy->model, module) || copies_mxfp4(job)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_module_find_stored(&copy->model, copy->source, module, &stored, err));
    const bool is_table = is_int8_table(job, module);
    if (!is_quantised(module) && !is_table) { return refuse_packed_table(&stored, err); }
    if (!qr_stored_can_decode(&stored)) { return refuse_quantised(job, err); }
    const qrun_mixed *mixed = job->params->mixed;
    const qr_weight_format format = is_table        ? QR_WEIGHT_INT8
                                    : mixed != NULL ? qr_mixed_format(mixed, module->role, module->layer)
                                                    : job->format;
    if (is_kept_whole(&stored, format)) { return QRUN_OK; }
    if (qr_weight_is_plain(format) && qr_model_is_transposed(&copy->model, module->role)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is stored [in, out], and not converted to %s that way; use `raise_to=int8`",
                       stored.codes->name, qr_weight_format_name(format));
    }
    linear_matrix *matrix = &job->matrices[job->n_matrices++];
    *matrix = (linear_matrix){.stored = stored,
                              .role = module->role,
                              .layer = module->layer,
                              .expert = module->expert,
                              .desc = module->matrix->desc};
    matrix->desc.format = format;
    matrix->desc.block = qr_weight_is_nf4(matrix->desc.format) ? QR_NF4_BLOCK : 0;
    return QRUN_OK;
}

/* "model.layers.0.mlp.up_proj" and "SCB" make "model.layers.0.mlp.up_proj.SCB". A slice of a stack is a matrix of its
 * own in the new folder: no block of scales belongs to two experts. */
static char *part_name(const folder_job *job, const linear_matrix *matrix, qr_bnb_part part) {
    const qrun_model *model = &job->copy.model;
    char module[QR_STORED_NAME_BYTES];
    qr_family_write_name(model->prefix, model->family->modules[matrix->role], matrix->layer, matrix->expert, module,
                         sizeof module);
    qr_family_name_in_files(model->family, module, sizeof module);
    qr_buffer name = {0};
    qr_buffer_append_format(&name, "%s.%s", module, qr_bnb_part_suffix(part));
    return qr_buffer_take(&name);
}

static qr_safetensors_spec spec_of(const output_tensor *output) {
    if (output->matrix == NULL) { return qr_tensor_spec(output->source); }
    qr_safetensors_spec spec = qr_bnb_part_spec(&output->matrix->desc, output->part, output->matrix->state_bytes);
    spec.name = output->name;
    return spec;
}

static qrun_status add_matrix(folder_job *job, linear_matrix *matrix, qr_error *err) {
    for (int part = 0; part < QR_BNB_PART_COUNT; part++) {
        if (!qr_bnb_has_part(matrix->desc.format, (qr_bnb_part)part)) { continue; }
        output_tensor *output = &job->outputs[job->n_outputs++];
        *output = (output_tensor){.source = matrix->stored.codes, .matrix = matrix, .part = (qr_bnb_part)part};
        output->name = part_name(job, matrix, output->part);
        if (output->name == NULL) {
            return qr_fail_memory(err, matrix->stored.codes->name, strlen(matrix->stored.codes->name));
        }
    }
    return QRUN_OK;
}

/* Scales and the like of a packed matrix, which the new folder has none of. */
static bool is_part_of(const qr_stored_weight *stored, const qr_safetensors_tensor *tensor) {
    if (stored->packed.kind == QR_PACKING_NONE || stored->codes == tensor) { return false; }
    return stored->packed.scale_tensor == tensor ||
           qr_packed_module_has(stored->packed.kind, stored->codes, tensor->name);
}

/* The new tensors that an old one becomes: the parts of its matrices, or itself. */
static qrun_status add_source(folder_job *job, const qr_safetensors_tensor *tensor, qr_error *err) {
    const size_t n_before = job->n_outputs;
    for (size_t i = 0; i < job->n_matrices; i++) {
        if (job->matrices[i].stored.codes == tensor) { QR_RETURN_IF_ERROR(add_matrix(job, &job->matrices[i], err)); }
        if (is_part_of(&job->matrices[i].stored, tensor)) { return QRUN_OK; }
    }
    if (qr_model_is_idle_bias(&job->copy.model, tensor)) { return QRUN_OK; }
    const bool is_kept = job->n_outputs == n_before;
    const int64_t n_times = is_kept ? 1 : 2; /* a matrix is read for its scales and for its codes */
    job->copy.total_bytes += (int64_t)tensor->n_bytes * n_times;
    if (is_kept) { job->outputs[job->n_outputs++] = (output_tensor){.source = tensor}; }
    return QRUN_OK;
}

/* The matrices and, in the order of the old files, every tensor of the new folder. */
static qrun_status list_outputs(folder_job *job, qr_error *err) {
    const size_t n_sources = qr_safetensors_count(job->copy.source);
    size_t n_matrices = 0;
    (void)qr_model_each_module(&job->copy.model, count_matrix, &n_matrices, NULL);
    const size_t most = n_sources + n_matrices * QR_BNB_PART_COUNT;
    job->matrices = qr_alloc_array(n_matrices, sizeof *job->matrices);
    job->outputs = qr_alloc_array(most, sizeof *job->outputs);
    job->specs = qr_alloc_array(most, sizeof *job->specs);
    if (job->matrices == NULL || job->outputs == NULL || job->specs == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *job->outputs);
    }
    QR_RETURN_IF_ERROR(qr_model_each_module(&job->copy.model, collect_matrix, job, err));
    for (size_t i = 0; i < n_sources; i++) {
        QR_RETURN_IF_ERROR(add_source(job, qr_safetensors_get(job->copy.source, i), err));
    }
    return QRUN_OK;
}

/* ---- Quantising -------------------------------------------------------------------------------------------------- */

/* INT8 takes its values as F16, where large ones are infinite. */
static qrun_status check_finite(const linear_matrix *matrix, const qr_host_weight *host, qr_error *err) {
    if (host->row_absmax == NULL) { return QRUN_OK; }
    for (int64_t i = 0; i < matrix->desc.rows; i++) {
        if (!isfinite(host->row_absmax[i])) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds a value that is not finite in F16; nf4-dq can hold it",
                           matrix->stored.codes->name);
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
    const qr_stored_weight *stored = &matrix->stored;
    const qr_row_source rows = qr_stored_rows(stored, qr_model_is_transposed(&job->copy.model, matrix->role));
    qr_compute_lock(context);
    const qrun_status status =
        qr_weight_quantize_host(context->backend, &matrix->desc, &rows, stored->codes->name, &job->host, err);
    qr_compute_unlock(context);
    QR_RETURN_IF_ERROR(status);
    if (stored->is_last) { QR_RETURN_IF_ERROR(qr_safetensors_finish(job->copy.source, stored->codes, err)); }
    QR_RETURN_IF_ERROR(check_finite(matrix, &job->host, err));
    job->host_matrix = matrix;
    return qr_folder_copy_advance(&job->copy, (int64_t)stored->n_bytes, err);
}

/* The length of a state depends on the digits of the offset, so double-quantised matrices are read before anything is
 * written. */
static qrun_status make_states(folder_job *job, qr_error *err) {
    for (size_t i = 0; i < job->n_matrices; i++) {
        linear_matrix *matrix = &job->matrices[i];
        if (!qr_weight_is_nf4(matrix->desc.format)) { continue; }
        if (matrix->desc.format == QR_WEIGHT_NF4_DQ) {
            QR_RETURN_IF_ERROR(quantize_matrix(job, matrix, err));
            matrix->nested_offset = job->host.nested_offset;
            matrix->nested_absmax = job->host.nested_absmax; /* owned from here on */
            job->host.nested_absmax = NULL;
        }
        matrix->state_bytes =
            qr_bnb_quant_state(&matrix->desc, matrix->stored.codes->dtype, matrix->nested_offset, matrix->state);
    }
    return QRUN_OK;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* Whether a part comes from job->host. The others are already known. */
static bool is_in_host(qr_bnb_part part) {
    return part == QR_BNB_CODES || part == QR_BNB_ROW_ABSMAX || part == QR_BNB_ABSMAX;
}

static const void *part_bytes(const folder_job *job, const output_tensor *output) {
    static const unsigned char row_major = 0;
    const linear_matrix *matrix = output->matrix;
    switch (output->part) {
        case QR_BNB_CODES: return job->host.codes;
        case QR_BNB_ABSMAX:
            return matrix->desc.format == QR_WEIGHT_NF4_DQ ? (const void *)job->host.absmax_codes : job->host.absmax;
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

static qrun_status write_part(folder_job *job, qr_safetensors_writer *writer, const output_tensor *output,
                              const qr_safetensors_spec *spec, qr_error *err) {
    size_t n_bytes = 0;
    QR_RETURN_IF_ERROR(qr_tensor_spec_add_bytes(spec, &n_bytes, err));
    if (is_in_host(output->part)) { QR_RETURN_IF_ERROR(quantize_matrix(job, output->matrix, err)); }
    return qr_safetensors_writer_write(writer, part_bytes(job, output), n_bytes, err);
}

static qrun_status write_output(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    folder_job *job = arg;
    const output_tensor *output = &job->outputs[i];
    return output->matrix != NULL ? write_part(job, writer, output, &job->specs[i], err)
                                  : qr_folder_copy_tensor(&job->copy, writer, output->source, err);
}

static qrun_status write_tensors(folder_job *job, qr_error *err) {
    for (size_t i = 0; i < job->n_outputs; i++) { job->specs[i] = spec_of(&job->outputs[i]); }
    return qr_tensors_write(job->copy.folder.partial_path, job->specs, job->n_outputs, job->params->max_shard_bytes,
                            write_output, job, err);
}

/* Of a model with an image encoder only the text model is quantised. Older and newer transformers spell the rest
 * differently, and families have names of their own for it. */
static const char *const multimodal_skips[] = {"lm_head",      "vision_tower",           "multi_modal_projector",
                                               "visual",       "model.vision_tower",     "model.multi_modal_projector",
                                               "model.visual", "model.vision_tokenizer", "model.audio_tokenizer"};

/* The modules that are not quantised; none: those that transformers leaves out by itself. The names are lent. */
typedef struct skip_list {
    const char **names;
    size_t n, capacity;
} skip_list;

static qrun_status skip(skip_list *skips, const char *name, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_array_grow(&skips->names, &skips->capacity, skips->n + 1, sizeof *skips->names,
                                     "the names of modules", err));
    skips->names[skips->n++] = name;
    return QRUN_OK;
}

/* Of a model with residual streams, what mixes them, and what Gemma 3n's folders have beside its text model. */
static qrun_status list_stream_skips(const qrun_model *model, skip_list *skips, qr_error *err) {
    static const char *const beside[] = {"audio_tower",       "embed_vision",       "embed_audio",
                                         "model.audio_tower", "model.embed_vision", "model.embed_audio"};
    const size_t n_beside = model->config.is_multimodal ? QR_COUNT_OF(beside) : 0;
    if (model->shape.n_streams == 0) { return QRUN_OK; }
    for (size_t i = 0; i < n_beside; i++) { QR_RETURN_IF_ERROR(skip(skips, beside[i], err)); }
    for (qr_tensor_role role = QR_ROLE_STREAM_ROUTER; role <= QR_ROLE_STREAM_CORRECT; role++) {
        QR_RETURN_IF_ERROR(skip(skips, qr_family_name_in_layer(model->family->modules[role]), err));
    }
    return QRUN_OK;
}

static qrun_status list_skips(const qrun_model *model, bool lists_some, skip_list *skips, qr_error *err) {
    const bool has_experts = model->expert_weights != NULL;
    const size_t n_multimodal = model->config.is_multimodal ? QR_COUNT_OF(multimodal_skips) : 0;
    for (size_t i = 0; i < n_multimodal; i++) { QR_RETURN_IF_ERROR(skip(skips, multimodal_skips[i], err)); }
    const bool has_streams = model->shape.n_streams > 0;
    QR_RETURN_IF_ERROR(list_stream_skips(model, skips, err));
    if (n_multimodal == 0 && (has_experts || has_streams || lists_some)) {
        QR_RETURN_IF_ERROR(skip(skips, "lm_head", err));
    }
    if (!has_experts) { return QRUN_OK; }
    return skip(skips, qr_family_name_in_layer(model->family->modules[QR_ROLE_ROUTER]), err);
}

static qrun_status edit_config(void *arg, qr_buffer *config, const char *what, qr_error *err) {
    const folder_job *job = arg;
    const qrun_model *model = &job->copy.model;
    qr_buffer edited = {0};
    skip_list skips = {0};
    char **raised = NULL;
    size_t n_raised = 0;
    qrun_status status = QRUN_OK;
    if (copies_mxfp4(job)) { return QRUN_OK; }
    if (job->params->mixed != NULL) {
        QR_TRY(qr_mixed_plain_names(job->params->mixed, model, &raised, &n_raised, err));
    }
    QR_TRY(list_skips(model, n_raised > 0, &skips, err));
    for (size_t i = 0; i < n_raised; i++) { QR_TRY(skip(&skips, raised[i], err)); }
    QR_TRY(
        qr_quantized_config_append(config->data, config->size, what, job->format, skips.names, skips.n, &edited, err));
    qr_buffer_free(config);
    *config = edited;
    edited = (qr_buffer){0};
out:
    qr_buffer_free(&edited);
    for (size_t i = 0; i < n_raised; i++) { qr_free(raised[i]); }
    qr_free(raised);
    qr_free(skips.names);
    return status;
}

/* What was measured, beside the weights that it chose the formats of. */
static qrun_status write_measured(const folder_job *job, qr_error *err) {
    const qrun_mixed *mixed = job->params->mixed;
    if (mixed == NULL) { return QRUN_OK; }
    char *path = qr_path_join(job->copy.folder.partial_path, QR_MIXED_FILE);
    if (path == NULL) { return qr_fail_memory(err, QR_MIXED_FILE, strlen(QR_MIXED_FILE)); }
    const qrun_status status = qr_file_write(path, mixed->json, strlen(mixed->json), err);
    qr_free(path);
    return status;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void job_free(folder_job *job) {
    for (size_t i = 0; i < job->n_outputs; i++) { qr_free(job->outputs[i].name); }
    for (size_t i = 0; i < job->n_matrices; i++) { qr_free(job->matrices[i].nested_absmax); }
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
    if (qr_quantization_is_kept(&job.copy.model.config.quantization)) { QR_TRY(refuse_quantised(&job, error)); }
    QR_TRY(check_mxfp4(&job, error));
    QR_TRY(check_measured(&job, error));
    QR_TRY(qr_folder_writer_open(&job.copy.folder, params->out, error));
    QR_TRY(list_outputs(&job, error));
    QR_TRY(make_states(&job, error));
    QR_TRY(write_tensors(&job, error));
    QR_TRY(write_measured(&job, error));
    /* A matrix alone in a shard is read once, so bytes may be missing. */
    QR_TRY(qr_folder_copy_advance(&job.copy, job.copy.total_bytes - job.copy.done_bytes, error));
    QR_TRY(qr_folder_copy_finish(&job.copy, edit_config, &job, error));
out:
    job_free(&job);
    return status;
}
