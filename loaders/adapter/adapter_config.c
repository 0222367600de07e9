#include "loaders/adapter/adapter_config.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/number.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"

static const size_t MAX_CONFIG_BYTES = 2 << 20;
enum { MAX_PATTERNS = 10000 };

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static qrun_status fail_list(const char *what, const char *key, const char *expected, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" should be %s", what, key, expected);
}

/* A list of strings, or one string, each compiled as a pattern. */
static qrun_status read_patterns(const qr_json *value, const char *key, qr_module_pattern_form form, const char *what,
                                 qr_module_pattern ***patterns, size_t *n_patterns, qr_error *err) {
    if (qr_json_is_null(value)) { return QRUN_OK; }
    const bool single = cJSON_IsString(value);
    const size_t n = single ? 1 : qr_json_count(value);
    if ((!single && !cJSON_IsArray(value)) || n > MAX_PATTERNS) { return fail_list(what, key, "a list of names", err); }
    if (n == 0) { return QRUN_OK; }
    *patterns = qr_alloc_array_zeroed(n, sizeof **patterns);
    if (*patterns == NULL) { return qr_fail_memory(err, what, n * sizeof **patterns); }
    for (const qr_json *item = single ? value : qr_json_first(value); *n_patterns < n; item = item->next) {
        if (!cJSON_IsString(item)) { return fail_list(what, key, "a list of names", err); }
        QR_RETURN_IF_ERROR(qr_module_pattern_create(form, item->valuestring, what, &(*patterns)[*n_patterns], err));
        (*n_patterns)++;
    }
    return QRUN_OK;
}

static void free_patterns(qr_module_pattern **patterns, size_t n) {
    for (size_t i = 0; i < n; i++) { qr_module_pattern_destroy(patterns[i]); }
    qr_free(patterns);
}

static qrun_status read_names(const qr_json *list, const char *key, const char *what, qr_module_set *set,
                              qr_error *err) {
    const size_t n = qr_json_count(list);
    if (n > MAX_PATTERNS) { return fail_list(what, key, "a shorter list", err); }
    set->names = qr_alloc_array_zeroed(n, sizeof *set->names);
    if (set->names == NULL) { return qr_fail_memory(err, what, n * sizeof *set->names); }
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) { return fail_list(what, key, "a list of names or one regular expression", err); }
        char *name = qr_strdup(item->valuestring);
        if (name == NULL) { return qr_fail_memory(err, what, strlen(item->valuestring)); }
        set->names[set->n_names++] = name;
    }
    return QRUN_OK;
}

static qrun_status read_module_set(const qr_json *root, const char *key, const char *what, qr_module_set *set,
                                   qr_error *err) {
    const qr_json *value = qr_json_get(root, key);
    if (qr_json_is_null(value)) { return QRUN_OK; }
    set->is_given = true;
    if (cJSON_IsArray(value)) { return read_names(value, key, what, set, err); }
    if (!cJSON_IsString(value)) { return fail_list(what, key, "a list of names or one regular expression", err); }
    set->all_linear = strcasecmp_l(value->valuestring, "all-linear", qr_c_locale()) == 0;
    if (set->all_linear) { return QRUN_OK; }
    return qr_module_pattern_create(QR_PATTERN_WHOLE, value->valuestring, what, &set->pattern, err);
}

static void free_module_set(qr_module_set *set) {
    for (size_t i = 0; i < set->n_names; i++) { qr_free(set->names[i]); }
    qr_free(set->names);
    qr_module_pattern_destroy(set->pattern);
}

/* *exact: a regular expression or the whole path of a module, which PEFT does not restrict to layers_to_transform. */
static qrun_status set_holds(const qr_module_set *set, const char *module, bool *holds, bool *exact, qr_error *err) {
    *holds = *exact = false;
    if (set->all_linear) {
        *holds = !qr_is_last_part(module, "lm_head");
        return QRUN_OK;
    }
    if (set->pattern != NULL) {
        *exact = true;
        return qr_module_pattern_match(set->pattern, module, holds, NULL, err);
    }
    for (size_t i = 0; i < set->n_names; i++) {
        *exact |= strcmp(module, set->names[i]) == 0;
        *holds |= qr_is_last_part(module, set->names[i]);
    }
    return QRUN_OK;
}

/* ---- rank_pattern and alpha_pattern ------------------------------------------------------------------------------ */

static qrun_status read_pattern_values(const qr_json *root, const char *key, double low, double high, bool whole,
                                       const char *what, qr_pattern_values *values, qr_error *err) {
    const qr_json *object = qr_json_get(root, key);
    if (qr_json_is_null(object)) { return QRUN_OK; }
    if (!cJSON_IsObject(object)) { return fail_list(what, key, "an object", err); }
    for (const qr_json *item = qr_json_first(object); item != NULL; item = item->next) {
        const double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        int64_t integer;
        if (!(value >= low && value <= high) ||
            (whole && !qr_json_as_int(item, (int64_t)low, (int64_t)high, &integer))) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" gives \"%.200s\" something other than %s from %g to %g",
                           what, key, item->string, whole ? "an integer" : "a number", low, high);
        }
        if (values->n == MAX_PATTERNS) { return fail_list(what, key, "a smaller object", err); }
        QR_RETURN_IF_ERROR(
            qr_array_grow(&values->items, &values->capacity, values->n + 1, sizeof *values->items, what, err));
        qr_pattern_value *entry = &values->items[values->n];
        QR_RETURN_IF_ERROR(qr_module_pattern_create(QR_PATTERN_SUFFIX, item->string, what, &entry->pattern, err));
        entry->value = value;
        values->n++;
    }
    return QRUN_OK;
}

static void free_pattern_values(qr_pattern_values *values) {
    for (size_t i = 0; i < values->n; i++) { qr_module_pattern_destroy(values->items[i].pattern); }
    qr_free(values->items);
}

static qrun_status find_value(const qr_pattern_values *values, const char *module, double *value, qr_error *err) {
    for (size_t i = 0; i < values->n; i++) {
        bool matches;
        QR_RETURN_IF_ERROR(qr_module_pattern_match(values->items[i].pattern, module, &matches, NULL, err));
        if (!matches) { continue; }
        *value = values->items[i].value;
        return QRUN_OK;
    }
    return QRUN_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static qrun_status check_kind(const qr_json *root, const char *what, qr_error *err) {
    const char *type = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(root, "peft_type", &type, what, err));
    if (type == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: has no \"peft_type\"; is this the adapter_config.json of an adapter?", what);
    }
    if (strcmp(type, "LORA") != 0) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: adapters of type \"%.60s\" are not supported, only LORA", what,
                       type);
    }
    return QRUN_OK;
}

/* Null, false, and an empty list or object mean that a feature is not used. */
static bool is_off(const qr_json *value) {
    return qr_json_is_null(value) || cJSON_IsFalse(value) ||
           ((cJSON_IsArray(value) || cJSON_IsObject(value)) && qr_json_first(value) == NULL);
}

static qrun_status check_features(const qr_json *root, const char *what, qr_error *err) {
    static const char *const unsupported[] = {
        "lora_bias",    "layer_replication", "trainable_token_indices", "alora_invocation_tokens",
        "use_qalora",   "use_bdlora",        "velora_config",           "monteclora_config",
        "arrow_config", "kasa_config",       "ensure_weight_tying"};
    for (size_t i = 0; i < QR_COUNT_OF(unsupported); i++) {
        if (is_off(qr_json_get(root, unsupported[i]))) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: an adapter with \"%s\" is not supported", what,
                       unsupported[i]);
    }
    return QRUN_OK;
}

/* These change the base model's weights before training, so the adapter fits only the changed ones. */
static qrun_status check_initialisation(const qr_json *root, const char *what, qr_error *err) {
    static const char *const changing[] = {"pissa", "olora", "loftq", "corda", "lora_ga"};
    const qr_json *value = qr_json_get(root, "init_lora_weights");
    if (!cJSON_IsString(value)) { return QRUN_OK; }
    for (size_t i = 0; i < QR_COUNT_OF(changing); i++) {
        if (strncasecmp_l(value->valuestring, changing[i], strlen(changing[i]), qr_c_locale()) != 0) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: an adapter initialised by \"%.60s\" fits only its own changed base "
                       "model; save it in PEFT with path_initial_model_for_weight_conversion",
                       what, value->valuestring);
    }
    return QRUN_OK;
}

/* layers_to_transform: one layer or a list; an empty list means every layer. */
static qrun_status read_layers(const qr_json *root, const char *what, qr_adapter_config *config, qr_error *err) {
    const char *key = "layers_to_transform";
    const qr_json *value = qr_json_get(root, key);
    if (qr_json_is_null(value)) { return QRUN_OK; }
    const bool single = cJSON_IsNumber(value);
    if (!single && !cJSON_IsArray(value)) { return fail_list(what, key, "a layer or a list of layers", err); }
    const size_t n = single ? 1 : qr_json_count(value);
    if (n == 0) { return QRUN_OK; }
    config->layers = qr_alloc_array(n, sizeof *config->layers);
    if (config->layers == NULL) { return qr_fail_memory(err, what, n * sizeof *config->layers); }
    for (const qr_json *item = single ? value : qr_json_first(value); config->n_layers < n; item = item->next) {
        if (!qr_json_as_int(item, 0, 1000000000, &config->layers[config->n_layers])) {
            return fail_list(what, key, "a layer or a list of layers", err);
        }
        config->n_layers++;
    }
    QR_RETURN_IF_ERROR(read_patterns(qr_json_get(root, "layers_pattern"), "layers_pattern", QR_PATTERN_LAYER_INDEX,
                                     what, &config->layer_patterns, &config->n_layer_patterns, err));
    if (config->n_layer_patterns > 0) { return QRUN_OK; }
    config->layer_patterns = qr_alloc_array_zeroed(1, sizeof *config->layer_patterns);
    if (config->layer_patterns == NULL) { return qr_fail_memory(err, what, sizeof *config->layer_patterns); }
    QR_RETURN_IF_ERROR(qr_module_pattern_create(QR_PATTERN_LAYER_INDEX, NULL, what, &config->layer_patterns[0], err));
    config->n_layer_patterns = 1;
    return QRUN_OK;
}

/* PEFT takes a list of names, and none of these with them. */
static qrun_status read_parameters(const qr_json *root, const char *what, qr_adapter_config *config, qr_error *err) {
    const char *key = "target_parameters";
    const qr_json *value = qr_json_get(root, key);
    if (is_off(value)) { return QRUN_OK; }
    if (!cJSON_IsArray(value)) { return fail_list(what, key, "a list of names", err); }
    QR_RETURN_IF_ERROR(read_names(value, key, what, &config->target_parameters, err));
    if (!config->use_dora && !config->fan_in_fan_out) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" does not go with \"%s\"", what, key,
                   config->use_dora ? "use_dora" : "fan_in_fan_out");
}

static qrun_status read_all(const qr_json *root, const char *what, qr_adapter_config *config, qr_error *err) {
    const char *base_model = NULL;
    config->rank = 8; /* PEFT's defaults */
    config->alpha = 8;
    QR_RETURN_IF_ERROR(check_kind(root, what, err));
    QR_RETURN_IF_ERROR(check_features(root, what, err));
    QR_RETURN_IF_ERROR(check_initialisation(root, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_string(root, "base_model_name_or_path", &base_model, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(root, "r", 1, QR_LORA_MAX_RANK, &config->rank, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(root, "lora_alpha", -1e9, 1e9, &config->alpha, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(root, "use_rslora", &config->use_rslora, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(root, "use_dora", &config->use_dora, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(root, "fan_in_fan_out", &config->fan_in_fan_out, what, err));
    QR_RETURN_IF_ERROR(
        read_pattern_values(root, "rank_pattern", 1, QR_LORA_MAX_RANK, true, what, &config->rank_pattern, err));
    QR_RETURN_IF_ERROR(read_pattern_values(root, "alpha_pattern", -1e9, 1e9, false, what, &config->alpha_pattern, err));
    QR_RETURN_IF_ERROR(read_module_set(root, "target_modules", what, &config->target_modules, err));
    QR_RETURN_IF_ERROR(read_parameters(root, what, config, err));
    QR_RETURN_IF_ERROR(read_module_set(root, "exclude_modules", what, &config->exclude_modules, err));
    QR_RETURN_IF_ERROR(read_patterns(qr_json_get(root, "modules_to_save"), "modules_to_save", QR_PATTERN_CONTAINER,
                                     what, &config->modules_to_save, &config->n_modules_to_save, err));
    QR_RETURN_IF_ERROR(read_layers(root, what, config, err));
    if (base_model == NULL) { return QRUN_OK; }
    config->base_model = qr_strdup(base_model);
    return config->base_model != NULL ? QRUN_OK : qr_fail_memory(err, what, strlen(base_model));
}

qrun_status qr_adapter_config_parse(const qr_json *root, const char *what, qr_adapter_config *config, qr_error *err) {
    *config = (qr_adapter_config){0};
    if (!cJSON_IsObject(root)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what); }
    const qrun_status status = read_all(root, what, config, err);
    if (status != QRUN_OK) { qr_adapter_config_free(config); }
    return status;
}

qrun_status qr_adapter_config_read(const char *path, qr_adapter_config *config, qr_error *err) {
    *config = (qr_adapter_config){0};
    qr_json *root;
    qrun_status status = qr_json_read(path, MAX_CONFIG_BYTES, &root, err);
    if (status == QRUN_OK) { status = qr_adapter_config_parse(root, path, config, err); }
    qr_json_free(root);
    return status;
}

void qr_adapter_config_free(qr_adapter_config *config) {
    qr_free(config->base_model);
    free_pattern_values(&config->rank_pattern);
    free_pattern_values(&config->alpha_pattern);
    free_module_set(&config->target_modules);
    free_module_set(&config->exclude_modules);
    free_module_set(&config->target_parameters);
    free_patterns(config->modules_to_save, config->n_modules_to_save);
    free_patterns(config->layer_patterns, config->n_layer_patterns);
    qr_free(config->layers);
    *config = (qr_adapter_config){0};
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

qrun_status qr_adapter_config_saves(const qr_adapter_config *config, const char *module, bool *saved, qr_error *err) {
    *saved = false;
    for (size_t i = 0; i < config->n_modules_to_save && !*saved; i++) {
        QR_RETURN_IF_ERROR(qr_module_pattern_match(config->modules_to_save[i], module, saved, NULL, err));
    }
    return QRUN_OK;
}

/* Whether the module lies in one of layers_to_transform; the first layers_pattern that matches says which layer. */
static qrun_status is_in_layers(const qr_adapter_config *config, const char *module, bool *inside, qr_error *err) {
    *inside = false;
    bool matches = false;
    int64_t layer = -1;
    for (size_t i = 0; i < config->n_layer_patterns && !matches; i++) {
        QR_RETURN_IF_ERROR(qr_module_pattern_match(config->layer_patterns[i], module, &matches, &layer, err));
    }
    for (size_t i = 0; i < config->n_layers; i++) { *inside |= matches && config->layers[i] == layer; }
    return QRUN_OK;
}

qrun_status qr_adapter_config_targets(const qr_adapter_config *config, const char *module, bool *targeted,
                                      qr_error *err) {
    *targeted = false;
    bool excluded = false, saved = false, found = config->target_parameters.n_names == 0, exact = false;
    QR_RETURN_IF_ERROR(set_holds(&config->exclude_modules, module, &excluded, &exact, err));
    QR_RETURN_IF_ERROR(qr_adapter_config_saves(config, module, &saved, err));
    if (excluded || saved) { return QRUN_OK; }
    exact = false;
    if (config->target_modules.is_given) {
        QR_RETURN_IF_ERROR(set_holds(&config->target_modules, module, &found, &exact, err));
    }
    if (found && !exact && config->layers != NULL) { QR_RETURN_IF_ERROR(is_in_layers(config, module, &found, err)); }
    *targeted = found;
    return QRUN_OK;
}

static const char wrapper[] = ".base_layer";

/* Bytes of a module's name without the wrappers of its other parameters. */
static size_t unwrapped_bytes(const char *module) {
    size_t n = strlen(module);
    while (n > strlen(wrapper) && strncmp(module + n - strlen(wrapper), wrapper, strlen(wrapper)) == 0) {
        n -= strlen(wrapper);
    }
    return n;
}

/* The parameter of a module of n bytes that an entry of target_parameters means, by its name in the module: the entry
 * is how its path ends. NULL: none. */
static const char *parameter_of(const char *entry, const char *module, size_t n) {
    const char *dot = strrchr(entry, '.');
    const size_t n_of = dot != NULL ? (size_t)(dot - entry) : 0;
    if (dot == NULL) { return entry; }
    if (n_of > n || strncmp(module + n - n_of, entry, n_of) != 0) { return NULL; }
    return n_of == n || module[n - n_of - 1] == '.' ? dot + 1 : NULL;
}

const char *qr_adapter_config_parameter(const qr_adapter_config *config, const char *module, bool is_one_of_two,
                                        bool by_name_alone) {
    const size_t n = unwrapped_bytes(module);
    const bool is_outer = is_one_of_two && module[n] == '\0';
    const char *found = NULL;
    for (size_t i = 0; i < config->target_parameters.n_names; i++) {
        const char *parameter = parameter_of(config->target_parameters.names[i], module, n);
        if (parameter == NULL || (parameter == config->target_parameters.names[i]) != by_name_alone) { continue; }
        if ((strcmp(parameter, "down_proj") == 0) == is_outer) { return parameter; }
        found = parameter;
    }
    return found;
}

qrun_status qr_adapter_config_scale(const qr_adapter_config *config, const char *module, const char *parameter,
                                    int64_t *rank, double *alpha, double *scale, qr_error *err) {
    double r = (double)config->rank;
    qr_buffer name = {0};
    *alpha = config->alpha;
    qr_buffer_append(&name, module, parameter != NULL ? unwrapped_bytes(module) : strlen(module));
    if (parameter != NULL) { qr_buffer_append_format(&name, ".%s", parameter); }
    qr_buffer_append_char(&name, '\0');
    qrun_status status = qr_buffer_ok(&name) ? QRUN_OK : qr_fail_memory(err, module, strlen(module));
    if (status == QRUN_OK) { status = find_value(&config->rank_pattern, name.data, &r, err); }
    if (status == QRUN_OK) { status = find_value(&config->alpha_pattern, name.data, alpha, err); }
    qr_buffer_free(&name);
    QR_RETURN_IF_ERROR(status);
    *rank = (int64_t)r;
    *scale = *alpha / (config->use_rslora ? sqrt(r) : r);
    return QRUN_OK;
}
