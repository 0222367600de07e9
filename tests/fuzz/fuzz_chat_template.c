/* The input is the files of a folder, with a zero byte between them: tokenizer_config.json, chat_template.jinja,
 * additional_chat_templates/tool_use.jinja, special_tokens_map.json, chat_template.json; and then messages, where they
 * are JSON. An empty part is no file. The folder is refused with one line, has no template, or has one that renders
 * valid UTF-8 or says in one line why not, twice the same. Nothing stays allocated. */
#include "base/alloc.h"
#include "base/utf8.h"
#include "fuzz.h"
#include "loaders/template/chat_template.h"

static const char *const files[] = {"tokenizer_config.json", "chat_template.jinja",
                                    "additional_chat_templates/tool_use.jinja", "special_tokens_map.json",
                                    "chat_template.json"};
enum { N_FILES = 5 };

static const char usual_messages[] = "[{\"role\": \"system\", \"content\": \"a <b> \"}, {\"role\": \"user\", "
                                     "\"content\": [{\"type\": \"text\", \"text\": "
                                     "\"h\u00e9\"}]}, {\"role\": \"assistant\", \"content\": null, \"reasoning\": "
                                     "\"r\", \"tool_calls\": [{\"function\": "
                                     "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.0]}}}]}]";

static const char *folder(void) {
    static char path[128];
    if (path[0] == '\0') {
        (void)mkdir(fuzz_folder(), 0700);
        snprintf(path, sizeof path, "%s/additional_chat_templates", fuzz_folder());
        (void)mkdir(path, 0700);
    }
    return fuzz_folder();
}

static void check_rendering(const qr_chat_template *opened, const qr_json *messages, const qr_json *tools) {
    qr_buffer first = {0}, second = {0};
    qr_error err = {0}, again = {0};
    const qrun_status status = qr_chat_template_render(opened, messages, tools, NULL, true, 0, &first, &err);
    FUZZ_CHECK(qr_chat_template_render(opened, messages, tools, NULL, true, 0, &second, &again) == status);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0') || status == QRUN_ERROR_INPUT);
    FUZZ_CHECK(strcmp(err.message, again.message) == 0 && strchr(err.message, '\n') == NULL);
    FUZZ_CHECK(first.size == second.size && (first.size == 0 || memcmp(first.data, second.data, first.size) == 0));
    FUZZ_CHECK(first.size == 0 || qr_utf8_valid_prefix(first.data, first.size) == first.size);
    qr_buffer_free(&first);
    qr_buffer_free(&second);
}

static void check_folder(const char *messages_text, size_t n_messages) {
    qr_chat_template *opened = NULL;
    qr_json *messages = NULL, *tools = NULL;
    qr_error err = {0};
    const qrun_status status = qr_chat_template_open(folder(), &opened, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0') && strchr(err.message, '\n') == NULL);
    FUZZ_CHECK(status == QRUN_OK || (status == QRUN_ERROR_INPUT && opened == NULL));
    if (opened == NULL) { return; }
    if (n_messages == 0 || qr_json_parse(messages_text, n_messages, "m", &messages, NULL) != QRUN_OK) {
        FUZZ_CHECK(qr_json_parse(usual_messages, sizeof usual_messages - 1, "m", &messages, NULL) == QRUN_OK);
    }
    FUZZ_CHECK(qr_json_parse("[{\"name\": \"f\"}]", 15, "t", &tools, NULL) == QRUN_OK);
    check_rendering(opened, messages, NULL);
    check_rendering(opened, messages, tools);
    qr_json_free(messages);
    qr_json_free(tools);
    qr_chat_template_free(opened);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 8192) { return 0; }
    qr_alloc_stats before, after;
    bool written[N_FILES] = {false};
    (void)folder();
    qr_alloc_get_stats(&before);
    for (int i = 0; i < N_FILES; i++) {
        const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
        const size_t n = end != NULL ? (size_t)(end - data) : size;
        if (n > 0) {
            (void)fuzz_file(files[i], data, n);
            written[i] = true;
        }
        data += end != NULL ? n + 1 : n;
        size -= end != NULL ? n + 1 : n;
    }
    check_folder((const char *)data, size);
    for (int i = 0; i < N_FILES; i++) {
        if (written[i]) { fuzz_file_remove(files[i]); }
    }
    qr_alloc_get_stats(&after);
    FUZZ_CHECK(after.n_held == before.n_held);
    return 0;
}
