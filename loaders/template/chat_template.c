#include "loaders/template/chat_template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/template/jinja.h"

enum { MAX_TEMPLATE_BYTES = 4 << 20, MAX_CONFIG_BYTES = 64 << 20 };

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
enum { N_TOKENS = QR_COUNT_OF(token_names) };

struct qr_chat_template {
    qr_jinja_template *standard;
    qr_jinja_template *tool_use; /* NULL: the standard one serves tools too */
    char *tokens[N_TOKENS];      /* text of token_names[i], or NULL where the model has none */
};

void qr_chat_template_free(qr_chat_template *chat_template) {
    if (chat_template == NULL) { return; }
    qr_jinja_free(chat_template->standard);
    qr_jinja_free(chat_template->tool_use);
    for (size_t i = 0; i < N_TOKENS; i++) { qr_free(chat_template->tokens[i]); }
    qr_free(chat_template);
}

static qrun_status create(qr_chat_template **made, qr_error *err) {
    *made = qr_alloc_zeroed(sizeof **made);
    return *made != NULL ? QRUN_OK : qr_fail_memory(err, "a chat template", sizeof **made);
}

/* --- reading --- */

/* Special tokens are written as a text or as {"content": text, …}; null means that there is none. */
static qrun_status read_tokens(qr_chat_template *made, const qr_json *config, const char *what, qr_error *err) {
    for (size_t i = 0; i < N_TOKENS; i++) {
        const char *text = NULL;
        const qr_json *member = qr_json_get(config, token_names[i]);
        const bool is_object = cJSON_IsObject(member);
        QR_RETURN_IF_ERROR(is_object ? qr_json_get_string(member, "content", &text, what, err)
                                     : qr_json_get_string(config, token_names[i], &text, what, err));
        if (text == NULL) { continue; }
        made->tokens[i] = qr_strdup(text);
        if (made->tokens[i] == NULL) { return qr_fail_memory(err, token_names[i], strlen(text)); }
    }
    return QRUN_OK;
}

static qrun_status parse_text(const char *text, const char *what, qr_jinja_template **parsed, qr_error *err) {
    if (*parsed != NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: two chat templates have the same name", what); }
    return qr_jinja_parse(text, strlen(text), what, parsed, err);
}

/* A list of {"name", "template"}. */
static qrun_status read_list(qr_chat_template *made, const qr_json *list, const char *what, qr_error *err) {
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        const char *name = NULL, *text = NULL;
        QR_RETURN_IF_ERROR(qr_json_get_string(item, "name", &name, what, err));
        QR_RETURN_IF_ERROR(qr_json_get_string(item, "template", &text, what, err));
        if (name == NULL || text == NULL) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: a chat template in the list has no name or no text", what);
        }
        if (strcmp(name, "default") == 0) {
            QR_RETURN_IF_ERROR(parse_text(text, what, &made->standard, err));
        } else if (strcmp(name, "tool_use") == 0) {
            QR_RETURN_IF_ERROR(parse_text(text, what, &made->tool_use, err));
        }
    }
    if (made->standard != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: none of the chat templates is named \"default\"", what);
}

static qrun_status read_config_template(qr_chat_template *made, const qr_json *config, const char *what,
                                        qr_error *err) {
    const qr_json *member = qr_json_get(config, "chat_template");
    if (qr_json_is_null(member)) { return QRUN_OK; }
    if (cJSON_IsArray(member)) { return read_list(made, member, what, err); }
    if (!cJSON_IsString(member)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"chat_template\" is neither a text nor a list of templates", what);
    }
    return parse_text(member->valuestring, what, &made->standard, err);
}

/* tokenizer_config.json, if there is one: tokens, and the template where the folder has no file for it. */
static qrun_status read_config(qr_chat_template *made, const char *path, qr_error *err) {
    if (!qr_file_exists(path)) { return QRUN_OK; }
    qr_json *config = NULL;
    qrun_status status;
    QR_TRY(qr_json_read(path, MAX_CONFIG_BYTES, &config, err));
    if (!cJSON_IsObject(config)) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: should hold a JSON object", path)); }
    QR_TRY(read_tokens(made, config, path, err));
    if (made->standard == NULL) { QR_TRY(read_config_template(made, config, path, err)); }
out:
    qr_json_free(config);
    return status;
}

static qrun_status read_template_file(qr_chat_template *made, const char *path, qr_error *err) {
    if (!qr_file_exists(path)) { return QRUN_OK; }
    char *text = NULL;
    size_t n_bytes = 0;
    qrun_status status = qr_file_read(path, MAX_TEMPLATE_BYTES, &text, &n_bytes, err);
    if (status == QRUN_OK) { status = qr_jinja_parse(text, n_bytes, path, &made->standard, err); }
    qr_free(text);
    return status;
}

qrun_status qr_chat_template_open(const char *folder, qr_chat_template **chat_template, qr_error *err) {
    *chat_template = NULL;
    qr_chat_template *made = NULL;
    char *template_path = qr_path_join(folder, "chat_template.jinja");
    char *config_path = qr_path_join(folder, "tokenizer_config.json");
    qrun_status status;
    if (template_path == NULL || config_path == NULL) { QR_TRY(qr_fail_memory(err, "a file name", strlen(folder))); }
    QR_TRY(create(&made, err));
    QR_TRY(read_template_file(made, template_path, err));
    QR_TRY(read_config(made, config_path, err));
    if (made->standard != NULL) {
        *chat_template = made;
        made = NULL;
    }
out:
    qr_chat_template_free(made);
    qr_free(template_path);
    qr_free(config_path);
    return status;
}

qrun_status qr_chat_template_parse(const char *text, size_t n_bytes, const char *what, qr_chat_template **chat_template,
                                   qr_error *err) {
    *chat_template = NULL;
    qr_chat_template *made;
    QR_RETURN_IF_ERROR(create(&made, err));
    const qrun_status status = qr_jinja_parse(text, n_bytes, what, &made->standard, err);
    if (status == QRUN_OK) {
        *chat_template = made;
    } else {
        qr_chat_template_free(made);
    }
    return status;
}

/* --- rendering --- */

static qrun_status check_messages(const qr_json *messages, qr_error *err) {
    if (!cJSON_IsArray(messages)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"messages\" should be a list of messages");
    }
    int n = 0;
    for (const qr_json *message = qr_json_first(messages); message != NULL; message = message->next) {
        n++;
        if (!cJSON_IsObject(message)) { return qr_fail(err, QRUN_ERROR_INPUT, "message %d is not an object", n); }
    }
    return QRUN_OK;
}

qrun_status qr_chat_template_render(const qr_chat_template *chat_template, const qr_json *messages,
                                    const qr_json *tools, const qr_json *extra, bool add_generation_prompt, int64_t now,
                                    qr_buffer *out, qr_error *err) {
    QR_RETURN_IF_ERROR(check_messages(messages, err));
    const bool has_tools = !qr_json_is_null(tools);
    if (has_tools && !cJSON_IsArray(tools)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"tools\" should be a list of tools");
    }
    if (!qr_json_is_null(extra) && !cJSON_IsObject(extra)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "the template's arguments should be an object");
    }
    const size_t n_extra = qr_json_count(extra);
    qr_jinja_variable *variables = qr_alloc_array(N_TOKENS + n_extra + 4, sizeof *variables);
    if (variables == NULL) { return qr_fail_memory(err, "the template's arguments", n_extra * sizeof *variables); }
    size_t n = 0;
    variables[n++] = (qr_jinja_variable){.name = "documents", .kind = QR_JINJA_GIVE_NONE};
    for (size_t i = 0; i < N_TOKENS; i++) {
        if (chat_template->tokens[i] == NULL) { continue; }
        variables[n++] =
            (qr_jinja_variable){.name = token_names[i], .kind = QR_JINJA_GIVE_TEXT, .text = chat_template->tokens[i]};
    }
    for (const qr_json *item = qr_json_first(extra); item != NULL; item = item->next) {
        variables[n++] = (qr_jinja_variable){.name = item->string, .kind = QR_JINJA_GIVE_JSON, .json = item};
    }
    variables[n++] = (qr_jinja_variable){.name = "messages", .kind = QR_JINJA_GIVE_JSON, .json = messages};
    variables[n++] = (qr_jinja_variable){
        .name = "tools", .kind = has_tools ? QR_JINJA_GIVE_JSON : QR_JINJA_GIVE_NONE, .json = tools};
    variables[n++] = (qr_jinja_variable){
        .name = "add_generation_prompt", .kind = QR_JINJA_GIVE_BOOL, .boolean = add_generation_prompt};
    const bool uses_tools = has_tools && chat_template->tool_use != NULL;
    const qr_jinja_template *chosen = uses_tools ? chat_template->tool_use : chat_template->standard;
    const qrun_status status = qr_jinja_render(chosen, variables, n, now, out, err);
    qr_free(variables);
    return status;
}
