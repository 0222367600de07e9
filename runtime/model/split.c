#include "runtime/model/split.h"

#include <stdio.h>

#include "base/sizes.h"

/* ---- What can be split ------------------------------------------------------------------------------------------- */

/* Ranks have so many heads each, or so many ranks each head. */
static bool heads_or_ranks_divide(int64_t n_heads, int32_t n_ranks) {
    return n_heads % n_ranks == 0 || n_ranks % n_heads == 0;
}

/* Of the gated delta rule, each key head has as many value heads; of a convolution, channels are dealt out; of a state
 * space heads, and what several of them read as heads for keys are. */
static bool recurrent_divides(const qr_recurrent_shape *recurrent, int32_t n_ranks) {
    switch (recurrent->kind) {
        case QR_RECURRENT_NONE: return true;
        case QR_RECURRENT_CONV: return recurrent->channels % n_ranks == 0;
        case QR_RECURRENT_DELTA: return recurrent->n_key_heads % n_ranks == 0;
        case QR_RECURRENT_SPACE:
            return recurrent->n_value_heads % n_ranks == 0 && heads_or_ranks_divide(recurrent->n_key_heads, n_ranks);
    }
    return false;
}

/* Whether every layer's heads are so many times a number of ranks, or as many ranks share each head for keys and
 * values. */
static bool heads_divide(const qrun_model *model, int32_t n_ranks) {
    if (!recurrent_divides(&model->shape.recurrent, n_ranks)) { return false; }
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const qr_layer_heads heads = qr_model_config_heads(&model->config, l);
        if (heads.n_heads % n_ranks != 0 || !heads_or_ranks_divide(heads.n_kv_heads, n_ranks)) { return false; }
    }
    return true;
}

static qrun_status refuse_heads(const qrun_model *model, int32_t n_ranks, qr_error *err) {
    char possible[128] = "", others[64] = "";
    size_t n = 0;
    if (model->shape.recurrent.kind == QR_RECURRENT_DELTA) {
        (void)snprintf(others, sizeof others, " and %lld key heads of the gated delta rule",
                       (long long)model->shape.recurrent.n_key_heads);
    } else if (model->shape.recurrent.kind == QR_RECURRENT_CONV) {
        (void)snprintf(others, sizeof others, " and %lld channels of convolutions",
                       (long long)model->shape.recurrent.channels);
    } else if (model->shape.recurrent.kind == QR_RECURRENT_SPACE) {
        (void)snprintf(others, sizeof others, " and %lld heads of state spaces in groups of %lld",
                       (long long)model->shape.recurrent.n_value_heads,
                       (long long)(model->shape.recurrent.n_value_heads / model->shape.recurrent.n_key_heads));
    }
    for (int32_t i = 2; i <= model->config.n_heads && n + 16 < sizeof possible; i++) {
        if (!heads_divide(model, i)) { continue; }
        n += (size_t)snprintf(possible + n, sizeof possible - n, "%s%d", n > 0 ? ", " : "", (int)i);
    }
    if (n == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`tensor_parallel=%d` is not possible: the model's %lld heads with %lld for keys and values%s "
                       "cannot be dealt out evenly; use one device",
                       (int)n_ranks, (long long)model->config.n_heads, (long long)model->config.n_kv_heads, others);
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "`tensor_parallel=%d` is not possible: the model's %lld heads, with %lld for keys and values%s, are "
                   "dealt out whole; possible are: %s",
                   (int)n_ranks, (long long)model->config.n_heads, (long long)model->config.n_kv_heads, others,
                   possible);
}

static qrun_status check(const qrun_model *model, const qrun_model_params *params, qr_error *err) {
    const int32_t n = params->tensor_parallel;
    if (n > QR_MAX_RANKS || params->tensor_rank < 0 || params->tensor_rank >= n) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`tensor_parallel=%d` with `tensor_rank=%d` is out of range: at most %d", (int)n,
                       (int)params->tensor_rank, QR_MAX_RANKS);
    }
    if (params->trainable || params->shard_parameters) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`tensor_parallel` is for generating; train without it");
    }
    if (params->offload_experts == QRUN_OFFLOAD_ALL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`offload_experts` does not go with `tensor_parallel`: each rank has rows of every expert; use "
                       "`offload_parameters`, or more ranks");
    }
    return heads_divide(model, n) ? QRUN_OK : refuse_heads(model, n, err);
}

/* This rank's heads or channels, and what there is of them. B and C of a state space are those of its groups. */
static void split_recurrent(const qr_split *split, qr_recurrent_shape *shape) {
    const int64_t n_groups = shape->n_key_heads, n_own = qr_split_kv_heads(split, n_groups);
    const int64_t of_group = shape->kind == QR_RECURRENT_SPACE ? 2 * shape->key_dim : 0;
    shape->columns = (shape->columns - of_group * n_groups) / split->n_ranks + of_group * n_own;
    shape->channels = (shape->channels - of_group * n_groups) / split->n_ranks + of_group * n_own;
    shape->values /= split->n_ranks;
    shape->n_value_heads /= split->n_ranks;
    shape->n_key_heads = n_own;
}

bool qr_split_shares_groups(const qrun_model *model) {
    const qr_recurrent_config *recurrent = &model->config.recurrent;
    return model->split.n_ranks > 0 && model->shape.recurrent.kind == QR_RECURRENT_SPACE && !recurrent->without_norm &&
           recurrent->n_key_heads % model->split.n_ranks != 0;
}

qrun_status qr_split_model(qrun_model *model, const qrun_model_params *params, qr_error *err) {
    qr_model_shape *shape = &model->shape;
    const int32_t n = params->tensor_parallel;
    if (n < 0) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "`tensor_parallel` cannot be negative"); }
    if (n <= 1) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(check(model, params, err));
    const qr_collectives *ranks = model->context->ranks;
    model->split = (qr_split){.n_ranks = n, .rank = ranks != NULL ? ranks->rank : params->tensor_rank};
    shape->n_heads /= n;
    shape->n_kv_heads = qr_split_kv_heads(&model->split, shape->n_kv_heads);
    shape->widest_qkv = 0;
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const qr_layer_heads heads = qr_model_config_heads(&model->config, l);
        const int64_t n_heads = heads.n_heads / n + 2 * qr_split_kv_heads(&model->split, heads.n_kv_heads);
        shape->widest_qkv = qr_max(shape->widest_qkv, n_heads * heads.head_dim);
    }
    split_recurrent(&model->split, &shape->recurrent);
    return QRUN_OK;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

enum { WIDEST_UNIT = 64 };

int64_t qr_split_unit(const qr_split *split, int64_t n_rows) {
    int64_t unit = WIDEST_UNIT;
    while (unit > 1 && n_rows < unit * split->n_ranks) { unit /= 2; }
    return unit;
}

/* Rows [first, first + n) of a module, dealt out in units. */
static void add_range(const qr_split *split, int64_t first, int64_t n, int64_t unit, qr_row_share *share) {
    const int64_t begin = qr_split_begin(split, n, unit, split->rank);
    const int64_t end = qr_split_begin(split, n, unit, split->rank + 1);
    share->ranges[share->n_ranges++] = (qr_row_range){first + begin, end - begin};
}

int64_t qr_split_own(const qr_split *split, int64_t n) {
    if (split->n_ranks == 0) { return n; }
    const int64_t unit = qr_split_unit(split, n);
    return qr_split_begin(split, n, unit, split->rank + 1) - qr_split_begin(split, n, unit, split->rank);
}

/* As many rows for every rank: those of its heads. */
static void add_heads(const qr_split *split, int64_t first, int64_t n, qr_row_share *share) {
    add_range(split, first, n, n / split->n_ranks, share);
}

/* Rows of n_kv_heads heads for keys, or for values. */
static void add_kv_heads(const qr_split *split, int64_t first, int64_t n, int64_t n_kv_heads, qr_row_share *share) {
    const int64_t head = n / n_kv_heads;
    share->ranges[share->n_ranges++] = (qr_row_range){first + qr_split_first_kv_head(split, n_kv_heads) * head,
                                                      qr_split_kv_heads(split, n_kv_heads) * head};
}

/* Queries, keys and values of the gated delta rule side by side, each by heads: of the matrix that makes them, or of
 * the convolution, which has `width` elements for each. */
static void add_delta_qkv(const qrun_model *model, int64_t n, int64_t width, qr_row_share *share) {
    const qr_recurrent_shape *delta = &model->shape.recurrent;
    const int64_t keys = delta->n_key_heads * model->split.n_ranks * delta->key_dim * width;
    add_heads(&model->split, 0, keys, share);
    add_heads(&model->split, keys, keys, share);
    add_heads(&model->split, 2 * keys, n - 2 * keys, share);
}

/* x, B and C of a state space side by side, `width` elements for each: from element `first` on. */
static void add_space_channels(const qrun_model *model, int64_t first, int64_t width, qr_row_share *share) {
    const qr_recurrent_shape all = qr_recurrent_shape_of(&model->config);
    const int64_t values = all.values * width, shared = all.n_key_heads * all.key_dim * width;
    add_heads(&model->split, first, values, share);
    add_kv_heads(&model->split, first + values, shared, all.n_key_heads, share);
    add_kv_heads(&model->split, first + values + shared, shared, all.n_key_heads, share);
}

/* Gates, then channels, then steps. */
static void add_space_in(const qrun_model *model, qr_row_share *share) {
    const qr_recurrent_shape all = qr_recurrent_shape_of(&model->config);
    add_heads(&model->split, 0, all.values, share);
    add_space_channels(model, all.values, 1, share);
    add_heads(&model->split, all.values + all.channels, all.n_value_heads, share);
}

/* The gates and x of a convolution in one matrix. */
static void add_conv_in(const qr_split *split, int64_t n, qr_row_share *share) {
    for (int64_t part = 0; part < 3; part++) { add_heads(split, part * (n / 3), n / 3, share); }
}

/* The channels of a convolution, `width` elements each. */
static void add_conv(const qrun_model *model, int64_t n, int64_t width, qr_row_share *share) {
    switch (model->shape.recurrent.kind) {
        case QR_RECURRENT_DELTA: add_delta_qkv(model, n, width, share); break;
        case QR_RECURRENT_SPACE: add_space_channels(model, 0, width, share); break;
        default: add_heads(&model->split, 0, n, share); break;
    }
}

/* The norm of what a state space gives is over the values of a group; that of the gated delta rule is every head's. */
static bool is_norm_by_heads(const qrun_model *model) {
    return model->shape.recurrent.kind == QR_RECURRENT_SPACE && !qr_split_shares_groups(model);
}

/* Queries, keys and values of attention in one matrix. Families that have one have heads of one size. */
static void add_qkv(const qrun_model *model, int64_t n, qr_row_share *share) {
    const qr_split *split = &model->split;
    const int64_t queries = model->config.n_heads * model->shape.head_dim, keys = (n - queries) / 2;
    add_heads(split, 0, queries, share);
    add_kv_heads(split, queries, keys, model->config.n_kv_heads, share);
    add_kv_heads(split, queries + keys, keys, model->config.n_kv_heads, share);
}

/* Gate and up in one matrix. */
static void add_gate_up(const qr_split *split, int64_t n, qr_row_share *share) {
    const int64_t unit = qr_split_unit(split, n / 2);
    add_range(split, 0, n / 2, unit, share);
    add_range(split, n / 2, n / 2, unit, share);
}

/* How the rows of a role are dealt out. */
typedef enum split_kind {
    WHOLE,
    BY_HEADS,
    BY_KV_HEADS,
    BY_UNITS,
    QKV,
    GATE_UP,
    DELTA_QKV,
    CONV_IN,
    SPACE_IN,
    CONV
} split_kind;

static split_kind kind_of(const qrun_model *model, qr_tensor_role role) {
    switch (role) {
        case QR_ROLE_RECURRENT_NORM: return is_norm_by_heads(model) ? BY_HEADS : WHOLE;
        case QR_ROLE_K:
        case QR_ROLE_V: return BY_KV_HEADS;
        case QR_ROLE_Q: /* and its gates, head by head */
        case QR_ROLE_Q_UP:
        case QR_ROLE_KV_UP: /* keys and values, head by head */
        case QR_ROLE_ATTN_GATE:
        case QR_ROLE_DELTA_Q:
        case QR_ROLE_DELTA_K:
        case QR_ROLE_DELTA_V:
        case QR_ROLE_DELTA_Z:
        case QR_ROLE_DELTA_B:
        case QR_ROLE_DELTA_A:
        case QR_ROLE_DELTA_QKVZ: /* by key heads, as the next */
        case QR_ROLE_DELTA_BA:
        case QR_ROLE_RECURRENT_A_LOG:
        case QR_ROLE_RECURRENT_DT_BIAS:
        case QR_ROLE_SKIP:
        case QR_ROLE_SINKS: return BY_HEADS;
        case QR_ROLE_QKV: return model->family->qkv_by_head ? BY_HEADS : QKV;
        case QR_ROLE_GATE_UP:
        case QR_ROLE_SHARED_GATE_UP: return GATE_UP;
        case QR_ROLE_DELTA_QKV: return DELTA_QKV;
        case QR_ROLE_CONV_IN: return CONV_IN;
        case QR_ROLE_SPACE_IN: return SPACE_IN;
        case QR_ROLE_CONV:
        case QR_ROLE_CONV_BIAS: return CONV;
        case QR_ROLE_Q_DOWN: /* of latents, which every rank needs whole, as the next */
        case QR_ROLE_DELTA_Z_DOWN:
        case QR_ROLE_DELTA_A_DOWN:
        case QR_ROLE_KV_DOWN:
        case QR_ROLE_INPUTS: /* small: split, they would cost two more exchanges a layer */
        case QR_ROLE_INPUT_GATE:
        case QR_ROLE_INPUT_OUT:
        case QR_ROLE_STREAM_IN_1:
        case QR_ROLE_STREAM_IN_2:
        case QR_ROLE_STREAM_IN_3:
        case QR_ROLE_STREAM_OUT_1:
        case QR_ROLE_STREAM_OUT_2:
        case QR_ROLE_STREAM_OUT_3:
        case QR_ROLE_RESIDUAL_DOWN:
        case QR_ROLE_RESIDUAL_UP:
        case QR_ROLE_ROUTER: /* small, and each rank routes by itself, as the next */
        case QR_ROLE_SHARED_SHARE: return WHOLE;
        case QR_ROLE_HEAD:
        case QR_ROLE_EXPERT_GATE_BIAS:
        case QR_ROLE_EXPERT_UP_BIAS:
        case QR_ROLE_EXPERT_OUT_BIAS: return BY_UNITS;
        default: return role < QR_ROLE_Q ? WHOLE : BY_UNITS;
    }
}

int64_t qr_split_rows(const qrun_model *model, int64_t layer, qr_tensor_role role, int64_t n, qr_row_share *share) {
    const qr_split *split = &model->split;
    const int64_t n_kv_heads = qr_model_config_heads(&model->config, layer).n_kv_heads;
    const split_kind kind = kind_of(model, role);
    *share = (qr_row_share){0};
    if (split->n_ranks == 0 || kind == WHOLE) { return n; }
    share->all = n;
    switch (kind) {
        case BY_HEADS: add_heads(split, 0, n, share); break;
        case BY_KV_HEADS: add_kv_heads(split, 0, n, n_kv_heads, share); break;
        case QKV: add_qkv(model, n, share); break;
        case GATE_UP: add_gate_up(split, n, share); break;
        case DELTA_QKV: add_delta_qkv(model, n, 1, share); break;
        case CONV_IN: add_conv_in(split, n, share); break;
        case SPACE_IN: add_space_in(model, share); break;
        case CONV: add_conv(model, n, role == QR_ROLE_CONV ? model->shape.recurrent.kernel : 1, share); break;
        default: add_range(split, 0, n, qr_split_unit(split, n), share); break;
    }
    return qr_row_share_rows(share);
}

/* Whether every range of the share begins where n_blocks of NF4 do, in the whole matrix and in the share. */
static bool begins_with(const qr_module *module, int64_t n_blocks) {
    const qr_weight_desc *desc = &module->matrix->desc;
    const qr_row_share *share = module->share;
    int64_t n_before = 0;
    for (int32_t i = 0; i < share->n_ranges; i++) {
        const int64_t n_elements = n_blocks * desc->block;
        const bool begins = share->ranges[i].first * desc->cols % n_elements == 0;
        if (!begins || n_before * desc->cols % n_elements != 0) { return false; }
        n_before += share->ranges[i].n;
    }
    return true;
}

qrun_status qr_split_format(const qrun_model *model, const qr_module *module, qr_error *err) {
    qr_row_share *share = module->share;
    qr_weight_desc *desc = &module->matrix->desc;
    if (!qr_module_is_part(module)) { return QRUN_OK; }
    share->whole_format = desc->format;
    if (!qr_weight_is_nf4(desc->format)) { return QRUN_OK; }
    if (!begins_with(module, 1)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "`tensor_parallel=%d`: the rows of %s, %lld wide, cannot be cut between blocks of %d; use fewer "
                       "devices or another `quant`",
                       (int)model->split.n_ranks, qr_module_short_name(model->family, module->role),
                       (long long)desc->cols, desc->block);
    }
    if (desc->format == QR_WEIGHT_NF4_DQ && !begins_with(module, QR_NESTED_BLOCK)) { desc->format = QR_WEIGHT_NF4; }
    return QRUN_OK;
}

void qr_split_memory(const qrun_model *model, qr_device_memory *memory) {
    const qr_collectives *ranks = model->split.n_ranks > 0 ? model->context->ranks : NULL;
    const int64_t n = ranks != NULL ? qr_max(ranks->n_local_ranks, 1) : 1;
    memory->host_free_bytes /= n;
    if (!memory->is_separate) { memory->free_bytes /= n; }
}

/* ---- Meeting the other ranks ------------------------------------------------------------------------------------- */

qrun_status qr_split_check_ranks(const qrun_context *context, const qrun_model_params *params, qr_error *err) {
    const int32_t n = params->tensor_parallel, there = context->ranks != NULL ? context->ranks->n_ranks : 1;
    if (n <= 1 || n == there) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "`tensor_parallel=%d` needs %d ranks, and %d %s launched", (int)n, (int)n,
                   (int)there, there > 1 ? "were" : "was");
}

qrun_status qr_split_agree(const qrun_context *context, const qrun_model_params *params, qrun_status own,
                           qr_error *err) {
    const bool together = context->ranks != NULL && (params->tensor_parallel > 1 || !context->ranks->settled);
    return together ? qr_agree(context->ranks, own, err) : own;
}

/* Whether rank 0 makes a session. */
static qrun_status tell(const qrun_model *model, int64_t *begins, qr_error *err) {
    return qr_broadcast(model->context->ranks, begins, sizeof *begins, 0, err);
}

qrun_status qr_split_meet(qrun_model *model, qr_error *err) {
    int64_t begins = 1;
    model->split_waits = false;
    QR_RETURN_IF_ERROR(tell(model, &begins, err));
    if (begins != 0) { return QRUN_OK; }
    qr_collectives_settle(model->context->ranks);
    return qr_fail(err, QRUN_ERROR_RANK, "rank 0 ended before it made a session");
}

void qr_split_part(qrun_model *model) {
    int64_t begins = 0;
    if (!model->split_waits || model->split.rank != 0 || model->context->ranks->lost) { return; }
    (void)tell(model, &begins, NULL);
    qr_collectives_settle(model->context->ranks);
}
