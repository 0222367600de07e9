#include "runtime/train/initial_adapter.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/random.h"
#include "base/sizes.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/weight_writer.h"

/* ---- Its shape --------------------------------------------------------------------------------------------------- */

static qrun_status check_uniform(const qr_adapter *adapter, const char *folder, qr_error *err) {
    if (adapter->n_parameters > 0) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: has %s trained whole; training cannot continue from that",
                       folder, adapter->parameters[0].name);
    }
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *module = &adapter->modules[i];
        if (module->rank == adapter->modules[0].rank && module->scale == adapter->modules[0].scale &&
            !module->is_embedding) {
            continue;
        }
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s: %s has a rank or scale of its own or is an embedding; training continues only from adapters of "
            "one rank on linear layers",
            folder, module->name);
    }
    return QRUN_OK;
}

static qrun_status check_given(const qr_adapter *adapter, const char *folder, const qr_lora_options *given,
                               qr_error *err) {
    const qr_adapter_module *module = &adapter->modules[0];
    if (given->rank != 0 && given->rank != module->rank) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: has rank %lld, not %d; leave `rank` out to keep the adapter's",
                       folder, (long long)module->rank, (int)given->rank);
    }
    if (given->alpha != 0 && fabs((double)given->alpha - module->alpha) > 1e-6 * module->alpha) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: has alpha %g, not %g; leave `alpha` out to keep the adapter's",
                       folder, module->alpha, (double)given->alpha);
    }
    if ((given->rslora && !adapter->config.use_rslora) || (given->dora && !adapter->config.use_dora)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a %s adapter, and cannot become one in training", folder,
                       given->rslora && !adapter->config.use_rslora ? "rsLoRA" : "DoRA");
    }
    return QRUN_OK;
}

/* The names of its layers, each once, with commas. */
static char *list_targets(const qr_adapter *adapter) {
    qr_buffer text = {0};
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const char *name = qr_lora_target_name(adapter->modules[i].name);
        bool seen = adapter->modules[i].n_stacked > 1;
        for (size_t j = 0; j < i && !seen; j++) {
            seen = strcmp(qr_lora_target_name(adapter->modules[j].name), name) == 0;
        }
        if (!seen) { qr_buffer_append_format(&text, "%s%s", text.size > 0 ? "," : "", name); }
    }
    if (text.size == 0) { qr_buffer_append_text(&text, "none"); }
    return qr_buffer_take(&text);
}

/* The same of its parameters of experts; empty where it has none. */
static char *list_parameters(const qr_adapter *adapter) {
    const qr_module_set *set = &adapter->config.target_parameters;
    bool any = false;
    qr_buffer text = {0};
    for (size_t i = 0; i < adapter->n_modules; i++) { any |= adapter->modules[i].n_stacked > 1; }
    for (size_t i = 0; any && i < set->n_names; i++) {
        if (strstr(set->names[i], "experts.") == NULL) { continue; } /* a router's is a linear layer's here */
        qr_buffer_append_format(&text, "%s%s", text.size > 0 ? "," : "", set->names[i]);
    }
    qr_buffer_append_text(&text, "");
    return qr_buffer_take(&text);
}

/* The same of its layers. */
static char *list_layers(const qr_adapter *adapter) {
    const qr_adapter_config *config = &adapter->config;
    qr_buffer text = {0};
    for (size_t i = 0; i < config->n_layers; i++) {
        qr_buffer_append_format(&text, "%s%lld", text.size > 0 ? "," : "", (long long)config->layers[i]);
    }
    qr_buffer_append_text(&text, "");
    return qr_buffer_take(&text);
}

qrun_status qr_initial_adapter_open(const char *folder, const qr_lora_options *given, qr_adapter **adapter,
                                    qr_lora_options *options, char **targets, char **parameters, char **layers,
                                    qr_error *err) {
    qrun_status status;
    QR_TRY(qr_adapter_open(folder, adapter, err));
    if ((*adapter)->n_modules == 0) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: adapts no layer", folder)); }
    QR_TRY(check_uniform(*adapter, folder, err));
    QR_TRY(check_given(*adapter, folder, given, err));
    options->rank = (int32_t)(*adapter)->modules[0].rank;
    options->alpha = (float)(*adapter)->modules[0].alpha;
    options->rslora = (*adapter)->config.use_rslora;
    options->dora = (*adapter)->config.use_dora;
    if (*targets == NULL) {
        *targets = list_targets(*adapter);
        if (*targets == NULL) { QR_TRY(qr_fail_memory(err, folder, 256)); }
    }
    if (*parameters == NULL) {
        *parameters = list_parameters(*adapter);
        if (*parameters == NULL) { QR_TRY(qr_fail_memory(err, folder, 256)); }
    }
    if (*layers == NULL && (*adapter)->config.n_layers > 0) {
        *layers = list_layers(*adapter);
        if (*layers == NULL) { QR_TRY(qr_fail_memory(err, folder, 256)); }
    }
out:
    if (status != QRUN_OK) {
        qr_adapter_close(*adapter);
        *adapter = NULL;
    }
    return status;
}

/* ---- Its values -------------------------------------------------------------------------------------------------- */

static qrun_status load_expert_pair(const qr_adapter *adapter, qr_parameters *p, const qr_lora_pair *pair,
                                    qr_error *err) {
    const qrun_model *model = p->model;
    const qr_adapter_module *module = qr_expert_pair_find(model, adapter, pair->layer, pair->role);
    if (module == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "the adapter to begin from does not adapt %s of layer %lld, which is to be trained",
                       qr_expert_parameter_name(model, pair->role), (long long)pair->layer);
    }
    const qr_layer *layer = &model->layers[pair->layer];
    const qr_row_share all = qr_expert_pair_share(model, layer, pair->role);
    QR_RETURN_IF_ERROR(qr_expert_pair_check(model, module, layer, pair->role, err));
    return qr_expert_pair_put(p->backend, module, &all, qr_expert_pair_turns(model, pair->role),
                              p->values + pair->a_offset, p->values + pair->b_offset, err);
}

static qrun_status load_pair(const qr_adapter *adapter, qr_parameters *p, const qr_lora_pair *pair, qr_error *err) {
    char name[256];
    if (pair->linear == NULL) { return load_expert_pair(adapter, p, pair, err); }
    qr_parameters_module_name(p, pair->role, pair->layer, name, sizeof name);
    const qr_adapter_module *module = qr_adapter_find(adapter, name);
    if (module == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "the adapter to begin from does not adapt %s, which is to be trained; was it made for another "
                       "model, or for other `target_modules` or `layers_to_transform`?",
                       name);
    }
    if (module->in_features != pair->in || module->out_features != pair->out) {
        return qr_fail(
            err, QRUN_ERROR_INPUT,
            "the adapter to begin from is made for %s of shape [%lld, %lld], and the model's is [%lld, %lld]", name,
            (long long)module->out_features, (long long)module->in_features, (long long)pair->out, (long long)pair->in);
    }
    QR_RETURN_IF_ERROR(qr_weight_write_floats(p->backend, p->values + pair->a_offset, module->a, err));
    QR_RETURN_IF_ERROR(qr_weight_write_floats(p->backend, p->values + pair->b_offset, module->b, err));
    if (!p->lora.dora) { return QRUN_OK; }
    return qr_weight_write_floats(p->backend, p->values + pair->magnitude_offset, module->magnitude, err);
}

/* The module that a pair begins from. */
static const qr_adapter_module *module_of(const qr_adapter *adapter, const qr_parameters *p, const qr_lora_pair *pair) {
    char name[256];
    if (pair->linear == NULL) { return qr_expert_pair_find(p->model, adapter, pair->layer, pair->role); }
    qr_parameters_module_name(p, pair->role, pair->layer, name, sizeof name);
    return qr_adapter_find(adapter, name);
}

/* The first one that no pair begins from. */
static const char *find_left_over(const qr_adapter *adapter, const qr_parameters *p) {
    for (size_t i = 0; i < adapter->n_modules; i++) {
        int64_t pair = 0;
        while (pair < p->lora.n_pairs && module_of(adapter, p, &p->lora.pairs[pair]) != &adapter->modules[i]) {
            pair++;
        }
        if (pair == p->lora.n_pairs) { return adapter->modules[i].name; }
    }
    return "";
}

qrun_status qr_initial_adapter_load(const qr_adapter *adapter, qr_parameters *p, qr_error *err) {
    for (int64_t i = 0; i < p->lora.n_pairs; i++) { QR_RETURN_IF_ERROR(load_pair(adapter, p, &p->lora.pairs[i], err)); }
    QR_RETURN_IF_ERROR(qr_safetensors_check(adapter->file, err));
    if (adapter->n_modules == (size_t)p->lora.n_pairs) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "the adapter to begin from adapts %llu layers, and the run would train %lld of them: not %s; was it "
                   "made for another model, or for other `target_modules` or `layers_to_transform`?",
                   (unsigned long long)adapter->n_modules, (long long)p->lora.n_pairs, find_left_over(adapter, p));
}

uint64_t qr_initial_adapter_hash(const qr_adapter *adapter) {
    uint64_t hash = QR_HASH_START;
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_safetensors_tensor *const tensors[] = {adapter->modules[i].a, adapter->modules[i].b,
                                                        adapter->modules[i].magnitude};
        for (size_t t = 0; t < QR_COUNT_OF(tensors); t++) {
            if (tensors[t] != NULL) { hash = qr_hash_bytes(hash, tensors[t]->data, tensors[t]->n_bytes); }
        }
    }
    return qr_hash_mix(hash);
}
