/* GGUF files: read back as written, refused where they are malformed, and seen as the files of a model folder. */
#include "check.h"

#include "base/sizes.h"
#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"
#include "loaders/files/gguf_writer.h"
#include "loaders/source/gguf_names.h"
#include "loaders/source/model_source.h"
#include "loaders/template/chat_template.h"
#include "loaders/tokenizer/tokenizer.h"
#include "temporary.h"

#define SEEDS QRUN_SOURCE_DIR "/tests/fuzz/seeds/gguf/"

/* ---- The container ----------------------------------------------------------------------------------------------- */

static void write_small(const char *path) {
    qr_gguf_writer w = {0};
    const int64_t matrix[] = {3, 32}, vector[] = {5};
    float values[5] = {1, 2, 3, 4, 5};
    unsigned char blocks[3 * 34];
    memset(blocks, 7, sizeof blocks);
    qr_gguf_put_text(&w, "general.architecture", "llama", 5);
    qr_gguf_put_u32(&w, "a.count", 70000);
    qr_gguf_put_f32(&w, "a.number", 0.5F);
    qr_gguf_put_bool(&w, "a.flag", true);
    qr_gguf_put_list(&w, "a.texts", QR_GGUF_STRING, 2);
    qr_gguf_put_text_item(&w, "one", 3);
    qr_gguf_put_text_item(&w, "", 0);
    qr_gguf_put_list(&w, "a.ints", QR_GGUF_I32, 2);
    qr_gguf_put_i32_item(&w, -3);
    qr_gguf_put_i32_item(&w, 4);
    qr_gguf_add_tensor(&w, "m.weight", QR_DTYPE_Q8_0, 2, matrix);
    qr_gguf_add_tensor(&w, "v.weight", QR_DTYPE_F32, 1, vector);
    qr_error err = {0};
    CHECK_MSG(qr_gguf_writer_begin(&w, path, &err) == QRUN_OK, "%s", err.message);
    CHECK_INT(qr_gguf_write(&w, blocks, sizeof blocks, &err), QRUN_OK);
    CHECK_INT(qr_gguf_end_tensor(&w, &err), QRUN_OK);
    CHECK_INT(qr_gguf_write(&w, values, sizeof values, &err), QRUN_OK);
    CHECK_INT(qr_gguf_end_tensor(&w, &err), QRUN_OK);
    CHECK_MSG(qr_gguf_writer_commit(&w, &err) == QRUN_OK, "%s", err.message);
    qr_gguf_writer_free(&w);
}

static void test_written(void) {
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    write_small(path);
    qr_gguf *file;
    qr_error err = {0};
    REQUIRE(qr_gguf_recognise(path) && qr_gguf_open(path, &file, &err) == QRUN_OK);
    int64_t count = 0;
    double number = 0;
    bool flag = false;
    qr_gguf_text *texts;
    int64_t *ints;
    size_t n;
    CHECK_INT(qr_gguf_get_int(file, "a.count", 0, 100000, &count, &err), QRUN_OK);
    CHECK_INT(count, 70000);
    CHECK_INT(qr_gguf_get_double(file, "a.number", 0, 1, &number, &err), QRUN_OK);
    CHECK(number == 0.5);
    CHECK_INT(qr_gguf_get_bool(file, "a.flag", &flag, &err), QRUN_OK);
    CHECK(flag);
    CHECK_INT(qr_gguf_get_texts(file, "a.texts", &texts, &n, &err), QRUN_OK);
    CHECK(n == 2 && qr_gguf_text_is(texts[0], "one") && texts[1].n == 0);
    qr_free(texts);
    CHECK_INT(qr_gguf_get_ints(file, "a.ints", &ints, &n, &err), QRUN_OK);
    CHECK(n == 2 && ints[0] == -3 && ints[1] == 4);
    qr_free(ints);
    CHECK_INT(qr_gguf_get_ints(file, "absent", &ints, &n, &err), QRUN_OK);
    CHECK(ints == NULL && n == 0);
    const qr_gguf_tensor *m = qr_gguf_find_tensor(file, "m.weight"), *v = qr_gguf_find_tensor(file, "v.weight");
    REQUIRE(m != NULL && v != NULL);
    CHECK(m->dtype == QR_DTYPE_Q8_0 && m->n_dims == 2 && m->dims[0] == 3 && m->dims[1] == 32 && m->data[5] == 7);
    CHECK(v->n_dims == 1 && v->n_bytes == 20);
    /* A wrong type, and a value out of its range, are named. */
    CHECK_INT(qr_gguf_get_int(file, "a.number", 0, 1, &count, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "a.number is a f32, and should be an integer") != NULL, "%s", err.message);
    err = (qr_error){0};
    CHECK_INT(qr_gguf_get_int(file, "a.count", 0, 10, &count, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "a.count is 70000, outside 0 to 10") != NULL, "%s", err.message);
    qr_gguf_close(file);
    temporary_remove(&base);
}

/* What is written in place of bytes of the small file, and what is said. */
static void check_damaged(const char *bytes, size_t n_bytes, size_t offset, const void *change, size_t n_change,
                          const char *message) {
    const temporary_folder base = temporary_create();
    char *copy = malloc(n_bytes);
    memcpy(copy, bytes, n_bytes);
    memcpy(copy + offset, change, n_change);
    const char *path = temporary_write(&base, "a.gguf", copy, n_bytes);
    qr_gguf *file;
    qr_error err = {0};
    CHECK(qr_gguf_open(path, &file, &err) != QRUN_OK && file == NULL);
    CHECK_MSG(strstr(err.message, message) != NULL, "\"%s\" does not say \"%s\"", err.message, message);
    free(copy);
    temporary_remove(&base);
}

static size_t offset_of(const char *bytes, size_t n_bytes, const char *text) {
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= n_bytes; i++) {
        if (memcmp(bytes + i, text, n) == 0) { return i; }
    }
    return 0;
}

static void test_malformed(void) {
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    char *bytes;
    size_t n;
    write_small(path);
    REQUIRE(qr_file_read(path, 1 << 20, &bytes, &n, NULL) == QRUN_OK);
    const size_t texts = offset_of(bytes, n, "a.texts"), count = offset_of(bytes, n, "a.count");
    const size_t ints = offset_of(bytes, n, "a.ints");
    const size_t matrix = offset_of(bytes, n, "m.weight"), vector = offset_of(bytes, n, "v.weight");
    const struct {
        size_t offset, n;
        const char *change, *message;
    } cases[] = {
        {0, 1, "X", "does not begin as a GGUF file does"},
        {4, 4, "\x01\0\0\0", "is GGUF version 1; 2 and 3 are read"},
        {4, 4, "\0\0\0\x03", "is a big-endian GGUF file"},
        {8, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "tensors, more than the"},
        {16, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "values of metadata, more than the"},
        {16, 8, "\x40\0\0\0\0\0\0\0", "ends inside its metadata"},
        {count, 7, "a.texts", "a.texts occurs twice"},
        {count, 7, "a.c\0\0\xFFt", "a key of the metadata is not"},
        {count + 7, 4, "\x0D\0\0\0", "a.count has a type that is none of GGUF's"},
        {texts + 11, 4, "\x09\0\0\0", "a.texts is a list of lists"},
        {texts + 15, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "ends inside its metadata"},
        {texts + 15, 8, "\0\x01\0\0\0\0\0\0", "ends inside its metadata"},
        {ints + 14, 8, "\x80\0\0\0\0\0\0\0", "ends inside its metadata"},
        {ints + 14, 8, "\0\0\0\0\0\0\0\x40", "ends inside its metadata"},
        {texts + 23, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "ends inside its metadata"},
        {matrix + 8, 4, "\x05\0\0\0", "m.weight has more than 4 dimensions"},
        {matrix + 12, 8, "\x1F\0\0\0\0\0\0\0", "m.weight has rows that do not fill whole blocks"},
        {matrix + 12, 8, "\0\0\0\0\0\0\0\0", "m.weight has a dimension of no positive size"},
        {matrix + 20, 8, "\0\0\0\0\0\0\0\x40", "m.weight has a shape whose size overflows"},
        {matrix + 28, 4, "\x0A\0\0\0", "m.weight is Q2_K (type 10), which is not read"},
        {matrix + 28, 4, "\x63\0\0\0", "m.weight is of an unknown type (type 99)"},
        {matrix + 32, 8, "\x01\0\0\0\0\0\0\0", "m.weight begins at an offset that is not aligned"},
        {vector + 24, 8, "\x20\0\0\0\0\0\0\0", "v.weight overlaps another tensor"},
        {vector + 24, 8, "\0\0\x10\0\0\0\0\0", "v.weight lies outside the file"},
        {vector, 8, "m.weight", ""},
    };
    for (size_t i = 0; i + 1 < QR_COUNT_OF(cases); i++) {
        check_damaged(bytes, n, cases[i].offset, cases[i].change, cases[i].n, cases[i].message);
    }
    /* Cut anywhere it is refused; what follows the last tensor is padding. */
    for (size_t length = 0; length + 32 < n; length++) {
        qr_gguf *file;
        const char *cut = temporary_write(&base, "cut.gguf", bytes, length);
        const qrun_status status = qr_gguf_open(cut, &file, NULL);
        CHECK_MSG(status != QRUN_OK || length + 44 > n, "%zu of %zu bytes are accepted", length, n);
        qr_gguf_close(file);
    }
    qr_free(bytes);
    temporary_remove(&base);
}

/* A list of many items that are not what is asked for is refused before anything is allocated for them. */
static void test_lists_of_another_type(void) {
    enum { ITEMS = 100000, SMALL = 4096 };
    static const struct {
        const char *key, *message;
        int kind; /* asked for: 0 texts, 1 integers, 2 floats */
    } cases[] = {
        {"a.ints", "a.ints should be a list of texts", 0},
        {"a.floats", "a.floats should be a list of integers", 1},
        {"a.texts", "a.texts should be a list of integers", 1},
        {"a.texts", "a.texts should be a list of numbers", 2},
    };
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    qr_gguf_writer w = {0};
    qr_gguf_put_list(&w, "a.texts", QR_GGUF_STRING, ITEMS);
    for (int i = 0; i < ITEMS; i++) { qr_gguf_put_text_item(&w, "", 0); }
    qr_gguf_put_list(&w, "a.ints", QR_GGUF_I32, ITEMS);
    for (int i = 0; i < ITEMS; i++) { qr_gguf_put_i32_item(&w, i); }
    qr_gguf_put_list(&w, "a.floats", QR_GGUF_F32, ITEMS);
    for (int i = 0; i < ITEMS; i++) { qr_gguf_put_f32_item(&w, 0.5F); }
    CHECK_INT(qr_gguf_writer_begin(&w, path, NULL), QRUN_OK);
    CHECK_INT(qr_gguf_writer_commit(&w, NULL), QRUN_OK);
    qr_gguf_writer_free(&w);
    qr_gguf *file;
    REQUIRE(qr_gguf_open(path, &file, NULL) == QRUN_OK);
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_gguf_text *texts = NULL;
        int64_t *ints = NULL;
        float *floats = NULL;
        size_t n = 1;
        qr_error err = {0};
        qr_alloc_stats before, after;
        qr_alloc_reset_peak();
        qr_alloc_get_stats(&before);
        const qrun_status status = cases[i].kind == 0   ? qr_gguf_get_texts(file, cases[i].key, &texts, &n, &err)
                                   : cases[i].kind == 1 ? qr_gguf_get_ints(file, cases[i].key, &ints, &n, &err)
                                                        : qr_gguf_get_floats(file, cases[i].key, &floats, &n, &err);
        qr_alloc_get_stats(&after);
        CHECK_INT(status, QRUN_ERROR_INPUT);
        CHECK(texts == NULL && ints == NULL && floats == NULL && n == 0);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        CHECK_MSG(after.bytes_peak - before.bytes_held < SMALL, "%s: %lld bytes were allocated", cases[i].message,
                  (long long)(after.bytes_peak - before.bytes_held));
    }
    qr_gguf_close(file);
    temporary_remove(&base);
}

/* ---- As a model -------------------------------------------------------------------------------------------------- */

static qr_model_config config_of(const char *name) {
    char path[512];
    qr_model_config config;
    qr_error err = {0};
    snprintf(path, sizeof path, SEEDS "%s", name);
    CHECK_MSG(qr_model_config_read(path, &config, &err) == QRUN_OK, "%s", err.message);
    return config;
}

static void test_configs(void) {
    qr_model_config c = config_of("byte_level");
    CHECK(c.family == QR_FAMILY_LLAMA && c.vocab_size == 12 && c.hidden_size == 32 && c.n_kv_heads == 1);
    CHECK(c.head_dim == 16 && c.tie_word_embeddings && c.dtype == QR_DTYPE_F16 && !c.qkv_bias);
    CHECK(c.rope.type == QR_ROPE_LONGROPE && c.rope.short_factors[3] == c.rope.long_factors[3]);
    CHECK(c.rope.attention_factor == 1 && c.norm_eps > 9.9e-6 && c.norm_eps < 1.01e-5);
    qr_model_config_free(&c);
    c = config_of("sentencepiece");
    CHECK(c.family == QR_FAMILY_GEMMA3 && c.sliding_window == 8 && c.layer_slides[0] && !c.norm_adds_one);
    CHECK(c.query_pre_attn_scalar == 16 && c.rope.type == QR_ROPE_LINEAR && c.rope.factor == 8);
    CHECK(c.rope_local.type == QR_ROPE_DEFAULT && c.rope_local.theta == 10000);
    qr_model_config_free(&c);
    c = config_of("yarn");
    CHECK(c.family == QR_FAMILY_MINISTRAL3 && c.rope.type == QR_ROPE_YARN && c.rope.factor == 4);
    CHECK(c.attn_temperature_tokens == 16 && fabs(c.attn_temperature_beta - 0.1) < 1e-6);
    qr_model_config_free(&c);
    c = config_of("windows");
    CHECK(c.family == QR_FAMILY_OLMO3 && c.layer_slides[0] && !c.layer_slides[1] && !c.tie_word_embeddings);
    qr_model_config_free(&c);
    c = config_of("factors");
    CHECK(c.family == QR_FAMILY_PHI3 && c.rope.type == QR_ROPE_LONGROPE && c.rope.rotary_dim == 12);
    CHECK_INT(c.rope.original_max_position_embeddings, 16);
    qr_model_config_free(&c);
    c = config_of("mxfp4");
    CHECK(c.family == QR_FAMILY_GPT_OSS && c.experts.n_experts == 3 && c.experts.n_per_token == 2);
    CHECK(c.quantization.packing.kind == QR_PACKING_MXFP4 && !c.rope.truncate && c.layer_slides[0]);
    qr_model_config_free(&c);
    c = config_of("hybrid"); /* of its three layers the last predicts tokens further on */
    CHECK(c.family == QR_FAMILY_QWEN3_5 && c.n_layers == 2 && c.recurrent.layers[0] && !c.recurrent.layers[1]);
    CHECK(c.recurrent.n_value_heads == 2 && c.recurrent.n_key_heads == 1 && c.rope.rotary_dim == 2 && !c.norm_adds_one);
    qr_model_config_free(&c);
    c = config_of("convolutions"); /* the first layer is dense; the second attends */
    CHECK(c.family == QR_FAMILY_LFM2_MOE && c.recurrent.layers[0] && !c.recurrent.layers[1] && c.recurrent.layers[2]);
    CHECK(c.recurrent.conv_kernel == 3 && c.n_kv_heads == 1 && c.head_dim == 4 && c.intermediate_size == 12);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.experts.intermediate_size == 4);
    CHECK(c.experts.has_choice_bias && c.experts.normalizes && c.experts.share_factor == 1);
    qr_model_config_free(&c);
}

/* A router that is not the family's, and numbers of the gated delta rule that do not go together. */
static void test_refused_configs(void) {
    static const struct {
        const char *arch, *key;
        uint32_t value;
        const char *message;
    } cases[] = {
        {"qwen3moe", "expert_gating_func", 2, "takes a sigmoid"},
        {"qwen3moe", "expert_weights_scale", 3, "scales the experts' shares"},
        {"qwen35", "ssm.inner_size", 9, "do not go together"},
        {"qwen35", "nextn_predict_layers", 2, "of which 2 predict tokens further on"},
    };
    const temporary_folder base = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        static const char *const sizes[] = {"block_count",    "embedding_length",     "feed_forward_length",
                                            "context_length", "attention.head_count", "ssm.conv_kernel",
                                            "ssm.state_size", "ssm.group_count",      "ssm.time_step_rank"};
        const char *path = temporary_path(&base, "a.gguf");
        const bool has_experts = strcmp(cases[i].arch, "qwen3moe") == 0;
        qr_gguf_writer w = {0};
        qr_model_config config;
        qr_error err = {0};
        char key[64];
        qr_gguf_put_text(&w, "general.architecture", cases[i].arch, strlen(cases[i].arch));
        for (size_t k = 0; k < QR_COUNT_OF(sizes); k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].arch, sizes[k]);
            qr_gguf_put_u32(&w, key, 2);
        }
        snprintf(key, sizeof key, "%s.%s", cases[i].arch, cases[i].key);
        strstr(key, "scale") != NULL ? qr_gguf_put_f32(&w, key, (float)cases[i].value)
                                     : qr_gguf_put_u32(&w, key, cases[i].value);
        if (has_experts) { qr_gguf_put_u32(&w, "qwen3moe.expert_count", 2); }
        if (has_experts) { qr_gguf_put_u32(&w, "qwen3moe.expert_used_count", 1); }
        if (strcmp(cases[i].key, "nextn_predict_layers") == 0) { qr_gguf_put_u32(&w, "qwen35.ssm.inner_size", 4); }
        qr_gguf_put_f32(
            &w, has_experts ? "qwen3moe.attention.layer_norm_rms_epsilon" : "qwen35.attention.layer_norm_rms_epsilon",
            1e-5F);
        const int64_t dims[2] = {8, 2};
        const float zeros[16] = {0};
        qr_gguf_add_tensor(&w, "token_embd.weight", QR_DTYPE_F32, 2, dims);
        CHECK_MSG(qr_gguf_writer_begin(&w, path, &err) == QRUN_OK, "%s", err.message);
        CHECK(qr_gguf_write(&w, zeros, sizeof zeros, &err) == QRUN_OK);
        CHECK(qr_gguf_end_tensor(&w, &err) == QRUN_OK);
        CHECK_MSG(qr_gguf_writer_commit(&w, &err) == QRUN_OK, "%s", err.message);
        qr_gguf_writer_free(&w);
        err = (qr_error){0};
        CHECK(qr_model_config_read(path, &config, &err) != QRUN_OK);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", cases[i].key, err.message);
        qr_model_config_free(&config);
        remove(path);
    }
    temporary_remove(&base);
}

/* As llama.cpp reads what old files say of rotary scaling, and lists that say one number. */
static void test_other_ways_to_say_it(void) {
    static const struct {
        const char *key, *type;
        float factor;
        int32_t heads[2];
        qr_rope_type rope;
        const char *message; /* NULL: it is read */
    } cases[] = {
        {"rope.scaling.factor", "linear", 2, {2, 2}, QR_ROPE_LINEAR, NULL},
        {"rope.scaling.factor", NULL, 2, {2, 2}, QR_ROPE_LINEAR, NULL},
        {"rope.scale_linear", NULL, 2, {2, 2}, QR_ROPE_LINEAR, NULL},
        {"rope.scale_linear", "linear", 2, {2, 2}, QR_ROPE_LINEAR, NULL},
        {"rope.scaling.factor", NULL, 1, {2, 2}, QR_ROPE_DEFAULT, NULL},
        {"rope.scaling.factor", NULL, 0, {2, 2}, QR_ROPE_DEFAULT, NULL},
        {"rope.scaling.factor", "none", 2, {2, 2}, QR_ROPE_DEFAULT, NULL},
        {"rope.scaling.factor", NULL, 1, {2, 1}, 0, "layers of different sizes are not supported"},
        {"rope.scaling.factor", NULL, 1, {0, 0}, 0, "attention.head_count is a list of numbers outside 1 to 4096"},
    };
    static const char *const sizes[] = {"block_count", "embedding_length", "feed_forward_length", "context_length"};
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char key[64];
        const int64_t dims[2] = {8, 2};
        const float zeros[16] = {0};
        qr_gguf_writer w = {0};
        qr_model_config config = {0};
        qr_error err = {0};
        qr_gguf_put_text(&w, "general.architecture", "llama", 5);
        for (size_t k = 0; k < QR_COUNT_OF(sizes); k++) {
            snprintf(key, sizeof key, "llama.%s", sizes[k]);
            qr_gguf_put_u32(&w, key, k == 0 ? 2 : 8);
        }
        qr_gguf_put_list(&w, "llama.attention.head_count", QR_GGUF_I32, 2);
        for (int l = 0; l < 2; l++) { qr_gguf_put_i32_item(&w, cases[i].heads[l]); }
        snprintf(key, sizeof key, "llama.%s", cases[i].key);
        qr_gguf_put_f32(&w, key, cases[i].factor);
        if (cases[i].type != NULL) {
            qr_gguf_put_text(&w, "llama.rope.scaling.type", cases[i].type, strlen(cases[i].type));
        }
        qr_gguf_put_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
        qr_gguf_add_tensor(&w, "token_embd.weight", QR_DTYPE_F32, 2, dims);
        CHECK_MSG(qr_gguf_writer_begin(&w, path, &err) == QRUN_OK, "%s", err.message);
        CHECK(qr_gguf_write(&w, zeros, sizeof zeros, &err) == QRUN_OK);
        CHECK(qr_gguf_end_tensor(&w, &err) == QRUN_OK);
        CHECK_MSG(qr_gguf_writer_commit(&w, &err) == QRUN_OK, "%s", err.message);
        qr_gguf_writer_free(&w);
        err = (qr_error){0};
        const qrun_status status = qr_model_config_read(path, &config, &err);
        if (cases[i].message != NULL) {
            CHECK_MSG(status != QRUN_OK && strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        } else {
            CHECK_MSG(status == QRUN_OK, "%s", err.message);
            CHECK_MSG(config.n_heads == 2 && config.rope.type == cases[i].rope, "case %zu: %d", i,
                      (int)config.rope.type);
            CHECK(config.rope.type != QR_ROPE_LINEAR || config.rope.factor == 2);
        }
        qr_model_config_free(&config);
        remove(path);
    }
    temporary_remove(&base);
}

/* A file that says an LFM2 model with experts of three layers, but for one value: a count, or heads of keys. */
typedef struct conv_file {
    const char *key; /* NULL: the list alone is another */
    uint32_t value;
    int32_t heads[4];
    size_t n_heads;
    const char *message; /* NULL: it is read */
} conv_file;

static void write_conv_file(const conv_file *file, const char *path) {
    static const struct {
        const char *key;
        uint32_t value;
    } counts[] = {{"block_count", 3},        {"embedding_length", 8},          {"feed_forward_length", 12},
                  {"context_length", 16},    {"attention.head_count", 2},      {"shortconv.l_cache", 3},
                  {"expert_count", 2},       {"expert_used_count", 1},         {"expert_feed_forward_length", 4},
                  {"expert_gating_func", 2}, {"leading_dense_block_count", 1}, {"attention.sliding_window", 0},
                  {"expert_group_count", 0}};
    const int64_t dims[2] = {5, 8};
    const float zeros[40] = {0};
    char key[64];
    qr_gguf_writer w = {0};
    qr_error err = {0};
    qr_gguf_put_text(&w, "general.architecture", "lfm2moe", 7);
    for (size_t i = 0; i < QR_COUNT_OF(counts); i++) {
        const bool is_other = file->key != NULL && strcmp(file->key, counts[i].key) == 0;
        if (is_other && file->value == UINT32_MAX) { continue; }
        snprintf(key, sizeof key, "lfm2moe.%s", counts[i].key);
        qr_gguf_put_u32(&w, key, is_other ? file->value : counts[i].value);
    }
    qr_gguf_put_list(&w, "lfm2moe.attention.head_count_kv", QR_GGUF_I32, file->n_heads);
    for (size_t i = 0; i < file->n_heads; i++) { qr_gguf_put_i32_item(&w, file->heads[i]); }
    qr_gguf_put_f32(&w, "lfm2moe.attention.layer_norm_rms_epsilon", 1e-5F);
    const bool sees_all = file->key != NULL && strcmp(file->key, "attention.causal") == 0;
    if (sees_all) { qr_gguf_put_bool(&w, "lfm2moe.attention.causal", false); }
    qr_gguf_add_tensor(&w, "token_embd.weight", QR_DTYPE_F32, 2, dims);
    CHECK_MSG(qr_gguf_writer_begin(&w, path, &err) == QRUN_OK, "%s", err.message);
    CHECK(qr_gguf_write(&w, zeros, sizeof zeros, &err) == QRUN_OK);
    CHECK(qr_gguf_end_tensor(&w, &err) == QRUN_OK);
    CHECK_MSG(qr_gguf_writer_commit(&w, &err) == QRUN_OK, "%s", err.message);
    qr_gguf_writer_free(&w);
}

static void test_convolutions(void) {
    static const conv_file files[] = {
        {NULL, 0, {0, 1, 0}, 3, NULL},
        {NULL, 0, {0, 1}, 2, "head_count_kv has 2 items for 3 layers"},
        {NULL, 0, {0, 1, 0, 1}, 4, "head_count_kv has 4 items for 3 layers"},
        {NULL, 0, {0}, 0, "head_count_kv has 0 items for 3 layers"},
        {NULL, 0, {0, 0, 0}, 3, "head_count_kv is 0 for all layers"},
        {NULL, 0, {0, 1, 2}, 3, "head_count_kv has 2 for layer 2; one number of heads"},
        {NULL, 0, {-1, 1, 0}, 3, "head_count_kv has -1 for layer 0; one number of heads"},
        {NULL, 0, {0, 5000, 0}, 3, "head_count_kv has 5000 for layer 1; one number of heads, up to 4096"},
        {NULL, 0, {0, 3, 0}, 3, "2 heads are not divisible by 3 key/value heads"},
        {"shortconv.l_cache", 0, {0, 1, 0}, 3, "shortconv.l_cache is 0, outside 1 to 8"},
        {"shortconv.l_cache", 9, {0, 1, 0}, 3, "shortconv.l_cache is 9, outside 1 to 8"},
        {"shortconv.l_cache", UINT32_MAX, {0, 1, 0}, 3, "shortconv.l_cache is missing"},
        {"leading_dense_block_count", 0, {0, 1, 0}, 3, NULL},
        {"leading_dense_block_count", 3, {0, 1, 0}, 3, "leading_dense_block_count is 3 of 3 layers"},
        {"leading_dense_block_count", 4, {0, 1, 0}, 3, "leading_dense_block_count is 4 of 3 layers"},
        {"expert_gating_func", 1, {0, 1, 0}, 3, "its router takes no sigmoid"},
        {"expert_gating_func", UINT32_MAX, {0, 1, 0}, 3, "its router takes no sigmoid"},
        {"expert_group_count", 2, {0, 1, 0}, 3, "its router chooses among groups of experts"},
        {"expert_used_count", 3, {0, 1, 0}, 3, "more than the 2 experts"},
        {"expert_count", 0, {0, 1, 0}, 3, "a \"lfm2moe\" model without experts is not supported"},
        {"attention.sliding_window", 4, {0, 1, 0}, 3, "with a sliding window is not supported"},
        {"attention.causal", 0, {0, 1, 0}, 3, "whose tokens see later ones is not supported"},
    };
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        qr_model_config config;
        qr_error err = {0};
        write_conv_file(&files[i], path);
        const qrun_status status = qr_model_config_read(path, &config, &err);
        const char *message = files[i].message;
        CHECK_MSG((status == QRUN_OK) == (message == NULL), "%zu: %s", i, err.message);
        CHECK_MSG(message == NULL || strstr(err.message, message) != NULL, "\"%s\" does not say \"%s\"", err.message,
                  message);
        CHECK(strchr(err.message, '\n') == NULL);
        qr_model_config_free(&config);
        remove(path);
    }
    temporary_remove(&base);
}

/* Families whose layers differ: files of three layers that say something that no model here has, or that does not go
 * together. */
static void test_refused_families(void) {
    static const struct {
        const char *arch;
        struct {
            const char *key;
            int64_t value;
        } counts[8];
        const char *list;
        int32_t items[3];
        const char *message;
    } files[] = {
        {"gemma4", {{NULL}}, NULL, {0}, "gemma4.attention.sliding_window_pattern is missing"},
        {"gemma4",
         {{"attention.sliding_window_pattern", 1}},
         "feed_forward_length",
         {4, 6, 4},
         "feed_forward_length is 6 for layer 1, and one size"},
        {"gemma4",
         {{"attention.sliding_window_pattern", 1}},
         "attention.head_count_kv",
         {1, 2, 1},
         "head_count_kv is 2 for layer 1, and one number for all with a window"},
        {"gemma4",
         {{"attention.sliding_window_pattern", 1}, {"attention.shared_kv_layers", 3}},
         NULL,
         {0},
         "attention.shared_kv_layers is 3, outside 0 to 2"},
        {"gemma4",
         {{"attention.sliding_window_pattern", 0}, {"embedding_length_per_layer_input", 4}},
         NULL,
         {0},
         "has no matrix per_layer_token_embd.weight"},
        {"granitehybrid", {{NULL}}, "attention.head_count_kv", {0, 0, 0}, "head_count_kv is 0 for all layers"},
        {"granitehybrid", {{NULL}}, "attention.head_count_kv", {0, 1, 2}, "head_count_kv is 2 for layer 2"},
        {"granitehybrid",
         {{"ssm.inner_size", 17}},
         "attention.head_count_kv",
         {0, 1, 0},
         "has 17 values, which 2 heads cannot share"},
        {"granitehybrid",
         {{"ssm.inner_size", 12}},
         "attention.head_count_kv",
         {0, 1, 0},
         "no multiple of the hidden size 8"},
        {"granitemoe",
         {{"expert_count", 2}, {"expert_used_count", 1}},
         NULL,
         {0},
         "a granitemoe model without a shared expert"},
        {"granite", {{NULL}}, "attention.head_count_kv", {1, 0, 1}, "head_count_kv is 0 for layer 1"},
        {"nemotron_h", {{NULL}}, "attention.head_count_kv", {1, 0, 0}, "feed_forward_length is 12 for layer 0"},
        {"minicpm3",
         {{"attention.kv_lora_rank", 4}, {"rope.dimension_count", 4}, {"attention.key_length", 4}},
         NULL,
         {0},
         "4 of 4 elements of a key rotate, and some must not"},
        {"glm4", {{NULL}}, "rope.dimension_sections", {1, 1, 0}, "rotary positions for images"},
        {"glm4moe",
         {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_group_count", 2}},
         NULL,
         {0},
         "its router chooses among groups of experts"},
        {"glm4moe",
         {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_gating_func", 1}},
         NULL,
         {0},
         "its router takes no sigmoid"},
        {"deepseek2", {{NULL}}, NULL, {0}, "a \"deepseek2\" model without experts is not supported"},
    };
    static const struct {
        const char *key;
        uint32_t value;
    } usual[] = {{"block_count", 3},       {"embedding_length", 8}, {"feed_forward_length", 12},
                 {"context_length", 16},   {"ssm.conv_kernel", 4},  {"attention.head_count", 2},
                 {"ssm.state_size", 4},    {"ssm.group_count", 1},  {"ssm.inner_size", 16},
                 {"ssm.time_step_rank", 2}};
    const int64_t dims[2] = {5, 8};
    const float zeros[40] = {0};
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        qr_gguf_writer w = {0};
        qr_model_config config;
        qr_error err = {0};
        char key[96];
        qr_gguf_put_text(&w, "general.architecture", files[i].arch, strlen(files[i].arch));
        for (size_t k = 0; k < QR_COUNT_OF(usual); k++) {
            bool is_other = files[i].list != NULL && strcmp(files[i].list, usual[k].key) == 0;
            for (size_t o = 0; o < QR_COUNT_OF(files[i].counts) && files[i].counts[o].key != NULL; o++) {
                is_other |= strcmp(files[i].counts[o].key, usual[k].key) == 0;
            }
            snprintf(key, sizeof key, "%s.%s", files[i].arch, usual[k].key);
            if (!is_other) { qr_gguf_put_u32(&w, key, usual[k].value); }
        }
        for (size_t o = 0; o < QR_COUNT_OF(files[i].counts) && files[i].counts[o].key != NULL; o++) {
            snprintf(key, sizeof key, "%s.%s", files[i].arch, files[i].counts[o].key);
            qr_gguf_put_u32(&w, key, (uint32_t)files[i].counts[o].value);
        }
        snprintf(key, sizeof key, "%s.%s", files[i].arch, files[i].list != NULL ? files[i].list : "none");
        if (files[i].list != NULL) { qr_gguf_put_list(&w, key, QR_GGUF_I32, 3); }
        for (size_t k = 0; files[i].list != NULL && k < 3; k++) { qr_gguf_put_i32_item(&w, files[i].items[k]); }
        snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", files[i].arch);
        qr_gguf_put_f32(&w, key, 1e-5F);
        qr_gguf_add_tensor(&w, "token_embd.weight", QR_DTYPE_F32, 2, dims);
        CHECK_MSG(qr_gguf_writer_begin(&w, path, &err) == QRUN_OK, "%s", err.message);
        CHECK(qr_gguf_write(&w, zeros, sizeof zeros, &err) == QRUN_OK && qr_gguf_end_tensor(&w, &err) == QRUN_OK);
        CHECK_MSG(qr_gguf_writer_commit(&w, &err) == QRUN_OK, "%s", err.message);
        qr_gguf_writer_free(&w);
        err = (qr_error){0};
        CHECK(qr_model_config_read(path, &config, &err) != QRUN_OK);
        CHECK_MSG(strstr(err.message, files[i].message) != NULL, "%zu: \"%s\" does not say \"%s\"", i, err.message,
                  files[i].message);
        CHECK(strchr(err.message, '\n') == NULL);
        qr_model_config_free(&config);
        remove(path);
    }
    temporary_remove(&base);
}

/* llama.cpp calls LFM2's last norm otherwise than Ollama. */
static void test_names_of_convolutions(void) {
    static const struct {
        const char *gguf, *hf;
    } names[] = {{"token_embd_norm.weight", "model.embedding_norm.weight"},
                 {"blk.3.shortconv.conv.weight", "model.layers.3.conv.conv.weight"},
                 {"blk.3.exp_probs_b.bias", "model.layers.3.feed_forward.expert_bias"},
                 {"blk.3.ffn_up_exps.weight", "model.layers.3.feed_forward.experts.%d.w3.weight"}};
    const qr_gguf_arch *arch = qr_gguf_arch_of_model_type("lfm2_moe", true, false);
    char name[QR_GGUF_NAME_BYTES];
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        CHECK(qr_gguf_name_to_hf(arch, names[i].gguf, name));
        CHECK_STR(name, names[i].hf);
        if (strstr(names[i].hf, "%d") != NULL) { continue; }
        CHECK(qr_gguf_name_from_hf(arch, names[i].hf, name));
        CHECK_STR(name, names[i].gguf);
    }
    const qr_gguf_arch *of_experts = qr_gguf_arch_of_model_type("qwen3_moe", true, false); /* not qwen3vlmoe */
    REQUIRE(of_experts != NULL);
    CHECK_STR(of_experts->name, "qwen3moe");
    CHECK(qr_gguf_name_to_hf(arch, "output_norm.weight", name));
    CHECK_STR(name, "model.embedding_norm.weight");
}

static void check_ids(const qr_tokenizer *tokenizer, const char *text, const int32_t *ids, size_t n) {
    const qr_encode_options options = {.add_special = true, .parse_special = true};
    qr_tokens tokens = {0};
    qr_error err = {0};
    CHECK_MSG(qr_tokenizer_encode(tokenizer, text, strlen(text), &options, &tokens, &err) == QRUN_OK, "%s",
              err.message);
    CHECK_MSG(tokens.n == n && memcmp(tokens.ids, ids, n * sizeof *ids) == 0, "\"%s\": %zu other ids", text, tokens.n);
    qr_tokens_free(&tokens);
}

static void test_tokenizers(void) {
    qr_tokenizer *tokenizer;
    qr_error err = {0};
    REQUIRE(qr_tokenizer_open(SEEDS "byte_level", &tokenizer, &err) == QRUN_OK);
    check_ids(tokenizer, "ab<|eos|> a<tool>", (const int32_t[]){6, 2, 7, 4, 8}, 5);
    CHECK_INT(qr_tokenizer_bos_id(tokenizer), 6);
    CHECK_INT(qr_tokenizer_eos_id(tokenizer), 7);
    CHECK(qr_tokenizer_is_special(tokenizer, 6) && !qr_tokenizer_is_special(tokenizer, 8));
    qr_tokenizer_destroy(tokenizer);
    /* The best score first: "ab" before "▁a"; then "▁ab" of both. */
    REQUIRE(qr_tokenizer_open(SEEDS "sentencepiece", &tokenizer, &err) == QRUN_OK);
    check_ids(tokenizer, "ab a\n", (const int32_t[]){1, 9, 8, 3}, 4);
    qr_tokenizer_destroy(tokenizer);
}

static void test_other_files(void) {
    qr_error err = {0};
    qr_chat_template *chat_template;
    REQUIRE(qr_chat_template_open(SEEDS "byte_level", &chat_template, &err) == QRUN_OK && chat_template != NULL);
    qr_chat_template_free(chat_template);
    REQUIRE(qr_chat_template_open(SEEDS "yarn", &chat_template, &err) == QRUN_OK);
    CHECK(chat_template == NULL);
    bool found = true;
    CHECK_INT(qr_source_has_tokenizer(SEEDS "yarn", &found, &err), QRUN_OK);
    CHECK(!found);
    qr_model_config config = config_of("byte_level");
    qr_generation_config generation;
    CHECK_INT(qr_generation_config_read(SEEDS "byte_level", &config, &generation, &err), QRUN_OK);
    CHECK(generation.eos.n == 1 && generation.eos.ids[0] == 7 && generation.bos_token_id == 6);
    qr_generation_config_free(&generation);
    qr_model_config_free(&config);
    CHECK_INT(qr_source_require_folder(SEEDS "yarn", "merging", &err), QRUN_ERROR_UNSUPPORTED);
}

/* Metadata of a model that says nothing but these; what is read of it, and what is said. */
static void check_metadata(const char *arch, const char *kind, const char *second_token, const char *message) {
    const temporary_folder base = temporary_create();
    const char *path = temporary_path(&base, "a.gguf");
    qr_gguf_writer w = {0};
    qr_error err = {0};
    if (arch != NULL) { qr_gguf_put_text(&w, "general.architecture", arch, strlen(arch)); }
    qr_gguf_put_text(&w, "tokenizer.ggml.model", kind, strlen(kind));
    qr_gguf_put_text(&w, "tokenizer.ggml.pre", "of-tomorrow", 11);
    qr_gguf_put_list(&w, "tokenizer.ggml.tokens", QR_GGUF_STRING, 2);
    qr_gguf_put_text_item(&w, "a", 1);
    qr_gguf_put_text_item(&w, second_token, strlen(second_token));
    qr_gguf_put_list(&w, "tokenizer.ggml.scores", QR_GGUF_F32, 2);
    qr_gguf_put_f32_item(&w, 0);
    qr_gguf_put_f32_item(&w, -1);
    CHECK_INT(qr_gguf_writer_begin(&w, path, &err), QRUN_OK);
    CHECK_INT(qr_gguf_writer_commit(&w, &err), QRUN_OK);
    qr_gguf_writer_free(&w);
    qr_tokenizer *tokenizer;
    qr_model_config config;
    qrun_status status = qr_tokenizer_open(path, &tokenizer, &err);
    if (status == QRUN_OK) { status = qr_model_config_read(path, &config, &err); }
    CHECK(status == QRUN_ERROR_INPUT || status == QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, message) != NULL, "\"%s\" does not say \"%s\"", err.message, message);
    CHECK_MSG(strstr(err.message, path) != NULL, "\"%s\" does not name the file", err.message);
    qr_tokenizer_destroy(tokenizer);
    temporary_remove(&base);
}

static void test_refused_models(void) {
    check_metadata(NULL, "llama", "b", "general.architecture is missing");
    check_metadata("mamba", "llama", "b", "architecture \"mamba\" is not supported; supported are llama");
    check_metadata("llama", "bert", "b", "a tokenizer of the kind \"bert\" is not read");
    check_metadata("llama", "gpt2", "b", "tokenizer.ggml.pre is \"of-tomorrow\", a pre-tokenizer that is not known");
    check_metadata("llama", "llama", "a", "the token \"a\" occurs twice");
    check_metadata("llama", "llama", "\xFF", "token 1 is not UTF-8");
    check_metadata("llama", "llama", "b", "llama.block_count is missing");
}

/* ---- Without memory ---------------------------------------------------------------------------------------------- */

static qrun_status open_all(void *context, qr_error *err) {
    (void)context;
    qr_model_config config;
    QR_RETURN_IF_ERROR(qr_model_config_read(SEEDS "byte_level", &config, err));
    qr_model_config_free(&config);
    qr_safetensors *tensors;
    QR_RETURN_IF_ERROR(qr_source_open_tensors(SEEDS "byte_level", &tensors, err));
    qr_safetensors_close(tensors);
    qr_source_file file;
    QR_RETURN_IF_ERROR(qr_source_read(SEEDS "sentencepiece", "tokenizer.json", 1 << 20, &file, err));
    qr_source_file_free(&file);
    QR_RETURN_IF_ERROR(qr_source_read(SEEDS "byte_level", "tokenizer.json", 1 << 20, &file, err));
    qr_source_file_free(&file);
    QR_RETURN_IF_ERROR(qr_source_read(SEEDS "sentencepiece", "generation_config.json", 1 << 20, &file, err));
    qr_source_file_free(&file);
    return QRUN_OK;
}

static void test_failing_allocations(void) { check_failing_allocations(open_all, NULL, false); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_written);
    CHECK_RUN(test_malformed);
    CHECK_RUN(test_lists_of_another_type);
    CHECK_RUN(test_configs);
    CHECK_RUN(test_refused_configs);
    CHECK_RUN(test_other_ways_to_say_it);
    CHECK_RUN(test_convolutions);
    CHECK_RUN(test_refused_families);
    CHECK_RUN(test_names_of_convolutions);
    CHECK_RUN(test_tokenizers);
    CHECK_RUN(test_other_files);
    CHECK_RUN(test_refused_models);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
