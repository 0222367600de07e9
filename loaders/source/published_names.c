#include "loaders/source/published_names.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

enum { N_PARTS = 3, LONGER_BYTES = 32 /* more than a name grows by, with its end */ };

static const char FUSED[] = ".attention.query_key_value.";
static const char *const parts[N_PARTS] = {".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."};

enum { MOST_PAIRS = 8, MOST_CHANGES = 2 };

typedef struct name_pair {
    const char *published, *usual;
} name_pair;

/* Folders that have both tensors are of a family. A name has one of the changes of each list, or none. */
static const struct {
    const char *embedding, *of_layer;
    name_pair pairs[MOST_CHANGES][MOST_PAIRS]; /* up to a NULL */
} published[] = {
    {"model.word_embeddings.weight",
     "model.layers.0.attention.query_key_value.weight",
     {{{"model.word_embeddings.", "model.embed_tokens."},
       {".attention.dense.", ".self_attn.o_proj."},
       {".attention.query_layernorm.", ".self_attn.q_norm."},
       {".attention.key_layernorm.", ".self_attn.k_norm."},
       {".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"}}}},
    {"transformer.wte.weight",
     "transformer.h.0.attn.attention.q_proj.weight",
     {{{"transformer.wte.", "model.embed_tokens."},
       {"transformer.ln_f.", "model.norm."},
       {"transformer.h.", "model.layers."}},
      {{".attn.attention.out_proj.", ".self_attn.o_proj."},
       {".attn.attention.", ".self_attn."},
       {".ln_1.", ".input_layernorm."},
       {".ln_2.", ".post_attention_layernorm."},
       {".mlp.c_fc_0.", ".mlp.gate_proj."},
       {".mlp.c_fc_1.", ".mlp.up_proj."},
       {".mlp.c_proj.", ".mlp.down_proj."}}}},
};

/* Tensors and names as they are written. */
typedef struct translation {
    qr_safetensors_tensor *tensors;
    size_t n_tensors;
    char *names, *end;
} translation;

/* Adds a tensor. Its name, which is returned, may grow by less than LONGER_BYTES. */
static char *add(translation *t, const qr_safetensors_tensor *tensor) {
    const size_t length = strlen(tensor->name);
    char *name = memcpy(t->end, tensor->name, length + 1);
    t->tensors[t->n_tensors] = *tensor;
    t->tensors[t->n_tensors++].name = name;
    t->end += length + LONGER_BYTES;
    return name;
}

/* Whether `was` is in the name, which has `is` in its place then. */
static bool replace(char *name, const char *was, const char *is) {
    char *at = strstr(name, was);
    if (at == NULL) { return false; }
    const char *rest = at + strlen(was);
    memmove(at + strlen(is), rest, strlen(rest) + 1);
    for (size_t i = 0; is[i] != '\0'; i++) { at[i] = is[i]; }
    return true;
}

/* How many rows of a fused tensor are queries': what the last matrix of attention reads. 0: nothing says. */
static int64_t count_query_rows(const qr_safetensors *file, const qr_safetensors_tensor *fused) {
    char name[256];
    const char *at = strstr(fused->name, FUSED);
    const int n = snprintf(name, sizeof name, "%.*s.attention.dense.weight", (int)(at - fused->name), fused->name);
    const qr_safetensors_tensor *out = n < (int)sizeof name ? qr_safetensors_find(file, name) : NULL;
    return out != NULL && out->n_dims == 2 ? out->dims[1] : 0;
}

/* Queries, keys and values are rows one after the other, and there are as many values as keys. */
static qrun_status split(const qr_safetensors *file, const qr_safetensors_tensor *fused, translation *t,
                         qr_error *err) {
    const int64_t n_rows = fused->n_dims > 0 ? fused->dims[0] : 0, n_queries = count_query_rows(file, fused);
    const int64_t n_keys = (n_rows - n_queries) / 2;
    if (n_rows < 1 || n_queries < 1 || n_keys < 1 || n_queries + 2 * n_keys != n_rows ||
        (QR_DTYPES_FLOAT & QR_DTYPE_BIT(fused->dtype)) == 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: tensor \"%s\" is not the rows of queries, keys and values that its layer's "
                       "\"attention.dense.weight\" asks for",
                       qr_safetensors_shard_path(file, fused->shard), fused->name);
    }
    const size_t row_bytes = fused->n_bytes / (size_t)n_rows;
    const unsigned char *data = fused->data;
    for (int i = 0; i < N_PARTS; i++) {
        qr_safetensors_tensor part = *fused;
        part.dims[0] = i == 0 ? n_queries : n_keys;
        part.n_bytes = (size_t)part.dims[0] * row_bytes;
        part.data = data;
        data += part.n_bytes;
        (void)replace(add(t, &part), FUSED, parts[i]);
    }
    return QRUN_OK;
}

static qrun_status translate(const qr_safetensors *file, const qr_safetensors_tensor *tensor, size_t family,
                             translation *t, qr_error *err) {
    if (strstr(tensor->name, FUSED) != NULL) { return split(file, tensor, t, err); }
    char *name = add(t, tensor);
    for (size_t i = 0; i < MOST_CHANGES; i++) {
        const name_pair *pair = published[family].pairs[i], *end = pair + MOST_PAIRS;
        while (pair < end && pair->published != NULL && !replace(name, pair->published, pair->usual)) { pair++; }
    }
    return QRUN_OK;
}

/* The place in `published`; its size: none. */
static size_t find_family(const qr_safetensors *file) {
    size_t i = 0;
    while (i < QR_COUNT_OF(published) && (qr_safetensors_find(file, published[i].embedding) == NULL ||
                                          qr_safetensors_find(file, published[i].of_layer) == NULL)) {
        i++;
    }
    return i;
}

qrun_status qr_published_names_translate(qr_safetensors *file, qr_error *err) {
    const size_t n = qr_safetensors_count(file), family = find_family(file);
    size_t n_fused = 0, n_bytes = 1;
    if (family == QR_COUNT_OF(published)) { return QRUN_OK; }
    for (size_t i = 0; i < n; i++) {
        const char *name = qr_safetensors_get(file, i)->name;
        const bool is_fused = strstr(name, FUSED) != NULL;
        n_fused += is_fused;
        n_bytes += (strlen(name) + LONGER_BYTES) * (is_fused ? N_PARTS : 1);
    }
    translation t = {.tensors = qr_alloc_array(n + (N_PARTS - 1) * n_fused, sizeof *t.tensors),
                     .names = qr_alloc(n_bytes)};
    qrun_status status =
        t.tensors != NULL && t.names != NULL ? QRUN_OK : qr_fail_memory(err, "the names of tensors", n_bytes);
    t.end = t.names;
    for (size_t i = 0; status == QRUN_OK && i < n; i++) {
        status = translate(file, qr_safetensors_get(file, i), family, &t, err);
    }
    if (status == QRUN_OK) { return qr_safetensors_replace(file, t.tensors, t.n_tensors, t.names, err); }
    qr_free(t.tensors);
    qr_free(t.names);
    return status;
}
