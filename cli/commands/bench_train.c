#include "cli/commands/bench_train.h"

#include <stdio.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

#define PARAMS(field) INTO(bench_train_options, params.field)

/* clang-format off */
const option bench_train_option_table[N_BENCH_TRAIN_OPTIONS] = {
    {.name = "train", .kind = OPTION_FLAG, INTO(bench_train_options, train),
     .help = "Measure steps of fine-tuning instead of generation: LoRA on full rows of random tokens. The options "
             "below are for it; --repeat is the number of steps after a first one that warms up."},
    {.name = "seq-len", .kind = OPTION_INT, .value_name = "N", .low = 2, .high = 1 << 20, PARAMS(batches.seq_len),
     .help = "Tokens of a row. Default: 1024, or the model's context where that is smaller."},
    {.name = "batch-size", .letter = 'b', .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 4096,
     PARAMS(batches.batch_size), .help = "Rows computed at a time. Default: 1."},
    {.name = "grad-accum", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1 << 20, PARAMS(batches.grad_accum),
     .help = "Batches that make one step. Default: 1."},
    {.name = "target-modules", .kind = OPTION_TEXT, .value_name = "WHICH", PARAMS(lora.target_modules),
     .help = "Linear layers that get LoRA: all, attn, mlp, or names such as q_proj,v_proj. Default: all."},
    {.name = "rank", .letter = 'r', .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 512, PARAMS(lora.rank),
     .help = "Rank of the update of each layer. Default: 16."},
    {.name = "optimizer", .kind = OPTION_CHOICE, .choices = train_optimizers, PARAMS(optimization.optimizer),
     .help = "Default: adamw."},
    {.name = "checkpointing", .kind = OPTION_TEXT, .value_name = "POLICY", PARAMS(memory.checkpointing),
     .help = "Activations that are kept for the backward pass: none (all are kept), full (as few as possible), "
             "every:N, attn, mlp, or auto. Default: full."},
    {.name = "tile-rows", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1 << 20, PARAMS(memory.tile_rows),
     .help = "Tokens of recomputed layers that are computed at a time, but for attention. Default: all."},
    {.name = "offload", .kind = OPTION_SET, .choices = train_offloads, INTO(bench_train_options, offload),
     .help = "What is held in host memory and copied to the device when it is needed, with commas. optimizer: its "
             "states. activations: the inputs of recomputed layers. parameters: the frozen layers; on the CPU they "
             "stay in the folder. gradients is for all weights, which are not trained here. Default: none."},
};
/* clang-format on */

const char *bench_train_stray_option(const bench_train_options *options, const command_line *line) {
    for (size_t i = 1; i < N_BENCH_TRAIN_OPTIONS && !options->train; i++) { /* the first is --train */
        if (option_given(line, bench_train_option_table[i].name)) { return bench_train_option_table[i].name; }
    }
    return NULL;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

void bench_train_forget_peak(void) {
    FILE *stream = fopen("/proc/self/clear_refs", "w");
    if (stream == NULL) { return; }
    (void)fputs("5", stream); /* the peak of resident memory, proc(5) */
    (void)fclose(stream);
}

static int run_steps(qrun_trainer *trainer, bench_train_result *r) {
    double rates[MEASURE_REPEAT_MAX], seconds[MEASURE_REPEAT_MAX];
    bool done;
    for (int32_t i = -1; i < r->n_repeat; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        progress_draw(i + 1, r->n_repeat + 1, "training, step %d of %d", (int)i + 2, (int)r->n_repeat + 1);
        if (interrupted()) { return complain(EXIT_INTERRUPTED, "interrupted"); }
        if (qrun_trainer_step(trainer, &metrics, &done, &error) != QRUN_OK) { return complain_error(&error); }
        if (metrics.skipped && !metrics.overflowed) {
            return complain(EXIT_ENGINE, "the loss or its gradient is not finite");
        }
        r->step_tokens = metrics.n_tokens;
        if (i < 0) {
            r->first_step_seconds = metrics.seconds;
        } else {
            seconds[i] = metrics.seconds;
            rates[i] = (double)metrics.n_tokens / metrics.seconds;
        }
    }
    measure_summarise(rates, r->n_repeat, &r->speed);
    r->step_seconds = measure_median(seconds, r->n_repeat);
    return EXIT_OK;
}

static int create_trainer(const engine *e, const bench_train_options *options, int64_t memory_bytes, int32_t n_steps,
                          qrun_trainer **trainer) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = options->params;
    train_set_offload(&params, options->offload);
    params.batches.max_steps = n_steps;
    params.memory.memory_bytes = memory_bytes;
    return complain_unless_ok(qrun_trainer_create(e->model, &params, trainer, &error), &error);
}

static int step_trainer(qrun_trainer *trainer) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    return complain_unless_ok(qrun_trainer_step(trainer, &metrics, &done, &error), &error);
}

int bench_train_kernels(const engine *e, const bench_train_options *options, int64_t memory_bytes,
                        bench_kernels_result *result) {
    qrun_trainer *trainer = NULL;
    RETURN_IF_FAILED(create_trainer(e, options, memory_bytes, 2, &trainer));
    int code = step_trainer(trainer);
    if (code == EXIT_OK) { code = bench_ops_begin(e); }
    if (code == EXIT_OK) { code = step_trainer(trainer); }
    if (code == EXIT_OK) { code = bench_ops_end(e, result, "a training step"); }
    qrun_trainer_destroy(trainer);
    return code;
}

int bench_train_measure(const engine *e, const bench_train_options *options, int64_t memory_bytes, int32_t n_repeat,
                        bench_train_result *r) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_trainer *trainer = NULL;
    *r = (bench_train_result){.info = QRUN_TRAIN_INFO_INIT, .n_repeat = n_repeat};
    RETURN_IF_FAILED(create_trainer(e, options, memory_bytes, n_repeat + 1, &trainer));
    int code = run_steps(trainer, r);
    if (code == EXIT_OK && qrun_trainer_get_info(trainer, &r->info, &error) != QRUN_OK) {
        code = complain_error(&error);
    }
    (void)snprintf(r->checkpointing, sizeof r->checkpointing, "%s", code == EXIT_OK ? r->info.checkpointing : "");
    r->seq_len = (int32_t)(r->info.n_tokens / (r->info.n_examples > 0 ? r->info.n_examples : 1));
    r->peak_rss_bytes = peak_rss_bytes();
    qrun_trainer_destroy(trainer);
    return code;
}

/* ---- What the numbers mean --------------------------------------------------------------------------------------- */

/* Every matrix that a token meets, the head included. */
static double parameters(const engine *e) {
    return (double)e->info.n_linear_parameters + (double)e->info.vocab_size * (double)e->info.hidden_size;
}

/* 6 × parameters per token: what training without a frozen part, and without computing anything again, would take. */
static double counted_flops(const engine *e, const bench_train_result *r) {
    return 6.0 * parameters(e) * r->speed.tokens_per_second;
}

static double computed_flops(const bench_train_result *r) {
    return r->info.flops_per_token * r->speed.tokens_per_second;
}

static double share(double flops, double peak) { return peak > 0 ? flops / peak : 0; }

void bench_train_print(const engine *e, const bench_train_result *r, double peak) {
    const qrun_train_info *info = &r->info;
    printf("training   %lld tokens a step in rows of %d; %s trainable parameters; checkpointing %s\n",
           (long long)r->step_tokens, (int)r->seq_len, large_text(info->n_trainable).text, r->checkpointing);
    printf("memory     %s planned, %s used at most; the whole process %s\n\n", size_text(info->planned_bytes).text,
           size_text(info->peak_bytes).text, size_text(r->peak_rss_bytes).text);
    printf("step       %.2f s (the first %.2f s)\n", r->step_seconds, r->first_step_seconds);
    printf("tokens/s   %.1f (%.1f - %.1f)\n", r->speed.tokens_per_second, r->speed.least, r->speed.most);
    printf("counted    %.3f TFLOP/s, %.1f%% of the matrix peak\n", counted_flops(e, r) / 1e12,
           100 * share(counted_flops(e, r), peak));
    printf("computed   %.3f TFLOP/s, %.1f%% of the matrix peak\n", computed_flops(r) / 1e12,
           100 * share(computed_flops(r), peak));
    printf("\nMedians of %d steps. Counted: 6 operations per parameter and token, the head included. Computed: what\n"
           "the matrix products and attention really are, with what is computed again, and without gradients of\n"
           "frozen weights: %.3g operations a token, where 6 per parameter are %.3g.\n",
           (int)r->n_repeat, info->flops_per_token, 6.0 * parameters(e));
}

void bench_train_json(const engine *e, const bench_train_result *r, double peak, text_buffer *out) {
    const qrun_train_info *info = &r->info;
    text_format(out,
                "\"repeat\":%d,\"train\":{\"seq_len\":%d,\"step_tokens\":%lld,\"trainable_parameters\":%lld,"
                "\"checkpointing\":\"%s\",\"planned_bytes\":%lld,\"peak_bytes\":%lld,\"peak_rss_bytes\":%lld,",
                (int)r->n_repeat, (int)r->seq_len, (long long)r->step_tokens, (long long)info->n_trainable,
                r->checkpointing, (long long)info->planned_bytes, (long long)info->peak_bytes,
                (long long)r->peak_rss_bytes);
    text_format(out,
                "\"step_seconds\":%.6g,\"first_step_seconds\":%.6g,\"tokens_per_second\":%.6g,\"least\":%.6g,"
                "\"most\":%.6g,\"flops_per_token_counted\":%.6g,\"flops_per_token_computed\":%.6g,"
                "\"matrix_share_counted\":%.6g,\"matrix_share_computed\":%.6g}}\n",
                r->step_seconds, r->first_step_seconds, r->speed.tokens_per_second, r->speed.least, r->speed.most,
                6.0 * parameters(e), info->flops_per_token, share(counted_flops(e, r), peak),
                share(computed_flops(r), peak));
}
