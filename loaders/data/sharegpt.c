#include "loaders/data/sharegpt.h"

#include <string.h>

#include "base/buffer.h"
#include "base/sizes.h"

/* The role of a speaker as such files name it; NULL for an unknown one. */
static const char *role_of(const char *from) {
    static const struct {
        const char *from, *role;
    } names[] = {{"human", "user"},          {"user", "user"},         {"gpt", "assistant"},
                 {"assistant", "assistant"}, {"chatgpt", "assistant"}, {"bing", "assistant"},
                 {"bard", "assistant"},      {"model", "assistant"},   {"system", "system"}};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(from, names[i].from) == 0) { return names[i].role; }
    }
    return NULL;
}

static void append_message(qr_buffer *text, const char *role, const char *content) {
    qr_buffer_append_format(text, "%s{\"role\": \"%s\", \"content\": ", text->size > 1 ? ", " : "", role);
    qr_buffer_append_json_string(text, content, strlen(content));
    qr_buffer_append_text(text, "}");
}

static qrun_status append_turn(qr_buffer *text, const qr_json *turn, qr_error *err) {
    const qr_json *from = qr_json_get(turn, "from"), *value = qr_json_get(turn, "value");
    if (!cJSON_IsObject(turn) || !cJSON_IsString(from) || !cJSON_IsString(value)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "\"conversations\" should be a list of objects with the texts \"from\" "
                       "and \"value\"");
    }
    const char *role = role_of(from->valuestring);
    if (role == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "\"from\" is \"%.40s\"; human, gpt and system are understood; give other "
                       "conversations as \"messages\"",
                       from->valuestring);
    }
    append_message(text, role, value->valuestring);
    return QRUN_OK;
}

qrun_status qr_sharegpt_to_messages(const qr_json *conversations, const qr_json *system, qr_json **messages,
                                    qr_error *err) {
    qr_buffer text = {0};
    qrun_status status = QRUN_OK;
    *messages = NULL;
    if (!cJSON_IsArray(conversations)) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "\"conversations\" should be a list")); }
    qr_buffer_append_text(&text, "[");
    if (cJSON_IsString(system) && system->valuestring[0] != '\0') {
        append_message(&text, "system", system->valuestring);
    }
    for (const qr_json *turn = qr_json_first(conversations); turn != NULL; turn = turn->next) {
        QR_TRY(append_turn(&text, turn, err));
    }
    qr_buffer_append_text(&text, "]");
    if (!qr_buffer_ok(&text)) { QR_TRY(qr_fail_memory(err, "an example", text.size)); }
    QR_TRY(qr_json_parse(text.data, text.size, "an example", messages, err));
out:
    qr_buffer_free(&text);
    return status;
}
