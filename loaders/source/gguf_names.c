#include "loaders/source/gguf_names.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"

/* Which architectures a row of the table below is for. */
enum {
    LIKE_LLAMA = 1,  /* all but GPT-2 */
    PRE_NORMS = 2,   /* norms before the blocks alone */
    SANDWICH = 4,    /* Gemma: before and after */
    POST_NORMS = 8,  /* OLMo 2: after them alone */
    SPLIT_QKV = 16,  /* q, k, v of their own */
    FUSED_QKV = 32,  /* Phi-3: in one, and so are gate and up of an MLP */
    HEAD_NORMS = 64, /* norms of queries and keys */
    GPT2 = 128,
    EXPERTS = 256, /* as most families name them */
    SHARED_EXPERT = 512,
    MIXTRAL = 1024,
    GPT_OSS = 2048,
    NAMED_POST_NORM = 4096, /* pre-norms, of which the second is called as if it came after attention */
    DELTA = 8192,
    LFM2 = 16384, /* whose names are its own, in transformers too */
    LFM2_EXPERTS = 32768,
    SPLIT_MLP = 65536, /* gate and up of an MLP of their own */
    GEMMA4 = 1 << 17,
    DELTA_GATES = 1 << 18, /* of the delta rule: in two matrices */
    DELTA_BA = 1 << 19,    /* or in one, as Qwen3-Next has them */
    GLM4 = 1 << 20,
    SCORE_BIAS = 1 << 21, /* added where experts are chosen */
    ERNIE_MOE = 1 << 22,
    WHOLE_SHARED = 1 << 23, /* a shared expert that counts in full */
    GRANITE4 = 1 << 24,     /* its MLP, without experts */
    GRANITE4_MOE = 1 << 25,
    SPACES = 1 << 26, /* layers of a state space */
    NEMOTRON_H = 1 << 27,
    NEMOTRON_H_MOE = 1 << 28,
    LATENT = 1 << 29, /* queries, keys and values of latents */
    LATENT_SPLIT = 1 << 30,

    LLAMA_NAMES = LIKE_LLAMA | SPLIT_QKV | SPLIT_MLP
};

static const qr_gguf_experts mixtral_experts = {.count = "num_experts",
                                                .per_token = "num_experts_per_tok",
                                                .size = "moe_intermediate_size",
                                                .shares = QR_GGUF_SHARES_OF_ONE};
static const qr_gguf_experts olmoe_experts = {
    .count = "num_experts", .per_token = "num_experts_per_tok", .size = "moe_intermediate_size"};
static const qr_gguf_experts qwen2_experts = {.count = "num_experts",
                                              .per_token = "num_experts_per_tok",
                                              .size = "moe_intermediate_size",
                                              .shared_size = "shared_expert_intermediate_size"};
static const qr_gguf_experts qwen3_5_experts = {.count = "num_experts",
                                                .per_token = "num_experts_per_tok",
                                                .size = "moe_intermediate_size",
                                                .shared_size = "shared_expert_intermediate_size",
                                                .shares = QR_GGUF_SHARES_OF_ONE};
static const qr_gguf_experts lfm2_experts = {.count = "num_experts",
                                             .per_token = "num_experts_per_tok",
                                             .size = "moe_intermediate_size",
                                             .n_dense = "num_dense_layers",
                                             .router = QR_GGUF_SAYS_SIGMOID,
                                             .shares = QR_GGUF_SHARES_OF_ONE};

static const qr_gguf_experts gemma4_experts = {.joins_gate_up = true,
                                               .count = "num_experts",
                                               .per_token = "top_k_experts",
                                               .size = "moe_intermediate_size",
                                               .shares = QR_GGUF_SHARES_OF_ONE};

static const qr_gguf_experts glm4_experts = {.count = "n_routed_experts",
                                             .per_token = "num_experts_per_tok",
                                             .size = "moe_intermediate_size",
                                             .shared_count = "n_shared_experts",
                                             .n_dense = "first_k_dense_replace",
                                             .router = QR_GGUF_SIGMOID,
                                             .shares = QR_GGUF_SHARES_SAID,
                                             .scales_shares = true};
static const qr_gguf_experts deepseek_v2_experts = {.count = "n_routed_experts",
                                                    .per_token = "num_experts_per_tok",
                                                    .size = "moe_intermediate_size",
                                                    .shared_count = "n_shared_experts",
                                                    .n_dense = "first_k_dense_replace"};
static const qr_gguf_experts ernie_experts = {.count = "moe_num_experts",
                                              .per_token = "moe_k",
                                              .size = "moe_intermediate_size",
                                              .shared_count = "moe_num_shared_experts",
                                              .n_dense = "moe_layer_start_index",
                                              .step = "moe_layer_interval",
                                              .shares = QR_GGUF_SHARES_OF_ONE};

static const qr_gguf_experts granite_experts = {.count = "num_local_experts",
                                                .per_token = "num_experts_per_tok",
                                                .shared_size = "shared_intermediate_size",
                                                .shares = QR_GGUF_SHARES_OF_ONE};
static const qr_gguf_experts nemotron_experts = {.count = "n_routed_experts",
                                                 .per_token = "num_experts_per_tok",
                                                 .size = "moe_intermediate_size",
                                                 .shared_size = "moe_shared_expert_intermediate_size",
                                                 .router = QR_GGUF_SIGMOID,
                                                 .shares = QR_GGUF_SHARES_SAID,
                                                 .scales_shares = true};

static const qr_gguf_arch archs[] = {
    {.name = "llama",
     .model_type = "llama",
     .names = LLAMA_NAMES | PRE_NORMS,
     .biases = QR_GGUF_ALL_BIASES,
     .pairs_rows = true},
    {.name = "mistral3", .model_type = "ministral3", .names = LLAMA_NAMES | PRE_NORMS, .pairs_rows = true},
    {.name = "smollm3", .model_type = "smollm3", .names = LLAMA_NAMES | PRE_NORMS, .pairs_rows = true},
    {.name = "qwen2", .model_type = "qwen2", .names = LLAMA_NAMES | PRE_NORMS, .biases = QR_GGUF_QKV_BIASES},
    {.name = "qwen3", .model_type = "qwen3", .names = LLAMA_NAMES | PRE_NORMS | HEAD_NORMS},
    {.name = "gemma", .model_type = "gemma", .names = LLAMA_NAMES | PRE_NORMS, .adds_one = true},
    {.name = "gemma2", .model_type = "gemma2", .names = LLAMA_NAMES | SANDWICH, .adds_one = true, .has_windows = true},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .names = LLAMA_NAMES | SANDWICH | HEAD_NORMS,
     .adds_one = true,
     .has_windows = true},
    {.name = "gemma4",
     .model_type = "gemma4_text",
     .names = LLAMA_NAMES | SANDWICH | HEAD_NORMS | GEMMA4,
     .rotates_in_part = true,
     .has_own_sizes = true,
     .has_windows = true},
    {.name = "gemma4",
     .model_type = "gemma4_text",
     .names = LLAMA_NAMES | SANDWICH | HEAD_NORMS | GEMMA4,
     .experts = &gemma4_experts,
     .rotates_in_part = true,
     .has_own_sizes = true,
     .has_windows = true},
    {.name = "phi3", .model_type = "phi3", .names = LIKE_LLAMA | PRE_NORMS | FUSED_QKV, .rotates_in_part = true},
    {.name = "olmo2", .model_type = "olmo2", .names = LLAMA_NAMES | POST_NORMS | HEAD_NORMS, .has_windows = true},
    {.name = "gpt2", .model_type = "gpt2", .names = GPT2, .biases = QR_GGUF_ALL_BIASES, .is_gpt2 = true},
    {.name = "llama",
     .model_type = "mixtral",
     .names = LLAMA_NAMES | PRE_NORMS | MIXTRAL,
     .biases = QR_GGUF_ALL_BIASES,
     .experts = &mixtral_experts,
     .pairs_rows = true},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .names = LLAMA_NAMES | PRE_NORMS | EXPERTS | SHARED_EXPERT,
     .biases = QR_GGUF_QKV_BIASES,
     .experts = &qwen2_experts},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .names = LLAMA_NAMES | PRE_NORMS | HEAD_NORMS | EXPERTS,
     .experts = &mixtral_experts},
    {.name = "olmoe",
     .model_type = "olmoe",
     .names = LLAMA_NAMES | PRE_NORMS | HEAD_NORMS | EXPERTS,
     .experts = &olmoe_experts},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .names = LLAMA_NAMES | NAMED_POST_NORM | EXPERTS | GPT_OSS,
     .biases = QR_GGUF_ALL_BIASES,
     .experts = &mixtral_experts,
     .has_windows = true},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .names = LLAMA_NAMES | NAMED_POST_NORM | HEAD_NORMS | DELTA | DELTA_GATES,
     .adds_one = true,
     .rotates_in_part = true,
     .has_delta = true,
     .turns_heads = true},
    {.name = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .names = LLAMA_NAMES | NAMED_POST_NORM | HEAD_NORMS | DELTA | DELTA_GATES | EXPERTS | SHARED_EXPERT,
     .experts = &qwen3_5_experts,
     .adds_one = true,
     .rotates_in_part = true,
     .has_delta = true,
     .turns_heads = true},
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .read_as = "qwen3_5_moe_text", /* which is the same, with matrices as files have them */
     .names = LLAMA_NAMES | NAMED_POST_NORM | HEAD_NORMS | DELTA | DELTA_BA | EXPERTS | SHARED_EXPERT,
     .experts = &qwen3_5_experts,
     .adds_one = true,
     .rotates_in_part = true,
     .has_delta = true},
    {.name = "qwen3vl", .model_type = "qwen3_vl_text", .names = LLAMA_NAMES | PRE_NORMS | HEAD_NORMS},
    {.name = "qwen3vlmoe", /* the text model is that of Qwen3-MoE */
     .model_type = "qwen3_moe",
     .names = LLAMA_NAMES | PRE_NORMS | HEAD_NORMS | EXPERTS,
     .experts = &mixtral_experts,
     .is_only_read = true},
    {.name = "exaone4",
     .model_type = "exaone4",
     .names = LLAMA_NAMES | POST_NORMS | HEAD_NORMS,
     .has_windows = true,
     .has_dividers = true},
    {.name = "seed_oss",
     .model_type = "seed_oss",
     .names = LLAMA_NAMES | NAMED_POST_NORM,
     .biases = QR_GGUF_QKV_BIASES},
    {.name = "ernie4_5", .model_type = "ernie4_5", .names = LLAMA_NAMES | PRE_NORMS},
    {.name = "ernie4_5-moe",
     .model_type = "ernie4_5_moe",
     .names = LLAMA_NAMES | PRE_NORMS | EXPERTS | WHOLE_SHARED | ERNIE_MOE,
     .experts = &ernie_experts},
    {.name = "glm4",
     .model_type = "glm4",
     .names = LIKE_LLAMA | SPLIT_QKV | PRE_NORMS | GLM4,
     .biases = QR_GGUF_QKV_BIASES,
     .rotates_in_part = true},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .names = LLAMA_NAMES | NAMED_POST_NORM | HEAD_NORMS | EXPERTS | WHOLE_SHARED | SCORE_BIAS,
     .biases = QR_GGUF_QKV_BIASES,
     .experts = &glm4_experts,
     .rotates_in_part = true},
    {.name = "granite",
     .model_type = "granite",
     .names = LLAMA_NAMES | PRE_NORMS,
     .biases = QR_GGUF_ALL_BIASES,
     .pairs_rows = true,
     .has_multipliers = true},
    {.name = "granite", /* as Granite 4 calls it: written only, since files are read as the above */
     .model_type = "granitemoehybrid",
     .names = LIKE_LLAMA | SPLIT_QKV | PRE_NORMS | GRANITE4,
     .biases = QR_GGUF_ALL_BIASES,
     .pairs_rows = true,
     .has_multipliers = true},
    {.name = "granitemoe",
     .model_type = "granitemoehybrid",
     .names = LIKE_LLAMA | SPLIT_QKV | PRE_NORMS | GRANITE4_MOE,
     .biases = QR_GGUF_ALL_BIASES,
     .experts = &granite_experts,
     .pairs_rows = true,
     .has_multipliers = true},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .names = LIKE_LLAMA | SPLIT_QKV | PRE_NORMS | SPACES | GRANITE4,
     .biases = QR_GGUF_ALL_BIASES,
     .pairs_rows = true,
     .has_multipliers = true,
     .has_spaces = true},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .names = LIKE_LLAMA | SPLIT_QKV | PRE_NORMS | SPACES | GRANITE4_MOE,
     .biases = QR_GGUF_ALL_BIASES,
     .experts = &granite_experts,
     .pairs_rows = true,
     .has_multipliers = true,
     .has_spaces = true},
    {.name = "nemotron_h",
     .model_type = "nemotron_h",
     .names = NEMOTRON_H,
     .biases = QR_GGUF_MLP_BIASES,
     .pairs_rows = true, /* though they do not rotate */
     .has_own_sizes = true,
     .has_spaces = true},
    {.name = "nemotron_h_moe",
     .model_type = "nemotron_h",
     .names = NEMOTRON_H | NEMOTRON_H_MOE,
     .experts = &nemotron_experts,
     .pairs_rows = true,
     .has_own_sizes = true,
     .has_spaces = true},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .names = LIKE_LLAMA | SPLIT_MLP | PRE_NORMS | EXPERTS | WHOLE_SHARED | LATENT | LATENT_SPLIT,
     .experts = &deepseek_v2_experts,
     .rotates_in_part = true,
     .has_latents = true,
     .splits_latents = true},
    {.name = "deepseek2",
     .model_type = "deepseek_v3",
     .names = LIKE_LLAMA | SPLIT_MLP | PRE_NORMS | EXPERTS | WHOLE_SHARED | SCORE_BIAS | LATENT | LATENT_SPLIT,
     .experts = &glm4_experts,
     .rotates_in_part = true,
     .has_latents = true,
     .splits_latents = true},
    {.name = "deepseek2", /* written only, since files are read as the above */
     .model_type = "glm4_moe_lite",
     .names = LIKE_LLAMA | SPLIT_MLP | PRE_NORMS | EXPERTS | WHOLE_SHARED | SCORE_BIAS | LATENT | LATENT_SPLIT,
     .experts = &glm4_experts,
     .rotates_in_part = true,
     .has_latents = true,
     .splits_latents = true},
    {.name = "minicpm3",
     .model_type = "minicpm3",
     .names = LIKE_LLAMA | SPLIT_MLP | PRE_NORMS | LATENT,
     .rotates_in_part = true,
     .has_latents = true},
    {.name = "lfm2", .model_type = "lfm2", .names = LFM2, .has_convs = true},
    {.name = "lfm2moe",
     .model_type = "lfm2_moe",
     .names = LFM2 | LFM2_EXPERTS,
     .experts = &lfm2_experts,
     .has_convs = true},
};

/* Families that llama.cpp knows under the name of another. */
static const struct {
    const char *model_type, *name;
} written_as[] = {{"mistral", "llama"}, {"iquestcoder", "llama"}, {"internlm3", "llama"}, {"olmo3", "olmo2"}};

/* Mixtral is "llama" too, with experts. */
static const qr_gguf_arch *find(const char *name, bool has_experts) {
    for (size_t i = 0; i < QR_COUNT_OF(archs); i++) {
        if (strcmp(archs[i].name, name) == 0 && (archs[i].experts != NULL) == has_experts) { return &archs[i]; }
    }
    return NULL;
}

const qr_gguf_arch *qr_gguf_arch_of_model_type(const char *model_type, bool has_experts, bool has_spaces) {
    for (size_t i = 0; i < QR_COUNT_OF(written_as); i++) {
        if (strcmp(written_as[i].model_type, model_type) == 0) { return find(written_as[i].name, false); }
    }
    for (size_t i = 0; i < QR_COUNT_OF(archs); i++) {
        const qr_gguf_arch *arch = &archs[i];
        if (strcmp(arch->model_type, model_type) == 0 && (arch->experts != NULL) == has_experts &&
            arch->has_spaces == has_spaces && !arch->is_only_read) {
            return arch;
        }
    }
    return NULL;
}

/* Of two families of one name, the one whose router takes a sigmoid where the file's does: it says so, or has a bias of
 * scores, as such routers have. */
static qrun_status choose_by_router(const qr_gguf *file, const qr_gguf_arch **arch, qr_error *err) {
    enum { SIGMOID = 2, N_GATING = 16 };
    const qr_gguf_arch *const next = *arch + 1, *const end = archs + QR_COUNT_OF(archs);
    int64_t gating = 0;
    if ((*arch)->experts == NULL || next == end || next->experts == NULL || strcmp(next->name, (*arch)->name) != 0) {
        return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, *arch, "expert_gating_func", 0, N_GATING, &gating, err));
    bool is_sigmoid = gating == SIGMOID;
    for (size_t i = 0; gating == 0 && i < qr_gguf_tensor_count(file) && !is_sigmoid; i++) {
        static const char bias[] = ".exp_probs_b.bias";
        const qr_gguf_text name = qr_gguf_get_tensor(file, i)->name;
        const size_t n = sizeof bias - 1;
        is_sigmoid = name.n > n && memcmp(name.bytes + name.n - n, bias, n) == 0;
    }
    if (is_sigmoid) { *arch = next; }
    return QRUN_OK;
}

static qrun_status refuse_arch(const qr_gguf *file, const char *name, qr_error *err) {
    qr_buffer names = {0};
    for (size_t i = 0; i < QR_COUNT_OF(archs); i++) {
        const qr_gguf_arch *arch = &archs[i], *dense = find(arch->name, false);
        const bool is_named = dense != NULL ? dense == arch : find(arch->name, true) == arch;
        if (is_named) { qr_buffer_append_format(&names, "%s%s", i > 0 ? ", " : "", arch->name); }
    }
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: architecture \"%s\" is not supported; supported are %s",
                qr_gguf_path(file), name, names.data != NULL ? names.data : "others");
    qr_buffer_free(&names);
    return status;
}

qrun_status qr_gguf_read_arch(const qr_gguf *file, const qr_gguf_arch **arch, qr_error *err) {
    qr_gguf_text text = {0};
    char name[64];
    QR_RETURN_IF_ERROR(qr_gguf_get_text(file, "general.architecture", &text, err));
    if (text.bytes == NULL) { return qr_gguf_fail_missing(file, "general.architecture", err); }
    (void)snprintf(name, sizeof name, "%.*s", (int)(text.n < sizeof name ? text.n : sizeof name - 1), text.bytes);
    char key[sizeof name + sizeof ".expert_count"];
    int64_t n_experts = 0;
    (void)snprintf(key, sizeof key, "%s.expert_count", name);
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, key, 0, QR_GGUF_MOST_EXPERTS, &n_experts, err));
    *arch = find(name, n_experts > 0);
    if (*arch != NULL) { return choose_by_router(file, arch, err); }
    if (find(name, n_experts == 0) == NULL) { return refuse_arch(file, name, err); }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: a \"%s\" model %s experts is not supported", qr_gguf_path(file),
                   name, n_experts > 0 ? "with" : "without");
}

qr_gguf_key qr_gguf_arch_key(const qr_gguf_arch *arch, const char *key) {
    qr_gguf_key full;
    (void)snprintf(full.text, sizeof full.text, "%s.%s", arch->name, key);
    return full;
}

/* The number that all items of a list are. */
static qrun_status read_equal_items(const qr_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value,
                                    qr_error *err) {
    int64_t *list;
    size_t n;
    QR_RETURN_IF_ERROR(qr_gguf_get_ints(file, key, &list, &n, err));
    const int64_t first = n > 0 ? list[0] : low - 1;
    bool equal = true;
    for (size_t i = 0; i < n; i++) { equal = equal && list[i] == first; }
    qr_free(list);
    if (!equal) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %s is a list of different numbers: layers of different sizes are not supported",
                       qr_gguf_path(file), key);
    }
    if (first < low || first > high) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s is a list of numbers outside %lld to %lld", qr_gguf_path(file),
                       key, (long long)low, (long long)high);
    }
    *value = first;
    return QRUN_OK;
}

qrun_status qr_gguf_get_arch_int(const qr_gguf *file, const qr_gguf_arch *arch, const char *key, int64_t low,
                                 int64_t high, int64_t *value, qr_error *err) {
    const qr_gguf_key full = qr_gguf_arch_key(arch, key);
    if (qr_gguf_is_list(file, full.text)) { return read_equal_items(file, full.text, low, high, value, err); }
    return qr_gguf_get_int(file, full.text, low, high, value, err);
}

qrun_status qr_gguf_get_arch_double(const qr_gguf *file, const qr_gguf_arch *arch, const char *key, double low,
                                    double high, double *value, qr_error *err) {
    return qr_gguf_get_double(file, qr_gguf_arch_key(arch, key).text, low, high, value, err);
}

qrun_status qr_gguf_count_layers(const qr_gguf *file, const qr_gguf_arch *arch, int64_t *n_layers, int64_t *n_ahead,
                                 qr_error *err) {
    *n_layers = *n_ahead = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "block_count", 1, 1 << 12, n_layers, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "nextn_predict_layers", 0, 1 << 12, n_ahead, err));
    if (*n_ahead < *n_layers) {
        *n_layers -= *n_ahead;
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: has %lld layers, of which %lld predict tokens further on",
                   qr_gguf_path(file), (long long)*n_layers, (long long)*n_ahead);
}

qrun_status qr_gguf_read_delta(const qr_gguf *file, const qr_gguf_arch *arch, qr_gguf_delta *delta, qr_error *err) {
    int64_t inner = 0;
    *delta = (qr_gguf_delta){0};
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "ssm.conv_kernel", 1, 8, &delta->kernel, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "ssm.state_size", 1, 1 << 10, &delta->head_dim, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "ssm.group_count", 1, 1 << 12, &delta->n_key_heads, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "ssm.time_step_rank", 1, 1 << 12, &delta->n_value_heads, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "ssm.inner_size", 1, 1 << 22, &inner, err));
    const bool has_all = delta->kernel > 0 && delta->head_dim > 0 && delta->n_key_heads > 0;
    if (has_all && delta->n_value_heads > 0 && delta->n_value_heads % delta->n_key_heads == 0 &&
        inner == delta->n_value_heads * delta->head_dim) {
        return QRUN_OK;
    }
    return qr_fail(
        err, QRUN_ERROR_INPUT,
        "%s: %s.ssm has %lld heads of keys, %lld of values, of size %lld, and %lld values in all, which do not "
        "go together",
        qr_gguf_path(file), arch->name, (long long)delta->n_key_heads, (long long)delta->n_value_heads,
        (long long)delta->head_dim, (long long)inner);
}

/* ---- Names of tensors -------------------------------------------------------------------------------------------- */

#define LAYER "model.layers.%d."
#define BLOCK "layers.%d.mixer." /* of Nemotron-H */

/* Without the suffix ".weight" or ".bias", unless names differ in it: then GGUF's has one here. */
static const struct {
    unsigned archs; /* bits: of those that have it */
    const char *gguf, *hf;
} names[] = {
    {LIKE_LLAMA, "token_embd", "model.embed_tokens"},
    {LIKE_LLAMA, "output_norm", "model.norm"},
    {LIKE_LLAMA, "output", "lm_head"},
    {LIKE_LLAMA, "blk.%d.attn_output", LAYER "self_attn.o_proj"},
    {SPLIT_MLP | FUSED_QKV | GLM4, "blk.%d.ffn_down", LAYER "mlp.down_proj"},
    {SPLIT_QKV, "blk.%d.attn_q", LAYER "self_attn.q_proj"},
    {SPLIT_QKV, "blk.%d.attn_k", LAYER "self_attn.k_proj"},
    {SPLIT_QKV, "blk.%d.attn_v", LAYER "self_attn.v_proj"},
    {SPLIT_MLP, "blk.%d.ffn_gate", LAYER "mlp.gate_proj"},
    {SPLIT_MLP, "blk.%d.ffn_up", LAYER "mlp.up_proj"},
    {FUSED_QKV, "blk.%d.attn_qkv", LAYER "self_attn.qkv_proj"},
    {FUSED_QKV, "blk.%d.ffn_up", LAYER "mlp.gate_up_proj"},
    {HEAD_NORMS, "blk.%d.attn_q_norm", LAYER "self_attn.q_norm"},
    {HEAD_NORMS, "blk.%d.attn_k_norm", LAYER "self_attn.k_norm"},
    {PRE_NORMS, "blk.%d.attn_norm", LAYER "input_layernorm"},
    {PRE_NORMS, "blk.%d.ffn_norm", LAYER "post_attention_layernorm"},
    {SANDWICH, "blk.%d.attn_norm", LAYER "input_layernorm"},
    {SANDWICH, "blk.%d.post_attention_norm", LAYER "post_attention_layernorm"},
    {SANDWICH, "blk.%d.ffn_norm", LAYER "pre_feedforward_layernorm"},
    {SANDWICH, "blk.%d.post_ffw_norm", LAYER "post_feedforward_layernorm"},
    {POST_NORMS, "blk.%d.post_attention_norm", LAYER "post_attention_layernorm"},
    {POST_NORMS, "blk.%d.post_ffw_norm", LAYER "post_feedforward_layernorm"},
    {GPT2, "token_embd", "wte"},
    {GPT2, "position_embd", "wpe"},
    {GPT2, "output_norm", "ln_f"},
    {GPT2, "output", "lm_head"},
    {GPT2, "blk.%d.attn_norm", "h.%d.ln_1"},
    {GPT2, "blk.%d.ffn_norm", "h.%d.ln_2"},
    {GPT2, "blk.%d.attn_qkv", "h.%d.attn.c_attn"},
    {GPT2, "blk.%d.attn_output", "h.%d.attn.c_proj"},
    {GPT2, "blk.%d.ffn_up", "h.%d.mlp.c_fc"},
    {GPT2, "blk.%d.ffn_down", "h.%d.mlp.c_proj"},
    {EXPERTS, "blk.%d.ffn_gate_inp", LAYER "mlp.gate"},
    {EXPERTS, "blk.%d.ffn_gate_up_exps.weight", LAYER "mlp.experts.%d.gate_up_proj.weight"},
    {EXPERTS, "blk.%d.ffn_gate_exps.weight", LAYER "mlp.experts.%d.gate_proj.weight"},
    {EXPERTS, "blk.%d.ffn_up_exps.weight", LAYER "mlp.experts.%d.up_proj.weight"},
    {EXPERTS, "blk.%d.ffn_down_exps.weight", LAYER "mlp.experts.%d.down_proj.weight"},
    {SHARED_EXPERT, "blk.%d.ffn_gate_inp_shexp", LAYER "mlp.shared_expert_gate"},
    {SHARED_EXPERT, "blk.%d.ffn_gate_shexp", LAYER "mlp.shared_expert.gate_proj"},
    {SHARED_EXPERT, "blk.%d.ffn_up_shexp", LAYER "mlp.shared_expert.up_proj"},
    {SHARED_EXPERT, "blk.%d.ffn_down_shexp", LAYER "mlp.shared_expert.down_proj"},
    {MIXTRAL, "blk.%d.ffn_gate_inp", LAYER "block_sparse_moe.gate"},
    {MIXTRAL, "blk.%d.ffn_gate_inp", LAYER "mlp.gate"}, /* of folders that transformers 5 wrote */
    {MIXTRAL, "blk.%d.ffn_gate_exps.weight", LAYER "block_sparse_moe.experts.%d.w1.weight"},
    {MIXTRAL, "blk.%d.ffn_up_exps.weight", LAYER "block_sparse_moe.experts.%d.w3.weight"},
    {MIXTRAL, "blk.%d.ffn_down_exps.weight", LAYER "block_sparse_moe.experts.%d.w2.weight"},
    {NAMED_POST_NORM, "blk.%d.attn_norm", LAYER "input_layernorm"},
    {NAMED_POST_NORM, "blk.%d.post_attention_norm", LAYER "post_attention_layernorm"},
    {GPT_OSS, "blk.%d.attn_sinks.weight", LAYER "self_attn.sinks"},
    {GPT_OSS, "blk.%d.ffn_gate_exps.bias", LAYER "mlp.experts.gate_proj_bias"},
    {GPT_OSS, "blk.%d.ffn_up_exps.bias", LAYER "mlp.experts.up_proj_bias"},
    {GPT_OSS, "blk.%d.ffn_down_exps.bias", LAYER "mlp.experts.down_proj_bias"},
    {DELTA, "blk.%d.attn_qkv", LAYER "linear_attn.in_proj_qkv"},
    {DELTA, "blk.%d.attn_gate", LAYER "linear_attn.in_proj_z"},
    {DELTA_GATES, "blk.%d.ssm_beta", LAYER "linear_attn.in_proj_b"},
    {DELTA_GATES, "blk.%d.ssm_alpha", LAYER "linear_attn.in_proj_a"},
    {DELTA_BA, "blk.%d.ssm_ba", LAYER "linear_attn.in_proj_ba"},
    {DELTA, "blk.%d.ssm_conv1d", LAYER "linear_attn.conv1d"},
    {DELTA, "blk.%d.ssm_norm", LAYER "linear_attn.norm"},
    {DELTA, "blk.%d.ssm_out", LAYER "linear_attn.out_proj"},
    {DELTA, "blk.%d.ssm_dt.bias", LAYER "linear_attn.dt_bias"},
    {DELTA, "blk.%d.ssm_a", LAYER "linear_attn.A_log"},
    {LATENT, "blk.%d.attn_q", LAYER "self_attn.q_proj"},
    {LATENT, "blk.%d.attn_q_a", LAYER "self_attn.q_a_proj"},
    {LATENT, "blk.%d.attn_q_a_norm", LAYER "self_attn.q_a_layernorm"},
    {LATENT, "blk.%d.attn_q_b", LAYER "self_attn.q_b_proj"},
    {LATENT, "blk.%d.attn_kv_a_mqa", LAYER "self_attn.kv_a_proj_with_mqa"},
    {LATENT, "blk.%d.attn_kv_a_norm", LAYER "self_attn.kv_a_layernorm"},
    {LATENT, "blk.%d.attn_kv_b", LAYER "self_attn.kv_b_proj"}, /* of DeepSeek: in older files */
    {LATENT_SPLIT, "blk.%d.attn_k_b", LAYER "self_attn.k_b_proj"},
    {LATENT_SPLIT, "blk.%d.attn_v_b", LAYER "self_attn.v_b_proj"},
    {GLM4, "blk.%d.ffn_up", LAYER "mlp.gate_up_proj"},
    {GLM4, "blk.%d.post_attention_norm", LAYER "post_self_attn_layernorm"},
    {GLM4, "blk.%d.post_ffw_norm", LAYER "post_mlp_layernorm"},
    {SCORE_BIAS, "blk.%d.exp_probs_b.bias", LAYER "mlp.gate.e_score_correction_bias"},
    {ERNIE_MOE, "blk.%d.exp_probs_b.bias", LAYER "mlp.moe_statics.e_score_correction_bias"},
    {WHOLE_SHARED, "blk.%d.ffn_gate_shexp", LAYER "mlp.shared_experts.gate_proj"},
    {WHOLE_SHARED, "blk.%d.ffn_up_shexp", LAYER "mlp.shared_experts.up_proj"},
    {WHOLE_SHARED, "blk.%d.ffn_down_shexp", LAYER "mlp.shared_experts.down_proj"},
    {GRANITE4, "blk.%d.ffn_gate", LAYER "shared_mlp.gate_proj"},
    {GRANITE4, "blk.%d.ffn_up", LAYER "shared_mlp.up_proj"},
    {GRANITE4, "blk.%d.ffn_down", LAYER "shared_mlp.output_linear"},
    {GRANITE4_MOE, "blk.%d.ffn_gate_shexp", LAYER "shared_mlp.gate_proj"},
    {GRANITE4_MOE, "blk.%d.ffn_up_shexp", LAYER "shared_mlp.up_proj"},
    {GRANITE4_MOE, "blk.%d.ffn_down_shexp", LAYER "shared_mlp.output_linear"},
    {GRANITE4_MOE, "blk.%d.ffn_gate_inp", LAYER "block_sparse_moe.router.layer"},
    {GRANITE4_MOE, "blk.%d.ffn_gate_exps.weight", LAYER "block_sparse_moe.experts.%d.gate_proj.weight"},
    {GRANITE4_MOE, "blk.%d.ffn_up_exps.weight", LAYER "block_sparse_moe.experts.%d.up_proj.weight"},
    {GRANITE4_MOE, "blk.%d.ffn_down_exps.weight", LAYER "block_sparse_moe.experts.%d.down_proj.weight"},
    {SPACES, "blk.%d.ssm_in", LAYER "mamba.in_proj"},
    {SPACES, "blk.%d.ssm_conv1d", LAYER "mamba.conv1d"},
    {SPACES, "blk.%d.ssm_dt.bias", LAYER "mamba.dt_bias"},
    {SPACES, "blk.%d.ssm_a", LAYER "mamba.A_log"},
    {SPACES, "blk.%d.ssm_d", LAYER "mamba.D"},
    {SPACES, "blk.%d.ssm_norm", LAYER "mamba.norm"},
    {SPACES, "blk.%d.ssm_out", LAYER "mamba.out_proj"},
    {NEMOTRON_H, "token_embd", "embeddings"},
    {NEMOTRON_H, "output_norm", "norm_f"},
    {NEMOTRON_H, "output", "lm_head"},
    {NEMOTRON_H, "blk.%d.attn_norm", "layers.%d.norm"},
    {NEMOTRON_H, "blk.%d.attn_q", BLOCK "q_proj"},
    {NEMOTRON_H, "blk.%d.attn_k", BLOCK "k_proj"},
    {NEMOTRON_H, "blk.%d.attn_v", BLOCK "v_proj"},
    {NEMOTRON_H, "blk.%d.attn_output", BLOCK "o_proj"},
    {NEMOTRON_H, "blk.%d.ffn_up", BLOCK "up_proj"},
    {NEMOTRON_H, "blk.%d.ffn_down", BLOCK "down_proj"},
    {NEMOTRON_H, "blk.%d.ssm_in", BLOCK "in_proj"},
    {NEMOTRON_H, "blk.%d.ssm_conv1d", BLOCK "conv1d"},
    {NEMOTRON_H, "blk.%d.ssm_dt.bias", BLOCK "dt_bias"},
    {NEMOTRON_H, "blk.%d.ssm_a", BLOCK "A_log"},
    {NEMOTRON_H, "blk.%d.ssm_d", BLOCK "D"},
    {NEMOTRON_H, "blk.%d.ssm_norm", BLOCK "norm"},
    {NEMOTRON_H, "blk.%d.ssm_out", BLOCK "out_proj"},
    {NEMOTRON_H_MOE, "blk.%d.ffn_gate_inp", BLOCK "gate"},
    {NEMOTRON_H_MOE, "blk.%d.exp_probs_b.bias", BLOCK "gate.e_score_correction_bias"},
    {NEMOTRON_H_MOE, "blk.%d.ffn_up_exps.weight", BLOCK "experts.%d.up_proj.weight"},
    {NEMOTRON_H_MOE, "blk.%d.ffn_down_exps.weight", BLOCK "experts.%d.down_proj.weight"},
    {NEMOTRON_H_MOE, "blk.%d.ffn_up_shexp", BLOCK "shared_experts.up_proj"},
    {NEMOTRON_H_MOE, "blk.%d.ffn_down_shexp", BLOCK "shared_experts.down_proj"},
    {GEMMA4, "per_layer_token_embd", "model.embed_tokens_per_layer"},
    {GEMMA4, "per_layer_model_proj", "model.per_layer_model_projection"},
    {GEMMA4, "per_layer_proj_norm", "model.per_layer_projection_norm"},
    {GEMMA4, "blk.%d.inp_gate", LAYER "per_layer_input_gate"},
    {GEMMA4, "blk.%d.proj", LAYER "per_layer_projection"},
    {GEMMA4, "blk.%d.post_norm", LAYER "post_per_layer_input_norm"},
    {GEMMA4, "blk.%d.layer_output_scale.weight", LAYER "layer_scalar"},
    {GEMMA4, "blk.%d.pre_ffw_norm_2", LAYER "pre_feedforward_layernorm_2"},
    {GEMMA4, "blk.%d.post_ffw_norm_1", LAYER "post_feedforward_layernorm_1"},
    {GEMMA4, "blk.%d.post_ffw_norm_2", LAYER "post_feedforward_layernorm_2"},
    {GEMMA4, "blk.%d.ffn_gate_inp.scale", LAYER "router.scale"},
    {GEMMA4, "blk.%d.ffn_gate_inp", LAYER "router.proj"},
    {GEMMA4, "blk.%d.ffn_down_exps.scale", LAYER "router.per_expert_scale"},
    {GEMMA4, "blk.%d.ffn_gate_up_exps.weight", LAYER "experts.%d.gate_up_proj.weight"},
    {GEMMA4, "blk.%d.ffn_gate_exps.weight", LAYER "experts.%d.gate_proj.weight"},
    {GEMMA4, "blk.%d.ffn_up_exps.weight", LAYER "experts.%d.up_proj.weight"},
    {GEMMA4, "blk.%d.ffn_down_exps.weight", LAYER "experts.%d.down_proj.weight"},
    {LFM2, "token_embd", "model.embed_tokens"},
    {LFM2, "token_embd_norm", "model.embedding_norm"}, /* though it is the last norm: llama.cpp's name of it */
    {LFM2, "output_norm", "model.embedding_norm"},     /* of files that Ollama wrote */
    {LFM2, "output", "lm_head"},
    {LFM2, "blk.%d.attn_norm", LAYER "operator_norm"},
    {LFM2, "blk.%d.ffn_norm", LAYER "ffn_norm"},
    {LFM2, "blk.%d.attn_q", LAYER "self_attn.q_proj"},
    {LFM2, "blk.%d.attn_k", LAYER "self_attn.k_proj"},
    {LFM2, "blk.%d.attn_v", LAYER "self_attn.v_proj"},
    {LFM2, "blk.%d.attn_output", LAYER "self_attn.out_proj"},
    {LFM2, "blk.%d.attn_q_norm", LAYER "self_attn.q_layernorm"},
    {LFM2, "blk.%d.attn_k_norm", LAYER "self_attn.k_layernorm"},
    {LFM2, "blk.%d.shortconv.conv", LAYER "conv.conv"},
    {LFM2, "blk.%d.shortconv.in_proj", LAYER "conv.in_proj"},
    {LFM2, "blk.%d.shortconv.out_proj", LAYER "conv.out_proj"},
    {LFM2, "blk.%d.ffn_gate", LAYER "feed_forward.w1"},
    {LFM2, "blk.%d.ffn_up", LAYER "feed_forward.w3"},
    {LFM2, "blk.%d.ffn_down", LAYER "feed_forward.w2"},
    {LFM2_EXPERTS, "blk.%d.ffn_gate_inp", LAYER "feed_forward.gate"},
    {LFM2_EXPERTS, "blk.%d.exp_probs_b.bias", LAYER "feed_forward.expert_bias"},
    {LFM2_EXPERTS, "blk.%d.ffn_gate_exps.weight", LAYER "feed_forward.experts.%d.w1.weight"},
    {LFM2_EXPERTS, "blk.%d.ffn_up_exps.weight", LAYER "feed_forward.experts.%d.w3.weight"},
    {LFM2_EXPERTS, "blk.%d.ffn_down_exps.weight", LAYER "feed_forward.experts.%d.w2.weight"},
};

/* What follows the first n bytes of `prefix` in text; NULL where they differ. */
static const char *after(const char *text, const char *prefix, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != prefix[i]) { return NULL; }
    }
    return text + n;
}

/* Whether `name` is the pattern, with digits for its first %d, and a suffix after it where the row's names have none.
 * The digits are name[*digits, *n). */
static bool matches(const char *pattern, bool has_suffix, const char *name, size_t *digits, size_t *n,
                    const char **suffix) {
    const char *number = strstr(pattern, "%d");
    *digits = number != NULL ? (size_t)(number - pattern) : strlen(pattern);
    *n = 0;
    const char *rest = after(name, pattern, *digits);
    if (rest != NULL && number != NULL) {
        *n = strspn(rest, "0123456789");
        rest = *n > 0 && *n <= 9 ? after(rest + *n, number + 2, strlen(number + 2)) : NULL;
    }
    *suffix = rest;
    if (rest == NULL || has_suffix) { return rest != NULL && *rest == '\0'; }
    return strcmp(rest, ".weight") == 0 || strcmp(rest, ".bias") == 0;
}

/* Whether a row has the whole name of a tensor. */
static bool has_own_suffix(const char *gguf) {
    static const char *const endings[] = {".weight", ".bias", ".scale", ".ssm_a", ".ssm_d"};
    for (size_t i = 0; i < QR_COUNT_OF(endings); i++) {
        if (qr_ends_with(gguf, endings[i])) { return true; }
    }
    return false;
}

static bool translate(const char *from, const char *to, const char *gguf, const char *name,
                      char out[QR_GGUF_NAME_BYTES]) {
    size_t digits, n;
    const char *suffix;
    const bool has_suffix = has_own_suffix(gguf);
    if (!matches(from, has_suffix, name, &digits, &n, &suffix)) { return false; }
    const char *number = strstr(to, "%d");
    const int before = number != NULL ? (int)(number - to) : (int)strlen(to);
    return snprintf(out, QR_GGUF_NAME_BYTES, "%.*s%.*s%s%s", before, to, (int)n, name + digits,
                    number != NULL ? number + 2 : "", suffix) < QR_GGUF_NAME_BYTES;
}

bool qr_gguf_name_to_hf(const qr_gguf_arch *arch, const char *name, char hf[QR_GGUF_NAME_BYTES]) {
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if ((arch->names & names[i].archs) != 0 && translate(names[i].gguf, names[i].hf, names[i].gguf, name, hf)) {
            return true;
        }
    }
    return false;
}

bool qr_gguf_name_from_hf(const qr_gguf_arch *arch, const char *hf, char name[QR_GGUF_NAME_BYTES]) {
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if ((arch->names & names[i].archs) != 0 && translate(names[i].hf, names[i].gguf, names[i].gguf, hf, name)) {
            return true;
        }
    }
    return false;
}

bool qr_gguf_has_paired_rows(const qr_gguf_arch *arch, const char *hf) {
    return arch->pairs_rows && (strstr(hf, ".q_proj.") != NULL || strstr(hf, ".k_proj.") != NULL);
}
