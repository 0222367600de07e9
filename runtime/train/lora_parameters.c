#include "runtime/train/lora_parameters.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/stored_weight.h"
#include "runtime/model/adapter.h"

#include "runtime/train/whole_parameters.h"

enum { OUTPUT_ALIGNMENT = 16 };

/* ---- Which layers ------------------------------------------------------------------------------------------------ */

static bool is_attention(qr_tensor_role role) { return role >= QR_ROLE_Q && role <= QR_ROLE_ATTN_OUT; }

const char *qr_lora_target_name(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot != NULL ? dot + 1 : module;
}

static bool is_listed(const char *targets, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = targets; *at != '\0'; at += strspn(at, ",")) {
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0) { return true; }
        at += strcspn(at, ",");
    }
    return false;
}

static qrun_status refuse_target(const qr_family *family, const char *name, int n_bytes, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "no linear layer of this %s model is called \"%.*s\"; use all, attn, mlp, or names such as %s",
                   family->name, n_bytes, name, qr_lora_target_name(family->modules[QR_ROLE_ATTN_OUT]));
}

/* A name that matches nothing would leave its layers untrained without a word. */
static qrun_status check_targets(const qr_family *family, const char *targets, qr_error *err) {
    if (strcmp(targets, "all") == 0 || strcmp(targets, "attn") == 0 || strcmp(targets, "mlp") == 0) { return QRUN_OK; }
    for (const char *at = targets; *at != '\0'; at += strspn(at, ",")) {
        const size_t n_bytes = strcspn(at, ",");
        bool known = n_bytes == 0;
        for (int role = QR_ROLE_Q; role < QR_ROLE_COUNT && !known; role++) {
            const char *module = family->modules[role];
            const char *name = module != NULL ? qr_lora_target_name(module) : "";
            known = strlen(name) == n_bytes && memcmp(name, at, n_bytes) == 0;
        }
        if (!known) { return refuse_target(family, at, (int)qr_min((int64_t)n_bytes, 60), err); }
        at += n_bytes;
    }
    return QRUN_OK;
}

static bool is_target(const qrun_model *model, const char *targets, qr_tensor_role role) {
    if (strcmp(targets, "all") == 0) { return true; }
    if (strcmp(targets, "attn") == 0) { return is_attention(role); }
    if (strcmp(targets, "mlp") == 0) { return !is_attention(role); }
    return is_listed(targets, qr_lora_target_name(model->family->modules[role]));
}

typedef struct choose_state {
    qr_parameters *parameters;
    const qr_lora_options *options;
} choose_state;

static qrun_status choose_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                 qr_error *err) {
    choose_state *state = arg;
    qr_lora_layers *lora = &state->parameters->lora;
    lora->pair_of_slot[linear->slot] = -1;
    if (!is_target(state->parameters->model, state->options->targets, role)) { return QRUN_OK; }
    if (qr_whole_is_trained(state->parameters, &linear->weight)) { return QRUN_OK; }
    qr_lora_pair pair = {.linear = linear,
                         .layer = layer,
                         .role = role,
                         .in = linear->weight.desc.cols,
                         .out = linear->weight.desc.rows};
    const struct {
        qr_parameter_kind kind;
        int64_t rows, cols, *offset;
    } factors[] = {{QR_PARAMETER_LORA_A, lora->rank, pair.in, &pair.a_offset},
                   {QR_PARAMETER_LORA_B, pair.out, lora->rank, &pair.b_offset},
                   {QR_PARAMETER_LORA_MAGNITUDE, 1, pair.out, &pair.magnitude_offset}};
    for (int i = 0; i < (lora->dora ? 3 : 2); i++) {
        const qr_parameter factor = {
            .kind = factors[i].kind, .role = role, .layer = layer, .rows = factors[i].rows, .cols = factors[i].cols};
        QR_RETURN_IF_ERROR(qr_parameters_add(state->parameters, factor, factors[i].offset, err));
    }
    if (lora->dora) {
        pair.output_offset = lora->n_outputs;
        lora->n_outputs += qr_round_up(pair.out, OUTPUT_ALIGNMENT);
    }
    lora->pair_of_slot[linear->slot] = lora->n_pairs;
    lora->pairs[lora->n_pairs++] = pair;
    return QRUN_OK;
}

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
    lora->scale = options->alpha / (options->rslora ? sqrtf((float)options->rank) : (float)options->rank);
    lora->pairs = qr_alloc_array((size_t)model->n_slots, sizeof *lora->pairs);
    lora->pair_of_slot = qr_alloc_array((size_t)model->n_slots, sizeof *lora->pair_of_slot);
    if (lora->pairs == NULL || lora->pair_of_slot == NULL) {
        return qr_fail_memory(err, "the table of adapted layers", (unsigned)model->n_slots * sizeof(qr_lora_pair));
    }
    QR_RETURN_IF_ERROR(check_targets(model->family, options->targets, err));
    choose_state state = {p, options};
    QR_RETURN_IF_ERROR(qr_model_each_linear(p->model, choose_linear, &state, err));
    lora->table_bytes = (size_t)model->n_slots * sizeof(qr_lora_factor);
    if (lora->n_pairs > 0) { return QRUN_OK; }
    return refuse_target(model->family, options->targets, (int)strlen(options->targets), err);
}

const qr_lora_pair *qr_lora_pair_of(const qr_parameters *p, const qr_linear_layer *linear) {
    const int64_t pair = p->lora.pair_of_slot != NULL ? p->lora.pair_of_slot[linear->slot] : -1;
    return pair >= 0 ? &p->lora.pairs[pair] : NULL;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static qrun_status put_initial(qr_parameters *p, const qr_lora_pair *pair, uint64_t seed, float *staging,
                               qr_error *err) {
    /* kaiming_uniform with a = √5: uniform in ±√(6 / ((1 + 5) · fan_in)) = ±1/√in. */
    qr_backend *backend = p->backend;
    const double bound = 1.0 / sqrt((double)pair->in);
    for (int64_t i = 0; i < p->lora.rank * pair->in; i++) {
        staging[i] = (float)((2.0 * qr_random_uniform(seed, (uint64_t)pair->linear->slot, (uint64_t)i) - 1.0) * bound);
    }
    const qr_lora_factor factor = {.a = p->values + pair->a_offset,
                                   .b = p->values + pair->b_offset,
                                   .rank = p->lora.rank,
                                   .scale = p->lora.scale,
                                   .ratio = p->lora.dora ? p->lora.ratios + pair->output_offset : NULL};
    QR_RETURN_IF_ERROR(backend->copy_in(backend, p->values + pair->a_offset, staging,
                                        (size_t)(p->lora.rank * pair->in) * sizeof(float), err));
    return backend->copy_in(backend, p->lora.table + pair->linear->slot, &factor, sizeof factor, err);
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

qrun_status qr_lora_parameters_refresh(qr_parameters *p, qr_workspace workspace, qr_error *err) {
    for (int64_t i = 0; p->lora.dora && i < p->lora.n_pairs; i++) {
        const qr_lora_pair *pair = &p->lora.pairs[i];
        qr_dora_norm_args args = norm_args(p, pair);
        args.magnitude = p->values + pair->magnitude_offset;
        args.ratio = p->lora.ratios + pair->output_offset;
        QR_RETURN_IF_ERROR(qr_dora_norm(p->backend, &args, workspace, err));
    }
    return QRUN_OK;
}

/* B is zero as yet, so the norms are those of the frozen matrices. */
static qrun_status put_magnitude(qr_parameters *p, const qr_lora_pair *pair, qr_error *err) {
    const qr_dora_norm_args args = norm_args(p, pair);
    qr_workspace workspace = {.n_bytes = qr_dora_norm_workspace(p->backend, &args)};
    qrun_status status = QRUN_OK;
    QR_TRY(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, workspace.n_bytes, &workspace.memory, err));
    QR_TRY(qr_dora_norm(p->backend, &args, workspace, err));
    QR_TRY(p->backend->copy_within(p->backend, p->values + pair->magnitude_offset, args.norm,
                                   (size_t)pair->out * sizeof(float), err));
out:
    p->backend->memory_destroy(p->backend, QR_MEMORY_DEVICE, workspace.memory, workspace.n_bytes);
    return status;
}

qrun_status qr_lora_parameters_reserve(qr_parameters *p, qr_error *err) {
    qr_lora_layers *lora = &p->lora;
    void *memory;
    if (lora->n_pairs == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, lora->table_bytes, &memory, err));
    lora->table = memory;
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
    for (int64_t i = 0; i < lora->n_pairs; i++) { most = qr_max(most, lora->pairs[i].in); }
    staging = qr_alloc_array((size_t)(most * lora->rank), sizeof *staging);
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "an adapter", (unsigned long long)(most * lora->rank) * 4)); }
    for (int64_t i = 0; i < lora->n_pairs; i++) {
        QR_TRY(put_initial(p, &lora->pairs[i], seed, staging, err));
        if (lora->dora) { QR_TRY(put_magnitude(p, &lora->pairs[i], err)); }
    }
out:
    qr_free(staging);
    return status;
}
