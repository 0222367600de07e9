/* Renders conversations with the chat templates of model folders, for tests/golden/check_chat_templates.py: lines of
 * {"folder", "messages", "tools", "arguments", "add_generation_prompt"} in, lines of {"text"} or {"error"} out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loaders/template/chat_template.h"

static qrun_status render(const qr_json *request, qr_buffer *out, qr_error *err) {
    const char *folder = NULL;
    bool prompt = false;
    qr_chat_template *opened = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(request, "folder", &folder, "request", err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(request, "add_generation_prompt", &prompt, "request", err));
    if (folder == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "no folder"); }
    QR_RETURN_IF_ERROR(qr_chat_template_open(folder, &opened, err));
    if (opened == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "no chat template"); }
    const qrun_status status =
        qr_chat_template_render(opened, qr_json_get(request, "messages"), qr_json_get(request, "tools"),
                                qr_json_get(request, "arguments"), prompt, (int64_t)time(NULL), out, err);
    qr_chat_template_free(opened);
    return status;
}

static void answer(const char *line, size_t n_bytes) {
    qr_json *request = NULL;
    qr_buffer text = {0}, json = {0};
    qr_error err = {0};
    qrun_status status = qr_json_parse_line(line, n_bytes, "request", &request, &err);
    if (status == QRUN_OK) { status = render(request, &text, &err); }
    const char *shown = status != QRUN_OK ? err.message : text.size > 0 ? text.data : "";
    qr_buffer_append_format(&json, "{\"%s\": ", status == QRUN_OK ? "text" : "error");
    qr_buffer_append_json_string(&json, shown, status == QRUN_OK ? text.size : strlen(shown));
    qr_buffer_append_text(&json, "}\n");
    if (!qr_buffer_ok(&json)) { abort(); }
    fwrite(json.data, 1, json.size, stdout);
    fflush(stdout);
    qr_buffer_free(&text);
    qr_buffer_free(&json);
    qr_json_free(request);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) { answer(line, (size_t)n); }
    free(line);
    return 0;
}
