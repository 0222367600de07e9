/* The memory of training: for every policy of activation checkpointing and every optimiser, in a process of its own,
 * what the backend holds at most is the plan to the byte, and what the process holds is hardly more. Full checkpointing
 * saves most of the activations. The model has random weights and is large enough to be seen. */
#include "check.h"

#include <sys/wait.h>

#include "../runtime/anonymous_memory.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/safetensors_writer.h"
#include "qrun.h"
#include "temporary.h"

enum { HIDDEN = 320, MLP = 896, LAYERS = 10, VOCAB = 1024, CONTEXT = 1024, N_TENSORS = 3 + 9 * LAYERS };

static temporary_folder folder;

/* ---- The model --------------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name;
    int64_t rows, cols;
} part;

static const part layer_parts[9] = {{"input_layernorm", HIDDEN, 0},
                                    {"post_attention_layernorm", HIDDEN, 0},
                                    {"self_attn.q_proj", HIDDEN, HIDDEN},
                                    {"self_attn.k_proj", HIDDEN / 2, HIDDEN},
                                    {"self_attn.v_proj", HIDDEN / 2, HIDDEN},
                                    {"self_attn.o_proj", HIDDEN, HIDDEN},
                                    {"mlp.gate_proj", MLP, HIDDEN},
                                    {"mlp.up_proj", MLP, HIDDEN},
                                    {"mlp.down_proj", HIDDEN, MLP}};

static void write_weights(const char *path) {
    static char names[N_TENSORS][80];
    static qr_safetensors_spec specs[N_TENSORS];
    static const part others[3] = {{"model.embed_tokens.weight", VOCAB, HIDDEN},
                                   {"model.norm.weight", HIDDEN, 0},
                                   {"lm_head.weight", VOCAB, HIDDEN}};
    for (int i = 0; i < N_TENSORS; i++) {
        const part *p = i < 3 ? &others[i] : &layer_parts[(i - 3) % 9];
        if (i < 3) {
            snprintf(names[i], sizeof names[i], "%s", p->name);
        } else {
            snprintf(names[i], sizeof names[i], "model.layers.%d.%s.weight", (i - 3) / 9, p->name);
        }
        specs[i] = (qr_safetensors_spec){
            .name = names[i], .dtype = QR_DTYPE_BF16, .n_dims = p->cols > 0 ? 2 : 1, .dims = {p->rows, p->cols}};
    }
    qr_error err = {0};
    qr_safetensors_writer *writer = NULL;
    CHECK_MSG(qr_safetensors_writer_create(path, "model", specs, N_TENSORS, 0, &writer, &err) == QRUN_OK, "%s",
              err.message);
    static uint16_t block[1 << 14];
    for (uint32_t i = 0; i < 1 << 14; i++) { /* random mantissas and signs, magnitudes from 2^-8 to 2^-5 */
        const uint64_t bits = qr_hash_mix(i + 1);
        block[i] = (uint16_t)((bits & 0x807F) | (uint16_t)((119 + (bits >> 20) % 4) << 7));
    }
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        for (int64_t left = spec->dims[0] * (spec->n_dims == 2 ? spec->dims[1] : 1) * 2; left > 0;) {
            const size_t piece = left < (int64_t)sizeof block ? (size_t)left : sizeof block;
            CHECK(qr_safetensors_writer_write(writer, block, piece, &err) == QRUN_OK);
            left -= (int64_t)piece;
        }
    }
    CHECK_MSG(qr_safetensors_writer_commit(writer, &err) == QRUN_OK, "%s", err.message);
}

static void make_model(void) {
    char config[1024];
    char *tokenizer = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    CHECK(mkdir(temporary_path(&folder, "model"), 0777) == 0);
    snprintf(config, sizeof config,
             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, "
             "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": 8, "
             "\"num_key_value_heads\": 4, \"vocab_size\": %d, \"max_position_embeddings\": %d, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
             "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
             HIDDEN, MLP, LAYERS, VOCAB, CONTEXT);
    temporary_text(&folder, "model/config.json", config);
    CHECK_MSG(qr_file_read(QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/llama2/tokenizer.json", SIZE_MAX, &tokenizer,
                           &n_bytes, &err) == QRUN_OK,
              "%s", err.message);
    temporary_write(&folder, "model/tokenizer.json", tokenizer, n_bytes);
    qr_free(tokenizer);
    write_weights(temporary_path(&folder, "model"));
    char *text = qr_alloc_zeroed(1 << 17); /* examples that fill rows of the whole context */
    for (size_t n = 0; n < 90000;) {
        n += (size_t)snprintf(text + n, (1 << 17) - n, "{\"text\": \"");
        for (int word = 0; word < 2000; word++) {
            n += (size_t)snprintf(text + n, (1 << 17) - n, "w%d ", word * 7 % 97);
        }
        n += (size_t)snprintf(text + n, (1 << 17) - n, "\"}\n");
    }
    temporary_text(&folder, "data.jsonl", text);
    qr_free(text);
}

static void quantise_model(void) {
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    char path[128], out[128];
    snprintf(path, sizeof path, "%s/model", folder.path);
    snprintf(out, sizeof out, "%s/quantised", folder.path);
    params.path = path, params.out = out, params.quant = QRUN_QUANT_NF4_DQ;
    CHECK(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    CHECK_MSG(qrun_quantize_folder(context, &params, &error) == QRUN_OK, "%s", error.message);
    qrun_context_destroy(context);
}

/* ---- A process that trains --------------------------------------------------------------------------------------- */

typedef struct memory_case {
    const char *policy;
    qrun_optimizer optimizer;
    qrun_quant quant;
    qrun_dtype dtype;
    int32_t seq_tokens, tile_rows;
    int ways; /* of offloading, below */
} memory_case;

enum { PARAMETERS = 1, OPTIMIZER = 2, GRADIENTS = 4, ACTIVATIONS = 8, FULL = 16 /* all weights are trained */ };

typedef struct measurement {
    bool done;
    int64_t planned, peak, activations;
    int64_t planned_before; /* by qrun_plan_training, without the model or the data */
    int64_t anonymous;      /* RssAnon at most, over that of the process before */
} measurement;

static int64_t planned_activations(const qrun_trainer *trainer) {
    int32_t n;
    const qrun_plan_entry *plan = qrun_trainer_plan(trainer, &n);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(plan[i].category, "activations") == 0) { return plan[i].bytes; }
    }
    return -1;
}

static qrun_status plan_before(qrun_context *context, const qrun_model_params *model_params,
                               const qrun_train_params *params, int64_t *n_bytes, qrun_error *error) {
    qrun_plan_entry *entries;
    int32_t n;
    const qrun_status status = qrun_plan_training(context, model_params, params, &entries, &n, NULL, NULL, error);
    *n_bytes = 0;
    for (int32_t i = 0; status == QRUN_OK && i < n; i++) { *n_bytes += entries[i].bytes; }
    qrun_free(entries);
    return status;
}

static qrun_status train(const memory_case *c, measurement *m, qrun_error *error) {
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    char model_path[128], data[128], out[128], cache[128];
    bool done = false;
    qrun_status status;
    const bool from_folder = (c->ways & (PARAMETERS | FULL)) == PARAMETERS; /* layers are read as they are stored */
    snprintf(model_path, sizeof model_path, "%s/%s", folder.path, from_folder ? "quantised" : "model");
    snprintf(data, sizeof data, "%s/data.jsonl", folder.path);
    snprintf(out, sizeof out, "%s/out", folder.path);
    snprintf(cache, sizeof cache, "%s/tokens", folder.path);
    model_params.path = model_path, model_params.quant = c->quant, model_params.dtype = c->dtype;
    params.data.train_data = (const char *[]){data}, params.data.n_train_data = 1, params.saving.out = out,
    params.data.cache_folder = cache, params.memory.checkpointing = c->policy;
    params.memory.tile_rows = c->tile_rows;
    model_params.offload_parameters = (c->ways & PARAMETERS) != 0 ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    model_params.trainable = params.weights.full = (c->ways & FULL) != 0;
    if (params.weights.full) { params.lora = (qrun_train_lora){0}; }
    params.memory.offload_optimizer = (c->ways & OPTIMIZER) != 0;
    params.memory.offload_gradients = (c->ways & GRADIENTS) != 0;
    params.memory.offload_activations = (c->ways & ACTIVATIONS) != 0;
    params.optimization.optimizer = c->optimizer, params.batches.seq_len = c->seq_tokens, params.batches.max_steps = 2,
    params.saving.restart = true;
    int64_t planned_before = 0;
    QR_TRY(qrun_context_create(NULL, &context, error));
    QR_TRY(plan_before(context, &model_params, &params, &planned_before, error));
    QR_TRY(qrun_model_open(context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, error));
    while (!done) { QR_TRY(qrun_trainer_step(trainer, &metrics, &done, error)); }
    QR_TRY(qrun_trainer_save(trainer, error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, error));
    *m = (measurement){.done = true,
                       .planned = info.planned_bytes,
                       .peak = info.peak_bytes,
                       .planned_before = planned_before,
                       .activations = planned_activations(trainer)};
out:
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

static void train_and_watch(const memory_case *c, measurement *m) {
    anonymous_watch w = {.stop = false};
    pthread_t thread;
    qrun_error error = QRUN_ERROR_INIT;
    const int64_t before = anonymous_bytes();
    if (pthread_create(&thread, NULL, anonymous_watch_run, &w) != 0) { return; }
    if (train(c, m, &error) != QRUN_OK) { printf("  %s: %s\n", c->policy, error.message); }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    m->anonymous = (int64_t)atomic_load(&w.peak) - before;
}

/* In a child, so that nothing an earlier case has held is measured. */
static measurement measure(const memory_case *c) {
    measurement m = {.done = false};
    int ends[2];
    if (pipe(ends) != 0) { return m; }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        train_and_watch(c, &m);
        fflush(stdout);
        _exit(write(ends[1], &m, sizeof m) == (ssize_t)sizeof m ? 0 : 1);
    }
    close(ends[1]);
    if (read(ends[0], &m, sizeof m) != (ssize_t)sizeof m) { m.done = false; }
    close(ends[0]);
    (void)waitpid(child, NULL, 0);
    return m;
}

/* ---- What must hold ---------------------------------------------------------------------------------------------- */

static const char *const optimizer_names[] = {"adamw", "adamw8bit", "adafactor", "sgd"};

static measurement check(const memory_case *c) {
    const measurement m = measure(c);
    CHECK_MSG(m.done, "%s, %s: no measurement", c->policy, optimizer_names[c->optimizer]);
    CHECK_MSG(m.peak == m.planned, "%s, %s: %lld bytes held at most, %lld planned", c->policy,
              optimizer_names[c->optimizer], (long long)m.peak, (long long)m.planned);
    CHECK_INT(m.planned_before, m.planned);
    printf("  %-8s %-10s seq %4d: planned %6.1f MB, RssAnon %6.1f MB, activations %6.1f MB\n", c->policy,
           optimizer_names[c->optimizer], (int)c->seq_tokens, (double)m.planned / 1e6, (double)m.anonymous / 1e6,
           (double)m.activations / 1e6);
    if (!CHECK_SANITIZED) {
        CHECK((double)m.anonymous <= 1.02 * (double)m.planned + 200e6);
        /* The 200 MB are for large models; what this one takes beside the plan is far less. */
        CHECK_MSG((double)m.anonymous <= 1.02 * (double)m.planned + 40e6, "%.1f MB beside the plan",
                  (double)(m.anonymous - m.planned) / 1e6);
        CHECK_MSG(m.anonymous >= m.planned / 2, "the measurement sees the memory");
    }
    return m;
}

/* Each policy with an optimiser and each optimiser with the policy that depends on what it leaves: what they take is
 * planned apart. */
static void test_every_policy_and_optimizer(void) {
    static const char *const policies[] = {"none", "full", "every:2", "attn", "mlp"};
    for (size_t p = 0; p < QR_COUNT_OF(policies); p++) {
        const memory_case c = {policies[p], (qrun_optimizer)(p % 4), QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, 256, 0, 0};
        (void)check(&c);
    }
    for (int o = QRUN_OPTIMIZER_ADAMW; o <= QRUN_OPTIMIZER_SGD; o++) {
        const memory_case c = {"auto", (qrun_optimizer)o, QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, 256, 0, 0};
        (void)check(&c);
    }
}

static void test_every_format(void) {
    static const struct {
        qrun_quant quant;
        qrun_dtype dtype;
    } formats[] = {{QRUN_QUANT_NF4, QRUN_DTYPE_F32},
                   {QRUN_QUANT_INT8, QRUN_DTYPE_BF16},
                   {QRUN_QUANT_BF16, QRUN_DTYPE_BF16},
                   {QRUN_QUANT_F32, QRUN_DTYPE_F32},
                   {QRUN_QUANT_BF16, QRUN_DTYPE_F16}};
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        const memory_case c = {"full", QRUN_OPTIMIZER_ADAMW, formats[i].quant, formats[i].dtype, 128, 0, 0};
        (void)check(&c);
    }
}

static void test_full_checkpointing_saves_most(void) {
    memory_case c = {"none", QRUN_OPTIMIZER_ADAMW, QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, CONTEXT, 0, 0};
    const measurement none = check(&c);
    c.policy = "full";
    const measurement full = check(&c);
    CHECK(full.activations > 0 && none.activations > 0);
    CHECK_MSG((double)full.activations <= 0.4 * (double)none.activations, "full checkpointing holds %.0f %% of none's",
              100.0 * (double)full.activations / (double)none.activations);
    const double planned = (double)(none.activations - full.activations);
    const double measured = (double)(none.anonymous - full.anonymous);
    CHECK_MSG(CHECK_SANITIZED || measured > 0.9 * planned, "%.1f MB less are planned, and %.1f MB less were held",
              planned / 1e6, measured / 1e6);
}

/* On the processor what is offloaded is in the same memory: the plan counts it as "host", and the kernel counts all. */
static void test_every_offload(void) {
    static const int ways[] = {PARAMETERS,
                               OPTIMIZER,
                               ACTIVATIONS,
                               PARAMETERS | OPTIMIZER | ACTIVATIONS,
                               FULL,
                               FULL | OPTIMIZER,
                               FULL | GRADIENTS,
                               FULL | ACTIVATIONS,
                               FULL | GRADIENTS | OPTIMIZER,
                               FULL | GRADIENTS | PARAMETERS,
                               FULL | GRADIENTS | OPTIMIZER | ACTIVATIONS | PARAMETERS};
    quantise_model();
    for (size_t i = 0; i < QR_COUNT_OF(ways); i += check_thins() ? 2 : 1) {
        const bool full = (ways[i] & FULL) != 0;
        printf("  %s%s%s%s%s\n", full ? "all weights" : "adapter", (ways[i] & PARAMETERS) != 0 ? ", parameters" : "",
               (ways[i] & OPTIMIZER) != 0 ? ", optimizer" : "", (ways[i] & GRADIENTS) != 0 ? ", gradients" : "",
               (ways[i] & ACTIVATIONS) != 0 ? ", activations" : "");
        const memory_case c = {
            "full", QRUN_OPTIMIZER_ADAMW, full ? QRUN_QUANT_BF16 : QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, 256, 0, ways[i]};
        (void)check(&c);
    }
}

/* What a layer takes is attention's, and one tile of the rest. */
static void test_tiles_save_more(void) {
    memory_case c = {"full", QRUN_OPTIMIZER_ADAMW, QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, CONTEXT, 0, 0};
    const measurement whole = check(&c);
    c.tile_rows = 300;
    const measurement tiles = check(&c);
    c.policy = "auto", c.tile_rows = 64;
    const measurement small = check(&c);
    CHECK(small.activations < tiles.activations && tiles.activations < whole.activations);
    CHECK_MSG((double)small.activations <= 0.65 * (double)whole.activations,
              "tiles of 64 rows hold %.0f %% of whole layers",
              100.0 * (double)small.activations / (double)whole.activations);
    CHECK_MSG(CHECK_SANITIZED ||
                  (double)(whole.anonymous - small.anonymous) > 0.9 * (double)(whole.planned - small.planned),
              "%.1f MB less are planned, and %.1f MB less were held", (double)(whole.planned - small.planned) / 1e6,
              (double)(whole.anonymous - small.anonymous) / 1e6);
}

/* ---- A plan alone ------------------------------------------------------------------------------------------------ */

/* Layers of 3.9 GB in F32: the run's plan as `info` has it. */
static qrun_status plan_layers(qrun_context *context, int64_t n_layers, const char *policy, qrun_plan_info *info) {
    char text[512];
    snprintf(text, sizeof text,
             "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"num_hidden_layers\": %lld, "
             "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"intermediate_size\": 28672, "
             "\"vocab_size\": 1024, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}",
             (long long)n_layers);
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    model_params.path = temporary_text(&folder, "config.json", text);
    model_params.random_weights = true, model_params.quant = QRUN_QUANT_F32;
    params.batches.seq_len = 1024, params.batches.batch_size = 2, params.memory.checkpointing = policy;
    const qrun_status status = qrun_plan_training(context, &model_params, &params, &entries, &n, NULL, info, &error);
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++) { total += entries[i].is_apart ? 0 : qr_max(entries[i].bytes, 0); }
    CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "%s", error.message);
    CHECK_INT(info->fits, status == QRUN_OK);
    CHECK_INT(info->total_bytes, total);
    CHECK_INT(status == QRUN_OK, info->total_bytes <= info->budget_bytes);
    qrun_free(entries);
    return status;
}

/* Weights that a plan counts are not free any more, although nobody has loaded them. */
static void test_a_plan_alone_does_not_count_memory_twice(void) {
    qrun_context *context = NULL;
    qrun_plan_info one = QRUN_PLAN_INFO_INIT, info = QRUN_PLAN_INFO_INIT;
    int n_fit = 0, n_not = 0;
    REQUIRE(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    (void)plan_layers(context, 1, "full", &one);
    const int64_t layer_bytes = INT64_C(8192) * (2 * 8192 + 2 * 1024 + 3 * 28672) * 4;
    const int64_t n_most = one.available_bytes / layer_bytes;
    for (int64_t n = 1; n <= n_most + 2; n += n_most / 8 + 1) {
        const bool fits = plan_layers(context, n, "auto", &info) == QRUN_OK;
        n_fit += fits, n_not += !fits;
        CHECK_MSG(info.budget_bytes <= info.available_bytes, "%lld layers: %lld bytes allowed, %lld free", (long long)n,
                  (long long)info.budget_bytes, (long long)info.available_bytes);
        CHECK_MSG(fits == (info.total_bytes <= info.budget_bytes), "%lld layers", (long long)n);
    }
    CHECK_MSG(n_most < 2 || (n_fit > 0 && n_not > 0), "%d fit, %d do not", n_fit, n_not);
    qrun_context_destroy(context);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = temporary_create();
    make_model();
    CHECK_RUN(test_a_plan_alone_does_not_count_memory_twice);
    CHECK_RUN(test_full_checkpointing_saves_most);
    CHECK_RUN(test_every_offload);
    CHECK_RUN(test_tiles_save_more);
    CHECK_RUN(test_every_policy_and_optimizer);
    CHECK_RUN(test_every_format);
    temporary_remove(&folder);
    return check_end();
}
