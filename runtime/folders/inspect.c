/* What a folder holds, as one line of JSON. Only its descriptions are read, no weights. Names of byte counts end in
 * "_bytes". */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/number.h"
#include "base/sizes.h"
#include "runtime/model/model_open.h"

enum { MAX_CONFIG_BYTES = 1 << 24 };

/* ---- JSON text --------------------------------------------------------------------------------------------------- */

/* A comma, unless this is the first value. */
static void begin_value(qr_buffer *out) {
    const char last = out->size > 0 ? out->data[out->size - 1] : '{';
    if (last != '{' && last != '[' && last != ':') { qr_buffer_append_text(out, ", "); }
}

static void put_key(qr_buffer *out, const char *key) {
    begin_value(out);
    qr_buffer_append_format(out, "\"%s\":", key);
}

static void put_text(qr_buffer *out, const char *key, const char *value) {
    put_key(out, key);
    if (value == NULL) {
        qr_buffer_append_text(out, "null");
    } else {
        qr_buffer_append_json_string(out, value, strlen(value));
    }
}

static void put_int(qr_buffer *out, const char *key, int64_t value) {
    put_key(out, key);
    qr_buffer_append_format(out, "%lld", (long long)value);
}

/* An id; −1 is none. */
static void put_id(qr_buffer *out, const char *key, int64_t value) {
    if (value >= 0) {
        put_int(out, key, value);
    } else {
        put_text(out, key, NULL);
    }
}

static void put_double(qr_buffer *out, const char *key, double value) {
    char text[32];
    qr_number_format(value, text);
    put_key(out, key);
    qr_buffer_append_text(out, text);
}

static void put_bool(qr_buffer *out, const char *key, bool value) {
    put_key(out, key);
    qr_buffer_append_text(out, value ? "true" : "false");
}

/* An object or array as the value of `key`, or as the next item of an array (key NULL). */
static void begin(qr_buffer *out, const char *key, char bracket) {
    if (key != NULL) {
        put_key(out, key);
    } else {
        begin_value(out);
    }
    qr_buffer_append_char(out, bracket);
}

static void end(qr_buffer *out, char bracket) { qr_buffer_append_char(out, bracket); }

/* An array of n numbers. */
static void put_ints(qr_buffer *out, const char *key, const int64_t *values, int n) {
    begin(out, key, '[');
    for (int i = 0; i < n; i++) { qr_buffer_append_format(out, "%s%lld", i > 0 ? ", " : "", (long long)values[i]); }
    end(out, ']');
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* The names in config.json, unchanged: the family may come from a part of it. */
static qrun_status put_names(const qrun_model *model, qr_buffer *out, qr_error *err) {
    char *path = qr_path_join(model->folder, "config.json");
    qr_json *config = NULL;
    qrun_status status = QRUN_OK;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "config.json", strlen(model->folder))); }
    QR_TRY(qr_json_read(path, MAX_CONFIG_BYTES, &config, err));
    const qr_json *architecture = qr_json_first(qr_json_get(config, "architectures"));
    const qr_json *model_type = qr_json_get(config, "model_type");
    put_text(out, "folder", model->folder);
    put_text(out, "family", model->family->name);
    put_text(out, "model_type", cJSON_IsString(model_type) ? model_type->valuestring : NULL);
    put_text(out, "architecture", cJSON_IsString(architecture) ? architecture->valuestring : NULL);
out:
    qr_json_free(config);
    qr_free(path);
    return status;
}

static void put_sizes(const qrun_model *model, qr_buffer *out) {
    const qr_model_shape *shape = &model->shape;
    int64_t n_sliding = 0;
    for (int64_t l = 0; l < shape->n_layers; l++) { n_sliding += model->layers[l].window > 0; }
    begin(out, "sizes", '{');
    put_int(out, "n_layers", shape->n_layers);
    put_int(out, "hidden_size", shape->hidden);
    put_int(out, "n_heads", shape->n_heads);
    put_int(out, "n_kv_heads", shape->n_kv_heads);
    put_int(out, "head_dim", shape->head_dim);
    put_int(out, "intermediate_size", shape->mlp);
    put_int(out, "vocab_size", shape->vocab);
    put_int(out, "context_tokens", shape->context_tokens);
    put_int(out, "sliding_window", n_sliding > 0 ? model->config.sliding_window : 0);
    put_int(out, "n_sliding_layers", n_sliding);
    end(out, '}');
}

static void put_rope(const char *key, const qr_rope_config *rope, qr_buffer *out) {
    begin(out, key, '{');
    put_text(out, "type", qr_rope_type_name(rope->type));
    put_double(out, "theta", rope->theta);
    put_int(out, "rotary_dim", rope->rotary_dim);
    if (rope->type != QR_ROPE_DEFAULT) {
        put_double(out, "factor", rope->factor);
        put_int(out, "original_context_tokens", rope->original_max_position_embeddings);
    }
    end(out, '}');
}

static void put_model(const qrun_model *model, qr_buffer *out) {
    put_int(out, "n_parameters", model->n_parameters);
    put_text(out, "stored_quantization", model->prequantized ? qr_weight_format_name(model->linear_format) : "none");
    put_text(out, "dtype", qr_dtype_name(model->config.dtype));
    put_bool(out, "tied_head", model->shape.tied_head);
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
    begin(out, "tensor_types", '[');
    for (int dtype = 0; dtype < QR_DTYPE_COUNT; dtype++) {
        if (n_tensors[dtype] == 0) { continue; }
        begin(out, NULL, '{');
        put_text(out, "dtype", qr_dtype_name((qr_dtype)dtype));
        put_int(out, "n_tensors", n_tensors[dtype]);
        put_int(out, "total_bytes", n_bytes[dtype]);
        end(out, '}');
    }
    end(out, ']');
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void put_tensors(const qr_safetensors *source, qr_buffer *out) {
    begin(out, "tensors", '[');
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        begin(out, NULL, '{');
        put_text(out, "name", tensor->name);
        put_text(out, "dtype", qr_dtype_name(tensor->dtype));
        put_ints(out, "shape", tensor->dims, tensor->n_dims);
        put_int(out, "size_bytes", (int64_t)tensor->n_bytes);
        put_text(out, "file", base_name(qr_safetensors_shard_path(source, tensor->shard)));
        end(out, '}');
    }
    end(out, ']');
}

/* ---- Text and generation ----------------------------------------------------------------------------------------- */

static qrun_status put_tokenizer(qrun_model *model, qr_buffer *out, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_folder_tokenizer_open_optional(model->folder, &model->tokenizer, err));
    const qrun_tokenizer *tools = model->tokenizer;
    if (tools == NULL) {
        put_text(out, "tokenizer", NULL);
    } else {
        const qr_tokenizer *tokenizer = tools->tokenizer;
        qr_tokenizer_info info;
        qr_tokenizer_get_info(tokenizer, &info);
        begin(out, "tokenizer", '{');
        put_text(out, "kind", info.model);
        put_bool(out, "byte_level", info.byte_level);
        put_bool(out, "byte_fallback", info.byte_fallback);
        put_int(out, "vocab_size", info.vocab_size);
        put_int(out, "n_merges", info.n_merges);
        put_int(out, "n_added_tokens", info.n_added);
        put_int(out, "n_special_tokens", info.n_special);
        put_id(out, "bos_token_id", qr_tokenizer_bos_id(tokenizer));
        put_id(out, "eos_token_id", qr_tokenizer_eos_id(tokenizer));
        put_id(out, "pad_token_id", qr_tokenizer_pad_id(tokenizer));
        end(out, '}');
    }
    put_bool(out, "chat_template", tools != NULL && tools->chat_template != NULL);
    return QRUN_OK;
}

static void put_generation(const qr_generation_config *generation, qr_buffer *out) {
    begin(out, "generation", '{');
    put_bool(out, "do_sample", generation->do_sample);
    put_double(out, "temperature", generation->temperature);
    put_int(out, "top_k", generation->top_k);
    put_double(out, "top_p", generation->top_p);
    put_double(out, "min_p", generation->min_p);
    put_double(out, "repetition_penalty", generation->repetition_penalty);
    begin(out, "eos_token_ids", '[');
    for (int i = 0; i < generation->eos.n; i++) {
        qr_buffer_append_format(out, "%s%d", i > 0 ? ", " : "", (int)generation->eos.ids[i]);
    }
    end(out, ']');
    put_id(out, "bos_token_id", generation->bos_token_id);
    end(out, '}');
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Weight bytes with the linear layers in `format`, by the description that loading uses. */
static qrun_status weight_bytes_as(const qrun_model *model, const qr_safetensors *source, qr_weight_format format,
                                   bool head_int8, int64_t *n_bytes, qr_error *err) {
    const struct qr_model_options options = {
        .linear_format = format, .table_format = qr_weight_plain_format(model->config.dtype), .head_int8 = head_int8};
    qrun_model trial = {
        .context = model->context,
        .folder = model->folder,
        .prefix = model->prefix,
        .prequantized = model->prequantized,
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
    int64_t n_bytes = 0, with_int8_head = 0;
    QR_RETURN_IF_ERROR(weight_bytes_as(model, source, format, false, &n_bytes, err));
    QR_RETURN_IF_ERROR(weight_bytes_as(model, source, format, true, &with_int8_head, err));
    begin(out, NULL, '{');
    put_text(out, "quant", qr_weight_format_name(format));
    put_int(out, "weight_bytes", n_bytes);
    put_int(out, "with_int8_head_bytes", with_int8_head);
    end(out, '}');
    return QRUN_OK;
}

/* A folder that is stored quantised can be held in that format only. */
static qrun_status put_holds(const qrun_model *model, const qr_safetensors *source, qr_buffer *out, qr_error *err) {
    static const qr_weight_format formats[] = {QR_WEIGHT_F32, QR_WEIGHT_BF16, QR_WEIGHT_INT8, QR_WEIGHT_NF4,
                                               QR_WEIGHT_NF4_DQ};
    begin(out, "holds", '[');
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        if (model->prequantized && formats[i] != model->linear_format) { continue; }
        QR_RETURN_IF_ERROR(put_hold(model, source, formats[i], out, err));
    }
    end(out, ']');
    return QRUN_OK;
}

static void put_kv(const qrun_model *model, qr_buffer *out) {
    static const struct {
        const char *key;
        qr_kv_format format;
    } formats[] = {{"bf16_bytes", QR_KV_BF16}, {"int8_bytes", QR_KV_INT8}};
    begin(out, "kv_per_token", '{');
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        const qr_model_shape *shape = &model->shape;
        const qr_kv_layout layout = {.format = formats[i].format,
                                     .n_kv_heads = (int32_t)shape->n_kv_heads,
                                     .head_dim = (int32_t)shape->head_dim};
        put_int(out, formats[i].key, shape->n_layers * (int64_t)qr_kv_layer_bytes(&layout) / QR_KV_PAGE_TOKENS);
    }
    end(out, '}');
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Regular files, and links to them as a cache has. */
static qrun_status put_files(const qrun_model *model, qr_buffer *out, qr_error *err) {
    struct dirent **entries;
    const int n = scandir(model->folder, &entries, NULL, compare_names);
    if (n < 0) { return qr_fail(err, QRUN_ERROR_IO, "%s: cannot be listed", model->folder); }
    qrun_status status = QRUN_OK;
    begin(out, "files", '[');
    for (int i = 0; i < n; i++) {
        struct stat info;
        char *path = qr_path_join(model->folder, entries[i]->d_name);
        if (path == NULL) {
            status = qr_fail_memory(err, "the list of files", strlen(model->folder));
        } else if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
            begin(out, NULL, '{');
            put_text(out, "name", entries[i]->d_name);
            put_int(out, "size_bytes", (int64_t)info.st_size);
            end(out, '}');
        }
        qr_free(path);
        free(entries[i]);
    }
    free(entries);
    end(out, ']');
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
    QR_TRY(put_files(&model, &out, error));
    QR_TRY(put_holds(&model, source, &out, error));
    put_kv(&model, &out);
    if (list_tensors) { put_tensors(source, &out); }
    end(&out, '}');
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
