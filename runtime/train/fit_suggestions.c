/* What to say when a run does not fit into its budget: the options nearest to those given that would, found by planning
 * them. First one option alone, for each that could help; where that gives little choice, several together. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/sizes.h"
#include "base/units.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/model_open.h"
#include "runtime/train/trainer.h"

enum { MIN_SEQ_TOKENS = 16 };

/* A run with other options: a copy of the trainer that is only planned with. */
typedef struct variant {
    qrun_trainer trainer;
    int64_t batch_size, seq_tokens;
    qr_parameter *list; /* of its own, where gradients are placed anew; NULL: the trainer's */
} variant;

typedef struct search {
    const qrun_trainer *trainer;
    qr_buffer found; /* "`seq_len=512` (1.2 GiB), …" */
    int n_found;
} search;

static variant variant_of(const qrun_trainer *trainer) {
    return (variant){*trainer, trainer->settings.batch_size, trainer->settings.seq_tokens, NULL};
}

/* The least that the policy allows: nothing is kept that need not be, and tiles are small. */
static void keep_least(variant *v) {
    v->trainer.policy = (qr_recompute_policy){.kind = QR_RECOMPUTE_AUTO, .n = 0, .offload = v->trainer.policy.offload};
    v->trainer.policy.tile_rows = qr_trainer_least_tile_rows(&v->trainer, &v->trainer.policy);
}

static void set_tokens(variant *v, int64_t n_tokens) { v->trainer.settings.batch_tokens = n_tokens; }

/* False: it cannot be planned. */
static bool plan_of(const variant *v, qr_plan *plan) {
    qr_run_cost cost;
    return qr_trainer_plan_run(&v->trainer, plan, &cost, NULL) == QRUN_OK;
}

static int64_t bytes_of(const variant *v) {
    qr_plan plan;
    return plan_of(v, &plan) ? qr_plan_total(&plan) : 0;
}

static bool fits(const search *s, const variant *v) {
    qr_plan plan;
    return plan_of(v, &plan) && qr_train_plan_fits(&plan, &s->trainer->budget);
}

static void add(search *s, const variant *v, const char *options) {
    qr_buffer_append_format(&s->found, "%s%s (%s)", s->n_found > 0 ? ", " : "", options,
                            qr_format_bytes(bytes_of(v)).text);
    s->n_found++;
}

/* ---- One option -------------------------------------------------------------------------------------------------- */

static void try_policy(search *s) {
    variant v = variant_of(s->trainer);
    keep_least(&v);
    if (s->trainer->policy.kind != QR_RECOMPUTE_AUTO && fits(s, &v)) { add(s, &v, "`checkpointing=auto`"); }
}

static const struct {
    qrun_optimizer kind;
    const char *options;
} smaller_optimizers[] = {{QRUN_OPTIMIZER_ADAMW8BIT, "`optimizer=adamw8bit`"},
                          {QRUN_OPTIMIZER_ADAFACTOR, "`optimizer=adafactor`"}};

static void try_optimizer(search *s) {
    for (size_t i = 0; i < QR_COUNT_OF(smaller_optimizers); i++) {
        variant v = variant_of(s->trainer);
        v.trainer.settings.optimizer.kind = smaller_optimizers[i].kind;
        if (s->trainer->settings.optimizer.kind == QRUN_OPTIMIZER_ADAMW && fits(s, &v)) {
            add(s, &v, smaller_optimizers[i].options);
            return;
        }
    }
}

/* Where host memory is apart from the device's; else it would gain nothing. The activations of the policy that keeps
 * least are those that gain most. */
static void offload_all(variant *v) {
    v->trainer.settings.optimizer.offload = true;
    v->trainer.policy.offload = qr_recompute_policy_has_inputs(&v->trainer.policy);
}

static const char *offload_option(const variant *v) {
    const bool activations = v->trainer.policy.offload;
    if (v->trainer.settings.offload_gradients) {
        return activations ? "`offload_gradients,offload_activations`" : "`offload_gradients`";
    }
    return activations ? "`offload_optimizer,offload_activations`" : "`offload_optimizer`";
}

static void try_offload(search *s) {
    variant optimizer = variant_of(s->trainer), all = optimizer;
    if (!s->trainer->memory.is_separate) { return; }
    optimizer.trainer.settings.optimizer.offload = true;
    offload_all(&all);
    if (!s->trainer->settings.optimizer.offload && fits(s, &optimizer)) {
        add(s, &optimizer, offload_option(&optimizer));
    } else if (fits(s, &all)) {
        add(s, &all, offload_option(&all));
    }
}

/* Of a run of all weights, on one rank. False: it has them there already, or cannot. Free v->list afterwards. */
static bool offload_gradients(variant *v) {
    qr_parameters *p = &v->trainer.parameters;
    qr_train_settings *settings = &v->trainer.settings;
    const bool can = v->trainer.memory.is_separate && settings->whole.full && settings->n_ranks == 1;
    if (!can || settings->offload_gradients) { return false; }
    v->list = qr_alloc_array((size_t)p->n, sizeof *v->list);
    if (v->list == NULL) { return false; }
    memcpy(v->list, p->list, (size_t)p->n * sizeof *v->list);
    p->list = v->list;
    settings->offload_gradients = settings->optimizer.offload = true;
    qr_parameters_hold_on_host(p, v->trainer.model->context->processor);
    return true;
}

static void try_gradients(search *s) {
    variant v = variant_of(s->trainer);
    if (offload_gradients(&v) && fits(s, &v)) { add(s, &v, offload_option(&v)); }
    qr_free(v.list);
}

/* Fewer unfinished sums; the bits are then others. */
static void try_sums(search *s) {
    variant v = variant_of(s->trainer);
    int64_t *n_sums = &v.trainer.settings.grad_sums;
    char text[48];
    while (*n_sums > 1) {
        *n_sums /= 2;
        if (!fits(s, &v)) { continue; }
        (void)snprintf(text, sizeof text, "`grad_sums=%lld`", (long long)*n_sums);
        add(s, &v, text);
        return;
    }
}

/* Sets the tokens of a batch from one number: rows, tokens of a row, or tokens of a batch of grouped examples. */
typedef void (*set_size)(variant *v, int64_t n);

static void set_batch_size(variant *v, int64_t n) {
    v->batch_size = n;
    set_tokens(v, v->batch_size * v->seq_tokens);
}

static void set_seq_tokens(variant *v, int64_t n) {
    v->seq_tokens = n;
    set_tokens(v, v->batch_size * v->seq_tokens);
}

typedef struct size_search {
    const search *s;
    variant *v;
    set_size set;
    int64_t unit;
} size_search;

static qrun_status fits_units(void *arg, int64_t n, bool *fit, qr_error *err) {
    const size_search *z = arg;
    (void)err;
    z->set(z->v, n * z->unit);
    *fit = fits(z->s, z->v);
    return QRUN_OK;
}

/* The largest multiple of `unit` from `low` to below `high` that fits, set in *v; 0: none does. */
static int64_t largest(const search *s, variant *v, set_size set, int64_t low, int64_t high, int64_t unit) {
    size_search z = {s, v, set, unit};
    const int64_t least = qr_max(low / unit, 1);
    int64_t n_units;
    (void)qr_plan_largest(least, qr_ceil_div(high, unit) - 1, fits_units, &z, &n_units, NULL);
    const int64_t n = n_units * unit;
    if (n < low) { return 0; }
    set(v, n);
    return n;
}

static int64_t seq_unit(int64_t seq_tokens) { return seq_tokens > 512 ? 128 : MIN_SEQ_TOKENS; }

/* Of the variant, if it fits when its batch is made of other numbers. */
static void try_size(search *s, set_size set, const char *field, int64_t low, int64_t high, int64_t unit) {
    variant v = variant_of(s->trainer);
    char text[48];
    const int64_t n = largest(s, &v, set, low, high, unit);
    (void)snprintf(text, sizeof text, "`%s=%lld`", field, (long long)n);
    if (n > 0) { add(s, &v, text); }
}

static void try_sizes(search *s) {
    const qr_train_settings *settings = &s->trainer->settings;
    if (settings->batching == QR_BATCH_GROUP) {
        const qr_dataset *dataset = s->trainer->dataset; /* a plan alone has none */
        const int64_t longest = dataset != NULL ? qr_max(qr_dataset_get_info(dataset)->longest_tokens, 2) : 2;
        try_size(s, set_tokens, "batch_tokens", longest, settings->batch_tokens, 1);
        return;
    }
    try_size(s, set_batch_size, "batch_size", 1, settings->batch_size, 1);
    try_size(s, set_seq_tokens, "seq_len", MIN_SEQ_TOKENS, settings->seq_tokens, seq_unit(settings->seq_tokens));
}

/* The model with its layers in 4 bits, described but not opened. */
static void try_quant(search *s) {
    const qrun_model *model = s->trainer->model;
    const bool small = model->linear_format == QR_WEIGHT_NF4_DQ || model->linear_format == QR_WEIGHT_NF4;
    if (small || model->prequantized || s->trainer->parameters.whole.n > 0 || model->content_hash == 0) { return; }
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = model->folder;
    params.quant = QRUN_QUANT_NF4_DQ;
    params.dtype = model->act_dtype == QR_DTYPE_F32   ? QRUN_DTYPE_F32
                   : model->act_dtype == QR_DTYPE_F16 ? QRUN_DTYPE_F16
                                                      : QRUN_DTYPE_BF16;
    params.quant_head_int8 = model->head.desc.format == QR_WEIGHT_INT8;
    params.quant_embedding_int8 = model->embedding.desc.format == QR_WEIGHT_INT8;
    const bool is_offloaded = model->stream != NULL && !qr_layer_stream_is_sharded(model);
    params.offload_parameters = is_offloaded ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    params.offload_experts = model->host_experts.used ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    params.expert_compute = QRUN_EXPERT_COMPUTE_DEVICE;
    qrun_model *other = qr_alloc_zeroed(sizeof *other);
    qr_safetensors *source = NULL;
    if (other == NULL) { return; }
    variant v = variant_of(s->trainer);
    v.trainer.model = other;
    qrun_status status = qr_model_prepare(model->context, &params, other, &source, NULL);
    if (status == QRUN_OK && qr_layer_stream_is_sharded(model)) {
        status = qr_layer_stream_shard(other, NULL, s->trainer->settings.n_ranks, NULL);
    }
    if (status == QRUN_OK && fits(s, &v)) { add(s, &v, "`quant=nf4-dq`"); }
    qr_safetensors_close(source);
    qr_model_release(other);
    qr_free(other);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

/* Of options that are not given already. */
static void add_option(qr_buffer *options, const char *option) {
    qr_buffer_append_format(options, "%s%s", options->size > 0 ? " " : "", option);
}

/* Everything that can be small is, and the sequences as long as they may be then. False: even that does not fit. */
static bool try_together(search *s) {
    const qr_train_settings *settings = &s->trainer->settings;
    variant v = variant_of(s->trainer);
    qr_buffer options = {0};
    if (v.trainer.policy.kind != QR_RECOMPUTE_AUTO) { add_option(&options, "`checkpointing=auto`"); }
    keep_least(&v);
    if (settings->optimizer.kind == QRUN_OPTIMIZER_ADAMW) {
        v.trainer.settings.optimizer.kind = QRUN_OPTIMIZER_ADAMW8BIT;
        add_option(&options, "`optimizer=adamw8bit`");
    }
    if (s->trainer->memory.is_separate) {
        offload_all(&v);
        (void)offload_gradients(&v);
        add_option(&options, offload_option(&v));
    }
    if (settings->grad_sums > 1) {
        v.trainer.settings.grad_sums = 1;
        add_option(&options, "`grad_sums=1`");
    }
    if (settings->batching == QR_BATCH_PACK && settings->batch_size > 1) {
        set_batch_size(&v, 1);
        add_option(&options, "`batch_size=1`");
    }
    if (settings->batching == QR_BATCH_PACK && !fits(s, &v)) {
        const int64_t high = settings->seq_tokens;
        const int64_t n = largest(s, &v, set_seq_tokens, MIN_SEQ_TOKENS, high, seq_unit(high));
        set_seq_tokens(&v, n > 0 ? n : qr_min(high, MIN_SEQ_TOKENS));
        char option[48];
        (void)snprintf(option, sizeof option, "`seq_len=%lld`", (long long)v.seq_tokens);
        add_option(&options, option);
    }
    const bool found = fits(s, &v);
    if (qr_buffer_ok(&options) && (found || s->n_found == 0)) {
        add(s, &v, options.size > 0 ? options.data : "as it is");
    }
    qr_buffer_free(&options);
    qr_free(v.list);
    return found;
}

qrun_status qr_trainer_refuse_memory(const qrun_trainer *trainer, qr_error *err) {
    const qr_train_budget *budget = &trainer->budget;
    search s = {.trainer = trainer};
    if (err == NULL) { return QRUN_ERROR_MEMORY; } /* nobody asks what would fit */
    const variant as_given = variant_of(trainer);
    qr_plan plan;
    if (!plan_of(&as_given, &plan)) { return qr_fail(err, QRUN_ERROR_INTERNAL, "a run that was planned has no plan"); }
    const bool of_host = qr_plan_total(&plan) <= budget->bytes;
    const int64_t needed = of_host ? qr_plan_host_total(&plan) : qr_plan_total(&plan);
    try_policy(&s);
    try_optimizer(&s);
    try_offload(&s);
    try_gradients(&s);
    try_sums(&s);
    try_sizes(&s);
    try_quant(&s);
    const bool alone = s.n_found > 0, together = s.n_found < 2 && try_together(&s);
    const qrun_status status = qr_fail(err, QRUN_ERROR_MEMORY, "this run needs %s%s and %s %s; %s: %s%s",
                                       qr_format_bytes(needed).text, of_host ? " of host memory" : "",
                                       of_host                       ? "this machine has"
                                       : budget->given               ? "the budget is"
                                       : trainer->memory.is_separate ? "the GPU has"
                                                                     : "this machine has",
                                       qr_format_bytes(of_host ? budget->host_bytes : budget->bytes).text,
                                       s.n_found > 1       ? "any of these would fit"
                                       : alone || together ? "this would fit"
                                                           : "the least it can be made to need is more",
                                       qr_buffer_ok(&s.found) ? s.found.data : "",
                                       alone || together ? "" : "; a smaller model is needed, or more memory");
    qr_buffer_free(&s.found);
    return status;
}
