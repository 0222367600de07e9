/* The layers of a model that run the gated delta rule instead of attention: which they are, and their sizes. */
#ifndef QR_LOADERS_CONFIG_DELTA_CONFIG_H
#define QR_LOADERS_CONFIG_DELTA_CONFIG_H

#include "base/status.h"
#include "loaders/files/json.h"

typedef struct qr_delta_config {
    bool *layers;        /* [n_layers], owned; NULL: every layer is attention */
    int64_t n_key_heads; /* divides n_value_heads */
    int64_t n_value_heads;
    int64_t key_dim, value_dim; /* of a head */
    int64_t conv_kernel;        /* tokens that the convolution before the rule sees */
} qr_delta_config;

/* layer_types, or full_attention_interval (4 unless given), and the linear_… sizes with transformers' defaults.
 * QRUN_ERROR_INPUT for counts that are impossible, and for a model without a layer of full attention. */
qrun_status qr_delta_config_read(const qr_json *json, const char *what, int64_t n_layers, qr_delta_config *delta,
                                 qr_error *err);
void qr_delta_config_free(qr_delta_config *delta); /* leaves it zeroed */

#endif
