#include "loaders/config/generation_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/sizes.h"
#include "loaders/source/model_source.h"

static const size_t MAX_FILE_BYTES = 1 << 20;

/* top_k is 50 in transformers when a file that samples does not say otherwise. */
static void set_defaults(const qr_model_config *model, qr_generation_config *config) {
    *config = (qr_generation_config){.eos = model->eos,
                                     .bos_token_id = model->bos_token_id,
                                     .pad_token_id = model->pad_token_id,
                                     .temperature = 1,
                                     .top_k = 50,
                                     .top_p = 1,
                                     .repetition_penalty = 1,
                                     .rules = QR_GENERATION_RULES_INIT};
}

/* What transformers obeys and qrun does not, with the number that changes nothing; null and false never do. */
static const struct {
    const char *key;
    double neutral;
} not_obeyed[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"diversity_penalty", 0},
    {"num_return_sequences", 1},
    {"penalty_alpha", 0},
    {"guidance_scale", 1},
    {"top_h", 1},
    {"dola_layers", 0},
    {"max_time", 0},
    {"stop_strings", 0},
    {"constraints", 0},
    {"force_words_ids", 0},
    {"forced_decoder_ids", 0},
    {"token_healing", 0},
    {"watermarking_config", 0},
};

static bool is_neutral(const qr_json *value, double neutral) {
    if (cJSON_IsNumber(value)) { return value->valuedouble == neutral; }
    if (cJSON_IsArray(value)) { return qr_json_count(value) == 0; }
    return qr_json_is_null(value) || cJSON_IsFalse(value);
}

static qrun_status list_not_obeyed(const qr_json *root, qr_generation_config *config, qr_error *err) {
    qr_buffer names = {0};
    for (size_t i = 0; i < QR_COUNT_OF(not_obeyed); i++) {
        if (is_neutral(qr_json_get(root, not_obeyed[i].key), not_obeyed[i].neutral)) { continue; }
        qr_buffer_append_format(&names, "%s%s", names.size > 0 ? ", " : "", not_obeyed[i].key);
    }
    if (names.size == 0 && qr_buffer_ok(&names)) { return QRUN_OK; }
    config->not_obeyed = qr_buffer_take(&names);
    return config->not_obeyed != NULL ? QRUN_OK : qr_fail_memory(err, "generation_config.json", 0);
}

qrun_status qr_generation_config_parse(const qr_json *root, const char *what, const qr_model_config *model,
                                       qr_generation_config *config, qr_error *err) {
    const int64_t most_tokens = INT32_MAX;
    set_defaults(model, config);
    if (!cJSON_IsObject(root)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what); }
    QR_RETURN_IF_ERROR(qr_token_ids_read(root, "eos_token_id", &config->eos, what, err));
    QR_RETURN_IF_ERROR(qr_token_id_read(root, "bos_token_id", &config->bos_token_id, what, err));
    QR_RETURN_IF_ERROR(qr_token_id_read(root, "pad_token_id", &config->pad_token_id, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(root, "do_sample", &config->do_sample, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(root, "temperature", 0, 1000, &config->temperature, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(root, "top_k", 0, most_tokens, &config->top_k, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(root, "top_p", 0, 1, &config->top_p, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(root, "min_p", 0, 1, &config->min_p, what, err));
    QR_RETURN_IF_ERROR(
        qr_json_get_double(root, "repetition_penalty", 1e-3, 1e3, &config->repetition_penalty, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(root, "max_new_tokens", 0, most_tokens, &config->max_new_tokens, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(root, "max_length", 0, most_tokens, &config->max_length, what, err));
    QR_RETURN_IF_ERROR(qr_generation_rules_read(root, what, model->vocab_size, true, &config->rules, err));
    QR_RETURN_IF_ERROR(list_not_obeyed(root, config, err));
    if (config->max_new_tokens > 0) { config->max_length = 0; }
    /* Some files write temperature 0 for "greedy". */
    if (config->temperature == 0) {
        config->do_sample = false;
        config->temperature = 1;
    }
    return QRUN_OK;
}

qrun_status qr_generation_config_read(const char *folder, const qr_model_config *model, qr_generation_config *config,
                                      qr_error *err) {
    qr_source_file file;
    qr_json *root = NULL;
    set_defaults(model, config);
    QR_RETURN_IF_ERROR(qr_source_read(folder, "generation_config.json", MAX_FILE_BYTES, &file, err));
    qrun_status status = QRUN_OK;
    if (file.text != NULL) { status = qr_json_parse(file.text, file.n_bytes, file.name, &root, err); }
    if (root != NULL) { status = qr_generation_config_parse(root, file.name, model, config, err); }
    qr_json_free(root);
    config->text = file.text;
    file.text = NULL;
    qr_source_file_free(&file);
    return status;
}

void qr_generation_config_free(qr_generation_config *config) {
    qr_generation_rules_free(&config->rules);
    qr_free(config->text);
    qr_free(config->not_obeyed);
    config->text = config->not_obeyed = NULL;
}
