/* Writing a PEFT LoRA adapter: adapter_config.json (two spaces of indent, sorted keys, and only keys that older PEFT
 * knows) and adapter_model.safetensors (F32, metadata {"format": "pt"}). Reading is loaders/adapter/adapter.h. */
#ifndef QR_LOADERS_ADAPTER_ADAPTER_WRITER_H
#define QR_LOADERS_ADAPTER_ADAPTER_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

/* LoRA on one module of the base model. */
typedef struct qr_adapter_factor_spec {
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    int64_t in, out;    /* A is [rank, in], B [out, rank], whatever fan_in_fan_out says */
    int64_t n_stacked;  /* 0: 1; of a stack of matrices A is [n · rank, in], B [out, rank · n] */
} qr_adapter_factor_spec;

/* A parameter trained whole. */
typedef struct qr_adapter_parameter_spec {
    const char *name; /* "lm_head.weight" */
    int n_dims;
    int64_t dims[QR_MAX_DIMS];
    const float *values; /* row-major; NULL: read_parameter gives them */
} qr_adapter_parameter_spec;

/* Everything is lent for the call; what is zero or NULL is left out. */
typedef struct qr_adapter_spec {
    const char *base_model;     /* base_model_name_or_path, as "org/name@commit" where it has a revision */
    bool has_revision;          /* base_model ends in one */
    const char *const *targets; /* [n_targets] target_modules: names or ends of module paths; written sorted */
    size_t n_targets;
    const char *const *target_parameters; /* [n_target_parameters]; written sorted */
    size_t n_target_parameters;
    const int64_t *layers; /* [n_layers] layers_to_transform; NULL: all layers */
    size_t n_layers;
    int32_t rank;
    double alpha, dropout;
    bool rslora;
    bool fan_in_fan_out;                   /* the base stores these matrices [in, out] (GPT-2) */
    const qr_adapter_factor_spec *factors; /* [n_factors] */
    size_t n_factors;
    const int32_t *ranks; /* [n_factors]: where they are not all `rank`; written as rank_pattern */
    const double *alphas; /* [n_factors]: likewise */
    /* Fills values with A (or B) of factor i. */
    qrun_status (*read)(void *user, size_t i, bool is_b, float *values, qr_error *err);
    /* DoRA: fills values with the magnitude [out] of factor i. */
    qrun_status (*read_magnitude)(void *user, size_t i, float *values, qr_error *err);
    void *user;
    /* Fills values with elements [first, first + n) of parameter i. */
    qrun_status (*read_parameter)(void *user, size_t i, int64_t first, int64_t n, float *values, qr_error *err);
    const qr_adapter_parameter_spec *parameters; /* [n_parameters] */
    size_t n_parameters;
    const char *const *modules_to_save; /* [n_modules_to_save]: "lm_head", the modules of the parameters */
    size_t n_modules_to_save;
} qr_adapter_spec;

/* Writes both files into an existing folder; each appears under its name when it is whole, the config last. They are
 * then opened as an adapter (adapter.h), so that settings and tensors that contradict each other fail here. */
qrun_status qr_adapter_write(const char *folder, const qr_adapter_spec *spec, qr_error *err);

#endif
