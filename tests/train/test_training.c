/* The training pass against PEFT: losses and first-step gradients of every golden; and its own promises: the same bits
 * under every checkpointing policy, the same gradient however examples are put together. */
#include "check.h"

#include "../runtime/golden_index.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/safetensors.h"
#include "runtime/folders/export.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/model_tensors.h"
#include "runtime/train/schedule.h"
#include "runtime/train/update.h"
#include "temporary.h"
#include "training_case.h"

static qr_json *golden_index;
static qrun_context *context;

typedef training_fixture fixture;

static void close_fixture(fixture *f) { training_fixture_close(f); }

static bool open_fixture(const qr_json *entry, qrun_dtype dtype, const char *policy, int64_t max_tokens, fixture *f) {
    const training_options options = {.dtype = dtype, .policy = policy, .max_tokens = max_tokens};
    return training_fixture_open(context, entry, &options, f);
}

/* The peers' run in the same type, with their errors relative to F32; NULL where there is none. Of full fine-tuning it
 * is the one with master weights in F32. */
static const qr_json *peers_run(const qr_json *entry, qrun_dtype dtype) {
    const char *bf16 = training_is_full(entry) ? "bf16-autocast" : "bf16";
    return qr_json_get(entry, dtype == QRUN_DTYPE_F16 ? "f16" : bf16);
}

/* Against PEFT's in F32: equal in F32, and in BF16 within twice what PEFT in BF16 errs by. A device may take half of
 * the models in F32, and the others in BF16. */
static void check_first_gradients(qrun_dtype dtype) {
    static training_batch batch;
    const bool takes_half = check_thins() && context->backend->memory_info != NULL;
    int n_checked = 0, turn = dtype == QRUN_DTYPE_F32 ? 0 : 1;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "gradients")); entry != NULL;
         entry = entry->next) {
        fixture f;
        if (turn++ % 2 != 0 && takes_half) { continue; }
        training_batch_read(entry_named(golden_index, "batches", text_of(entry, "batch")), 0, -1, &batch);
        const qr_json *peers = peers_run(entry, QRUN_DTYPE_BF16);
        const double bound = dtype == QRUN_DTYPE_F32 ? 1e-4 : 2 * number_of(peers, "gradient_error");
        const double tensor_bound = dtype == QRUN_DTYPE_F32 ? 1e-4 : 2 * number_of(peers, "max_tensor_error");
        if (!open_fixture(entry, dtype, "none", batch.batch.n_tokens, &f)) { continue; }
        char path[512];
        qr_error err = {0};
        qr_safetensors *golden;
        double sum;
        snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "gradients"));
        REQUIRE(qr_safetensors_open(path, &golden, &err) == QRUN_OK);
        CHECK_INT(batch.n_targets, number_of(entry, "n_targets"));
        CHECK_MSG(qr_train_pass_run(f.pass, &batch.batch, 1.0F / (float)batch.n_targets, true, &sum, &err) == QRUN_OK,
                  "%s", err.message);
        const double loss = sum / (double)batch.n_targets, expected = number_of(entry, "loss");
        const double loss_bound = dtype == QRUN_DTYPE_F32 ? 1e-5 : 0x1p-8; /* a unit of BF16 */
        CHECK_MSG(fabs(loss - expected) <= loss_bound * expected, "%s: loss %.7f, PEFT %.7f", text_of(entry, "name"),
                  loss, expected);
        const double error = training_gradient_error(&f, golden, tensor_bound);
        CHECK_MSG(error <= bound, "%s: the gradient is off by %.4g relative, allowed %.4g", text_of(entry, "name"),
                  error, bound);
        n_checked++;
        qr_safetensors_close(golden);
        close_fixture(&f);
    }
    CHECK(n_checked >= 16);
}

static void test_first_gradients_equal_peft(void) { check_first_gradients(QRUN_DTYPE_F32); }
static void test_first_gradients_in_bf16_stay_as_near_as_pefts(void) { check_first_gradients(QRUN_DTYPE_BF16); }

static float *run_with(const char *name, const training_options *options, const training_batch *batch, int64_t *n,
                       double *sum) {
    fixture f;
    qr_error err = {0};
    if (!training_fixture_open(context, entry_named(golden_index, "gradients", name), options, &f)) { return NULL; }
    CHECK_MSG(qr_train_pass_run(f.pass, &batch->batch, 0.01F, true, sum, &err) == QRUN_OK, "%s", err.message);
    *n = f.parameters.n_floats;
    float *gradients = malloc((size_t)*n * sizeof *gradients);
    CHECK(training_read(&f.parameters, f.parameters.gradients, *n, gradients, &err) == QRUN_OK);
    close_fixture(&f);
    return gradients;
}

static float *run_policy(const char *name, qrun_dtype dtype, const char *policy, const training_batch *batch,
                         int64_t *n, double *sum) {
    const training_options options = {.dtype = dtype, .policy = policy, .max_tokens = batch->batch.n_tokens};
    return run_with(name, &options, batch, n, sum);
}

/* As if other layers than this had no LoRA: it adds zeros. */
static void mute_others(const qr_parameters *p, int64_t layer) {
    for (int64_t i = 0; i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        if (parameter->layer == layer || parameter->kind != QR_PARAMETER_LORA_B) { continue; }
        const size_t n_bytes = (size_t)(parameter->rows * parameter->cols) * sizeof(float);
        CHECK(p->backend->fill_zero(p->backend, p->values + parameter->offset, n_bytes, NULL) == QRUN_OK);
    }
}

/* Bytes that a pass holds for its activations. */
static int64_t planned_activations(const fixture *f, const training_options *options) {
    qr_train_limits limits = {.max_tokens = options->max_tokens, .max_sequences = TRAINING_MAX_SEQUENCES};
    qr_plan plan;
    qr_train_cost cost;
    qr_error err = {0};
    qr_plan_init(&plan);
    CHECK(qr_recompute_policy_parse(options->policy, f->model->shape.n_layers, &limits.policy, &err) == QRUN_OK);
    limits.policy.tile_rows = options->tile_rows;
    limits.policy.offload = options->offload;
    CHECK_MSG(qr_train_pass_plan(&f->parameters, &limits, &plan, &cost, &err) == QRUN_OK, "%s", err.message);
    return plan.entries[QR_PLAN_ACTIVATIONS].bytes;
}

/* LoRA on some layers alone has the gradients of these, to the bit, though the pass ends at the first of them and
 * keeps nothing of those before it. */
static void test_some_layers_have_the_same_gradients(void) {
    static training_batch batch;
    static const char *const models[] = {"llama",   "gpt2",      "gemma4-shared", "qwen3-moe-experts",
                                         "qwen3_5", "falcon-h1", "gemma3n"};
    static const struct {
        const char *name;
        int64_t tile_rows;
        bool offload;
    } policies[] = {{.name = "none"},
                    {.name = "full"},
                    {.name = "full", .offload = true},
                    {.name = "full", .tile_rows = 7},
                    {.name = "every:2"},
                    {.name = "attn"},
                    {.name = "mlp"}};
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        const qr_json *entry = entry_named(golden_index, "gradients", models[m]);
        training_batch_read(entry_named(golden_index, "batches", text_of(entry, "batch")), 0, -1, &batch);
        for (size_t policy = 0; policy < QR_COUNT_OF(policies); policy++) {
            float *gradients[2];
            fixture fixtures[2];
            double sums[2];
            int64_t bytes[2];
            qr_error err = {0};
            for (int part = 0; part < 2; part++) {
                fixture *f = &fixtures[part];
                char last[24];
                const training_options options = {.dtype = QRUN_DTYPE_F32,
                                                  .policy = policies[policy].name,
                                                  .tile_rows = policies[policy].tile_rows,
                                                  .offload = policies[policy].offload,
                                                  .max_tokens = batch.batch.n_tokens,
                                                  .layers = part == 0 ? NULL : last};
                (void)snprintf(last, sizeof last, "%lld",
                               part == 0 ? 0LL : (long long)fixtures[0].model->shape.n_layers - 1);
                REQUIRE(training_fixture_open(context, entry, &options, f));
                if (part == 0) { mute_others(&f->parameters, f->model->shape.n_layers - 1); }
                CHECK_MSG(qr_train_pass_run(f->pass, &batch.batch, 0.01F, true, &sums[part], &err) == QRUN_OK, "%s",
                          err.message);
                bytes[part] = planned_activations(f, &options);
                gradients[part] = malloc((size_t)f->parameters.n_floats * sizeof(float));
                CHECK(training_read(&f->parameters, f->parameters.gradients, f->parameters.n_floats, gradients[part],
                                    &err) == QRUN_OK);
            }
            /* Of two layers, the one that keeps nothing may be as large as both. */
            const bool spares = policy == 0 && fixtures[0].model->shape.n_layers > 2;
            CHECK_MSG(bytes[1] < bytes[0] || (!spares && bytes[1] == bytes[0]),
                      "%s, %s: %lld bytes of activations, %lld with all layers", models[m], policies[policy].name,
                      (long long)bytes[1], (long long)bytes[0]);
            const qr_parameters *all = &fixtures[0].parameters, *some = &fixtures[1].parameters;
            CHECK(sums[0] == sums[1] && some->n > 0 && some->n < all->n);
            for (int64_t i = 0, j = 0; i < some->n; i++, j++) {
                const qr_parameter *mine = &some->list[i];
                while (all->list[j].layer != mine->layer) { j++; }
                CHECK(mine->role == all->list[j].role && mine->kind == all->list[j].kind);
                CHECK_MSG(memcmp(gradients[1] + mine->offset, gradients[0] + all->list[j].offset,
                                 (size_t)(mine->rows * mine->cols) * sizeof(float)) == 0,
                          "%s, %s: tensor %lld has other bits", models[m], policies[policy].name, (long long)i);
            }
            for (int part = 0; part < 2; part++) {
                free(gradients[part]);
                close_fixture(&fixtures[part]);
            }
        }
    }
}

/* In BF16, AMX adds the products of 32 tokens at a time. */
static bool adds_by_32_tokens(qrun_dtype dtype) {
    return dtype == QRUN_DTYPE_BF16 && strncmp(context->backend->isa, "amx", 3) == 0;
}

/* Sums over tokens go on from tile to tile: of adapters, norms, whole matrices and biases, and experts. */
static void test_tiles_give_the_same_bits(void) {
    static training_batch batch;
    static const char *const models[] = {"llama",
                                         "gemma3",
                                         "gpt2",
                                         "qwen3",
                                         "qwen3-moe",
                                         "llama-dora",
                                         "gemma3-full",
                                         "gpt2-full",
                                         "qwen3_5",
                                         "qwen3_5-full",
                                         "granite4-spaces",
                                         "falcon-h1",
                                         "falcon-h1-full",
                                         "falcon-h1-norm-full",
                                         "bamba-full",
                                         "apertus",
                                         "apertus-full",
                                         "apertus1p5-full",
                                         "nemotron-h",
                                         "nemotron-h-full",
                                         "nemotron-h-moe-experts",
                                         "nemotron-h-moe-full",
                                         "gemma3n",
                                         "gemma3n-full",
                                         "gemma3n-three-full",
                                         "gemma4",
                                         "gemma4-shared",
                                         "gemma4-shared-full",
                                         "gpt-oss-full",
                                         "gemma4-moe",
                                         "gemma4-moe-full",
                                         "hunyuan",
                                         "hunyuan-full",
                                         "cohere",
                                         "cohere-full",
                                         "cohere2",
                                         "granite-swa",
                                         "axk1",
                                         "olmo-hybrid",
                                         "olmo-hybrid-full",
                                         "kimi-linear",
                                         "kimi-linear-full",
                                         "mimo-v2-flash",
                                         "mimo-v2-flash-full",
                                         "laguna",
                                         "laguna-full",
                                         "axk1-full",
                                         "afmoe",
                                         "nanochat",
                                         "nanochat-full",
                                         "nemotron-full",
                                         "gpt-neox",
                                         "gpt-neox-full",
                                         "mistral4",
                                         "mistral4-full",
                                         "qwen3-moe-full",
                                         "youtu",
                                         "youtu-full",
                                         "deepseek-v3-full"};
    static const int64_t rows[] = {1000, 32, 7, 1};
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    CHECK(batch.batch.n_tokens > 32);
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        for (int dtype = QRUN_DTYPE_BF16; dtype <= QRUN_DTYPE_F16; dtype++) {
            const bool drops = m % 3 == 0 && strstr(models[m], "-full") == NULL;
            training_options options = {.dtype = (qrun_dtype)dtype,
                                        .policy = "none",
                                        .max_tokens = batch.batch.n_tokens,
                                        .dropout = drops ? 0.1F : 0.0F};
            int64_t n;
            double sum, sum_again;
            float *whole = run_with(models[m], &options, &batch, &n, &sum);
            REQUIRE(whole != NULL);
            options.policy = "full";
            for (size_t r = 0; r < QR_COUNT_OF(rows); r++) {
                if (rows[r] < 32 && adds_by_32_tokens(options.dtype)) { continue; }
                options.tile_rows = rows[r];
                float *tiled = run_with(models[m], &options, &batch, &n, &sum_again);
                REQUIRE(tiled != NULL);
                CHECK_MSG(memcmp(whole, tiled, (size_t)n * sizeof *whole) == 0 && sum == sum_again,
                          "%s, %d, tiles of %d rows: other bits", models[m], dtype, (int)rows[r]);
                free(tiled);
            }
            free(whole);
        }
    }
}

/* On a device with memory of its own too: inputs that come back from the host give the same bits, and the gradient is
 * that without tiles, whatever the order of its sums. */
static void test_tiles_of_offloaded_inputs(void) {
    static training_batch batch;
    static const char *const models[] = {"llama", "gemma3", "llama-dora"};
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        training_options options = {.dtype = QRUN_DTYPE_F32, .policy = "full", .max_tokens = batch.batch.n_tokens};
        int64_t n;
        double sums[3];
        float *whole = run_with(models[m], &options, &batch, &n, &sums[0]);
        options.tile_rows = 16;
        float *tiled = run_with(models[m], &options, &batch, &n, &sums[1]);
        options.offload = true;
        float *offloaded = run_with(models[m], &options, &batch, &n, &sums[2]);
        REQUIRE(whole != NULL && tiled != NULL && offloaded != NULL);
        const double error = training_relative_error(tiled, whole, n);
        CHECK_MSG(error <= 1e-6 && fabs(sums[1] - sums[0]) <= 1e-6 * sums[0], "%s: off by %.3g", models[m], error);
        CHECK_MSG(memcmp(tiled, offloaded, (size_t)n * sizeof *tiled) == 0 && sums[1] == sums[2], "%s: other bits",
                  models[m]);
        free(whole), free(tiled), free(offloaded);
    }
}

static void test_policies_give_the_same_bits(void) {
    static training_batch batch;
    static const char *const policies[] = {"full", "every:2", "attn", "mlp"};
    static const char *const models[] = {"llama",
                                         "gemma3",
                                         "gpt2",
                                         "qwen3",
                                         "qwen3-moe",
                                         "llama-dora",
                                         "gemma3-full",
                                         "gpt2-full",
                                         "qwen3_5",
                                         "qwen3_5-full",
                                         "granite4-spaces",
                                         "falcon-h1",
                                         "falcon-h1-full",
                                         "falcon-h1-norm-full",
                                         "bamba-full",
                                         "apertus",
                                         "apertus-full",
                                         "apertus1p5-full",
                                         "nemotron-h",
                                         "nemotron-h-full",
                                         "nemotron-h-moe-experts",
                                         "nemotron-h-moe-full",
                                         "gemma3n",
                                         "gemma3n-full",
                                         "gemma4",
                                         "gemma4-shared",
                                         "gemma4-shared-full",
                                         "gpt-oss-full",
                                         "gemma4-moe",
                                         "gemma4-moe-full",
                                         "hunyuan",
                                         "hunyuan-full",
                                         "cohere",
                                         "cohere-full",
                                         "cohere2",
                                         "granite-swa",
                                         "axk1",
                                         "olmo-hybrid",
                                         "olmo-hybrid-full",
                                         "kimi-linear",
                                         "kimi-linear-full",
                                         "mimo-v2-flash",
                                         "mimo-v2-flash-full",
                                         "laguna",
                                         "laguna-full",
                                         "axk1-full",
                                         "afmoe",
                                         "nanochat",
                                         "nanochat-full",
                                         "nemotron-full",
                                         "gpt-neox",
                                         "gpt-neox-full",
                                         "mistral4",
                                         "mistral4-full",
                                         "youtu",
                                         "youtu-full",
                                         "qwen3-moe-full"};
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        for (int dtype = QRUN_DTYPE_BF16; dtype <= QRUN_DTYPE_F16; dtype++) {
            int64_t n;
            double sum, sum_again;
            float *kept = run_policy(models[m], (qrun_dtype)dtype, "none", &batch, &n, &sum);
            REQUIRE(kept != NULL);
            for (size_t p = 0; p < 4; p++) {
                float *again = run_policy(models[m], (qrun_dtype)dtype, policies[p], &batch, &n, &sum_again);
                REQUIRE(again != NULL);
                CHECK_MSG(memcmp(kept, again, (size_t)n * sizeof *kept) == 0 && sum == sum_again, "%s, %s: other bits",
                          models[m], policies[p]);
                free(again);
            }
            free(kept);
        }
    }
}

static void check_alone_and_together(const char *name) {
    static training_batch together, alone;
    const qr_json *entry = entry_named(golden_index, "batches", "micro-batch");
    training_batch_read(entry, 0, -1, &together);
    fixture f;
    qr_error err = {0};
    double sum, total = 0;
    int64_t n;
    float *expected = run_policy(name, QRUN_DTYPE_F32, "none", &together, &n, &sum);
    REQUIRE(expected != NULL && open_fixture(entry_named(golden_index, "gradients", name), QRUN_DTYPE_F32, "none",
                                             together.batch.n_tokens, &f));
    for (int64_t i = 0; i < together.batch.n_sequences; i++) {
        training_batch_read(entry, i, 1, &alone);
        CHECK(qr_train_pass_run(f.pass, &alone.batch, 0.01F, true, &sum, &err) == QRUN_OK);
        total += sum;
    }
    float *gradients = malloc((size_t)n * sizeof *gradients);
    CHECK(training_read(&f.parameters, f.parameters.gradients, n, gradients, &err) == QRUN_OK);
    const double error = training_relative_error(gradients, expected, n);
    CHECK_MSG(error <= 1e-6, "%s: off by %.3g", name, error);
    free(gradients), free(expected);
    close_fixture(&f);
}

/* Packed sequences are apart: attention sees its own rows, and a state begins anew. */
static void test_examples_alone_and_together(void) {
    check_alone_and_together("qwen3");
    check_alone_and_together("qwen3_5");
}

/* ---- Loss curves ------------------------------------------------------------------------------------------------- */

static qrun_optimizer optimizer_of(const qr_json *entry) {
    const char *name = text_of(entry, "optimiser");
    return strcmp(name, "adafactor") == 0 ? QRUN_OPTIMIZER_ADAFACTOR
           : strcmp(name, "sgd") == 0     ? QRUN_OPTIMIZER_SGD
                                          : QRUN_OPTIMIZER_ADAMW;
}

static qrun_schedule schedule_of(const qr_json *entry) {
    const char *name = text_of(entry, "schedule");
    return strcmp(name, "linear") == 0   ? QRUN_SCHEDULE_LINEAR
           : strcmp(name, "cosine") == 0 ? QRUN_SCHEDULE_COSINE
                                         : QRUN_SCHEDULE_CONSTANT;
}

enum { CURVE_STEPS = 20 };

/* The same model in 16 bits, which computes loss and gradient at the parameters of each step of a curve in F32. */
typedef struct companion {
    fixture f;
    float loss_scale;
    double loss_squares, gradient_errors; /* over the steps: of relative errors, squared; and summed */
} companion;

static qrun_status compute_beside(companion *c, const fixture *f, const training_batch *batch, double expected,
                                  qr_error *err) {
    qr_backend *backend = context->backend;
    const size_t n_bytes = qr_parameters_bytes(&f->parameters);
    const int64_t n = (int64_t)(n_bytes / sizeof(float));
    float *values = malloc(n_bytes), *gradient = malloc(n_bytes), *reference = malloc(n_bytes);
    qrun_status status = QRUN_OK;
    double sum;
    QR_TRY(training_read(&f->parameters, f->parameters.values, n, values, err));
    QR_TRY(backend->copy_in(backend, c->f.parameters.values, values, n_bytes, err));
    QR_TRY(qr_whole_parameters_refresh(&c->f.parameters, QR_NO_WORKSPACE, err));
    QR_TRY(backend->fill_zero(backend, c->f.parameters.gradients, n_bytes, err));
    QR_TRY(qr_train_pass_run(c->f.pass, &batch->batch, c->loss_scale / (float)batch->n_targets, true, &sum, err));
    QR_TRY(training_read(&c->f.parameters, c->f.parameters.gradients, n, gradient, err));
    QR_TRY(training_read(&f->parameters, f->parameters.gradients, n, reference, err));
    for (int64_t i = 0; i < n; i++) { gradient[i] /= c->loss_scale; }
    const double loss_error = sum / (double)batch->n_targets / expected - 1;
    c->loss_squares += loss_error * loss_error;
    c->gradient_errors += training_relative_error(gradient, reference, n);
out:
    free(values), free(gradient), free(reference);
    return status;
}

/* Twenty steps as the golden's, none of them skipped; loss and gradient norm of each. */
static qrun_status run_curve(const qr_json *entry, fixture *f, float loss_scale, companion *beside, int n_beside,
                             double *losses, double *norms, qr_error *err) {
    static training_batch batch;
    const qrun_optimizer kind = optimizer_of(entry);
    const bool is_loraplus = qr_json_get(entry, "loraplus_lr_ratio") != NULL;
    const qr_optimizer_options options = {.kind = kind,
                                          .weight_decay = kind == QRUN_OPTIMIZER_SGD ? 0.0F : 0.01F,
                                          .lr_ratio_b =
                                              is_loraplus ? (float)number_of(entry, "loraplus_lr_ratio") : 0.0F};
    qr_backend *backend = context->backend;
    qr_optimizer *optimizer = NULL;
    qr_workspace scratch = {0};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_optimizer_create(&f->parameters, &options, &optimizer, err));
    int64_t copied_bytes;
    QR_TRY(qr_update_plan(&f->parameters, &options, &scratch.n_bytes, &copied_bytes, err));
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, scratch.n_bytes, &scratch.memory, err));
    for (int64_t step = 1; step <= CURVE_STEPS; step++) {
        char name[32];
        double sum;
        qr_update_result result;
        snprintf(name, sizeof name, "curve-%d", (int)((step - 1) % 3));
        training_batch_read(entry_named(golden_index, "batches", name), 0, -1, &batch);
        QR_TRY(backend->fill_zero(backend, f->parameters.gradients, qr_parameters_bytes(&f->parameters), err));
        QR_TRY(qr_train_pass_run(f->pass, &batch.batch, loss_scale / (float)batch.n_targets, true, &sum, err));
        losses[step - 1] = sum / (double)batch.n_targets;
        for (int i = 0; i < n_beside; i++) { QR_TRY(compute_beside(&beside[i], f, &batch, losses[step - 1], err)); }
        const double lr =
            number_of(entry, "base_lr") *
            qr_schedule_factor(schedule_of(entry), step, (int64_t)number_of(entry, "n_warmup"), CURVE_STEPS);
        const double expected_lr = cJSON_GetNumberValue(cJSON_GetArrayItem(qr_json_get(entry, "lr"), (int)step - 1));
        CHECK_MSG(fabs(lr - expected_lr) <= 1e-12, "%s: step %d: rate %g, expected %g", text_of(entry, "name"),
                  (int)step, lr, expected_lr);
        const qr_update_args args = {.step = step,
                                     .learning_rate = lr,
                                     .max_grad_norm = number_of(entry, "max_grad_norm"),
                                     .loss_scale = loss_scale};
        QR_TRY(qr_update_run(&f->parameters, optimizer, &args, scratch, &result, err));
        CHECK_MSG(!result.skipped, "%s: step %d was skipped", text_of(entry, "name"), (int)step);
        norms[step - 1] = result.grad_norm;
    }
out:
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, scratch.memory, scratch.n_bytes);
    qr_optimizer_destroy(optimizer);
    return status;
}

/* ---- The loss ---------------------------------------------------------------------------------------------------- */

static qrun_status (*real_copy_out)(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err);
static int n_copies_out;

static qrun_status count_copy_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err) {
    n_copies_out++;
    return real_copy_out(backend, host, device, n_bytes, err);
}

/* The size of a chunk of rows changes neither loss nor gradients, and a pass waits for the device once. */
static void test_loss_in_chunks(void) {
    static training_batch batch;
    static const int64_t rows[] = {0, 7, 1};
    double sums[3] = {0};
    int64_t n;
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    float *whole = NULL;
    real_copy_out = context->backend->copy_out;
    for (size_t i = 0; i < QR_COUNT_OF(rows); i++) {
        const training_options options = {
            .dtype = QRUN_DTYPE_F32, .policy = "none", .max_tokens = batch.batch.n_tokens, .logit_rows = rows[i]};
        n_copies_out = 0;
        context->backend->copy_out = count_copy_out;
        float *gradients = run_with("llama", &options, &batch, &n, &sums[i]);
        context->backend->copy_out = real_copy_out;
        REQUIRE(gradients != NULL);
        CHECK_INT(n_copies_out, 2); /* the losses, and the test's own of the gradients */
        if (i == 0) {
            whole = gradients;
            continue;
        }
        const double error = training_relative_error(gradients, whole, n);
        CHECK_MSG(error <= 1e-6 && fabs(sums[i] - sums[0]) <= 1e-6 * sums[0], "%lld rows: off by %.3g, a loss of %.9g",
                  (long long)rows[i], error, sums[i]);
        free(gradients);
    }
    free(whole);
}

static double worst_of(const qr_json *expected, const double *actual) {
    double worst = 0;
    for (int i = 0; i < CURVE_STEPS; i++) {
        const double value = cJSON_GetNumberValue(cJSON_GetArrayItem(expected, i));
        const double error = fabs(actual[i] - value) / fabs(value);
        if (!(error <= worst)) { worst = error; }
    }
    return worst;
}

static const qrun_dtype SHORT_TYPES[] = {QRUN_DTYPE_BF16, QRUN_DTYPE_F16};
enum { N_SHORT_TYPES = 2, F16_LOSS_SCALE = 65536 };

static float loss_scale_of(qrun_dtype dtype) { return dtype == QRUN_DTYPE_F16 ? (float)F16_LOSS_SCALE : 1.0F; }

static void check_companion(const qr_json *entry, const companion *c, const qr_json *peers) {
    const qr_json *along = qr_json_get(peers, "along");
    const double loss_error = sqrt(c->loss_squares / CURVE_STEPS), gradient_error = c->gradient_errors / CURVE_STEPS;
    const double loss_bound = 1.5 * number_of(along, "loss_error");
    const double gradient_bound = 1.1 * number_of(along, "gradient_error");
    CHECK_MSG(loss_error <= loss_bound, "%s, loss scale %g: at F32's parameters the loss is off by %.3g, allowed %.3g",
              text_of(entry, "name"), (double)c->loss_scale, loss_error, loss_bound);
    CHECK_MSG(gradient_error <= gradient_bound,
              "%s, loss scale %g: at F32's parameters the gradient is off by %.3g relative, allowed %.3g",
              text_of(entry, "name"), (double)c->loss_scale, gradient_error, gradient_bound);
}

/* F32's curves equal PEFT's. At each of their steps 16 bits give the loss and the gradient as near to F32's as PEFT in
 * 16 bits does: at the same parameters no error of an earlier step adds to them. */
static void test_curves_equal_peft_in_f32(void) {
    int n_checked = 0, n_companions = 0;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "curves")); entry != NULL;
         entry = entry->next) {
        fixture f;
        companion beside[N_SHORT_TYPES];
        const qr_json *peers[N_SHORT_TYPES];
        int n_beside = 0;
        double losses[CURVE_STEPS], norms[CURVE_STEPS];
        qr_error err = {0};
        if (!open_fixture(entry, QRUN_DTYPE_F32, "full", TRAINING_MAX_TOKENS, &f)) { continue; }
        for (int i = 0; i < N_SHORT_TYPES; i++) {
            companion *c = &beside[n_beside];
            *c = (companion){.loss_scale = loss_scale_of(SHORT_TYPES[i])};
            peers[n_beside] = peers_run(entry, SHORT_TYPES[i]);
            n_beside +=
                peers[n_beside] != NULL && open_fixture(entry, SHORT_TYPES[i], "full", TRAINING_MAX_TOKENS, &c->f);
        }
        CHECK_MSG(run_curve(entry, &f, 1.0F, beside, n_beside, losses, norms, &err) == QRUN_OK, "%s", err.message);
        const double worst = worst_of(qr_json_get(entry, "loss"), losses);
        const double norm_error = worst_of(qr_json_get(entry, "grad_norm"), norms);
        CHECK_MSG(worst <= 1e-4, "%s: loss is off by %.3g", text_of(entry, "name"), worst);
        CHECK_MSG(norm_error <= 1e-3, "%s: gradient norm is off by %.3g", text_of(entry, "name"), norm_error);
        for (int i = 0; i < n_beside; i++) {
            check_companion(entry, &beside[i], peers[i]);
            close_fixture(&beside[i].f);
            n_companions++;
        }
        n_checked++;
        close_fixture(&f);
    }
    CHECK(n_checked >= 20 && n_companions >= 35);
}

/* The farthest of PEFT's runs, from the golden's start and from others next to it. */
static double farthest_run(const qr_json *peers) {
    double farthest = number_of(peers, "max_loss_error");
    for (const qr_json *error = qr_json_first(qr_json_get(peers, "start_loss_errors")); error != NULL;
         error = error->next) {
        if (error->valuedouble > farthest) { farthest = error->valuedouble; }
    }
    return farthest;
}

/* Whole runs in 16 bits, whose errors add up: a run parts from F32 as far as its roundings happen to lead it. PEFT's
 * own runs from starts 2^-12 apart differ by a factor of three in that (tests/golden/README.md), so this bound is wide.
 * What one step's arithmetic errs by is checked above. */
static void check_curves(qrun_dtype dtype, int n_least) {
    int n_checked = 0;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "curves")); entry != NULL;
         entry = entry->next) {
        fixture f;
        double losses[CURVE_STEPS], norms[CURVE_STEPS];
        qr_error err = {0};
        const qr_json *peers = peers_run(entry, dtype);
        if (peers == NULL || !open_fixture(entry, dtype, "full", TRAINING_MAX_TOKENS, &f)) { continue; }
        CHECK_MSG(run_curve(entry, &f, loss_scale_of(dtype), NULL, 0, losses, norms, &err) == QRUN_OK, "%s",
                  err.message);
        const double worst = worst_of(qr_json_get(entry, "loss"), losses), bound = 2 * farthest_run(peers);
        CHECK_MSG(worst <= bound, "%s: loss is off by %.3g, allowed %.3g", text_of(entry, "name"), worst, bound);
        n_checked++;
        close_fixture(&f);
    }
    CHECK(n_checked >= n_least);
}

static void test_curves_in_bf16_stay_as_near_as_pefts(void) { check_curves(QRUN_DTYPE_BF16, 20); }
static void test_curves_in_f16_stay_as_near_as_pefts(void) { check_curves(QRUN_DTYPE_F16, 15); }

static void test_schedules_equal_transformers(void) {
    const qr_json *entry = qr_json_first(qr_json_get(golden_index, "schedules"));
    int n_checked = 0;
    for (; entry != NULL; entry = entry->next) {
        const int64_t n_steps = (int64_t)number_of(entry, "n_steps"), n_warmup = (int64_t)number_of(entry, "n_warmup");
        const char *name = text_of(entry, "schedule");
        const qrun_schedule schedule = strcmp(name, "linear") == 0   ? QRUN_SCHEDULE_LINEAR
                                       : strcmp(name, "cosine") == 0 ? QRUN_SCHEDULE_COSINE
                                                                     : QRUN_SCHEDULE_CONSTANT;
        int64_t step = 1;
        for (const qr_json *v = qr_json_first(qr_json_get(entry, "factors")); v != NULL;
             v = v->next, step++, n_checked++) {
            const double factor = qr_schedule_factor(schedule, step, n_warmup, n_steps);
            CHECK_MSG(fabs(factor - v->valuedouble) <= 1e-12, "%s: step %d: %.15g, expected %.15g", name, (int)step,
                      factor, v->valuedouble);
        }
    }
    CHECK(n_checked >= 100);
}

/* ---- What is written --------------------------------------------------------------------------------------------- */

/* A model has every tensor of the one that it began as, and no other, also those that no training changes. Beside an
 * image encoder the head is outside the part of the language model. */
static void test_a_whole_model_is_written(void) {
    static const char *const names[] = {"gemma4-full", "granite-full", "muse-glimmer-full"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        const temporary_folder folder = temporary_create();
        qr_safetensors *before = NULL, *after = NULL;
        fixture f;
        qr_error err = {0};
        REQUIRE(open_fixture(entry_named(golden_index, "gradients", names[i]), QRUN_DTYPE_F32, "none", 64, &f));
        CHECK_MSG(qr_model_export(&f.parameters, folder.path, &err) == QRUN_OK, "%s", err.message);
        REQUIRE(qr_safetensors_open(f.model->folder, &before, &err) == QRUN_OK);
        REQUIRE(qr_safetensors_open(folder.path, &after, &err) == QRUN_OK);
        CHECK_INT(qr_safetensors_count(after), qr_safetensors_count(before));
        for (size_t t = 0; t < qr_safetensors_count(before); t++) {
            const qr_safetensors_tensor *old = qr_safetensors_get(before, t), *new;
            const bool is_kept = strstr(old->name, "vision") != NULL;
            const qr_dtype dtype = is_kept ? old->dtype : QR_DTYPE_F32;
            REQUIRE(qr_safetensors_require(after, old->name, QR_DTYPE_BIT(dtype), old->n_dims, old->dims, &new, &err) ==
                    QRUN_OK);
            float was, is;
            qr_elements_to_f32(old->dtype, old->data, 0, 1, &was);
            qr_elements_to_f32(new->dtype, new->data, 0, 1, &is);
            CHECK_MSG(memcmp(&is, &was, sizeof was) == 0, "%s", old->name);
        }
        qr_safetensors_close(before);
        qr_safetensors_close(after);
        close_fixture(&f);
        temporary_remove(&folder);
    }
}

/* Experts that are fetched for forward passes, recomputation and backward passes give the bits of those that are there,
 * with tiles, whose tokens go to other experts each, and without. */
static void test_experts_in_host_memory(void) {
    static training_batch batch;
    static const char *const models[] = {"qwen3-moe", "gemma4-moe", "qwen3-moe-experts", "nemotron-h-moe-experts"};
    static const char *const policies[] = {"none", "full"};
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        for (int p = 0; p < 3; p++) {
            training_options options = {
                .dtype = QRUN_DTYPE_F32, .policy = policies[p > 0], .max_tokens = batch.batch.n_tokens};
            int64_t n;
            double sums[2];
            options.tile_rows = p == 2 ? 16 : 0;
            float *resident = run_with(models[m], &options, &batch, &n, &sums[0]);
            options.experts = QRUN_OFFLOAD_ALL;
            float *fetched = run_with(models[m], &options, &batch, &n, &sums[1]);
            REQUIRE(resident != NULL && fetched != NULL);
            CHECK_MSG(memcmp(resident, fetched, (size_t)n * sizeof *resident) == 0 && sums[0] == sums[1],
                      "%s, %s%s: other bits", models[m], options.policy, p == 2 ? ", tiles" : "");
            free(resident), free(fetched);
        }
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!training_begin(&context, &golden_index)) { return 1; }
    CHECK_RUN(test_first_gradients_equal_peft);
    CHECK_RUN(test_first_gradients_in_bf16_stay_as_near_as_pefts);
    CHECK_RUN(test_policies_give_the_same_bits);
    CHECK_RUN(test_some_layers_have_the_same_gradients);
    /* A device splits the tokens of a call by their number, so that its sums over tokens follow the tiles. */
    if (context->backend->memory_info == NULL) { CHECK_RUN(test_tiles_give_the_same_bits); }
    CHECK_RUN(test_tiles_of_offloaded_inputs);
    if (context->backend->memory_info != NULL) { CHECK_RUN(test_experts_in_host_memory); } /* a processor refuses it */
    CHECK_RUN(test_examples_alone_and_together);
    CHECK_RUN(test_loss_in_chunks);
    CHECK_RUN(test_curves_equal_peft_in_f32);
    CHECK_RUN(test_curves_in_bf16_stay_as_near_as_pefts);
    CHECK_RUN(test_curves_in_f16_stay_as_near_as_pefts);
    CHECK_RUN(test_schedules_equal_transformers);
    CHECK_RUN(test_a_whole_model_is_written);
    qrun_context_destroy(context);
    qr_json_free(golden_index);
    return check_end();
}
