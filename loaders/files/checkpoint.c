#include "loaders/files/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sizes.h"

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static qrun_status require_object(const qr_json *root, const char *path, qr_error *err) {
    if (cJSON_IsObject(root)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds no object", path);
}

static qrun_status read_object(const char *folder, const char *name, qr_json **root, char **path, qr_error *err) {
    *path = qr_path_join(folder, name);
    if (*path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    QR_RETURN_IF_ERROR(qr_json_read(*path, QR_CHECKPOINT_JSON_BYTES, root, err));
    return require_object(*root, *path, err);
}

/* A file that is missing, or that cannot be read, has none. */
static qrun_status has_members(const char *folder, const char *name, const char *const members[2], bool *has,
                               qr_error *err) {
    qr_json *root = NULL;
    char *path = NULL;
    qr_error why = {0};
    const qrun_status status = read_object(folder, name, &root, &path, &why);
    *has = status == QRUN_OK && qr_json_get(root, members[0]) != NULL && qr_json_get(root, members[1]) != NULL;
    qr_json_free(root);
    qr_free(path);
    return status == QRUN_ERROR_MEMORY ? qr_fail(err, status, "%s", why.message) : QRUN_OK;
}

qrun_status qr_checkpoint_recognise(const char *folder, bool *is_ours, qr_error *err) {
    static const struct {
        const char *file, *const members[2];
    } ours[] = {{"run.json", {"family", "lora_targets"}},
                {"state.json", {"batch", "checksum"}},
                {"state.json", {"window", "checksum"}}};
    *is_ours = false;
    for (size_t i = 0; i < QR_COUNT_OF(ours) && !*is_ours; i++) {
        QR_RETURN_IF_ERROR(has_members(folder, ours[i].file, ours[i].members, is_ours, err));
    }
    return QRUN_OK;
}

const char *qr_checkpoint_key(const qr_json *state, const char *name) {
    const bool earlier = qr_json_get(state, "batch") == NULL && qr_json_get(state, "window") != NULL;
    return earlier && strcmp(name, "batch") == 0 ? "window" : name;
}

static qrun_status read_position(const qr_json *state, const char *path, qr_checkpoint *c, qr_error *err) {
    const struct {
        const char *key;
        int64_t *value;
    } members[] = {{"step", &c->step}, {"epoch", &c->epoch}, {qr_checkpoint_key(state, "batch"), &c->batch}};
    int64_t version = 0;
    QR_RETURN_IF_ERROR(qr_json_get_int(state, "version", 1, 1, &version, path, err));
    for (int i = 0; i < 3; i++) {
        *members[i].value = -1;
        QR_RETURN_IF_ERROR(qr_json_get_int(state, members[i].key, 0, INT64_C(1) << 52, members[i].value, path, err));
        if (*members[i].value < 0) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: lacks \"%s\"", path, members[i].key); }
    }
    return version == 1 ? QRUN_OK : qr_fail(err, QRUN_ERROR_INPUT, "%s: lacks \"version\"", path);
}

static qrun_status find_vector(qr_checkpoint *c, const char *name, qr_dtype dtype, const qr_safetensors_tensor **tensor,
                               qr_error *err) {
    const qr_safetensors_tensor *found = qr_safetensors_find(c->tensors, name);
    const int64_t n = found != NULL && found->n_dims == 1 ? found->dims[0] : 0;
    return qr_safetensors_require(c->tensors, name, QR_DTYPE_BIT(dtype), 1, &n, tensor, err);
}

static qrun_status check_sum(const qr_checkpoint *c, const char *path, qr_error *err) {
    char made[24];
    const char *stored = "";
    QR_RETURN_IF_ERROR(qr_json_get_string(c->state, "checksum", &stored, path, err));
    uint64_t hash = qr_hash_words(QR_HASH_START, c->parameters->data, c->parameters->n_bytes);
    hash = qr_hash_words(hash, c->optimizer->data, c->optimizer->n_bytes);
    QR_RETURN_IF_ERROR(qr_safetensors_check(c->tensors, err));
    snprintf(made, sizeof made, "%016" PRIx64, hash);
    if (strcmp(made, stored) == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: the checksum of its tensors is not that of state.json", path);
}

static qrun_status read_tensors(const char *folder, qr_checkpoint *c, qr_error *err) {
    char *path = qr_path_join(folder, "state.safetensors");
    qrun_status status;
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    QR_TRY(qr_safetensors_open(path, &c->tensors, err));
    QR_TRY(find_vector(c, "parameters", QR_DTYPE_F32, &c->parameters, err));
    QR_TRY(find_vector(c, "optimizer", QR_DTYPE_U8, &c->optimizer, err));
    QR_TRY(check_sum(c, path, err));
out:
    qr_free(path);
    return status;
}

/* Of a run.json's text. Checkpoints of earlier versions do not have it in their state.json. */
static qrun_status check_run_sum(const qr_checkpoint *c, const char *text, size_t n_bytes, const char *path,
                                 qr_error *err) {
    char made[24];
    const char *stored = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(c->state, "run_checksum", &stored, "state.json", err));
    snprintf(made, sizeof made, "%016" PRIx64, qr_hash_bytes(QR_HASH_START, text, n_bytes));
    if (stored == NULL || strcmp(made, stored) == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: its checksum is not that of state.json, which is of another run", path);
}

static qrun_status read_run(const char *folder, qr_checkpoint *c, qr_error *err) {
    char *text = NULL, *path = qr_path_join(folder, "run.json");
    size_t n_bytes = 0;
    qrun_status status;
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    QR_TRY(qr_file_read(path, QR_CHECKPOINT_JSON_BYTES, &text, &n_bytes, err));
    QR_TRY(qr_json_parse(text, n_bytes, path, &c->run, err));
    QR_TRY(require_object(c->run, path, err));
    QR_TRY(check_run_sum(c, text, n_bytes, path, err));
out:
    qr_free(text);
    qr_free(path);
    return status;
}

qrun_status qr_checkpoint_open(const char *folder, qr_checkpoint *checkpoint, qr_error *err) {
    *checkpoint = (qr_checkpoint){0};
    char *state_path = NULL;
    qrun_status status;
    QR_TRY(read_object(folder, "state.json", &checkpoint->state, &state_path, err));
    QR_TRY(read_position(checkpoint->state, state_path, checkpoint, err));
    QR_TRY(read_run(folder, checkpoint, err));
    QR_TRY(read_tensors(folder, checkpoint, err));
out:
    qr_free(state_path);
    return status;
}

void qr_checkpoint_close(qr_checkpoint *checkpoint) {
    qr_json_free(checkpoint->state);
    qr_json_free(checkpoint->run);
    qr_safetensors_close(checkpoint->tensors);
    *checkpoint = (qr_checkpoint){0};
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

enum { MAX_NAMED = 3, MAX_VALUE_BYTES = 64 };

static bool same_value(const qr_json *a, const qr_json *b) {
    if (cJSON_IsNumber(a) && cJSON_IsNumber(b)) { return a->valuedouble == b->valuedouble; }
    if (cJSON_IsString(a) && cJSON_IsString(b)) { return strcmp(a->valuestring, b->valuestring) == 0; }
    return a != NULL && b != NULL && cJSON_Compare(a, b, true);
}

/* Values that are the numbers of these names (qrun_optimizer, qrun_schedule, qrun_objective); NULL: they are not. */
static const char *name_of_value(const char *key, const qr_json *value) {
    static const struct {
        const char *key, *names[4];
    } named[] = {
        {"optimizer",
         {[QRUN_OPTIMIZER_ADAMW] = "adamw",
          [QRUN_OPTIMIZER_ADAMW8BIT] = "adamw8bit",
          [QRUN_OPTIMIZER_ADAFACTOR] = "adafactor",
          [QRUN_OPTIMIZER_SGD] = "sgd"}},
        {"schedule",
         {[QRUN_SCHEDULE_LINEAR] = "linear", [QRUN_SCHEDULE_COSINE] = "cosine", [QRUN_SCHEDULE_CONSTANT] = "constant"}},
        {"objective",
         {[QRUN_OBJECTIVE_SFT] = "sft",
          [QRUN_OBJECTIVE_DPO] = "dpo",
          [QRUN_OBJECTIVE_ORPO] = "orpo",
          [QRUN_OBJECTIVE_SIMPO] = "simpo"}}};
    for (size_t i = 0; cJSON_IsNumber(value) && i < QR_COUNT_OF(named); i++) {
        const int n = value->valueint;
        if (strcmp(key, named[i].key) == 0 && n >= 0 && (size_t)n < QR_COUNT_OF(named[i].names)) {
            return named[i].names[n];
        }
    }
    return NULL;
}

/* Some members are only written where they are not the default. */
static void append_value(const char *key, const qr_json *value, qr_buffer *text) {
    const char *name = name_of_value(key, value);
    if (name != NULL) {
        qr_buffer_append_text(text, name);
    } else if (cJSON_IsNumber(value)) {
        qr_buffer_append_format(text, "%.9g", value->valuedouble);
    } else if (cJSON_IsString(value)) {
        qr_buffer_append_format(text, "%.*s", MAX_VALUE_BYTES, value->valuestring);
    } else {
        qr_buffer_append_text(text, cJSON_IsTrue(value)    ? "on"
                                    : cJSON_IsFalse(value) ? "off"
                                    : value == NULL        ? "the default"
                                                           : "not known");
    }
}

/* The values of these are hashes, which mean nothing to a reader. */
static const char *name_of_content(const char *key) {
    static const char *const texts[][2] = {
        {"model", "the model's weights differ"},         {"config", "the model's config.json differs"},
        {"tokenizer", "the model's tokenizer differs"},  {"data", "the data differ"},
        {"eval_data", "the data to evaluate on differ"}, {"adapter", "the adapter that the run begins from differs"}};
    for (size_t i = 0; i < QR_COUNT_OF(texts); i++) {
        if (strcmp(key, texts[i][0]) == 0) { return texts[i][1]; }
    }
    return NULL;
}

static void append_difference(const char *key, const qr_json *here, const qr_json *there, qr_buffer *text) {
    const char *content = name_of_content(key);
    if (text->size > 0) { qr_buffer_append_text(text, ", "); }
    if (content != NULL) {
        qr_buffer_append_text(text, content);
        return;
    }
    for (const char *c = key; *c != '\0'; c++) { qr_buffer_append_char(text, *c == '_' ? ' ' : *c); }
    qr_buffer_append_text(text, " is ");
    append_value(key, here, text);
    qr_buffer_append_text(text, " here and ");
    append_value(key, there, text);
    qr_buffer_append_text(text, " there");
}

/* More steps, and evaluations that begin to count, make no other run of it. Checkpoints of earlier versions do not say
 * what their config.json was. */
static bool extends(const qr_json *here, const qr_json *there) {
    if (there == NULL && (strcmp(here->string, "eval_data") == 0 || strcmp(here->string, "config") == 0)) {
        return true;
    }
    return strcmp(here->string, "total_steps") == 0 && cJSON_IsNumber(here) && cJSON_IsNumber(there) &&
           here->valuedouble > there->valuedouble;
}

char *qr_checkpoint_difference(const qr_json *here, const qr_json *there) {
    qr_buffer text = {0};
    int n = 0;
    for (const qr_json *item = qr_json_first(here); item != NULL; item = item->next) {
        const qr_json *other = qr_json_get(there, item->string);
        if (same_value(item, other) || extends(item, other)) { continue; }
        if (n++ < MAX_NAMED) { append_difference(item->string, item, other, &text); }
    }
    for (const qr_json *item = qr_json_first(there); item != NULL; item = item->next) {
        if (qr_json_get(here, item->string) != NULL) { continue; }
        if (n++ < MAX_NAMED) { append_difference(item->string, NULL, item, &text); }
    }
    if (n > MAX_NAMED) { qr_buffer_append_format(&text, " and %d more", n - MAX_NAMED); }
    return n > 0 ? qr_buffer_take(&text) : qr_strdup("");
}
