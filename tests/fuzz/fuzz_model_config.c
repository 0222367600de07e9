/* An accepted config keeps the promises that forward relies on. */
#include <math.h>

#include "fuzz.h"
#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"

static void check_rope(const qr_rope_config *rope, int64_t head_dim) {
    FUZZ_CHECK((unsigned)rope->type < QR_ROPE_TYPE_COUNT);
    FUZZ_CHECK(rope->rotary_dim >= 2 && rope->rotary_dim % 2 == 0 && rope->rotary_dim <= head_dim);
    FUZZ_CHECK(rope->n_rotated >= 0 && rope->n_rotated <= rope->rotary_dim / 2);
    FUZZ_CHECK(rope->theta >= 1 && isfinite(rope->theta));
    FUZZ_CHECK(rope->factor > 0 && isfinite(rope->factor) && rope->original_max_position_embeddings > 0);
    FUZZ_CHECK((rope->type == QR_ROPE_LONGROPE) == (rope->short_factors != NULL));
    FUZZ_CHECK((rope->type == QR_ROPE_LONGROPE) == (rope->long_factors != NULL));
    for (int64_t i = 0; rope->short_factors != NULL && i < rope->rotary_dim / 2; i++) {
        FUZZ_CHECK(rope->short_factors[i] > 0 && rope->long_factors[i] > 0);
    }
}

static void check_experts(const qr_expert_config *e, int64_t n_layers) {
    FUZZ_CHECK(e->n_experts * n_layers <= QR_MOST_EXPERTS_OF_MODEL);
    FUZZ_CHECK((e->n_experts > 0) == (e->layer_has_experts != NULL));
    FUZZ_CHECK(e->n_per_token <= e->n_experts && e->n_experts <= QR_MOST_EXPERTS);
    FUZZ_CHECK(e->n_experts == 0 || (e->n_per_token > 0 && e->n_per_token <= QR_MOST_EXPERTS_PER_TOKEN));
    FUZZ_CHECK(e->n_experts == 0 || e->intermediate_size > 0);
}

static void check_recurrence(const qr_recurrent_config *d, int64_t n_layers) {
    bool any_full = false;
    for (int64_t l = 0; l < n_layers; l++) { any_full |= !d->layers[l]; }
    FUZZ_CHECK(any_full);
    FUZZ_CHECK(d->conv_kernel > 0 && d->conv_kernel <= 8);
    if (d->kind == QR_RECURRENT_CONV) { return; }
    FUZZ_CHECK(d->n_key_heads > 0 && d->n_value_heads > 0 && d->n_value_heads % d->n_key_heads == 0);
    FUZZ_CHECK(d->key_dim > 0 && d->value_dim > 0);
    FUZZ_CHECK(d->n_value_heads * d->key_dim * d->value_dim <= INT32_MAX);
}

/* Every layer has heads that fit, and keys and values of its own or of an earlier layer of its kind. */
static void check_attention(const qr_model_config *c) {
    /* Gemma 3n's table of inputs may end before its vocabulary: ids beyond it have row 0. */
    const int64_t least_rows = c->family == QR_FAMILY_GEMMA3N ? 1 : c->vocab_size;
    FUZZ_CHECK(c->layer_inputs.size >= 0 && (c->layer_inputs.size == 0 || c->layer_inputs.vocab_size >= least_rows));
    for (int64_t l = 0; l < c->n_layers; l++) {
        const qr_layer_heads heads = qr_model_config_heads(c, l);
        const int64_t owner = qr_model_config_kv_owner(c, l);
        FUZZ_CHECK(heads.head_dim > 0 && heads.n_kv_heads > 0 && c->n_heads % heads.n_kv_heads == 0);
        FUZZ_CHECK(owner >= 0 && owner <= l && qr_model_config_kv_owner(c, owner) == owner);
        FUZZ_CHECK(c->layer_slides[owner] == c->layer_slides[l]);
    }
}

static void check_config(const qr_model_config *c) {
    FUZZ_CHECK((unsigned)c->family < QR_FAMILY_COUNT);
    FUZZ_CHECK(c->vocab_size > 0 && c->hidden_size > 0 && c->intermediate_size > 0 && c->n_layers > 0);
    FUZZ_CHECK(c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0 && c->head_dim > 0);
    FUZZ_CHECK(c->max_position_embeddings > 0 && c->norm_eps >= 0 && c->query_pre_attn_scalar > 0);
    FUZZ_CHECK(c->attn_logit_softcapping >= 0 && c->final_logit_softcapping >= 0);
    check_attention(c);
    check_experts(&c->experts, c->n_layers);
    bool any_slides = false;
    for (int64_t i = 0; i < c->n_layers; i++) { any_slides |= c->layer_slides[i]; }
    FUZZ_CHECK(any_slides == (c->sliding_window > 0));
    FUZZ_CHECK(c->has_rope == (c->family != QR_FAMILY_GPT2));
    if (c->has_rope) {
        check_rope(&c->rope, c->attention.full.head_dim);
        check_rope(&c->rope_local, c->attention.sliding.head_dim);
    }
    FUZZ_CHECK((c->recurrent.layers != NULL) == (c->recurrent.kind != QR_RECURRENT_NONE));
    FUZZ_CHECK(
        (c->recurrent.kind == QR_RECURRENT_DELTA) ==
        (c->family == QR_FAMILY_QWEN3_5 || c->family == QR_FAMILY_QWEN3_5_MOE || c->family == QR_FAMILY_QWEN3_NEXT));
    FUZZ_CHECK((c->recurrent.kind == QR_RECURRENT_CONV) ==
               (c->family == QR_FAMILY_LFM2 || c->family == QR_FAMILY_LFM2_MOE || c->family == QR_FAMILY_LFM3));
    if (c->recurrent.layers != NULL) { check_recurrence(&c->recurrent, c->n_layers); }
    for (int i = 0; i < c->eos.n; i++) { FUZZ_CHECK(c->eos.ids[i] >= 0); }
    FUZZ_CHECK(c->bos_token_id >= -1 && c->pad_token_id >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qr_json *root;
    if (qr_json_parse((const char *)data, size, "fuzz", &root, NULL) != QRUN_OK) { return 0; }
    qr_model_config config;
    qr_error err = {0};
    const qrun_status status = qr_model_config_parse(root, "fuzz", &config, &err);
    if (status == QRUN_OK) {
        check_config(&config);
    } else {
        FUZZ_CHECK(err.message[0] != '\0' && config.layer_slides == NULL && config.experts.layer_has_experts == NULL &&
                   config.recurrent.layers == NULL);
    }
    qr_generation_config generation;
    if (qr_generation_config_parse(root, "fuzz", &config, &generation, NULL) == QRUN_OK) {
        FUZZ_CHECK(generation.temperature > 0 && generation.top_k >= 0 && generation.repetition_penalty > 0);
        FUZZ_CHECK(generation.top_p >= 0 && generation.top_p <= 1 && generation.min_p >= 0 && generation.min_p <= 1);
    }
    qr_generation_config_free(&generation);
    qr_model_config_free(&config);
    qr_json_free(root);
    return 0;
}
