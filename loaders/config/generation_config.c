#include "loaders/config/generation_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

static const size_t MAX_FILE_BYTES = 1 << 20;

/* top_k is 50 in transformers when a file that samples does not say otherwise. */
static void set_defaults(const qr_model_config *model, qr_generation_config *config) {
    *config = (qr_generation_config){.eos = model->eos,
                                     .bos_token_id = model->bos_token_id,
                                     .pad_token_id = model->pad_token_id,
                                     .temperature = 1,
                                     .top_k = 50,
                                     .top_p = 1,
                                     .repetition_penalty = 1};
}

qrun_status qr_generation_config_parse(const qr_json *root, const char *what, const qr_model_config *model,
                                       qr_generation_config *config, qr_error *err) {
    const int64_t most_tokens = INT64_C(1) << 31;
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
    /* Some files write temperature 0 for "greedy". */
    if (config->temperature == 0) {
        config->do_sample = false;
        config->temperature = 1;
    }
    return QRUN_OK;
}

qrun_status qr_generation_config_read(const char *folder, const qr_model_config *model, qr_generation_config *config,
                                      qr_error *err) {
    set_defaults(model, config);
    char *path = qr_path_join(folder, "generation_config.json");
    if (path == NULL) { return qr_fail_memory(err, folder, strlen(folder)); }
    qrun_status status = QRUN_OK;
    if (qr_file_exists(path)) {
        qr_json *root;
        status = qr_json_read(path, MAX_FILE_BYTES, &root, err);
        if (status == QRUN_OK) { status = qr_generation_config_parse(root, path, model, config, err); }
        qr_json_free(root);
    }
    qr_free(path);
    return status;
}
