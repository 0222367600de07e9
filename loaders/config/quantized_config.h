/* The config.json that a quantised copy of a folder gets: the original text, byte for byte, with "quantization_config"
 * as transformers writes it for bitsandbytes. */
#ifndef QR_LOADERS_CONFIG_QUANTIZED_CONFIG_H
#define QR_LOADERS_CONFIG_QUANTIZED_CONFIG_H

#include "base/buffer.h"
#include "quant/format.h"

/* Appends the new text to *out. `text` is a JSON object (checked; `what` names it in messages). A quantization_config
 * that it has (null, say) is replaced. format: NF4, NF4_DQ or INT8. skip_modules: n names of modules that are not
 * quantised; none: transformers' own rule, which spares the output head. */
qrun_status qr_quantized_config_append(const char *text, size_t n_bytes, const char *what, qr_weight_format format,
                                       const char *const *skip_modules, size_t n_skip_modules, qr_buffer *out,
                                       qr_error *err);

#endif
