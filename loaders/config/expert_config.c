#include "loaders/config/expert_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

/* What every reader here needs. */
typedef struct source {
    const qr_json *json;
    const char *what;
    const qr_block *blocks;
    qr_error *err;
} source;

static qrun_status get_int(const source *s, const char *key, int64_t low, int64_t high, int64_t *value) {
    return qr_json_get_int(s->json, key, low, high, value, s->what, s->err);
}

static qrun_status get_bool(const source *s, const char *key, bool *value) {
    return qr_json_get_bool(s->json, key, value, s->what, s->err);
}

/* ---- Routers that are not read ----------------------------------------------------------------------------------- */

static qrun_status refuse_router(const source *s, const char *key) {
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: the router's \"%s\" is not supported for this family", s->what,
                   key);
}

/* DeepSeek-V2's may choose from groups, and need not; V3's do, whatever this says. */
static bool is_of_groups(const qr_expert_defaults *defaults, const char *choice) {
    return defaults->n_groups > 0 && !defaults->has_sigmoid_router && strcmp(choice, "group_limited_greedy") == 0;
}

/* Of layers with experts. */
static bool has_frequencies(const source *s, const qr_expert_defaults *defaults) {
    return defaults->lists_frequency && cJSON_IsArray(qr_json_get(s->json, "moe_layer_freq"));
}

/* Keys of other families' routers, and the value that changes nothing. */
static qrun_status check_router(const source *s, const qr_expert_defaults *defaults, const qr_expert_config *experts) {
    const struct {
        const char *key;
        double neutral;
        bool is_read;
    } numbers[] = {{"router_jitter_noise", 0, false},
                   {"moe_norm_min", 1e-12, false},
                   {"moe_layer_freq", 1, has_frequencies(s, defaults)},
                   {"n_group", 1, defaults->n_groups > 0},
                   {"topk_group", 1, defaults->n_groups > 0},
                   {"routed_scaling_factor", 1, experts->has_sigmoid_router || defaults->n_groups > 0}};
    for (size_t i = 0; i < QR_COUNT_OF(numbers); i++) {
        if (numbers[i].is_read) { continue; }
        double value = numbers[i].neutral;
        QR_RETURN_IF_ERROR(qr_json_get_double(s->json, numbers[i].key, -1e9, 1e9, &value, s->what, s->err));
        if (value != numbers[i].neutral) { return refuse_router(s, numbers[i].key); }
    }
    const char *own_scores = experts->has_sigmoid_router ? "sigmoid" : "softmax", *scores = own_scores;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "scoring_func", &scores, s->what, s->err));
    if (strcmp(scores, own_scores) != 0) { return refuse_router(s, "scoring_func"); }
    const char *own_choice = experts->has_sigmoid_router ? "noaux_tc" : "greedy", *choice = own_choice;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "topk_method", &choice, s->what, s->err));
    if (strcmp(choice, own_choice) != 0 && !is_of_groups(defaults, choice)) { return refuse_router(s, "topk_method"); }
    bool normalizes = false;
    if (defaults->never_normalizes) { QR_RETURN_IF_ERROR(get_bool(s, "norm_topk_prob", &normalizes)); }
    return normalizes ? refuse_router(s, "norm_topk_prob") : QRUN_OK;
}

/* A group of sigmoids is as good as its two best experts. */
static qrun_status check_groups(const source *s, const qr_expert_config *experts) {
    if (experts->n_groups <= 1) { return QRUN_OK; }
    const int64_t size = experts->n_experts / experts->n_groups, least = experts->has_sigmoid_router ? 2 : 1;
    if (experts->n_experts % experts->n_groups == 0 && size >= least && experts->n_top_groups <= experts->n_groups &&
        experts->n_top_groups * size >= experts->n_per_token) {
        return QRUN_OK;
    }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"n_group\" is %lld and \"topk_group\" %lld, which does not fit %lld of %lld experts", s->what,
                   (long long)experts->n_groups, (long long)experts->n_top_groups, (long long)experts->n_per_token,
                   (long long)experts->n_experts);
}

static qrun_status read_groups(const source *s, const qr_expert_defaults *defaults, qr_expert_config *experts) {
    const char *choice = "greedy";
    experts->n_groups = defaults->n_groups;
    experts->n_top_groups = defaults->n_top_groups;
    if (defaults->n_groups == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(get_int(s, "n_group", 1, QR_MOST_EXPERT_GROUPS, &experts->n_groups));
    if (defaults->groups_key != NULL) {
        QR_RETURN_IF_ERROR(get_int(s, defaults->groups_key, 1, QR_MOST_EXPERT_GROUPS, &experts->n_groups));
    }
    QR_RETURN_IF_ERROR(get_int(s, "topk_group", 1, QR_MOST_EXPERT_GROUPS, &experts->n_top_groups));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "topk_method", &choice, s->what, s->err));
    if (!experts->has_sigmoid_router && !is_of_groups(defaults, choice)) { experts->n_groups = 0; }
    return check_groups(s, experts);
}

/* ---- Which layers ------------------------------------------------------------------------------------------------ */

/* "sparse" or "dense" for each layer; without a list all have experts. */
static qrun_status read_listed_layers(const source *s, int64_t n_layers, qr_expert_config *experts) {
    const qr_json *list = qr_json_get(s->json, "mlp_layer_types");
    int64_t n = 0;
    for (int64_t i = 0; i < n_layers; i++) { experts->layer_has_experts[i] = true; }
    if (qr_json_is_null(list)) { return QRUN_OK; }
    for (const qr_json *item = qr_json_first(list); item != NULL && n < n_layers; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        experts->layer_has_experts[n] = strcmp(type, "sparse") == 0;
        if (!experts->layer_has_experts[n] && strcmp(type, "dense") != 0) { break; }
    }
    if (cJSON_IsArray(list) && n == n_layers && (size_t)n == qr_json_count(list)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"mlp_layer_types\" should be a list of \"sparse\" or \"dense\" for each of %lld layers",
                   s->what, (long long)n_layers);
}

/* 0 or 1 for each layer. */
static qrun_status read_frequencies(const source *s, int64_t n_layers, qr_expert_config *experts) {
    const qr_json *list = qr_json_get(s->json, "moe_layer_freq");
    int64_t n = 0, has = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL && n < n_layers; item = item->next, n++) {
        if (!qr_json_as_int(item, 0, 1, &has)) { break; }
        experts->layer_has_experts[n] = has == 1;
    }
    if (n == n_layers && (size_t)n == qr_json_count(list)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"moe_layer_freq\" should be a list of 0 or 1 for each of %lld layers", s->what,
                   (long long)n_layers);
}

static qrun_status read_layer_range(const source *s, int64_t n_layers, qr_expert_config *experts) {
    int64_t first = 1, last = -1, interval = 1;
    bool any = false;
    QR_RETURN_IF_ERROR(get_int(s, "moe_layer_start_index", 0, 1 << 12, &first));
    QR_RETURN_IF_ERROR(get_int(s, "moe_layer_end_index", -1, 1 << 12, &last));
    QR_RETURN_IF_ERROR(get_int(s, "moe_layer_interval", 1, 1 << 12, &interval));
    for (int64_t i = first; i < n_layers && (last < 0 || i <= last); i++) {
        experts->layer_has_experts[i] = (i + 1) % interval == 0;
        any |= experts->layer_has_experts[i];
    }
    if (any) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"moe_layer_start_index\", \"moe_layer_end_index\" and \"moe_layer_interval\" leave no layer "
                   "for experts",
                   s->what);
}

/* The first layers are dense, and all others have experts. */
static qrun_status read_dense_layers(const source *s, const qr_expert_defaults *defaults, int64_t n_layers,
                                     qr_expert_config *experts) {
    int64_t n_dense = defaults->n_dense;
    QR_RETURN_IF_ERROR(get_int(s, defaults->dense_key, 0, 1 << 12, &n_dense));
    for (int64_t i = n_dense; i < n_layers; i++) { experts->layer_has_experts[i] = true; }
    if (n_dense < n_layers) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" is %lld, and no layer is left for experts", s->what,
                   defaults->dense_key, (long long)n_dense);
}

static qrun_status take_blocks(const source *s, int64_t n_layers, qr_expert_config *experts) {
    for (int64_t i = 0; i < n_layers; i++) { experts->layer_has_experts[i] = s->blocks[i] == QR_BLOCK_EXPERTS; }
    return QRUN_OK;
}

/* By the model's blocks, or by one of the families' keys; else every decoder_sparse_step-th layer, but those of
 * mlp_only_layers. */
static qrun_status read_layers(const source *s, const qr_expert_defaults *defaults, int64_t n_layers,
                               qr_expert_config *experts) {
    int64_t step = 1;
    experts->layer_has_experts = qr_alloc_array_zeroed((size_t)n_layers, sizeof *experts->layer_has_experts);
    if (experts->layer_has_experts == NULL) { return qr_fail_memory(s->err, s->what, (size_t)n_layers); }
    const bool has_list = !qr_json_is_null(qr_json_get(s->json, "mlp_layer_types"));
    if (defaults->by_blocks) { return take_blocks(s, n_layers, experts); }
    if (defaults->lists_layers && (has_list || defaults->dense_key == NULL)) {
        return read_listed_layers(s, n_layers, experts);
    }
    if (has_frequencies(s, defaults)) { return read_frequencies(s, n_layers, experts); }
    if (defaults->dense_key != NULL) { return read_dense_layers(s, defaults, n_layers, experts); }
    if (defaults->ranges_layers) { return read_layer_range(s, n_layers, experts); }
    QR_RETURN_IF_ERROR(get_int(s, "decoder_sparse_step", 1, 1 << 20, &step));
    for (int64_t i = 0; i < n_layers; i++) { experts->layer_has_experts[i] = (i + 1) % step == 0; }
    const qr_json *list = qr_json_get(s->json, "mlp_only_layers");
    if (qr_json_is_null(list)) { return QRUN_OK; }
    bool is_list = cJSON_IsArray(list);
    for (const qr_json *item = qr_json_first(list); is_list && item != NULL; item = item->next) {
        int64_t layer = 0;
        is_list = qr_json_as_int(item, 0, INT64_MAX, &layer);
        if (is_list && layer < n_layers) { experts->layer_has_experts[layer] = false; }
    }
    if (is_list) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"mlp_only_layers\" should be a list of layers", s->what);
}

/* ---- Routers of sigmoids ----------------------------------------------------------------------------------------- */

/* Nemotron-H: what its blocks of experts may have that is not done here. */
static qrun_status refuse_in_blocks(const source *s) {
    int64_t n_shared = 1;
    if (!qr_json_is_null(qr_json_get(s->json, "moe_latent_size"))) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: experts behind a projection (\"moe_latent_size\") are not supported", s->what);
    }
    QR_RETURN_IF_ERROR(get_int(s, "n_shared_experts", 0, 64, &n_shared));
    if (n_shared == 1) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: an \"n_shared_experts\" other than 1 is not supported",
                   s->what);
}

static qrun_status read_sigmoid_router(const source *s, const qr_expert_defaults *defaults, qr_expert_config *experts) {
    experts->has_choice_bias = true;
    experts->balances_load &= defaults->balances_load; /* as in transformers, whatever output_router_logits says */
    if (defaults->bias_key != NULL) { QR_RETURN_IF_ERROR(get_bool(s, defaults->bias_key, &experts->has_choice_bias)); }
    return QRUN_OK;
}

/* Of sigmoids, and of what DeepSeek-V2 has. */
static qrun_status read_factor(const source *s, const qr_expert_defaults *defaults, qr_expert_config *experts) {
    const char *key = defaults->factor_key != NULL ? defaults->factor_key : "routed_scaling_factor";
    if (!experts->has_sigmoid_router && defaults->n_groups == 0) { return QRUN_OK; }
    return qr_json_get_double(s->json, key, 1e-6, 1e6, &experts->share_factor, s->what, s->err);
}

static qrun_status read_shared_count(const source *s, const qr_expert_defaults *defaults, qr_expert_config *experts) {
    int64_t n_shared = defaults->n_shared;
    const char *const keys[] = {defaults->other_shared_key, defaults->shared_key};
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        if (keys[i] != NULL) { QR_RETURN_IF_ERROR(get_int(s, keys[i], 0, 64, &n_shared)); }
    }
    experts->shared_intermediate_size = n_shared * experts->intermediate_size;
    return QRUN_OK;
}

/* A number, or a list of it for each layer (Hunyuan). */
static qrun_status read_per_token(const source *s, const char *key, qr_expert_config *experts) {
    const qr_json *const value = qr_json_get(s->json, key), *const first = qr_json_first(value);
    if (!cJSON_IsArray(value)) { return get_int(s, key, 1, QR_MOST_EXPERTS_PER_TOKEN, &experts->n_per_token); }
    for (const qr_json *item = first; item != NULL; item = item->next) {
        if (!qr_json_as_int(item, 1, QR_MOST_EXPERTS_PER_TOKEN, &experts->n_per_token)) {
            return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a number or a list of them, from 1 to %d",
                           s->what, key, QR_MOST_EXPERTS_PER_TOKEN);
        }
        if (item->valuedouble == first->valuedouble) { continue; }
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a \"%s\" that differs between layers is not supported",
                       s->what, key);
    }
    return QRUN_OK;
}

/* Command A: experts are chosen by logits either way. A softmax is over those chosen, whatever norm_topk_prob says. */
static qrun_status read_selection(const source *s, qr_expert_config *experts) {
    const char *selection = "softmax", *sum = "average";
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "expert_selection_fn", &selection, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "shared_expert_combination_strategy", &sum, s->what, s->err));
    experts->has_sigmoid_router = experts->chooses_by_logits = strcmp(selection, "sigmoid") == 0;
    if (!experts->has_sigmoid_router) { experts->normalizes = true; }
    if (!experts->has_sigmoid_router && strcmp(selection, "softmax") != 0) {
        return refuse_router(s, "expert_selection_fn");
    }
    if (experts->shared_intermediate_size == 0 || strcmp(sum, "sum") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: a \"shared_expert_combination_strategy\" other than \"sum\" is not supported", s->what);
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

static qrun_status read_all(const source *s, const qr_expert_defaults *defaults, int64_t n_layers,
                            qr_expert_config *experts) {
    /* transformers takes either name of the first. */
    QR_RETURN_IF_ERROR(get_int(s, "num_local_experts", 1, QR_MOST_EXPERTS, &experts->n_experts));
    QR_RETURN_IF_ERROR(get_int(s, "num_experts", 1, QR_MOST_EXPERTS, &experts->n_experts));
    if (defaults->count_key != NULL) {
        QR_RETURN_IF_ERROR(get_int(s, defaults->count_key, 1, QR_MOST_EXPERTS, &experts->n_experts));
    }
    QR_RETURN_IF_ERROR(get_int(s, defaults->switch_key != NULL ? "top_k_experts" : "num_experts_per_tok", 1,
                               QR_MOST_EXPERTS_PER_TOKEN, &experts->n_per_token));
    if (defaults->per_token_key != NULL) { QR_RETURN_IF_ERROR(read_per_token(s, defaults->per_token_key, experts)); }
    if (experts->n_per_token > experts->n_experts) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: \"num_experts_per_tok\" is %lld, more than the %lld experts that there are", s->what,
                       (long long)experts->n_per_token, (long long)experts->n_experts);
    }
    if (experts->n_experts > QR_MOST_EXPERTS_OF_MODEL / n_layers) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: %lld experts in each of %lld layers are more than the %d supported", s->what,
                       (long long)experts->n_experts, (long long)n_layers, QR_MOST_EXPERTS_OF_MODEL);
    }
    if (defaults->intermediate_size > 0 || defaults->switch_key != NULL) {
        const char *key = defaults->size_key != NULL ? defaults->size_key : "moe_intermediate_size";
        QR_RETURN_IF_ERROR(get_int(s, key, 1, 1 << 22, &experts->intermediate_size));
    }
    if (defaults->shared_key != NULL || defaults->n_shared > 0) {
        QR_RETURN_IF_ERROR(read_shared_count(s, defaults, experts));
    } else if (defaults->shared_intermediate_size > 0 || defaults->shared_size_key != NULL) {
        const int64_t least = defaults->shared_intermediate_size > 0 ? 1 : 0;
        const char *key =
            defaults->shared_size_key != NULL ? defaults->shared_size_key : "shared_expert_intermediate_size";
        QR_RETURN_IF_ERROR(get_int(s, key, least, 1 << 22, &experts->shared_intermediate_size));
    }
    if (!defaults->always_normalizes && !defaults->never_normalizes) {
        QR_RETURN_IF_ERROR(qr_json_get_switch(s->json, "norm_topk_prob", &experts->normalizes, s->what, s->err));
        if (defaults->normalizes_key != NULL) {
            QR_RETURN_IF_ERROR(get_bool(s, defaults->normalizes_key, &experts->normalizes));
        }
    }
    if (defaults->gate_limit > 0) {
        QR_RETURN_IF_ERROR(
            qr_json_get_double(s->json, "swiglu_alpha", 1e-6, 1e6, &experts->gate_alpha, s->what, s->err));
        QR_RETURN_IF_ERROR(
            qr_json_get_double(s->json, "swiglu_limit", 1e-6, 1e6, &experts->gate_limit, s->what, s->err));
    }
    if (experts->n_experts == 0 || experts->n_per_token == 0 || experts->intermediate_size == 0) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: \"%s\" needs \"num_experts\", \"top_k_experts\" and \"moe_intermediate_size\"", s->what,
                       defaults->switch_key);
    }
    QR_RETURN_IF_ERROR(get_bool(s, "output_router_logits", &experts->balances_load));
    QR_RETURN_IF_ERROR(check_router(s, defaults, experts));
    QR_RETURN_IF_ERROR(read_groups(s, defaults, experts));
    QR_RETURN_IF_ERROR(read_factor(s, defaults, experts));
    if (defaults->by_blocks) { QR_RETURN_IF_ERROR(refuse_in_blocks(s)); }
    if (experts->has_sigmoid_router) { QR_RETURN_IF_ERROR(read_sigmoid_router(s, defaults, experts)); }
    if (defaults->asks_selection) { QR_RETURN_IF_ERROR(read_selection(s, experts)); }
    return read_layers(s, defaults, n_layers, experts);
}

qrun_status qr_expert_config_read(const qr_json *json, const char *what, const qr_expert_defaults *defaults,
                                  int64_t n_layers, int64_t intermediate_size, const qr_block *blocks,
                                  qr_expert_config *experts, qr_error *err) {
    const source s = {.json = json, .what = what, .blocks = blocks, .err = err};
    *experts = (qr_expert_config){0};
    bool has_experts = defaults->n_experts > 0;
    if (defaults->switch_key != NULL) { QR_RETURN_IF_ERROR(get_bool(&s, defaults->switch_key, &has_experts)); }
    if (defaults->may_have_none) {
        int64_t n_experts = defaults->n_experts;
        QR_RETURN_IF_ERROR(get_int(&s, "num_local_experts", 0, QR_MOST_EXPERTS, &n_experts));
        has_experts = n_experts > 0;
    }
    if (defaults->by_blocks) { has_experts = qr_blocks_have(blocks, n_layers, QR_BLOCK_EXPERTS); }
    if (!has_experts) { return QRUN_OK; }
    experts->beside_dense = defaults->switch_key != NULL;
    experts->n_experts = defaults->n_experts;
    experts->n_per_token = defaults->n_per_token;
    experts->intermediate_size = defaults->intermediate_size > 0 ? defaults->intermediate_size : intermediate_size;
    if (experts->beside_dense) { experts->intermediate_size = 0; }
    experts->shared_intermediate_size = defaults->shared_intermediate_size;
    experts->normalizes = defaults->normalizes || defaults->always_normalizes;
    experts->has_biases = defaults->has_biases;
    experts->has_choice_bias = defaults->has_choice_bias;
    experts->has_sigmoid_router = defaults->has_sigmoid_router;
    experts->chooses_by_logits = defaults->chooses_by_logits;
    experts->sum_eps = defaults->sum_eps;
    experts->share_factor = defaults->share_factor > 0 ? defaults->share_factor : 1;
    experts->gate_alpha = defaults->gate_alpha;
    experts->gate_limit = defaults->gate_limit;
    return read_all(&s, defaults, n_layers, experts);
}

void qr_expert_config_free(qr_expert_config *experts) {
    qr_free(experts->layer_has_experts);
    *experts = (qr_expert_config){0};
}
