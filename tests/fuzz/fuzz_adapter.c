/* The input is an adapter_config.json, then a zero byte, then an adapter_model.safetensors. In an accepted adapter
 * every module has matrices that fit each other and a finite scale. */
#include <math.h>

#include "fuzz.h"
#include "loaders/adapter/adapter.h"

static void check_adapter(const qr_adapter *adapter) {
    FUZZ_CHECK(adapter->n_modules + adapter->n_parameters > 0);
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *m = &adapter->modules[i];
        FUZZ_CHECK(m->rank > 0 && m->n_stacked > 0 && m->in_features > 0 && m->out_features > 0 && isfinite(m->scale));
        FUZZ_CHECK(m->a->n_dims == 2 && m->a->dims[0] == m->n_stacked * m->rank && m->a->dims[1] == m->in_features);
        FUZZ_CHECK(m->b->n_dims == 2 && m->b->dims[0] == m->out_features && m->b->dims[1] == m->n_stacked * m->rank);
        FUZZ_CHECK((m->magnitude != NULL) == adapter->config.use_dora);
        FUZZ_CHECK(m->magnitude == NULL || m->magnitude->dims[0] == m->out_features);
        FUZZ_CHECK(qr_adapter_find(adapter, m->name) == m);
    }
}

static void check_config(const char *text, size_t size) {
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "lm_head", "transformer.h.11.mlp.c_fc"};
    qr_json *root;
    if (qr_json_parse(text, size, "fuzz", &root, NULL) != QRUN_OK) { return; }
    qr_adapter_config config;
    if (qr_adapter_config_parse(root, "fuzz", &config, NULL) == QRUN_OK) {
        for (size_t i = 0; i < 3; i++) {
            bool targeted;
            int64_t rank;
            double alpha, scale;
            if (qr_adapter_config_scale(&config, modules[i], i % 2 == 0 ? NULL : "down_proj", &rank, &alpha, &scale,
                                        NULL) == QRUN_OK) {
                FUZZ_CHECK(rank > 0 && isfinite(alpha) && isfinite(scale));
            }
            (void)qr_adapter_config_targets(&config, modules[i], &targeted, NULL);
        }
    }
    qr_adapter_config_free(&config);
    qr_json_free(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n_config = end != NULL ? (size_t)(end - data) : size;
    check_config((const char *)data, n_config);
    if (end == NULL) { return 0; }
    fuzz_file("adapter_config.json", data, n_config);
    fuzz_file("adapter_model.safetensors", end + 1, size - n_config - 1);
    qr_adapter *adapter;
    qr_error err = {0};
    const qrun_status status = qr_adapter_open(fuzz_folder(), &adapter, &err);
    FUZZ_CHECK((status == QRUN_OK) == (adapter != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (adapter != NULL) { check_adapter(adapter); }
    qr_adapter_close(adapter);
    fuzz_file_remove("adapter_config.json");
    fuzz_file_remove("adapter_model.safetensors");
    return 0;
}
