/* Any bytes as a template: it is refused with one line that names it, or it renders valid UTF-8 or says in one line why
 * not; twice the same; and nothing stays allocated. */
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "fuzz.h"
#include "loaders/template/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static qrun_status render(const qr_jinja_template *parsed, const qr_json *context, qr_buffer *out, qr_error *err) {
    const qr_jinja_variable variables[] = {
        {.name = "messages", .kind = QR_JINJA_GIVE_JSON, .json = qr_json_get(context, "messages")},
        {.name = "tools", .kind = QR_JINJA_GIVE_JSON, .json = qr_json_get(context, "tools")},
        {.name = "bos_token", .kind = QR_JINJA_GIVE_TEXT, .text = "<s>"},
        {.name = "add_generation_prompt", .kind = QR_JINJA_GIVE_BOOL, .boolean = true},
        {.name = "n", .kind = QR_JINJA_GIVE_NONE},
    };
    return qr_jinja_render(parsed, variables, sizeof variables / sizeof variables[0], 1752150600, out, err);
}

static void check_rendering(const qr_jinja_template *parsed, const qr_json *context) {
    qr_buffer first = {0}, second = {0};
    qr_error err = {0}, again = {0};
    const qrun_status status = render(parsed, context, &first, &err);
    FUZZ_CHECK(render(parsed, context, &second, &again) == status);
    if (status == QRUN_OK) {
        FUZZ_CHECK(err.message[0] == '\0');
        FUZZ_CHECK(first.size == second.size && (first.size == 0 || memcmp(first.data, second.data, first.size) == 0));
        FUZZ_CHECK(first.size == 0 || qr_utf8_valid_prefix(first.data, first.size) == first.size);
    } else {
        FUZZ_CHECK(status == QRUN_ERROR_INPUT && first.size == 0);
        FUZZ_CHECK(strcmp(err.message, again.message) == 0 && strchr(err.message, '\n') == NULL);
    }
    qr_buffer_free(&first);
    qr_buffer_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char json[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"a <b> \"}, {\"role\": \"user\", \"content\": "
        "\"h\u00e9\"},"
        "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"x\": [1, "
        "2.5]}}]}],"
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]}";
    if (size > 4096) { return 0; }
    qr_alloc_stats before, after;
    qr_alloc_get_stats(&before);
    qr_json *context = NULL;
    qr_error err = {0};
    FUZZ_CHECK(qr_json_parse(json, sizeof json - 1, "context", &context, &err) == QRUN_OK);
    qr_jinja_template *parsed = NULL;
    const qrun_status status = qr_jinja_parse((const char *)data, size, "fuzz", &parsed, &err);
    FUZZ_CHECK((status == QRUN_OK) == (parsed != NULL));
    if (status == QRUN_OK) {
        check_rendering(parsed, context);
    } else {
        FUZZ_CHECK(status == QRUN_ERROR_INPUT && strncmp(err.message, "fuzz: ", 6) == 0);
    }
    qr_jinja_free(parsed);
    qr_json_free(context);
    qr_alloc_get_stats(&after);
    FUZZ_CHECK(after.n_held == before.n_held);
    return 0;
}
