/* config.json and generation_config.json: every family's defaults, both rotary forms, what is refused by name, and
 * public configs. Expected values are those of transformers 5.23. */
#include "check.h"

#include "base/sizes.h"
#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"
#include "temporary.h"

/* Configs here are short: single quotes stand for double ones. */
static qrun_status parse(const char *text, qr_model_config *config, qr_error *err) {
    char json[4096];
    snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c != '\0'; c++) {
        if (*c == '\'') { *c = '"'; }
    }
    qr_json *root;
    *config = (qr_model_config){0};
    qrun_status status = qr_json_parse(json, strlen(json), "config", &root, err);
    if (status == QRUN_OK) { status = qr_model_config_parse(root, "config", config, err); }
    qr_json_free(root);
    return status;
}

#define PARSE(text)                                                                \
    qr_model_config c;                                                             \
    do {                                                                           \
        qr_error parse_error = {0};                                                \
        const qrun_status parse_status = parse((text), &c, &parse_error);          \
        CHECK_MSG(parse_status == QRUN_OK, "%s: %s", (text), parse_error.message); \
        if (parse_status != QRUN_OK) { return; }                                   \
    } while (0)

static int count_sliding(const qr_model_config *c) {
    int n = 0;
    for (int64_t i = 0; i < c->n_layers; i++) { n += c->layer_slides[i]; }
    return n;
}

static void test_family_defaults(void) {
    static const struct {
        const char *text;
        qr_model_family family;
        int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions;
        double eps;
        qr_mlp_activation activation;
        bool tied, qkv_bias, has_rope;
        double theta;
        int64_t bos, eos, pad, window;
        int n_sliding;
    } rows[] = {
        {"{'model_type':'llama'}", QR_FAMILY_LLAMA, 32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6,
         QR_ACTIVATION_SILU,       false,           false, true, 1e4,   1,  2,  -1, 0,   0},
        {"{'model_type':'mistral'}",
         QR_FAMILY_MISTRAL,
         32000,
         4096,
         14336,
         32,
         32,
         8,
         128,
         131072,
         1e-6,
         QR_ACTIVATION_SILU,
         false,
         false,
         true,
         1e4,
         1,
         2,
         -1,
         4096,
         32},
        {"{'model_type':'qwen2'}", QR_FAMILY_QWEN2, 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6,
         QR_ACTIVATION_SILU,       false,           true,   true, 1e4,   -1, -1, -1, 0,   0},
        {"{'model_type':'qwen3','hidden_size':1024}",
         QR_FAMILY_QWEN3,
         151936,
         1024,
         22016,
         32,
         32,
         32,
         128,
         32768,
         1e-6,
         QR_ACTIVATION_SILU,
         false,
         false,
         true,
         1e4,
         -1,
         -1,
         -1,
         0,
         0},
        {"{'model_type':'gemma2'}",
         QR_FAMILY_GEMMA2,
         256000,
         2304,
         9216,
         26,
         8,
         4,
         256,
         8192,
         1e-6,
         QR_ACTIVATION_GELU_TANH,
         true,
         false,
         true,
         1e4,
         2,
         1,
         0,
         4096,
         13},
        {"{'model_type':'gemma3_text'}",
         QR_FAMILY_GEMMA3,
         262208,
         2304,
         9216,
         26,
         8,
         4,
         256,
         131072,
         1e-6,
         QR_ACTIVATION_GELU_TANH,
         true,
         false,
         true,
         1e6,
         2,
         1,
         0,
         4096,
         22},
        {"{'model_type':'phi3'}", QR_FAMILY_PHI3, 32064, 3072, 8192, 32, 32,    32,    96, 4096, 1e-5,
         QR_ACTIVATION_SILU,      false,          false, true, 1e4,  1,  32000, 32000, 0,  0},
        {"{'model_type':'gpt2'}", QR_FAMILY_GPT2, 50257, 768,   3072, 12,    12,    12, 64, 1024, 1e-5,
         QR_ACTIVATION_GELU_TANH, true,           true,  false, 0,    50256, 50256, -1, 0,  0},
    };
    for (size_t i = 0; i < QR_COUNT_OF(rows); i++) {
        PARSE(rows[i].text);
        CHECK_INT(c.family, rows[i].family);
        CHECK_INT(c.vocab_size, rows[i].vocab);
        CHECK_INT(c.hidden_size, rows[i].hidden);
        CHECK_INT(c.intermediate_size, rows[i].intermediate);
        CHECK_INT(c.n_layers, rows[i].layers);
        CHECK_INT(c.n_heads, rows[i].heads);
        CHECK_INT(c.n_kv_heads, rows[i].kv_heads);
        CHECK_INT(c.head_dim, rows[i].head_dim);
        CHECK_INT(c.max_position_embeddings, rows[i].positions);
        CHECK(c.norm_eps == rows[i].eps);
        CHECK_INT(c.activation, rows[i].activation);
        CHECK_INT(c.tie_word_embeddings, rows[i].tied);
        CHECK_INT(c.qkv_bias, rows[i].qkv_bias);
        CHECK_INT(c.has_rope, rows[i].has_rope);
        CHECK(c.rope.theta == rows[i].theta);
        CHECK_INT(c.bos_token_id, rows[i].bos);
        CHECK_INT(c.pad_token_id, rows[i].pad);
        CHECK_INT(c.eos.n > 0 ? c.eos.ids[0] : -1, rows[i].eos);
        CHECK_INT(c.sliding_window, rows[i].window);
        CHECK_INT(count_sliding(&c), rows[i].n_sliding);
        CHECK_INT(c.dtype, QR_DTYPE_F32);
        CHECK(!c.has_rope || c.rope.rotary_dim == c.head_dim);
        qr_model_config_free(&c);
        CHECK(c.layer_slides == NULL);
    }
}

static void test_gemma(void) {
    PARSE("{'model_type':'gemma2','attn_logit_softcapping':null,'query_pre_attn_scalar':144,'hidden_act':'gelu'}");
    CHECK(c.attn_logit_softcapping == 0 && c.final_logit_softcapping == 30 && c.query_pre_attn_scalar == 144);
    CHECK(c.scale_embeddings && c.norm_adds_one);
    CHECK_INT(c.activation, QR_ACTIVATION_GELU_TANH); /* hidden_act is not what Gemma reads */
    CHECK(c.layer_slides[0] && !c.layer_slides[1]);
    qr_model_config_free(&c);
}

static void test_gemma3_wrapper(void) {
    PARSE(
        "{'model_type':'gemma3','architectures':['Gemma3ForConditionalGeneration'],'eos_token_id':[1,106],"
        "'torch_dtype':'bfloat16','text_config':{'eos_token_id':9,'num_hidden_layers':7,'sliding_window':512,'sliding_"
        "window_pattern':3,"
        "'rope_scaling':{'rope_type':'linear','factor':8.0}}}");
    CHECK(c.is_multimodal && c.family == QR_FAMILY_GEMMA3);
    CHECK_INT(c.n_layers, 7);
    CHECK_INT(c.eos.n, 2);
    CHECK_INT(c.eos.ids[1], 106);
    CHECK_INT(c.dtype, QR_DTYPE_BF16);
    CHECK(c.rope.type == QR_ROPE_LINEAR && c.rope.factor == 8 && c.rope.theta == 1e6);
    CHECK(c.rope_local.type == QR_ROPE_DEFAULT && c.rope_local.theta == 1e4);
    CHECK_INT(c.sliding_window, 512);
    CHECK_INT(count_sliding(&c), 5);
    CHECK(c.layer_slides[0] && c.layer_slides[1] && !c.layer_slides[2] && !c.layer_slides[5] && c.layer_slides[6]);
    qr_model_config_free(&c);
}

static void test_gemma3_nested_rope(void) {
    PARSE("{'model_type':'gemma3_text','num_hidden_layers':2,'layer_types':['full_attention','sliding_attention'],"
          "'rope_parameters':{'full_attention':{'rope_type':'linear','factor':4.0,'rope_theta':300000.0},"
          "'sliding_attention':{'rope_type':'default','rope_theta':7000.0}}}");
    CHECK(c.rope.type == QR_ROPE_LINEAR && c.rope.factor == 4 && c.rope.theta == 3e5);
    CHECK(c.rope_local.type == QR_ROPE_DEFAULT && c.rope_local.theta == 7e3);
    CHECK(!c.layer_slides[0] && c.layer_slides[1]);
    qr_model_config_free(&c);
}

/* The same numbers in the form of transformers 4 and of 5. */
static void test_llama3_rope(void) {
    static const char *const texts[] = {
        "{'model_type':'llama','rope_theta':500000.0,'max_position_embeddings':131072,'rope_scaling':{'rope_type':'"
        "llama3',"
        "'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,'original_max_position_embeddings':8192}}",
        "{'model_type':'llama','max_position_embeddings':131072,'rope_parameters':{'rope_type':'llama3','factor':8.0,"
        "'low_freq_factor':1.0,'high_freq_factor':4.0,'original_max_position_embeddings':8192,'rope_theta':500000.0}}"};
    for (size_t i = 0; i < QR_COUNT_OF(texts); i++) {
        PARSE(texts[i]);
        CHECK(c.rope.type == QR_ROPE_LLAMA3 && c.rope.theta == 5e5 && c.rope.factor == 8);
        CHECK(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
        CHECK_INT(c.rope.original_max_position_embeddings, 8192);
        CHECK(c.rope_local.type == QR_ROPE_LLAMA3);
        qr_model_config_free(&c);
    }
}

static void test_yarn(void) {
    PARSE("{'model_type':'qwen3','rope_scaling':{'type':'yarn','factor':4,'original_max_position_embeddings':32768,"
          "'mscale':0.7,'beta_fast':null,'truncate':false}}");
    CHECK(c.rope.type == QR_ROPE_YARN && c.rope.factor == 4 && c.rope.attention_factor == 0);
    CHECK(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.mscale == 0.7 && !c.rope.truncate);
    qr_model_config_free(&c);
}

static void test_longrope(void) {
    PARSE(
        "{'model_type':'phi3','hidden_size':32,'num_attention_heads':4,'max_position_embeddings':131072,"
        "'partial_rotary_factor':0.75,'rope_scaling':{'type':'su','short_factor':[1,1.5,2],'long_factor':[3,4.5,6]}}");
    CHECK(c.rope.type == QR_ROPE_LONGROPE);
    CHECK_INT(c.rope.rotary_dim, 6);
    CHECK(c.rope.factor == 32 && c.rope.original_max_position_embeddings == 4096);
    CHECK(c.rope.short_factors[1] == 1.5 && c.rope.long_factors[2] == 6);
    qr_model_config_free(&c);
}

static void test_window_from_layer(void) {
    PARSE("{'model_type':'qwen2','use_sliding_window':true,'sliding_window':77,'num_hidden_layers':4,"
          "'max_window_layers':3}");
    CHECK_INT(c.sliding_window, 77);
    CHECK_INT(count_sliding(&c), 1);
    CHECK(c.layer_slides[3]);
    qr_model_config_free(&c);
}

static void test_null_window(void) {
    PARSE("{'model_type':'mistral','sliding_window':null,'num_key_value_heads':null,'head_dim':null}");
    CHECK_INT(c.sliding_window, 0);
    CHECK_INT(count_sliding(&c), 0);
    CHECK_INT(c.n_kv_heads, 32);
    qr_model_config_free(&c);
}

static void test_window_larger_than_every_layer_asks(void) {
    PARSE("{'model_type':'qwen2','use_sliding_window':true,'num_hidden_layers':4}");
    CHECK_INT(c.sliding_window, 0); /* max_window_layers is 28: no layer slides */
    qr_model_config_free(&c);
}

static void test_quantization(void) {
    PARSE("{'model_type':'llama','quantization_config':{'quant_method':'bitsandbytes','load_in_4bit':true,"
          "'load_in_8bit':false,'bnb_4bit_quant_type':'nf4','bnb_4bit_use_double_quant':true,"
          "'bnb_4bit_compute_dtype':'bfloat16','llm_int8_skip_modules':['lm_head','model.layers.0.mlp']}}");
    CHECK_INT(c.quantization.stored, QR_STORED_BNB_NF4);
    CHECK(c.quantization.double_quantised);
    CHECK_INT(c.quantization.compute_dtype, QR_DTYPE_BF16);
    REQUIRE(c.quantization.n_skip_modules == 2);
    CHECK_STR(c.quantization.skip_modules[1], "model.layers.0.mlp");
    qr_model_config_free(&c);
}

static void test_int8_without_method(void) {
    PARSE("{'model_type':'llama','quantization_config':{'load_in_8bit':true}}");
    CHECK_INT(c.quantization.stored, QR_STORED_BNB_INT8);
    qr_model_config_free(&c);
}

static void test_refusals(void) {
    static const struct {
        const char *text;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"{'model_type':'mamba'}", QRUN_ERROR_UNSUPPORTED,
         "config: model_type \"mamba\" is not supported; supported are gemma3, llama, mistral, qwen2, qwen3, gemma2, "
         "gemma3_text, phi3, gpt2"},
        {"{}", QRUN_ERROR_INPUT, "has no \"model_type\""},
        {"[]", QRUN_ERROR_INPUT, "is not a JSON object"},
        {"{'model_type':3}", QRUN_ERROR_INPUT, "should be a string and is a number"},
        {"{'model_type':'gemma3'}", QRUN_ERROR_INPUT, "should have a \"text_config\""},
        {"{'model_type':'llama','architectures':['LlamaForSequenceClassification']}", QRUN_ERROR_UNSUPPORTED,
         "does not generate text"},
        {"{'model_type':'llama','quantization_config':{'quant_method':'gptq','bits':4}}", QRUN_ERROR_UNSUPPORTED,
         "stored in the gptq format"},
        {"{'model_type':'llama','quantization_config':{'quant_method':'awq'}}", QRUN_ERROR_UNSUPPORTED,
         "the awq format"},
        {"{'model_type':'llama','quantization_config':{'load_in_4bit':true}}", QRUN_ERROR_UNSUPPORTED, "\"fp4\""},
        {"{'model_type':'llama','quantization_config':{'load_in_4bit':true,'load_in_8bit':true}}", QRUN_ERROR_INPUT,
         "either load_in_4bit or load_in_8bit"},
        {"{'model_type':'llama','hidden_size':100}", QRUN_ERROR_INPUT, "hidden size 100 is not divisible by 32 heads"},
        {"{'model_type':'llama','num_key_value_heads':5}", QRUN_ERROR_INPUT, "not divisible by 5 key/value heads"},
        {"{'model_type':'llama','num_hidden_layers':0}", QRUN_ERROR_INPUT, "\"num_hidden_layers\" is 0, outside 1 to"},
        {"{'model_type':'llama','vocab_size':1e12}", QRUN_ERROR_INPUT, "\"vocab_size\" is 1000000000000, outside"},
        {"{'model_type':'llama','head_dim':7}", QRUN_ERROR_INPUT, "7 of 7 dimensions of a head would be rotated"},
        {"{'model_type':'llama','hidden_act':'relu'}", QRUN_ERROR_UNSUPPORTED, "activation \"relu\""},
        {"{'model_type':'llama','torch_dtype':'float64'}", QRUN_ERROR_UNSUPPORTED, "\"torch_dtype\" is \"float64\""},
        {"{'model_type':'llama','rope_scaling':{'type':'mrope'}}", QRUN_ERROR_UNSUPPORTED, "type \"mrope\""},
        {"{'model_type':'llama','rope_scaling':{'type':'linear'}}", QRUN_ERROR_INPUT, "\"linear\" needs \"factor\""},
        {"{'model_type':'llama','rope_scaling':'linear'}", QRUN_ERROR_INPUT, "rotary parameters are not an object"},
        {"{'model_type':'llama','rope_scaling':{'type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':1}}",
         QRUN_ERROR_INPUT, "must be greater than"},
        {"{'model_type':'llama','rope_parameters':{'full_attention':{}}}", QRUN_ERROR_UNSUPPORTED, "by layer type"},
        {"{'model_type':'gemma3_text','rope_parameters':{'rope_type':'default'}}", QRUN_ERROR_INPUT,
         "should have \"full_attention\""},
        {"{'model_type':'phi3','rope_scaling':{'type':'longrope','short_factor':[1],'long_factor':[1]}}",
         QRUN_ERROR_INPUT, "\"short_factor\" has 1 value and should have 48"},
        {"{'model_type':'phi3','rope_scaling':{'type':'longrope','short_factor':['a'],'long_factor':[1]}}",
         QRUN_ERROR_INPUT, "something other than positive numbers"},
        {"{'model_type':'gemma2','layer_types':['full_attention']}", QRUN_ERROR_INPUT, "a list of 26 layers"},
        {"{'model_type':'gemma2','layer_types':['linear_attention']}", QRUN_ERROR_UNSUPPORTED,
         "layers of type \"linear_attention\""},
        {"{'model_type':'gemma2','use_bidirectional_attention':true}", QRUN_ERROR_UNSUPPORTED, "bidirectional"},
        {"{'model_type':'gpt2','scale_attn_by_inverse_layer_idx':true}", QRUN_ERROR_UNSUPPORTED, "inverse_layer"},
        {"{'model_type':'llama','eos_token_id':'</s>'}", QRUN_ERROR_INPUT,
         "\"eos_token_id\" holds something that is not"},
        {"{'model_type':'llama','bos_token_id':[1,2]}", QRUN_ERROR_INPUT, "should be one token id"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_model_config c;
        qr_error err = {0};
        CHECK_MSG(parse(cases[i].text, &c, &err) == cases[i].status, "%s: status %d", cases[i].text, (int)err.status);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: \"%s\"", cases[i].text, err.message);
        CHECK_MSG(strncmp(err.message, "config: ", 8) == 0, "%s", err.message);
        qr_model_config_free(&c);
    }
}

static void test_generation_config(void) {
    const temporary_folder folder = temporary_create();
    qr_model_config model;
    REQUIRE(parse("{'model_type':'llama','eos_token_id':[5,6]}", &model, NULL) == QRUN_OK);
    qr_generation_config config;
    CHECK_INT(qr_generation_config_read(folder.path, &model, &config, NULL), QRUN_OK);
    CHECK(config.eos.n == 2 && config.eos.ids[1] == 6 && config.bos_token_id == 1 && config.pad_token_id == -1);
    CHECK(!config.do_sample && config.temperature == 1 && config.top_k == 50 && config.top_p == 1);
    CHECK(config.min_p == 0 && config.repetition_penalty == 1 && config.max_new_tokens == 0 && config.max_length == 0);

    temporary_text(&folder, "generation_config.json",
                   "{\"bos_token_id\": 128000, \"do_sample\": true, \"eos_token_id\": [128001, 128008, 128009], "
                   "\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 0, \"min_p\": 0.05, \"repetition_penalty\": 1.1, "
                   "\"max_length\": 4096, \"max_new_tokens\": 12, \"pad_token_id\": null, \"other\": {}}");
    qr_error err = {0};
    CHECK_MSG(qr_generation_config_read(folder.path, &model, &config, &err) == QRUN_OK, "%s", err.message);
    CHECK(config.eos.n == 3 && config.eos.ids[2] == 128009 && config.bos_token_id == 128000);
    CHECK(config.do_sample && config.temperature == 0.6 && config.top_p == 0.9 && config.top_k == 0);
    CHECK(config.min_p == 0.05 && config.repetition_penalty == 1.1);
    CHECK(config.max_length == 4096 && config.max_new_tokens == 12);

    temporary_text(&folder, "generation_config.json", "{\"temperature\": 0, \"do_sample\": true}");
    CHECK_INT(qr_generation_config_read(folder.path, &model, &config, NULL), QRUN_OK);
    CHECK(!config.do_sample && config.temperature == 1);
    temporary_text(&folder, "generation_config.json", "{\"top_p\": 1.5}");
    CHECK_INT(qr_generation_config_read(folder.path, &model, &config, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "generation_config.json: \"top_p\" is 1.5, outside 0 to 1") != NULL, "%s",
              err.message);
    qr_model_config_free(&model);
    temporary_remove(&folder);
}

static qrun_status attempt_read(void *context, qr_error *err) {
    qr_model_config c;
    const qrun_status status = qr_model_config_read(context, &c, err);
    qr_model_config_free(&c);
    return status;
}

static void test_any_allocation_may_fail(void) {
    temporary_folder folder = temporary_create();
    temporary_text(
        &folder, "config.json",
        "{\"model_type\":\"phi3\",\"hidden_size\":8,\"num_attention_heads\":2,\"rope_scaling\":{\"type\":\"su\","
        "\"short_factor\":[1,2],\"long_factor\":[3,4]},\"quantization_config\":{\"load_in_8bit\":true,"
        "\"llm_int8_skip_modules\":[\"lm_head\",\"a\"]}}");
    check_failing_allocations(attempt_read, folder.path, false);
    temporary_remove(&folder);
}

static void test_public_configs(void) {
    static const struct {
        const char *path, *refused; /* relative to configs/; the model_type refused, or NULL */
        qr_model_family family;
        int64_t n_layers, n_kv_heads, head_dim, window;
        double theta;
    } files[] = {
        {"llama/7B_config_llama2", NULL, QR_FAMILY_LLAMA, 32, 32, 128, 0, 1e4},
        {"llama/8B_config_llama3", NULL, QR_FAMILY_LLAMA, 32, 8, 128, 0, 5e5},
        {"llama/8B_config_llama3.1", NULL, QR_FAMILY_LLAMA, 32, 8, 128, 0, 5e5},
        {"real/Gemma3/config", NULL, QR_FAMILY_GEMMA3, 34, 4, 256, 1024, 1e6},
        {"real/Llama2/compile/files/llama-2-13b-chat-hf", NULL, QR_FAMILY_LLAMA, 40, 40, 128, 0, 1e4},
        {"real/Llama2/compile/files/llama-2-7b-chat-hf", NULL, QR_FAMILY_LLAMA, 32, 32, 128, 0, 1e4},
        {"real/Llama3/config", NULL, QR_FAMILY_LLAMA, 28, 8, 128, 0, 5e5},
        {"real/Mistral/compile/files/Mistral-7B-Instruct-v0.2", NULL, QR_FAMILY_MISTRAL, 32, 8, 128, 0, 1e6},
        {"real/Qwen1_5/compile/files/Qwen1.5-0.5B-Chat", NULL, QR_FAMILY_QWEN2, 24, 16, 64, 0, 1e6},
        {"real/Qwen1_5/compile/files/Qwen1.5-1.8B-Chat", NULL, QR_FAMILY_QWEN2, 24, 16, 128, 0, 1e6},
        {"real/Qwen2/compile/files/Qwen2-1.5B-Instruct", NULL, QR_FAMILY_QWEN2, 28, 2, 128, 0, 1e6},
        {"real/Qwen2_5/config", NULL, QR_FAMILY_QWEN2, -1, -1, 128, 0, 1e6},
        {"real/Qwen3/config", NULL, QR_FAMILY_QWEN3, -1, 8, 128, 0, 1e6},
        {"real/Yi/compile/files/Yi-6B-Chat", NULL, QR_FAMILY_LLAMA, 32, 4, 128, 0, -1},
        {"reduced/llama", NULL, QR_FAMILY_LLAMA, 1, 32, 128, 0, 1e4},
        {"reduced/llama3", NULL, QR_FAMILY_LLAMA, 1, 8, 128, 0, 5e5},
        {"reduced/mistral", NULL, QR_FAMILY_MISTRAL, 1, 8, 128, 4096, 1e4},
        {"reduced/phi3", NULL, QR_FAMILY_PHI3, 1, 32, 96, 2048, 1e4},
        {"reduced/qwen2", NULL, QR_FAMILY_QWEN2, 1, 4, 128, 0, 1e6},
        {"reduced/qwen3", NULL, QR_FAMILY_QWEN3, 1, -1, 128, 0, 1e6},
        {"real/MiniCPM4/config", "minicpm", 0, 0, 0, 0, 0, 0},
        {"reduced/falcon", "falcon", 0, 0, 0, 0, 0, 0},
        {"reduced/gptj", "gptj", 0, 0, 0, 0, 0, 0},
        {"reduced/gptneox", "gpt_neox", 0, 0, 0, 0, 0, 0},
        {"reduced/mixtral", "mixtral", 0, 0, 0, 0, 0, 0},
        {"reduced/phi", "phi", 0, 0, 0, 0, 0, 0},
        {"reduced/qwen", "qwen", 0, 0, 0, 0, 0, 0},
        {"reduced/qwen3moe", "qwen3_moe", 0, 0, 0, 0, 0, 0},
        {"reduced/stablelm", "stablelm", 0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        char name[256];
        snprintf(name, sizeof name, "configs/%s", files[i].path);
        const char *folder = check_shared_data(name);
        if (folder == NULL) {
            check_skip("the public configs are not there");
            return;
        }
        qr_model_config c;
        qr_error err = {0};
        const qrun_status status = qr_model_config_read(folder, &c, &err);
        if (files[i].refused != NULL) {
            char expected[128];
            snprintf(expected, sizeof expected, "model_type \"%s\" is not supported", files[i].refused);
            CHECK_MSG(status == QRUN_ERROR_UNSUPPORTED && strstr(err.message, expected) != NULL, "%s: %s", name,
                      err.message);
            continue;
        }
        CHECK_MSG(status == QRUN_OK, "%s", err.message);
        if (status != QRUN_OK) { continue; }
        CHECK_INT(c.family, files[i].family);
        CHECK_MSG(files[i].n_layers < 0 || c.n_layers == files[i].n_layers, "%s: %lld layers", name,
                  (long long)c.n_layers);
        CHECK_MSG(files[i].n_kv_heads < 0 || c.n_kv_heads == files[i].n_kv_heads, "%s: %lld kv heads", name,
                  (long long)c.n_kv_heads);
        CHECK_MSG(c.head_dim == files[i].head_dim, "%s: head_dim %lld", name, (long long)c.head_dim);
        CHECK_MSG(c.sliding_window == files[i].window, "%s: window %lld", name, (long long)c.sliding_window);
        CHECK_MSG(files[i].theta < 0 || c.rope.theta == files[i].theta, "%s: theta %g", name, c.rope.theta);
        qr_generation_config generation;
        CHECK_MSG(qr_generation_config_read(folder, &c, &generation, &err) == QRUN_OK, "%s", err.message);
        qr_model_config_free(&c);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_family_defaults);
    CHECK_RUN(test_gemma);
    CHECK_RUN(test_gemma3_wrapper);
    CHECK_RUN(test_gemma3_nested_rope);
    CHECK_RUN(test_llama3_rope);
    CHECK_RUN(test_yarn);
    CHECK_RUN(test_longrope);
    CHECK_RUN(test_window_from_layer);
    CHECK_RUN(test_null_window);
    CHECK_RUN(test_window_larger_than_every_layer_asks);
    CHECK_RUN(test_quantization);
    CHECK_RUN(test_int8_without_method);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_generation_config);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_public_configs);
    return check_end();
}
