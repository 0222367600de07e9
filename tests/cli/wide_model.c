/* wide_model FOLDER N_LAYERS: the weights and config.json of a Llama stored as LLM.int8, with random codes: 13.6 MB a
 * layer, and the vocabulary of examples/model. The same bytes every time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/random.h"
#include "loaders/files/safetensors_writer.h"

enum { HIDDEN = 1024, MLP = 3072, HEADS = 8, HEAD_DIM = 128, VOCAB = 2048, MAX_LAYERS = 256, PARTS = 3, MATRICES = 7 };

typedef struct matrix {
    const char *module;
    int64_t rows, cols;
} matrix;

static const matrix matrices[MATRICES] = {
    {"self_attn.q_proj", HIDDEN, HIDDEN}, {"self_attn.k_proj", HIDDEN, HIDDEN}, {"self_attn.v_proj", HIDDEN, HIDDEN},
    {"self_attn.o_proj", HIDDEN, HIDDEN}, {"mlp.gate_proj", MLP, HIDDEN},       {"mlp.up_proj", MLP, HIDDEN},
    {"mlp.down_proj", HIDDEN, MLP},
};

static qr_safetensors_spec specs[MAX_LAYERS * (MATRICES * PARTS + 2) + 2];
static char names[sizeof specs / sizeof specs[0]][96];
static size_t n_specs;

static void add(const char *name, qr_dtype dtype, int n_dims, int64_t rows, int64_t cols) {
    (void)snprintf(names[n_specs], sizeof names[0], "%s", name);
    specs[n_specs] = (qr_safetensors_spec){names[n_specs], dtype, n_dims, {rows, cols}};
    n_specs++;
}

static void add_layer(int layer) {
    char name[96];
    for (int m = 0; m < MATRICES; m++) {
        const matrix *of = &matrices[m];
        (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, of->module);
        add(name, QR_DTYPE_I8, 2, of->rows, of->cols);
        (void)snprintf(name, sizeof name, "model.layers.%d.%s.SCB", layer, of->module);
        add(name, QR_DTYPE_F32, 1, of->rows, 0);
        (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight_format", layer, of->module);
        add(name, QR_DTYPE_U8, 0, 0, 0);
    }
    (void)snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", layer);
    add(name, QR_DTYPE_F32, 1, HIDDEN, 0);
    (void)snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", layer);
    add(name, QR_DTYPE_F32, 1, HIDDEN, 0);
}

/* Codes over the whole range, scales of an ordinary matrix, norms of 1, embeddings around 0. */
static void fill(const qr_safetensors_spec *spec, uint64_t seed, unsigned char *bytes, size_t n_bytes) {
    float *values = (float *)(void *)bytes;
    for (size_t i = 0; i < n_bytes / sizeof(uint64_t) && spec->dtype == QR_DTYPE_I8; i++) {
        const uint64_t word = qr_hash_mix(seed + i);
        memcpy(bytes + i * sizeof word, &word, sizeof word);
    }
    for (size_t i = 0; i < n_bytes && spec->dtype == QR_DTYPE_I8; i++) {
        if (bytes[i] == 0x80) { bytes[i] = 0; } /* −128 is no code */
    }
    for (size_t i = 0; i < n_bytes / sizeof(float) && spec->dtype == QR_DTYPE_F32; i++) {
        const bool is_scale = strstr(spec->name, "SCB") != NULL, is_table = strstr(spec->name, "embed") != NULL;
        const double uniform = (double)(qr_hash_mix(seed + i) >> 11) * 0x1p-53 - 0.5;
        values[i] = is_scale ? 0.05F : is_table ? (float)uniform : 1.0F;
    }
    if (spec->dtype == QR_DTYPE_U8) { memset(bytes, 0, n_bytes); }
}

static bool write_weights(const char *folder, int n_layers, qr_error *err) {
    qr_safetensors_writer *writer = NULL;
    unsigned char *bytes = malloc((size_t)VOCAB * HIDDEN * sizeof(float));
    bool ok = bytes != NULL;
    add("model.embed_tokens.weight", QR_DTYPE_F32, 2, VOCAB, HIDDEN);
    for (int l = 0; l < n_layers; l++) { add_layer(l); }
    add("model.norm.weight", QR_DTYPE_F32, 1, HIDDEN, 0);
    ok = ok && qr_safetensors_writer_create(folder, "model", specs, n_specs, 0, &writer, err) == QRUN_OK;
    for (const qr_safetensors_spec *spec; ok && (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        size_t n_bytes = qr_dtype_bytes(spec->dtype);
        for (int d = 0; d < spec->n_dims; d++) { n_bytes *= (size_t)spec->dims[d]; }
        fill(spec, (uint64_t)(spec - specs) << 32, bytes, n_bytes);
        ok = qr_safetensors_writer_write(writer, bytes, n_bytes, err) == QRUN_OK;
    }
    if (ok) { ok = qr_safetensors_writer_commit(writer, err) == QRUN_OK; }
    free(bytes);
    return ok;
}

static bool write_config(const char *folder, int n_layers, qr_error *err) {
    char path[4096], text[1024];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)snprintf(text, sizeof text,
                   "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
                   "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
                   "\"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 512, "
                   "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
                   "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\", \"bos_token_id\": 0, "
                   "\"eos_token_id\": 1, \"quantization_config\": {\"quant_method\": \"bitsandbytes\", "
                   "\"load_in_8bit\": true, \"load_in_4bit\": false}}\n",
                   HIDDEN, n_layers, HEADS, HEADS, HEAD_DIM, MLP, VOCAB);
    return qr_file_write(path, text, strlen(text), err) == QRUN_OK;
}

int main(int argc, char **argv) {
    qr_error err = {0};
    const int n_layers = argc == 3 ? atoi(argv[2]) : 0;
    if (n_layers < 1 || n_layers > MAX_LAYERS) {
        fprintf(stderr, "usage: wide_model FOLDER N_LAYERS, 1 to %d of them\n", MAX_LAYERS);
        return 2;
    }
    if (write_weights(argv[1], n_layers, &err) && write_config(argv[1], n_layers, &err)) { return 0; }
    fprintf(stderr, "wide_model: %s\n", err.message);
    return 1;
}
