/* "quantization_config" of config.json: how a folder stores its linear weights. */
#ifndef QR_LOADERS_CONFIG_QUANTIZATION_CONFIG_H
#define QR_LOADERS_CONFIG_QUANTIZATION_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "loaders/files/json.h"
#include "loaders/files/packed_weight.h"

typedef enum qr_stored_quantization {
    QR_STORED_PLAIN,
    QR_STORED_BNB_NF4,
    QR_STORED_BNB_INT8,
    QR_STORED_PACKED /* as `packing` says; held as whatever is asked for */
} qr_stored_quantization;

typedef struct qr_quantization_config {
    qr_stored_quantization stored;
    bool double_quantised;  /* NF4: the scales are quantised too */
    qr_dtype compute_dtype; /* NF4: bnb_4bit_compute_dtype */
    char **skip_modules;    /* names of modules left alone, as in llm_int8_skip_modules; owned */
    size_t n_skip_modules;
    qr_packing packing;
} qr_quantization_config;

/* Whether the folder is held in the format that it is stored in. */
static inline bool qr_quantization_is_kept(const qr_quantization_config *quantization) {
    return quantization->stored == QR_STORED_BNB_NF4 || quantization->stored == QR_STORED_BNB_INT8;
}

/* Reads the object; null or absent is plain. QRUN_ERROR_UNSUPPORTED names a method that is not read. */
qrun_status qr_quantization_config_read(const qr_json *object, const char *what, qr_quantization_config *quantization,
                                        qr_error *err);
void qr_quantization_config_free(qr_quantization_config *quantization); /* leaves it zeroed */

#endif
