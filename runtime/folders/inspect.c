/* What a folder holds, as one line of JSON. Only its descriptions are read, no weights. Names of byte counts end in
 * "_bytes". */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/json_put.h"
#include "loaders/source/model_source.h"
#include "runtime/layers/layer_recurrent.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* The names in config.json, unchanged: the family may come from a part of it. */
static qrun_status put_names(const qrun_model *model, qr_buffer *out, qr_error *err) {
    qr_json *config;
    QR_RETURN_IF_ERROR(qr_source_read_json(model->folder, "config.json", QR_MODEL_CONFIG_BYTES, &config, NULL, err));
    const qr_json *architecture = qr_json_first(qr_json_get(config, "architectures"));
    const qr_json *model_type = qr_json_get(config, "model_type");
    qr_json_put_text(out, "folder", model->folder);
    qr_json_put_text(out, "family", model->family->name);
    qr_json_put_text(out, "model_type", cJSON_IsString(model_type) ? model_type->valuestring : NULL);
    qr_json_put_text(out, "architecture", cJSON_IsString(architecture) ? architecture->valuestring : NULL);
    qr_json_free(config);
    return QRUN_OK;
}

static void put_sizes(const qrun_model *model, qr_buffer *out) {
    const qr_model_shape *shape = &model->shape;
    int64_t n_sliding = 0;
    for (int64_t l = 0; l < shape->n_layers; l++) { n_sliding += model->layers[l].window > 0; }
    qr_json_put_begin(out, "sizes", '{');
    qr_json_put_int(out, "n_layers", shape->n_layers);
    qr_json_put_int(out, "hidden_size", shape->hidden);
    qr_json_put_int(out, "n_heads", shape->n_heads);
    qr_json_put_int(out, "n_kv_heads", shape->n_kv_heads);
    qr_json_put_int(out, "head_dim", shape->head_dim);
    qr_json_put_int(out, "intermediate_size", shape->mlp);
    if (shape->n_experts > 0) {
        qr_json_put_int(out, "n_experts", shape->n_experts);
        qr_json_put_int(out, "n_experts_per_token", shape->experts_per_token);
        qr_json_put_int(out, "expert_intermediate_size", shape->expert_mlp);
    }
    qr_json_put_int(out, "vocab_size", shape->vocab);
    qr_json_put_int(out, "context_tokens", shape->context_tokens);
    qr_json_put_int(out, "sliding_window", n_sliding > 0 ? model->config.sliding_window : 0);
    qr_json_put_int(out, "n_sliding_layers", n_sliding);
    if (shape->recurrent.n_layers > 0) {
        static const char *const names[] = {[QR_RECURRENT_DELTA] = "n_linear_attention_layers",
                                            [QR_RECURRENT_CONV] = "n_convolution_layers",
                                            [QR_RECURRENT_SPACE] = "n_state_space_layers"};
        qr_json_put_int(out, names[shape->recurrent.kind], shape->recurrent.n_layers);
        qr_json_put_int(out, "state_bytes", qr_recurrent_state_floats(shape) * (int64_t)sizeof(float));
    }
    qr_json_put_end(out, '}');
}

static void put_rope(const char *key, const qr_rope_config *rope, qr_buffer *out) {
    qr_json_put_begin(out, key, '{');
    qr_json_put_text(out, "type", qr_rope_type_name(rope->type));
    qr_json_put_double(out, "theta", rope->theta);
    qr_json_put_int(out, "rotary_dim", rope->rotary_dim);
    if (rope->type != QR_ROPE_DEFAULT) {
        qr_json_put_double(out, "factor", rope->factor);
        qr_json_put_int(out, "original_context_tokens", rope->original_max_position_embeddings);
    }
    qr_json_put_end(out, '}');
}

static void put_model(const qrun_model *model, qr_buffer *out) {
    qr_json_put_int(out, "n_parameters", model->n_parameters);
    if (model->expert_weights != NULL) {
        const int64_t n_idle = qr_model_count_experts(model).n_idle_parameters;
        qr_json_put_int(out, "n_active_parameters", model->n_parameters - n_idle);
    }
    qr_json_put_text(out, "stored_quantization",
                     model->prequantized         ? qr_model_quant_name(model)
                     : model->block_type != NULL ? model->block_type
                                                 : qr_packing_name(&model->config.quantization.packing));
    qr_json_put_text(out, "dtype", qr_dtype_name(model->config.dtype));
    qr_json_put_bool(out, "tied_head", model->shape.tied_head);
    put_sizes(model, out);
    if (model->config.has_rope) { put_rope("rope", &model->config.rope, out); }
    if (model->shape.n_rope_kinds > 1) { put_rope("rope_of_sliding_layers", &model->config.rope_local, out); }
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static void put_types(const qr_safetensors *source, qr_buffer *out) {
    int64_t n_tensors[QR_DTYPE_COUNT] = {0}, n_bytes[QR_DTYPE_COUNT] = {0};
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        n_tensors[tensor->dtype]++;
        n_bytes[tensor->dtype] += (int64_t)tensor->n_bytes;
    }
    qr_json_put_begin(out, "tensor_types", '[');
    for (int dtype = 0; dtype < QR_DTYPE_COUNT; dtype++) {
        if (n_tensors[dtype] == 0) { continue; }
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_text(out, "dtype", qr_dtype_name((qr_dtype)dtype));
        qr_json_put_int(out, "n_tensors", n_tensors[dtype]);
        qr_json_put_int(out, "total_bytes", n_bytes[dtype]);
        qr_json_put_end(out, '}');
    }
    qr_json_put_end(out, ']');
}

static void put_left_out(const qrun_model *model, const qr_safetensors *source, qr_buffer *out) {
    qr_left_out part;
    size_t at = 0;
    bool any = false;
    while (qr_model_next_left_out(model, source, &at, &part)) {
        if (!any) { qr_json_put_begin(out, "left_out", '['); }
        any = true;
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_bytes(out, "part", part.name, part.name_bytes);
        qr_json_put_int(out, "n_tensors", part.n_tensors);
        qr_json_put_int(out, "total_bytes", part.total_bytes);
        qr_json_put_end(out, '}');
    }
    if (any) { qr_json_put_end(out, ']'); }
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void put_tensors(const qr_safetensors *source, qr_buffer *out) {
    qr_json_put_begin(out, "tensors", '[');
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_text(out, "name", tensor->name);
        qr_json_put_text(out, "dtype", qr_dtype_name(tensor->dtype));
        qr_json_put_ints(out, "shape", tensor->dims, tensor->n_dims);
        qr_json_put_int(out, "size_bytes", (int64_t)tensor->n_bytes);
        qr_json_put_text(out, "file", base_name(qr_safetensors_shard_path(source, tensor->shard)));
        qr_json_put_end(out, '}');
    }
    qr_json_put_end(out, ']');
}

/* ---- Text and generation ----------------------------------------------------------------------------------------- */

static qrun_status put_tokenizer(qrun_model *model, qr_buffer *out, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_folder_tokenizer_open_optional(model->folder, &model->tokenizer, err));
    const qrun_tokenizer *tools = model->tokenizer;
    if (tools == NULL) {
        qr_json_put_text(out, "tokenizer", NULL);
    } else {
        const qr_tokenizer *tokenizer = tools->tokenizer;
        qr_tokenizer_info info;
        qr_tokenizer_get_info(tokenizer, &info);
        qr_json_put_begin(out, "tokenizer", '{');
        qr_json_put_text(out, "kind", info.model);
        qr_json_put_bool(out, "byte_level", info.byte_level);
        qr_json_put_bool(out, "byte_fallback", info.byte_fallback);
        qr_json_put_int(out, "vocab_size", info.vocab_size);
        qr_json_put_int(out, "n_merges", info.n_merges);
        qr_json_put_int(out, "n_added_tokens", info.n_added);
        qr_json_put_int(out, "n_special_tokens", info.n_special);
        qr_json_put_id(out, "bos_token_id", qr_tokenizer_bos_id(tokenizer));
        qr_json_put_id(out, "eos_token_id", qr_tokenizer_eos_id(tokenizer));
        qr_json_put_id(out, "pad_token_id", qr_tokenizer_pad_id(tokenizer));
        qr_json_put_end(out, '}');
    }
    qr_json_put_bool(out, "chat_template", tools != NULL && tools->chat_template != NULL);
    return QRUN_OK;
}

static void put_generation(const qr_generation_config *generation, qr_buffer *out) {
    qr_json_put_begin(out, "generation", '{');
    qr_json_put_bool(out, "do_sample", generation->do_sample);
    qr_json_put_double(out, "temperature", generation->temperature);
    qr_json_put_int(out, "top_k", generation->top_k);
    qr_json_put_double(out, "top_p", generation->top_p);
    qr_json_put_double(out, "min_p", generation->min_p);
    qr_json_put_double(out, "repetition_penalty", generation->repetition_penalty);
    qr_json_put_begin(out, "eos_token_ids", '[');
    for (int i = 0; i < generation->eos.n; i++) {
        qr_buffer_append_format(out, "%s%d", i > 0 ? ", " : "", (int)generation->eos.ids[i]);
    }
    qr_json_put_end(out, ']');
    qr_json_put_id(out, "bos_token_id", generation->bos_token_id);
    if (generation->not_obeyed != NULL) { qr_json_put_text(out, "not_obeyed", generation->not_obeyed); }
    qr_json_put_end(out, '}');
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Whether matrices in `format` are those that the folder stores: bitsandbytes' are in no other, MXFP4 may be decoded.
 */
static bool is_kept_as(const qrun_model *model, qr_weight_format format) {
    return model->prequantized && format == model->linear_format;
}

/* Weight bytes with the linear layers in `format`, by the description that loading uses. */
static qrun_status weight_bytes_as(const qrun_model *model, const qr_safetensors *source, qr_weight_format format,
                                   bool head_int8, bool embedding_int8, int64_t *n_bytes, qr_error *err) {
    const struct qr_model_options options = {.linear_format = format,
                                             .table_format = qr_weight_plain_format(model->config.dtype),
                                             .head_int8 = head_int8,
                                             .embedding_int8 = embedding_int8};
    qrun_model trial = {
        .context = model->context,
        .folder = model->folder,
        .hub_name = model->hub_name,
        .prefix = model->prefix,
        .prequantized = is_kept_as(model, format),
        .config = model->config,
        .family = model->family,
        .shape = model->shape,
        .act_dtype = model->act_dtype,
        .linear_format = format,
    };
    const qrun_status status = qr_model_describe(&trial, &options, source, err);
    *n_bytes = (int64_t)trial.weight_bytes;
    qr_model_free_tables(&trial);
    return status;
}

static qrun_status put_hold(const qrun_model *model, const qr_safetensors *source, qr_weight_format format,
                            qr_buffer *out, qr_error *err) {
    int64_t n_bytes = 0, with_int8_head = 0, with_int8_tables = 0;
    QR_RETURN_IF_ERROR(weight_bytes_as(model, source, format, false, false, &n_bytes, err));
    QR_RETURN_IF_ERROR(weight_bytes_as(model, source, format, true, false, &with_int8_head, err));
    QR_RETURN_IF_ERROR(weight_bytes_as(model, source, format, true, true, &with_int8_tables, err));
    qr_json_put_begin(out, NULL, '{');
    const bool is_kept = is_kept_as(model, format);
    qr_json_put_text(out, "quant", is_kept ? qr_model_quant_name(model) : qr_weight_format_name(format));
    qr_json_put_int(out, "weight_bytes", n_bytes);
    qr_json_put_int(out, "with_int8_head_bytes", with_int8_head);
    qr_json_put_int(out, "with_int8_tables_bytes", with_int8_tables);
    qr_json_put_end(out, '}');
    return QRUN_OK;
}

/* A folder that bitsandbytes quantised can be held in that format only. */
static qrun_status put_holds(const qrun_model *model, const qr_safetensors *source, qr_buffer *out, qr_error *err) {
    static const qr_weight_format formats[] = {QR_WEIGHT_F32, QR_WEIGHT_BF16,   QR_WEIGHT_INT8,
                                               QR_WEIGHT_NF4, QR_WEIGHT_NF4_DQ, QR_WEIGHT_MXFP4};
    const bool has_one = qr_quantization_is_kept(&model->config.quantization);
    qr_json_put_begin(out, "holds", '[');
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        if ((has_one || formats[i] == QR_WEIGHT_MXFP4) && !is_kept_as(model, formats[i])) { continue; }
        QR_RETURN_IF_ERROR(put_hold(model, source, formats[i], out, err));
    }
    qr_json_put_end(out, ']');
    return QRUN_OK;
}

static void put_kv(const qrun_model *model, qr_buffer *out) {
    static const struct {
        const char *key;
        qr_kv_format format;
    } formats[] = {{"bf16_bytes", QR_KV_BF16}, {"int8_bytes", QR_KV_INT8}};
    qr_json_put_begin(out, "kv_per_token", '{');
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        size_t n_bytes = 0;
        if (formats[i].format == QR_KV_INT8 && model->shape.latent.kv_rank > 0) { continue; } /* there is none */
        for (int32_t g = 0; g < model->n_kv_groups; g++) {
            const qr_kv_group *group = &model->kv_groups[g];
            const qr_kv_layout layout = qr_kv_group_layout(group, formats[i].format);
            n_bytes += (size_t)group->n_layers * qr_kv_layer_bytes(&layout);
        }
        qr_json_put_int(out, formats[i].key, (int64_t)n_bytes / QR_KV_PAGE_TOKENS);
    }
    qr_json_put_end(out, '}');
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* A regular file, or a link to one as a cache has; nothing else. */
static void put_file(const char *path, const char *name, qr_buffer *out) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) { return; }
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "name", name);
    qr_json_put_int(out, "size_bytes", (int64_t)info.st_size);
    qr_json_put_end(out, '}');
}

static qrun_status put_listed_files(const qrun_model *model, qr_buffer *out, qr_error *err) {
    struct dirent **entries;
    const int n = scandir(model->folder, &entries, NULL, compare_names);
    if (n < 0) { return qr_fail(err, QRUN_ERROR_IO, "%s: cannot be listed", model->folder); }
    qrun_status status = QRUN_OK;
    for (int i = 0; i < n; i++) {
        char *path = qr_path_join(model->folder, entries[i]->d_name);
        if (path == NULL) {
            status = qr_fail_memory(err, "the list of files", strlen(model->folder));
        } else {
            put_file(path, entries[i]->d_name, out);
        }
        qr_free(path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Those of the folder, or the model's one file. */
static qrun_status put_files(const qrun_model *model, qr_buffer *out, qr_error *err) {
    qrun_status status = QRUN_OK;
    qr_json_put_begin(out, "files", '[');
    if (qr_file_is_folder(model->folder)) {
        status = put_listed_files(model, out, err);
    } else {
        put_file(model->folder, base_name(model->folder), out);
    }
    qr_json_put_end(out, ']');
    return status;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

qrun_status qrun_folder_inspect(qrun_context *context, const char *path, bool list_tensors, char **json,
                                qrun_error *error) {
    *json = NULL;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    qrun_model model;
    qr_safetensors *source = NULL;
    qr_buffer out = {0};
    qrun_status status = qr_model_prepare(context, &params, &model, &source, error);
    if (status != QRUN_OK) { goto out; }
    qr_buffer_append_char(&out, '{');
    QR_TRY(put_names(&model, &out, error));
    put_model(&model, &out);
    QR_TRY(put_tokenizer(&model, &out, error));
    put_generation(&model.generation, &out);
    put_types(source, &out);
    put_left_out(&model, source, &out);
    QR_TRY(put_files(&model, &out, error));
    QR_TRY(put_holds(&model, source, &out, error));
    put_kv(&model, &out);
    if (list_tensors) { put_tensors(source, &out); }
    qr_json_put_end(&out, '}');
    const size_t n_bytes = out.size;
    *json = qr_buffer_take(&out);
    if (*json == NULL) { status = qr_fail_memory(error, "the description", n_bytes); }
out:
    qr_buffer_free(&out);
    qrun_tokenizer_destroy(model.tokenizer);
    qr_model_release(&model);
    qr_safetensors_close(source);
    return status;
}
