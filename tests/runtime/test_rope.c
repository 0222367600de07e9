/* Rotary parameters as the layers of a model use them: which layers share frequencies, and which sequences may share
 * pages of rotated keys. */
#include "check.h"

#include "base/sizes.h"
#include "loaders/config/model_config.h"
#include "runtime/model/rope.h"

#define GEMMA3(full, sliding)                                                                                       \
    "{\"model_type\": \"gemma3_text\", \"hidden_size\": 48, \"intermediate_size\": 92, \"num_hidden_layers\": 6, "  \
    "\"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 40, \"vocab_size\": 100, "               \
    "\"max_position_embeddings\": 256, \"sliding_window\": 8, \"sliding_window_pattern\": 3, \"rope_parameters\": " \
    "{\"full_attention\": {" full "}, \"sliding_attention\": {" sliding "}}}"

#define YARN "\"rope_type\": \"yarn\", \"rope_theta\": 10000, \"factor\": 4"
#define LLAMA3 \
    "\"rope_type\": \"llama3\", \"rope_theta\": 10000, \"factor\": 8, \"original_max_position_embeddings\": 64, "

static bool parse(const char *text, qr_model_config *config) {
    qr_json *root = NULL;
    qr_error err = {0};
    *config = (qr_model_config){0};
    qrun_status status = qr_json_parse(text, strlen(text), "config", &root, &err);
    if (status == QRUN_OK) { status = qr_model_config_parse(root, "config", config, &err); }
    qr_json_free(root);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    return status == QRUN_OK;
}

/* Layers of two kinds differ as soon as any member of their descriptions does. */
static void test_any_member_tells_two_kinds_apart(void) {
    static const char *const differing[] = {
        GEMMA3(YARN, YARN ", \"beta_fast\": 16"),
        GEMMA3(YARN, YARN ", \"beta_slow\": 2"),
        GEMMA3(YARN, YARN ", \"attention_factor\": 1.5"),
        GEMMA3(YARN, YARN ", \"original_max_position_embeddings\": 64"),
        GEMMA3(YARN, YARN ", \"truncate\": false"),
        GEMMA3(YARN, YARN ", \"mscale\": 0.7, \"mscale_all_dim\": 1.2"),
        GEMMA3(LLAMA3 "\"low_freq_factor\": 1, \"high_freq_factor\": 4",
               LLAMA3 "\"low_freq_factor\": 1, \"high_freq_factor\": 3"),
        GEMMA3(LLAMA3 "\"low_freq_factor\": 1, \"high_freq_factor\": 4",
               LLAMA3 "\"low_freq_factor\": 2, \"high_freq_factor\": 4"),
    };
    for (size_t i = 0; i < sizeof differing / sizeof differing[0]; i++) {
        qr_model_config config;
        if (!parse(differing[i], &config)) { continue; }
        float global[64], local[64], global_factor, local_factor;
        qr_rope_frequencies(&config, 0, 256, 256, global, &global_factor);
        qr_rope_frequencies(&config, 1, 256, 256, local, &local_factor);
        const size_t n_bytes = (size_t)qr_rope_half(&config, 0) * sizeof *global;
        CHECK_MSG(qr_rope_kinds(&config) == 2, "case %zu", i);
        CHECK_MSG(qr_rope_key_kind(&config, 0) == 1 && qr_rope_key_kind(&config, 2) == 0, "case %zu", i);
        CHECK_MSG(memcmp(global, local, n_bytes) != 0 || global_factor != local_factor, "case %zu", i);
        qr_model_config_free(&config);
    }
}

static void test_equal_members_are_one_kind(void) {
    qr_model_config config;
    if (!parse(GEMMA3(YARN ", \"beta_fast\": 16", YARN ", \"beta_fast\": 16"), &config)) { return; }
    CHECK(qr_rope_kinds(&config) == 1);
    qr_model_config_free(&config);
}

/* Keys of sliding layers are rotated by the length of the sequence too, so such sequences share no pages. */
static void test_length_of_sliding_layers_counts(void) {
    qr_model_config config;
    if (!parse(GEMMA3("\"rope_theta\": 10000", "\"rope_type\": \"dynamic\", \"rope_theta\": 10000, \"factor\": 4"),
               &config)) {
        return;
    }
    CHECK(qr_rope_length_class(&config, 256, 256) == qr_rope_length_class(&config, 20, 20));
    CHECK(qr_rope_length_class(&config, 300, 300) != qr_rope_length_class(&config, 256, 256));
    CHECK(qr_rope_length_class(&config, 300, 300) != qr_rope_length_class(&config, 301, 301));
    qr_model_config_free(&config);
    if (!parse(GEMMA3("\"rope_type\": \"dynamic\", \"rope_theta\": 10000, \"factor\": 2",
                      "\"rope_type\": \"dynamic\", \"rope_theta\": 10000, \"factor\": 4"),
               &config)) {
        return;
    }
    CHECK(qr_rope_length_class(&config, 300, 300) != qr_rope_length_class(&config, 301, 301));
    qr_model_config_free(&config);
}

/* A sequence that can grow beyond the length its model was trained for is a short one until it has. */
static void test_lengths_are_those_reached(void) {
    qr_model_config config;
    if (!parse(GEMMA3("\"rope_theta\": 10000", "\"rope_type\": \"dynamic\", \"rope_theta\": 10000, \"factor\": 4"),
               &config)) {
        return;
    }
    CHECK(qr_rope_short_tokens(&config) == 256);
    CHECK(qr_rope_length_class(&config, 1, 1024) == 0 && qr_rope_length_class(&config, 256, 1024) == 0);
    CHECK(qr_rope_length_class(&config, 257, 1024) != 0);
    CHECK(qr_rope_length_class(&config, 257, 1024) == qr_rope_length_class(&config, 1024, 1024));
    CHECK(qr_rope_length_class(&config, 257, 1023) != qr_rope_length_class(&config, 257, 1024));
    float at_once[64], grown[64], plain[64], factor;
    const size_t n_bytes = (size_t)qr_rope_half(&config, 0) * sizeof *plain;
    qr_rope_frequencies(&config, 1, 1024, 1024, at_once, &factor);
    qr_rope_frequencies(&config, 1, 300, 1024, grown, &factor);
    qr_rope_frequencies(&config, 1, 256, 1024, plain, &factor);
    CHECK(memcmp(at_once, grown, n_bytes) == 0 && memcmp(at_once, plain, n_bytes) != 0);
    qr_model_config_free(&config);
    if (!parse(GEMMA3("\"rope_theta\": 10000", "\"rope_theta\": 20000"), &config)) { return; }
    CHECK(qr_rope_short_tokens(&config) == INT64_MAX && qr_rope_length_class(&config, 300, 300) == 0);
    qr_model_config_free(&config);
}

/* YaRN makes a model longer than what its config says it was trained for, as published recipes have it. */
static void test_yarn_lengthens_the_context(void) {
    static const struct {
        const char *scaling;
        int64_t tokens;
    } cases[] = {
        {"\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 256", 1024},
        {"\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64", 256},
        {"\"rope_type\": \"yarn\", \"factor\": 2.0, \"original_max_position_embeddings\": 64", 256},
        {"\"rope_type\": \"yarn\", \"factor\": 1e6, \"original_max_position_embeddings\": 1000000", INT64_C(1) << 31},
        {"\"rope_type\": \"dynamic\", \"factor\": 2.0", 512},
        {"\"rope_type\": \"linear\", \"factor\": 2.0", 256},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[640];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"qwen2\", \"hidden_size\": 64, \"intermediate_size\": 92, \"num_hidden_layers\": 2, "
            "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32, \"vocab_size\": 100, "
            "\"max_position_embeddings\": 256, \"rope_theta\": 10000, \"rope_scaling\": {%s}}",
            cases[i].scaling);
        qr_model_config config;
        if (!parse(text, &config)) { continue; }
        CHECK_MSG(qr_rope_context_tokens(&config) == cases[i].tokens, "%s: %lld", cases[i].scaling,
                  (long long)qr_rope_context_tokens(&config));
        qr_model_config_free(&config);
    }
}

/* transformers rotates whole heads of these families, whatever the factor says. */
static void test_partial_rotary_factor_of_llama_is_passed_over(void) {
    static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3"};
    static const char *const forms[] = {"\"partial_rotary_factor\": 0.5",
                                        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000, "
                                        "\"partial_rotary_factor\": 0.5}"};
    for (size_t i = 0; i < 8; i++) {
        char text[640];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", \"hidden_size\": 64, \"intermediate_size\": 92, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32, \"vocab_size\": 100, "
                 "\"max_position_embeddings\": 256, %s}",
                 families[i % 4], forms[i / 4]);
        qr_model_config config;
        if (!parse(text, &config)) { continue; }
        CHECK_MSG(config.rope.rotary_dim == 32, "%s: %d", text, (int)config.rope.rotary_dim);
        qr_model_config_free(&config);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_any_member_tells_two_kinds_apart);
    CHECK_RUN(test_equal_members_are_one_kind);
    CHECK_RUN(test_length_of_sliding_layers_counts);
    CHECK_RUN(test_lengths_are_those_reached);
    CHECK_RUN(test_yarn_lengthens_the_context);
    CHECK_RUN(test_partial_rotary_factor_of_llama_is_passed_over);
    return check_end();
}
