#include "loaders/quantized_config.h"

#include <string.h>

#include "loaders/json.h"

static const char *const key = "quantization_config";

static void append_skip_modules(const char *const *modules, size_t n_modules, qr_buffer *out) {
    if (n_modules == 0) {
        qr_buffer_append_text(out, "null");
        return;
    }
    qr_buffer_append_char(out, '[');
    for (size_t i = 0; i < n_modules; i++) {
        qr_buffer_append_text(out, i > 0 ? ",\n      " : "\n      ");
        qr_buffer_append_json_string(out, modules[i], strlen(modules[i]));
    }
    qr_buffer_append_text(out, "\n    ]");
}

/* The value, in the words and the order of transformers 5. What INT8 says of 4 bits are the defaults. */
static void append_value(qr_weight_format format, const char *const *skip_modules, size_t n_skip_modules,
                         qr_buffer *out) {
    const bool four = qr_weight_is_nf4(format);
    const char *const nested = format == QR_WEIGHT_NF4_DQ ? "true" : "false";
    const char *const in_four = four ? "true" : "false", *const in_eight = four ? "false" : "true";
    qr_buffer_append_format(out, "{\n    \"_load_in_4bit\": %s,\n    \"_load_in_8bit\": %s,\n", in_four, in_eight);
    qr_buffer_append_format(out, "    \"bnb_4bit_compute_dtype\": \"%s\",\n", four ? "bfloat16" : "float32");
    qr_buffer_append_text(out, "    \"bnb_4bit_quant_storage\": \"uint8\",\n");
    qr_buffer_append_format(out, "    \"bnb_4bit_quant_type\": \"%s\",\n", four ? "nf4" : "fp4");
    qr_buffer_append_format(out, "    \"bnb_4bit_use_double_quant\": %s,\n", nested);
    qr_buffer_append_text(out, "    \"llm_int8_enable_fp32_cpu_offload\": false,\n"
                               "    \"llm_int8_has_fp16_weight\": false,\n"
                               "    \"llm_int8_skip_modules\": ");
    append_skip_modules(skip_modules, n_skip_modules, out);
    qr_buffer_append_text(out, ",\n    \"llm_int8_threshold\": 6.0,\n");
    qr_buffer_append_format(out, "    \"load_in_4bit\": %s,\n    \"load_in_8bit\": %s,\n", in_four, in_eight);
    qr_buffer_append_text(out, "    \"quant_method\": \"bitsandbytes\"\n  }");
}

static size_t skip_space(const char *text, size_t at) {
    while (strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0') { at++; }
    return at;
}

/* The position behind the value at `at`, which is inside an object: where its comma or brace stands. The text is known
 * to be well-formed. */
static size_t skip_value(const char *text, size_t at) {
    int depth = 0;
    for (bool quoted = false;; at++) {
        const char c = text[at];
        if (quoted) {
            if (c == '\\') {
                at++;
            } else if (c == '"') {
                quoted = false;
            }
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == '}' || c == ':')) {
            return at;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
}

/* Where the value of member number `index` begins: one past the colon. */
static size_t member_value(const char *text, int index) {
    size_t at = skip_space(text, 0) + 1; /* past the brace */
    for (int i = 0;; i++) {
        at = skip_value(text, at) + 1; /* past the name and its colon */
        if (i == index) { return at; }
        at = skip_value(text, at) + 1; /* past the value and its comma */
    }
}

static int member_index(const qr_json *root) {
    int index = 0;
    for (const qr_json *item = qr_json_first(root); item != NULL; item = item->next, index++) {
        if (strcmp(item->string, key) == 0) { return index; }
    }
    return -1;
}

static size_t last_brace(const char *text, size_t n_bytes) {
    while (text[n_bytes - 1] != '}') { n_bytes--; }
    return n_bytes - 1;
}

qrun_status qr_quantized_config_append(const char *text, size_t n_bytes, const char *what, qr_weight_format format,
                                       const char *const *skip_modules, size_t n_skip_modules, qr_buffer *out,
                                       qr_error *err) {
    qr_json *root = NULL;
    qrun_status status = qr_json_parse(text, n_bytes, what, &root, err);
    if (status != QRUN_OK) { goto out; }
    if (!cJSON_IsObject(root)) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what)); }
    const int index = member_index(root);
    if (index >= 0) {
        const size_t begin = member_value(text, index), end = skip_value(text, begin);
        qr_buffer_append(out, text, begin);
        qr_buffer_append_char(out, ' ');
        append_value(format, skip_modules, n_skip_modules, out);
        qr_buffer_append(out, text + end, n_bytes - end);
    } else {
        const size_t brace = last_brace(text, n_bytes);
        size_t end = brace;
        while (end > 0 && strchr(" \t\r\n", text[end - 1]) != NULL) { end--; }
        qr_buffer_append(out, text, end);
        qr_buffer_append_format(out, "%s\n  \"%s\": ", qr_json_first(root) != NULL ? "," : "", key);
        append_value(format, skip_modules, n_skip_modules, out);
        qr_buffer_append_char(out, '\n');
        qr_buffer_append(out, text + brace, n_bytes - brace);
    }
    if (!qr_buffer_ok(out)) { status = qr_fail_memory(err, what, n_bytes); }
out:
    qr_json_free(root);
    return status;
}
