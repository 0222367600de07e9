/* Writing a PEFT LoRA adapter: adapter_config.json (two spaces of indent, sorted keys, and only keys that older PEFT knows)
 * and adapter_model.safetensors (F32, metadata {"format": "pt"}). Reading is loaders/adapter.h. */
#ifndef QR_LOADERS_ADAPTER_WRITER_H
#define QR_LOADERS_ADAPTER_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* LoRA on one module of the base model. */
typedef struct qr_adapter_factor_spec {
    const char *module;  /* "model.layers.0.self_attn.q_proj" */
    int64_t in, out;     /* A is [rank, in], B [out, rank] */
} qr_adapter_factor_spec;

typedef struct qr_adapter_spec {
    const char *base_model;      /* base_model_name_or_path */
    const char *const *targets;  /* [n_targets] target_modules: names or ends of module paths */
    size_t n_targets;
    int32_t rank;
    double alpha;
    bool rslora;
    bool fan_in_fan_out;         /* the base stores these matrices [in, out] (GPT-2) */
    const qr_adapter_factor_spec *factors; /* [n_factors] */
    size_t n_factors;
    /* Fills values with A (or B) of factor i. */
    qrun_status (*read)(void *user, size_t i, bool is_b, float *values, qr_error *err);
    void *user;
} qr_adapter_spec;

/* Writes both files into an existing folder; each appears under its name when it is whole, the config last. */
qrun_status qr_adapter_write(const char *folder, const qr_adapter_spec *spec, qr_error *err);

#endif
