#include "loaders/config/quantized_config.h"

#include <string.h>

#include "loaders/files/json_edit.h"

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

qrun_status qr_quantized_config_append(const char *text, size_t n_bytes, const char *what, qr_weight_format format,
                                       const char *const *skip_modules, size_t n_skip_modules, qr_buffer *out,
                                       qr_error *err) {
    qr_buffer value = {0};
    append_value(format, skip_modules, n_skip_modules, &value);
    const qrun_status status = qr_buffer_ok(&value)
                                   ? qr_json_edit_set(text, n_bytes, what, "quantization_config", value.data, out, err)
                                   : qr_fail_memory(err, what, n_bytes);
    qr_buffer_free(&value);
    return status;
}
