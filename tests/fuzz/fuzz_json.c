/* An accepted text is a tree of valid strings and finite numbers, and writing the tree and reading it back gives the
 * same tree. */
#include <math.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "fuzz.h"
#include "loaders/files/json.h"

static void check_string(const char *text) {
    FUZZ_CHECK(text != NULL && qr_utf8_valid_prefix(text, strlen(text)) == strlen(text));
}

static void write_value(const qr_json *value, int depth, qr_buffer *out) {
    FUZZ_CHECK(depth <= QR_JSON_MAX_DEPTH);
    if (cJSON_IsString(value)) {
        check_string(value->valuestring);
        qr_buffer_append_json_string(out, value->valuestring, strlen(value->valuestring));
    } else if (cJSON_IsNumber(value)) {
        FUZZ_CHECK(isfinite(value->valuedouble));
        qr_buffer_append_format(out, "%.17e", value->valuedouble);
    } else if (cJSON_IsBool(value) || cJSON_IsNull(value)) {
        qr_buffer_append_text(out, cJSON_IsNull(value) ? "null" : cJSON_IsTrue(value) ? "true" : "false");
    } else {
        const bool object = cJSON_IsObject(value);
        FUZZ_CHECK(object || cJSON_IsArray(value));
        qr_buffer_append_char(out, object ? '{' : '[');
        for (const qr_json *item = qr_json_first(value); item != NULL; item = item->next) {
            FUZZ_CHECK((item->string != NULL) == object);
            if (item != qr_json_first(value)) { qr_buffer_append_char(out, ','); }
            if (object) {
                check_string(item->string);
                FUZZ_CHECK(qr_json_get(value, item->string) == item);
                qr_buffer_append_json_string(out, item->string, strlen(item->string));
                qr_buffer_append_char(out, ':');
            }
            write_value(item, depth + 1, out);
        }
        qr_buffer_append_char(out, object ? '}' : ']');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qr_json *root, *again;
    qr_error err = {0};
    const qrun_status status = qr_json_parse((const char *)data, size, "fuzz", &root, &err);
    FUZZ_CHECK((status == QRUN_OK) == (root != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (status != QRUN_OK) { return 0; }
    qr_buffer first = {0}, second = {0};
    write_value(root, 0, &first);
    FUZZ_CHECK(qr_buffer_ok(&first));
    FUZZ_CHECK(qr_json_parse(first.data, first.size, "again", &again, NULL) == QRUN_OK);
    write_value(again, 0, &second);
    FUZZ_CHECK(qr_buffer_ok(&second) && first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    qr_buffer_free(&first);
    qr_buffer_free(&second);
    qr_json_free(root);
    qr_json_free(again);
    return 0;
}
