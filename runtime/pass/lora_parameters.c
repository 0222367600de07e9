#include "runtime/pass/lora_parameters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/stored_weight.h"
#include "runtime/model/adapter.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/layer_stream.h"

#include "runtime/pass/whole_parameters.h"

enum { OUTPUT_ALIGNMENT = 16 };

/* ---- Which layers ------------------------------------------------------------------------------------------------ */

static bool is_attention(qr_tensor_role role) { return role >= QR_ROLE_Q && role <= QR_ROLE_RECURRENT_OUT; }

/* A number alone is no name: "altup_projections.0". */
const char *qr_lora_target_name(const char *module) {
    const char *name = module + strlen(module);
    while (name > module && name[-1] != '.') { name--; }
    if (name == module || strspn(name, "0123456789") < strlen(name)) { return name; }
    name--;
    while (name > module && name[-1] != '.') { name--; }
    return name;
}

static bool is_listed(const char *targets, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = targets; *at != '\0'; at += strspn(at, ",")) {
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0) { return true; }
        at += strcspn(at, ",");
    }
    return false;
}

/* What the linear layers of a role are called; "" where no layer has any. */
static const char *role_name(const qrun_model *model, qr_tensor_role role) {
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        if (!qr_family_layer_has(model->family, &model->config, l, role)) { continue; }
        return qr_lora_target_name(model->family->modules[role]);
    }
    return "";
}

/* How many letters of the longer name are neither at the beginning nor at the end of both; 0 where one begins with the
 * other. */
static size_t difference(const char *name, size_t n_name, const char *known) {
    const size_t n_known = strlen(known), n = n_name < n_known ? n_name : n_known;
    const size_t longer = n_name < n_known ? n_known : n_name;
    size_t first = 0, last = 0;
    while (first < n && name[first] == known[first]) { first++; }
    if (first == n) { return 0; }
    while (last < n - first && name[n_name - 1 - last] == known[n_known - 1 - last]) { last++; }
    return longer - first - last;
}

/* PEFT would not open an adapter on such a matrix. */
static bool is_without_lora(const qrun_model *model, qr_tensor_role role) {
    return role == QR_ROLE_RECURRENT_OUT && model->family->recurrent_out_without_lora;
}

/* A model has few names, so the message has them all, and the nearest one first. */
static qrun_status refuse_target(const qrun_model *model, const char *name, int n_bytes, qr_error *err) {
    const size_t most = (size_t)n_bytes / 2; /* so much may differ */
    char names[320] = "", meant[96] = "";
    size_t least = most + 1;
    for (qr_tensor_role role = QR_ROLE_Q; role <= QR_ROLE_ROUTER; role++) {
        const char *known = role_name(model, role);
        const size_t n = strlen(names);
        if (known[0] == '\0' || is_listed(names, known) || is_without_lora(model, role)) { continue; }
        (void)snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? "," : "", known);
        if (difference(name, (size_t)n_bytes, known) >= least) { continue; }
        least = difference(name, (size_t)n_bytes, known);
        (void)snprintf(meant, sizeof meant, "did you mean %s? ", known);
    }
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "`target_modules`: no linear layer of this %s model is called \"%.*s\"; %sit has %s (or say all, attn or "
        "mlp)",
        model->family->name, n_bytes, name, meant, names);
}

/* A name that matches nothing would leave its layers untrained without a word. */
static qrun_status check_targets(const qrun_model *model, const char *targets, qr_error *err) {
    static const char *const groups[] = {"all", "attn", "mlp", "none"};
    for (size_t i = 0; i < QR_COUNT_OF(groups); i++) {
        if (strcmp(targets, groups[i]) == 0) { return QRUN_OK; }
    }
    for (const char *at = targets; *at != '\0'; at += strspn(at, ",")) {
        const size_t n_bytes = strcspn(at, ",");
        bool known = n_bytes == 0;
        for (qr_tensor_role role = QR_ROLE_Q; role <= QR_ROLE_ROUTER && !known; role++) {
            const char *name = role_name(model, role);
            known = strlen(name) == n_bytes && memcmp(name, at, n_bytes) == 0;
            if (!known || !is_without_lora(model, role)) { continue; }
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                           "`target_modules`: PEFT opens no adapter on %s of a %s model, so none is made", name,
                           model->family->name);
        }
        if (!known) { return refuse_target(model, at, (int)qr_min((int64_t)n_bytes, 60), err); }
        at += n_bytes;
    }
    return QRUN_OK;
}

/* What weighs experts is trained only by its name. */
static bool is_target(const qrun_model *model, const char *targets, qr_tensor_role role) {
    const bool is_router = !qr_role_is_quantised(role);
    if (is_without_lora(model, role)) { return false; }
    if (strcmp(targets, "all") == 0) { return !is_router; }
    if (strcmp(targets, "none") == 0) { return false; }
    if (strcmp(targets, "attn") == 0) { return is_attention(role); }
    if (strcmp(targets, "mlp") == 0) { return !is_attention(role) && !is_router; }
    return is_listed(targets, qr_lora_target_name(model->family->modules[role]));
}

/* The next of the layers "0,1,8-15": *first to *last. False at the end, or where *at is something else. */
static bool next_layers(const char **at, int64_t *first, int64_t *last) {
    enum { MOST_DIGITS = 9 };
    const char *text = *at + strspn(*at, ",");
    int64_t ends[2] = {0, 0};
    int n = 0;
    for (bool goes_on = true; goes_on && n < 2; n++) {
        const size_t n_digits = strspn(text, "0123456789");
        if (n_digits == 0 || n_digits > MOST_DIGITS) { return false; }
        for (size_t i = 0; i < n_digits; i++) { ends[n] = 10 * ends[n] + (text[i] - '0'); }
        text += n_digits;
        goes_on = n == 0 && *text == '-';
        text += goes_on;
    }
    if (*text != ',' && *text != '\0') { return false; }
    *at = text;
    *first = ends[0];
    *last = ends[n - 1];
    return true;
}

static qrun_status check_layers(const qrun_model *model, const char *layers, qr_error *err) {
    const int64_t n_layers = model->shape.n_layers;
    const char *at = layers;
    int64_t first = 0, last = 0;
    bool any = false, fits = true;
    while (at != NULL && fits && next_layers(&at, &first, &last)) {
        fits = first <= last && last < n_layers;
        any = true;
    }
    if (at == NULL || (any && fits && at[strspn(at, ",")] == '\0')) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "`layers_to_transform=%.60s` should be numbers of layers and ranges of them, such as 0,1,8-15; this "
                   "model has the layers 0 to %lld",
                   layers, (long long)n_layers - 1);
}

static bool is_chosen_layer(const qr_lora_options *options, int64_t layer) {
    const char *at = options->layers;
    int64_t first, last;
    while (at != NULL && next_layers(&at, &first, &last)) {
        if (first <= layer && layer <= last) { return true; }
    }
    return options->layers == NULL;
}

typedef struct choose_state {
    qr_parameters *parameters;
    const qr_lora_options *options;
} choose_state;

/* Adds the factors of a pair, whose sizes are set, and the pair. */
static qrun_status add_pair(const choose_state *state, qr_lora_pair *pair, qr_error *err) {
    qr_lora_layers *lora = &state->parameters->lora;
    const struct {
        qr_parameter_kind kind;
        int64_t rows, cols, *offset;
    } factors[] = {{QR_PARAMETER_LORA_A, pair->n_experts * lora->rank, pair->in, &pair->a_offset},
                   {QR_PARAMETER_LORA_B, pair->n_experts * pair->out, lora->rank, &pair->b_offset},
                   {QR_PARAMETER_LORA_MAGNITUDE, 1, pair->out, &pair->magnitude_offset}};
    for (int i = 0; i < (lora->dora ? 3 : 2); i++) {
        const qr_parameter factor = {.kind = factors[i].kind,
                                     .role = pair->role,
                                     .layer = pair->layer,
                                     .rows = factors[i].rows,
                                     .cols = factors[i].cols};
        QR_RETURN_IF_ERROR(qr_parameters_add(state->parameters, factor, factors[i].offset, err));
    }
    if (lora->dora) {
        pair->output_offset = lora->n_outputs;
        lora->n_outputs += qr_round_up(pair->out, OUTPUT_ALIGNMENT);
    }
    lora->pair_of_slot[pair->slot] = lora->n_pairs;
    lora->pairs[lora->n_pairs++] = *pair;
    return QRUN_OK;
}

static qrun_status choose_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                 qr_error *err) {
    choose_state *state = arg;
    qr_lora_layers *lora = &state->parameters->lora;
    lora->pair_of_slot[linear->slot] = -1;
    if (!is_target(state->parameters->model, state->options->targets, role)) { return QRUN_OK; }
    if (!is_chosen_layer(state->options, layer)) { return QRUN_OK; }
    if (qr_whole_is_trained(state->parameters, &linear->weight)) { return QRUN_OK; }
    qr_lora_pair pair = {.linear = linear,
                         .n_experts = 1,
                         .layer = layer,
                         .role = role,
                         .slot = linear->slot,
                         .in = linear->weight.desc.cols,
                         .out = linear->weight.desc.rows};
    return add_pair(state, &pair, err);
}

/* ---- Experts ----------------------------------------------------------------------------------------------------- */

/* As PEFT takes a name for a parameter's: the last parts of its path. "experts" is both. */
static bool expert_name_means(const qrun_model *model, const char *name, size_t n_bytes, qr_tensor_role role) {
    const char *path = qr_expert_parameter_name(model, role);
    const size_t n_path = path != NULL ? strlen(path) : 0;
    if (n_path > 0 && n_bytes == strlen("experts") && memcmp(name, "experts", n_bytes) == 0) { return true; }
    if (n_bytes == 0 || n_bytes > n_path || memcmp(path + n_path - n_bytes, name, n_bytes) != 0) { return false; }
    return n_bytes == n_path || path[n_path - n_bytes - 1] == '.';
}

static bool experts_are_meant(const qrun_model *model, const char *names, qr_tensor_role role) {
    for (const char *at = names; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        const size_t n_bytes = strcspn(at, ",");
        if (expert_name_means(model, at, n_bytes, role)) { return true; }
        at += n_bytes;
    }
    return false;
}

/* A name that matches nothing would leave its experts untrained without a word. PEFT refuses dropout and DoRA too. */
static qrun_status check_expert_names(const qrun_model *model, const qr_lora_options *options, qr_error *err) {
    const char *names = options->expert_targets;
    if (names == NULL) { return QRUN_OK; }
    if (qr_expert_parameter_name(model, QR_ROLE_EXPERT_OUT) == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`target_parameters`: this %s model has no experts that can have LoRA",
                       model->family->name);
    }
    if (options->dropout > 0 || options->dora) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`target_parameters` does not go with `%s`",
                       options->dora ? "dora" : "lora_dropout");
    }
    for (const char *at = names; *at != '\0'; at += strspn(at, ",")) {
        const size_t n_bytes = strcspn(at, ",");
        bool known = n_bytes == 0;
        for (int i = 0; i < QR_EXPERT_PAIRS; i++) {
            known |= expert_name_means(model, at, n_bytes, qr_expert_pair_roles[i]);
        }
        if (!known) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT,
                           "`target_parameters`: \"%.*s\" is none of experts (both), %s and %s", (int)n_bytes, at,
                           qr_expert_parameter_name(model, QR_ROLE_EXPERT_GATE),
                           qr_expert_parameter_name(model, QR_ROLE_EXPERT_OUT));
        }
        at += n_bytes;
    }
    return QRUN_OK;
}

static qrun_status choose_experts(const choose_state *state, qr_error *err) {
    const qrun_model *model = state->parameters->model;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        for (int i = 0; i < QR_EXPERT_PAIRS && layer->expert_gate != NULL; i++) {
            const qr_tensor_role role = qr_expert_pair_roles[i];
            const qr_expert_pair_shape shape = qr_expert_pair_shape_of(model, layer, role);
            state->parameters->lora.pair_of_slot[shape.slot] = -1;
            if (!experts_are_meant(model, state->options->expert_targets, role)) { continue; }
            if (!is_chosen_layer(state->options, l)) { continue; }
            qr_lora_pair pair = {.n_experts = model->shape.n_experts,
                                 .layer = l,
                                 .role = role,
                                 .slot = shape.slot,
                                 .in = shape.in,
                                 .out = shape.out};
            QR_RETURN_IF_ERROR(add_pair(state, &pair, err));
        }
    }
    return QRUN_OK;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

qrun_status qr_lora_parameters_describe(qr_parameters *p, const qr_lora_options *options, qr_error *err) {
    if (options->rank < 1 || options->rank > QR_MAX_LORA_RANK) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`rank` must be from 1 to %d, not %d", QR_MAX_LORA_RANK,
                       options->rank);
    }
    const qrun_model *model = p->model;
    qr_lora_layers *lora = &p->lora;
    lora->rank = options->rank;
    lora->dropout = (float)options->dropout;
    lora->dora = options->dora;
    lora->some_layers = options->layers != NULL;
    lora->has_reference = options->has_reference;
    lora->scale = options->alpha / (options->rslora ? sqrtf((float)options->rank) : (float)options->rank);
    lora->pairs = qr_alloc_array((size_t)model->n_slots, sizeof *lora->pairs);
    lora->pair_of_slot = qr_alloc_array((size_t)model->n_slots, sizeof *lora->pair_of_slot);
    if (lora->pairs == NULL || lora->pair_of_slot == NULL) {
        return qr_fail_memory(err, "the table of adapted layers", (unsigned)model->n_slots * sizeof(qr_lora_pair));
    }
    QR_RETURN_IF_ERROR(check_targets(model, options->targets, err));
    QR_RETURN_IF_ERROR(check_expert_names(model, options, err));
    QR_RETURN_IF_ERROR(check_layers(model, options->layers, err));
    choose_state state = {p, options};
    QR_RETURN_IF_ERROR(qr_model_each_linear(p->model, choose_linear, &state, err));
    QR_RETURN_IF_ERROR(choose_experts(&state, err));
    lora->table_bytes = (size_t)model->n_slots * sizeof(qr_lora_factor);
    if (lora->n_pairs > 0) { return QRUN_OK; }
    if (options->layers != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`layers_to_transform=%.60s`: none of these layers has a matrix that gets LoRA",
                       options->layers);
    }
    return refuse_target(model, options->targets, (int)strlen(options->targets), err);
}

const qr_lora_pair *qr_lora_pair_of_slot(const qr_parameters *p, int32_t slot) {
    const int64_t pair = p->lora.pair_of_slot != NULL ? p->lora.pair_of_slot[slot] : -1;
    return pair >= 0 ? &p->lora.pairs[pair] : NULL;
}

const qr_lora_pair *qr_lora_pair_of(const qr_parameters *p, const qr_linear_layer *linear) {
    return qr_lora_pair_of_slot(p, linear->slot);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* What the lora op reads of a pair whose factors are among `values`. */
static qrun_status put_factor(const qr_parameters *p, const qr_lora_pair *pair, const float *values,
                              qr_lora_factor *table, qr_error *err) {
    const qr_lora_factor factor = {.a = values + pair->a_offset,
                                   .b = values + pair->b_offset,
                                   .rank = p->lora.rank,
                                   .scale = p->lora.scale,
                                   .ratio = p->lora.dora ? p->lora.ratios + pair->output_offset : NULL};
    return p->backend->copy_in(p->backend, table + pair->slot, &factor, sizeof factor, err);
}

static qrun_status put_initial(qr_parameters *p, const qr_lora_pair *pair, uint64_t seed, float *staging,
                               qr_error *err) {
    /* kaiming_uniform with a = √5: uniform in ±√(6 / ((1 + 5) · fan_in)) = ±1/√in. */
    qr_backend *backend = p->backend;
    const double bound = 1.0 / sqrt((double)pair->in);
    const int64_t n = qr_lora_pair_a_floats(p, pair);
    for (int64_t i = 0; i < n; i++) {
        staging[i] = (float)((2.0 * qr_random_uniform(seed, (uint64_t)pair->slot, (uint64_t)i) - 1.0) * bound);
    }
    QR_RETURN_IF_ERROR(backend->copy_in(backend, p->values + pair->a_offset, staging, (size_t)n * sizeof(float), err));
    QR_RETURN_IF_ERROR(put_factor(p, pair, p->values, p->lora.table, err));
    return p->lora.has_reference ? put_factor(p, pair, p->lora.reference_values, p->lora.reference_table, err)
                                 : QRUN_OK;
}

static qr_dora_norm_args norm_args(const qr_parameters *p, const qr_lora_pair *pair) {
    const qr_lora_layers *lora = &p->lora;
    return (qr_dora_norm_args){.weight = &pair->linear->weight,
                               .a = p->values + pair->a_offset,
                               .b = p->values + pair->b_offset,
                               .rank = lora->rank,
                               .scale = lora->scale,
                               .norm = lora->norms + pair->output_offset};
}

/* Whether the pair's matrix is in its stage only while its layer is used, by all ranks. */
static bool is_in_shards(const qr_parameters *p, const qr_lora_pair *pair) {
    return pair->layer >= 0 && qr_layer_stream_is_sharded(p->model);
}

static qrun_status refresh_pair(const qr_parameters *p, const qr_lora_pair *pair, qr_workspace workspace,
                                qr_error *err) {
    qr_dora_norm_args args = norm_args(p, pair);
    args.magnitude = p->values + pair->magnitude_offset;
    args.ratio = p->lora.ratios + pair->output_offset;
    return qr_dora_norm(p->backend, &args, workspace, err);
}

qrun_status qr_lora_parameters_refresh(qr_parameters *p, qr_workspace workspace, qr_error *err) {
    for (int64_t i = 0; p->lora.dora && i < p->lora.n_pairs; i++) {
        const qr_lora_pair *pair = &p->lora.pairs[i];
        if (is_in_shards(p, pair)) { continue; }
        QR_RETURN_IF_ERROR(qr_layer_stream_use_linear(p->model, p->backend, pair->linear, err));
        QR_RETURN_IF_ERROR(refresh_pair(p, pair, workspace, err));
    }
    return QRUN_OK;
}

qrun_status qr_lora_parameters_refresh_layer(qr_parameters *p, int64_t l, qr_workspace workspace, qr_error *err) {
    for (int64_t i = 0; p->lora.dora && i < p->lora.n_pairs; i++) {
        const qr_lora_pair *pair = &p->lora.pairs[i];
        if (pair->layer == l && is_in_shards(p, pair)) { QR_RETURN_IF_ERROR(refresh_pair(p, pair, workspace, err)); }
    }
    return QRUN_OK;
}

/* B is zero as yet, so the norms are those of the frozen matrices. */
static qrun_status put_magnitude(const qr_parameters *p, const qr_lora_pair *pair, qr_workspace workspace,
                                 qr_error *err) {
    const qr_dora_norm_args args = norm_args(p, pair);
    QR_RETURN_IF_ERROR(qr_dora_norm(p->backend, &args, workspace, err));
    return p->backend->copy_within(p->backend, p->values + pair->magnitude_offset, args.norm,
                                   (size_t)pair->out * sizeof(float), err);
}

static qrun_status put_own_magnitude(qr_parameters *p, const qr_lora_pair *pair, qr_error *err) {
    const qr_dora_norm_args args = norm_args(p, pair);
    qr_workspace workspace = {.n_bytes = qr_dora_norm_workspace(p->backend, &args)};
    qrun_status status = QRUN_OK;
    if (is_in_shards(p, pair)) { return QRUN_OK; }
    QR_TRY(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, workspace.n_bytes, &workspace.memory, err));
    QR_TRY(qr_layer_stream_use_linear(p->model, p->backend, pair->linear, err));
    QR_TRY(put_magnitude(p, pair, workspace, err));
out:
    p->backend->memory_destroy(p->backend, QR_MEMORY_DEVICE, workspace.memory, workspace.n_bytes);
    return status;
}

/* A rank that has failed goes on to send the others what they wait for. */
qrun_status qr_lora_parameters_put_magnitudes(const qr_parameters *p, qr_workspace workspace, qr_error *err) {
    qrun_status status = QRUN_OK;
    if (!p->lora.dora || !qr_layer_stream_is_sharded(p->model)) { return QRUN_OK; }
    qr_layer_stream_begin(p->model, p->backend);
    for (int64_t l = 0; l < p->model->shape.n_layers; l++) {
        QR_RETURN_IF_ERROR(qr_layer_stream_use(p->model, p->backend, l, l + 1, status == QRUN_OK ? err : NULL));
        for (int64_t i = 0; i < p->lora.n_pairs && status == QRUN_OK; i++) {
            const qr_lora_pair *pair = &p->lora.pairs[i];
            if (pair->layer == l) { status = put_magnitude(p, pair, workspace, err); }
        }
    }
    return status;
}

static qrun_status reserve_reference(qr_parameters *p, qr_error *err) {
    qr_lora_layers *lora = &p->lora;
    void *memory;
    if (!lora->has_reference) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, qr_parameters_bytes(p), &memory, err));
    lora->reference_values = memory;
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, lora->table_bytes, &memory, err));
    lora->reference_table = memory;
    return QRUN_OK;
}

qrun_status qr_lora_parameters_reserve(qr_parameters *p, qr_error *err) {
    qr_lora_layers *lora = &p->lora;
    void *memory;
    if (lora->n_pairs == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, lora->table_bytes, &memory, err));
    lora->table = memory;
    QR_RETURN_IF_ERROR(reserve_reference(p, err));
    if (!lora->dora) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, qr_lora_norms_bytes(p), &memory, err));
    lora->norms = memory;
    lora->ratios = lora->norms + lora->n_outputs;
    return QRUN_OK;
}

qrun_status qr_lora_parameters_create(qr_parameters *p, uint64_t seed, qr_error *err) {
    const qr_lora_layers *lora = &p->lora;
    float *staging = NULL;
    int64_t most = 0;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_lora_parameters_reserve(p, err));
    for (int64_t i = 0; i < lora->n_pairs; i++) { most = qr_max(most, qr_lora_pair_a_floats(p, &lora->pairs[i])); }
    staging = qr_alloc_array((size_t)most, sizeof *staging);
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "an adapter", (unsigned long long)most * 4)); }
    for (int64_t i = 0; i < lora->n_pairs; i++) {
        QR_TRY(put_initial(p, &lora->pairs[i], seed, staging, err));
        if (lora->dora) { QR_TRY(put_own_magnitude(p, &lora->pairs[i], err)); }
    }
out:
    qr_free(staging);
    return status;
}

qrun_status qr_lora_parameters_keep_reference(const qr_parameters *p, qr_error *err) {
    if (!p->lora.has_reference) { return QRUN_OK; }
    return p->backend->copy_within(p->backend, p->lora.reference_values, p->values, qr_parameters_bytes(p), err);
}

qr_parameters qr_lora_parameters_of_reference(const qr_parameters *p) {
    qr_parameters reference = *p;
    if (p->lora.has_reference) {
        reference.values = p->lora.reference_values;
        reference.lora.table = p->lora.reference_table;
    } else {
        reference.lora = (qr_lora_layers){0};
    }
    return reference;
}
