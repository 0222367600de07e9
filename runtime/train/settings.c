#include "runtime/train/settings.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

enum { DEFAULT_RANK = 16, DEFAULT_SEQ_TOKENS = 1024, DEFAULT_KEEP = 2, SECONDS_A_DAY = 86400 };

static qrun_status check_params(const qrun_train_params *params, qr_error *err) {
    if (params->struct_size != sizeof *params) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "qrun_train_params has an unknown size; begin with QRUN_TRAIN_PARAMS_INIT");
    }
    if (!params->random_tokens && (params->data == NULL || params->out == NULL)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "fine-tuning needs data and a folder for the adapter (data, out)");
    }
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"rank", params->rank, 0, QR_MAX_LORA_RANK},
        {"alpha", (double)params->alpha, 0, 1e6},
        {"LoRA dropout", params->lora_dropout, 0, 0.99},
        {"the deviation of the first embeddings", params->init_embedding_std, 0, 100},
        {"the learning rate", params->learning_rate, 0, 100},
        {"warm-up", params->warmup, 0, 1e9},
        {"loraplus_lr_ratio", params->loraplus_lr_ratio, 0, 1e6},
        {"weight decay", params->weight_decay, 0, 1},
        {"the sequence length", params->seq_tokens, 0, 1 << 20},
        {"the batch size", params->batch_size, 0, 4096},
        {"batching", (double)params->batching, 0, QRUN_BATCHING_GROUP},
        {"batch_tokens", (double)params->batch_tokens, 0, INT32_MAX},
        {"gradient accumulation", params->grad_accum, 0, 1 << 20},
        {"epochs", params->epochs, 0, 1e6},
        {"max_steps", (double)params->max_steps, 0, 1e12},
        {"the share set aside for evaluation", params->eval_fraction, 0, 0.9},
        {"eval_every", (double)params->eval_every, 0, 1e12},
        {"the patience of early stopping", params->early_stopping_patience, 0, 1e9},
        {"the threshold of early stopping", params->early_stopping_threshold, 0, 1e9},
        {"save_every", (double)params->save_every, 0, 1e12},
        {"keep", params->keep, 0, 1e6},
        {"optimizer", (double)params->optimizer, 0, QRUN_OPTIMIZER_SGD},
        {"schedule", (double)params->schedule, 0, QRUN_SCHEDULE_CONSTANT},
    };
    for (size_t i = 0; i < QR_COUNT_OF(ranges); i++) {
        if (ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s must be from %.10g to %.10g, not %.10g", ranges[i].name,
                       ranges[i].low, ranges[i].high, ranges[i].value);
    }
    return QRUN_OK;
}

static double or_default(double value, double fallback) { return value != 0 ? value : fallback; }

static double default_learning_rate(const qrun_train_params *params) {
    return params->init_random ? 1e-3 : params->full ? 2e-5 : 2e-4;
}

static qrun_status check_whole(const qrun_train_params *params, qr_error *err) {
    if (params->full && params->adapter != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "full fine-tuning does not begin from an adapter; merge it first");
    }
    if (params->full && params->modules_to_save != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "full fine-tuning trains every module; modules_to_save are trained "
                       "beside an adapter");
    }
    if (!params->full && (params->init_random || params->init_embedding_std != 0)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "random weights are no use beside an adapter; train all of them (--full)");
    }
    if (!params->init_random && params->init_embedding_std != 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a deviation of the first embeddings is for --init random");
    }
    return QRUN_OK;
}

qrun_status qr_train_settings_make(const qrun_model *model, const qrun_train_params *params, qr_train_settings *s,
                                   qr_error *err) {
    *s = (qr_train_settings){0};
    qrun_status status = check_params(params, err);
    if (status == QRUN_OK) { status = check_whole(params, err); }
    if (status != QRUN_OK) { return status; }
    const int32_t rank = (int32_t)or_default(params->rank, DEFAULT_RANK);
    *s = (qr_train_settings){
        .lora = {.rank = rank,
                 .alpha = (float)or_default((double)params->alpha, 2.0 * rank),
                 .rslora = params->rslora,
                 .dora = params->dora,
                 .dropout = params->lora_dropout,
                 .seed = params->seed},
        .whole = {.full = params->full,
                  .random = params->init_random,
                  .embedding_std = params->init_embedding_std,
                  .seed = params->seed},
        .optimizer = {.kind = params->optimizer,
                      .weight_decay = (float)params->weight_decay,
                      .decay_all = params->decay_all,
                      .lr_ratio_b = (float)params->loraplus_lr_ratio,
                      .offload = params->offload_optimizer},
        .schedule = params->schedule,
        .learning_rate = or_default(params->learning_rate, default_learning_rate(params)),
        .warmup = params->warmup,
        .max_grad_norm = or_default(params->max_grad_norm, 1.0),
        .epochs = or_default(params->epochs, 1.0),
        .eval_fraction = params->eval_data == NULL ? params->eval_fraction : 0,
        .seq_tokens =
            (int64_t)or_default(params->seq_tokens, (double)qr_min(DEFAULT_SEQ_TOKENS, model->shape.context_tokens)),
        .batch_size = (int64_t)or_default(params->batch_size, 1),
        .batching = params->batching == QRUN_BATCHING_GROUP ? QR_BATCH_GROUP : QR_BATCH_PACK,
        .grad_accum = (int64_t)or_default(params->grad_accum, 1),
        .max_steps = params->max_steps,
        .seed = params->seed,
        .eval_every = params->eval_every,
        .patience = params->early_stopping_patience,
        .threshold = params->early_stopping_threshold,
        .load_best = params->load_best || params->early_stopping_patience > 0,
        .save_every = params->save_every,
        .keep = (int64_t)or_default(params->keep, DEFAULT_KEEP),
        .now = (int64_t)time(NULL) / SECONDS_A_DAY * SECONDS_A_DAY,
    };
    if (s->seq_tokens > model->shape.context_tokens || s->seq_tokens < 2) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a sequence length of %lld is not possible: this model is made for 2 to %lld",
                       (long long)s->seq_tokens, (long long)model->shape.context_tokens);
    }
    const bool evaluates = params->eval_data != NULL || params->eval_fraction > 0;
    if ((s->eval_every > 0 || s->load_best) && !evaluates) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s needs examples to evaluate on; give --eval-data or --eval-split",
                       s->patience > 0 ? "early stopping"
                       : s->load_best  ? "--load-best"
                                       : "--eval-every");
    }
    if (s->patience > 0 && s->eval_every == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "early stopping needs evaluations on the way: give --eval-every");
    }
    if (s->batching == QR_BATCH_PACK && params->batch_tokens != 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "--batch-tokens is for --batching group; packed rows have --seq-len "
                       "tokens, and --batch-size says how many there are");
    }
    s->batch_tokens = params->batch_tokens != 0 ? params->batch_tokens : s->batch_size * s->seq_tokens;
    if (params->adapter != NULL) {
        const qr_lora_options given = {
            .rank = params->rank, .alpha = params->alpha, .rslora = params->rslora, .dora = params->dora};
        if (params->targets != NULL) { s->targets = qr_strdup(params->targets); }
        QR_RETURN_IF_ERROR(qr_initial_adapter_open(params->adapter, &given, &s->adapter, &s->lora, &s->targets, err));
    }
    s->out = qr_strdup(params->random_tokens ? "" : params->out);
    if (s->targets == NULL) { s->targets = qr_strdup(params->targets != NULL ? params->targets : "all"); }
    if (params->modules_to_save != NULL) { s->modules = qr_strdup(params->modules_to_save); }
    const bool made = s->out != NULL && s->targets != NULL && (s->modules != NULL) == (params->modules_to_save != NULL);
    if (!made) { return qr_fail_memory(err, "the settings", sizeof *s); }
    s->lora.targets = s->targets;
    s->whole.modules = s->modules;
    return QRUN_OK;
}

void qr_train_settings_free(qr_train_settings *settings) {
    qr_free(settings->out);
    qr_free(settings->targets);
    qr_adapter_close(settings->adapter);
    qr_free(settings->modules);
    *settings = (qr_train_settings){0};
}

qrun_status qr_trainer_require_out(const qrun_trainer *trainer, qr_error *err) {
    if (trainer->settings.out[0] != '\0') { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "a run on random tokens measures, and has nothing to save");
}

/* Written so that a person can compare. */
qrun_status qr_trainer_make_fingerprint(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const qr_dataset_info *data = qr_dataset_get_info(trainer->dataset);
    const qr_model_shape *m = &trainer->model->shape;
    qr_buffer text = {0};
    qr_buffer_append_format(&text, "{\"family\":\"%s\",\"hidden\":%lld,\"layers\":%lld,\"vocab\":%lld,",
                            trainer->model->family->name, (long long)m->hidden, (long long)m->n_layers,
                            (long long)m->vocab);
    qr_buffer_append_format(
        &text, "\"weights\":\"%s\",\"compute\":\"%s\",\"examples\":%lld,\"tokens\":%lld,\"targets\":%lld,",
        qr_weight_format_name(trainer->model->linear_format), qr_dtype_name(trainer->model->act_dtype),
        (long long)data->n_examples, (long long)data->n_tokens, (long long)data->n_targets);
    qr_buffer_append_format(
        &text, "\"model\":\"%016" PRIx64 "\",\"tokenizer\":\"%016" PRIx64 "\",\"data\":\"%016" PRIx64 "\",",
        trainer->model->content_hash, qr_dataset_tokenizer_hash(trainer->dataset),
        qr_dataset_data_hash(trainer->dataset));
    if (s->adapter != NULL) {
        qr_buffer_append_format(&text, "\"adapter\":\"%016" PRIx64 "\",", qr_initial_adapter_hash(s->adapter));
    }
    qr_buffer_append_text(&text, "\"lora_targets\":");
    qr_buffer_append_json_string(&text, s->targets, strlen(s->targets));
    qr_buffer_append_format(&text, ",\"rank\":%d,\"alpha\":%.9g,\"rslora\":%s,\"dora\":%s,\"dropout\":%.9g,",
                            s->lora.rank, (double)s->lora.alpha, s->lora.rslora ? "true" : "false",
                            s->lora.dora ? "true" : "false", s->lora.dropout);
    qr_buffer_append_format(&text, "\"full\":%s,\"init_random\":%s,\"init_embedding_std\":%.17g,\"modules_to_save\":",
                            s->whole.full ? "true" : "false", s->whole.random ? "true" : "false",
                            s->whole.embedding_std);
    qr_buffer_append_json_string(&text, s->modules != NULL ? s->modules : "",
                                 s->modules != NULL ? strlen(s->modules) : 0);
    qr_buffer_append_format(&text, ",\"optimizer\":%d,\"schedule\":%d,\"learning_rate\":%.17g,\"warmup\":%.17g,",
                            (int)s->optimizer.kind, (int)s->schedule, s->learning_rate, s->warmup);
    qr_buffer_append_format(
        &text, "\"weight_decay\":%.9g,\"max_grad_norm\":%.17g,\"seq_tokens\":%lld,\"batch_size\":%lld,",
        (double)s->optimizer.weight_decay, s->max_grad_norm, (long long)s->seq_tokens, (long long)s->batch_size);
    qr_buffer_append_format(&text, "\"decay_all\":%s,\"loraplus_lr_ratio\":%.9g,",
                            s->optimizer.decay_all ? "true" : "false", (double)s->optimizer.lr_ratio_b);
    /* Evaluations decide where the run ends and what is exported only where that is asked for. */
    qr_buffer_append_format(&text, "\"eval_every\":%lld,\"patience\":%lld,\"threshold\":%.17g,\"load_best\":%s,",
                            (long long)(s->load_best ? s->eval_every : 0), (long long)s->patience, s->threshold,
                            s->load_best ? "true" : "false");
    qr_buffer_append_format(&text, "\"batching\":\"%s\",\"batch_tokens\":%lld,",
                            s->batching == QR_BATCH_GROUP ? "group" : "pack", (long long)s->batch_tokens);
    qr_buffer_append_format(
        &text, "\"grad_accum\":%lld,\"total_steps\":%lld,\"eval_fraction\":%.17g,\"seed\":\"%llu\",\"now\":%lld}",
        (long long)s->grad_accum, (long long)trainer->total_steps, params->eval_fraction, (unsigned long long)s->seed,
        (long long)s->now);
    trainer->fingerprint = qr_buffer_take(&text);
    return trainer->fingerprint != NULL ? QRUN_OK : qr_fail_memory(err, "the settings", 512);
}
