#include "runtime/train/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

enum { DEFAULT_RANK = 16, DEFAULT_SEQ_TOKENS = 1024, DEFAULT_KEEP = 2, MAX_DATA_FILES = 1024 };
static const double MAX_DATA_WEIGHT = 1e6;

/* ---- The day ----------------------------------------------------------------------------------------------------- */

void qr_train_settings_date(int64_t now, char date[QR_DATE_BYTES]) {
    const time_t seconds = (time_t)now;
    struct tm day = {0};
    (void)gmtime_r(&seconds, &day);
    (void)snprintf(date, QR_DATE_BYTES, "%04d-%02d-%02d", (day.tm_year + 1900) % 10000, (day.tm_mon + 1) % 100,
                   day.tm_mday % 100);
}

/* The beginning of a day that is written so, in UTC; for NULL that of the day that it is here. */
static qrun_status read_date(const char *date, int64_t *now, qr_error *err) {
    char again[QR_DATE_BYTES] = "";
    struct tm day = {0};
    if (date == NULL) {
        const time_t seconds = time(NULL);
        struct tm here = {0};
        (void)localtime_r(&seconds, &here);
        day.tm_year = here.tm_year, day.tm_mon = here.tm_mon, day.tm_mday = here.tm_mday;
        *now = (int64_t)timegm(&day);
        return QRUN_OK;
    }
    *now = -1;
    if (sscanf(date, "%4d-%2d-%2d", &day.tm_year, &day.tm_mon, &day.tm_mday) == 3) {
        day.tm_year -= 1900;
        day.tm_mon -= 1;
        *now = (int64_t)timegm(&day);
        qr_train_settings_date(*now, again);
    }
    if (strcmp(again, date) == 0 && *now >= 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "`date`: \"%.40s\" is not a day from 1970 on, such as 2026-11-22", date);
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

static qrun_status check_ranges(const qrun_train_params *params, qr_error *err) {
#define RANGE(group, field, most) \
    { .name = "`" #field "`", .value = (double)params->group.field, .high = (most) }
#define SIZE(group, field, most) \
    { .name = "`" #field "`", .value = (double)params->group.field, .low = QRUN_AUTO, .high = (most) }
    const qr_range ranges[] = {
        RANGE(lora, rank, QR_MAX_LORA_RANK),
        RANGE(lora, alpha, 1e6),
        RANGE(lora, lora_dropout, 0.99),
        RANGE(weights, init_embedding_std, 100),
        RANGE(preference, objective, QRUN_OBJECTIVE_SIMPO),
        RANGE(preference, beta, 1e6),
        RANGE(preference, target_margin, 1e6),
        RANGE(optimization, learning_rate, 100),
        RANGE(optimization, warmup, 1e9),
        RANGE(optimization, loraplus_lr_ratio, 1e6),
        RANGE(optimization, weight_decay, 1),
        SIZE(optimization, loss_scale, 0x1p32),
        RANGE(optimization, loss_scale_initial, 0x1p32),
        RANGE(optimization, loss_scale_growth, 1024),
        RANGE(optimization, loss_scale_backoff, 1),
        RANGE(optimization, loss_scale_window, 1e9),
        SIZE(batches, seq_len, 1 << 20),
        SIZE(batches, batch_size, 4096),
        RANGE(batches, batching, QRUN_BATCHING_GROUP),
        RANGE(batches, batch_tokens, INT32_MAX),
        RANGE(batches, grad_accum, 1 << 20),
        RANGE(batches, grad_sums, QR_MAX_PARTS),
        RANGE(batches, epochs, 1e6),
        RANGE(batches, max_steps, 1e12),
        RANGE(data, n_train_data, MAX_DATA_FILES),
        RANGE(data, n_eval_data, MAX_DATA_FILES),
        RANGE(data, format, QRUN_FORMAT_PARAGRAPHS),
        RANGE(data, eval_split, 0.9),
        RANGE(evaluation, eval_every, 1e12),
        RANGE(evaluation, early_stopping_patience, 1e9),
        RANGE(evaluation, early_stopping_threshold, 1e9),
        RANGE(saving, save_every, 1e12),
        RANGE(saving, keep, 1e6),
        RANGE(optimization, optimizer, QRUN_OPTIMIZER_SGD),
        RANGE(optimization, schedule, QRUN_SCHEDULE_CONSTANT),
        SIZE(memory, tile_rows, 1 << 20),
        RANGE(ranks, zero, QR_MAX_ZERO),
        RANGE(ranks, n_ranks, QR_MAX_RANKS),
        SIZE(ranks, plan_rank, QR_MAX_RANKS - 1),
    };
#undef RANGE
#undef SIZE
    return qr_check_ranges(ranges, QR_COUNT_OF(ranges), err);
}

static qrun_status check_data(const qrun_train_data *data, qr_error *err) {
    int64_t now;
    QR_RETURN_IF_ERROR(read_date(data->date, &now, err));
    QR_RETURN_IF_ERROR(qr_dataset_columns_check(data->columns, err));
    for (int32_t i = 0; i < data->n_train_data + data->n_eval_data; i++) {
        const char *const *list = i < data->n_train_data ? data->train_data : data->eval_data;
        if (list == NULL || list[i < data->n_train_data ? i : i - data->n_train_data] == NULL) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "a file of `train_data` or `eval_data` has no path");
        }
    }
    for (int32_t i = 0; i < data->n_data_weights; i++) {
        const double weight = data->data_weights != NULL ? data->data_weights[i] : 0;
        if (!(weight > 0 && weight <= MAX_DATA_WEIGHT)) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT,
                           "`data_weights`: %g is not a weight; each should be above 0 and at most %g", weight,
                           MAX_DATA_WEIGHT);
        }
    }
    return QRUN_OK;
}

/* Fields that do not go together, and fields that need others. The first broken rule is the message. */
static qrun_status check_combinations(const qrun_train_params *p, qr_error *err) {
    const bool of_adapters = p->lora.target_modules != NULL || p->lora.target_parameters != NULL ||
                             p->lora.layers_to_transform != NULL || p->lora.rank != 0 || p->lora.alpha != 0 ||
                             p->lora.rslora || p->lora.dora || p->lora.lora_dropout != 0;
    const bool has_eval_data = p->data.n_eval_data > 0;
    const bool evaluates = has_eval_data || p->data.eval_split > 0;
    const qrun_objective objective = p->preference.objective;
    const bool has_reference = objective == QRUN_OBJECTIVE_DPO;
    const struct {
        bool broken;
        const char *message;
    } rules[] = {
        {!p->data.random_tokens && p->data.n_train_data == 0, "no data: give a file of examples as `train_data`"},
        {p->data.n_data_weights != 0 && p->data.n_data_weights != p->data.n_train_data,
         "`data_weights` needs one weight for each file of `train_data`, in their order"},
        {p->memory.memory_bytes < 0, "`memory_bytes` cannot be negative"},
        {!p->data.random_tokens && (p->saving.out == NULL || p->saving.out[0] == '\0'),
         "no folder for the result: give one as `out`"},
        {has_eval_data && p->data.eval_split > 0, "`eval_data` and `eval_split` exclude each other"},
        {p->evaluation.early_stopping_patience > 0 && p->evaluation.eval_every == 0,
         "`early_stopping_patience` needs `eval_every`: how often to evaluate"},
        {p->evaluation.early_stopping_threshold > 0 && p->evaluation.early_stopping_patience == 0,
         "`early_stopping_threshold` needs `early_stopping_patience`"},
        {p->evaluation.eval_every > 0 && !evaluates, "`eval_every` needs `eval_data` or `eval_split`"},
        {p->evaluation.load_best && !evaluates, "`load_best` needs `eval_data` or `eval_split`"},
        {p->batches.batch_tokens > 0 && p->batches.batching != QRUN_BATCHING_GROUP,
         "`batch_tokens` needs `batching=group`; packed rows have `seq_len` each, and `batch_size` is their number"},
        {(p->batches.grad_sums & (p->batches.grad_sums - 1)) != 0,
         "`grad_sums` are added up in pairs, so it should be a power of two"},
        {p->batches.grad_sums > 1 && p->batches.grad_sums > p->batches.grad_accum,
         "`grad_sums` is at most `grad_accum`: each sum is of one batch or more"},
        {p->batches.batch_tokens > 0 && p->batches.batch_size != 0,
         "`batch_size` and `batch_tokens` exclude each other: the budget in tokens decides"},
        {p->weights.full && p->lora.adapter != NULL, "`full` does not begin from an adapter; merge it first"},
        {p->weights.full && p->lora.modules_to_save != NULL,
         "`full` trains every module already: `modules_to_save` is one of the options of adapters"},
        {objective == QRUN_OBJECTIVE_SFT && p->preference.beta != 0,
         "`beta` is of pairs of answers: it needs `objective=dpo`, `objective=orpo` or `objective=simpo`"},
        {objective != QRUN_OBJECTIVE_SIMPO && p->preference.target_margin != 0,
         "`target_margin` needs `objective=simpo`"},
        {has_reference && p->weights.full,
         "`objective=dpo` compares with the model as it was, and `full` changes all of it; `objective=orpo` and "
         "`objective=simpo` compare with nothing"},
        {has_reference && p->lora.modules_to_save != NULL,
         "`objective=dpo` compares with the model as it was, and `modules_to_save` would change it"},
        {p->memory.offload_gradients && !p->weights.full,
         "`offload_gradients` is for `full`: the gradients of an adapter are small, and stay on the device"},
        {p->weights.full && of_adapters, "`full` trains every weight, so options of adapters do not go with it"},
        {!p->weights.full && p->weights.init_random,
         "`init_random` needs `full`: an adapter on random weights is of no use"},
        {p->ranks.plan_rank > 0 && p->ranks.plan_rank >= p->ranks.n_ranks,
         "`plan_rank` is the number of a rank, which is below `n_ranks`"},
        {!p->weights.init_random && p->weights.init_embedding_std != 0, "`init_embedding_std` needs `init_random`"},
        {p->optimization.loss_scale_growth != 0 && p->optimization.loss_scale_growth < 1,
         "`loss_scale_growth` is what the scale grows by: it should be 1 or more"},
        {p->optimization.loss_scale_backoff == 1, "`loss_scale_backoff` lowers the scale: it should be below 1"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(rules); i++) {
        if (rules[i].broken) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s", rules[i].message); }
    }
    return QRUN_OK;
}

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

static double or_default(double value, double fallback) { return value != 0 ? value : fallback; }

/* QRUN_AUTO has the default until fit.c settles it. */
static int64_t size_or_default(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

static double default_learning_rate(const qrun_train_params *params) {
    if (params->preference.objective != QRUN_OBJECTIVE_SFT && !params->weights.init_random) {
        return params->weights.full ? 1e-6 : 1e-5;
    }
    return params->weights.init_random ? 1e-3 : params->weights.full ? 2e-5 : 2e-4;
}

static qr_preference preference_of(const qrun_train_preference *given) {
    const bool is_simpo = given->objective == QRUN_OBJECTIVE_SIMPO;
    if (given->objective == QRUN_OBJECTIVE_SFT) { return (qr_preference){.objective = QRUN_OBJECTIVE_SFT}; }
    const double beta = or_default(given->beta, is_simpo ? 2 : 0.1);
    return (qr_preference){given->objective, beta, is_simpo ? or_default(given->target_margin, beta / 2) : 0};
}

/* False: no memory. A NULL stays NULL. */
static bool copy_text(const char *text, char **copy) {
    *copy = text != NULL ? qr_strdup(text) : NULL;
    return (*copy != NULL) == (text != NULL);
}

qrun_status qrun_train_params_check(const qrun_train_params *params, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_params, params, error));
    QR_RETURN_IF_ERROR(check_ranges(params, error));
    QR_RETURN_IF_ERROR(check_combinations(params, error));
    return check_data(&params->data, error);
}

/* transformers adds a loss that keeps the experts busy alike, but only where config.json asks for it. */
static qrun_status check_balance(const qrun_model *model, qr_error *err) {
    if (!model->config.experts.balances_load) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_UNSUPPORTED,
        "%s: config.json sets \"output_router_logits\", which adds a loss that balances the load of experts; "
        "it is not computed here: remove the line to train without it, as most do",
        model->folder);
}

/* The numbers of a run, with the defaults of this model. */
static qr_train_settings numbers_of(const qrun_model *model, const qrun_train_params *params) {
    const int32_t rank = (int32_t)or_default(params->lora.rank, DEFAULT_RANK);
    const int64_t seq_tokens =
        size_or_default(params->batches.seq_len, qr_min(DEFAULT_SEQ_TOKENS, model->shape.context_tokens));
    const int64_t batch_size = size_or_default(params->batches.batch_size, 1);
    const float ratio_b = (float)params->optimization.loraplus_lr_ratio;
    return (qr_train_settings){
        .lora = {.rank = rank,
                 .alpha = (float)or_default((double)params->lora.alpha, 2.0 * rank),
                 .rslora = params->lora.rslora,
                 .dora = params->lora.dora,
                 .dropout = params->lora.lora_dropout,
                 .has_reference = params->preference.objective == QRUN_OBJECTIVE_DPO && params->lora.adapter != NULL,
                 .seed = params->batches.seed},
        .whole = {.full = params->weights.full,
                  .random = params->weights.init_random,
                  .embedding_std = params->weights.init_embedding_std,
                  .seed = params->batches.seed},
        .preference = preference_of(&params->preference),
        .optimizer = {.kind = params->optimization.optimizer,
                      .weight_decay = (float)params->optimization.weight_decay,
                      .decay_all = params->optimization.decay_all,
                      .lr_ratio_b = ratio_b != 1 ? ratio_b : 0, /* one run, however it is written */
                      .offload = params->memory.offload_optimizer || params->memory.offload_gradients},
        .schedule = params->optimization.schedule,
        .learning_rate = or_default(params->optimization.learning_rate, default_learning_rate(params)),
        .warmup = params->optimization.warmup,
        .max_grad_norm = or_default(params->optimization.max_grad_norm, 1.0),
        .epochs = or_default(params->batches.epochs, 1.0),
        .eval_fraction = params->data.eval_split,
        .seq_tokens = seq_tokens,
        .batch_size = batch_size,
        .batching = params->batches.batching == QRUN_BATCHING_GROUP ? QR_BATCH_GROUP : QR_BATCH_PACK,
        .batch_tokens = params->batches.batch_tokens != 0 ? params->batches.batch_tokens : batch_size * seq_tokens,
        .has_batch_tokens = params->batches.batch_tokens != 0,
        .auto_seq_tokens = params->batches.seq_len == QRUN_AUTO,
        .auto_batch_size = params->batches.batch_size == QRUN_AUTO,
        .tile_rows = qr_max(params->memory.tile_rows, 0),
        .offload_gradients = params->memory.offload_gradients,
        .grad_accum = (int64_t)or_default(params->batches.grad_accum, 1),
        .grad_sums = (int64_t)or_default(params->batches.grad_sums, 1),
        .max_steps = params->batches.max_steps,
        .zero = params->ranks.zero,
        .n_ranks = params->ranks.n_ranks,
        .rank = params->ranks.n_ranks > 0 ? params->ranks.plan_rank : 0,
        .seed = params->batches.seed,
        .eval_every = params->evaluation.eval_every,
        .patience = params->evaluation.early_stopping_patience,
        .threshold = params->evaluation.early_stopping_threshold,
        .load_best = params->evaluation.load_best || params->evaluation.early_stopping_patience > 0,
        .save_every = params->saving.save_every,
        .keep = (int64_t)or_default(params->saving.keep, DEFAULT_KEEP),
        .has_date = params->data.date != NULL,
    };
}

/* Copies of the texts, and what the adapter says that a run starts from. */
static qrun_status take_texts(const qrun_train_params *params, qr_train_settings *s, qr_error *err) {
    const bool from_adapter = params->lora.adapter != NULL;
    if (!copy_text(params->data.random_tokens ? "" : params->saving.out, &s->out) ||
        !copy_text(params->lora.target_modules == NULL && !from_adapter ? "all" : params->lora.target_modules,
                   &s->targets) ||
        !copy_text(params->lora.target_parameters, &s->expert_targets) ||
        !copy_text(params->lora.layers_to_transform, &s->layers) ||
        !copy_text(params->lora.modules_to_save, &s->modules)) {
        return qr_fail_memory(err, "the settings", sizeof *s);
    }
    if (from_adapter) {
        const qr_lora_options given = {.rank = params->lora.rank,
                                       .alpha = params->lora.alpha,
                                       .rslora = params->lora.rslora,
                                       .dora = params->lora.dora};
        QR_RETURN_IF_ERROR(qr_initial_adapter_open(params->lora.adapter, &given, &s->adapter, &s->lora, &s->targets,
                                                   &s->expert_targets, &s->layers, err));
    }
    s->lora.targets = s->targets;
    s->lora.expert_targets = s->expert_targets != NULL && s->expert_targets[0] != '\0' ? s->expert_targets : NULL;
    s->lora.layers = s->layers;
    s->whole.modules = s->modules;
    return QRUN_OK;
}

qrun_status qr_train_settings_make(const qrun_model *model, const qrun_train_params *params, qr_train_settings *s,
                                   qr_error *err) {
    *s = (qr_train_settings){0};
    QR_RETURN_IF_ERROR(qrun_train_params_check(params, err));
    *s = numbers_of(model, params);
    QR_RETURN_IF_ERROR(check_balance(model, err));
    QR_RETURN_IF_ERROR(qr_loss_scale_make(&params->optimization, model->act_dtype, &s->loss_scale, err));
    QR_RETURN_IF_ERROR(read_date(params->data.date, &s->now, err));
    const int least_tokens = qr_preference_has_pairs(&s->preference) ? 4 : 2; /* two a sequence */
    if (s->seq_tokens > model->shape.context_tokens || s->seq_tokens < least_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`seq_len=%lld` is not possible: this model is made for %d to %lld",
                       (long long)s->seq_tokens, least_tokens, (long long)model->shape.context_tokens);
    }
    return take_texts(params, s, err);
}

/* Fields of adapters are left alone where none is trained, or where they are those of another adapter. */
qrun_status qrun_trainer_settle(const qrun_trainer *trainer, qrun_train_params *params, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_params, params, error));
    const qr_train_settings *s = &trainer->settings;
    if (!s->whole.full && s->adapter == NULL) {
        params->lora.rank = s->lora.rank;
        params->lora.alpha = s->lora.alpha;
        if (params->lora.target_modules == NULL) { params->lora.target_modules = s->targets; }
    }
    params->preference.beta = s->preference.beta;
    params->preference.target_margin = s->preference.margin;
    params->optimization.learning_rate = s->learning_rate;
    params->optimization.max_grad_norm = s->max_grad_norm;
    if (params->optimization.loraplus_lr_ratio == 0) { params->optimization.loraplus_lr_ratio = 1; }
    params->batches.seq_len = (int32_t)s->seq_tokens;
    if (s->batching == QR_BATCH_GROUP && params->batches.batch_size == 0) {
        params->batches.batch_tokens = (int32_t)s->batch_tokens;
    } else {
        params->batches.batch_size = (int32_t)s->batch_size;
    }
    params->batches.grad_accum = (int32_t)s->grad_accum;
    params->batches.grad_sums = (int32_t)s->grad_sums;
    if (s->max_steps == 0) { params->batches.epochs = s->epochs; }
    params->saving.keep = (int32_t)s->keep;
    params->data.date = trainer->date;
    return QRUN_OK;
}

void qr_train_settings_free(qr_train_settings *settings) {
    qr_free(settings->out);
    qr_free(settings->targets);
    qr_free(settings->expert_targets);
    qr_free(settings->layers);
    qr_adapter_close(settings->adapter);
    qr_free(settings->modules);
    *settings = (qr_train_settings){0};
}

qrun_status qr_trainer_require_out(const qrun_trainer *trainer, qr_error *err) {
    if (trainer->settings.out[0] != '\0') { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "a run on random tokens only measures and has nothing to save");
}

/* ---- The fingerprint --------------------------------------------------------------------------------------------- */

/* Members of a JSON object, each with a comma after it. */
static void put_text(qr_buffer *object, const char *key, const char *text) {
    qr_buffer_append_format(object, "\"%s\":", key);
    qr_buffer_append_json_string(object, text, strlen(text));
    qr_buffer_append_char(object, ',');
}

static void put_bool(qr_buffer *object, const char *key, bool value) {
    qr_buffer_append_format(object, "\"%s\":%s,", key, value ? "true" : "false");
}

static void put_hash(qr_buffer *object, const char *key, uint64_t value) {
    qr_buffer_append_format(object, "\"%s\":\"%016" PRIx64 "\",", key, value);
}

/* 17 digits for integers and doubles, 9 for floats. */
static void put_number(qr_buffer *object, const char *key, double value, int n_digits) {
    char text[QR_NUMBER_BYTES];
    qr_number_format_digits(value, n_digits, text);
    qr_buffer_append_format(object, "\"%s\":%s,", key, text);
}

/* How many examples of each file an epoch has; nothing where the files have no weights. */
static void put_shares(qr_buffer *object, const qrun_trainer *trainer) {
    if (trainer->shares == NULL) { return; }
    qr_buffer_append_text(object, "\"data_weights\":\"");
    for (int64_t f = 0; f < qr_dataset_count_files(trainer->dataset); f++) {
        qr_buffer_append_format(object, "%s%" PRId64, f > 0 ? ":" : "", qr_shares_count_of(trainer->shares, f));
    }
    qr_buffer_append_text(object, "\",");
}

/* Nothing where the scale is what the compute type has anyway. */
static void put_loss_scale(qr_buffer *object, const qr_loss_scale *scale, qr_dtype act_dtype) {
    const qrun_train_optimization defaults = {0};
    qr_loss_scale usual;
    (void)qr_loss_scale_make(&defaults, act_dtype, &usual, NULL);
    const bool same = scale->dynamic == usual.dynamic && scale->factor == usual.factor &&
                      scale->growth == usual.growth && scale->backoff == usual.backoff && scale->window == usual.window;
    if (same) { return; }
    put_bool(object, "dynamic_loss_scale", scale->dynamic);
    put_number(object, "loss_scale", scale->factor, 17);
    put_number(object, "loss_scale_growth", scale->growth, 17);
    put_number(object, "loss_scale_backoff", scale->backoff, 17);
    put_number(object, "loss_scale_window", (double)scale->window, 17);
}

/* Nothing where there are no pairs. */
static void put_preference(qr_buffer *object, const qr_preference *preference) {
    if (!qr_preference_has_pairs(preference)) { return; }
    put_number(object, "objective", (double)preference->objective, 17);
    put_number(object, "beta", preference->beta, 17);
    put_number(object, "target_margin", preference->margin, 17);
}

/* Written so that a person can compare. */
qrun_status qr_trainer_make_fingerprint(qrun_trainer *trainer, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const qr_dataset_info *data = qr_dataset_get_info(trainer->dataset);
    const qrun_model *model = trainer->model;
    qr_buffer text = {0};
    char seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, s->seed);
    qr_buffer_append_char(&text, '{');
    put_text(&text, "family", model->family->name);
    put_number(&text, "hidden", (double)model->shape.hidden, 17);
    put_number(&text, "layers", (double)model->shape.n_layers, 17);
    put_number(&text, "vocab", (double)model->shape.vocab, 17);
    put_text(&text, "weights", qr_model_quant_name(model));
    if (model->head.desc.format == QR_WEIGHT_INT8) { put_text(&text, "head", "int8"); }
    if (model->embedding.desc.format == QR_WEIGHT_INT8) { put_text(&text, "embedding", "int8"); }
    put_text(&text, "compute", qr_dtype_name(model->act_dtype));
    if (model->context->numerics == QRUN_NUMERICS_PORTABLE) { put_text(&text, "numerics", "portable"); }
    put_number(&text, "examples", (double)data->n_examples, 17);
    put_number(&text, "tokens", (double)data->n_tokens, 17);
    put_number(&text, "targets", (double)data->n_targets, 17);
    put_hash(&text, "model", model->content_hash);
    put_hash(&text, "config", model->config.content_hash);
    put_hash(&text, "tokenizer", qr_dataset_tokenizer_hash(trainer->dataset));
    put_hash(&text, "data", qr_dataset_data_hash(trainer->dataset));
    put_shares(&text, trainer);
    if (s->adapter != NULL) { put_hash(&text, "adapter", qr_initial_adapter_hash(s->adapter)); }
    put_text(&text, "lora_targets", s->targets);
    if (s->lora.expert_targets != NULL) { put_text(&text, "lora_expert_targets", s->lora.expert_targets); }
    if (s->lora.layers != NULL) { put_text(&text, "lora_layers", s->lora.layers); }
    put_number(&text, "rank", (double)s->lora.rank, 17);
    put_number(&text, "alpha", (double)s->lora.alpha, 9);
    put_bool(&text, "rslora", s->lora.rslora);
    put_bool(&text, "dora", s->lora.dora);
    put_number(&text, "dropout", s->lora.dropout, 9);
    put_bool(&text, "full", s->whole.full);
    put_bool(&text, "init_random", s->whole.random);
    put_number(&text, "init_embedding_std", s->whole.embedding_std, 17);
    put_text(&text, "modules_to_save", s->modules != NULL ? s->modules : "");
    put_preference(&text, &s->preference);
    put_number(&text, "optimizer", (double)s->optimizer.kind, 17);
    put_number(&text, "schedule", (double)s->schedule, 17);
    put_number(&text, "learning_rate", s->learning_rate, 17);
    put_number(&text, "warmup", s->warmup, 17);
    put_number(&text, "weight_decay", (double)s->optimizer.weight_decay, 9);
    put_number(&text, "max_grad_norm", s->max_grad_norm, 17);
    put_loss_scale(&text, &s->loss_scale, model->act_dtype);
    put_number(&text, "seq_tokens", (double)s->seq_tokens, 17);
    put_number(&text, "batch_size", (double)s->batch_size, 17);
    put_bool(&text, "decay_all", s->optimizer.decay_all);
    put_number(&text, "loraplus_lr_ratio", (double)s->optimizer.lr_ratio_b, 9);
    /* Evaluations change the course of a run only with early stopping. Which of its checkpoints is exported may be
     * decided at the end. */
    const bool stops = s->patience > 0;
    put_number(&text, "eval_every", (double)(stops ? s->eval_every : 0), 17);
    put_number(&text, "patience", (double)s->patience, 17);
    put_number(&text, "threshold", s->threshold, 17);
    if (s->load_best && trainer->eval_dataset != NULL) {
        put_hash(&text, "eval_data", qr_dataset_data_hash(trainer->eval_dataset));
    }
    put_text(&text, "batching", s->batching == QR_BATCH_GROUP ? "group" : "pack");
    put_number(&text, "batch_tokens", (double)s->batch_tokens, 17);
    put_number(&text, "grad_accum", (double)s->grad_accum, 17);
    if (s->grad_sums > 1) { put_number(&text, "grad_sums", (double)s->grad_sums, 17); }
    put_number(&text, "total_steps", (double)trainer->total_steps, 17);
    put_number(&text, "eval_fraction", s->eval_fraction, 17);
    put_text(&text, "seed", seed);
    put_number(&text, "now", (double)s->now, 17);
    if (qr_buffer_ok(&text)) { text.data[text.size - 1] = '}'; }
    trainer->fingerprint = qr_buffer_take(&text);
    return trainer->fingerprint != NULL ? QRUN_OK : qr_fail_memory(err, "the settings", 512);
}
