/* GGUF files as models: those of llama.cpp's own converter answer as the folders they came from, and so do ours. */
#include "check_open.h"

#include "base/sizes.h"
#include "golden_index.h"
#include "loaders/files/gguf.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/model/model.h"
#include "single_sequence.h"
#include "temporary.h"

#define SHIPPED QRUN_SOURCE_DIR "/examples/model"

enum { N_TOKENS = 90 };

static qrun_context *context;

/* In F32, or as it is stored. */
static qrun_quant usual_quant(const char *path) {
    const bool is_quantised = strstr(path, "-nf4") != NULL || strstr(path, "-int8") != NULL;
    return is_quantised ? QRUN_QUANT_AUTO : QRUN_QUANT_F32;
}

static qrun_model *open_path(const char *path, qrun_quant quant) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.quant = quant;
    params.dtype = QRUN_DTYPE_F32;
    return check_open_model(context, &params);
}

static const char *fixture(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, FIXTURES "models/%s", name);
    return path;
}

/* Logits of every position of a sequence, or NULL; malloc'ed. */
static float *logits_of(qrun_model *model, int64_t n) {
    int32_t ids[N_TOKENS];
    qr_error err = {0};
    single_sequence single;
    if (model == NULL) { return NULL; }
    const int64_t vocab = model->shape.vocab;
    for (int64_t i = 0; i < n; i++) { ids[i] = (int32_t)((i * 37 + 5) % vocab); }
    if (single_sequence_create(model, n, n, QR_KV_F32, &single, &err) != QRUN_OK) { return NULL; }
    float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
    qrun_status status = single_sequence_feed(&single, ids, n, &err);
    for (int64_t r = 0; r < n && status == QRUN_OK; r++) {
        status = single_sequence_logits(&single, r, logits + r * vocab, &err);
    }
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    single_sequence_destroy(&single);
    return logits;
}

/* The largest difference between the two models' logits, in parts of the largest logit. */
static double difference_as(qrun_quant quant_of_one, qrun_quant quant_of_other, const char *one, const char *other,
                            int64_t n) {
    qrun_model *a = open_path(one, quant_of_one), *b = open_path(other, quant_of_other);
    float *x = logits_of(a, n), *y = logits_of(b, n);
    double most = x != NULL && y != NULL ? 0 : INFINITY, largest = 0;
    CHECK(a == NULL || b == NULL || a->shape.vocab == b->shape.vocab);
    for (int64_t i = 0; most < INFINITY && i < n * a->shape.vocab; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        largest = fmax(largest, fabs((double)x[i]));
    }
    free(x);
    free(y);
    qrun_model_destroy(a);
    qrun_model_destroy(b);
    return most / largest;
}

static double difference(const char *one, const char *other, int64_t n) {
    return difference_as(usual_quant(one), usual_quant(other), one, other, n);
}

/* ---- Ours -------------------------------------------------------------------------------------------------------- */

static qrun_status export_to(const char *folder, const char *adapter, qrun_gguf_type type, const char *out,
                             qr_error *err) {
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    params.path = folder;
    params.adapter = adapter;
    params.type = type;
    params.out = out;
    return qrun_export(context, &params, NULL, err);
}

/* The dividers of rotary frequencies are F32 in the file and derived in double here: nearly equal. */
static void test_round_trips(void) {
    static const struct {
        const char *name;
        qrun_gguf_type type; /* that loses nothing */
        double allowed;
        int64_t n_tokens; /* within the window where the file has none */
    } models[] = {
        {"llama", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"llama-llama3", QRUN_GGUF_BF16, 1e-5, N_TOKENS},
        {"llama-linear", QRUN_GGUF_F16, 0, N_TOKENS},
        {"llama-longrope", QRUN_GGUF_F32, 1e-5, 30},
        {"mistral", QRUN_GGUF_BF16, 0, 8},
        {"qwen2", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"qwen3", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"phi3", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"phi3-partial", QRUN_GGUF_BF16, 0, 9},
        {"phi3-longrope", QRUN_GGUF_BF16, 1e-5, 30},
        {"smollm3", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"ministral3", QRUN_GGUF_BF16, 1e-5, N_TOKENS},
        {"olmo2", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"olmo3", QRUN_GGUF_BF16, 1e-5, N_TOKENS},
        {"gpt2", QRUN_GGUF_F32, 0, N_TOKENS},
        {"llama-nf4", QRUN_GGUF_F32, 1e-6, N_TOKENS},
        {"gpt2-int8", QRUN_GGUF_F32, 1e-6, N_TOKENS},
        {"mixtral", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"mixtral-stacked", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"iquest-coder", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"gemma4", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"gemma4-moe", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"qwen3-vl", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"seed-oss", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"ernie4_5", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"ernie4_5-moe", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"glm4", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"glm4-moe", QRUN_GGUF_BF16, 1e-6, N_TOKENS}, /* factors are F32 in the file, here and below */
        {"glm4-moe-plain", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"gemma", QRUN_GGUF_BF16, 1e-6, N_TOKENS},
        {"internlm3", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"granite", QRUN_GGUF_BF16, 1e-6, N_TOKENS},
        {"granite4", QRUN_GGUF_BF16, 1e-6, N_TOKENS},
        {"granite4-spaces", QRUN_GGUF_BF16, 1e-5, N_TOKENS},
        {"nemotron-h", QRUN_GGUF_BF16, 1e-5, N_TOKENS},
        {"lfm2", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"lfm2-untied", QRUN_GGUF_BF16, 0, N_TOKENS},
        {"lfm2-nf4", QRUN_GGUF_F32, 1e-6, N_TOKENS},
    };
    const temporary_folder base = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        qr_error err = {0};
        const char *out = temporary_path(&base, "m.gguf");
        const qrun_status status = export_to(fixture(models[i].name), NULL, models[i].type, out, &err);
        CHECK_MSG(status == QRUN_OK, "%s: %s", models[i].name, err.message);
        if (status != QRUN_OK) { continue; }
        const double found = difference(fixture(models[i].name), out, models[i].n_tokens);
        CHECK_MSG(found <= models[i].allowed, "%s: logits differ by %.3g of the largest", models[i].name, found);
    }
    temporary_remove(&base);
}

/* Gemma scales scores by the size of a head in llama.cpp; the fixtures do not, so their copies do. */
static void test_gemma(void) {
    static const char *const names[] = {"gemma2", "gemma3"};
    for (size_t i = 0; i < 2; i++) {
        const temporary_folder base = temporary_create();
        char command[1024];
        snprintf(command, sizeof command,
                 "cp %s/* %s && sed -i 's/\"query_pre_attn_scalar\": *[0-9]*/\"query_pre_attn_scalar\": %s/' "
                 "%s/config.json",
                 fixture(names[i]), base.path, i == 0 ? "24" : "40", base.path);
        CHECK_INT(system(command), 0);
        qr_error err = {0};
        const char *out = temporary_path(&base, "m.gguf");
        CHECK_MSG(export_to(base.path, NULL, QRUN_GGUF_BF16, out, &err) == QRUN_OK, "%s", err.message);
        const double found = difference(base.path, out, N_TOKENS);
        CHECK_MSG(found <= 1e-6, "%s: logits differ by %.3g of the largest", names[i], found);
        temporary_remove(&base);
    }
}

static void test_refused(void) {
    static const struct {
        const char *name, *message;
    } models[] = {
        {"gemma2", "its query_pre_attn_scalar"},
        {"llama-dynamic", "dynamic rotary scaling"},
        {"llama-yarn", "the borders of its YaRN scaling"},
        {"qwen2-window", "its sliding window"},
        {"smollm3-window", "sliding window"},
        {"qwen3-moe", "layers without experts"},
        {"qwen3-moe-stacked", "its shares of experts"},
        {"gpt-oss", "read from GGUF and not written"},
        {"olmoe", "fewer heads for keys"},
        {"qwen3_5", "values of another size than keys"},
        {"lfm2-moe", "its routed_scaling_factor"},
        {"lfm2-moe-stacked", "(norm_topk_prob)"},
        {"lfm3", "a lfm3 model has no name in llama.cpp"},
        {"hunyuan", "a hunyuan model has no name in llama.cpp"},
        {"cohere2", "a cohere2 model has no name in llama.cpp"},
        {"jais2", "a jais2 model has no name in llama.cpp"},
        {"nanochat", "a nanochat model has no name in llama.cpp"},
        {"gpt-neox", "a gpt-neox model has no name in llama.cpp"},
        {"nemotron", "a nemotron model has no name in llama.cpp"},
        {"olmo-hybrid", "a olmo-hybrid model has no name in llama.cpp"},
        {"kimi-linear", "a kimi-linear model has no name in llama.cpp"},
        {"mimo-v2-flash", "a mimo-v2-flash model has no name in llama.cpp"},
        {"laguna", "a laguna model has no name in llama.cpp"},
        {"mistral4", "a mistral4 model has no name in llama.cpp"},
        {"youtu", "a youtu model has no name in llama.cpp"},
        {"falcon-h1", "a falcon-h1 model has no name in llama.cpp"},
        {"bamba", "a bamba model has no name in llama.cpp"},
        {"apertus", "a apertus model has no name in llama.cpp"},
        {"gemma3n", "a gemma3n model has no name in llama.cpp"},
        {"nemotron-h-moe", "convolutions without biases"},
        {"granite4-moe", "convolutions without biases"},
        {"granite4-nope", "attention without rotary positions"},
        {"qwen3-next", "values of another size than keys"},
        {"ernie4_5-moe-plain", "layers without experts"},
        {"exaone4", "its sliding window, but where it has 64 layers"},
        {"exaone4-full", "heads that are not a share of its hidden size"},
        {"deepseek-v2", "queries that are made of no latent"},
        {"glm4-moe-lite", "norms of latents with another rms_norm_eps"},
        {"minicpm3", "its scale_emb, scale_depth or dim_model_base"},
        {"gemma4-shared", "biases of its attention"},
    };
    const temporary_folder base = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        qr_error err = {0};
        const char *out = temporary_path(&base, "m.gguf");
        CHECK_INT(export_to(fixture(models[i].name), NULL, QRUN_GGUF_BF16, out, &err), QRUN_ERROR_UNSUPPORTED);
        CHECK_MSG(strstr(err.message, models[i].message) != NULL, "%s", err.message);
        CHECK(!qr_file_exists(out));
    }
    temporary_remove(&base);
}

/* Copies of a model whose config.json has another value for a key. */
static void test_refused_values(void) {
    static const struct {
        const char *name, *changes, *message;
    } models[] = {
        {"lfm2-moe-stacked", "s/\"norm_topk_prob\": false/\"norm_topk_prob\": true/", "(use_expert_bias)"},
        {"lfm2", "s/\"rope_type\": \"default\"/\"rope_type\": \"dynamic\", \"factor\": 2/", "dynamic rotary scaling"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        const temporary_folder base = temporary_create();
        char command[1024];
        snprintf(command, sizeof command, "cp %s/* %s && sed -i '%s' %s/config.json", fixture(models[i].name),
                 base.path, models[i].changes, base.path);
        CHECK_INT(system(command), 0);
        qr_error err = {0};
        const char *out = temporary_path(&base, "m.gguf");
        CHECK_INT(export_to(base.path, NULL, QRUN_GGUF_BF16, out, &err), QRUN_ERROR_UNSUPPORTED);
        CHECK_MSG(strstr(err.message, models[i].message) != NULL, "%s", err.message);
        CHECK(!qr_file_exists(out));
        temporary_remove(&base);
    }
}

/* Whether a model or an adapter can be written is said without writing it, in the words of the attempt. */
static void test_check_only(void) {
    static const struct {
        const char *name, *adapter;
        qrun_export_format format;
        bool can_be;
    } cases[] = {
        {"llama", NULL, QRUN_EXPORT_GGUF, true},
        {"llama", "llama-lora", QRUN_EXPORT_GGUF, true},
        {"llama", "llama-lora", QRUN_EXPORT_GGUF_LORA, true},
        {"llama", "llama-dora", QRUN_EXPORT_GGUF, true},
        {"llama", "llama-dora", QRUN_EXPORT_GGUF_LORA, false},
        {"llama-dynamic", NULL, QRUN_EXPORT_GGUF, false},
        {"qwen3-moe", NULL, QRUN_EXPORT_GGUF, false}, /* has a layer without experts */
        {"mixtral", NULL, QRUN_EXPORT_GGUF, true},
    };
    const temporary_folder base = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qrun_error said = QRUN_ERROR_INIT, met = QRUN_ERROR_INIT;
        qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
        char adapter[512];
        snprintf(adapter, sizeof adapter, FIXTURES "adapters/%s", cases[i].adapter != NULL ? cases[i].adapter : "");
        params.path = fixture(cases[i].name);
        params.adapter = cases[i].adapter != NULL ? adapter : NULL;
        params.format = cases[i].format;
        params.out = temporary_path(&base, "m.gguf");
        params.check_only = true;
        const qrun_status status = qrun_export(context, &params, NULL, &said);
        CHECK_MSG((status == QRUN_OK) == cases[i].can_be, "%s: %s", cases[i].name, said.message);
        CHECK(!qr_file_exists(params.out));
        params.check_only = false;
        CHECK_INT(qrun_export(context, &params, NULL, &met), status);
        CHECK_STR(met.message, said.message);
        remove(params.out);
    }
    temporary_remove(&base);
}

/* A quantised file is near the model, and Q8_0 nearer than Q4_0. */
static void test_blocks(void) {
    const temporary_folder base = temporary_create();
    double off[2] = {0};
    for (int i = 0; i < 2; i++) {
        qr_error err = {0};
        const char *out = temporary_path(&base, "m.gguf");
        CHECK_MSG(export_to(SHIPPED, NULL, i == 0 ? QRUN_GGUF_Q8_0 : QRUN_GGUF_Q4_0, out, &err) == QRUN_OK, "%s",
                  err.message);
        off[i] = difference(SHIPPED, out, N_TOKENS);
    }
    CHECK_MSG(off[0] > 0 && off[0] < 0.05, "Q8_0 differs by %.3g", off[0]);
    CHECK_MSG(off[1] > off[0] && off[1] < 1, "Q4_0 differs by %.3g", off[1]);
    temporary_remove(&base);
}

/* With an adapter the file is the merged model. */
static void check_adapter(const char *name, const char *adapter) {
    const temporary_folder base = temporary_create();
    qr_error err = {0};
    const char *out = temporary_path(&base, "m.gguf"), *merged = temporary_path(&base, "merged");
    qrun_merge_params params = QRUN_MERGE_PARAMS_INIT;
    char path[512];
    snprintf(path, sizeof path, FIXTURES "%s", adapter);
    params.path = fixture(name);
    params.adapter = path;
    params.out = merged;
    params.dtype = QRUN_QUANT_F32;
    CHECK_MSG(qrun_merge_folder(context, &params, NULL, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(export_to(fixture(name), path, QRUN_GGUF_F32, out, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(difference(merged, out, N_TOKENS) == 0, "%s differs", adapter);
    CHECK(difference(fixture(name), out, N_TOKENS) > 1e-3);
    temporary_remove(&base);
}

static void test_adapter(void) {
    check_adapter("llama", "adapters/llama-lora");
    check_adapter("mixtral", "adapters/mixtral-experts");
    check_adapter("lfm2", "training/adapters/lfm2");
}

/* Convolutions have names of their own. */
static void test_lora_of_convolutions(void) {
    const temporary_folder base = temporary_create();
    qr_error err = {0};
    qr_gguf *file;
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    params.path = fixture("lfm2");
    params.adapter = FIXTURES "training/adapters/lfm2";
    params.out = temporary_path(&base, "a.gguf");
    params.format = QRUN_EXPORT_GGUF_LORA;
    CHECK_MSG(qrun_export(context, &params, NULL, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(qr_gguf_open(params.out, &file, &err) == QRUN_OK);
    const qr_gguf_tensor *in = qr_gguf_find_tensor(file, "blk.0.shortconv.in_proj.weight.lora_b");
    const qr_gguf_tensor *out = qr_gguf_find_tensor(file, "blk.0.shortconv.out_proj.weight.lora_a");
    REQUIRE(in != NULL && out != NULL);
    CHECK(in->dims[0] == 144 && out->dims[1] == 48);
    CHECK(qr_gguf_find_tensor(file, "blk.2.attn_output.weight.lora_a") != NULL);
    CHECK(qr_gguf_find_tensor(file, "blk.2.ffn_down.weight.lora_b") != NULL);
    qr_gguf_close(file);
    temporary_remove(&base);
}

/* An adapter of its own: what it holds, as llama.cpp reads it. */
static void test_lora(void) {
    const temporary_folder base = temporary_create();
    qr_error err = {0};
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    params.path = fixture("llama");
    params.out = temporary_path(&base, "a.gguf");
    params.format = QRUN_EXPORT_GGUF_LORA;
    CHECK_INT(qrun_export(context, &params, NULL, &err), QRUN_ERROR_ARGUMENT);
    params.adapter = FIXTURES "adapters/llama-lora";
    err = (qr_error){0};
    REQUIRE(qrun_export(context, &params, NULL, &err) == QRUN_OK);
    qr_gguf *file;
    qr_gguf_text type = {0};
    double alpha = 0;
    REQUIRE(qr_gguf_open(params.out, &file, &err) == QRUN_OK);
    CHECK_INT(qr_gguf_get_text(file, "adapter.type", &type, &err), QRUN_OK);
    CHECK(qr_gguf_text_is(type, "lora"));
    CHECK_INT(qr_gguf_get_double(file, "adapter.lora.alpha", 0, 1e6, &alpha, &err), QRUN_OK);
    CHECK(alpha > 0);
    const qr_gguf_tensor *a = qr_gguf_find_tensor(file, "blk.1.attn_q.weight.lora_a");
    const qr_gguf_tensor *b = qr_gguf_find_tensor(file, "blk.1.attn_q.weight.lora_b");
    REQUIRE(a != NULL && b != NULL);
    CHECK_INT(a->dims[1], 48);
    CHECK_INT(b->dims[0], 240);
    CHECK_INT(a->dims[0], b->dims[1]);
    qr_gguf_close(file);
    /* Not a model, and not to be taken for one. */
    qrun_model_params as_model = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    as_model.path = params.out;
    err = (qr_error){0};
    CHECK(qrun_model_open(context, &as_model, &model, &err) != QRUN_OK && model == NULL);
    params.adapter = FIXTURES "adapters/llama-dora";
    err = (qr_error){0};
    CHECK_INT(qrun_export(context, &params, NULL, &err), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "is DoRA") != NULL, "%s", err.message);
    temporary_remove(&base);
}

/* An adapter with LoRA on the head, and with the head's own weights beside it, of which one bit may be changed. */
static void write_adapter_of_head(const temporary_folder *folder, bool is_changed) {
    static const char *const names[] = {"base_model.model.lm_head.base_layer.weight",
                                        "base_model.model.lm_head.lora_A.weight",
                                        "base_model.model.lm_head.lora_B.weight"};
    qr_safetensors *model = NULL;
    qr_safetensors_writer *writer;
    qr_error err = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", fixture("llama"));
    REQUIRE(qr_safetensors_open(path, &model, &err) == QRUN_OK);
    const qr_safetensors_tensor *head = qr_safetensors_find(model, "lm_head.weight");
    REQUIRE(head != NULL && head->dtype == QR_DTYPE_BF16);
    const qr_safetensors_spec specs[] = {
        {.name = names[0], .dtype = head->dtype, .n_dims = 2, .dims = {head->dims[0], head->dims[1]}},
        {.name = names[1], .dtype = QR_DTYPE_F32, .n_dims = 2, .dims = {2, head->dims[1]}},
        {.name = names[2], .dtype = QR_DTYPE_F32, .n_dims = 2, .dims = {head->dims[0], 2}}};
    unsigned char *bytes = calloc(1, head->n_bytes);
    temporary_text(folder, "adapter_config.json",
                   "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"target_modules\": [\"lm_head\"]}");
    CHECK_MSG(qr_safetensors_writer_create(folder->path, "adapter_model", specs, 3, 0, &writer, &err) == QRUN_OK, "%s",
              err.message);
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        size_t n_bytes = 0;
        CHECK(qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &n_bytes) && n_bytes <= head->n_bytes);
        memset(bytes, 0, head->n_bytes);
        if (spec->dtype == head->dtype) {
            memcpy(bytes, head->data, n_bytes);
            bytes[n_bytes - 2] ^= is_changed;
        }
        CHECK_INT(qr_safetensors_writer_write(writer, bytes, n_bytes, NULL), QRUN_OK);
    }
    CHECK_INT(qr_safetensors_writer_commit(writer, NULL), QRUN_OK);
    free(bytes);
    qr_safetensors_close(model);
}

/* What LoRA is added to is the model's: other weights are not dropped without a word. */
static void test_lora_of_a_head(void) {
    for (int changed = 0; changed < 2; changed++) {
        const temporary_folder base = temporary_create(), adapter = temporary_create();
        qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
        qr_error err = {0};
        qr_gguf *file;
        write_adapter_of_head(&adapter, changed != 0);
        params.path = fixture("llama");
        params.adapter = adapter.path;
        params.out = temporary_path(&base, "a.gguf");
        params.format = QRUN_EXPORT_GGUF_LORA;
        const qrun_status status = qrun_export(context, &params, NULL, &err);
        if (changed) {
            CHECK_INT(status, QRUN_ERROR_UNSUPPORTED);
            CHECK_MSG(strstr(err.message, "base_layer.weight is not what the model has") != NULL, "%s", err.message);
        } else {
            CHECK_MSG(status == QRUN_OK, "%s", err.message);
            REQUIRE(qr_gguf_open(params.out, &file, &err) == QRUN_OK);
            CHECK(qr_gguf_find_tensor(file, "output.weight.lora_a") != NULL);
            qr_gguf_close(file);
        }
        temporary_remove(&adapter);
        temporary_remove(&base);
    }
}

/* ---- Without memory ---------------------------------------------------------------------------------------------- */

typedef struct export_attempt {
    const char *folder, *adapter, *out;
    qrun_export_format format;
    bool check_only;
} export_attempt;

static qrun_status attempt_export(void *arg, qr_error *err) {
    const export_attempt *attempt = arg;
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    params.path = attempt->folder;
    params.adapter = attempt->adapter;
    params.out = attempt->out;
    params.format = attempt->format;
    params.check_only = attempt->check_only;
    return qrun_export(context, &params, NULL, err);
}

static void test_failing_allocations(void) {
    const temporary_folder base = temporary_create();
    char command[1024];
    snprintf(command, sizeof command,
             "cp %s/* %s && cp " FIXTURES "tokenizers/gemma/tokenizer.json %s && chmod u+w %s/*", fixture("llama"),
             base.path, base.path, base.path);
    CHECK_INT(system(command), 0);
    export_attempt attempt = {
        .folder = base.path, .adapter = FIXTURES "adapters/llama-lora", .out = temporary_path(&base, "m.gguf")};
    check_failing_allocations(attempt_export, &attempt, true);
    attempt.check_only = true;
    check_failing_allocations(attempt_export, &attempt, true);
    attempt.check_only = false;
    attempt.folder = fixture("llama");
    attempt.format = QRUN_EXPORT_GGUF_LORA;
    check_failing_allocations(attempt_export, &attempt, true);
    temporary_remove(&base);
}

/* ---- llama.cpp's ------------------------------------------------------------------------------------------------- */

/* Written by convert_hf_to_gguf.py (tests/golden/convert_gguf.py). */
static void test_converted(void) {
    static const struct {
        const char *name;
        double allowed;
    } models[] = {{"llama-llama3", 1e-5}, {"phi3-longrope", 1e-5}, {"gpt-oss-mxfp4", 1e-5}, {"lfm2", 1e-5}};
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        char path[512];
        snprintf(path, sizeof path, FIXTURES "gguf/%s.gguf", models[i].name);
        const double found = difference(fixture(models[i].name), path, 30);
        CHECK_MSG(found <= models[i].allowed, "%s: logits differ by %.3g of the largest", models[i].name, found);
    }
}

/* Only the exponential may differ in its last bit. */
static void check_same_tensors(const qr_gguf *ours, const qr_gguf *theirs) {
    CHECK_INT(qr_gguf_tensor_count(ours), qr_gguf_tensor_count(theirs));
    for (size_t i = 0; i < qr_gguf_tensor_count(theirs); i++) {
        const qr_gguf_tensor *b = qr_gguf_get_tensor(theirs, i);
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)b->name.n, b->name.bytes);
        const qr_gguf_tensor *a = qr_gguf_find_tensor(ours, name);
        CHECK_MSG(a != NULL, "%s is missing", name);
        if (a == NULL) { continue; }
        CHECK_MSG(a->dtype == b->dtype && a->n_dims == b->n_dims && a->dims[0] == b->dims[0] &&
                      a->n_bytes == b->n_bytes,
                  "%s has another type or shape", name);
        for (size_t k = 0; strstr(name, ".ssm_a") != NULL && k < a->n_bytes / sizeof(float); k++) {
            float x, y;
            memcpy(&x, a->data + k * sizeof x, sizeof x);
            memcpy(&y, b->data + k * sizeof y, sizeof y);
            CHECK_MSG(fabsf(x - y) <= 1e-6F * fabsf(y), "%s: %.9g, and %.9g there", name, (double)x, (double)y);
        }
        CHECK_MSG(strstr(name, ".ssm_a") != NULL || memcmp(a->data, b->data, b->n_bytes) == 0, "%s differs", name);
    }
}

/* The value of a key, or of a list the one at i. */
static int64_t count_of(const qr_gguf *file, const char *key, size_t i, size_t *n) {
    int64_t *list = NULL, value = -1;
    qr_error err = {0};
    *n = 1;
    const bool is_list = qr_gguf_is_list(file, key);
    const qrun_status status =
        is_list ? qr_gguf_get_ints(file, key, &list, n, &err) : qr_gguf_get_int(file, key, 0, 1 << 20, &value, &err);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    if (is_list && i < *n) { value = list[i]; }
    qr_free(list);
    return value;
}

static void check_same_counts(const qr_gguf *ours, const qr_gguf *theirs, const char *const *keys) {
    for (; *keys != NULL; keys++) {
        size_t n = 1, n_theirs = 1;
        CHECK_MSG(qr_gguf_has(theirs, *keys), "%s is missing there", *keys);
        for (size_t i = 0; i < n; i++) {
            const int64_t x = count_of(ours, *keys, i, &n), y = count_of(theirs, *keys, i, &n_theirs);
            CHECK_MSG(x == y && n == n_theirs, "%s is %lld, and %lld there", *keys, (long long)x, (long long)y);
        }
    }
}

/* What is written is what llama.cpp's converter writes, name by name and value by value, and both are read as the
 * folder. */
static void check_as_converted(const char *folder, const char *converted, const char *const *keys) {
    const temporary_folder base = temporary_create();
    const char *out = temporary_path(&base, "m.gguf");
    qr_error err = {0};
    qr_gguf *ours = NULL, *theirs = NULL;
    CHECK_MSG(export_to(folder, NULL, QRUN_GGUF_BF16, out, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(qr_gguf_open(out, &ours, &err) == QRUN_OK);
    REQUIRE(qr_gguf_open(converted, &theirs, &err) == QRUN_OK);
    check_same_tensors(ours, theirs);
    check_same_counts(ours, theirs, keys);
    qr_gguf_close(ours);
    qr_gguf_close(theirs);
    CHECK(difference(folder, converted, N_TOKENS / 2) <= 1e-5);
    CHECK(difference(folder, out, N_TOKENS / 2) <= 1e-5);
    temporary_remove(&base);
}

/* Attention and short convolutions, dense and with experts. The size of the dense model's MLP is an adjusted one. */
static void test_convolutions_as_converted(void) {
    static const char *const keys[] = {
        "lfm2.block_count",          "lfm2.feed_forward_length", "lfm2.embedding_length",
        "lfm2.attention.head_count", "lfm2.context_length",      "lfm2.attention.head_count_kv",
        "lfm2.vocab_size",           "lfm2.shortconv.l_cache",   NULL};
    static const char *const keys_of_experts[] = {"lfm2moe.feed_forward_length",
                                                  "lfm2moe.attention.head_count_kv",
                                                  "lfm2moe.shortconv.l_cache",
                                                  "lfm2moe.leading_dense_block_count",
                                                  "lfm2moe.expert_count",
                                                  "lfm2moe.expert_used_count",
                                                  "lfm2moe.expert_feed_forward_length",
                                                  "lfm2moe.expert_gating_func",
                                                  NULL};
    check_as_converted(fixture("lfm2"), FIXTURES "gguf/lfm2.gguf", keys);
    check_as_converted(FIXTURES "gguf/lfm2_moe", FIXTURES "gguf/lfm2_moe.gguf", keys_of_experts);
}

/* In blocks, rows and columns of another order are found all the same: elsewhere they would be off by 1. */
static void check_blocks_near(const char *folder, double allowed) {
    const temporary_folder base = temporary_create();
    const char *out = temporary_path(&base, "q.gguf");
    qr_error err = {0};
    CHECK_MSG(export_to(folder, NULL, QRUN_GGUF_Q8_0, out, &err) == QRUN_OK, "%s", err.message);
    const double off = difference(folder, out, N_TOKENS / 2);
    CHECK_MSG(off > 0 && off < allowed, "%s: Q8_0 differs by %.3g", folder, off);
    temporary_remove(&base);
}

/* A hybrid of attention and the gated delta rule, whose value heads lie in another order there. */
static void test_hybrid_as_converted(void) {
    static const char *const keys[] = {"qwen35.ssm.conv_kernel",         "qwen35.ssm.state_size",
                                       "qwen35.ssm.group_count",         "qwen35.ssm.time_step_rank",
                                       "qwen35.ssm.inner_size",          "qwen35.rope.dimension_count",
                                       "qwen35.attention.head_count_kv", NULL};
    check_as_converted(FIXTURES "gguf/qwen3_5", FIXTURES "gguf/qwen3_5.gguf", keys);
    check_blocks_near(FIXTURES "gguf/qwen3_5", 0.2);
}

/* Small random models of the other families whose layers differ, and what their files say of them. */
static void test_families_as_converted(void) {
    static const struct {
        const char *name;
        const char *keys[16];
    } models[] = {
        {"gemma4",
         {"gemma4.feed_forward_length", "gemma4.attention.head_count_kv", "gemma4.attention.key_length",
          "gemma4.attention.key_length_swa", "gemma4.attention.shared_kv_layers",
          "gemma4.attention.sliding_window_pattern", "gemma4.embedding_length_per_layer_input",
          "gemma4.rope.dimension_count", "gemma4.rope.dimension_count_swa", "gemma4.expert_feed_forward_length"}},
        {"qwen3_next",
         {"qwen3next.ssm.inner_size", "qwen3next.ssm.time_step_rank", "qwen3next.attention.recurrent_layers",
          "qwen3next.rope.dimension_count", "qwen3next.expert_shared_feed_forward_length"}},
        {"granite4",
         {"granitehybrid.attention.head_count_kv", "granitehybrid.ssm.inner_size", "granitehybrid.ssm.group_count",
          "granitehybrid.ssm.time_step_rank", "granitehybrid.feed_forward_length",
          "granitehybrid.expert_shared_feed_forward_length"}},
        {"nemotron_h",
         {"nemotron_h_moe.attention.head_count_kv", "nemotron_h_moe.feed_forward_length",
          "nemotron_h_moe.ssm.state_size", "nemotron_h_moe.expert_count",
          "nemotron_h_moe.expert_shared_feed_forward_length"}},
        {"glm4_moe",
         {"glm4moe.leading_dense_block_count", "glm4moe.expert_shared_count", "glm4moe.expert_gating_func",
          "glm4moe.rope.dimension_count"}},
        {"ernie4_5_moe",
         {"ernie4_5-moe.leading_dense_block_count", "ernie4_5-moe.interleave_moe_layer_step",
          "ernie4_5-moe.expert_shared_count"}},
        {"deepseek_v2",
         {"deepseek2.attention.key_length", "deepseek2.attention.value_length", "deepseek2.attention.key_length_mla",
          "deepseek2.attention.value_length_mla", "deepseek2.attention.head_count_kv",
          "deepseek2.attention.kv_lora_rank", "deepseek2.rope.dimension_count", "deepseek2.expert_shared_count",
          "deepseek2.leading_dense_block_count"}},
        {"deepseek_v3", {"deepseek2.attention.q_lora_rank", "deepseek2.expert_gating_func"}},
    };
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        char folder[512], converted[512];
        snprintf(folder, sizeof folder, FIXTURES "gguf/%s", models[i].name);
        snprintf(converted, sizeof converted, FIXTURES "gguf/%s.gguf", models[i].name);
        check_as_converted(folder, converted, models[i].keys);
        const bool has_ties = strcmp(models[i].name, "gemma4") == 0 || strcmp(models[i].name, "qwen3_next") == 0;
        if (!has_ties) { check_blocks_near(folder, 0.2); } /* else other experts are chosen here and there */
    }
}

/* Experts in MXFP4 are kept to the bit, and decoded to the same values. */
static void test_kept_mxfp4(void) {
    static const qrun_quant quants[] = {QRUN_QUANT_AUTO, QRUN_QUANT_F32, QRUN_QUANT_NF4};
    char path[512];
    snprintf(path, sizeof path, FIXTURES "gguf/gpt-oss-mxfp4.gguf");
    for (int i = 0; i < 3; i++) {
        const double found = difference_as(quants[i], quants[i], fixture("gpt-oss-mxfp4"), path, 30);
        CHECK_MSG(found <= 1e-6, "as %d: logits differ by %.3g of the largest", (int)quants[i], found);
    }
    CHECK(difference_as(QRUN_QUANT_NF4, QRUN_QUANT_AUTO, path, path, 30) > 1e-3);
    qrun_model *model = open_path(path, QRUN_QUANT_AUTO);
    REQUIRE(model != NULL);
    CHECK_INT(model->layers[0].expert_gate[0].desc.format, QR_WEIGHT_MXFP4);
    CHECK_INT(model->layers[0].attn_out.weight.desc.format, QR_WEIGHT_BF16);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    qr_error err = {0};
    check_begin(argc, argv);
    if (qrun_context_create(NULL, &context, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_round_trips);
    CHECK_RUN(test_gemma);
    CHECK_RUN(test_refused);
    CHECK_RUN(test_refused_values);
    CHECK_RUN(test_check_only);
    CHECK_RUN(test_blocks);
    CHECK_RUN(test_adapter);
    CHECK_RUN(test_lora);
    CHECK_RUN(test_lora_of_a_head);
    CHECK_RUN(test_lora_of_convolutions);
    CHECK_RUN(test_converted);
    CHECK_RUN(test_kept_mxfp4);
    CHECK_RUN(test_hybrid_as_converted);
    CHECK_RUN(test_convolutions_as_converted);
    CHECK_RUN(test_families_as_converted);
    CHECK_RUN(test_failing_allocations);
    qrun_context_destroy(context);
    return check_end();
}
