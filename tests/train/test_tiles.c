/* Layers computed in tiles of rows: losses and adapter have the bits of whole layers, for tiles of any size, with every
 * offload and however examples share a batch; what is held at most is the plan. The memory decides on tiles where
 * nothing else is said, and long rows fit into the memory of a card. */
#include "check.h"

#include "base/sizes.h"
#include "base/status.h"
#include "qrun.h"
#include "temporary.h"
#include "trainer_run.h"

/* A run that saves nothing shows in its losses, the later ones of which depend on all before. */
enum { N_STEPS = 2, MOST_STEPS = 5 };

static temporary_folder folder;
static qrun_context *own_context;

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct run_options {
    const char *name, *policy;
    qrun_dtype dtype;
    qrun_batching batching;
    bool dora, offload;
    double dropout;
    const char *fixture; /* in place of examples/model, on random tokens, of which nothing is saved */
} run_options;

static int64_t steps_of(const run_options *o) { return o->fixture != NULL ? MOST_STEPS : N_STEPS; }

/* In a context of its own, whose memory has held nothing else. */
static qrun_status train(const run_options *o, int32_t tile_rows, const char *out, double losses[MOST_STEPS]) {
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = trainer_params(out);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_status status = QRUN_OK;
    char fixture[256];
    snprintf(fixture, sizeof fixture, "%s/tests/fixtures/models/%s", QRUN_SOURCE_DIR, o->fixture ? o->fixture : "");
    model_params.path = o->fixture ? fixture : QRUN_SOURCE_DIR "/examples/model", model_params.dtype = o->dtype;
    params.data.random_tokens = o->fixture != NULL;
    params.batches.max_steps = (int32_t)steps_of(o), params.batches.batching = o->batching;
    params.memory.checkpointing = o->policy, params.memory.tile_rows = tile_rows;
    params.memory.offload_activations = params.memory.offload_optimizer = o->offload;
    params.lora.dora = o->dora, params.lora.lora_dropout = o->dropout;
    qrun_context_destroy(own_context);
    own_context = NULL;
    QR_TRY(qrun_context_create(NULL, &own_context, &error));
    QR_TRY(qrun_model_open(own_context, &model_params, &model, &error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, &error));
    trainer_run_steps(trainer, steps_of(o), losses);
    if (o->fixture == NULL) { QR_TRY(qrun_trainer_export(trainer, &error)); }
    QR_TRY(qrun_trainer_get_info(trainer, &info, &error));
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_INT(info.peak_host_bytes, info.planned_host_bytes);
    CHECK_INT(info.tile_rows, qr_min(tile_rows, 128));
    CHECK((strstr(info.checkpointing, "tiles of") != NULL) == (tile_rows > 0));
out:
    CHECK_MSG(status == QRUN_OK, "%s, %d rows: %s", o->name, (int)tile_rows, error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    return status;
}

/* In BF16, AMX adds the products of 32 tokens at a time. */
static bool has_same_bits(const run_options *o, int32_t tile_rows) {
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    const bool known = qrun_context_device_info(trainer_context, &info, &error) == QRUN_OK;
    CHECK_MSG(known, "%s", error.message);
    return tile_rows % 32 == 0 || o->dtype != QRUN_DTYPE_BF16 || !known || strncmp(info.isa, "amx", 3) != 0;
}

/* turn: which of the tiles it takes, where not all. */
static void check_run(const run_options *o, size_t turn) {
    static const int32_t tiles[] = {1 << 20, 64, 17};
    double expected[MOST_STEPS] = {0}, losses[MOST_STEPS] = {0};
    char whole[64], tiled[64], name[64];
    snprintf(name, sizeof name, "%s-whole", o->name);
    snprintf(whole, sizeof whole, "%s", trainer_path(name));
    REQUIRE(train(o, 0, whole, expected) == QRUN_OK);
    size_t chosen = turn % QR_COUNT_OF(tiles);
    while (!has_same_bits(o, tiles[chosen])) { chosen = (chosen + 1) % QR_COUNT_OF(tiles); }
    for (size_t i = 0; i < QR_COUNT_OF(tiles); i++) {
        if (!has_same_bits(o, tiles[i]) || (check_thins() && i != chosen)) { continue; }
        snprintf(name, sizeof name, "%s-%d", o->name, (int)tiles[i]);
        snprintf(tiled, sizeof tiled, "%s", trainer_path(name));
        REQUIRE(train(o, tiles[i], tiled, losses) == QRUN_OK);
        CHECK_MSG(memcmp(losses, expected, sizeof losses) == 0, "%s: losses %.17g and %.17g", name, losses[N_STEPS - 1],
                  expected[N_STEPS - 1]);
        if (o->fixture != NULL) { continue; }
        CHECK_MSG(trainer_adapters_are_equal(whole, tiled), "%s: the adapters", name);
    }
}

static void test_runs_have_the_same_bits(void) {
    static const run_options runs[] = {
        {"plain", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, false, false, 0, NULL},
        {"auto", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, true, 0, NULL},
        {"offload", "full", QRUN_DTYPE_F16, QRUN_BATCHING_GROUP, false, true, 0, NULL},
        {"dora", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_GROUP, true, true, 0, NULL},
        {"dropped", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, false, 0.1, NULL},
        {"dropout", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0.2, NULL},
        {"delta", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "qwen3_5"},
        {"delta-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "qwen3_5"},
        {"delta-experts", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, false, false, 0, "qwen3_5-moe"},
        {"spaces", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "granite4-spaces"},
        {"beside", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "falcon-h1"},
        {"beside-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "falcon-h1-norm"},
        {"xielu", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, false, true, 0.1, "apertus"},
        {"streams", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "gemma3n"},
        {"streams-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "gemma3n-three"},
        {"blocks", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "nemotron-h"},
        {"blocks-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "nemotron-h"},
        {"blocks-experts", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, false, true, 0, "nemotron-h-moe"},
        {"latents", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "youtu"},
        {"latents-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "minicpm3"},
        {"parallel", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "cohere2"},
        {"parallel-f32", "auto", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, false, 0, "cohere"},
        {"delta-apart", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "olmo-hybrid"},
        {"delta-channels", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "kimi-linear"},
        {"short-values", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, false, 0.1, "mimo-v2-flash"},
        {"heads-by-layer", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "laguna"},
        {"norm-of-experts", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "axk1"},
        {"heads-in-turn", "full", QRUN_DTYPE_BF16, QRUN_BATCHING_PACK, true, true, 0.1, "gpt-neox"},
        {"plain-norms", "full", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, true, 0, "nanochat"},
        {"by-key-head", "full", QRUN_DTYPE_F32, QRUN_BATCHING_PACK, false, true, 0, "qwen3-next"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(runs); i++) { check_run(&runs[i], i); }
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void test_what_takes_no_tiles(void) {
    qrun_train_params params = trainer_params(trainer_path("refused"));
    params.memory.tile_rows = 32;
    params.memory.checkpointing = "attn";
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "with `checkpointing=attn` they are not");
    params.memory.checkpointing = "every:2";
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "take full or auto");
    params.memory.tile_rows = -2;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`tile_rows`");
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t hidden, layers, heads, kv_heads, mlp, vocab;
    const char *rope;
} shape;

#define LLAMA3_ROPE                                                                                                 \
    "{\"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, \"original_max_position_embeddings\": " \
    "8192, \"rope_type\": \"llama3\"}"

static const shape llama_8b = {4096, 32, 32, 8, 14336, 128256, LLAMA3_ROPE};
static const shape llama_70b = {8192, 80, 64, 8, 28672, 128256, LLAMA3_ROPE};

/* The layers in 4 bits, head and embedding in 8. */
static qrun_model_params describe(const shape *s) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    char text[768];
    snprintf(text, sizeof text,
             "{\"model_type\": \"llama\", \"hidden_size\": %lld, \"num_hidden_layers\": %lld, "
             "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": 128, "
             "\"intermediate_size\": %lld, \"vocab_size\": %lld, \"max_position_embeddings\": 1048576, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"rope_scaling\": %s, \"hidden_act\": \"silu\", "
             "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
             (long long)s->hidden, (long long)s->layers, (long long)s->heads, (long long)s->kv_heads, (long long)s->mlp,
             (long long)s->vocab, s->rope);
    params.path = temporary_text(&folder, "config.json", text);
    params.random_weights = true, params.quant = QRUN_QUANT_NF4_DQ;
    params.quant_head_int8 = params.quant_embedding_int8 = true;
    return params;
}

static qrun_train_params long_row(int32_t seq_len) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.lora.rank = 16, params.batches.seq_len = seq_len, params.batches.batch_size = 1;
    params.memory.checkpointing = "full", params.memory.offload_activations = true;
    return params;
}

static qrun_status plan(qrun_context *context, const qrun_model_params *model, const qrun_train_params *params,
                        qrun_plan_info *info) {
    qrun_plan_entry *entries = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n_entries;
    *info = (qrun_plan_info)QRUN_PLAN_INFO_INIT;
    const qrun_status status = qrun_plan_training(context, model, params, &entries, &n_entries, NULL, info, &error);
    CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "%s", error.message);
    qrun_free(entries);
    return status;
}

/* Whole layers where they fit, else the largest tiles that do, and a run that is refused has the smallest. */
static void test_memory_decides_on_tiles(void) {
    const qrun_model_params model = describe(&(shape){256, 4, 2, 1, 1024, 1000, LLAMA3_ROPE});
    qrun_train_params params = long_row(3000);
    qrun_plan_info whole, tiled, next;
    params.memory.memory_bytes = INT64_C(1) << 40;
    CHECK(plan(trainer_context, &model, &params, &whole) == QRUN_OK);
    CHECK_INT(whole.tile_rows, 0);
    int64_t last = 0;
    for (int n_doublings = 0; n_doublings < 5; n_doublings++) {
        params.memory.memory_bytes = INT64_C(1) << 40, params.memory.tile_rows = 128 << n_doublings;
        CHECK(plan(trainer_context, &model, &params, &next) == QRUN_OK);
        CHECK_MSG(next.total_bytes > last && next.total_bytes < whole.total_bytes, "%d doublings", n_doublings);
        last = next.total_bytes;
        params.memory.memory_bytes = next.total_bytes, params.memory.tile_rows = QRUN_AUTO;
        CHECK(plan(trainer_context, &model, &params, &tiled) == QRUN_OK);
        CHECK_INT(tiled.tile_rows, 128 << n_doublings);
        CHECK_INT(tiled.total_bytes, next.total_bytes);
        params.memory.memory_bytes--, params.memory.tile_rows = 0;
        CHECK(plan(trainer_context, &model, &params, &tiled) == (n_doublings > 0 ? QRUN_OK : QRUN_ERROR_MEMORY));
        CHECK_INT(tiled.tile_rows, n_doublings > 0 ? 64 << n_doublings : 128);
    }
}

/* By planning alone, on cards that need not be there: a row this long fits, and one of a few more tokens does not. */
static void check_longest(const char *device, const shape *s, int64_t least) {
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *card = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_fit_result fitted = QRUN_FIT_RESULT_INIT;
    const qrun_model_params model = describe(s);
    const qrun_train_params params = long_row(0);
    context_params.device_memory = device;
    REQUIRE(qrun_context_create(&context_params, &card, &error) == QRUN_OK);
    CHECK_MSG(qrun_fit_training(card, &model, &params, QRUN_FIT_CONTEXT, &fitted, &error) == QRUN_OK, "%s",
              error.message);
    printf("  %s: %lld tokens in one row\n", device, (long long)fitted.largest);
    CHECK_MSG(fitted.largest >= least, "%s: %lld tokens", device, (long long)fitted.largest);
    qrun_context_destroy(card);
}

static void test_long_rows_fit_a_card(void) {
    check_longest("rtx-4090", &llama_8b, 100000);
    check_longest("h100", &llama_8b, 400000);
}

/* In GiB, of a run on a card with tiles of 128 rows. */
static double gib_of(const shape *s, const qrun_train_params *run, qrun_offload offload) {
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *card = NULL;
    qrun_model_params model = describe(s);
    qrun_train_params params = *run;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    context_params.device_memory = "h100";
    CHECK(qrun_context_create(&context_params, &card, NULL) == QRUN_OK);
    model.offload_parameters = offload;
    params.memory.tile_rows = 128, params.memory.memory_bytes = INT64_C(1) << 40;
    (void)plan(card, &model, &params, &info);
    qrun_context_destroy(card);
    return (double)info.total_bytes / (1 << 30);
}

/* With AdamW, whose states are in F32; those of the 70B are in host memory. */
static void test_models_fit_what_they_should(void) {
    qrun_train_params params = long_row(2048);
    params.batches.batch_size = 2;
    const double small = gib_of(&llama_8b, &params, QRUN_OFFLOAD_NONE);
    params.batches.batch_size = 1, params.memory.offload_optimizer = true;
    const double resident = gib_of(&llama_70b, &params, QRUN_OFFLOAD_NONE);
    const double streamed = gib_of(&llama_70b, &params, QRUN_OFFLOAD_ALL);
    printf("  8B at 2 x 2,048: %.2f GiB; 70B at 2,048: %.2f GiB, with its layers in host memory %.2f GiB\n", small,
           resident, streamed);
    CHECK(small <= 6.5 && resident <= 38 && streamed <= 12);
}

/* The same of models of 2026, by their shapes in bench/. */
static double gib_of_hybrid(const char *file) {
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *card = NULL;
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = long_row(2048);
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    char path[256];
    snprintf(path, sizeof path, "%s/bench/shapes/%s", QRUN_SOURCE_DIR, file);
    context_params.device_memory = "rtx-4090";
    CHECK(qrun_context_create(&context_params, &card, NULL) == QRUN_OK);
    model.path = path, model.random_weights = true, model.quant = QRUN_QUANT_NF4_DQ;
    model.quant_head_int8 = model.quant_embedding_int8 = true;
    params.memory.offload_optimizer = true, params.memory.tile_rows = 128;
    CHECK(plan(card, &model, &params, &info) == QRUN_OK);
    qrun_context_destroy(card);
    return (double)info.total_bytes / (1 << 30);
}

static void test_hybrids_fit_what_they_should(void) {
    const double dense = gib_of_hybrid("qwen3.6-27b.json"), experts = gib_of_hybrid("qwen3.6-35b-a3b.json");
    printf("  27B: %.2f GiB; 35B with 3B active: %.2f GiB\n", dense, experts);
    CHECK(dense <= 16.5 && experts <= 20);
}

/* The 8B model at a sixteenth of its width, in as little memory as makes the run take tiles: what is held is the plan.
 */
static void test_a_sixteenth_of_it_runs(void) {
    const qrun_model_params model_params = describe(&(shape){256, 32, 2, 1, 896, 8016, LLAMA3_ROPE});
    qrun_train_params params = long_row(CHECK_SANITIZED ? 600 : 2048);
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_plan_info planned;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    bool done = false;
    qrun_status status = QRUN_OK;
    qrun_context_destroy(own_context);
    own_context = NULL;
    QR_TRY(qrun_context_create(NULL, &own_context, &error));
    params.memory.tile_rows = 256, params.memory.memory_bytes = INT64_C(1) << 40;
    params.data.random_tokens = true, params.batches.max_steps = 1;
    QR_TRY(plan(own_context, &model_params, &params, &planned));
    params.memory.tile_rows = 0, params.memory.memory_bytes = planned.total_bytes;
    QR_TRY(qrun_model_open(own_context, &model_params, &model, &error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, &error));
    QR_TRY(qrun_trainer_step(trainer, &metrics, &done, &error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, &error));
    CHECK_INT(info.tile_rows, 256);
    CHECK_INT(info.planned_bytes, planned.total_bytes);
    CHECK_INT(info.peak_bytes, planned.total_bytes);
out:
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    if (!trainer_run_begin(40)) { return 1; }
    CHECK_RUN(test_runs_have_the_same_bits);
    CHECK_RUN(test_what_takes_no_tiles);
    CHECK_RUN(test_memory_decides_on_tiles);
    CHECK_RUN(test_long_rows_fit_a_card);
    CHECK_RUN(test_models_fit_what_they_should);
    CHECK_RUN(test_hybrids_fit_what_they_should);
    CHECK_RUN(test_a_sixteenth_of_it_runs);
    qrun_context_destroy(own_context);
    trainer_run_end();
    temporary_remove(&folder);
    return check_end();
}
