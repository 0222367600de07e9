/* qrun bench: speed of a model, or of a model's shape, compared with the machine's peaks. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands/bench_kernels.h"
#include "cli/commands/bench_reuse.h"
#include "cli/commands/bench_train.h"
#include "cli/commands/measure.h"
#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct bench_options {
    engine_options engine;
    int32_t prompt_tokens; /* 0: decided when the model is known */
    int32_t decode_tokens, n_repeat;
    option_ints batches, contexts;
    bench_train_options training;
    bool kernels;
    const char *json;
} bench_options;

#define AT(field) INTO(bench_options, field)

/* clang-format off */
static const option shape_table[] = {
    {.name = "shape", .kind = OPTION_TEXT, .value_name = "CONFIG.json", INTO(engine_options, shape),
     .completion = COMPLETE_FILE,
     .help = "In place of --model: a model's config.json. Its weights are random; nothing else of it is needed."},
};
/* clang-format on */

/* clang-format off */
static const option bench_table[] = {
    {.name = "prompt-tokens", .kind = OPTION_INT, .value_name = "N", AT(prompt_tokens), .low = 1, .high = 1 << 24,
     .help = "Length of the prompt whose reading is measured. Default: 512, or what the model's context allows."},
    {.name = "decode-tokens", .kind = OPTION_INT, .value_name = "N", AT(decode_tokens), .low = 1, .high = 1 << 24,
     .help = "Tokens written per sequence. Default: 64."},
    {.name = "batch", .kind = OPTION_INTS, .value_name = "N,N…", AT(batches), .low = 1, .high = 4096,
     .help = "Sequences written at once, one measurement for each number. Default: 1,8,16,32."},
    {.name = "decode-context", .kind = OPTION_INTS, .value_name = "N,N…", AT(contexts), .low = 1, .high = 1 << 24,
     .help = "Tokens of a sequence before those that are written: a measurement for each number. Default: 16."},
    {.name = "repeat", .kind = OPTION_INT, .value_name = "N", AT(n_repeat), .low = 1, .high = MEASURE_REPEAT_MAX,
     .help = "Repetitions; medians are reported. Default: 3."},
    {.name = "kernels", .kind = OPTION_FLAG, AT(kernels),
     .help = "In place of speeds, the time of every op with its bytes, its operations, and the share of the machine's "
             "peak. They are those of a prompt and of one decode step, or with --train of one training step."},
    {.name = "json", .kind = OPTION_TEXT, .value_name = "FILE", AT(json), .completion = COMPLETE_FILE,
     .help = "Write the results as JSON too (\"-\": to stdout, in place of the table)."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(bench_options, engine)),
    OPTION_GROUP("Shape", shape_table, offsetof(bench_options, engine)),
    OPTION_GROUP("Measurement", bench_table, 0),
    OPTION_GROUP("Training", bench_train_option_table, offsetof(bench_options, training)),
    {"Machine", machine_option_table, N_MACHINE_OPTIONS - 1, offsetof(bench_options, engine)}, /* without --offload */
    OPTION_GROUP("Session", session_option_table, offsetof(bench_options, engine)),
    OPTION_GROUP("Speed", speed_option_table, offsetof(bench_options, engine)),
};

/* A speed, and what the machine did before and after it: on a shared machine its limits move. */
typedef struct measured_row {
    measure_result speed;
    qrun_peaks peaks; /* means */
} measured_row;

typedef struct bench {
    engine *engine;
    qrun_device_info device;
    qrun_peaks now;         /* the machine's limits as measured last */
    qrun_peaks least, most; /* of all measurements */
    qrun_peaks peaks;       /* means of before and after kernels or training */
    const bench_options *o;
    int32_t prompt_tokens;
    option_ints batches, contexts;
    measured_row prefill, decode[OPTION_LIST_MAX][OPTION_LIST_MAX]; /* by context and batch */
    qrun_session_stats stats;                                       /* once all is measured */
    bench_train_result training;
    bench_reuse_result reuse;
    bench_kernels_result kernels;
} bench;

static bool speculates(const bench_options *o) {
    const char *speculate = o->engine.session.speculate;
    return speculate != NULL && strcmp(speculate, "off") != 0;
}

/* Drafts, or prefixes that come back, are measured in place of speeds. */
static bool reuses(const bench_options *o) { return speculates(o) || o->engine.session.prefix_cache_bytes != 0; }

/* ---- What the numbers mean --------------------------------------------------------------------------------------- */

/* Of the products that the type of computation is made of. */
static double matrix_peak(const bench *b, const qrun_peaks *peaks) {
    const char *dtype = b->engine->info.dtype;
    return strcmp(dtype, "bf16") == 0  ? peaks->bf16_flops
           : strcmp(dtype, "f16") == 0 ? peaks->f16_flops
                                       : peaks->f32_flops;
}

/* On a CPU F16 is widened to F32 and computed there. */
static bool computes_f16_as_f32(const bench *b) {
    return strcmp(b->engine->info.dtype, "f16") == 0 && b->most.f16_flops == b->most.f32_flops;
}

/* On a GPU they are measured once, before the model takes its memory. */
static bool limits_move(const bench *b) { return strcmp(b->device.backend, "cpu") == 0; }

/* A multiplication and an addition for each parameter of the linear layers and each token, and for the head's where
 * there are logits of it. */
static double flops_share(const bench *b, const measured_row *row, double logits_per_token) {
    const qrun_model_info *m = &b->engine->info;
    const double head = (double)m->vocab_size * (double)m->hidden_size, peak = matrix_peak(b, &row->peaks);
    const double per_token = 2.0 * ((double)m->n_linear_parameters + head * logits_per_token);
    return peak > 0 ? per_token * row->speed.tokens_per_second / peak : 0;
}

/* Every step reads the weights once. */
static double read_share(const bench *b, const measured_row *row, int64_t batch) {
    const double steps_per_second = row->speed.tokens_per_second / (double)batch;
    const double bytes = (double)b->engine->info.step_weight_bytes * steps_per_second;
    return row->peaks.read_bytes_per_second > 0 ? bytes / row->peaks.read_bytes_per_second : 0;
}

/* "25.1" or "25.1 - 29.6". */
static const char *range_text(double least, double most, const char *format, char text[40]) {
    const int n = snprintf(text, 40, format, least);
    char end[20];
    (void)snprintf(end, sizeof end, format, most);
    if (n > 0 && strcmp(text, end) != 0) { (void)snprintf(text + n, 40 - (size_t)n, " - %s", end); }
    return text;
}

static void print_start(const bench *b) {
    const qrun_model_info *m = &b->engine->info;
    printf("model      %s, %d layers, hidden %d, %s\n", m->family, (int)m->n_layers, (int)m->hidden_size,
           engine_parameters(m).text);
    printf("weights    %s, head %s, %s, computed in %s; ready in %.2f s\n", m->quant, m->head_format,
           size_text(m->weight_bytes).text, m->dtype, m->load_seconds);
    if (m->expert_note != NULL) {
        printf("experts    %s\n", api_names_to_options(m->expert_note, (char[API_NAMES_TEXT_BYTES]){0}));
    }
    char reads[40], multiplies[40];
    printf("machine    %s (%s), %s order of sums, %d threads: reads %s GB/s, multiplies %s TFLOP/s in %s\n",
           b->device.backend, b->device.isa, b->device.numerics, (int)b->device.n_threads,
           range_text(b->least.read_bytes_per_second / 1e9, b->most.read_bytes_per_second / 1e9, "%.1f", reads),
           range_text(matrix_peak(b, &b->least) / 1e12, matrix_peak(b, &b->most) / 1e12, "%.2f", multiplies),
           computes_f16_as_f32(b) ? "f32, which f16 is computed in here" : m->dtype);
    if (b->device.features[0] != '\0') { printf("of it      %s\n", b->device.features); }
    if (b->device.note != NULL) {
        printf("no GPU     %s\n", api_names_to_options(b->device.note, (char[API_NAMES_TEXT_BYTES]){0}));
    }
}

static double prefill_share(const bench *b) { return flops_share(b, &b->prefill, 1.0 / (double)b->prompt_tokens); }

static void print_speed(const measure_result *r, const char *name, const char *reading, double matrix_share) {
    char range[40];
    snprintf(range, sizeof range, "%.1f - %.1f", r->least, r->most);
    printf("%-22s%12.1f%22s%12s%11.1f%%\n", name, r->tokens_per_second, range, reading, 100 * matrix_share);
}

static void print_decode(const bench *b) {
    char name[32], reading[16];
    for (int c = 0; c < b->contexts.count; c++) {
        for (int i = 0; i < b->batches.count; i++) {
            const measured_row *row = &b->decode[c][i];
            const int n = snprintf(name, sizeof name, "decode, batch %d", b->batches.values[i]);
            if (b->contexts.count > 1) {
                (void)snprintf(name + n, sizeof name - (size_t)n, " at %d", b->contexts.values[c]);
            }
            snprintf(reading, sizeof reading, "%.1f%%", 100 * read_share(b, row, b->batches.values[i]));
            print_speed(&row->speed, name, reading, flops_share(b, row, 1));
        }
    }
}

static void print_table(const bench *b) {
    printf("memory     %s planned, %s used at most\n", size_text(b->stats.planned_bytes).text,
           size_text(b->stats.peak_bytes).text);
    if (strcmp(b->device.backend, "cpu") != 0) {
        printf("steps      %lld, of which %lld were issued ahead, and %lld replayed%s%s\n", (long long)b->stats.steps,
               (long long)b->stats.ahead_steps, (long long)b->stats.replayed_steps,
               b->stats.replay_failure[0] != '\0' ? "; then: " : "", b->stats.replay_failure);
    }
    printf("\n");
    printf("%-22s%12s%22s%12s%12s\n", "", "tokens/s", "range", "of reading", "of matrix");
    char name[32];
    snprintf(name, sizeof name, "prefill %d", (int)b->prompt_tokens);
    print_speed(&b->prefill.speed, name, "", prefill_share(b));
    print_decode(b);
    printf("\nFirst token of a prompt of %d tokens after %.3f s. Medians of %d. Of reading: weights read, of what the\n"
           "machine reads at most; of matrix: 2 operations per linear parameter and token, the head's where it has\n"
           "logits, of its matrix peak. %s.\n",
           (int)b->prompt_tokens, b->prefill.speed.first_token_seconds, (int)b->o->n_repeat,
           limits_move(b) ? "Both limits are means of before and after the row"
                          : "Both limits were measured before the model was opened");
}

/* Limits of the machine: those that the shares of kernels and of training are of; rows have their own. */
static void write_start_json(const bench *b, text_buffer *out) {
    const qrun_model_info *m = &b->engine->info;
    const qrun_peaks *limits = b->o->kernels || b->o->training.train ? &b->peaks : &b->most;
    text_puts(out, "{\"model\":");
    text_json_string(out, m->folder, strlen(m->folder));
    text_format(out,
                ",\"family\":\"%s\",\"quant\":\"%s\",\"head\":\"%s\",\"dtype\":\"%s\",\"parameters\":%lld,"
                "\"active_parameters\":%lld,\"linear_parameters\":%lld,\"weight_bytes\":%lld,\"step_weight_bytes\":%"
                "lld,\"load_seconds\":%.6f,",
                m->family, m->quant, m->head_format, m->dtype, (long long)m->n_parameters,
                (long long)m->n_active_parameters, (long long)m->n_linear_parameters, (long long)m->weight_bytes,
                (long long)m->step_weight_bytes, m->load_seconds);
    if (m->expert_note != NULL) {
        text_puts(out, "\"experts\":");
        text_json_string(out, m->expert_note, strlen(m->expert_note));
        text_puts(out, ",");
    }
    text_format(out,
                "\"machine\":{\"backend\":\"%s\",\"isa\":\"%s\",\"numerics\":\"%s\",\"threads\":%d,"
                "\"read_bytes_per_second\":%.6g,"
                "\"bf16_flops\":%.6g,\"f32_flops\":%.6g,\"f16_flops\":%.6g,\"features\":",
                b->device.backend, b->device.isa, b->device.numerics, (int)b->device.n_threads,
                limits->read_bytes_per_second, limits->bf16_flops, limits->f32_flops, limits->f16_flops);
    text_json_string(out, b->device.features, strlen(b->device.features));
    text_puts(out, "},");
}

static void write_decode_json(const bench *b, int c, int i, text_buffer *out) {
    const measured_row *row = &b->decode[c][i];
    const measure_result *r = &row->speed;
    text_format(out,
                "%s{\"context\":%lld,\"batch\":%lld,\"tokens\":%d,\"tokens_per_second\":%.6g,\"least\":%.6g,"
                "\"most\":%.6g,\"read_bytes_per_second\":%.6g,\"matrix_flops\":%.6g,\"read_share\":%.6g,"
                "\"matrix_share\":%.6g}",
                c + i > 0 ? "," : "", (long long)b->contexts.values[c], (long long)b->batches.values[i],
                (int)b->o->decode_tokens, r->tokens_per_second, r->least, r->most, row->peaks.read_bytes_per_second,
                matrix_peak(b, &row->peaks), read_share(b, row, b->batches.values[i]), flops_share(b, row, 1));
}

static void write_speeds_json(const bench *b, text_buffer *out) {
    text_format(out,
                "\"planned_bytes\":%lld,\"peak_bytes\":%lld,\"repeat\":%d,\"steps\":%lld,\"replayed_steps\":%lld,"
                "\"ahead_steps\":%lld,\"replay_failure\":",
                (long long)b->stats.planned_bytes, (long long)b->stats.peak_bytes, (int)b->o->n_repeat,
                (long long)b->stats.steps, (long long)b->stats.replayed_steps, (long long)b->stats.ahead_steps);
    text_json_string(out, b->stats.replay_failure, strlen(b->stats.replay_failure));
    text_puts(out, ",");
    text_format(out,
                "\"prefill\":{\"prompt_tokens\":%d,\"tokens_per_second\":%.6g,\"least\":%.6g,\"most\":%.6g,"
                "\"first_token_seconds\":%.6g,\"matrix_flops\":%.6g,\"matrix_share\":%.6g},\"decode\":[",
                (int)b->prompt_tokens, b->prefill.speed.tokens_per_second, b->prefill.speed.least,
                b->prefill.speed.most, b->prefill.speed.first_token_seconds, matrix_peak(b, &b->prefill.peaks),
                prefill_share(b));
    for (int c = 0; c < b->contexts.count; c++) {
        for (int i = 0; i < b->batches.count; i++) { write_decode_json(b, c, i, out); }
    }
    text_puts(out, "]}\n");
}

static int report(const bench *b) {
    const char *json_path = b->o->json;
    const bool json_only = json_path != NULL && strcmp(json_path, "-") == 0;
    progress_clear();
    if (!json_only) {
        print_start(b);
        if (b->o->kernels) {
            bench_kernels_print(&b->kernels, &b->peaks, matrix_peak(b, &b->peaks));
        } else if (b->o->training.train) {
            bench_train_print(b->engine, &b->training, matrix_peak(b, &b->peaks));
        } else if (reuses(b->o)) {
            bench_reuse_print(&b->reuse);
        } else {
            print_table(b);
        }
    }
    if (json_path == NULL) { return EXIT_OK; }
    text_buffer out = {0};
    write_start_json(b, &out);
    if (b->o->kernels) {
        bench_kernels_json(&b->kernels, &b->peaks, matrix_peak(b, &b->peaks), &out);
    } else if (b->o->training.train) {
        bench_train_json(b->engine, &b->training, matrix_peak(b, &b->peaks), &out);
    } else if (reuses(b->o)) {
        bench_reuse_json(&b->reuse, &out);
        text_format(&out, "\"repeat\":%d}\n", (int)b->o->n_repeat);
    } else {
        write_speeds_json(b, &out);
    }
    int code = EXIT_OK;
    if (json_only) {
        (void)fwrite(out.data, 1, out.size, stdout); /* finish_stdout tells of a failure */
    } else {
        code = replace_file(json_path, &out);
    }
    text_free(&out);
    return code;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static int64_t largest_of(const option_ints *values) {
    int64_t largest = 1;
    for (int i = 0; i < values->count; i++) {
        if (values->values[i] > largest) { largest = values->values[i]; }
    }
    return largest;
}

/* A session with room for every measurement at once and no prompt shared with another. */
static qrun_session_params session_params(const bench *b) {
    enum { PAGE_SLACK_TOKENS = 32 };
    qrun_session_params params = engine_session_params(&b->o->engine);
    const int64_t decode_length = largest_of(&b->contexts) + (int64_t)b->o->decode_tokens + 1;
    const int64_t prompt_length = (int64_t)b->prompt_tokens + 1;
    const int64_t longest = decode_length > prompt_length ? decode_length : prompt_length;
    const int64_t all_decoding = (decode_length + PAGE_SLACK_TOKENS) * largest_of(&b->batches);
    if (params.context_tokens == 0) { params.context_tokens = (int32_t)longest; }
    if (params.max_sequences == 0) { params.max_sequences = (int32_t)largest_of(&b->batches); }
    params.kv_tokens = all_decoding > longest ? all_decoding : longest + PAGE_SLACK_TOKENS;
    params.no_prefix_sharing = true;
    params.speculate = "off"; /* bench_reuse.h measures both */
    params.prefix_cache_bytes = 0;
    return params;
}

enum { PROMPT_TOKENS = 512 };

/* The plan of the smallest session reads the model's description: what is wrong with that is told before the machine is
 * measured. */
static int check_model(const bench *b) {
    const qrun_model_params model_params = engine_model_params(&b->o->engine);
    qrun_session_params session_params = engine_session_params(&b->o->engine);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries;
    session_params.context_tokens = session_params.max_sequences = session_params.max_step_tokens = 1;
    session_params.speculate = "off";
    const qrun_status status =
        qrun_plan_session(b->engine->context, &model_params, &session_params, &entries, &n_entries, NULL, &error);
    qrun_free(entries);
    return complain_unless_ok(status, &error);
}

static qrun_peaks each(qrun_peaks a, const qrun_peaks *b, double (*join)(double, double)) {
    a.read_bytes_per_second = join(a.read_bytes_per_second, b->read_bytes_per_second);
    a.bf16_flops = join(a.bf16_flops, b->bf16_flops);
    a.f16_flops = join(a.f16_flops, b->f16_flops);
    a.f32_flops = join(a.f32_flops, b->f32_flops);
    return a;
}

static double mean(double a, double b) { return (a + b) / 2; }

static int measure_limits(bench *b, double seconds) {
    const bool first = b->most.read_bytes_per_second == 0;
    qrun_error error = QRUN_ERROR_INIT;
    progress_draw(0, 0, "measuring the machine");
    if (qrun_context_measure_peaks(b->engine->context, seconds, &b->now, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    b->least = first ? b->now : each(b->least, &b->now, fmin);
    b->most = first ? b->now : each(b->most, &b->now, fmax);
    return EXIT_OK;
}

/* After something was measured: the limits beside it. */
static int measure_limits_again(bench *b, qrun_peaks *beside) {
    const qrun_peaks before = b->now;
    if (limits_move(b)) { RETURN_IF_FAILED(measure_limits(b, 0.5)); }
    *beside = each(before, &b->now, mean);
    return EXIT_OK;
}

static int open_model(bench *b) {
    const engine_options *options = &b->o->engine;
    qrun_error error = QRUN_ERROR_INIT;
    RETURN_IF_FAILED(engine_open_context(b->engine, &options->context));
    RETURN_IF_FAILED(check_model(b));
    RETURN_IF_FAILED(measure_limits(b, 2.0));
    if (qrun_context_device_info(b->engine->context, &b->device, &error) != QRUN_OK) { return complain_error(&error); }
    bench_train_forget_peak();
    engine_options wanted = *options;
    wanted.model.offload_parameters = train_offload_of_model(b->o->training.offload);
    return engine_open_model(b->engine, &wanted);
}

/* What the options ask for: drafts, and prefixes that come back from host memory. */
static int measure_reuse(bench *b) {
    const qrun_session_params params = engine_session_params(&b->o->engine);
    if (speculates(b->o)) { RETURN_IF_FAILED(bench_drafts_measure(b->engine, &params, b->o->n_repeat, &b->reuse)); }
    if (params.prefix_cache_bytes == 0) { return EXIT_OK; }
    return bench_prefix_measure(b->engine, &params, b->prompt_tokens, b->o->n_repeat, &b->reuse);
}

/* The first of the batches and of the contexts alone. */
static int measure_kernels(bench *b) {
    const int code =
        bench_kernels_measure(b->engine, b->prompt_tokens, b->batches.values[0], b->contexts.values[0], &b->kernels);
    progress_clear();
    return code != EXIT_OK ? code : measure_limits_again(b, &b->peaks);
}

static int measure_training(bench *b) {
    const int64_t memory_bytes = b->o->engine.model.memory_bytes;
    const int code = b->o->kernels
                         ? bench_train_kernels(b->engine, &b->o->training, memory_bytes, &b->kernels)
                         : bench_train_measure(b->engine, &b->o->training, memory_bytes, b->o->n_repeat, &b->training);
    return code != EXIT_OK ? code : measure_limits_again(b, &b->peaks);
}

/* In the words of the options: a session would speak of a context that nobody asked for. */
static int check_lengths(const bench *b, int32_t context_tokens) {
    const int32_t most = reuses(b->o) ? context_tokens : context_tokens - 1; /* of prompts that are not answered */
    if (b->prompt_tokens > most) {
        return complain(EXIT_USAGE, "--prompt-tokens can be at most %d: this model is made for %d tokens", (int)most,
                        (int)context_tokens);
    }
    if (!reuses(b->o) && largest_of(&b->contexts) + b->o->decode_tokens > most) {
        return complain(EXIT_USAGE,
                        "--decode-context and --decode-tokens can be at most %d together: this model is made for %d "
                        "tokens",
                        (int)most, (int)context_tokens);
    }
    return EXIT_OK;
}

static int measure(bench *b) {
    const int32_t context_tokens = b->engine->info.context_tokens;
    if (b->prompt_tokens == 0) {
        b->prompt_tokens = context_tokens > PROMPT_TOKENS ? PROMPT_TOKENS : context_tokens - 1;
    }
    RETURN_IF_FAILED(check_lengths(b, context_tokens));
    if (reuses(b->o)) { return measure_reuse(b); }
    const qrun_session_params params = session_params(b);
    RETURN_IF_FAILED(engine_open_session(b->engine, &params));
    if (b->o->kernels) { return measure_kernels(b); }
    RETURN_IF_FAILED(measure_prefill(b->engine, b->prompt_tokens, b->o->n_repeat, &b->prefill.speed));
    int code = measure_limits_again(b, &b->prefill.peaks);
    for (int c = 0; c < b->contexts.count; c++) {
        for (int i = 0; i < b->batches.count && code == EXIT_OK; i++) {
            measured_row *row = &b->decode[c][i];
            code = measure_decode(b->engine, b->batches.values[i], b->contexts.values[c], b->o->decode_tokens,
                                  b->o->n_repeat, &row->speed);
            if (code == EXIT_OK) { code = measure_limits_again(b, &row->peaks); }
        }
    }
    (void)qrun_session_get_stats(b->engine->session, &b->stats, NULL);
    return code;
}

/* Told before anything is measured, which takes long. */
static int check_json_path(const char *path) {
    if (path == NULL || strcmp(path, "-") == 0) { return EXIT_OK; }
    struct stat target;
    text_buffer folder = {0};
    folder_of(path, &folder);
    int code = EXIT_OK;
    if (access(folder.data, W_OK | X_OK) != 0) {
        code = complain(EXIT_FILE, "cannot write '%s': %s", path, strerror(errno));
    } else if (stat(path, &target) == 0 && !S_ISREG(target.st_mode)) {
        code = complain(EXIT_FILE, "--json '%s' is no regular file; \"-\" is stdout", path);
    }
    text_free(&folder);
    return code;
}

/* More sequences at once than the session takes would be measured in turns, and be no such number. */
static int choose_batches(const bench_options *o, option_ints *batches) {
    static const option_ints standard = {{1, 8, 16, 32}, 4};
    *batches = o->batches.count > 0 ? o->batches : standard;
    const int64_t most = o->engine.session.max_sequences > 0 ? o->engine.session.max_sequences : INT64_MAX;
    if (o->batches.count == 0) {
        while (batches->count > 1 && batches->values[batches->count - 1] > most) { batches->count--; }
    }
    if (largest_of(batches) <= most) { return EXIT_OK; }
    return complain(EXIT_USAGE, "--batch %lld needs --max-sequences of at least that, not %lld",
                    (long long)largest_of(batches), (long long)most);
}

/* Options of the one measurement say nothing about the other. */
static int check_modes(const bench_options *o, const command_line *line) {
    const char *stray = bench_train_stray_option(&o->training, line);
    if (stray != NULL) { return complain(EXIT_USAGE, "--%s is for measuring training; add --train", stray); }
    if (o->engine.session.cache_dir != NULL) {
        return complain(EXIT_USAGE, "files are not measured; --prefix-cache measures prefixes that come back");
    }
    if (o->kernels && reuses(o)) {
        return complain(EXIT_USAGE, "--speculate and --prefix-cache do not go with --kernels");
    }
    const bool writes = option_given(line, "decode-tokens") || o->batches.count > 0 || o->contexts.count > 0;
    if (o->training.train && reuses(o)) {
        return complain(EXIT_USAGE, "--speculate and --prefix-cache do not go with --train");
    }
    if (reuses(o) && writes) {
        return complain(EXIT_USAGE,
                        "--decode-tokens, --decode-context and --batch do not go with --speculate and --prefix-cache");
    }
    if (o->engine.session.prefix_cache_bytes == 0 && speculates(o) && option_given(line, "prompt-tokens")) {
        return complain(EXIT_USAGE, "--prompt-tokens goes with --prefix-cache; the texts of --speculate are its own");
    }
    if (o->training.train && (option_given(line, "prompt-tokens") || writes)) {
        return complain(EXIT_USAGE,
                        "--prompt-tokens, --decode-tokens, --decode-context and --batch do not go with --train");
    }
    return EXIT_OK;
}

static int run(const void *options, const command_line *line, engine *e) {
    const bench_options *o = options;
    option_ints batches;
    if ((o->engine.model.path == NULL) == (o->engine.shape == NULL)) {
        return complain(EXIT_USAGE, "give either --model DIR or --shape CONFIG.json");
    }
    RETURN_IF_FAILED(check_modes(o, line));
    RETURN_IF_FAILED(check_json_path(o->json));
    RETURN_IF_FAILED(choose_batches(o, &batches));
    bench *b = allocate(sizeof *b);
    b->engine = e;
    b->device = (qrun_device_info)QRUN_DEVICE_INFO_INIT;
    b->now = b->least = b->most = (qrun_peaks)QRUN_PEAKS_INIT;
    b->stats = (qrun_session_stats)QRUN_SESSION_STATS_INIT;
    b->prompt_tokens = o->prompt_tokens;
    b->batches = batches;
    b->contexts = o->contexts.count > 0 ? o->contexts : (option_ints){{16}, 1};
    b->o = o;
    int code = open_model(b);
    if (code == EXIT_OK) { code = o->training.train ? measure_training(b) : measure(b); }
    if (code == EXIT_OK) { code = report(b); }
    progress_clear();
    bench_kernels_free(&b->kernels);
    free(b);
    return code;
}

static const bench_options defaults = {
    .engine = ENGINE_OPTIONS_INIT, .decode_tokens = 64, .n_repeat = 3, .training = BENCH_TRAIN_OPTIONS_INIT};

const command command_bench = {
    .name = "bench",
    .summary = "measure prefill, decode and training speed, and the machine's peaks",
    .usage = "--model DIR | --shape CONFIG.json [OPTIONS]",
    .description = "Random tokens run through an ordinary session. Tokens per second are shown with the share of the "
                   "machine's peaks, measured in the same run. The bandwidth of reading memory bounds decoding, and "
                   "the peak of matrix products bounds prefill and training.\n\n"
                   "In place of that, --speculate measures answers that are written with drafts and without: an edited "
                   "text, and prose. --prefix-cache measures prompts that are computed, and that come back after their "
                   "K/V pages have left the cache.",
    .examples = "  qrun bench --model path/to/model\n"
                "  qrun bench --model path/to/model --speculate ngram --prefix-cache 2GiB --prompt-tokens 4096\n"
                "  qrun bench --shape path/to/config.json --quant nf4-dq --quant-head int8 --json result.json\n"
                "  qrun bench --model path/to/model --batch 1,4,64 --decode-tokens 128 --repeat 5\n"
                "  qrun bench --shape path/to/config.json --train --quant nf4 --seq-len 1024 --rank 16\n"
                "  qrun bench --model path/to/model --kernels",
    .first_options = "model shape quant prompt-tokens decode-tokens batch repeat train kernels json",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
