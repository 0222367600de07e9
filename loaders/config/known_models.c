/* The numbers are those of the models' own config.json. test_known_models holds them against the numbers of parameters
 * that are published for them. */
#include "loaders/config/known_models.h"

#include <inttypes.h>
#include <string.h>

#include "base/buffer.h"
#include "base/sizes.h"

typedef struct known_model {
    const char *name, *type; /* type: "model_type" */
    int32_t hidden, layers, heads, kv_heads, head_dim, mlp, vocab, context;
    bool tied;
    int32_t rope_theta;
    int32_t rope_factor; /* of the rotary scaling of Llama 3; 0: none */
} known_model;

/* clang-format off */
static const known_model models[] = {
    {"gpt2",          "gpt2",     768,  12,  12, 12,  64,  3072,  50257,   1024, true, 0,  0},
    {"gpt2-medium",   "gpt2",    1024,  24,  16, 16,  64,  4096,  50257,   1024, true, 0,  0},
    {"gpt2-large",    "gpt2",    1280,  36,  20, 20,  64,  5120,  50257,   1024, true, 0,  0},
    {"gpt2-xl",       "gpt2",    1600,  48,  25, 25,  64,  6400,  50257,   1024, true, 0,  0},
    {"llama-2-7b",    "llama",   4096,  32,  32, 32, 128, 11008,  32000,   4096, false, 10000,  0},
    {"llama-2-13b",   "llama",   5120,  40,  40, 40, 128, 13824,  32000,   4096, false, 10000,  0},
    {"llama-2-70b",   "llama",   8192,  80,  64,  8, 128, 28672,  32000,   4096, false, 10000,  0},
    {"llama-3.2-1b",  "llama",   2048,  16,  32,  8,  64,  8192, 128256, 131072, true, 500000, 32},
    {"llama-3.2-3b",  "llama",   3072,  28,  24,  8, 128,  8192, 128256, 131072, true, 500000, 32},
    {"llama-3.1-8b",  "llama",   4096,  32,  32,  8, 128, 14336, 128256, 131072, false, 500000,  8},
    {"llama-3.1-70b", "llama",   8192,  80,  64,  8, 128, 28672, 128256, 131072, false, 500000,  8},
    {"llama-3.1-405b", "llama", 16384, 126, 128,  8, 128, 53248, 128256, 131072, false, 500000,  8},
    {"mistral-7b",    "mistral", 4096,  32,  32,  8, 128, 14336,  32768,  32768, false, 1000000,  0},
    {"qwen2.5-0.5b",  "qwen2",    896,  24,  14,  2,  64,  4864, 151936,  32768, true, 1000000,  0},
    {"qwen2.5-1.5b",  "qwen2",   1536,  28,  12,  2, 128,  8960, 151936,  32768, true, 1000000,  0},
    {"qwen2.5-3b",    "qwen2",   2048,  36,  16,  2, 128, 11008, 151936,  32768, true, 1000000,  0},
    {"qwen2.5-7b",    "qwen2",   3584,  28,  28,  4, 128, 18944, 152064,  32768, false, 1000000,  0},
    {"qwen2.5-14b",   "qwen2",   5120,  48,  40,  8, 128, 13824, 152064,  32768, false, 1000000,  0},
    {"qwen2.5-32b",   "qwen2",   5120,  64,  40,  8, 128, 27648, 152064,  32768, false, 1000000,  0},
    {"qwen2.5-72b",   "qwen2",   8192,  80,  64,  8, 128, 29568, 152064,  32768, false, 1000000,  0},
    {"qwen3-0.6b",    "qwen3",   1024,  28,  16,  8, 128,  3072, 151936,  40960, true, 1000000,  0},
    {"qwen3-1.7b",    "qwen3",   2048,  28,  16,  8, 128,  6144, 151936,  40960, true, 1000000,  0},
    {"qwen3-4b",      "qwen3",   2560,  36,  32,  8, 128,  9728, 151936,  40960, true, 1000000,  0},
    {"qwen3-8b",      "qwen3",   4096,  36,  32,  8, 128, 12288, 151936,  40960, false, 1000000,  0},
    {"qwen3-14b",     "qwen3",   5120,  40,  40,  8, 128, 17408, 151936,  40960, false, 1000000,  0},
    {"qwen3-32b",     "qwen3",   5120,  64,  64,  8, 128, 25600, 151936,  40960, false, 1000000,  0},
};
/* clang-format on */

static const known_model *find(const char *name) {
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        if (strcmp(models[i].name, name) == 0) { return &models[i]; }
    }
    return NULL;
}

const char *qr_known_model_name(int32_t index) {
    return index >= 0 && index < (int32_t)QR_COUNT_OF(models) ? models[index].name : NULL;
}

bool qr_known_model_is(const char *name) { return find(name) != NULL; }

/* As its config.json. */
static void put_config(const known_model *m, qr_buffer *out) {
    if (strcmp(m->type, "gpt2") == 0) {
        qr_buffer_append_format(out,
                                "{\"model_type\":\"gpt2\",\"n_embd\":%" PRId32 ",\"n_layer\":%" PRId32
                                ",\"n_head\":%" PRId32 ",\"n_positions\":%" PRId32 ",\"vocab_size\":%" PRId32
                                ",\"layer_norm_epsilon\":1e-5,\"activation_function\":\"gelu_new\"}",
                                m->hidden, m->layers, m->heads, m->context, m->vocab);
        return;
    }
    qr_buffer_append_format(out,
                            "{\"model_type\":\"%s\",\"hidden_size\":%" PRId32 ",\"num_hidden_layers\":%" PRId32
                            ",\"num_attention_heads\":%" PRId32 ",\"num_key_value_heads\":%" PRId32
                            ",\"head_dim\":%" PRId32 ",\"intermediate_size\":%" PRId32 ",\"vocab_size\":%" PRId32
                            ",\"max_position_embeddings\":%" PRId32 ",\"tie_word_embeddings\":%s",
                            m->type, m->hidden, m->layers, m->heads, m->kv_heads, m->head_dim, m->mlp, m->vocab,
                            m->context, m->tied ? "true" : "false");
    qr_buffer_append_format(
        out,
        ",\"rms_norm_eps\":%s,\"hidden_act\":\"silu\",\"sliding_window\":null,\"rope_theta\":%" PRId32
        ",\"torch_dtype\":\"bfloat16\"",
        strncmp(m->type, "qwen", 4) == 0 ? "1e-6" : "1e-5", m->rope_theta);
    if (m->rope_factor > 0) {
        qr_buffer_append_format(out,
                                ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":%" PRId32
                                ".0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                                "\"original_max_position_embeddings\":8192}",
                                m->rope_factor);
    }
    qr_buffer_append_text(out, "}");
}

qrun_status qr_known_model_read(const char *name, qr_model_config *config, qr_error *err) {
    const known_model *model = find(name);
    qr_buffer text = {0};
    qr_json *root = NULL;
    *config = (qr_model_config){0};
    if (model == NULL) { return qr_fail(err, QRUN_ERROR_NOT_FOUND, "%.60s: is no known model", name); }
    put_config(model, &text);
    qrun_status status = qr_buffer_ok(&text) ? QRUN_OK : qr_fail_memory(err, "the description of a model", text.size);
    if (status == QRUN_OK) { status = qr_json_parse(text.data, text.size, name, &root, err); }
    if (status == QRUN_OK) { status = qr_model_config_parse(root, name, config, err); }
    qr_json_free(root);
    qr_buffer_free(&text);
    return status;
}
