/* The description of a folder: against what the fixtures are known to hold, and against what loading them takes. */
#include "check.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/json.h"
#include "qrun.h"

#define MODELS QRUN_SOURCE_DIR "/tests/fixtures/models/"
#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

static qrun_context *context;

/* The parsed description; NULL after a recorded failure. */
static qr_json *inspect(const char *path, bool list_tensors) {
    qrun_error error = QRUN_ERROR_INIT;
    char *text = NULL;
    qr_json *root = NULL;
    CHECK_MSG(qrun_folder_inspect(context, path, list_tensors, &text, &error) == QRUN_OK, "%s", error.message);
    if (text == NULL) { return NULL; }
    CHECK_MSG(strchr(text, '\n') == NULL, "more than one line");
    CHECK_MSG(qr_json_parse(text, strlen(text), "the description", &root, &error) == QRUN_OK, "%s", error.message);
    qrun_free(text);
    return root;
}

/* "sizes.n_layers" of root. */
static const qr_json *at(const qr_json *root, const char *keys) {
    char name[64];
    while (root != NULL && keys != NULL) {
        const char *dot = strchr(keys, '.');
        snprintf(name, sizeof name, "%.*s", dot != NULL ? (int)(dot - keys) : 63, keys);
        root = qr_json_get(root, name);
        keys = dot != NULL ? dot + 1 : NULL;
    }
    return root;
}

static int64_t int_at(const qr_json *root, const char *keys) {
    const qr_json *value = at(root, keys);
    return cJSON_IsNumber(value) ? (int64_t)value->valuedouble : -999;
}

static const char *text_at(const qr_json *root, const char *keys) {
    const qr_json *value = at(root, keys);
    return cJSON_IsString(value) ? value->valuestring : NULL;
}

/* The object of an array whose member `key` is `value`. */
static const qr_json *item_with(const qr_json *array, const char *key, const char *value) {
    for (const qr_json *item = qr_json_first(array); item != NULL; item = item->next) {
        const char *text = text_at(item, key);
        if (text != NULL && strcmp(text, value) == 0) { return item; }
    }
    return NULL;
}

static void test_llama(void) {
    qr_json *root = inspect(MODELS "llama", false);
    REQUIRE(root != NULL);
    CHECK_STR(text_at(root, "folder"), MODELS "llama");
    CHECK_STR(text_at(root, "family"), "llama");
    CHECK_STR(text_at(root, "model_type"), "llama");
    CHECK_STR(text_at(root, "architecture"), "LlamaForCausalLM");
    CHECK_STR(text_at(root, "stored_quantization"), "none");
    CHECK_STR(text_at(root, "dtype"), "BF16");
    CHECK(cJSON_IsFalse(at(root, "tied_head")));
    CHECK_INT(int_at(root, "sizes.n_layers"), 2);
    CHECK_INT(int_at(root, "sizes.hidden_size"), 48);
    CHECK_INT(int_at(root, "sizes.n_heads"), 3);
    CHECK_INT(int_at(root, "sizes.n_kv_heads"), 1);
    CHECK_INT(int_at(root, "sizes.head_dim"), 80);
    CHECK_INT(int_at(root, "sizes.intermediate_size"), 172);
    CHECK_INT(int_at(root, "sizes.vocab_size"), 1003);
    CHECK_INT(int_at(root, "sizes.sliding_window"), 0);
    CHECK_STR(text_at(root, "rope.type"), "default");
    CHECK_INT(int_at(root, "rope.rotary_dim"), 80);
    CHECK(at(root, "rope_of_sliding_layers") == NULL);
    CHECK(cJSON_IsNull(at(root, "tokenizer")) && cJSON_IsFalse(at(root, "chat_template")));
    CHECK(cJSON_IsFalse(at(root, "generation.do_sample")));
    CHECK_INT(qr_json_first(at(root, "generation.eos_token_ids"))->valuedouble, 2);
    CHECK(at(root, "tensors") == NULL);
    const qr_json *types = at(root, "tensor_types");
    CHECK_INT(cJSON_GetArraySize(types), 1);
    CHECK_INT(int_at(qr_json_first(types), "total_bytes"), 2 * int_at(root, "n_parameters"));
    CHECK_INT(cJSON_GetArraySize(at(root, "files")), 3);
    CHECK_STR(text_at(qr_json_first(at(root, "files")), "name"), "config.json");
    CHECK_INT(int_at(item_with(at(root, "files"), "name", "model.safetensors"), "size_bytes"), 417184);
    CHECK_INT(int_at(root, "kv_per_token.bf16_bytes"), 2 * 2 * 80 * 2);
    CHECK_INT(int_at(root, "kv_per_token.int8_bytes"), 2 * 2 * (80 + 4));
    qr_json_free(root);
}

static void test_windows_and_rotary_bases(void) {
    qr_json *root = inspect(MODELS "gemma3", false);
    REQUIRE(root != NULL);
    CHECK_STR(text_at(root, "family"), "gemma3");
    CHECK_STR(text_at(root, "model_type"), "gemma3_text");
    CHECK_INT(int_at(root, "sizes.sliding_window"), 8);
    CHECK_INT(int_at(root, "sizes.n_sliding_layers"), 3);
    CHECK_STR(text_at(root, "rope.type"), "linear");
    CHECK_INT(int_at(root, "rope.factor"), 8);
    CHECK_INT(int_at(root, "rope_of_sliding_layers.theta"), 10000);
    qr_json_free(root);
    root = inspect(MODELS "gpt2", false);
    REQUIRE(root != NULL);
    CHECK(at(root, "rope") == NULL);
    CHECK(cJSON_IsTrue(at(root, "tied_head")));
    qr_json_free(root);
}

/* K/V of layers with heads of two sizes; those that read another's have none. */
static void test_kv_of_unequal_layers(void) {
    qr_json *root = inspect(MODELS "gemma4", false);
    REQUIRE(root != NULL);
    CHECK_INT(int_at(root, "kv_per_token.bf16_bytes"), 2 * 2 * (3 * 3 * 24 + 2 * 2 * 40));
    CHECK_STR(text_at(root, "rope.type"), "proportional");
    CHECK_INT(int_at(root, "rope.rotary_dim"), 40);
    CHECK_INT(int_at(root, "rope_of_sliding_layers.rotary_dim"), 24);
    qr_json_free(root);
    root = inspect(MODELS "gemma4-shared", false);
    REQUIRE(root != NULL);
    CHECK_INT(int_at(root, "kv_per_token.bf16_bytes"), 2 * 2 * (2 * 24 + 40));
    qr_json_free(root);
    root = inspect(MODELS "gemma4-images", false);
    REQUIRE(root != NULL);
    CHECK_STR(text_at(root, "model_type"), "gemma4");
    CHECK_INT(int_at(root, "kv_per_token.bf16_bytes"), 2 * 2 * (16 + 24));
    CHECK(item_with(at(root, "left_out"), "part", "model.vision_tower") != NULL);
    CHECK(item_with(at(root, "left_out"), "part", "model.embed_vision") != NULL);
    CHECK(item_with(at(root, "left_out"), "part", "model.language_model") == NULL);
    qr_json_free(root);
}

static void test_tokenizer(void) {
    qr_json *root = inspect(EXAMPLE, false);
    REQUIRE(root != NULL);
    CHECK_STR(text_at(root, "tokenizer.kind"), "BPE");
    CHECK_INT(int_at(root, "tokenizer.vocab_size"), int_at(root, "sizes.vocab_size"));
    CHECK(cJSON_IsTrue(at(root, "tokenizer.byte_level")));
    CHECK(cJSON_IsTrue(at(root, "chat_template")));
    CHECK(cJSON_IsTrue(at(root, "generation.do_sample")));
    qr_json_free(root);
}

/* What the folder stores, not what its weights are held as. */
static void test_packed_folders(void) {
    static const char *const cases[][2] = {
        {MODELS "llama-gptq", "gptq"},
        {MODELS "llama-awq", "awq"},
        {MODELS "qwen3-w4a16", "pack-quantized"},
        {MODELS "llama-fp8-blocks", "float-quantized"},
        {MODELS "llama-nvfp4", "nvfp4-pack-quantized"},
        {MODELS "gpt-oss-mxfp4", "mxfp4"},
        {MODELS "qwen3-mixed", "mixed-precision"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_json *root = inspect(cases[i][0], false);
        REQUIRE(root != NULL);
        CHECK_STR(text_at(root, "stored_quantization"), cases[i][1]);
        qr_json_free(root);
    }
}

static void test_tensor_list(void) {
    qr_json *root = inspect(MODELS "llama-nf4-dq", true);
    REQUIRE(root != NULL);
    CHECK_STR(text_at(root, "stored_quantization"), "nf4-dq");
    CHECK_INT(cJSON_GetArraySize(at(root, "tensors")), 91);
    const qr_json *tensor = item_with(at(root, "tensors"), "name", "model.layers.0.mlp.down_proj.weight");
    REQUIRE(tensor != NULL);
    CHECK_STR(text_at(tensor, "dtype"), "U8");
    CHECK_STR(text_at(tensor, "file"), "model.safetensors");
    CHECK_INT(int_at(tensor, "size_bytes"), 4128);
    CHECK_INT(qr_json_first(at(tensor, "shape"))->valuedouble, 4128);
    int64_t n_tensors = 0;
    for (const qr_json *type = qr_json_first(at(root, "tensor_types")); type != NULL; type = type->next) {
        n_tensors += int_at(type, "n_tensors");
    }
    CHECK_INT(n_tensors, 91);
    qr_json_free(root);
}

/* What inspect says of a way of holding a model is what opening it that way takes. */
static void check_hold(const char *path, const qr_json *root, const char *name, qrun_quant quant) {
    const qr_json *hold = item_with(at(root, "holds"), "quant", name);
    CHECK_MSG(hold != NULL, "%s is missing", name);
    static const char *const members[] = {"weight_bytes", "with_int8_head_bytes", "with_int8_tables_bytes"};
    for (int n_tables = 0; n_tables < 3; n_tables++) {
        qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
        qrun_model_info info = QRUN_MODEL_INFO_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model *model = NULL;
        params.path = path;
        params.quant = quant;
        params.quant_head_int8 = n_tables > 0, params.quant_embedding_int8 = n_tables > 1;
        CHECK_MSG(qrun_model_open(context, &params, &model, &error) == QRUN_OK, "%s", error.message);
        if (model == NULL) { continue; }
        CHECK(qrun_model_get_info(model, &info, &error) == QRUN_OK);
        CHECK_INT(int_at(hold, members[n_tables]), info.weight_bytes);
        CHECK_INT(int_at(root, "n_parameters"), info.n_parameters);
        qrun_model_destroy(model);
    }
}

static void test_holds_are_what_loading_takes(void) {
    static const struct {
        const char *name;
        qrun_quant quant;
    } ways[] = {{"f32", QRUN_QUANT_F32},
                {"bf16", QRUN_QUANT_BF16},
                {"int8", QRUN_QUANT_INT8},
                {"nf4", QRUN_QUANT_NF4},
                {"nf4-dq", QRUN_QUANT_NF4_DQ}};
    static const char *const plain[] = {MODELS "llama", MODELS "gpt2", MODELS "gemma3"};
    for (size_t i = 0; i < QR_COUNT_OF(plain); i++) {
        qr_json *root = inspect(plain[i], false);
        CHECK_INT(cJSON_GetArraySize(at(root, "holds")), QR_COUNT_OF(ways));
        for (size_t j = 0; j < QR_COUNT_OF(ways); j++) { check_hold(plain[i], root, ways[j].name, ways[j].quant); }
        qr_json_free(root);
    }
    qr_json *experts = inspect(MODELS "gpt-oss-mxfp4", false);
    CHECK_INT(cJSON_GetArraySize(at(experts, "holds")), QR_COUNT_OF(ways) + 1);
    for (size_t j = 0; j < QR_COUNT_OF(ways); j++) {
        check_hold(MODELS "gpt-oss-mxfp4", experts, ways[j].name, ways[j].quant);
    }
    check_hold(MODELS "gpt-oss-mxfp4", experts, "mxfp4", QRUN_QUANT_AUTO);
    check_hold(MODELS "gpt-oss-mxfp4", experts, "mxfp4", QRUN_QUANT_MXFP4);
    qr_json_free(experts);
    qr_json *root = inspect(MODELS "llama-int8", false);
    CHECK_INT(cJSON_GetArraySize(at(root, "holds")), 1);
    check_hold(MODELS "llama-int8", root, "int8", QRUN_QUANT_AUTO);
    qr_json_free(root);
}

static void test_refusals(void) {
    static const char *const nowhere[] = {"no/such/model", QRUN_SOURCE_DIR "/examples"};
    for (size_t i = 0; i < QR_COUNT_OF(nowhere); i++) {
        qrun_error error = QRUN_ERROR_INIT;
        char *text = (char *)"untouched";
        CHECK(qrun_folder_inspect(context, nowhere[i], false, &text, &error) != QRUN_OK);
        CHECK(text == NULL);
        CHECK_MSG(strstr(error.message, nowhere[i]) != NULL, "%s", error.message);
    }
    qrun_error error = QRUN_ERROR_INIT;
    char *text;
    CHECK_INT(qrun_folder_inspect(context, NULL, false, &text, &error), QRUN_ERROR_ARGUMENT);
}

static void test_every_allocation_may_fail(void) {
    qr_alloc_stats before, after;
    for (int64_t n = 1;; n++) {
        qrun_error error = QRUN_ERROR_INIT;
        char *text = NULL;
        qr_alloc_get_stats(&before);
        qr_alloc_fail_at(n);
        const qrun_status status = qrun_folder_inspect(context, MODELS "llama-nf4-dq", true, &text, &error);
        qr_alloc_fail_at(0);
        qrun_free(text);
        qr_alloc_get_stats(&after);
        CHECK_INT(after.n_held, before.n_held);
        if (status == QRUN_OK) {
            CHECK(n > 50);
            return;
        }
        CHECK_MSG(status == QRUN_ERROR_MEMORY, "allocation %lld: %s", (long long)n, error.message);
        REQUIRE(check_state.n_failures_in_case == 0);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    if (qrun_context_create(NULL, &context, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_llama);
    CHECK_RUN(test_windows_and_rotary_bases);
    CHECK_RUN(test_kv_of_unequal_layers);
    CHECK_RUN(test_tokenizer);
    CHECK_RUN(test_packed_folders);
    CHECK_RUN(test_tensor_list);
    CHECK_RUN(test_holds_are_what_loading_takes);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_every_allocation_may_fail);
    qrun_context_destroy(context);
    return check_end();
}
