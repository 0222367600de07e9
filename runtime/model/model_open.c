/* Opening a model: folder, config, description, tokenizer, memory check, weights. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/params.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/config/known_models.h"
#include "loaders/files/hub.h"
#include "loaders/files/model_folder.h"
#include "loaders/source/model_source.h"
#include "runtime/model/adapter.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/modules.h"
#include "runtime/model/split.h"
#include "runtime/model/weight_writer.h"

/* ---- Formats ----------------------------------------------------------------------------------------------------- */

static qr_dtype act_dtype_of(qrun_dtype dtype) {
    return dtype == QRUN_DTYPE_F32 ? QR_DTYPE_F32 : dtype == QRUN_DTYPE_F16 ? QR_DTYPE_F16 : QR_DTYPE_BF16;
}

bool qr_quant_to_format(qrun_quant quant, qr_weight_format *format) {
    static const qr_weight_format formats[] = {
        [QRUN_QUANT_AUTO] = QR_WEIGHT_NF4_DQ, [QRUN_QUANT_F32] = QR_WEIGHT_F32,
        [QRUN_QUANT_BF16] = QR_WEIGHT_BF16,   [QRUN_QUANT_INT8] = QR_WEIGHT_INT8,
        [QRUN_QUANT_NF4] = QR_WEIGHT_NF4,     [QRUN_QUANT_NF4_DQ] = QR_WEIGHT_NF4_DQ,
        [QRUN_QUANT_F16] = QR_WEIGHT_F16,     [QRUN_QUANT_MIXED] = QR_WEIGHT_FORMAT_COUNT,
        [QRUN_QUANT_MXFP4] = QR_WEIGHT_MXFP4,
    };
    if ((size_t)quant >= QR_COUNT_OF(formats) || formats[quant] == QR_WEIGHT_FORMAT_COUNT) { return false; }
    *format = formats[quant];
    return true;
}

static qr_weight_format stored_format(const qr_quantization_config *quantization) {
    if (quantization->packing.kind == QR_PACKING_MXFP4) { return QR_WEIGHT_MXFP4; }
    if (quantization->stored == QR_STORED_BNB_INT8) { return QR_WEIGHT_INT8; }
    return quantization->double_quantised ? QR_WEIGHT_NF4_DQ : QR_WEIGHT_NF4;
}

static const char *stored_name(const qr_quantization_config *quantization) {
    return qr_quantization_is_kept(quantization) ? qr_weight_format_name(stored_format(quantization))
                                                 : qr_packing_name(&quantization->packing);
}

/* Matrices that updates can be written into: all of the compute type. */
static qrun_status choose_trainable(const qrun_model *model, const qrun_model_params *params,
                                    struct qr_model_options *options, qr_error *err) {
    const qr_weight_format format = qr_model_compute_format(model);
    QR_RETURN_IF_ERROR(qr_source_require_folder(model->folder, "full fine-tuning", err));
    if (model->config.quantization.stored != QR_STORED_PLAIN) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "%s: is stored as %s, and full fine-tuning changes every weight; take the original model, or train "
            "an adapter on this one",
            model->folder, stored_name(&model->config.quantization));
    }
    const bool has_int8_table = params->quant_head_int8 || params->quant_embedding_int8;
    if ((params->quant != QRUN_QUANT_AUTO && options->linear_format != format) || has_int8_table) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "full fine-tuning changes every weight, so all are held in the compute type, %s, and none in %s; "
            "leave `quant` out, or train an adapter on the quantised model",
            qr_weight_format_name(format),
            qr_weight_format_name(has_int8_table ? QR_WEIGHT_INT8 : options->linear_format));
    }
    options->linear_format = options->table_format = format;
    options->trainable = true;
    return QRUN_OK;
}

static qrun_status refuse_unmeasured(const qrun_model *model, qr_error *err) {
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "%s: which matrices `quant=mixed` holds in more bits is measured once, when a folder is written quantised, "
        "and this one was not written so; open such a folder, or choose another `quant`",
        model->folder);
}

/* Once the folder's matrices are described. */
static qrun_status check_mixed(const qrun_model *model, const qrun_model_params *params, qr_error *err) {
    if (params->quant == QRUN_QUANT_MIXED) {
        return model->is_mixed || model->is_partly_plain ? QRUN_OK : refuse_unmeasured(model, err);
    }
    if (!model->is_mixed || params->quant == QRUN_QUANT_AUTO) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is stored in mixed formats and cannot become %s; use `quant=auto`, or the original model",
                   model->folder, qr_weight_format_name(model->linear_format));
}

/* Whether experts are held in MXFP4: where they are stored so and nothing else is asked for. */
static bool takes_mxfp4(const qrun_model *model, const qrun_model_params *params) {
    if (params->quant == QRUN_QUANT_MXFP4) { return true; }
    return params->quant == QRUN_QUANT_AUTO && model->config.quantization.packing.kind == QR_PACKING_MXFP4;
}

/* Whether matrices are held as the folder stores them. */
static bool keeps_stored(const qrun_model *model, const qrun_model_params *params) {
    const qr_quantization_config *quantization = &model->config.quantization;
    if (params->random_weights) { return false; }
    const bool in_mxfp4 = quantization->packing.kind == QR_PACKING_MXFP4;
    return in_mxfp4 ? takes_mxfp4(model, params) : qr_quantization_is_kept(quantization);
}

static qrun_status check_mxfp4(const qrun_model *model, const qrun_model_params *params, qr_error *err) {
    if (params->quant != QRUN_QUANT_MXFP4 || model->config.quantization.packing.kind == QR_PACKING_MXFP4) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is not stored as mxfp4, and nothing is quantised to it; choose another `quant`", model->folder);
}

static qrun_status choose_formats(qrun_model *model, const qrun_model_params *params, struct qr_model_options *options,
                                  qr_error *err) {
    model->prequantized = keeps_stored(model, params);
    const bool is_mixed = params->quant == QRUN_QUANT_MIXED;
    if (!qr_quant_to_format(is_mixed ? QRUN_QUANT_NF4_DQ : params->quant, &options->linear_format)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "quant %d is not one of qrun_quant", (int)params->quant);
    }
    options->table_format = qr_weight_plain_format(model->config.dtype);
    options->head_int8 = params->quant_head_int8;
    options->embedding_int8 = params->quant_embedding_int8;
    options->trainable = false;
    if (params->trainable) { return choose_trainable(model, params, options, err); }
    if (!model->prequantized) {
        if (params->random_weights && takes_mxfp4(model, params)) { options->linear_format = QR_WEIGHT_MXFP4; }
        return check_mxfp4(model, params, err);
    }
    const qr_weight_format stored = stored_format(&model->config.quantization);
    if (params->quant != QRUN_QUANT_AUTO && !is_mixed && options->linear_format != stored) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: is stored as %s and cannot become %s; use `quant=auto`, or the original model",
                       model->folder, qr_weight_format_name(stored), qr_weight_format_name(options->linear_format));
    }
    options->linear_format = stored;
    return check_mxfp4(model, params, err);
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

typedef struct load_state {
    qrun_model *model;
    const qr_safetensors *source;
    qrun_progress_fn progress;
    void *progress_user;
    int64_t done_bytes, total_bytes;
    float *random_rows; /* [QR_WEIGHT_ROW_GROUP, random_cols] */
    int64_t random_cols;
} load_state;

static qrun_status advance(load_state *state, int64_t n_bytes, qr_error *err) {
    state->done_bytes += n_bytes;
    if (state->progress == NULL || state->progress(state->progress_user, state->done_bytes, state->total_bytes)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "loading %s was cancelled", state->model->folder);
}

/* ---- Weights from a folder --------------------------------------------------------------------------------------- */

static qrun_status advance_past(load_state *state, const qr_safetensors_tensor *tensor, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_safetensors_finish(state->source, tensor, err));
    return advance(state, (int64_t)tensor->n_bytes, err);
}

/* A range of a vector that is stored in several tensors. */
static qrun_status load_of_parts(const load_state *state, const qr_module *module, const qr_stored_vector *vector,
                                 const qr_row_range *range, float *device, qr_error *err) {
    int64_t first = range->first, n_left = range->n;
    for (int i = 0; i < vector->n_parts; i++) {
        const int64_t n_part = qr_stored_part_elements(vector->parts[i]);
        const qr_float_range elements = {.first = first, .step = 1, .n = qr_min(n_left, n_part - first)};
        if (elements.n > 0) {
            QR_RETURN_IF_ERROR(qr_weight_write_some_floats(qr_module_backend(state->model, module), device,
                                                           vector->parts[i], &elements, err));
            device += elements.n;
            n_left -= elements.n;
        }
        first = qr_max(first - n_part, 0);
    }
    return QRUN_OK;
}

/* Elements of a stored vector, as [n_parts, n] of the n_parts that the module has, one for each expert. Those of gate
 * and up may be in turn. */
static qrun_status load_elements(const load_state *state, const qr_module *module, const qr_stored_vector *vector,
                                 const qr_row_range *range, float *device, qr_error *err) {
    if (vector->n_parts > 1) { return load_of_parts(state, module, vector, range, device, err); }
    const int64_t step = qr_vector_step(state->model, module->role);
    const qr_float_range elements = {.first =
                                         range->first * step + (module->role == QR_ROLE_EXPERT_UP_BIAS && step > 1),
                                     .step = step,
                                     .n = range->n};
    return qr_weight_write_some_floats(qr_module_backend(state->model, module), device, vector->parts[0], &elements,
                                       err);
}

/* This rank's elements: some ranges, of every expert where the vector has a part for each. */
static qrun_status load_share(const load_state *state, const qr_module *module, const qr_stored_vector *vector,
                              float *device, qr_error *err) {
    const qr_row_share *share = module->share;
    const int64_t n_shares = qr_module_n_shares(module);
    for (int64_t s = 0; s < n_shares; s++) {
        for (int32_t i = 0; i < share->n_ranges; i++) {
            const qr_row_range range = {s * share->all + share->ranges[i].first, share->ranges[i].n};
            QR_RETURN_IF_ERROR(load_elements(state, module, vector, &range, device, err));
            device += range.n;
        }
    }
    return QRUN_OK;
}

static qrun_status load_vector(load_state *state, const qr_module *module, const char *suffix, const float *device,
                               qr_error *err) {
    const qr_row_range all = {0, module->n};
    qr_stored_vector vector;
    float *dst = (float *)(uintptr_t)device;
    QR_RETURN_IF_ERROR(qr_module_find_vector(state->model, state->source, module->role, module->layer, suffix,
                                             qr_module_stored_n(module), &vector, err));
    QR_RETURN_IF_ERROR(qr_module_is_part(module) ? load_share(state, module, &vector, dst, err)
                                                 : load_elements(state, module, &vector, &all, dst, err));
    for (int i = 0; i < vector.n_parts; i++) { QR_RETURN_IF_ERROR(advance_past(state, vector.parts[i], err)); }
    return QRUN_OK;
}

/* All rows of the source, or this rank's. */
static qrun_status write_rows(qr_backend *backend, const qr_module *module, const qr_row_source *source,
                              const char *name, qr_error *err) {
    if (!qr_module_is_part(module)) { return qr_weight_write(backend, module->matrix, source, name, err); }
    qr_weight_desc whole = module->matrix->desc;
    whole.format = module->share->whole_format;
    whole.rows = module->share->all;
    return qr_weight_write_rows_of(backend, module->matrix, &whole, module->share, source, name, err);
}

static qrun_status write_stored(qr_backend *backend, const qr_module *module, const qr_stored_weight *stored,
                                qr_error *err) {
    return qr_module_is_part(module)
               ? qr_weight_write_stored_rows(backend, module->matrix, module->share, stored, NULL, err)
               : qr_weight_write_stored(backend, module->matrix, stored, NULL, err);
}

static qrun_status load_matrix(load_state *state, const qr_module *module, qr_error *err) {
    const qrun_model *model = state->model;
    qr_backend *backend = qr_module_backend(model, module);
    qr_stored_weight stored;
    QR_RETURN_IF_ERROR(qr_module_find_stored(model, state->source, module, &stored, err));
    const qr_row_source source = qr_stored_rows(&stored, qr_model_is_transposed(model, module->role));
    /* A share of rows may be held in a format of the same values (runtime/model/split.h). */
    const qr_weight_format format =
        qr_module_is_part(module) ? module->share->whole_format : module->matrix->desc.format;
    const bool is_as_held = !qr_weight_is_plain(stored.desc.format) && stored.desc.format == format;
    QR_RETURN_IF_ERROR(is_as_held ? write_stored(backend, module, &stored, err)
                                  : write_rows(backend, module, &source, stored.codes->name, err));
    if (stored.is_last) { QR_RETURN_IF_ERROR(qr_safetensors_finish(state->source, stored.codes, err)); }
    return advance(state, (int64_t)stored.n_bytes, err);
}

/* ---- Random weights ---------------------------------------------------------------------------------------------- */

/* One group of random rows is made per matrix width and repeated: 8 billion normal values would take longer to generate
 * than everything that is then measured, and no kernel's time depends on the values. */
static qrun_status make_random_rows(load_state *state, int64_t cols, qr_error *err) {
    if (state->random_cols == cols) { return QRUN_OK; }
    const int64_t n = QR_WEIGHT_ROW_GROUP * cols;
    qr_free(state->random_rows);
    state->random_cols = 0;
    state->random_rows = qr_alloc_array((size_t)n, sizeof(float));
    if (state->random_rows == NULL) { return qr_fail_memory(err, "random weights", (size_t)n * sizeof(float)); }
    for (int64_t i = 0; i < n; i++) {
        state->random_rows[i] = 0.02F * (float)qr_random_normal(0, (uint64_t)cols, (uint64_t)i);
    }
    state->random_cols = cols;
    return QRUN_OK;
}

/* Codes of one group of rows again and again, also where a share begins inside one. The scale gives them the size of
 * other random weights. */
static qrun_status randomise_mxfp4(load_state *state, const qr_module *module, qr_error *err) {
    enum { TWO_TO_THE_MINUS_7 = 120, SEED = 1 };
    qr_backend *backend = qr_module_backend(state->model, module);
    qr_weight *matrix = module->matrix;
    const qr_weight_desc *desc = &matrix->desc;
    const size_t n_codes = qr_weight_row_offset(desc, QR_WEIGHT_ROW_GROUP), n_scales = (size_t)qr_weight_blocks(desc);
    const int64_t phase = qr_module_is_part(module) ? module->share->ranges[0].first % QR_WEIGHT_ROW_GROUP : 0;
    qrun_status status = QRUN_OK;
    uint8_t *codes = qr_alloc(2 * n_codes), *scales = qr_alloc(n_scales);
    if (codes == NULL || scales == NULL) { QR_TRY(qr_fail_memory(err, "random weights", n_codes + n_scales)); }
    for (size_t i = 0; i < n_codes; i++) {
        codes[i] = codes[n_codes + i] = (uint8_t)(256.0 * qr_random_uniform(SEED, 0, i));
    }
    memset(scales, TWO_TO_THE_MINUS_7, n_scales);
    for (int64_t row = 0; row < desc->rows; row += QR_WEIGHT_ROW_GROUP) {
        const int64_t n_rows = qr_min(QR_WEIGHT_ROW_GROUP, desc->rows - row);
        const uint8_t *src = codes + qr_weight_row_offset(desc, phase);
        QR_TRY(backend->weight_put_rows(backend, matrix, row, n_rows, src, err));
    }
    QR_TRY(backend->weight_put_scales(backend, matrix, &(qr_weight_scales){.absmax_codes = scales}, err));
    status = advance(state, (int64_t)backend->weight_bytes(backend, desc), err);
out:
    qr_free(codes);
    qr_free(scales);
    return status;
}

static qrun_status randomise_matrix(load_state *state, const qr_module *module, qr_error *err) {
    qr_backend *backend = qr_module_backend(state->model, module);
    qr_weight *matrix = module->matrix;
    if (matrix->desc.format == QR_WEIGHT_MXFP4) { return randomise_mxfp4(state, module, err); }
    QR_RETURN_IF_ERROR(make_random_rows(state, matrix->desc.cols, err));
    const qr_row_source source = {
        .src = (const unsigned char *)state->random_rows, .dtype = QR_DTYPE_F32, .period_rows = QR_WEIGHT_ROW_GROUP};
    QR_RETURN_IF_ERROR(write_rows(backend, module, &source, "random weights", err));
    return advance(state, (int64_t)backend->weight_bytes(backend, &matrix->desc), err);
}

/* Norms at their neutral value: 1, or 0 where the family adds 1. A convolution is a mean; a state decays, by a rate of
 * softplus(a) for a_log 0. */
static float neutral_value(const qrun_model *model, qr_tensor_role role) {
    switch (role) {
        case QR_ROLE_LAYER_SCALAR:
        case QR_ROLE_EXPERT_SCALE:
        case QR_ROLE_SKIP:
        case QR_ROLE_RECURRENT_NORM: return 1.0F;
        case QR_ROLE_CONV: return 1.0F / (float)model->shape.recurrent.kernel;
        case QR_ROLE_XIELU_ALPHA_P:
        case QR_ROLE_XIELU_ALPHA_N:
        case QR_ROLE_XIELU_BETA:
        case QR_ROLE_XIELU_EPS: return qr_xielu_initial(role);
        case QR_ROLE_RECURRENT_A_LOG:
        case QR_ROLE_RECURRENT_DT_BIAS:
        case QR_ROLE_CONV_BIAS:
        case QR_ROLE_SINKS:
        case QR_ROLE_STREAM_PREDICT:
        case QR_ROLE_STREAM_CORRECT:
        case QR_ROLE_CHOICE_BIAS:
        case QR_ROLE_EXPERT_GATE_BIAS:
        case QR_ROLE_EXPERT_UP_BIAS:
        case QR_ROLE_EXPERT_OUT_BIAS: return 0.0F;
        default: return 1.0F - qr_model_norm_offset(model, role);
    }
}

static qrun_status fill_vector(qr_backend *backend, const float *device, int64_t n, float value, qr_error *err) {
    const size_t n_bytes = (size_t)n * sizeof(float);
    if (n == 0) { return QRUN_OK; }
    float *values = qr_alloc(n_bytes);
    if (values == NULL) { return qr_fail_memory(err, "the weights of a norm", n_bytes); }
    for (int64_t i = 0; i < n; i++) { values[i] = value; }
    const qrun_status status = backend->copy_in(backend, (void *)(uintptr_t)device, values, n_bytes, err);
    qr_free(values);
    return status;
}

static qrun_status neutralise_vector(const load_state *state, const qr_module *module, qr_error *err) {
    return fill_vector(qr_module_backend(state->model, module), *module->weight, module->n,
                       neutral_value(state->model, module->role), err);
}

/* ---- All modules ------------------------------------------------------------------------------------------------- */

/* What comes through the stages of layers is either kept in host memory or stays in the folder. */
static qrun_status fill_matrix(load_state *state, const qr_module *module, qr_error *err) {
    const bool staged = qr_layer_stream_has(state->model, module);
    if (staged && !qr_layer_stream_is_loaded(state->model)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(state->source == NULL ? randomise_matrix(state, module, err) : load_matrix(state, module, err));
    if (qr_host_experts_has(state->model, module)) { return qr_host_experts_keep(state->model, module, err); }
    return staged ? qr_layer_stream_keep(state->model, module->layer, module->matrix, err) : QRUN_OK;
}

static qrun_status fill_module(void *arg, const qr_module *module, qr_error *err) {
    load_state *state = arg;
    if (qr_module_is_tied_head(state->model, module)) {
        *module->matrix = state->model->embedding;
        return QRUN_OK;
    }
    if (module->matrix != NULL) { QR_RETURN_IF_ERROR(fill_matrix(state, module, err)); }
    if (state->source == NULL) { /* biases stay zero, as the memory was made */
        return module->weight != NULL ? neutralise_vector(state, module, err) : QRUN_OK;
    }
    if (module->weight != NULL) { QR_RETURN_IF_ERROR(load_vector(state, module, "weight", *module->weight, err)); }
    return module->bias != NULL ? load_vector(state, module, "bias", *module->bias, err) : QRUN_OK;
}

/* Reads every weight from `source`, quantising tensor by tensor straight from the map into the model's memory; pages of
 * the map are dropped once they are read. progress (may be NULL) is told bytes of the file.
 *
 * With source NULL the weights are random, of the size that initialisation gives (normal, σ = 0.02; norms at 1), and
 * the same every time: for measuring a shape. progress is told bytes of the weights. */
static qrun_status load_weights(qrun_model *model, const qr_safetensors *source, qrun_progress_fn progress,
                                void *progress_user, qr_error *err) {
    load_state state = {.model = model, .source = source, .progress = progress, .progress_user = progress_user};
    for (size_t i = 0; source != NULL && i < qr_safetensors_count(source); i++) {
        state.total_bytes += (int64_t)qr_safetensors_get(source, i)->n_bytes;
    }
    if (source == NULL) { state.total_bytes = (int64_t)model->weight_bytes; }
    qrun_status status = qr_model_each_module(model, fill_module, &state, err);
    qr_free(state.random_rows);
    if (status == QRUN_OK) { status = fill_vector(model->context->backend, model->ones, model->n_ones, 1.0F, err); }
    if (status == QRUN_OK && source != NULL) { status = qr_safetensors_check(source, err); }
    return status == QRUN_OK ? advance(&state, state.total_bytes - state.done_bytes, err) : status;
}

const char *qrun_known_model(int32_t index) { return qr_known_model_name(index); }

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Random weights need config.json alone, in a folder or as a file, or the name of a known model. */
static qrun_status find_folder(const qrun_model_params *params, char **folder, qr_error *err) {
    const bool is_path = params->random_weights && (qr_file_exists(params->path) || qr_known_model_is(params->path));
    if (!is_path) {
        const qrun_status status = qr_model_folder_resolve(params->path, folder, err);
        if (status != QRUN_OK && params->random_weights) { qr_error_prefix(err, "no shape that is known by name"); }
        return status;
    }
    *folder = qr_strdup(params->path);
    return *folder != NULL ? QRUN_OK : qr_fail_memory(err, "the model's path", strlen(params->path));
}

static qrun_status read_config_file(const char *path, qr_model_config *config, qr_error *err) {
    qr_json *root = NULL;
    if (!qr_file_exists(path)) { return qr_known_model_read(path, config, err); }
    qrun_status status = qr_json_read(path, QR_MODEL_CONFIG_BYTES, &root, err);
    if (status == QRUN_OK) { status = qr_model_config_parse(root, path, config, err); }
    qr_json_free(root);
    return status;
}

static qrun_status read_configs(qrun_model *model, const qrun_model_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(find_folder(params, &model->folder, err));
    QR_RETURN_IF_ERROR(qr_hub_name_of(model->folder, &model->hub_name, err));
    if (qr_file_is_folder(model->folder) || qr_source_is_converted(model->folder)) {
        QR_RETURN_IF_ERROR(qr_model_config_read(model->folder, &model->config, err));
        return qr_generation_config_read(model->folder, &model->config, &model->generation, err);
    }
    QR_RETURN_IF_ERROR(read_config_file(model->folder, &model->config, err));
    model->generation = (qr_generation_config){
        .eos = model->config.eos, .top_p = 1.0, .repetition_penalty = 1.0, .rules = QR_GENERATION_RULES_INIT};
    return QRUN_OK;
}

static qrun_status check_params(const qrun_model_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_model_params, params, err));
    if (params->path == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no model path was given"); }
    if ((unsigned)params->dtype > QRUN_DTYPE_F16) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "dtype %d is not one of qrun_dtype", (int)params->dtype);
    }
    if (params->memory_bytes < 0) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "`memory_bytes` cannot be negative"); }
    const qr_range ranges[] = {{"`offload_parameters`", params->offload_parameters, 0, QRUN_OFFLOAD_AUTO},
                               {"`offload_experts`", params->offload_experts, 0, QRUN_OFFLOAD_AUTO}};
    return qr_check_ranges(ranges, QR_COUNT_OF(ranges), err);
}

qrun_status qr_model_prepare(qrun_context *context, const qrun_model_params *params, qrun_model *model,
                             qr_safetensors **source, qr_error *err) {
    *model = (qrun_model){.context = context, .prefix = ""};
    *source = NULL;
    pthread_mutex_init(&model->lock, NULL);
    QR_RETURN_IF_ERROR(check_params(params, err));
    model->random_weights = params->random_weights;
    model->trainable = params->trainable;
    QR_RETURN_IF_ERROR(read_configs(model, params, err));
    model->act_dtype = act_dtype_of(params->dtype);
    QR_RETURN_IF_ERROR(
        qr_model_shape_from_config(&model->config, model->act_dtype, &model->shape, &model->family, err));
    QR_RETURN_IF_ERROR(qr_split_model(model, params, err));
    struct qr_model_options options = {0};
    QR_RETURN_IF_ERROR(choose_formats(model, params, &options, err));
    model->linear_format = options.linear_format;
    if (!params->random_weights) {
        QR_RETURN_IF_ERROR(qr_source_open_tensors(model->folder, source, err));
        model->block_type = qr_source_block_type(*source);
        QR_RETURN_IF_ERROR(qr_model_find_prefix(model, *source, err));
        QR_RETURN_IF_ERROR(qr_model_settle_head(model, *source, err));
        qr_model_settle_choice_bias(model, *source);
        QR_RETURN_IF_ERROR(qr_model_refuse_unknown_tensors(model, *source, err));
        QR_RETURN_IF_ERROR(qr_model_name_left_out(model, *source, err));
    }
    QR_RETURN_IF_ERROR(qr_model_describe(model, &options, *source, err));
    QR_RETURN_IF_ERROR(check_mixed(model, params, err));
    QR_RETURN_IF_ERROR(qr_host_experts_describe(model, params, err));
    return qr_layer_stream_describe(model, params, *source, err);
}

void qr_model_release(qrun_model *model) {
    qr_backend *backend = model->context->backend;
    qr_adapters_release(model);
    qr_layer_stream_destroy(model);
    qr_host_experts_destroy(model);
    const size_t made_bytes = model->weight_memory != NULL ? model->weight_bytes : 0; /* else only described */
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, model->weight_memory, made_bytes);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, model->table_memory, model->table_bytes);
    qr_model_free_tables(model);
    qr_model_config_free(&model->config);
    qr_generation_config_free(&model->generation);
    qr_free(model->folder);
    qr_free(model->hub_name);
    qr_free(model->left_out);
    pthread_mutex_destroy(&model->lock);
}

qrun_status qr_model_read_context(qrun_context *context, const qrun_model_params *params, int64_t *n_tokens,
                                  qr_error *err) {
    qrun_model model;
    qr_safetensors *source;
    const qrun_status status = qr_model_prepare(context, params, &model, &source, err);
    *n_tokens = model.shape.context_tokens;
    qr_safetensors_close(source);
    qr_model_release(&model);
    return status;
}

static qrun_status check_memory(const qrun_model *model, const qrun_model_params *params, qr_error *err) {
    qr_device_memory memory;
    QR_RETURN_IF_ERROR(qr_device_memory_now(model->context, &memory, err));
    const bool given = params->memory_bytes > 0;
    int64_t limit = given ? params->memory_bytes - qr_device_memory_context(&memory) : memory.free_bytes;
    const char *owner = given                ? "the budget leaves them"
                        : memory.is_separate ? "the GPU has free"
                                             : "this machine has free";
    if (memory.is_separate && memory.free_bytes < limit) {
        limit = memory.free_bytes;
        owner = "the GPU has free";
    }
    if (memory.is_separate && (int64_t)qr_model_host_bytes(model) > memory.host_free_bytes) {
        return qr_fail(
            err, QRUN_ERROR_MEMORY,
            "%s: what is not held on the GPU needs %s of the machine's memory, and this machine has free %s; "
            "hold more of it on the GPU, or take a smaller model",
            model->folder, qr_format_bytes((int64_t)qr_model_host_bytes(model)).text,
            qr_format_bytes(memory.host_free_bytes).text);
    }
    const size_t host_bytes = memory.is_separate ? 0 : qr_model_host_bytes(model);
    const int64_t n_bytes = (int64_t)(model->weight_bytes + qr_layer_stream_device_bytes(model) + host_bytes);
    if (n_bytes <= limit) { return QRUN_OK; }
    char advice[192] = "give more memory";
    const qr_options_text smaller = qr_model_smaller_options(model);
    if (params->trainable) {
        (void)snprintf(advice, sizeof advice, "give more memory, or train an adapter instead of all weights");
    } else if (qr_host_experts_would_help(model)) {
        (void)snprintf(advice, sizeof advice, "hold its experts in host memory (`offload_experts`)%s%s",
                       smaller.text[0] != '\0' ? ", or weights smaller: " : "", smaller.text);
    } else if (smaller.text[0] != '\0') {
        (void)snprintf(advice, sizeof advice, "give more memory or hold them smaller (%s)", smaller.text);
    }
    return qr_fail(err, QRUN_ERROR_MEMORY, "%s: its weights need %s as %s, and %s %s; %s", model->folder,
                   qr_format_bytes(n_bytes).text, qr_model_quant_name(model), owner,
                   qr_format_bytes(qr_max(limit, 0)).text, advice);
}

enum { SAMPLE_BYTES = 256 };

/* Names, types, shapes, and some bytes of the beginning, middle and end of each tensor. They differ between models, and
 * no file is read a second time for them. */
static uint64_t hash_samples(const qr_safetensors *source) {
    uint64_t hash = QR_HASH_START;
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        const size_t n = tensor->n_bytes < SAMPLE_BYTES ? tensor->n_bytes : SAMPLE_BYTES;
        const int64_t facts[] = {tensor->dtype, tensor->n_dims};
        hash = qr_hash_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = qr_hash_bytes(hash, facts, sizeof facts);
        hash = qr_hash_bytes(hash, tensor->dims, (size_t)tensor->n_dims * sizeof *tensor->dims);
        for (size_t part = 0; part <= 2; part++) {
            hash = qr_hash_bytes(hash, tensor->data + (tensor->n_bytes - n) / 2 * part, n);
        }
    }
    return qr_hash_mix(hash);
}

static qrun_status load(qrun_model *model, const qrun_model_params *params, qr_safetensors **opened, qr_error *err) {
    const qr_safetensors *source = *opened;
    qr_backend *backend = model->context->backend;
    QR_RETURN_IF_ERROR(check_memory(model, params, err));
    QR_RETURN_IF_ERROR(
        backend->memory_create(backend, QR_MEMORY_DEVICE, model->weight_bytes, &model->weight_memory, err));
    QR_RETURN_IF_ERROR(qr_host_experts_create(model, err));
    (void)qr_model_place_weights(model, model->weight_memory);
    QR_RETURN_IF_ERROR(qr_layer_stream_create(model, opened, err));
    if (source != NULL) { model->content_hash = hash_samples(source); }
    if (backend->loading_begin != NULL) { QR_RETURN_IF_ERROR(backend->loading_begin(backend, err)); }
    const qrun_status status = load_weights(model, source, params->progress, params->progress_user, err);
    if (backend->loading_end != NULL) { backend->loading_end(backend); }
    return status;
}

qrun_status qr_model_open_alone(qrun_context *context, const qrun_model_params *params, qrun_model **model,
                                qr_error *error) {
    const double start = qr_now_seconds();
    *model = NULL;
    if (context->plans_for != NULL) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "a context with `device_memory=%s` only plans; open models without it",
                       context->plans_for->name);
    }
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_model_params, params, error));
    qrun_model *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the model", sizeof *made); }
    qr_safetensors *source = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_model_prepare(context, params, made, &source, error));
    QR_TRY(qr_split_check_ranks(context, params, error));
    QR_TRY(qr_folder_tokenizer_open_optional(made->folder, &made->tokenizer, error));
    qr_compute_lock(context);
    status = load(made, params, &source, error);
    qr_compute_unlock(context);
out:
    qr_safetensors_close(source);
    if (status != QRUN_OK) {
        qrun_model_destroy(made);
        return status;
    }
    made->load_seconds = qr_now_seconds() - start;
    *model = made;
    return QRUN_OK;
}

qrun_status qrun_model_open(qrun_context *context, const qrun_model_params *params, qrun_model **model,
                            qrun_error *error) {
    qrun_status status = qr_model_open_alone(context, params, model, error);
    if (context->plans_for != NULL || QR_CHECK_STRUCT(qrun_model_params, params, NULL) != QRUN_OK) { return status; }
    status = qr_split_agree(context, params, status, error);
    if (status != QRUN_OK) {
        qrun_model_destroy(*model);
        *model = NULL;
        return status;
    }
    (*model)->split_waits = (*model)->split.n_ranks > 0;
    return QRUN_OK;
}

void qrun_model_destroy(qrun_model *model) {
    if (model == NULL) { return; }
    qr_split_part(model);
    qrun_tokenizer_destroy(model->tokenizer);
    qr_model_release(model);
    qr_free(model);
}

static int32_t smallest_window(const qrun_model *model) {
    int32_t window = 0;
    for (int32_t g = 0; g < model->n_kv_groups; g++) {
        if (model->kv_groups[g].window > 0) { window = model->kv_groups[g].window; }
    }
    return window;
}

static qrun_status add_linear_parameters(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                         qr_error *err) {
    (void)layer, (void)role, (void)err;
    *(int64_t *)arg += qr_max(linear->weight.desc.rows, linear->share.all) * linear->weight.desc.cols;
    return QRUN_OK;
}

static int64_t table_bytes(const qrun_model *model, const qr_weight *table) {
    const qr_backend *backend = model->context->backend;
    return table->desc.rows > 0 ? (int64_t)backend->weight_bytes(backend, &table->desc) : 0;
}

/* Of all weights, wherever they are held. */
static int64_t read_bytes(const qrun_model *model) {
    const qr_host_experts *experts = &model->host_experts;
    const size_t n_bytes =
        model->stream == NULL ? model->weight_bytes : model->held_bytes + qr_layer_stream_bytes(model);
    return (int64_t)(n_bytes - experts->stage_bytes + experts->host_bytes);
}

static const char *packed_as(const qrun_model *model) {
    const qr_packing *packing = &model->config.quantization.packing;
    if (model->random_weights || model->prequantized) { return NULL; } /* held as they are stored */
    return packing->kind != QR_PACKING_NONE ? qr_packing_name(packing) : model->block_type;
}

qrun_status qrun_model_get_info(const qrun_model *model, qrun_model_info *info, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_model_info, info, error));
    const qr_model_shape *shape = &model->shape;
    int64_t n_linear = 0;
    (void)qr_model_each_linear((qrun_model *)(uintptr_t)model, add_linear_parameters, &n_linear, NULL);
    const qr_expert_counts experts = qr_model_count_experts(model);
    n_linear += experts.n_active_parameters;
    const int64_t looked_up = table_bytes(model, &model->position_embedding) +
                              table_bytes(model, &model->inputs.embedding) +
                              (shape->tied_head ? 0 : table_bytes(model, &model->embedding));
    *info = (qrun_model_info){
        .struct_size = sizeof *info,
        .folder = model->folder,
        .hub_name = model->hub_name,
        .family = model->family->name,
        .quant = qr_model_quant_name(model),
        .head_format = qr_weight_format_name(model->head.desc.format),
        .dtype = qr_weight_format_name(qr_model_compute_format(model)),
        .n_parameters = model->n_parameters,
        .n_quantized_parameters = model->n_quantized_parameters,
        .n_active_parameters = model->n_parameters - experts.n_idle_parameters,
        .n_linear_parameters = n_linear,
        .offloads_parameters = model->stream != NULL && !qr_layer_stream_is_sharded(model),
        .shards_parameters = qr_layer_stream_is_sharded(model),
        .offloads_experts = model->host_experts.used,
        .computes_experts = model->host_experts.computed,
        .expert_note = model->host_experts.used ? model->host_experts.note : NULL,
        .weight_bytes = (int64_t)model->weight_bytes,
        .step_weight_bytes = read_bytes(model) - looked_up - experts.idle_bytes,
        .n_layers = (int32_t)shape->n_layers,
        .hidden_size = (int32_t)shape->hidden,
        .intermediate_size = (int32_t)shape->mlp,
        .n_experts = (int32_t)shape->n_experts,
        .n_experts_per_token = (int32_t)shape->experts_per_token,
        .expert_intermediate_size = (int32_t)shape->expert_mlp,
        .n_heads = (int32_t)model->config.n_heads,
        .n_kv_heads = (int32_t)model->config.n_kv_heads,
        .head_dim = (int32_t)shape->head_dim,
        .vocab_size = (int32_t)shape->vocab,
        .context_tokens = (int32_t)shape->context_tokens,
        .sliding_window = smallest_window(model),
        .load_seconds = model->load_seconds,
        .has_tokenizer = model->tokenizer != NULL,
        .has_chat_template = model->tokenizer != NULL && model->tokenizer->chat_template != NULL,
        .not_obeyed = model->generation.not_obeyed,
        .left_out = model->left_out,
        .packed_as = packed_as(model),
        .embedding_format = qr_weight_format_name(model->embedding.desc.format),
    };
    return QRUN_OK;
}

const qrun_tokenizer *qrun_model_tokenizer(const qrun_model *model) { return model->tokenizer; }
