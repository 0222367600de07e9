#include "runtime/model/tokenizer.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/json.h"
#include "loaders/files/model_folder.h"
#include "loaders/source/model_source.h"
#include "loaders/template/chat_template.h"

static qrun_status open_folder(const char *folder, qrun_tokenizer **tokenizer, qr_error *err) {
    *tokenizer = NULL;
    qrun_tokenizer *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the tokenizer", sizeof *made); }
    qrun_status status = QRUN_OK;
    QR_TRY(qr_tokenizer_open(folder, &made->tokenizer, err));
    QR_TRY(qr_chat_template_open(folder, &made->chat_template, err));
    *tokenizer = made;
    return QRUN_OK;
out:
    qrun_tokenizer_destroy(made);
    return status;
}

qrun_status qr_folder_tokenizer_open_optional(const char *folder, qrun_tokenizer **tokenizer, qr_error *err) {
    *tokenizer = NULL;
    bool found = false;
    QR_RETURN_IF_ERROR(qr_source_has_tokenizer(folder, &found, err));
    return found ? open_folder(folder, tokenizer, err) : QRUN_OK;
}

/* A folder with a tokenizer and nothing else of a model is enough here. */
qrun_status qrun_tokenizer_open(qrun_context *context, const char *path, qrun_tokenizer **tokenizer,
                                qrun_error *error) {
    (void)context;
    char *folder = NULL;
    *tokenizer = NULL;
    if (path == NULL) { return qr_fail(error, QRUN_ERROR_ARGUMENT, "no path of a tokenizer was given"); }
    qrun_status status = qr_folder_tokenizer_open_optional(path, tokenizer, error);
    if (status != QRUN_OK || *tokenizer != NULL) { return status; }
    status = qr_model_folder_resolve(path, &folder, error);
    if (status == QRUN_OK) { status = open_folder(folder, tokenizer, error); }
    qr_free(folder);
    return status;
}

void qrun_tokenizer_destroy(qrun_tokenizer *tokenizer) {
    if (tokenizer == NULL) { return; }
    qr_tokenizer_destroy(tokenizer->tokenizer);
    qr_chat_template_free(tokenizer->chat_template);
    qr_free(tokenizer);
}

qrun_status qrun_tokenize(const qrun_tokenizer *tokenizer, const char *text, size_t n_bytes, bool add_special,
                          bool parse_special, int32_t **ids, int64_t *n_ids, qrun_error *error) {
    const qr_encode_options options = {.add_special = add_special, .parse_special = parse_special};
    qr_tokens tokens = {0};
    *ids = NULL;
    *n_ids = 0;
    const qrun_status status = qr_tokenizer_encode(tokenizer->tokenizer, text, n_bytes, &options, &tokens, error);
    if (status != QRUN_OK) {
        qr_tokens_free(&tokens);
        return status;
    }
    *ids = tokens.ids;
    *n_ids = (int64_t)tokens.n;
    return QRUN_OK;
}

qrun_status qrun_detokenize(const qrun_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids, bool skip_special,
                            char **text, size_t *n_bytes, qrun_error *error) {
    qr_buffer buffer = {0};
    *text = NULL;
    *n_bytes = 0;
    if (n_ids < 0) { return qr_fail(error, QRUN_ERROR_ARGUMENT, "`n_ids` cannot be negative"); }
    const qrun_status status =
        qr_tokenizer_decode(tokenizer->tokenizer, ids, (size_t)n_ids, skip_special, &buffer, error);
    if (status != QRUN_OK) {
        qr_buffer_free(&buffer);
        return status;
    }
    *n_bytes = buffer.size;
    *text = qr_buffer_take(&buffer);
    return *text != NULL ? QRUN_OK : qr_fail_memory(error, "the text", *n_bytes);
}

const char *qrun_token_text(const qrun_tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    return qr_tokenizer_token(tokenizer->tokenizer, id, n_bytes);
}

qrun_status qrun_token_bytes(const qrun_tokenizer *tokenizer, int32_t id, char **bytes, size_t *n_bytes,
                             qrun_error *error) {
    qr_buffer buffer = {0};
    *bytes = NULL;
    *n_bytes = 0;
    const qrun_status status = qr_tokenizer_token_bytes(tokenizer->tokenizer, id, &buffer, error);
    if (status != QRUN_OK) {
        qr_buffer_free(&buffer);
        return status;
    }
    *n_bytes = buffer.size;
    *bytes = qr_buffer_take(&buffer);
    return *bytes != NULL ? QRUN_OK : qr_fail_memory(error, "the bytes of a token", *n_bytes);
}

int32_t qrun_tokenizer_vocab_size(const qrun_tokenizer *tokenizer) {
    return qr_tokenizer_vocab_size(tokenizer->tokenizer);
}

int32_t qrun_tokenizer_special_id(const qrun_tokenizer *tokenizer, const char *role) {
    const qr_tokenizer *t = tokenizer->tokenizer;
    return strcmp(role, "bos") == 0   ? qr_tokenizer_bos_id(t)
           : strcmp(role, "eos") == 0 ? qr_tokenizer_eos_id(t)
           : strcmp(role, "pad") == 0 ? qr_tokenizer_pad_id(t)
           : strcmp(role, "unk") == 0 ? qr_tokenizer_unk_id(t)
                                      : -1;
}

bool qrun_tokenizer_has_chat_template(const qrun_tokenizer *tokenizer) { return tokenizer->chat_template != NULL; }

/* NULL stays NULL. */
static qrun_status parse_optional(const char *text, const char *what, qr_json **json, qr_error *err) {
    *json = NULL;
    return text == NULL ? QRUN_OK : qr_json_parse_line(text, strlen(text), what, json, err);
}

/* What a part of a content is, where that is not text; NULL: text. Templates of models with images would put words in
 * its place, which the model would take for the image. */
static const char *medium_of(const qr_json *part) {
    static const struct {
        const char *word, *phrase;
    } media[] = {{"image", "an image"}, {"video", "a video"}, {"audio", "audio"}};
    const qr_json *type = qr_json_get(part, "type");
    for (size_t i = 0; i < QR_COUNT_OF(media); i++) {
        if (cJSON_IsString(type) && strstr(type->valuestring, media[i].word) != NULL) { return media[i].phrase; }
        if (!qr_json_is_null(qr_json_get(part, media[i].word))) { return media[i].phrase; }
    }
    return qr_json_is_null(qr_json_get(part, "image_url")) ? NULL : media[0].phrase;
}

/* An assistant may have called a tool, or said nothing. */
static bool needs_content(const char *role) {
    static const char *const roles[] = {"user", "system", "developer", "tool"};
    for (size_t i = 0; i < QR_COUNT_OF(roles); i++) {
        if (strcmp(role, roles[i]) == 0) { return true; }
    }
    return false;
}

static qrun_status check_content(const qr_json *content, const char *role, int message, qr_error *err) {
    int n = 0;
    if (qr_json_is_null(content) && needs_content(role)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "message %d, of the role \"%s\", has no \"content\"", message, role);
    }
    if (cJSON_IsNumber(content) || cJSON_IsBool(content)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "message %d: \"content\" must be a text", message);
    }
    if (!cJSON_IsArray(content)) { return QRUN_OK; }
    for (const qr_json *part = content->child; part != NULL; part = part->next) {
        const char *medium = medium_of(part);
        n++;
        if (medium == NULL) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "message %d: part %d is %s, and only text can be read", message, n,
                       medium);
    }
    return QRUN_OK;
}

/* Checked here because templates fail with messages of their own, or not at all. */
static qrun_status check_messages(const qr_json *messages, qr_error *err) {
    if (!cJSON_IsArray(messages) || messages->child == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"messages\" must be an array of at least one {\"role\", \"content\"}");
    }
    int n = 0;
    for (const qr_json *message = messages->child; message != NULL; message = message->next) {
        const qr_json *role = qr_json_get(message, "role");
        n++;
        if (!cJSON_IsString(role)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "message %d has no \"role\" that is a text", n);
        }
        QR_RETURN_IF_ERROR(check_content(qr_json_get(message, "content"), role->valuestring, n, err));
    }
    return QRUN_OK;
}

qrun_status qrun_chat_render(const qrun_tokenizer *tokenizer, const char *messages_json, const char *tools_json,
                             const char *arguments_json, bool add_generation_prompt, char **text, size_t *n_bytes,
                             qrun_error *error) {
    qr_json *messages = NULL, *tools = NULL, *arguments = NULL;
    qr_buffer buffer = {0};
    qrun_status status = QRUN_OK;
    *text = NULL;
    *n_bytes = 0;
    if (tokenizer->chat_template == NULL) {
        QR_TRY(qr_fail(
            error, QRUN_ERROR_UNSUPPORTED,
            "this model has no chat template (tokenizer_config.json, chat_template.jinja); use a plain prompt"));
    }
    QR_TRY(parse_optional(messages_json, "messages", &messages, error));
    QR_TRY(check_messages(messages, error));
    QR_TRY(parse_optional(tools_json, "tools", &tools, error));
    QR_TRY(parse_optional(arguments_json, "template arguments", &arguments, error));
    QR_TRY(qr_chat_template_render(tokenizer->chat_template, messages, tools, arguments, add_generation_prompt,
                                   (int64_t)time(NULL), &buffer, error));
    *n_bytes = buffer.size;
    *text = qr_buffer_take(&buffer);
    if (*text == NULL) { status = qr_fail_memory(error, "the rendered conversation", *n_bytes); }
out:
    qr_buffer_free(&buffer);
    qr_json_free(messages);
    qr_json_free(tools);
    qr_json_free(arguments);
    return status;
}
