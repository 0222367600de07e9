/* adapter_config.json of a PEFT LoRA adapter: ranks and scales by module, and which modules are meant. What cannot be
 * honoured is refused by name, because ignoring it would give other text than PEFT does. */
#ifndef QR_LOADERS_ADAPTER_ADAPTER_CONFIG_H
#define QR_LOADERS_ADAPTER_ADAPTER_CONFIG_H

#include "base/status.h"
#include "loaders/adapter/module_pattern.h"
#include "loaders/files/json.h"

enum { QR_LORA_MAX_RANK = 1 << 16 };

/* One entry of rank_pattern or alpha_pattern. */
typedef struct qr_pattern_value {
    qr_module_pattern *pattern;
    double value;
} qr_pattern_value;

typedef struct qr_pattern_values {
    qr_pattern_value *items; /* in the file's order: the first that matches counts */
    size_t n, capacity;
} qr_pattern_values;

/* Modules given as a list of names (a module is meant when its path is a name or ends in "." + name), as one regular
 * expression, or not at all. */
typedef struct qr_module_set {
    char **names;
    size_t n_names;
    qr_module_pattern *pattern;
    bool is_given;
    bool all_linear; /* every linear module but the output head */
} qr_module_set;

typedef struct qr_adapter_config {
    char *base_model; /* base_model_name_or_path; NULL when not given */
    int64_t rank;     /* r */
    double alpha;     /* lora_alpha */
    bool use_rslora;  /* scale alpha / sqrt(r) instead of alpha / r */
    bool use_dora;
    bool fan_in_fan_out;
    qr_pattern_values rank_pattern, alpha_pattern;
    qr_module_set target_modules, exclude_modules;
    qr_module_set target_parameters; /* names: a parameter is meant when its path is one, or ends in "." and one */
    qr_module_pattern **modules_to_save;
    size_t n_modules_to_save;
    int64_t *layers; /* layers_to_transform; NULL = every layer */
    size_t n_layers;
    qr_module_pattern **layer_patterns; /* layers_pattern, or one that takes any name */
    size_t n_layer_patterns;
} qr_adapter_config;

/* QRUN_ERROR_UNSUPPORTED for another peft_type and the like, each by name. */
qrun_status qr_adapter_config_parse(const qr_json *root, const char *what, qr_adapter_config *config, qr_error *err);
qrun_status qr_adapter_config_read(const char *path, qr_adapter_config *config, qr_error *err);
void qr_adapter_config_free(qr_adapter_config *config); /* leaves it zeroed; fine for a zeroed one */

/* Whether PEFT would put LoRA on this linear or embedding module ("model.layers.0.self_attn.q_proj"). Without
 * target_modules every module is meant. */
qrun_status qr_adapter_config_targets(const qr_adapter_config *config, const char *module, bool *targeted,
                                      qr_error *err);
/* The parameter that LoRA on this module ("model.layers.0.mlp.experts"), which may be wrapped by LoRA on another
 * parameter, is of, by its name in the module: one of target_parameters; NULL: it is of the module itself. PEFT wraps
 * parameters in the order of the module: with LoRA on two, the outer one is of "down_proj". by_name_alone: of entries
 * that are such a name; else of those that name the module too. */
const char *qr_adapter_config_parameter(const qr_adapter_config *config, const char *module, bool is_one_of_two,
                                        bool by_name_alone);
/* Whether the module, or one that contains it, is kept whole by modules_to_save. */
qrun_status qr_adapter_config_saves(const qr_adapter_config *config, const char *module, bool *saved, qr_error *err);

/* Rank, alpha and the factor on B·A of a module, or of a parameter of it (else NULL): patterns see its own path. */
qrun_status qr_adapter_config_scale(const qr_adapter_config *config, const char *module, const char *parameter,
                                    int64_t *rank, double *alpha, double *scale, qr_error *err);

#endif
