/* config.json and generation_config.json: every family's defaults, both rotary forms, what is refused by name, and
 * public configs. Expected values are those of transformers 5.23. */
#include "check.h"

#include <math.h>

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

static void check_refused(const char *text, qrun_status status, const char *message) {
    qr_model_config c;
    qr_error err = {0};
    CHECK_MSG(parse(text, &c, &err) == status, "%s: status %d", text, (int)err.status);
    CHECK_MSG(strstr(err.message, message) != NULL, "%s: \"%s\"", text, err.message);
    CHECK_MSG(strncmp(err.message, "config: ", 8) == 0, "%s", err.message);
    qr_model_config_free(&c);
}

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
        {"{'model_type':'smollm3'}",
         QR_FAMILY_SMOLLM3,
         128256,
         2048,
         11008,
         36,
         16,
         4,
         128,
         32768,
         1e-6,
         QR_ACTIVATION_SILU,
         true,
         false,
         true,
         2e6,
         128000,
         128001,
         128004,
         0,
         0},
        {"{'model_type':'olmo2'}", QR_FAMILY_OLMO2, 50304, 4096, 11008, 32, 32,    32, 128, 2048, 1e-5,
         QR_ACTIVATION_SILU,       false,           false, true, 1e4,   -1, 50279, 1,  0,   0},
        {"{'model_type':'olmo3'}", QR_FAMILY_OLMO3, 50304, 4096, 11008, 32, 32,    32, 128,  2048, 1e-5,
         QR_ACTIVATION_SILU,       false,           false, true, 5e5,   -1, 50279, 1,  4096, 24},
        {"{'model_type':'qwen3_5_text'}",
         QR_FAMILY_QWEN3_5,
         248320,
         4096,
         12288,
         32,
         16,
         4,
         256,
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
        {"{'model_type':'qwen3_5_moe_text'}",
         QR_FAMILY_QWEN3_5_MOE,
         248320,
         2048,
         512,
         40,
         16,
         2,
         256,
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
        {"{'model_type':'qwen3_next'}",
         QR_FAMILY_QWEN3_NEXT,
         151936,
         2048,
         5632,
         48,
         16,
         2,
         256,
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
        const int64_t rotated = c.recurrent.layers != NULL ? c.head_dim / 4 : c.head_dim;
        CHECK(!c.has_rope || c.rope.rotary_dim == rotated);
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

static void test_layers_without_rotary_positions(void) {
    PARSE("{'model_type':'smollm3','num_hidden_layers':5,'use_sliding_window':true,'sliding_window':16}");
    for (int64_t i = 0; i < 5; i++) { CHECK(c.layer_rotates[i] == (i != 3) && c.layer_slides[i] == (i == 3)); }
    qr_model_config_free(&c);
    CHECK(c.layer_rotates == NULL);
}

static void test_listed_layers_without_rotary_positions(void) {
    PARSE("{'model_type':'smollm3','num_hidden_layers':2,'no_rope_layers':[0,1,1]}");
    CHECK(!c.layer_rotates[0] && c.layer_rotates[1] && c.sliding_window == 0);
    qr_model_config_free(&c);
}

/* The published form: scaling is for the layers without a window. */
static void test_olmo3(void) {
    PARSE("{'model_type':'olmo3','num_hidden_layers':8,'sliding_window':64,'rope_theta':500000,'rope_scaling':"
          "{'rope_type':'yarn','factor':8.0,'original_max_position_embeddings':8192}}");
    CHECK(c.rope.type == QR_ROPE_YARN && c.rope.theta == 5e5);
    CHECK(c.rope_local.type == QR_ROPE_DEFAULT && c.rope_local.theta == 5e5);
    CHECK_INT(count_sliding(&c), 6);
    qr_model_config_free(&c);
}

/* As published: the text model inside a wrapper with images. */
static void test_qwen3_5_wrapper(void) {
    PARSE("{'model_type':'qwen3_5','architectures':['Qwen3_5ForConditionalGeneration'],'tie_word_embeddings':true,"
          "'image_token_id':248056,'vision_config':{'depth':27},"
          "'text_config':{'model_type':'qwen3_5_text','dtype':'bfloat16','num_hidden_layers':6,"
          "'linear_num_key_heads':16,'linear_num_value_heads':48,'attn_output_gate':true,'mtp_num_hidden_layers':1,"
          "'layer_types':['linear_attention','full_attention','linear_attention','linear_attention','full_attention',"
          "'linear_attention'],'rope_parameters':{'mrope_interleaved':true,'mrope_section':[11,11,10],"
          "'rope_type':'default','rope_theta':10000000,'partial_rotary_factor':0.25}}}");
    CHECK_INT(c.family, QR_FAMILY_QWEN3_5);
    CHECK(c.is_multimodal && c.tie_word_embeddings && c.dtype == QR_DTYPE_BF16);
    CHECK(c.norm_adds_one && !c.scale_embeddings && c.attn_output_gate);
    CHECK(c.rope.theta == 1e7 && c.rope.rotary_dim == 64 && c.rope.type == QR_ROPE_DEFAULT);
    REQUIRE(c.recurrent.layers != NULL);
    for (int64_t l = 0; l < 6; l++) { CHECK(c.recurrent.layers[l] == (l != 1 && l != 4)); }
    CHECK(c.recurrent.n_key_heads == 16 && c.recurrent.n_value_heads == 48 && c.recurrent.conv_kernel == 4);
    CHECK(c.recurrent.key_dim == 128 && c.recurrent.value_dim == 128);
    qr_model_config_free(&c);
    CHECK(c.recurrent.layers == NULL);
}

/* Before transformers 5: the interval, and rotary parameters at the top. */
static void test_qwen3_5_older_form(void) {
    PARSE("{'model_type':'qwen3_5_text','num_hidden_layers':7,'full_attention_interval':3,'rope_theta':5000000,"
          "'partial_rotary_factor':0.5,'linear_conv_kernel_dim':3}");
    for (int64_t l = 0; l < 7; l++) { CHECK(c.recurrent.layers[l] == (l != 2 && l != 5)); }
    CHECK(c.rope.rotary_dim == 128 && c.rope.theta == 5e6 && c.recurrent.conv_kernel == 3);
    qr_model_config_free(&c);
}

/* The published forms, of Qwen3.5-35B-A3B and of Qwen3-Next: experts that the first always normalises. */
static void test_qwen3_5_moe_wrapper(void) {
    PARSE("{'model_type':'qwen3_5_moe','architectures':['Qwen3_5MoeForConditionalGeneration'],"
          "'tie_word_embeddings':false,'vision_config':{'depth':27},'text_config':{'model_type':'qwen3_5_moe_text',"
          "'dtype':'bfloat16','num_hidden_layers':5,'full_attention_interval':2,'num_experts':256,"
          "'num_experts_per_tok':8,'norm_topk_prob':false,'moe_intermediate_size':640}}");
    CHECK_INT(c.family, QR_FAMILY_QWEN3_5_MOE);
    CHECK(c.is_multimodal && c.norm_adds_one && c.attn_output_gate && !c.tie_word_embeddings);
    CHECK(c.experts.n_experts == 256 && c.experts.n_per_token == 8 && c.experts.intermediate_size == 640);
    CHECK(c.experts.normalizes && c.experts.shared_intermediate_size == 512);
    for (int64_t l = 0; l < 5; l++) { CHECK(c.recurrent.layers[l] == (l % 2 == 0) && c.experts.layer_has_experts[l]); }
    qr_model_config_free(&c);
}

static void test_qwen3_next(void) {
    PARSE("{'model_type':'qwen3_next','num_hidden_layers':8,'norm_topk_prob':false,'mlp_only_layers':[2],"
          "'decoder_sparse_step':1,'partial_rotary_factor':0.5,'rope_theta':10000000}");
    CHECK(c.norm_adds_one && c.attn_output_gate && !c.experts.normalizes && c.rope.rotary_dim == 128);
    for (int64_t l = 0; l < 8; l++) {
        CHECK(c.recurrent.layers[l] == (l % 4 != 3) && c.experts.layer_has_experts[l] == (l != 2));
    }
    qr_model_config_free(&c);
}

static void test_qwen3_vl_wrapper(void) {
    PARSE("{'model_type':'qwen3_vl','architectures':['Qwen3VLForConditionalGeneration'],'tie_word_embeddings':true,"
          "'image_token_id':151655,'vision_config':{'depth':24},'text_config':{'model_type':'qwen3_vl_text',"
          "'hidden_size':2048,'num_hidden_layers':28,'num_attention_heads':16,'num_key_value_heads':8,"
          "'rope_theta':5000000,'rope_scaling':{'mrope_interleaved':true,'mrope_section':[24,20,20],"
          "'rope_type':'default'},'dtype':'bfloat16'}}");
    CHECK(c.family == QR_FAMILY_QWEN3_VL && c.is_multimodal && c.tie_word_embeddings && c.dtype == QR_DTYPE_BF16);
    CHECK(c.head_dim == 128 && c.rope.type == QR_ROPE_DEFAULT && c.rope.theta == 5e6 && c.rope.rotary_dim == 128);
    qr_model_config_free(&c);
}

/* As published: the text model's keys are among the wrapper's, and sections of a head are no scaling. */
static void test_qwen2_vl_wrapper(void) {
    PARSE("{'model_type':'qwen2_5_vl','architectures':['Qwen2_5_VLForConditionalGeneration'],'hidden_size':3584,"
          "'num_hidden_layers':28,'num_attention_heads':28,'num_key_value_heads':4,'rope_theta':1000000.0,"
          "'rope_scaling':{'type':'mrope','mrope_section':[16,24,24]},'torch_dtype':'bfloat16','vision_config':{},"
          "'use_sliding_window':false,'max_window_layers':28,'tie_word_embeddings':false,'eos_token_id':151645}");
    CHECK(c.family == QR_FAMILY_QWEN2_VL && c.is_multimodal && !c.tie_word_embeddings && c.dtype == QR_DTYPE_BF16);
    CHECK(c.qkv_bias && !c.o_bias && c.head_dim == 128 && c.rope.type == QR_ROPE_DEFAULT && c.rope.rotary_dim == 128);
    CHECK(c.sliding_window == 0 && c.eos.n == 1 && c.eos.ids[0] == 151645);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'qwen2_vl','text_config':{'model_type':'qwen2_5_vl_text','num_hidden_layers':82,"
                "'use_sliding_window':true}}",
                &c, NULL) == QRUN_OK);
    CHECK(c.family == QR_FAMILY_QWEN2_VL && !c.layer_slides[79] && c.layer_slides[80]);
    qr_model_config_free(&c);
}

static void test_other_wrappers(void) {
    static const struct {
        const char *text;
        qr_model_family family;
        int64_t rotary_dim;
        bool qkv_bias;
    } cases[] = {
        {"{'model_type':'qwen3_vl_moe','text_config':{'model_type':'qwen3_vl_moe_text','head_dim':128}}",
         QR_FAMILY_QWEN3_VL_MOE, 128, false},
        {"{'model_type':'glm4v','text_config':{'model_type':'glm4v_text','partial_rotary_factor':0.5,"
         "'attention_bias':true,'rope_scaling':{'type':'default','mrope_section':[8,12,12]}}}",
         QR_FAMILY_GLM4V, 64, true},
        {"{'model_type':'glm46v','text_config':{'model_type':'glm4v_moe_text','head_dim':128,'attention_bias':true,"
         "'rope_parameters':{'rope_type':'default','mrope_section':[8,12,12],'partial_rotary_factor':0.5}}}",
         QR_FAMILY_GLM4V_MOE, 64, true},
        {"{'model_type':'lfm2_vl','text_config':{'model_type':'lfm2'}}", QR_FAMILY_LFM2, 80, false},
        {"{'model_type':'exaone4_5','text_config':{'model_type':'exaone4_5_text'}}", QR_FAMILY_EXAONE4, 128, false},
        {"{'model_type':'kimi_k2','n_group':1,'topk_group':1}", QR_FAMILY_DEEPSEEK_V3, 64, false},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        PARSE(cases[i].text);
        CHECK_INT(c.family, cases[i].family);
        CHECK_INT(c.rope.rotary_dim, cases[i].rotary_dim);
        CHECK(c.qkv_bias == cases[i].qkv_bias && c.is_multimodal == (i + 1 < QR_COUNT_OF(cases)));
        CHECK(c.rope.interleaved == (cases[i].family == QR_FAMILY_GLM4V || !c.is_multimodal));
        qr_model_config_free(&c);
    }
}

/* With windows only their layers rotate, as in EXAONE-4.0-32B; without, all do. */
static void test_exaone4(void) {
    for (int i = 0; i < 2; i++) {
        PARSE(i == 0 ? "{'model_type':'exaone4','num_hidden_layers':8,'attention_bias':true}"
                     : "{'model_type':'exaone4','num_hidden_layers':2,'sliding_window':null,"
                       "'layer_types':['full_attention','full_attention']}");
        CHECK(c.sliding_window == (i == 0 ? 4096 : 0) && (c.layer_rotates == NULL) == (i == 1) && !c.qkv_bias);
        for (int64_t l = 0; l < c.n_layers && i == 0; l++) {
            CHECK(c.layer_slides[l] == (l % 4 != 3) && c.layer_rotates[l] == c.layer_slides[l]);
        }
        qr_model_config_free(&c);
    }
}

static void test_seed_oss(void) {
    PARSE("{'model_type':'seed_oss','num_hidden_layers':1}");
    CHECK(c.qkv_bias && !c.o_bias && !c.mlp_bias && c.head_dim == 128 && !c.tie_word_embeddings);
    qr_model_config_free(&c);
}

static void test_ministral_layers(void) {
    PARSE("{'model_type':'ministral','num_hidden_layers':2,'layer_types':['full_attention','sliding_attention']}");
    CHECK(c.sliding_window == 4096 && !c.layer_slides[0] && c.layer_slides[1]);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'ministral','num_hidden_layers':2}", &c, NULL) == QRUN_OK);
    CHECK(c.layer_slides[0] && c.layer_slides[1]);
    qr_model_config_free(&c);
}

static void test_mellum(void) {
    PARSE("{'model_type':'mellum','num_hidden_layers':3,'mlp_layer_types':['dense','sparse','sparse'],"
          "'layer_types':['sliding_attention','full_attention','sliding_attention']}");
    CHECK(c.sliding_window == 1024 && c.rope.theta == 5e5 && c.rope_local.theta == 1e4 && c.experts.normalizes);
    CHECK(c.experts.n_experts == 64 && c.experts.n_per_token == 8 && c.experts.intermediate_size == 896);
    for (int64_t l = 0; l < 3; l++) {
        CHECK(c.layer_slides[l] == (l != 1) && c.experts.layer_has_experts[l] == (l > 0));
    }
    qr_model_config_free(&c);
    check_refused("{'model_type':'mellum','num_hidden_layers':2,'mlp_layer_types':['dense','thin']}", QRUN_ERROR_INPUT,
                  "\"mlp_layer_types\" should be a list");
    check_refused("{'model_type':'mellum','num_hidden_layers':1,'mlp_layer_types':['sparse','sparse']}",
                  QRUN_ERROR_INPUT, "for each of 1 layers");
}

/* As GLM-4.5-Air is published. */
static void test_glm4_moe(void) {
    PARSE("{'model_type':'glm4_moe','num_hidden_layers':3,'attention_bias':true,'head_dim':128,'n_routed_experts':96,"
          "'n_shared_experts':2,'first_k_dense_replace':1,'moe_intermediate_size':1408,'routed_scaling_factor':1.5,"
          "'partial_rotary_factor':0.5,'rope_theta':1000000,'rope_scaling':null,'num_nextn_predict_layers':1,"
          "'n_group':1,'topk_group':1,'norm_topk_prob':true,'use_qk_norm':false}");
    CHECK(c.qkv_bias && !c.o_bias && c.without_head_norms && c.n_layers_ahead == 1 && c.rope.rotary_dim == 64);
    CHECK(c.experts.n_experts == 96 && c.experts.shared_intermediate_size == 2816 && c.experts.share_factor == 1.5);
    CHECK(c.experts.has_sigmoid_router && c.experts.has_choice_bias && c.experts.normalizes);
    for (int64_t l = 0; l < 3; l++) { CHECK(c.experts.layer_has_experts[l] == (l > 0)); }
    qr_model_config_free(&c);
    check_refused("{'model_type':'glm4_moe','num_attention_heads':32,'n_group':2,'topk_group':3}", QRUN_ERROR_INPUT,
                  "\"n_group\" is 2 and \"topk_group\" 3, which does not fit 8 of 128 experts");
}

/* As GLM-4.7-Flash is published; and with layers listed. */
static void test_glm4_moe_lite(void) {
    PARSE("{'model_type':'glm4_moe_lite','attention_bias':false,'first_k_dense_replace':1,'hidden_size':2048,"
          "'intermediate_size':10240,'kv_lora_rank':512,'max_position_embeddings':202752,'moe_intermediate_size':1536,"
          "'n_group':1,'n_routed_experts':64,'n_shared_experts':1,'norm_topk_prob':true,'num_attention_heads':20,"
          "'num_experts_per_tok':4,'num_hidden_layers':47,'num_key_value_heads':20,'num_nextn_predict_layers':1,"
          "'partial_rotary_factor':1.0,'q_lora_rank':768,'qk_nope_head_dim':192,'qk_rope_head_dim':64,"
          "'rms_norm_eps':1e-05,'rope_scaling':null,'rope_theta':1000000,'routed_scaling_factor':1.8,"
          "'tie_word_embeddings':false,'topk_group':1,'topk_method':'noaux_tc','v_head_dim':256,'vocab_size':154880}");
    CHECK(c.head_dim == 256 && c.n_kv_heads == 20 && c.rope.rotary_dim == 64 && c.rope.interleaved);
    CHECK(c.latent.kv_rank == 512 && c.latent.query_rank == 768 && c.latent.value_dim == 256);
    CHECK(c.latent.plain_dim == 192 && c.latent.rotated_dim == 64 && c.query_pre_attn_scalar == 256);
    CHECK(c.experts.n_experts == 64 && c.experts.n_per_token == 4 && c.experts.share_factor == 1.8);
    CHECK(c.experts.has_sigmoid_router && c.n_layers_ahead == 1 && !c.experts.layer_has_experts[0]);
    CHECK(c.experts.layer_has_experts[1] && c.experts.shared_intermediate_size == 1536 && !c.qkv_bias);
    qr_model_config_free(&c);
    check_refused("{'model_type':'glm4_moe_lite','n_group':64,'topk_group':64}", QRUN_ERROR_INPUT,
                  "\"n_group\" is 64 and \"topk_group\" 64, which does not fit 4 of 64 experts");
    check_refused("{'model_type':'glm4_moe_lite','topk_method':'greedy'}", QRUN_ERROR_UNSUPPORTED, "\"topk_method\"");
}

static void test_glm4_moe_lite_layers(void) {
    PARSE("{'model_type':'glm4_moe_lite','num_hidden_layers':3,'mlp_layer_types':['sparse','dense','sparse'],"
          "'rope_interleave':false}");
    for (int64_t l = 0; l < 3; l++) { CHECK(c.experts.layer_has_experts[l] == (l != 1)); }
    CHECK(!c.rope.interleaved && c.n_layers_ahead == 1 && c.experts.share_factor == 1.8);
    qr_model_config_free(&c);
}

/* As Moonlight-16B-A3B is published: queries without a latent. */
static void test_deepseek_v3(void) {
    PARSE("{'model_type':'deepseek_v3','first_k_dense_replace':1,'hidden_size':2048,'intermediate_size':11264,"
          "'kv_lora_rank':512,'moe_intermediate_size':1408,'moe_layer_freq':1,'n_group':1,'n_routed_experts':64,"
          "'n_shared_experts':2,'norm_topk_prob':true,'num_attention_heads':16,'num_experts_per_tok':6,"
          "'num_hidden_layers':27,'num_key_value_heads':16,'num_nextn_predict_layers':0,'q_lora_rank':null,"
          "'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rope_theta':50000.0,'routed_scaling_factor':2.446,"
          "'scoring_func':'sigmoid','topk_group':1,'topk_method':'noaux_tc','v_head_dim':128}");
    CHECK(c.latent.query_rank == 0 && c.head_dim == 192 && c.latent.value_dim == 128 && c.n_layers_ahead == 0);
    CHECK(c.rope.interleaved && c.rope.rotary_dim == 64 && c.rope.theta == 5e4 && c.n_kv_heads == 16);
    CHECK(c.experts.shared_intermediate_size == 2816 && c.experts.share_factor == 2.446 && c.experts.normalizes);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'deepseek_v3'}", &c, NULL) == QRUN_OK);
    CHECK(c.experts.n_groups == 8 && c.experts.n_top_groups == 4 && c.experts.n_per_token == 8);
    CHECK(c.experts.share_factor == 2.5);
    qr_model_config_free(&c);
    check_refused("{'model_type':'deepseek_v3','n_group':32,'topk_group':2,'num_experts_per_tok':17}", QRUN_ERROR_INPUT,
                  "does not fit 17 of 256 experts");
    check_refused("{'model_type':'deepseek_v3','n_group':7}", QRUN_ERROR_INPUT, "\"n_group\" is 7");
    check_refused("{'model_type':'deepseek_v3','n_group':65}", QRUN_ERROR_INPUT, "\"n_group\" is 65, outside 1 to 64");
    check_refused("{'model_type':'deepseek_v3','n_group':1,'topk_group':1,'scoring_func':'softmax'}",
                  QRUN_ERROR_UNSUPPORTED, "\"scoring_func\"");
    check_refused("{'model_type':'deepseek_v3','n_group':1,'topk_group':1,'moe_layer_freq':2}", QRUN_ERROR_UNSUPPORTED,
                  "\"moe_layer_freq\"");
    check_refused("{'model_type':'deepseek_v3','n_group':1,'num_hidden_layers':3}", QRUN_ERROR_INPUT,
                  "no layer is left for experts");
    check_refused("{'model_type':'deepseek_v3','v_head_dim':193}", QRUN_ERROR_UNSUPPORTED, "\"v_head_dim\" 193");
    check_refused("{'model_type':'deepseek_v3','qk_rope_head_dim':63}", QRUN_ERROR_INPUT, "it must be even");
    check_refused("{'model_type':'deepseek_v3','kv_lora_rank':0}", QRUN_ERROR_INPUT, "kv_lora_rank");
}

/* As DeepSeek-V2-Lite is published: a softmax, and YaRN that scales scores. */
static void test_deepseek_v2(void) {
    PARSE(
        "{'model_type':'deepseek_v2','first_k_dense_replace':1,'hidden_size':2048,'intermediate_size':10944,"
        "'kv_lora_rank':512,'max_position_embeddings':163840,'moe_intermediate_size':1408,'moe_layer_freq':1,"
        "'n_group':1,'n_routed_experts':64,'n_shared_experts':2,'norm_topk_prob':false,'num_attention_heads':16,"
        "'num_experts_per_tok':6,'num_hidden_layers':27,'num_key_value_heads':16,'q_lora_rank':null,"
        "'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,"
        "'mscale':0.707,'mscale_all_dim':0.707,'original_max_position_embeddings':4096,'type':'yarn'},"
        "'routed_scaling_factor':1.0,'scoring_func':'softmax','topk_group':1,'topk_method':'greedy','v_head_dim':128}");
    CHECK(!c.experts.has_sigmoid_router && !c.experts.normalizes && !c.experts.has_choice_bias);
    CHECK(c.rope.type == QR_ROPE_YARN && c.rope.mscale_all_dim == 0.707 && c.rope.interleaved && c.n_layers_ahead == 0);
    CHECK(c.experts.n_per_token == 6 && !c.experts.layer_has_experts[0] && c.experts.layer_has_experts[26]);
    qr_model_config_free(&c);
    check_refused("{'model_type':'deepseek_v2','topk_method':'noaux_tc'}", QRUN_ERROR_UNSUPPORTED, "\"topk_method\"");
    check_refused("{'model_type':'deepseek_v2','norm_topk_prob':true}", QRUN_ERROR_UNSUPPORTED, "\"norm_topk_prob\"");
}

/* As DeepSeek-V2 is published, with another method too, which passes over the groups. */
static void test_deepseek_v2_groups(void) {
    for (int i = 0; i < 2; i++) {
        PARSE(i == 0 ? "{'model_type':'deepseek_v2','n_routed_experts':160,'num_experts_per_tok':6,'n_group':8,"
                       "'topk_group':3,'topk_method':'group_limited_greedy','routed_scaling_factor':16.0}"
                     : "{'model_type':'deepseek_v2','n_routed_experts':160,'n_group':8,'topk_group':3}");
        CHECK_INT(c.experts.n_groups, i == 0 ? 8 : 0);
        CHECK(c.experts.n_top_groups == 3 && c.experts.share_factor == (i == 0 ? 16 : 1));
        qr_model_config_free(&c);
    }
}

/* As MiniCPM3-4B is published, but for its longrope; and Youtu-LLM-2B. */
static void test_latent_attention_of_dense_models(void) {
    {
        PARSE("{'model_type':'minicpm3','hidden_size':2560,'num_hidden_layers':62,'num_attention_heads':40,"
              "'scale_emb':12,'dim_model_base':256,'scale_depth':1.4,'q_lora_rank':768,'kv_lora_rank':256,"
              "'qk_nope_head_dim':64,'qk_rope_head_dim':32}");
        CHECK(c.latent.value_dim == 64 && c.head_dim == 96 && !c.rope.interleaved && c.rope.rotary_dim == 32);
        CHECK(c.embedding_multiplier == 12 && c.logits_scaling == 10 && c.tie_word_embeddings);
        CHECK(fabs(c.residual_multiplier - 1.4 / sqrt(62)) < 1e-12);
        qr_model_config_free(&c);
    }
    PARSE("{'model_type':'youtu','rope_theta':1600000,'num_key_value_heads':16,'attention_bias':false}");
    CHECK(c.latent.query_rank == 1536 && c.head_dim == 192 && c.latent.value_dim == 128 && c.tie_word_embeddings);
    CHECK(c.rope.interleaved && c.rope.theta == 1.6e6 && c.experts.n_experts == 0);
    qr_model_config_free(&c);
}

/* As ERNIE-4.5-0.3B is published. */
static void test_ernie4_5(void) {
    PARSE("{'model_type':'ernie4_5','hidden_size':1024,'num_attention_heads':16,'num_key_value_heads':2,'head_dim':128,"
          "'rope_theta':500000.0,'use_bias':false,'tie_word_embeddings':true}");
    CHECK(c.rope.interleaved && c.rope_local.interleaved && c.rope.theta == 5e5 && c.rope.rotary_dim == 128);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.tie_word_embeddings && c.n_layers == 18);
    qr_model_config_free(&c);
    check_refused("{'model_type':'ernie4_5_vl_moe'}", QRUN_ERROR_UNSUPPORTED, "ERNIE 4.5");
}

static void test_ernie4_5_biases(void) {
    PARSE("{'model_type':'ernie4_5','use_bias':true,'attention_bias':false,'partial_rotary_factor':0.5}");
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.rope.rotary_dim == 128 && c.head_dim == 128);
    qr_model_config_free(&c);
}

/* As ERNIE-4.5-21B-A3B is published. */
static void test_ernie4_5_moe(void) {
    PARSE("{'model_type':'ernie4_5_moe','num_hidden_layers':3,'moe_num_experts':64,'moe_k':6,'use_bias':false,"
          "'moe_num_shared_experts':2,'moe_layer_start_index':1,'moe_layer_end_index':27,'moe_layer_interval':1,"
          "'moe_intermediate_size':1536,'moe_use_aux_free':true,'moe_gate':'topk','moe_norm_min':1e-12}");
    CHECK(c.rope.interleaved && c.rope.rotary_dim == 128 && c.tie_word_embeddings && !c.qkv_bias);
    CHECK(c.experts.n_experts == 64 && c.experts.n_per_token == 6 && c.experts.shared_intermediate_size == 3072);
    CHECK(c.experts.has_choice_bias && !c.experts.has_sigmoid_router && c.experts.normalizes);
    for (int64_t l = 0; l < 3; l++) { CHECK(c.experts.layer_has_experts[l] == (l > 0)); }
    qr_model_config_free(&c);
    check_refused("{'model_type':'ernie4_5_moe','use_bias':true}", QRUN_ERROR_UNSUPPORTED, "\"use_bias\"");
    check_refused("{'model_type':'ernie4_5_moe','moe_norm_min':0.1}", QRUN_ERROR_UNSUPPORTED, "\"moe_norm_min\"");
    check_refused("{'model_type':'ernie4_5_moe','moe_layer_start_index':28}", QRUN_ERROR_INPUT, "leave no layer");
}

static void test_ernie4_5_moe_layers(void) {
    PARSE("{'model_type':'ernie4_5_moe','num_hidden_layers':8,'moe_layer_start_index':2,'moe_layer_end_index':6,"
          "'moe_layer_interval':2,'moe_num_shared_experts':0}");
    for (int64_t l = 0; l < 8; l++) { CHECK(c.experts.layer_has_experts[l] == (l == 3 || l == 5)); }
    CHECK(c.experts.shared_intermediate_size == 0);
    qr_model_config_free(&c);
}

/* What GLM-4-9B and GLM-4-9B-0414 have in common, and the ends of an answer that their files may leave out. */
static void check_glm4(const char *text) {
    PARSE(text);
    CHECK(c.rope.interleaved && c.rope.rotary_dim == 64 && c.head_dim == 128 && c.norm_eps == 1.5625e-7);
    CHECK(c.qkv_bias && !c.o_bias && !c.mlp_bias && c.n_kv_heads == 2 && c.rope.theta == 5e6);
    CHECK(c.eos.n == 3 && c.eos.ids[0] == 151329 && c.eos.ids[1] == 151336 && c.eos.ids[2] == 151338);
    qr_model_config_free(&c);
}

static void test_glm4(void) {
    check_glm4("{'model_type':'glm','rope_theta':5000000}");
    check_glm4("{'model_type':'glm4','rope_theta':5000000}");
    PARSE("{'model_type':'glm4','attention_bias':false,'eos_token_id':7,'partial_rotary_factor':0.25}");
    CHECK(!c.qkv_bias && c.eos.n == 1 && c.eos.ids[0] == 7 && c.rope.rotary_dim == 32);
    qr_model_config_free(&c);
}

/* As published, with the keys that transformers passes over. */
static void test_minimax_m2(void) {
    PARSE("{'model_type':'minimax_m2','num_hidden_layers':2,'head_dim':128,'rotary_dim':64,'scoring_func':'sigmoid',"
          "'use_routing_bias':true,'num_local_experts':256,'num_experts_per_tok':8,'output_router_logits':true}");
    CHECK(c.rope.rotary_dim == 64 && c.rope.theta == 5e6 && c.experts.has_sigmoid_router && c.experts.has_choice_bias);
    CHECK(c.experts.normalizes && c.experts.sum_eps == 0 && c.experts.share_factor == 1 && c.experts.balances_load);
    CHECK(c.experts.intermediate_size == 1536 && c.experts.layer_has_experts[0] && !c.qkv_bias);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'minimax_m2','num_hidden_layers':2,'rotary_dim':64,'partial_rotary_factor':1.0}", &c,
                NULL) == QRUN_OK);
    CHECK_INT(c.rope.rotary_dim, 128);
    qr_model_config_free(&c);
}

static void test_dots1(void) {
    PARSE("{'model_type':'dots1','num_hidden_layers':4,'first_k_dense_replace':1,'n_routed_experts':128,"
          "'num_experts_per_tok':6,'n_shared_experts':2,'moe_intermediate_size':100,'norm_topk_prob':true,"
          "'routed_scaling_factor':2.5,'sliding_window':64,'max_window_layers':3}");
    CHECK(c.experts.has_sigmoid_router && c.experts.share_factor == 2.5 && c.experts.shared_intermediate_size == 200);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && !c.experts.balances_load);
    CHECK(c.sliding_window == 64 && !c.layer_slides[2] && c.layer_slides[3]);
    qr_model_config_free(&c);
}

static void test_exaone_moe(void) {
    PARSE("{'model_type':'exaone_moe','num_hidden_layers':8,'first_k_dense_replace':2}");
    CHECK(c.experts.share_factor == 2.5 && c.experts.normalizes && c.experts.shared_intermediate_size == 1024);
    for (int64_t l = 0; l < 8; l++) {
        CHECK(c.layer_slides[l] == (l % 4 != 3) && c.layer_rotates[l] == c.layer_slides[l]);
        CHECK(c.experts.layer_has_experts[l] == (l >= 2));
    }
    qr_model_config_free(&c);
}

static void test_hy_v3(void) {
    PARSE("{'model_type':'hy_v3','num_hidden_layers':3}");
    CHECK(c.experts.share_factor == 2.826 && c.experts.normalizes && c.experts.n_experts == 192);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[2] && c.rope.theta == 11158840);
    CHECK_INT(c.n_layers_ahead, 1);
    qr_model_config_free(&c);
}

/* As Command R7B is published; and what models of the family have that are not read. */
static void test_cohere(void) {
    PARSE("{'model_type':'cohere2','num_hidden_layers':8,'hidden_size':64,'num_attention_heads':4,'head_dim':16,"
          "'logit_scale':0.25,'sliding_window':4096,'sliding_window_pattern':4,'rope_theta':50000}");
    for (int64_t l = 0; l < 8; l++) {
        CHECK(c.layer_slides[l] == (l % 4 != 3) && c.layer_rotates[l] == c.layer_slides[l]);
    }
    CHECK(c.logits_scaling == 4 && c.rope.interleaved && c.rope.theta == 5e4 && c.tie_word_embeddings && !c.qkv_bias);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'cohere','num_hidden_layers':1,'attention_bias':true,'layer_norm_eps':0.5}", &c, NULL) ==
          QRUN_OK);
    CHECK(c.logits_scaling == 16 && c.qkv_bias && c.o_bias && c.norm_eps == 0.5 && c.rope.theta == 5e5);
    qr_model_config_free(&c);
    check_refused("{'model_type':'cohere','use_qk_norm':true}", QRUN_ERROR_UNSUPPORTED, "\"use_qk_norm\"");
    check_refused("{'model_type':'cohere2','sliding_window':null}", QRUN_ERROR_UNSUPPORTED,
                  "a cohere2 model without \"sliding_window\"");
}

/* The files of the first Gemma say "gelu" and mean the approximation. */
static void test_gemma_1(void) {
    PARSE("{'model_type':'gemma','num_hidden_layers':1,'hidden_size':64,'num_attention_heads':4,'num_key_value_heads':"
          "1,'head_dim':256,"
          "'hidden_act':'gelu'}");
    CHECK(c.activation == QR_ACTIVATION_GELU_TANH && c.norm_adds_one && c.scale_embeddings && c.head_dim == 256);
    CHECK(c.query_pre_attn_scalar == 256 && c.attn_logit_softcapping == 0 && c.final_logit_softcapping == 0);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'vaultgemma','num_hidden_layers':2,'hidden_activation':'gelu_pytorch_tanh'}", &c,
                NULL) == QRUN_OK);
    CHECK(c.attn_logit_softcapping == 50 && c.final_logit_softcapping == 30 && c.layer_slides[0] && !c.layer_slides[1]);
    qr_model_config_free(&c);
    check_refused("{'model_type':'gemma','use_bidirectional_attention':true}", QRUN_ERROR_UNSUPPORTED,
                  "\"use_bidirectional_attention\"");
}

static void test_layer_norms(void) {
    PARSE("{'model_type':'starcoder2','num_hidden_layers':1,'norm_epsilon':0.25,'sliding_window':4096}");
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.norm_eps == 0.25 && c.sliding_window == 4096);
    CHECK(c.activation == QR_ACTIVATION_GELU_TANH && c.tie_word_embeddings);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'starcoder2','use_bias':false}", &c, NULL) == QRUN_OK);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.sliding_window == 0);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'stablelm','use_qkv_bias':true,'layer_norm_eps':0.25}", &c, NULL) == QRUN_OK);
    CHECK(c.qkv_bias && !c.o_bias && !c.mlp_bias && c.norm_eps == 0.25 && c.rope.rotary_dim == 20);
    qr_model_config_free(&c);
    check_refused("{'model_type':'stablelm','use_parallel_residual':true}", QRUN_ERROR_UNSUPPORTED,
                  "\"use_parallel_residual\"");
    check_refused("{'model_type':'stablelm','qk_layernorm':true}", QRUN_ERROR_UNSUPPORTED, "\"qk_layernorm\"");
}

/* As Jais 2 is published; biases are there unless the file says otherwise. */
static void test_jais2(void) {
    PARSE("{'model_type':'jais2','num_hidden_layers':1,'layer_norm_eps':0.25,'rope_theta':500000}");
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.norm_eps == 0.25 && c.activation == QR_ACTIVATION_RELU2);
    CHECK(c.head_dim == 128 && c.n_kv_heads == 26 && c.rope.theta == 5e5 && !c.tie_word_embeddings);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'jais2','attention_bias':false,'mlp_bias':false}", &c, NULL) == QRUN_OK);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias);
    qr_model_config_free(&c);
}

/* Sarvam 105B by its own keys of before transformers had it. */
static void test_sarvam_mla(void) {
    PARSE("{'model_type':'sarvam_mla','num_hidden_layers':2,'num_experts':64,'num_shared_experts':2,'head_dim':576,"
          "'q_head_dim':192,'rope_scaling':{'type':'deepseek_yarn','factor':40,'mscale':1.0,'mscale_all_dim':1.0,"
          "'original_max_position_embeddings':4096}}");
    CHECK(c.experts.n_experts == 64 && c.experts.shared_intermediate_size == 4096 && c.experts.share_factor == 2.5);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.experts.normalizes);
    CHECK(c.head_dim == 192 && c.latent.query_rank == 0 && c.rope.type == QR_ROPE_YARN && c.rope.interleaved);
    qr_model_config_free(&c);
}

/* Sarvam 30B by its own keys, and what its own code would do otherwise. */
static void test_sarvam_moe(void) {
    PARSE("{'model_type':'sarvam_moe','architectures':['SarvamMoEForCausalLM'],'num_hidden_layers':2,'num_experts':64,"
          "'num_shared_experts':2,'use_qkv_bias':true,'use_bias':false,'score_function':'sigmoid','rope_theta':8e6,"
          "'moe_router_enable_expert_bias':true,'moe_shared_expert_intermediate_size':2048,'rope_scaling':null}");
    CHECK(c.experts.n_experts == 64 && c.experts.shared_intermediate_size == 2048 && c.experts.share_factor == 2.5);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.experts.has_choice_bias);
    CHECK(c.head_dim == 64 && c.rope.rotary_dim == 64 && c.rope.theta == 8e6 && !c.without_head_norms);
    CHECK(c.qkv_bias && !c.o_bias && c.norm_eps == 1e-6 && c.n_kv_heads == 4);
    qr_model_config_free(&c);
    check_refused("{'model_type':'sarvam_moe','score_function':'softmax'}", QRUN_ERROR_UNSUPPORTED,
                  "\"score_function\" is not supported");
    check_refused("{'model_type':'sarvam_moe','moe_router_enable_expert_bias':false}", QRUN_ERROR_UNSUPPORTED,
                  "\"moe_router_enable_expert_bias\" is not supported");
    check_refused("{'model_type':'sarvam_moe','moe_shared_expert_intermediate_size':2048}", QRUN_ERROR_UNSUPPORTED,
                  "\"moe_shared_expert_intermediate_size\" is not supported");
    check_refused("{'model_type':'sarvam_moe','use_bias':true}", QRUN_ERROR_UNSUPPORTED, "\"use_bias\"");
}

/* As Pythia is published, and GPT-NeoX's other forms. */
static void test_gpt_neox(void) {
    PARSE(
        "{'architectures':['GPTNeoXForCausalLM'],'model_type':'gpt_neox','hidden_act':'gelu','hidden_size':512,"
        "'intermediate_size':2048,'layer_norm_eps':0.25,'num_attention_heads':8,'num_hidden_layers':6,'rotary_pct':0.5,"
        "'rotary_emb_base':20000,'tie_word_embeddings':false,'use_parallel_residual':true,'vocab_size':50304}");
    CHECK(c.head_dim == 64 && c.n_kv_heads == 8 && c.rope.rotary_dim == 32 && c.rope.theta == 20000);
    CHECK(!c.blocks_in_turn && c.qkv_bias && c.o_bias && c.mlp_bias && c.norm_eps == 0.25);
    CHECK(c.activation == QR_ACTIVATION_GELU_ERF && !c.tie_word_embeddings);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'gpt_neox','num_hidden_layers':1,'use_parallel_residual':false,'attention_bias':false,"
                "'rope_parameters':{'rope_theta':500,'partial_rotary_factor':1.0}}",
                &c, NULL) == QRUN_OK);
    CHECK(c.blocks_in_turn && !c.qkv_bias && !c.o_bias && c.mlp_bias && c.rope.theta == 500 && c.rope.rotary_dim == 96);
    qr_model_config_free(&c);
    check_refused("{'model_type':'gpt_neox','num_key_value_heads':8}", QRUN_ERROR_UNSUPPORTED,
                  "\"num_key_value_heads\"");
    check_refused("{'model_type':'gpt_neox','head_dim':64}", QRUN_ERROR_UNSUPPORTED, "\"head_dim\" is not supported");
}

/* OLMo 1, whose norms have one epsilon. */
static void test_olmo(void) {
    PARSE("{'model_type':'olmo','architectures':['OlmoForCausalLM'],'num_hidden_layers':1,'clip_qkv':null,"
          "'rms_norm_eps':0.25,'rope_scaling':null,'rope_theta':500.0,'num_key_value_heads':8}");
    CHECK(c.norms_layers && c.norm_eps == 1e-5 && c.rope.theta == 500 && c.n_kv_heads == 8 && !c.qkv_bias);
    CHECK(c.eos.ids[0] == 50279 && c.pad_token_id == 1 && !c.tie_word_embeddings);
    qr_model_config_free(&c);
    check_refused("{'model_type':'olmo','clip_qkv':8.0}", QRUN_ERROR_UNSUPPORTED, "\"clip_qkv\" is not supported");
}

/* As EXAONE 3.5 is published. */
static void test_exaone(void) {
    PARSE(
        "{'architectures':['ExaoneForCausalLM'],'model_type':'exaone','activation_function':'silu','num_layers':2,"
        "'layer_norm_epsilon':0.25,'num_key_value_heads':8,'rope_theta':1000000,'rope_scaling':{'factor':8.0,"
        "'high_freq_factor':4.0,'low_freq_factor':1.0,'original_max_position_embeddings':8192,'rope_type':'llama3'}}");
    CHECK(c.n_layers == 2 && c.norm_eps == 0.25 && c.n_kv_heads == 8 && c.activation == QR_ACTIVATION_SILU);
    CHECK(c.rope.theta == 1e6 && c.rope.type == QR_ROPE_LLAMA3 && c.head_dim == 128 && !c.qkv_bias && !c.mlp_bias);
    qr_model_config_free(&c);
    check_refused("{'model_type':'exaone','activation_function':'gelu'}", QRUN_ERROR_UNSUPPORTED,
                  "activation \"gelu\" is not supported");
}

static void test_flex_olmo(void) {
    PARSE("{'model_type':'flex_olmo','num_hidden_layers':1,'attention_bias':true}");
    CHECK(c.experts.n_experts == 7 && c.experts.n_per_token == 5 && !c.experts.normalizes && c.rope.theta == 5e5);
    CHECK(c.experts.intermediate_size == 11008 && c.qkv_bias && c.o_bias && c.experts.layer_has_experts[0]);
    qr_model_config_free(&c);
}

/* As Trinity is published; and what its own code would do otherwise. */
static void test_afmoe(void) {
    PARSE("{'model_type':'afmoe','num_hidden_layers':4,'num_dense_layers':2,'global_attn_every_n_layers':2,"
          "'sliding_window':2048,'mup_enabled':true,'route_scale':2.826,'route_norm':true,'score_func':'sigmoid',"
          "'n_group':1,'topk_group':1,'num_expert_groups':1,'num_shared_experts':1,'hidden_size':1024}");
    for (int64_t l = 0; l < 4; l++) {
        CHECK(c.layer_slides[l] == (l % 2 == 0) && c.layer_rotates[l] == c.layer_slides[l]);
        CHECK(c.experts.layer_has_experts[l] == (l >= 2));
    }
    CHECK(c.embedding_multiplier == 32 && c.experts.share_factor == 2.826 && c.attn_gate_apart && !c.attn_gate_by_head);
    CHECK(c.experts.shared_intermediate_size == 1408 && c.experts.has_choice_bias && c.experts.normalizes);
    qr_model_config_free(&c);
    check_refused("{'model_type':'afmoe','route_norm':false}", QRUN_ERROR_UNSUPPORTED, "the router's \"route_norm\"");
    check_refused("{'model_type':'afmoe','score_func':'softmax'}", QRUN_ERROR_UNSUPPORTED, "\"score_func\"");
    check_refused("{'model_type':'afmoe','num_expert_groups':2}", QRUN_ERROR_UNSUPPORTED, "\"num_expert_groups\"");
    check_refused("{'model_type':'afmoe','sliding_window':null}", QRUN_ERROR_UNSUPPORTED,
                  "afmoe model without \"sliding_window\"");
}

/* The text model of Apertus 1.5, whose head has no rows for the tokens of images and sounds. */
static void test_apertus1p5(void) {
#define SCALING \
    "'rope_parameters':{'rope_type':'llama3','rope_theta':1.2e7,'factor':8,'low_freq_factor':1,'high_freq_factor':4}"
    PARSE("{'model_type':'apertus1p5','architectures':['Apertus1p5ForConditionalGeneration'],'text_config':{"
          "'model_type':'apertus1p5_text','vocab_size':266752,'output_vocab_size':131272," SCALING "},"
          "'vision_config':{},'audio_config':{},'tie_word_embeddings':false}");
    CHECK(c.family == QR_FAMILY_APERTUS && c.is_multimodal && c.activation == QR_ACTIVATION_XIELU);
    CHECK(c.vocab_size == 131272 && c.embedding_rows == 266752 && c.rope.theta == 1.2e7);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'apertus1p5_text','vocab_size':900,'output_vocab_size':null," SCALING "}", &c, NULL) ==
          QRUN_OK);
    CHECK(c.vocab_size == 900 && c.embedding_rows == 900 && !c.is_multimodal);
    qr_model_config_free(&c);
    check_refused("{'model_type':'apertus1p5_text','vocab_size':900,'output_vocab_size':901," SCALING "}",
                  QRUN_ERROR_INPUT, "\"output_vocab_size\"");
    check_refused(
        "{'model_type':'apertus1p5_text','vocab_size':900,'output_vocab_size':800,'tie_word_embeddings':true," SCALING
        "}",
        QRUN_ERROR_INPUT, "\"output_vocab_size\" is 800");
#undef SCALING
}

/* Laguna as it is published, and what no published model has. */
static void test_laguna(void) {
    PARSE(
        "{'model_type':'laguna','num_hidden_layers':4,'num_attention_heads':48,'num_key_value_heads':8,'head_dim':128,"
        "'num_attention_heads_per_layer':[48,64,64,48],'gating':'per-head','gating_types':['per_head','per_head',"
        "'per_head','per_head'],'layer_types':['full_attention','sliding_attention','sliding_attention',"
        "'full_attention'],'mlp_layer_types':['dense','sparse','sparse','sparse'],'mlp_only_layers':[0],"
        "'moe_routed_scaling_factor':2.5,'sliding_window':512,'swa_attention_sink_enabled':false,"
        "'moe_router_logit_softcapping':0.0,'norm_topk_prob':true,'partial_rotary_factor':0.5,'rope_parameters':{"
        "'original_max_position_embeddings':4096,'full_attention':{'rope_type':'yarn','rope_theta':5e5,'factor':32,"
        "'original_max_position_embeddings':4096,'beta_fast':64,'beta_slow':1,'partial_rotary_factor':0.5},"
        "'sliding_attention':{'rope_type':'default','rope_theta':1e4,'partial_rotary_factor':1.0}}}");
    CHECK(c.n_heads == 64 && c.attention.full.n_heads == 48 && c.attention.sliding.n_heads == 64 && c.n_kv_heads == 8);
    CHECK(c.attn_gate_apart && c.attn_gate_by_head && c.attn_gate_by_softplus && c.sliding_window == 512);
    CHECK(!c.layer_slides[0] && c.layer_slides[1] && c.layer_slides[2] && !c.layer_slides[3]);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.experts.n_experts == 256);
    CHECK(c.experts.share_factor == 2.5 && c.experts.has_choice_bias && c.experts.has_sigmoid_router);
    CHECK(c.experts.normalizes && c.experts.sum_eps == 0 && c.experts.shared_intermediate_size == 512);
    CHECK(c.rope.rotary_dim == 64 && c.rope_local.rotary_dim == 128 && c.rope.type == QR_ROPE_YARN);
    CHECK(c.rope.theta == 5e5 && c.rope_local.theta == 1e4 && c.rope.factor == 32 && c.rope.beta_fast == 64);
    qr_model_config_free(&c);
#define LAGUNA "{'model_type':'laguna','num_hidden_layers':2,'rope_parameters':{'full_attention':{}}"
    CHECK(parse(LAGUNA ",'gating':'per-element','num_attention_heads_per_layer':[16,16]}", &c, NULL) == QRUN_OK);
    CHECK(c.n_heads == 16 && c.attention.sliding.n_heads == 16 && !c.attn_gate_by_head && c.attn_gate_by_softplus);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.rope.rotary_dim == 128);
    qr_model_config_free(&c);
    static const char *const unsupported[][2] = {
        {LAGUNA ",'gating':false}", "\"gating\" should be"},
        {LAGUNA ",'gating':'per-layer'}", "\"gating\" should be"},
        {LAGUNA ",'gating_types':['per_head','per_element']}", "the same in all layers"},
        {LAGUNA ",'num_attention_heads_per_layer':[16,24]}", "layer 1 has other heads"},
        {LAGUNA ",'moe_apply_router_weight_on_input':true}", "\"moe_apply_router_weight_on_input\""},
        {LAGUNA ",'swa_attention_sink_enabled':true}", "\"swa_attention_sink_enabled\""},
        {LAGUNA ",'moe_router_logit_softcapping':30.0}", "\"moe_router_logit_softcapping\""},
        {LAGUNA ",'norm_topk_prob':false}", "\"norm_topk_prob\": false"},
        {LAGUNA ",'moe_router_use_sigmoid':false}", "\"moe_router_use_sigmoid\": false"}};
    for (size_t i = 0; i < QR_COUNT_OF(unsupported); i++) {
        check_refused(unsupported[i][0], QRUN_ERROR_UNSUPPORTED, unsupported[i][1]);
    }
    check_refused(LAGUNA ",'num_attention_heads_per_layer':[48]}", QRUN_ERROR_INPUT, "for each of 2 layers");
    check_refused(LAGUNA ",'num_attention_heads_per_layer':[48,48,48]}", QRUN_ERROR_INPUT, "for each of 2 layers");
    check_refused(LAGUNA ",'num_attention_heads_per_layer':[12,12]}", QRUN_ERROR_INPUT, "a multiple of 8");
    check_refused("{'model_type':'laguna'}", QRUN_ERROR_INPUT, "needs \"rope_parameters\"");
#undef LAGUNA
}

static void test_axk1(void) {
    PARSE("{'model_type':'axk1','num_hidden_layers':3,'first_k_dense_replace':1,'moe_layer_freq':1}");
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.experts.n_groups == 8);
    CHECK(c.latent.query_rank == 1536 && c.experts.n_experts == 192 && c.experts.share_factor == 2.5);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'axk1','num_hidden_layers':2,'mlp_layer_types':['sparse','dense']}", &c, NULL) ==
          QRUN_OK);
    CHECK(c.experts.layer_has_experts[0] && !c.experts.layer_has_experts[1]);
    qr_model_config_free(&c);
}

/* Sizes that follow from others, and what is as published: no positions, and beta that is doubled. */
static void test_olmo_hybrid(void) {
    PARSE("{'model_type':'olmo_hybrid','num_hidden_layers':8,'rope_parameters':{'rope_theta':null,"
          "'rope_type':'default'},'linear_allow_neg_eigval':true}");
    CHECK(!c.has_rope && !c.norm_adds_one && !c.attn_output_gate && c.n_kv_heads == 30 && c.head_dim == 128);
    CHECK(c.recurrent.doubles_beta && c.recurrent.norm_eps == 1e-5 && c.norm_eps == 1e-6);
    CHECK(c.recurrent.n_key_heads == 30 && c.recurrent.n_value_heads == 30);
    CHECK(c.recurrent.key_dim == 96 && c.recurrent.value_dim == 192 && c.recurrent.conv_kernel == 4);
    for (int64_t l = 0; l < 8; l++) { CHECK(c.recurrent.layers[l] == (l % 4 != 3)); }
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'olmo_hybrid','num_hidden_layers':2,'hidden_size':64,'num_attention_heads':4,"
                "'linear_num_key_heads':2,'linear_num_value_heads':6,'linear_value_head_dim':20,"
                "'linear_allow_neg_eigval':false,'full_attention_interval':1,'rope_theta':5e5}",
                &c, NULL) == QRUN_OK);
    CHECK(c.has_rope && c.rope.theta == 5e5 && !c.recurrent.doubles_beta && c.recurrent.n_value_heads == 6);
    CHECK(c.recurrent.key_dim == 24 && c.recurrent.value_dim == 20 && c.head_dim == 16);
    CHECK(c.recurrent.layers[0] && !c.recurrent.layers[1]);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'olmo_hybrid','rope_theta':null}", &c, NULL) == QRUN_OK && !c.has_rope);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'olmo_hybrid'}", &c, NULL) == QRUN_OK && c.has_rope && c.rope.theta == 1e4);
    qr_model_config_free(&c);
    check_refused("{'model_type':'olmo_hybrid','num_hidden_layers':2,'layer_types':['linear_attention',"
                  "'linear_attention']}",
                  QRUN_ERROR_UNSUPPORTED, "no layer is \"full_attention\"");
    check_refused("{'model_type':'olmo_hybrid','num_hidden_layers':2,'layer_types':['linear_attention',"
                  "'sliding_attention']}",
                  QRUN_ERROR_UNSUPPORTED, "layers of type \"sliding_attention\"");
}

#define KIMI "{'model_type':'kimi_linear','num_hidden_layers':5"
/* With the keys of the published folder, and with transformers'. */
static void test_kimi_linear(void) {
    PARSE(KIMI
          ",'head_dim':72,'linear_attn_config':{'full_attn_layers':[4,5],'kda_layers':[1,2,3],'head_dim':64,"
          "'num_heads':16,'short_conv_kernel_size':3},'model_max_length':4096,'num_experts':32,"
          "'num_experts_per_token':6,'num_shared_experts':2,'moe_renormalize':false,'num_expert_group':4,"
          "'topk_group':2,'first_k_dense_replace':2,'moe_layer_freq':1,'moe_router_activation_func':'sigmoid',"
          "'mla_use_nope':true,'use_grouped_topk':true,'q_lora_rank':null,'rope_theta':10000.0,'rope_scaling':null}");
    CHECK(!c.has_rope && c.head_dim == 192 && c.n_kv_heads == 32 && c.max_position_embeddings == 4096);
    CHECK(c.latent.kv_rank == 512 && c.latent.query_rank == 0 && c.latent.rotated_dim == 64);
    CHECK(c.recurrent.n_key_heads == 16 && c.recurrent.n_value_heads == 16 && c.recurrent.key_dim == 64);
    CHECK(c.recurrent.value_dim == 64 && c.recurrent.gate_rank == 64 && c.recurrent.conv_kernel == 3);
    CHECK(c.recurrent.decays_channels && !c.recurrent.doubles_beta);
    for (int64_t l = 0; l < 5; l++) {
        CHECK(c.recurrent.layers[l] == (l < 3) && c.experts.layer_has_experts[l] == (l >= 2));
    }
    CHECK(c.experts.n_experts == 32 && c.experts.n_per_token == 6 && !c.experts.normalizes);
    CHECK(c.experts.n_groups == 4 && c.experts.n_top_groups == 2 && c.experts.shared_intermediate_size == 2048);
    CHECK(c.experts.has_sigmoid_router && c.experts.share_factor == 2.446);
    qr_model_config_free(&c);
    CHECK(parse(KIMI
                ",'linear_head_dim':20,'linear_num_heads':6,'linear_conv_kernel_dim':2,'num_local_experts':8,"
                "'num_experts_per_tok':3,'norm_topk_prob':false,'n_group':2,'n_shared_experts':3,"
                "'max_position_embeddings':99,'q_lora_rank':30,'mlp_layer_types':['sparse','dense','sparse','sparse',"
                "'dense']}",
                &c, NULL) == QRUN_OK);
    CHECK(c.recurrent.key_dim == 20 && c.recurrent.n_value_heads == 6 && c.recurrent.conv_kernel == 2);
    CHECK(c.experts.n_experts == 8 && c.experts.n_per_token == 3 && !c.experts.normalizes && c.experts.n_groups == 2);
    CHECK(c.experts.shared_intermediate_size == 3072 && c.max_position_embeddings == 99 && c.latent.query_rank == 30);
    CHECK(c.experts.layer_has_experts[0] && !c.experts.layer_has_experts[4]);
    for (int64_t l = 0; l < 5; l++) { CHECK(c.recurrent.layers[l] == (l != 4)); }
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'kimi_linear'}", &c, NULL) == QRUN_OK && c.experts.normalizes);
    CHECK(c.recurrent.n_value_heads == 32 && c.recurrent.key_dim == 128 && c.experts.n_experts == 256);
    qr_model_config_free(&c);
    check_refused(KIMI ",'linear_attn_config':{'full_attn_layers':[5],'kda_layers':[1,2,3]}}", QRUN_ERROR_INPUT,
                  "layer 4 is in neither \"full_attn_layers\" nor \"kda_layers\"");
    check_refused(KIMI ",'linear_attn_config':{'full_attn_layers':[5,3],'kda_layers':[1,2,3,4]}}", QRUN_ERROR_INPUT,
                  "\"kda_layers\" should be a list of layers, each from 1 to 5 and in no other list");
    check_refused(KIMI ",'linear_attn_config':{'full_attn_layers':[0],'kda_layers':[1]}}", QRUN_ERROR_INPUT,
                  "\"full_attn_layers\" should be a list of layers");
    check_refused(KIMI ",'linear_attn_config':{'full_attn_layers':[],'kda_layers':[1,2,3,4,5]}}",
                  QRUN_ERROR_UNSUPPORTED, "no layer is \"full_attention\"");
    check_refused(KIMI ",'mla_use_nope':false}", QRUN_ERROR_UNSUPPORTED, "\"mla_use_nope\": false is not supported");
    check_refused(KIMI ",'num_expert_group':2,'use_grouped_topk':false}", QRUN_ERROR_UNSUPPORTED,
                  "\"use_grouped_topk\": false is not supported");
    check_refused(KIMI ",'moe_router_activation_func':'softmax'}", QRUN_ERROR_UNSUPPORTED,
                  "\"moe_router_activation_func\" is not supported");
    check_refused(KIMI ",'moe_layer_freq':2}", QRUN_ERROR_UNSUPPORTED, "moe_layer_freq");
}

/* With the keys of the published folder, and with transformers'. */
static void test_mimo_v2_flash(void) {
    PARSE("{'model_type':'mimo_v2_flash','num_hidden_layers':8,'hidden_size':4096,'num_attention_heads':64,"
          "'num_key_value_heads':4,'head_dim':192,'v_head_dim':128,'layernorm_epsilon':2e-5,'rope_theta':5000000,"
          "'swa_rope_theta':20000,'partial_rotary_factor':0.334,'sliding_window':128,'sliding_window_size':128,"
          "'hybrid_layer_pattern':[0,1,1,0,1,1,1,0],'moe_layer_freq':[0,1,1,1,0,1,1,1],'n_shared_experts':null,"
          "'routed_scaling_factor':null,'attention_value_scale':0.5,'swa_num_key_value_heads':8,'swa_head_dim':192,"
          "'swa_v_head_dim':128,'swa_num_attention_heads':64,'add_swa_attention_sink_bias':true,"
          "'add_full_attention_sink_bias':false,'scoring_func':'sigmoid','topk_method':'noaux_tc'}");
    CHECK(c.head_dim == 192 && c.value_dim == 128 && c.sliding_window == 129 && c.norm_eps == 2e-5);
    CHECK(c.attention.full.n_kv_heads == 4 && c.attention.sliding.n_kv_heads == 8 && c.sinks_in_windows);
    CHECK(c.rope.theta == 5e6 && c.rope_local.theta == 2e4);
    CHECK(c.rope.rotary_dim == 64 && c.rope_local.rotary_dim == 64);
    CHECK(!c.layer_slides[0] && c.layer_slides[2] && !c.layer_slides[3] && !c.layer_slides[7]);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[3] && !c.experts.layer_has_experts[4]);
    CHECK(c.experts.share_factor == 1 && c.attention_out_multiplier == 0.5 && c.experts.has_choice_bias);
    CHECK(!c.qkv_bias && !c.o_bias && c.experts.shared_intermediate_size == 0);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'mimo_v2_flash','num_hidden_layers':7,'attention_value_scale':null,'rope_parameters':"
                "{'full_attention':{'rope_type':'default','rope_theta':3e6,'partial_rotary_factor':0.5},"
                "'sliding_attention':{'rope_type':'default','rope_theta':7000}}}",
                &c, NULL) == QRUN_OK);
    CHECK(c.rope.theta == 3e6 && c.rope_local.theta == 7e3 && c.attention_out_multiplier == 1);
    CHECK(c.rope.rotary_dim == 96 && c.rope_local.rotary_dim == 64 && c.sliding_window == 129);
    for (int64_t l = 0; l < 7; l++) { CHECK(c.layer_slides[l] == (l != 0 && l != 5)); }
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && c.attention.sliding.n_kv_heads == 8);
    qr_model_config_free(&c);
    check_refused("{'model_type':'mimo_v2_flash','v_head_dim':256}", QRUN_ERROR_UNSUPPORTED, "\"v_head_dim\" 256");
    check_refused("{'model_type':'mimo_v2_flash','swa_v_head_dim':192}", QRUN_ERROR_UNSUPPORTED, "\"swa_v_head_dim\"");
    check_refused("{'model_type':'mimo_v2_flash','swa_head_dim':128}", QRUN_ERROR_UNSUPPORTED, "\"swa_head_dim\"");
    check_refused("{'model_type':'mimo_v2_flash','swa_num_attention_heads':32}", QRUN_ERROR_UNSUPPORTED,
                  "\"swa_num_attention_heads\" of 32");
    check_refused("{'model_type':'mimo_v2_flash','add_full_attention_sink_bias':true}", QRUN_ERROR_UNSUPPORTED,
                  "\"add_full_attention_sink_bias\": true");
    check_refused("{'model_type':'mimo_v2_flash','add_swa_attention_sink_bias':false}", QRUN_ERROR_UNSUPPORTED,
                  "\"add_swa_attention_sink_bias\": false");
    check_refused("{'model_type':'mimo_v2_flash','n_shared_experts':1}", QRUN_ERROR_UNSUPPORTED,
                  "\"n_shared_experts\"");
    check_refused("{'model_type':'mimo_v2_flash','num_hidden_layers':2,'hybrid_layer_pattern':[0]}", QRUN_ERROR_INPUT,
                  "\"hybrid_layer_pattern\" should be a list of 0 or 1 for each of 2 layers");
    check_refused("{'model_type':'mimo_v2_flash','num_hidden_layers':2,'moe_layer_freq':[0,2]}", QRUN_ERROR_INPUT,
                  "\"moe_layer_freq\" should be a list of 0 or 1");
    check_refused("{'model_type':'mimo_v2_flash','swa_num_key_value_heads':7}", QRUN_ERROR_INPUT,
                  "7 key/value heads of windows");
    check_refused("{'model_type':'mimo_v2'}", QRUN_ERROR_UNSUPPORTED, "the nearest that works is MiMo-V2-Flash");
}

static void test_kolibri1(void) {
    PARSE("{'model_type':'kolibri1','num_hidden_layers':6,'norm_topk_prob':true,'shared_expert_intermediate_size':64}");
    for (int64_t l = 0; l < 6; l++) {
        CHECK(c.layer_slides[l] == (l != 4) && c.layer_rotates[l] == c.layer_slides[l]);
        CHECK(c.experts.layer_has_experts[l]);
    }
    CHECK(c.sliding_window == 513 && c.experts.chooses_by_logits && c.experts.has_sigmoid_router);
    CHECK(c.experts.has_choice_bias && c.experts.normalizes && c.experts.shared_intermediate_size == 64);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'kolibri1','num_hidden_layers':2,'layer_types':['full_attention','full_attention']}", &c,
                NULL) == QRUN_OK);
    CHECK(c.sliding_window == 0 && !c.layer_rotates[0] && !c.experts.normalizes);
    qr_model_config_free(&c);
}

/* As Minitron is published. */
static void test_nemotron(void) {
    PARSE("{'model_type':'nemotron','num_hidden_layers':1,'hidden_size':3072,'num_attention_heads':24,'head_dim':128,"
          "'num_key_value_heads':8,'norm_eps':0.25,'partial_rotary_factor':0.5,'hidden_act':'relu2','mlp_bias':false}");
    CHECK(c.norm_adds_one && c.norm_eps == 0.25 && c.rope.rotary_dim == 64 && c.activation == QR_ACTIVATION_RELU2);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.eos.ids[0] == 3 && !c.tie_word_embeddings);
    qr_model_config_free(&c);
}

static void test_nanochat(void) {
    PARSE(
        "{'model_type':'nanochat','num_hidden_layers':1,'rope_parameters':{'rope_type':'default','rope_theta':10000}}");
    CHECK(c.norms_layers && c.norms_heads && c.norms_embeddings && c.rope.reversed && c.final_logit_softcapping == 15);
    CHECK(c.head_dim == 128 && c.n_kv_heads == 6 && !c.qkv_bias && c.activation == QR_ACTIVATION_RELU2);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'nanochat','final_logit_softcapping':null}", &c, NULL) == QRUN_OK);
    CHECK(c.final_logit_softcapping == 0);
    qr_model_config_free(&c);
}

/* Layers that are dense come first, with windows of their own; and both routers. */
static void test_cohere2_moe(void) {
    PARSE("{'model_type':'cohere2_moe','num_hidden_layers':6,'first_k_dense_replace':2,'intermediate_size':64,"
          "'prefix_dense_intermediate_size':128,'expert_selection_fn':'sigmoid','num_shared_experts':2,"
          "'shared_expert_combination_strategy':'sum','sliding_window_pattern':4}");
    static const bool slides[6] = {false, false, true, true, true, false}, rotates[6] = {true, true, true, true, true};
    for (int64_t l = 0; l < 6; l++) {
        CHECK(c.layer_slides[l] == slides[l] && c.layer_rotates[l] == rotates[l]);
        CHECK(c.experts.layer_has_experts[l] == (l >= 2));
    }
    CHECK(c.intermediate_size == 128 && c.experts.intermediate_size == 64 && c.experts.shared_intermediate_size == 128);
    CHECK(c.experts.has_sigmoid_router && c.experts.chooses_by_logits && !c.experts.has_choice_bias);
    CHECK(!c.has_rms_norms && c.logits_scaling == 16);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'cohere2_moe','num_hidden_layers':4,'rms_norm_eps':0.25,'intermediate_size':64,"
                "'first_k_dense_replace':1,'prefix_dense_sliding_window_pattern':2,'norm_topk_prob':false}",
                &c, NULL) == QRUN_OK);
    CHECK(c.has_rms_norms && c.norm_eps == 0.25 && c.layer_slides[0] && c.layer_rotates[0] && c.experts.normalizes);
    CHECK(c.intermediate_size == 64 && c.experts.shared_intermediate_size == 0 && !c.experts.has_sigmoid_router);
    qr_model_config_free(&c);
    check_refused("{'model_type':'cohere2_moe','num_shared_experts':1}", QRUN_ERROR_UNSUPPORTED,
                  "\"shared_expert_combination_strategy\" other than \"sum\"");
    check_refused("{'model_type':'cohere2_moe','expert_selection_fn':'tanh'}", QRUN_ERROR_UNSUPPORTED,
                  "the router's \"expert_selection_fn\"");
}

static void test_internlm3(void) {
    PARSE("{'model_type':'internlm3','num_hidden_layers':1,'qkv_bias':true,'bias':true}");
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'internlm3','qkv_bias':false,'bias':false}", &c, NULL) == QRUN_OK);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.n_kv_heads == 2);
    qr_model_config_free(&c);
    check_refused("{'model_type':'internlm3','qkv_bias':true}", QRUN_ERROR_UNSUPPORTED,
                  "\"qkv_bias\" and \"bias\" differ");
}

static void test_hyperclovax(void) {
    PARSE("{'model_type':'hyperclovax','num_hidden_layers':1,'logits_scaling':0.25,'attention_multiplier':0.5}");
    CHECK(c.logits_scaling == 4 && c.attention_multiplier == 0.5 && !c.without_post_norms);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'hyperclovax','use_post_norm':false}", &c, NULL) == QRUN_OK);
    CHECK(c.attention_multiplier == 0 && c.query_pre_attn_scalar == 128 && c.without_post_norms &&
          c.logits_scaling == 1);
    qr_model_config_free(&c);
}

/* Every fourth layer from the first has no window; a list of bases says which rotate, and by which. */
static void test_windows_from_the_first(void) {
    PARSE("{'model_type':'granite_swa','num_hidden_layers':6,'layer_rope_theta':[0,5e4,5e4,5e4,0,5e4]}");
    for (int64_t l = 0; l < 6; l++) {
        CHECK(c.layer_slides[l] == (l % 4 != 0) && c.layer_rotates[l] == c.layer_slides[l]);
    }
    CHECK(c.rope.theta == 5e4 && c.attn_sinks && c.sliding_window == 128 && c.attention_multiplier == 1);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'granitemoe_swa','num_hidden_layers':2}", &c, NULL) == QRUN_OK);
    CHECK(c.layer_rotates[0] && c.layer_rotates[1] && c.attn_sinks && c.experts.n_experts == 8);
    CHECK(!c.layer_slides[0] && c.layer_slides[1] && c.rope.theta == 1e4);
    qr_model_config_free(&c);
    check_refused("{'model_type':'granite_swa','num_hidden_layers':2,'layer_rope_theta':[1e4,2e4]}",
                  QRUN_ERROR_UNSUPPORTED, "layers that rotate by several");
    check_refused("{'model_type':'cwm'}", QRUN_ERROR_INPUT, "a cwm model needs \"rope_scaling\"");
    CHECK(parse("{'model_type':'cwm','num_hidden_layers':5,'rope_scaling':{'rope_type':'llama3','factor':16.0,"
                "'low_freq_factor':1.0,'high_freq_factor':4.0,'original_max_position_embeddings':8192}}",
                &c, NULL) == QRUN_OK);
    CHECK(!c.layer_slides[0] && c.layer_slides[3] && !c.layer_slides[4] && c.eos.n == 3 && c.rope.theta == 1e6);
    qr_model_config_free(&c);
}

static void test_solar_open(void) {
    PARSE("{'model_type':'solar_open','num_hidden_layers':2,'n_routed_experts':128,'n_shared_experts':1}");
    CHECK(c.experts.has_sigmoid_router && c.experts.has_choice_bias && c.experts.layer_has_experts[0]);
    CHECK(c.experts.shared_intermediate_size == 1280 && c.rope.rotary_dim == 128 && c.n_layers_ahead == 0);
    qr_model_config_free(&c);
}

/* As Mistral Small 4 is; and what would scale a part of a head that should not be. */
static void test_mistral4(void) {
    static const char rest[] = "'factor':128.0,'original_max_position_embeddings':8192,'beta_fast':32.0,"
                               "'beta_slow':1.0,'mscale_all_dim':1.0,'llama_4_scaling_beta':0.1,'rope_theta':1e4";
    char text[512];
    PARSE("{'model_type':'mistral4','num_hidden_layers':2,'rope_parameters':{'rope_type':'yarn','factor':128.0,"
          "'original_max_position_embeddings':8192,'mscale':1.0,'mscale_all_dim':1.0,'llama_4_scaling_beta':0.1,"
          "'partial_rotary_factor':0.5}}");
    CHECK(c.latent.kv_rank == 256 && c.latent.query_rank == 1024 && c.head_dim == 128 && c.latent.value_dim == 128);
    CHECK(c.attn_temperature_beta == 0.1 && c.attn_temperature_tokens == 8192 && c.rope.rotary_dim == 64);
    CHECK(!c.experts.has_sigmoid_router && c.experts.normalizes && c.experts.n_per_token == 4);
    CHECK(c.experts.layer_has_experts[0] && c.experts.shared_intermediate_size == 2048);
    qr_model_config_free(&c);
    snprintf(text, sizeof text, "{'model_type':'mistral4','rope_parameters':{'rope_type':'yarn','mscale':0.5,%s}}",
             rest);
    check_refused(text, QRUN_ERROR_UNSUPPORTED, "\"mscale\" as \"mscale_all_dim\"");
    snprintf(text, sizeof text,
             "{'model_type':'mistral4','rope_interleave':false,'rope_parameters':{'rope_type':'yarn','mscale':1.0,%s}}",
             rest);
    check_refused(text, QRUN_ERROR_UNSUPPORTED, "needs \"rope_interleave\"");
    check_refused("{'model_type':'mistral4','rope_parameters':{'rope_type':'default'}}", QRUN_ERROR_INPUT,
                  "of a mistral4 model need \"llama_4_scaling_beta\"");
    check_refused("{'model_type':'mistral4','n_group':2}", QRUN_ERROR_UNSUPPORTED, "the router's \"n_group\"");
}

/* As Hunyuan-A13B is published: lists of what all layers have alike. */
static void test_hunyuan(void) {
    PARSE("{'model_type':'hunyuan_v1_moe','num_hidden_layers':2,'hidden_size':256,'num_attention_heads':2,"
          "'head_dim':128,'num_experts':64,'moe_topk':[8,8],'intermediate_size':96,'moe_intermediate_size':[96,96],"
          "'num_shared_expert':[1,1],'rope_scaling':{'type':'dynamic','alpha':1000.0,'factor':1.0}}");
    CHECK(c.experts.n_experts == 64 && c.experts.n_per_token == 8 && c.experts.normalizes);
    CHECK(c.experts.intermediate_size == 96 && c.experts.shared_intermediate_size == 96);
    CHECK(c.rope.type == QR_ROPE_DEFAULT && fabs(c.rope.theta / (1e4 * pow(1000, 128.0 / 126.0)) - 1) < 1e-12);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'hunyuan_v1_dense','num_hidden_layers':1,'rope_scaling':{'type':'dynamic',"
                "'factor':2.0}}",
                &c, NULL) == QRUN_OK);
    CHECK(c.rope.type == QR_ROPE_DYNAMIC && c.rope.theta == 1e4);
    qr_model_config_free(&c);
    check_refused("{'model_type':'hunyuan_v1_moe','num_experts':8,'moe_topk':[2,3]}", QRUN_ERROR_UNSUPPORTED,
                  "\"moe_topk\" that differs between layers");
    check_refused("{'model_type':'hunyuan_v1_moe','num_experts':8,'moe_topk':['a']}", QRUN_ERROR_INPUT,
                  "\"moe_topk\" should be a number or a list");
}

static void test_granite_moe(void) {
    for (int i = 0; i < 2; i++) {
        PARSE(i == 0 ? "{'model_type':'granitemoe','num_hidden_layers':1,'intermediate_size':64}"
                     : "{'model_type':'granitemoeshared','num_hidden_layers':1,'intermediate_size':64,"
                       "'shared_intermediate_size':32}");
        CHECK(c.family == QR_FAMILY_GRANITE_MOE && c.experts.n_experts == 8 && c.experts.intermediate_size == 64);
        CHECK(c.attention_multiplier == 1 && c.experts.normalizes && c.has_rope && c.layer_rotates == NULL);
        CHECK_INT(c.experts.shared_intermediate_size, i == 0 ? 0 : 32);
        qr_model_config_free(&c);
    }
}

/* As LFM2-1.2B is published: layers by their numbers, and an MLP whose size follows from three keys. */
static void test_lfm2(void) {
    PARSE("{'model_type':'lfm2','architectures':['Lfm2ForCausalLM'],'hidden_size':2048,'num_hidden_layers':16,"
          "'num_attention_heads':32,'num_key_value_heads':8,'block_ff_dim':12288,'block_multiple_of':256,"
          "'block_ffn_dim_multiplier':1.0,'block_auto_adjust_ff_dim':true,'full_attn_idxs':[2,5,8,10,12,14],"
          "'conv_L_cache':3,'conv_bias':false,'norm_eps':1e-05,'rope_theta':1000000.0,'tie_embedding':true,"
          "'torch_dtype':'bfloat16'}");
    CHECK(c.intermediate_size == 8192 && c.head_dim == 64 && c.tie_word_embeddings && !c.attn_gate_apart);
    CHECK(c.recurrent.kind == QR_RECURRENT_CONV && c.recurrent.conv_kernel == 3 && c.rope.theta == 1e6);
    for (int64_t l = 0; l < 16; l++) { CHECK(c.recurrent.layers[l] == !(l == 2 || l == 5 || (l >= 8 && l % 2 == 0))); }
    qr_model_config_free(&c);
}

static void test_lfm2_moe(void) {
    PARSE("{'model_type':'lfm2_moe','num_hidden_layers':4,'num_dense_layers':1,'tie_embedding':false,"
          "'layer_types':['conv','full_attention','conv','conv'],'routed_scaling_factor':1.5,'use_expert_bias':false,"
          "'output_router_logits':true}");
    CHECK(c.experts.has_sigmoid_router && c.experts.normalizes && c.experts.share_factor == 1.5);
    CHECK(!c.experts.has_choice_bias && !c.experts.balances_load && c.experts.n_per_token == 4);
    CHECK(c.intermediate_size == 7168 && c.experts.intermediate_size == 1792 && !c.tie_word_embeddings);
    for (int64_t l = 0; l < 4; l++) {
        CHECK(c.experts.layer_has_experts[l] == (l > 0) && c.recurrent.layers[l] == (l != 1));
    }
    qr_model_config_free(&c);
}

/* Without lists: windows in layers 4, 8 …, and two ways to rotate. */
static void test_lfm3(void) {
    PARSE("{'model_type':'lfm3','num_hidden_layers':9}");
    CHECK(c.attn_gate_apart && c.attn_gate_by_head && !c.without_post_norms && c.sliding_window == 256);
    CHECK(c.recurrent.conv_kernel == 7 && c.rope.type == QR_ROPE_PROPORTIONAL && c.rope.n_rotated == 32);
    CHECK(c.rope.theta == 1e6 && c.rope_local.theta == 1e4 && c.rope_local.rotary_dim == 128);
    for (int64_t l = 0; l < 9; l++) {
        CHECK(c.layer_slides[l] == (l == 4 || l == 8) && c.recurrent.layers[l] == (l == 0 || l % 2 == 1));
    }
    qr_model_config_free(&c);
}

static void test_lfm_refusals(void) {
    check_refused("{'model_type':'lfm2','conv_bias':true}", QRUN_ERROR_UNSUPPORTED, "\"conv_bias\" is not supported");
    check_refused("{'model_type':'lfm2','conv_L_cache':9}", QRUN_ERROR_INPUT, "conv_L_cache");
    check_refused("{'model_type':'lfm2','full_attn_idxs':[0,'x']}", QRUN_ERROR_INPUT,
                  "\"full_attn_idxs\" should be a list of layers");
    check_refused("{'model_type':'lfm2','full_attn_idxs':[]}", QRUN_ERROR_UNSUPPORTED, "needs at least one");
    check_refused("{'model_type':'lfm2','num_hidden_layers':1,'layer_types':['sliding_attention']}",
                  QRUN_ERROR_UNSUPPORTED, "layers of type \"sliding_attention\" are not supported");
    check_refused("{'model_type':'lfm2','intermediate_size':1}", QRUN_ERROR_INPUT, "adjusted size of its MLPs is 0");
    check_refused("{'model_type':'lfm2_moe','num_hidden_layers':2,'full_attn_idxs':[0],'num_dense_layers':2}",
                  QRUN_ERROR_INPUT, "no layer is left for experts");
    check_refused("{'model_type':'lfm2_vl'}", QRUN_ERROR_INPUT, "a lfm2_vl model should have a \"text_config\"");
}

static void test_mistral3_wrapper(void) {
    PARSE("{'model_type':'mistral3','architectures':['Mistral3ForConditionalGeneration'],'dtype':'bfloat16',"
          "'text_config':{'model_type':'ministral3','num_hidden_layers':3,'rope_parameters':{'type':'yarn',"
          "'rope_theta':1000000.0,'factor':16.0,'original_max_position_embeddings':16384,"
          "'llama_4_scaling_beta':0.1}}}");
    CHECK(c.is_multimodal && c.family == QR_FAMILY_MINISTRAL3);
    CHECK(c.attn_temperature_beta == 0.1 && c.attn_temperature_tokens == 16384);
    CHECK(c.rope.type == QR_ROPE_YARN && c.rope.theta == 1e6 && c.sliding_window == 0);
    CHECK_INT(c.dtype, QR_DTYPE_BF16);
    qr_model_config_free(&c);
}

static void test_mistral3_wrapper_of_mistral(void) {
    PARSE("{'model_type':'mistral3','text_config':{'num_hidden_layers':3,'sliding_window':null}}");
    CHECK(c.is_multimodal && c.family == QR_FAMILY_MISTRAL && c.attn_temperature_tokens == 0);
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

static void test_expert_defaults(void) {
    static const struct {
        const char *text;
        int64_t n_experts, n_per_token, intermediate_size;
        bool normalizes;
        int64_t window;
    } rows[] = {
        {"{'model_type':'qwen3_moe'}", 128, 8, 768, false, 0},
        {"{'model_type':'qwen3_moe','norm_topk_prob':true,'use_sliding_window':true}", 128, 8, 768, true, 4096},
        {"{'model_type':'mixtral'}", 8, 2, 14336, true, 0},
        {"{'model_type':'mixtral','norm_topk_prob':false,'intermediate_size':100}", 8, 2, 100, true, 0},
        {"{'model_type':'mixtral','num_experts':4,'sliding_window':64}", 4, 2, 14336, true, 64},
        {"{'model_type':'qwen3_next'}", 512, 10, 512, true, 0},
        {"{'model_type':'qwen3_5_moe_text','num_experts':9}", 9, 8, 512, true, 0},
        {"{'model_type':'olmoe','clip_qkv':null,'num_local_experts':9}", 9, 8, 2048, false, 0},
        {"{'model_type':'qwen2_moe','num_hidden_layers':4}", 60, 4, 1408, false, 0},
        {"{'model_type':'llama','num_experts':4}", 0, 0, 0, false, 0},
    };
    for (size_t i = 0; i < QR_COUNT_OF(rows); i++) {
        PARSE(rows[i].text);
        CHECK_INT(c.experts.n_experts, rows[i].n_experts);
        CHECK_INT(c.experts.n_per_token, rows[i].n_per_token);
        CHECK_INT(c.experts.intermediate_size, rows[i].intermediate_size);
        CHECK(c.experts.normalizes == rows[i].normalizes);
        CHECK(!c.experts.balances_load);
        CHECK_INT(c.sliding_window, rows[i].window);
        for (int64_t l = 0; c.experts.layer_has_experts != NULL && l < c.n_layers; l++) {
            CHECK(c.experts.layer_has_experts[l]);
        }
        CHECK((c.experts.layer_has_experts != NULL) == (rows[i].n_experts > 0));
        qr_model_config_free(&c);
    }
}

/* Every third layer but the fifth (from 0), and a layer that is not there. */
static void test_layers_with_experts(void) {
    PARSE("{'model_type':'qwen3_moe','num_hidden_layers':7,'decoder_sparse_step':3,'mlp_only_layers':[5,40],"
          "'output_router_logits':true}");
    for (int64_t l = 0; l < 7; l++) { CHECK_INT(c.experts.layer_has_experts[l], l == 2); }
    CHECK(c.experts.balances_load);
    qr_model_config_free(&c);
}

static void test_packed_folders(void) {
    static const struct {
        const char *block;
        int64_t rows, cols;
    } rows[] = {{"", 128, 128}, {",'weight_block_size':[64,32]", 64, 32}, {",'weight_block_size':null", 0, 0}};
    for (size_t i = 0; i < QR_COUNT_OF(rows); i++) {
        char text[256];
        snprintf(text, sizeof text, "{'model_type':'qwen3','quantization_config':{'quant_method':'fp8'%s}}",
                 rows[i].block);
        PARSE(text);
        CHECK_INT(c.quantization.stored, QR_STORED_PACKED);
        CHECK(!qr_quantization_is_kept(&c.quantization));
        CHECK_INT(c.quantization.packing.kind, QR_PACKING_FP8);
        CHECK_INT(c.quantization.packing.block_rows, rows[i].rows);
        CHECK_INT(c.quantization.packing.block_cols, rows[i].cols);
        qr_model_config_free(&c);
    }
}

static void check_packing(const char *quantization, const qr_packing *expected) {
    char text[512];
    snprintf(text, sizeof text, "{'model_type':'llama','quantization_config':{%s}}", quantization);
    PARSE(text);
    const qr_packing *packing = &c.quantization.packing;
    CHECK_INT(c.quantization.stored, QR_STORED_PACKED);
    CHECK_INT(packing->kind, expected->kind);
    CHECK_INT(packing->bits, expected->bits);
    CHECK_INT(packing->block_rows, expected->block_rows);
    CHECK_INT(packing->block_cols, expected->block_cols);
    CHECK(packing->has_zeros == expected->has_zeros && packing->is_reordered == expected->is_reordered &&
          packing->zeros_less_one == expected->zeros_less_one);
    qr_model_config_free(&c);
}

#define COMPRESSED(format, weights)                                                                               \
    "'quant_method':'compressed-tensors','format':'" format "','config_groups':{'group_0':{'targets':['Linear']," \
    "'input_activations':null,'weights':{" weights "}}},'ignore':['lm_head']"

static void test_packed_integers(void) {
    static const struct {
        const char *text;
        qr_packing packing;
    } cases[] = {
        {"'quant_method':'gptq','bits':4,'group_size':128,'desc_act':false,'sym':true,'damp_percent':0.01",
         {.kind = QR_PACKING_GPTQ, .block_rows = 1, .block_cols = 128, .bits = 4, .zeros_less_one = true}},
        {"'quant_method':'gptq','bits':8,'group_size':-1,'desc_act':true,'checkpoint_format':'gptq_v2',"
         "'pack_dtype':'int32','dynamic':{'-:.*lm_head':{}}",
         {.kind = QR_PACKING_GPTQ, .block_rows = 1, .block_cols = 0, .bits = 8, .is_reordered = true}},
        {"'quant_method':'awq','bits':4,'group_size':64,'zero_point':true,'version':'gemm'",
         {.kind = QR_PACKING_AWQ, .block_rows = 1, .block_cols = 64, .bits = 4}},
        {COMPRESSED("pack-quantized",
                    "'num_bits':4,'type':'int','strategy':'group','group_size':32,'actorder':'group'"),
         {.kind = QR_PACKING_INT, .block_rows = 1, .block_cols = 32, .bits = 4, .is_reordered = true}},
        {COMPRESSED("pack-quantized", "'num_bits':8,'symmetric':false,'group_size':-1,'actorder':'weight'"),
         {.kind = QR_PACKING_INT, .block_rows = 1, .block_cols = 0, .bits = 8, .has_zeros = true}},
        {COMPRESSED("int-quantized", "'num_bits':8,'type':'int','strategy':'channel'"),
         {.kind = QR_PACKING_INT8, .block_rows = 1, .block_cols = 0, .bits = 8}},
        {COMPRESSED("naive-quantized", "'num_bits':8,'type':'float','strategy':'tensor'"),
         {.kind = QR_PACKING_FLOAT8, .block_rows = 0, .block_cols = 0, .bits = 8}},
        {COMPRESSED("float-quantized", "'num_bits':8,'type':'float','strategy':'block','block_structure':[128,64]"),
         {.kind = QR_PACKING_FLOAT8, .block_rows = 128, .block_cols = 64, .bits = 8}},
        {COMPRESSED("nvfp4-pack-quantized", "'num_bits':4,'type':'float','strategy':'tensor_group','group_size':16"),
         {.kind = QR_PACKING_NVFP4, .block_rows = 1, .block_cols = 16, .bits = 4}},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) { check_packing(cases[i].text, &cases[i].packing); }
    PARSE("{'model_type':'llama','quantization_config':{'quant_method':'compressed-tensors','format':'dense',"
          "'kv_cache_scheme':{'num_bits':8},'sparsity_config':{},'transform_config':{}}}");
    CHECK_INT(c.quantization.stored, QR_STORED_PLAIN);
    qr_model_config_free(&c);
}

/* Groups of several formats, each once, in the order of the file. */
static void test_packing_groups(void) {
    PARSE("{'model_type':'llama','quantization_config':{'quant_method':'compressed-tensors','format':"
          "'mixed-precision','config_groups':{'a':{'format':'int-quantized','targets':['Linear'],'weights':{"
          "'num_bits':8}},'kv':{'input_activations':{'num_bits':8},'weights':null},'b':{'format':'float-quantized',"
          "'targets':['re:.*down_proj$'],'weights':{'num_bits':8,'type':'float'}},'c':{'format':'int-quantized',"
          "'targets':['model.layers.0.mlp.up_proj'],'weights':{'num_bits':8}}},'ignore':['re:.*lm_head']}}");
    const qr_packing *packing = &c.quantization.packing;
    CHECK_INT(packing->kind, QR_PACKING_INT8);
    CHECK_STR(qr_packing_name(packing), "mixed-precision");
    REQUIRE(packing->next != NULL);
    CHECK_INT(packing->next->kind, QR_PACKING_FLOAT8);
    CHECK(packing->next->next == NULL);
    qr_model_config_free(&c);
    char text[4096] = "{'model_type':'llama','quantization_config':{'quant_method':'compressed-tensors','format':"
                      "'pack-quantized','config_groups':{";
    for (int i = 1; i <= 17; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s'g%d':{'weights':{'num_bits':4,'strategy':'group','group_size':%d}}",
                 i > 1 ? "," : "", i, 8 * i);
    }
    strcat(text, "}}}");
    check_refused(text, QRUN_ERROR_UNSUPPORTED, "\"config_groups\" of more than 16 formats");
}

static void test_refused_packings(void) {
    static const struct {
        const char *text;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"'quant_method':'gptq','bits':3", QRUN_ERROR_UNSUPPORTED, "\"bits\" of 3, and 4 and 8 can be read"},
        {"'quant_method':'gptq','bits':4,'group_size':0", QRUN_ERROR_INPUT, "\"group_size\" is 0"},
        {"'quant_method':'gptq','bits':4,'checkpoint_format':'marlin'", QRUN_ERROR_UNSUPPORTED,
         "\"checkpoint_format\" of marlin"},
        {"'quant_method':'gptq','bits':4,'pack_dtype':'int64'", QRUN_ERROR_UNSUPPORTED, "\"pack_dtype\" of int64"},
        {"'quant_method':'gptq','bits':4,'dynamic':{'+:.*down.*':{'bits':8}}", QRUN_ERROR_UNSUPPORTED,
         "\"dynamic\" of +:.*down.*"},
        {"'quant_method':'awq','bits':8", QRUN_ERROR_UNSUPPORTED, "\"bits\" of 8, and 4 can be read"},
        {"'quant_method':'awq','version':'gemv'", QRUN_ERROR_UNSUPPORTED, "\"version\" of gemv"},
        {"'quant_method':'awq','zero_point':false", QRUN_ERROR_UNSUPPORTED, "\"zero_point\" of false"},
        {COMPRESSED("pack-quantized", "'num_bits':3"), QRUN_ERROR_UNSUPPORTED,
         "weights of 3 bits (int) in the format pack-quantized"},
        {COMPRESSED("marlin-24", "'num_bits':4"), QRUN_ERROR_UNSUPPORTED, "in the format marlin-24"},
        {COMPRESSED("mxfp4-pack-quantized", "'num_bits':4,'type':'float','group_size':32"), QRUN_ERROR_UNSUPPORTED,
         "in the format mxfp4-pack-quantized"},
        {COMPRESSED("pack-quantized", "'num_bits':4,'symmetric':false,'strategy':'tensor'"), QRUN_ERROR_UNSUPPORTED,
         "\"symmetric\" of false"},
        {COMPRESSED("pack-quantized", "'num_bits':4,'strategy':'block','block_structure':[2,4]"),
         QRUN_ERROR_UNSUPPORTED, "\"strategy\" of block"},
        {COMPRESSED("int-quantized", "'strategy':'block','block_structure':[2]"), QRUN_ERROR_INPUT,
         "\"block_structure\" should be two numbers"},
        {COMPRESSED("int-quantized", "'strategy':'group'"), QRUN_ERROR_INPUT, "and there is no \"group_size\""},
        {COMPRESSED("int-quantized", "'strategy':'token'"), QRUN_ERROR_UNSUPPORTED, "\"strategy\" of token"},
        {COMPRESSED("int-quantized", "'actorder':'group'"), QRUN_ERROR_UNSUPPORTED, "\"actorder\" of group"},
        {COMPRESSED("nvfp4-pack-quantized", "'num_bits':4,'type':'float','strategy':'group','group_size':32"),
         QRUN_ERROR_INPUT, "NVFP4 has groups of 16 columns, and \"group_size\" is 32"},
        {COMPRESSED("int-quantized", "'num_bits':8") ",'sparsity_config':{'format':'sparse-24-bitmask'}",
         QRUN_ERROR_UNSUPPORTED, "\"sparsity_config\" of sparse-24-bitmask"},
        {COMPRESSED("int-quantized", "'num_bits':8") ",'transform_config':{'config_groups':{'R1':{}}}",
         QRUN_ERROR_UNSUPPORTED, "\"transform_config\" of R1"},
        {"'quant_method':'compressed-tensors','format':'mixed-precision','config_groups':{'a':{'format':"
         "'int-quantized','weights':{'num_bits':8}},'b':{'weights':{'num_bits':8,'type':'float'}}}",
         QRUN_ERROR_UNSUPPORTED, "weights of 8 bits (float) in the format mixed-precision"},
        {"'quant_method':'compressed-tensors','format':'int-quantized','config_groups':{'W8A8':['Linear']}",
         QRUN_ERROR_UNSUPPORTED, "\"config_groups\" of W8A8"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{'model_type':'llama','quantization_config':{%s}}", cases[i].text);
        check_refused(text, cases[i].status, cases[i].message);
    }
}

static void test_gpt_oss(void) {
    PARSE("{'model_type':'gpt_oss','num_hidden_layers':3,'quantization_config':{'quant_method':'mxfp4'},"
          "'rope_scaling':{'rope_type':'yarn','factor':32,'original_max_position_embeddings':4096,'truncate':false},"
          "'rope_theta':150000,'swiglu_limit':5.5}");
    CHECK_INT(c.quantization.packing.kind, QR_PACKING_MXFP4);
    CHECK(c.qkv_bias && c.o_bias && !c.mlp_bias && c.attn_sinks && c.experts.has_biases && c.experts.normalizes);
    CHECK(c.experts.gate_alpha == 1.702 && c.experts.gate_limit == 5.5 && !c.rope.truncate);
    CHECK_INT(c.experts.n_experts, 128);
    CHECK_INT(c.experts.intermediate_size, 2880);
    CHECK(c.layer_slides[0] && !c.layer_slides[1] && c.layer_slides[2] && c.sliding_window == 128);
    qr_model_config_free(&c);
}

static void test_muse_glimmer(void) {
    PARSE("{'model_type':'muse_glimmer','text_config':{'model_type':'muse_glimmer_text','num_hidden_layers':6}}");
    CHECK(c.is_multimodal && c.norm_adds_one && c.final_norm_is_plain && c.norms_embeddings && c.norms_heads);
    CHECK(c.attn_gate_apart && !c.attn_output_gate && !c.qkv_bias && !c.tie_word_embeddings);
    CHECK_INT(c.hidden_size, 6656);
    CHECK_INT(c.n_kv_heads, 2);
    CHECK_INT(c.sliding_window, 2048);
    for (int64_t l = 0; l < 6; l++) {
        const bool is_local = l != 1 && l != 5; /* every fourth from the last is not */
        CHECK(c.layer_slides[l] == is_local && c.layer_rotates[l] == is_local);
    }
    CHECK(c.norm_eps == 1e-5 && c.post_norm_eps == 1e-8 && c.final_logit_softcapping == 20);
    CHECK(fabs(c.attention_multiplier * sqrt(128.0) - 3.87) < 1e-12 && fabs(c.logits_scaling - sqrt(26.0)) < 1e-12);
    qr_model_config_free(&c);
}

static void test_muse_glimmer_layers(void) {
    PARSE("{'model_type':'muse_glimmer_text','num_hidden_layers':3,'layer_rope_theta':[5e5,0,5e5],'layer_types':["
          "'full_attention','sliding_attention','full_attention'],'rope_parameters':{'rope_type':'default',"
          "'rope_theta':5e5},'qk_scale_factor':2,'output_multiplier':0.5,'post_norm_eps':0.25}");
    CHECK(c.layer_rotates[0] && !c.layer_rotates[1] && c.layer_rotates[2] && c.layer_slides[1] && !c.layer_slides[0]);
    CHECK(c.rope.theta == 5e5 && c.post_norm_eps == 0.25 && c.logits_scaling == 2);
    qr_model_config_free(&c);
    check_refused("{'model_type':'muse_glimmer_text','num_hidden_layers':2,'layer_rope_theta':[1e4,5e5]}",
                  QRUN_ERROR_UNSUPPORTED, "\"layer_rope_theta\" has 10000 and 500000");
    check_refused("{'model_type':'muse_glimmer_text','num_hidden_layers':2,'layer_rope_theta':[1e4]}", QRUN_ERROR_INPUT,
                  "\"layer_rope_theta\" should be a list of 2 numbers");
    check_refused("{'model_type':'muse_glimmer_text','num_hidden_layers':1,'layer_rope_theta':['a']}", QRUN_ERROR_INPUT,
                  "\"layer_rope_theta\" should be a list of 1 number");
}

static void test_refusals(void) {
    static const struct {
        const char *text;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"{'model_type':'nothing'}", QRUN_ERROR_UNSUPPORTED,
         "config: model_type \"nothing\" is not supported; docs/formats.md has the models that are"},
        {"{'model_type':'smollm4'}", QRUN_ERROR_UNSUPPORTED,
         "config: model_type \"smollm4\" is not supported; these are: smollm3; docs/formats.md has"},
        {"{'model_type':'olmo9'}", QRUN_ERROR_UNSUPPORTED, "these are: olmo olmo2 olmo3 olmoe olmo_hybrid; docs"},
        {"{}", QRUN_ERROR_INPUT, "has no \"model_type\""},
        {"[]", QRUN_ERROR_INPUT, "is not a JSON object"},
        {"{'model_type':3}", QRUN_ERROR_INPUT, "should be a string and is a number"},
        {"{'model_type':'gemma3'}", QRUN_ERROR_INPUT, "should have a \"text_config\""},
        {"{'model_type':'llama','architectures':['LlamaForSequenceClassification']}", QRUN_ERROR_UNSUPPORTED,
         "does not generate text"},
        {"{'model_type':'llama','quantization_config':{'quant_method':'aqlm'}}", QRUN_ERROR_UNSUPPORTED,
         "stored in the aqlm format"},
        {"{'model_type':'gpt_oss'}", QRUN_ERROR_INPUT, "a gpt_oss model needs \"rope_scaling\""},
        {"{'model_type':'gpt_oss','rope_scaling':{'rope_type':'default'},'swiglu_limit':0}", QRUN_ERROR_INPUT,
         "swiglu_limit"},
        {"{'model_type':'qwen3','quantization_config':{'quant_method':'fp8','weight_block_size':[128]}}",
         QRUN_ERROR_INPUT, "\"weight_block_size\" should be two numbers"},
        {"{'model_type':'qwen3','quantization_config':{'quant_method':'fp8','weight_block_size':[128,0]}}",
         QRUN_ERROR_INPUT, "\"weight_block_size\" should be two numbers"},
        {"{'model_type':'llama','quantization_config':{'load_in_4bit':true}}", QRUN_ERROR_UNSUPPORTED, "\"fp4\""},
        {"{'model_type':'llama','quantization_config':{'load_in_4bit':true,'load_in_8bit':true}}", QRUN_ERROR_INPUT,
         "either load_in_4bit or load_in_8bit"},
        {"{'model_type':'llama','hidden_size':100}", QRUN_ERROR_INPUT, "hidden size 100 is not divisible by 32 heads"},
        {"{'model_type':'llama','num_key_value_heads':5}", QRUN_ERROR_INPUT, "not divisible by 5 key/value heads"},
        {"{'model_type':'llama','num_hidden_layers':0}", QRUN_ERROR_INPUT, "\"num_hidden_layers\" is 0, outside 1 to"},
        {"{'model_type':'llama','vocab_size':1000000000000}", QRUN_ERROR_INPUT,
         "\"vocab_size\" is 1000000000000, outside"},
        {"{'model_type':'llama','vocab_size':1e3}", QRUN_ERROR_INPUT, "\"vocab_size\" should be an integer in digits"},
        {"{'model_type':'llama','num_hidden_layers':2.0}", QRUN_ERROR_INPUT, "should be an integer in digits"},
        {"{'model_type':'llama','eos_token_id':2.0}", QRUN_ERROR_INPUT, "holds something that is not a token id"},
        {"{'model_type':'llama','eos_token_id':[-0]}", QRUN_ERROR_INPUT, "holds something that is not a token id"},
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
        {"{'model_type':'smollm3','no_rope_layers':[1,0]}", QRUN_ERROR_INPUT, "each of 36 layers"},
        {"{'model_type':'smollm3','num_hidden_layers':2,'no_rope_layers':[1,2]}", QRUN_ERROR_INPUT, "a list of 0 or 1"},
        {"{'model_type':'ministral3'}", QRUN_ERROR_INPUT, "need \"llama_4_scaling_beta\""},
        {"{'model_type':'mistral3'}", QRUN_ERROR_INPUT, "a mistral3 model should have a \"text_config\""},
        {"{'model_type':'gemma2','layer_types':['linear_attention']}", QRUN_ERROR_UNSUPPORTED,
         "layers of type \"linear_attention\""},
        {"{'model_type':'qwen3_5'}", QRUN_ERROR_INPUT, "a qwen3_5 model should have a \"text_config\""},
        {"{'model_type':'qwen3_5_text','layer_types':['linear_attention','full_attention']}", QRUN_ERROR_INPUT,
         "\"layer_types\" should be a list of 32 layers"},
        {"{'model_type':'gemma4_text','global_head_dim':41}", QRUN_ERROR_INPUT,
         "heads of 41 elements cannot be rotated"},
        {"{'model_type':'gemma4_text','attention_k_eq_v':true,'num_global_key_value_heads':3}", QRUN_ERROR_INPUT,
         "8 heads are not divisible by 3 key/value heads of full attention"},
        {"{'model_type':'gemma4_text','num_kv_shared_layers':30}", QRUN_ERROR_INPUT, "\"num_kv_shared_layers\" is 30"},
        {"{'model_type':'gemma4_text','num_hidden_layers':12,'num_kv_shared_layers':8}", QRUN_ERROR_INPUT,
         "layer 5 shares keys and values of a full-attention layer before layer 4, and there is none"},
        {"{'model_type':'gemma4_text','num_hidden_layers':3,'layer_types':['full_attention']}", QRUN_ERROR_INPUT,
         "\"layer_types\" should be a list of 3 layers"},
        {"{'model_type':'gemma4_text','num_hidden_layers':2,'layer_types':['full_attention','full_attention'],"
         "'per_layer_config':{'0':{'head_dim':64}}}",
         QRUN_ERROR_UNSUPPORTED, "layer 1 has other heads than layers of the same attention"},
        {"{'model_type':'gemma4_text','per_layer_config':{'5':{'hidden_size':64}}}", QRUN_ERROR_UNSUPPORTED,
         "\"hidden_size\" of one layer"},
        {"{'model_type':'gemma4_text','per_layer_config':[]}", QRUN_ERROR_INPUT,
         "\"per_layer_config\" is not an object"},
        {"{'model_type':'gemma4_text','vocab_size_per_layer_input':100}", QRUN_ERROR_INPUT,
         "\"vocab_size_per_layer_input\" is 100, fewer tokens than the 262144"},
        {"{'model_type':'gemma4_text','use_bidirectional_attention':'all'}", QRUN_ERROR_UNSUPPORTED,
         "\"use_bidirectional_attention\" is \"all\""},
        {"{'model_type':'gemma4_text','enable_moe_block':true,'num_experts':8,'top_k_experts':2}", QRUN_ERROR_INPUT,
         "\"enable_moe_block\" needs \"num_experts\", \"top_k_experts\" and \"moe_intermediate_size\""},
        {"{'model_type':'granite','residual_multiplier':0}", QRUN_ERROR_INPUT, "\"residual_multiplier\" is 0"},
        {"{'model_type':'granite','logits_scaling':'8'}", QRUN_ERROR_INPUT, "\"logits_scaling\""},
        {"{'model_type':'qwen3_5_text','num_hidden_layers':1,'layer_types':['mamba']}", QRUN_ERROR_UNSUPPORTED,
         "layers of type \"mamba\" are not supported"},
        {"{'model_type':'qwen3_5_text','num_hidden_layers':1,'layer_types':'full_attention'}", QRUN_ERROR_INPUT,
         "should be a list of 1 layer"},
        {"{'model_type':'qwen3_5_text','num_hidden_layers':3}", QRUN_ERROR_UNSUPPORTED,
         "no layer is \"full_attention\""},
        {"{'model_type':'qwen3_5_text','linear_num_value_heads':33}", QRUN_ERROR_INPUT,
         "linear_num_value_heads 33 is not divisible by linear_num_key_heads 16"},
        {"{'model_type':'qwen3_5_text','linear_num_key_heads':0}", QRUN_ERROR_INPUT,
         "\"linear_num_key_heads\" is 0, outside 1 to"},
        {"{'model_type':'qwen3_5_text','linear_conv_kernel_dim':9}", QRUN_ERROR_INPUT,
         "\"linear_conv_kernel_dim\" is 9, outside 1 to 8"},
        {"{'model_type':'qwen3_5_text','linear_num_value_heads':4096,'linear_key_head_dim':1024,"
         "'linear_value_head_dim':1024}",
         QRUN_ERROR_INPUT, "4096 linear_num_value_heads of 1024 by 1024 are too many"},
        {"{'model_type':'qwen3_5_moe_text','num_experts':7}", QRUN_ERROR_INPUT,
         "\"num_experts_per_tok\" is 8, more than the 7 experts that there are"},
        {"{'model_type':'qwen3_next','scoring_func':'sigmoid'}", QRUN_ERROR_UNSUPPORTED, "router's \"scoring_func\""},
        {"{'model_type':'qwen3_next','layer_types':['full_attention']}", QRUN_ERROR_INPUT,
         "\"layer_types\" should be a list of 48 layers"},
        {"{'model_type':'gemma2','use_bidirectional_attention':true}", QRUN_ERROR_UNSUPPORTED, "bidirectional"},
        {"{'model_type':'gpt2','scale_attn_by_inverse_layer_idx':true}", QRUN_ERROR_UNSUPPORTED, "inverse_layer"},
        {"{'model_type':'llama','eos_token_id':'</s>'}", QRUN_ERROR_INPUT,
         "\"eos_token_id\" holds something that is not"},
        {"{'model_type':'llama','bos_token_id':[1,2]}", QRUN_ERROR_INPUT, "should be one token id"},
        {"{'model_type':'qwen3_moe','num_experts':7}", QRUN_ERROR_INPUT,
         "\"num_experts_per_tok\" is 8, more than the 7 experts that there are"},
        {"{'model_type':'qwen3_moe','num_experts':0}", QRUN_ERROR_INPUT, "\"num_experts\" is 0, outside 1 to"},
        {"{'model_type':'qwen3_moe','num_experts':100000}", QRUN_ERROR_INPUT, "\"num_experts\" is 100000, outside"},
        {"{'model_type':'qwen3_moe','num_experts':4096,'num_hidden_layers':33}", QRUN_ERROR_INPUT,
         "4096 experts in each of 33 layers are more than the 131072 supported"},
        {"{'model_type':'mixtral','num_experts_per_tok':65}", QRUN_ERROR_INPUT, "is 65, outside 1 to 64"},
        {"{'model_type':'qwen3_moe','mlp_only_layers':[-1]}", QRUN_ERROR_INPUT, "should be a list of layers"},
        {"{'model_type':'qwen3_moe','mlp_only_layers':2}", QRUN_ERROR_INPUT, "should be a list of layers"},
        {"{'model_type':'qwen3_moe','decoder_sparse_step':0}", QRUN_ERROR_INPUT, "\"decoder_sparse_step\" is 0"},
        {"{'model_type':'qwen3_moe','scoring_func':'sigmoid'}", QRUN_ERROR_UNSUPPORTED, "router's \"scoring_func\""},
        {"{'model_type':'olmoe','routed_scaling_factor':2.5}", QRUN_ERROR_UNSUPPORTED, "\"routed_scaling_factor\""},
        {"{'model_type':'mixtral','router_jitter_noise':0.1}", QRUN_ERROR_UNSUPPORTED, "\"router_jitter_noise\""},
        {"{'model_type':'qwen3_moe','n_group':4}", QRUN_ERROR_UNSUPPORTED, "\"n_group\""},
        {"{'model_type':'olmoe','clip_qkv':8.0}", QRUN_ERROR_UNSUPPORTED, "\"clip_qkv\""},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) { check_refused(cases[i].text, cases[i].status, cases[i].message); }
}

/* Refused by name, wrappers with images too, and what is named instead is there. */
static void test_families_that_are_out(void) {
    static const struct {
        const char *model_type, *name, *nearest;
    } cases[] = {{"llama4", "Llama 4", "Qwen3-MoE or Qwen3.5-MoE"},
                 {"deepseek_v4", "DeepSeek V4", "Qwen3-MoE or Qwen3.5-MoE"},
                 {"glm_moe_dsa", "GLM-5", "GLM-4.7-Flash"},
                 {"deepseek_v32", "DeepSeek V3.2", "DeepSeek V3 or GLM-4.7-Flash"},
                 {"kimi_k25", "Kimi K2.5", "DeepSeek V3 or GLM-4.7-Flash"},
                 {"glm_ocr", "GLM", "GLM-4 or GLM-4.5"},
                 {"nemotron-nas", "Nemotron NAS", "Qwen3 or Llama 3"},
                 {"falcon_mamba", "Falcon Mamba", "Granite 4"},
                 {"jamba", "Jamba", "Granite 4"},
                 {"mamba2", "Mamba", "Granite 4"}};
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[128], expected[96];
        qr_model_config c;
        qr_error err = {0};
        snprintf(text, sizeof text, "{'model_type':'%s','text_config':{'model_type':'x'}}", cases[i].model_type);
        CHECK_INT(parse(text, &c, &err), QRUN_ERROR_UNSUPPORTED);
        snprintf(expected, sizeof expected, "config: %s (model_type \"%s\") has ", cases[i].name, cases[i].model_type);
        CHECK_MSG(strncmp(err.message, expected, strlen(expected)) == 0, "%s", err.message);
        snprintf(expected, sizeof expected, "; the nearest that works is %s", cases[i].nearest);
        const size_t length = strlen(err.message), n = strlen(expected);
        CHECK_MSG(length > n && strcmp(err.message + length - n, expected) == 0, "%s", err.message);
    }
}

static void test_granite4_spaces(void) {
    PARSE("{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','mamba'],'hidden_size':64,"
          "'num_attention_heads':4,'mamba_n_heads':8,'mamba_d_head':16,'time_step_limit':[0.0,1e30]}");
    CHECK(c.recurrent.kind == QR_RECURRENT_SPACE && !c.recurrent.layers[0] && c.recurrent.layers[1]);
    CHECK(c.recurrent.n_key_heads == 1 && c.recurrent.n_value_heads == 8 && c.recurrent.value_dim == 16);
    CHECK(c.recurrent.key_dim == 256 && c.recurrent.conv_kernel == 4 && c.recurrent.has_conv_bias);
    CHECK(c.experts.n_experts == 8 && c.experts.intermediate_size == 11008);
    CHECK(c.experts.shared_intermediate_size == 1024 && c.experts.normalizes);
    qr_model_config_free(&c);
}

/* A list of blocks wins over a pattern, and either says how many there are. */
static void test_falcon_h1(void) {
    PARSE("{'model_type':'falcon_h1','hidden_size':64,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':32,"
          "'num_hidden_layers':3,'mamba_d_ssm':96,'mamba_n_heads':6,'mamba_d_head':16,'mamba_d_state':24,"
          "'mamba_n_groups':2,'attention_in_multiplier':0.5,'attention_out_multiplier':0.75,'key_multiplier':0.25,"
          "'lm_head_multiplier':0.125,'embedding_multiplier':5.5,'ssm_in_multiplier':2,'ssm_out_multiplier':0.375,"
          "'ssm_multipliers':[1,0.5,0.25,2,3],'mlp_multipliers':[0.875,0.625],'mamba_norm_before_gate':true,"
          "'time_step_limit':[0,{'__float__':'Infinity'}],'rope_theta':1e11,'attn_layer_indices':null}");
    CHECK(c.recurrent.kind == QR_RECURRENT_SPACE && c.recurrent.beside_attention);
    CHECK(c.recurrent.without_norm && c.recurrent.has_conv_bias && c.recurrent.conv_kernel == 4);
    for (int64_t l = 0; l < c.n_layers; l++) { CHECK(c.recurrent.layers[l]); }
    CHECK_INT(c.recurrent.n_value_heads, 6);
    CHECK_INT(c.recurrent.n_key_heads, 2);
    CHECK_INT(c.recurrent.value_dim, 16);
    CHECK_INT(c.recurrent.key_dim, 24);
    static const double parts[QR_SPACE_PARTS] = {2, 1, 0.5, 4, 6};
    for (int i = 0; i < QR_SPACE_PARTS; i++) { CHECK(c.recurrent.multipliers[i] == parts[i]); }
    CHECK(c.embedding_multiplier == 5.5 && c.logits_scaling == 8 && c.residual_multiplier == 1);
    CHECK(c.attention_multiplier == 0.25 * 0.5 * 0.5 / sqrt(32));
    CHECK(c.attention_out_multiplier == 0.375 && c.space_out_multiplier == 0.375);
    CHECK(c.gate_multiplier == 0.875 && c.mlp_out_multiplier == 0.625);
    CHECK(c.rope.theta == 1e11 && !c.tie_word_embeddings && c.eos.ids[0] == 2);
    qr_model_config_free(&c);
}

static void test_falcon_h1_norm(void) {
    PARSE("{'model_type':'falcon_h1','hidden_size':64,'num_attention_heads':8,'mamba_d_ssm':null,'mamba_expand':2,"
          "'mamba_n_heads':4,'mamba_d_head':'auto','mamba_rms_norm':true,'mamba_norm_before_gate':false}");
    CHECK(!c.recurrent.without_norm && c.recurrent.value_dim == 32 && c.recurrent.multipliers[4] == 1);
    CHECK(c.attention_out_multiplier == 1 && c.gate_multiplier == 1);
    qr_model_config_free(&c);
}

static void test_falcon_h1_refusals(void) {
    static const struct {
        const char *keys;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"'attention_bias':true", QRUN_ERROR_UNSUPPORTED, "\"attention_bias\" is not supported"},
        {"'mlp_bias':true", QRUN_ERROR_UNSUPPORTED, "\"mlp_bias\" is not supported"},
        {"'projectors_bias':true", QRUN_ERROR_UNSUPPORTED, "\"projectors_bias\" is not supported"},
        {"'mamba_proj_bias':true", QRUN_ERROR_UNSUPPORTED, "\"mamba_proj_bias\" is not supported"},
        {"'mamba_use_mlp':false", QRUN_ERROR_UNSUPPORTED, "\"mamba_use_mlp\": false is not supported"},
        {"'mamba_rms_norm':true", QRUN_ERROR_UNSUPPORTED, "\"mamba_norm_before_gate\" is not supported"},
        {"'mamba_d_ssm':100", QRUN_ERROR_INPUT, "are not the 100 that mamba_d_ssm says"},
        {"'ssm_multipliers':[1,2,3,4]", QRUN_ERROR_INPUT, "\"ssm_multipliers\" should be a list of 5 positive numbers"},
        {"'ssm_multipliers':[1,2,3,4,-5]", QRUN_ERROR_INPUT, "should be a list of 5 positive numbers"},
        {"'mlp_multipliers':[1,2,3]", QRUN_ERROR_INPUT, "\"mlp_multipliers\" should be a list of 2 positive numbers"},
        {"'mlp_multipliers':1", QRUN_ERROR_INPUT, "\"mlp_multipliers\" should be a list of 2 positive numbers"},
        {"'key_multiplier':0", QRUN_ERROR_INPUT, "key_multiplier"},
        {"'time_step_limit':[0.1,1e9]", QRUN_ERROR_UNSUPPORTED, "time_step_limit"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[256];
        qr_model_config c;
        qr_error err = {0};
        snprintf(text, sizeof text, "{'model_type':'falcon_h1',%s}", cases[i].keys);
        CHECK_INT(parse(text, &c, &err), cases[i].status);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", text, err.message);
    }
}

static void test_bamba(void) {
    PARSE("{'model_type':'bamba','hidden_size':64,'num_attention_heads':4,'num_key_value_heads':2,"
          "'num_hidden_layers':5,'attn_layer_indices':[1,4],'layer_types':['x'],'mamba_n_heads':8,'mamba_d_state':24,"
          "'attention_bias':true,'mlp_bias':true}");
    CHECK(c.recurrent.kind == QR_RECURRENT_SPACE && !c.recurrent.beside_attention && !c.recurrent.without_norm);
    for (int64_t l = 0; l < c.n_layers; l++) { CHECK(c.recurrent.layers[l] == (l != 1 && l != 4)); }
    CHECK_INT(c.recurrent.value_dim, 16);
    CHECK(c.rope.rotary_dim == 8 && c.head_dim == 16);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.embedding_multiplier == 1);
    qr_model_config_free(&c);
}

static void test_apertus(void) {
    PARSE("{'model_type':'apertus','num_key_value_heads':8,'rope_theta':12000000,'hidden_act':'xielu','qk_norm':true,"
          "'post_norm':false,'mlp_bias':false,'rope_scaling':{'factor':8,'low_freq_factor':1,'high_freq_factor':4,"
          "'original_max_position_embeddings':8192,'rope_type':'llama3'}}");
    CHECK(c.activation == QR_ACTIVATION_XIELU && c.rope.type == QR_ROPE_LLAMA3 && c.rope.theta == 12000000);
    CHECK_INT(c.n_heads, 32);
    CHECK_INT(c.pad_token_id, 3);
    qr_model_config_free(&c);
}

/* As the official E2B has it, but for its layers. */
static void test_gemma3n(void) {
    PARSE("{'model_type':'gemma3n','architectures':['Gemma3nForConditionalGeneration'],'torch_dtype':'bfloat16',"
          "'eos_token_id':[1,106],'vision_config':{'model_type':'gemma3n_vision'},'audio_config':{},"
          "'vision_soft_tokens_per_image':256,'text_config':{'model_type':'gemma3n_text','num_hidden_layers':5,"
          "'activation_sparsity_pattern':[0.95,0.95,0,0,0],'altup_active_idx':0,'altup_coef_clip':120,"
          "'altup_correct_scale':true,'altup_lr_multiplier':1,'altup_num_inputs':4,'attention_bias':false,"
          "'final_logit_softcapping':30,'head_dim':256,'hidden_activation':'gelu_pytorch_tanh','hidden_size':2048,"
          "'hidden_size_per_layer_input':256,'intermediate_size':[8192,8192,8192,4096,8192],'laurel_rank':64,"
          "'layer_types':['sliding_attention','full_attention','sliding_attention','sliding_attention',"
          "'full_attention'],'max_position_embeddings':32768,'num_attention_heads':8,'num_key_value_heads':2,"
          "'num_kv_shared_layers':2,'query_pre_attn_scalar':256,'rms_norm_eps':1e-6,'rope_local_base_freq':10000,"
          "'rope_scaling':null,'rope_theta':1000000,'sliding_window':512,'vocab_size':262400,"
          "'vocab_size_per_layer_input':262144}}");
    CHECK(c.family == QR_FAMILY_GEMMA3N && c.is_multimodal && c.dtype == QR_DTYPE_BF16 && c.tie_word_embeddings);
    CHECK(c.streams.n == 4 && c.streams.scales && c.streams.residual_rank == 64);
    CHECK(c.layer_inputs.size == 256 && c.layer_inputs.vocab_size == 262144 && c.vocab_size == 262400);
    CHECK(c.attention.norms_values && c.attention.n_shared_layers == 2 && c.attention_multiplier == 1);
    CHECK(qr_model_config_kv_owner(&c, 3) == 2 && qr_model_config_kv_owner(&c, 4) == 1);
    CHECK(qr_model_config_mlp_size(&c, 3) == 4096 && qr_model_config_mlp_size(&c, 4) == 8192);
    CHECK(c.gate_parts[1] == 0.95F && c.gate_parts[2] == 0.0F && c.intermediate_size == 8192);
    CHECK(c.rope.theta == 1e6 && c.rope_local.theta == 1e4 && c.final_logit_softcapping == 30 && c.eos.n == 2);
    CHECK(c.scale_embeddings && !c.norm_adds_one);
    qr_model_config_free(&c);
}

/* None is off to transformers, also where the default is on. */
static void test_null_switches(void) {
    PARSE("{'model_type':'deepseek_v3','num_hidden_layers':4}");
    CHECK(c.experts.normalizes);
    qr_model_config_free(&c);
    CHECK(parse("{'model_type':'deepseek_v3','num_hidden_layers':4,'norm_topk_prob':null}", &c, NULL) == QRUN_OK);
    CHECK(!c.experts.normalizes);
    qr_model_config_free(&c);
    static const char *const endings[] = {"}", ",'mamba_conv_bias':null}"};
    for (int i = 0; i < 2; i++) {
        char text[320];
        snprintf(text, sizeof text,
                 "{'model_type':'bamba','hidden_size':64,'num_attention_heads':4,'num_key_value_heads':2,"
                 "'num_hidden_layers':5,'attn_layer_indices':[1,4],'mamba_n_heads':8,'mamba_d_state':24%s",
                 endings[i]);
        CHECK(parse(text, &c, NULL) == QRUN_OK);
        CHECK_INT(c.recurrent.has_conv_bias, i == 0);
        qr_model_config_free(&c);
    }
}

static void test_gemma3n_defaults(void) {
    PARSE("{'model_type':'gemma3n_text'}");
    CHECK_INT(c.n_layers, 35);
    CHECK(c.attention.n_shared_layers == 15 && c.gate_parts[9] == 0.95F && c.gate_parts[10] == 0.0F);
    CHECK(c.layer_slides[3] && !c.layer_slides[4] && !c.layer_slides[34] && c.intermediate_size == 16384);
    qr_model_config_free(&c);
}

static void test_gemma3n_refusals(void) {
    static const struct {
        const char *keys;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"'altup_num_inputs':5", QRUN_ERROR_UNSUPPORTED, "\"altup_num_inputs\" 5"},
        {"'altup_num_inputs':1", QRUN_ERROR_UNSUPPORTED, "\"altup_num_inputs\" 1"},
        {"'altup_active_idx':1", QRUN_ERROR_UNSUPPORTED, "\"altup_active_idx\" 1"},
        {"'hidden_size_per_layer_input':0", QRUN_ERROR_UNSUPPORTED, "without \"hidden_size_per_layer_input\""},
        {"'intermediate_size':[8192]", QRUN_ERROR_INPUT, "\"intermediate_size\" should be a list of 35 numbers"},
        {"'activation_sparsity_pattern':[0.5]", QRUN_ERROR_INPUT, "should be a list of 35 numbers"},
        {"'activation_sparsity_pattern':0.5", QRUN_ERROR_INPUT, "should be a list of 35 numbers"},
        {"'num_hidden_layers':5,'num_kv_shared_layers':0,'activation_sparsity_pattern':[0,0,0,0,1]", QRUN_ERROR_INPUT,
         "numbers from 0 to below 1"},
        {"'num_hidden_layers':5,'intermediate_size':[8,8,8,8,1.5]", QRUN_ERROR_INPUT, "should be a list of 5 numbers"},
        {"'num_hidden_layers':19", QRUN_ERROR_INPUT, "shares keys and values"},
        {"'num_hidden_layers':5", QRUN_ERROR_INPUT, "\"num_kv_shared_layers\""},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{'model_type':'gemma3n_text',%s}", cases[i].keys);
        qr_model_config c;
        qr_error err = {0};
        CHECK_INT(parse(text, &c, &err), cases[i].status);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", text, err.message);
    }
}

static void test_hybrids_and_apertus_refusals(void) {
    static const char rope[] = "'rope_parameters':{'rope_type':'default','rope_theta':1e4}";
    static const struct {
        const char *type, *keys;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"bamba", "'num_hidden_layers':2", QRUN_ERROR_UNSUPPORTED, "no layer is \"full_attention\""},
        {"bamba", "'attn_layer_indices':['a']", QRUN_ERROR_INPUT, "\"attn_layer_indices\" should be a list of layers"},
        {"bamba", "'attn_layer_indices':[1],'mamba_proj_bias':true", QRUN_ERROR_UNSUPPORTED, "\"mamba_proj_bias\""},
        {"apertus", "'hidden_act':'silu'", QRUN_ERROR_UNSUPPORTED, "activation \"silu\" is not supported"},
        {"apertus", "'mlp_bias':true", QRUN_ERROR_UNSUPPORTED, "\"mlp_bias\" is not supported"},
        {"apertus", "'post_norm':true", QRUN_ERROR_UNSUPPORTED, "\"post_norm\" is not supported"},
        {"apertus", "'qk_norm':false", QRUN_ERROR_UNSUPPORTED, "\"qk_norm\": false is not supported"},
        {"apertus", "'rope_scaling':null", QRUN_ERROR_INPUT, "needs \"rope_scaling\""},
        {"llama", "'hidden_act':'xielu'", QRUN_ERROR_UNSUPPORTED, "activation \"xielu\" is not supported"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        const bool has_rope = strstr(cases[i].keys, "rope_") == NULL;
        char text[320];
        qr_model_config c;
        qr_error err = {0};
        snprintf(text, sizeof text, "{'model_type':'%s',%s%s%s}", cases[i].type, cases[i].keys, has_rope ? "," : "",
                 has_rope ? rope : "");
        CHECK_INT(parse(text, &c, &err), cases[i].status);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", text, err.message);
    }
}

static void test_nemotron_h(void) {
    PARSE("{'model_type':'nemotron_h','hybrid_override_pattern':'M-*M','num_hidden_layers':4,'hidden_size':64,"
          "'mamba_num_heads':8,'mamba_head_dim':16,'n_groups':2,'conv_kernel':3,'use_conv_bias':false,"
          "'time_step_limit':[0.0,1e30],'mlp_bias':true,'intermediate_size':96}");
    CHECK(c.n_layers == 4 && !c.has_rope && c.activation == QR_ACTIVATION_RELU2 && c.norm_eps == 1e-5);
    CHECK(c.blocks[0] == QR_BLOCK_SPACE && c.blocks[1] == QR_BLOCK_MLP && c.blocks[2] == QR_BLOCK_ATTENTION);
    CHECK(qr_model_config_mixes(&c, 0) && !qr_model_config_has_mlp(&c, 0));
    CHECK(!qr_model_config_mixes(&c, 1) && qr_model_config_has_mlp(&c, 1) && qr_model_config_mixes(&c, 2));
    CHECK(c.recurrent.kind == QR_RECURRENT_SPACE && c.recurrent.layers[0] && !c.recurrent.layers[1]);
    CHECK(!c.recurrent.layers[2] && c.recurrent.layers[3] && c.recurrent.n_value_heads == 8);
    CHECK(c.recurrent.n_key_heads == 2 && c.recurrent.value_dim == 16 && c.recurrent.key_dim == 128);
    CHECK(c.recurrent.conv_kernel == 3 && !c.recurrent.has_conv_bias && c.n_kv_heads == 8 && c.head_dim == 128);
    CHECK(c.mlp_bias && !c.qkv_bias && !c.o_bias && c.experts.n_experts == 0 && c.intermediate_size == 96);
    qr_model_config_free(&c);
}

static void test_nemotron_h_lists(void) {
    PARSE("{'model_type':'nemotron_h','hybrid_override_pattern':'M-*M','layers_block_type':['attention','mlp',"
          "'full_attention'],'time_step_limit':[0.0,{'__float__':'Infinity'}]}");
    CHECK(c.n_layers == 3 && c.blocks[0] == QR_BLOCK_ATTENTION && c.recurrent.layers == NULL);
    qr_model_config_free(&c);
}

static void test_nemotron_h_experts(void) {
    PARSE("{'model_type':'nemotron_h','hybrid_override_pattern':'ME*E','n_routed_experts':16,'num_experts_per_tok':4,"
          "'moe_intermediate_size':96,'moe_shared_expert_intermediate_size':160,'routed_scaling_factor':2.5,"
          "'n_group':1,'topk_group':1,'moe_latent_size':null}");
    CHECK(c.experts.n_experts == 16 && c.experts.n_per_token == 4 && c.experts.intermediate_size == 96);
    CHECK(c.experts.shared_intermediate_size == 160 && c.experts.share_factor == 2.5 && c.experts.sum_eps == 1e-20);
    CHECK(c.experts.has_sigmoid_router && c.experts.has_choice_bias && c.experts.normalizes);
    CHECK(!c.experts.layer_has_experts[0] && c.experts.layer_has_experts[1] && !c.experts.layer_has_experts[2]);
    CHECK(c.experts.layer_has_experts[3] && qr_model_config_has_mlp(&c, 3) && !qr_model_config_mixes(&c, 3));
    qr_model_config_free(&c);
}

static void test_nemotron_h_refusals(void) {
    static const struct {
        const char *keys;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"'hybrid_override_pattern':'M-M'", QRUN_ERROR_UNSUPPORTED, "no block is \"full_attention\""},
        {"'hybrid_override_pattern':'M-x*'", QRUN_ERROR_UNSUPPORTED, "a block that is none of M, *, - and E"},
        {"'hybrid_override_pattern':''", QRUN_ERROR_INPUT, "has 0 blocks"},
        {"'hybrid_override_pattern':'M*','num_hidden_layers':3", QRUN_ERROR_INPUT,
         "lists 2 blocks, but \"num_hidden_layers\" is 3"},
        {"'layers_block_type':['mamba','sliding_attention']", QRUN_ERROR_UNSUPPORTED,
         "\"layers_block_type\" has a block \"sliding_attention\""},
        {"'layers_block_type':'M*'", QRUN_ERROR_INPUT, "should be a list of blocks"},
        {"'hybrid_override_pattern':'M*','attention_bias':true", QRUN_ERROR_UNSUPPORTED, "\"attention_bias\""},
        {"'hybrid_override_pattern':'M*','use_bias':true", QRUN_ERROR_UNSUPPORTED, "\"use_bias\""},
        {"'hybrid_override_pattern':'M*','mamba_proj_bias':true", QRUN_ERROR_UNSUPPORTED, "\"mamba_proj_bias\""},
        {"'hybrid_override_pattern':'M*','mamba_hidden_act':'gelu'", QRUN_ERROR_UNSUPPORTED, "\"mamba_hidden_act\""},
        {"'hybrid_override_pattern':'M*','time_step_limit':[0.001,1e30]", QRUN_ERROR_UNSUPPORTED,
         "\"time_step_limit\" other than from 0 to Infinity"},
        {"'hybrid_override_pattern':'E*','moe_latent_size':1024", QRUN_ERROR_UNSUPPORTED, "(\"moe_latent_size\")"},
        {"'hybrid_override_pattern':'E*','n_shared_experts':2", QRUN_ERROR_UNSUPPORTED,
         "\"n_shared_experts\" other than 1"},
        {"'hybrid_override_pattern':'E*','n_group':3", QRUN_ERROR_INPUT, "\"n_group\" is 3"},
        {"'hybrid_override_pattern':'M*','mamba_num_heads':12", QRUN_ERROR_INPUT,
         "mamba_num_heads 12 is not divisible by n_groups 8"},
        {"'hybrid_override_pattern':'M*','attention_head_dim':64", QRUN_ERROR_INPUT,
         "\"attention_head_dim\" is 64, and \"head_dim\" 128"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "{'model_type':'nemotron_h',%s}", cases[i].keys);
        check_refused(text, cases[i].status, cases[i].message);
    }
}

static void test_granite4(void) {
    PARSE("{'model_type':'granitemoehybrid','num_hidden_layers':2,'num_local_experts':0,'layer_types':['attention',"
          "'attention'],'position_embedding_type':'rope','shared_intermediate_size':96,'residual_multiplier':0.5}");
    CHECK(c.intermediate_size == 96 && c.residual_multiplier == 0.5 && c.layer_rotates[0] && c.experts.n_experts == 0);
    CHECK(c.recurrent.kind == QR_RECURRENT_NONE && c.recurrent.layers == NULL);
    qr_model_config_free(&c);
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':2}", QRUN_ERROR_UNSUPPORTED,
                  "no layer is \"full_attention\"");
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','mamba'],"
                  "'mamba_n_heads':3}",
                  QRUN_ERROR_INPUT, "are not the 8192 that mamba_expand times hidden_size gives");
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','mamba'],"
                  "'mamba_n_groups':3}",
                  QRUN_ERROR_INPUT, "mamba_n_heads 128 is not divisible by mamba_n_groups 3");
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','mamba'],"
                  "'mamba_proj_bias':true}",
                  QRUN_ERROR_UNSUPPORTED, "\"mamba_proj_bias\"");
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':2,'layer_types':['attention','mamba'],"
                  "'time_step_limit':[0.0,0.1]}",
                  QRUN_ERROR_UNSUPPORTED, "\"time_step_limit\" other than from 0 to Infinity");
    check_refused("{'model_type':'granitemoehybrid','num_hidden_layers':1,'layer_types':['attention'],"
                  "'num_local_experts':0,'position_embedding_type':'alibi'}",
                  QRUN_ERROR_UNSUPPORTED, "\"position_embedding_type\" is \"alibi\"");
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

    qr_generation_config_free(&config);
    temporary_text(&folder, "generation_config.json",
                   "{\"bos_token_id\": 128000, \"do_sample\": true, \"eos_token_id\": [128001, 128008, 128009], "
                   "\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 0, \"min_p\": 0.05, \"repetition_penalty\": 1.1, "
                   "\"max_length\": 4096, \"max_new_tokens\": 12, \"pad_token_id\": null, \"other\": {}}");
    qr_error err = {0};
    CHECK_MSG(qr_generation_config_read(folder.path, &model, &config, &err) == QRUN_OK, "%s", err.message);
    CHECK(config.eos.n == 3 && config.eos.ids[2] == 128009 && config.bos_token_id == 128000);
    CHECK(config.do_sample && config.temperature == 0.6 && config.top_p == 0.9 && config.top_k == 0);
    CHECK(config.min_p == 0.05 && config.repetition_penalty == 1.1);
    CHECK(config.max_length == 0 && config.max_new_tokens == 12);
    qr_generation_config_free(&config);

    temporary_text(&folder, "generation_config.json", "{\"temperature\": 0, \"do_sample\": true}");
    CHECK_INT(qr_generation_config_read(folder.path, &model, &config, NULL), QRUN_OK);
    CHECK(!config.do_sample && config.temperature == 1);
    qr_generation_config_free(&config);
    temporary_text(&folder, "generation_config.json", "{\"top_p\": 1.5}");
    CHECK_INT(qr_generation_config_read(folder.path, &model, &config, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "generation_config.json: \"top_p\" is 1.5, outside 0 to 1") != NULL, "%s",
              err.message);
    qr_generation_config_free(&config);
    qr_model_config_free(&model);
    temporary_remove(&folder);
}

static void test_generation_rules(void) {
    const temporary_folder folder = temporary_create();
    qr_model_config model;
    REQUIRE(parse("{'model_type':'llama'}", &model, NULL) == QRUN_OK);
    qr_generation_config config;
    qr_error err = {0};
    temporary_text(&folder, "generation_config.json",
                   "{\"min_length\": 0, \"num_beams\": 1, \"typical_p\": 1.0, "
                   "\"bad_words_ids\": null, \"suppress_tokens\": [], \"watermarking_config\": null}");
    CHECK_MSG(qr_generation_config_read(folder.path, &model, &config, &err) == QRUN_OK, "%s", err.message);
    CHECK(qr_generation_rules_are_neutral(&config.rules) && config.not_obeyed == NULL);
    qr_generation_config_free(&config);

    temporary_text(&folder, "generation_config.json",
                   "{\"sequence_bias\": [[[4], -1.5], [[5, 6, 7], 2]], \"bad_words_ids\": [[8, 9], [10]], "
                   "\"suppress_tokens\": [1, 2], \"begin_suppress_tokens\": [3], \"no_repeat_ngram_size\": 3, "
                   "\"encoder_no_repeat_ngram_size\": 2, \"encoder_repetition_penalty\": 1.25, \"min_length\": 4, "
                   "\"min_new_tokens\": 5, \"forced_bos_token_id\": 11, \"forced_eos_token_id\": [12, 13], "
                   "\"exponential_decay_length_penalty\": [14, 1.5], \"max_length\": 99, \"num_beams\": 4, "
                   "\"typical_p\": 0.5, \"epsilon_cutoff\": 0.01, \"eta_cutoff\": 0.02, \"guidance_scale\": 1.5}");
    CHECK_MSG(qr_generation_config_read(folder.path, &model, &config, &err) == QRUN_OK, "%s", err.message);
    const qr_generation_rules *r = &config.rules;
    CHECK(!qr_generation_rules_are_neutral(r));
    REQUIRE(r->sequence_bias.n == 2 && r->bad_words.n == 2 && r->suppress.n == 2 && r->begin_suppress.n == 1);
    CHECK(r->sequence_bias.ends[0] == 1 && r->sequence_bias.ends[1] == 4 && r->sequence_bias.ids[3] == 7);
    CHECK(r->sequence_bias.biases[0] == -1.5F && r->sequence_bias.biases[1] == 2.0F && r->bad_words.biases == NULL);
    CHECK(r->bad_words.ends[0] == 2 && r->bad_words.ids[2] == 10 && r->suppress.ids[1] == 2);
    CHECK(r->no_repeat_ngram_size == 3 && r->encoder_no_repeat_ngram_size == 2 && r->min_length == 4);
    CHECK(r->encoder_repetition_penalty == 1.25 && r->min_new_tokens == 5 && r->forced_bos == 11);
    CHECK(r->forced_eos.n == 2 && r->decay_start == 14 && r->decay_factor == 1.5 && config.max_length == 99);
    CHECK_STR(config.not_obeyed, "num_beams, guidance_scale");
    CHECK(r->typical_p == 0.5 && r->epsilon_cutoff == 0.01 && r->eta_cutoff == 0.02);
    qr_generation_config_free(&config);

    /* Ids that the model has no row for: transformers leaves them out. */
    temporary_text(&folder, "generation_config.json",
                   "{\"suppress_tokens\": [1, 32000], \"begin_suppress_tokens\": [40000]}");
    err = (qr_error){0};
    CHECK_MSG(qr_generation_config_read(folder.path, &model, &config, &err) == QRUN_OK, "%s", err.message);
    qr_generation_config_free(&config);

    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{\"suppress_tokens\": 3}", "\"suppress_tokens\" must be a list of token ids"},
        {"{\"suppress_tokens\": [-1]}", "\"suppress_tokens\" must be a list of token ids"},
        {"{\"bad_words_ids\": [3]}", "\"bad_words_ids\" must be a list of lists of token ids"},
        {"{\"bad_words_ids\": [[]]}", "\"bad_words_ids\" must be"},
        {"{\"bad_words_ids\": [[1], [2.5]]}", "\"bad_words_ids\" must be"},
        {"{\"bad_words_ids\": [[1], [2, 32000]]}",
         "generation_config.json: \"bad_words_ids\" has token 32000, which is outside the vocabulary of 32000"},
        {"{\"sequence_bias\": [[[1], 1], [[40000, 2], 1]]}",
         "generation_config.json: \"sequence_bias\" has token 40000, which is outside the vocabulary of 32000"},
        {"{\"sequence_bias\": [[[1], 1, 2]]}", "\"sequence_bias\" must be a list of [[token ids], bias]"},
        {"{\"sequence_bias\": [[[1], null]]}", "\"sequence_bias\" must be"},
        {"{\"exponential_decay_length_penalty\": [1]}", "must be [a number of tokens, a factor]"},
        {"{\"min_new_tokens\": -1}", "\"min_new_tokens\" is -1"},
        {"{\"forced_bos_token_id\": [1, 2]}", "should be one token id"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(bad); i++) {
        temporary_text(&folder, "generation_config.json", bad[i].text);
        err = (qr_error){0};
        CHECK_INT(qr_generation_config_read(folder.path, &model, &config, &err), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(err.message, bad[i].message) != NULL, "%s: %s", bad[i].text, err.message);
        qr_generation_config_free(&config);
    }
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
    temporary_text(&folder, "config.json", "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":3}");
    check_failing_allocations(attempt_read, folder.path, false);
    temporary_text(&folder, "config.json", "{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME*-\"}");
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
        {"reduced/gptneox", NULL, QR_FAMILY_GPT_NEOX, 1, 16, 128, 0, 1e4},
        {"reduced/mixtral", NULL, QR_FAMILY_MIXTRAL, 1, 8, 128, 0, 1e6},
        {"reduced/phi", "phi", 0, 0, 0, 0, 0, 0},
        {"reduced/qwen", "qwen", 0, 0, 0, 0, 0, 0},
        {"reduced/qwen3moe", NULL, QR_FAMILY_QWEN3_MOE, 1, 4, 128, 0, 1e6},
        {"reduced/stablelm", NULL, QR_FAMILY_STABLELM, 1, 16, 128, 0, 1e4},
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
        qr_generation_config_free(&generation);
        qr_model_config_free(&c);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_family_defaults);
    CHECK_RUN(test_gemma);
    CHECK_RUN(test_layers_without_rotary_positions);
    CHECK_RUN(test_listed_layers_without_rotary_positions);
    CHECK_RUN(test_olmo3);
    CHECK_RUN(test_mistral3_wrapper);
    CHECK_RUN(test_qwen3_5_wrapper);
    CHECK_RUN(test_qwen3_5_older_form);
    CHECK_RUN(test_qwen3_5_moe_wrapper);
    CHECK_RUN(test_qwen3_next);
    CHECK_RUN(test_mistral3_wrapper_of_mistral);
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
    CHECK_RUN(test_expert_defaults);
    CHECK_RUN(test_layers_with_experts);
    CHECK_RUN(test_packed_folders);
    CHECK_RUN(test_packed_integers);
    CHECK_RUN(test_packing_groups);
    CHECK_RUN(test_refused_packings);
    CHECK_RUN(test_gpt_oss);
    CHECK_RUN(test_muse_glimmer);
    CHECK_RUN(test_muse_glimmer_layers);
    CHECK_RUN(test_qwen3_vl_wrapper);
    CHECK_RUN(test_minimax_m2);
    CHECK_RUN(test_dots1);
    CHECK_RUN(test_exaone_moe);
    CHECK_RUN(test_hy_v3);
    CHECK_RUN(test_cohere);
    CHECK_RUN(test_gemma_1);
    CHECK_RUN(test_layer_norms);
    CHECK_RUN(test_jais2);
    CHECK_RUN(test_sarvam_mla);
    CHECK_RUN(test_sarvam_moe);
    CHECK_RUN(test_exaone);
    CHECK_RUN(test_olmo);
    CHECK_RUN(test_gpt_neox);
    CHECK_RUN(test_flex_olmo);
    CHECK_RUN(test_afmoe);
    CHECK_RUN(test_apertus1p5);
    CHECK_RUN(test_laguna);
    CHECK_RUN(test_axk1);
    CHECK_RUN(test_olmo_hybrid);
    CHECK_RUN(test_kimi_linear);
    CHECK_RUN(test_mimo_v2_flash);
    CHECK_RUN(test_kolibri1);
    CHECK_RUN(test_nemotron);
    CHECK_RUN(test_nanochat);
    CHECK_RUN(test_cohere2_moe);
    CHECK_RUN(test_internlm3);
    CHECK_RUN(test_hyperclovax);
    CHECK_RUN(test_windows_from_the_first);
    CHECK_RUN(test_solar_open);
    CHECK_RUN(test_mistral4);
    CHECK_RUN(test_hunyuan);
    CHECK_RUN(test_granite_moe);
    CHECK_RUN(test_qwen2_vl_wrapper);
    CHECK_RUN(test_other_wrappers);
    CHECK_RUN(test_exaone4);
    CHECK_RUN(test_seed_oss);
    CHECK_RUN(test_ministral_layers);
    CHECK_RUN(test_mellum);
    CHECK_RUN(test_glm4_moe);
    CHECK_RUN(test_glm4_moe_lite);
    CHECK_RUN(test_glm4_moe_lite_layers);
    CHECK_RUN(test_deepseek_v3);
    CHECK_RUN(test_deepseek_v2);
    CHECK_RUN(test_deepseek_v2_groups);
    CHECK_RUN(test_latent_attention_of_dense_models);
    CHECK_RUN(test_ernie4_5);
    CHECK_RUN(test_ernie4_5_biases);
    CHECK_RUN(test_ernie4_5_moe);
    CHECK_RUN(test_ernie4_5_moe_layers);
    CHECK_RUN(test_glm4);
    CHECK_RUN(test_lfm2);
    CHECK_RUN(test_lfm2_moe);
    CHECK_RUN(test_lfm3);
    CHECK_RUN(test_lfm_refusals);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_families_that_are_out);
    CHECK_RUN(test_granite4);
    CHECK_RUN(test_granite4_spaces);
    CHECK_RUN(test_bamba);
    CHECK_RUN(test_apertus);
    CHECK_RUN(test_gemma3n);
    CHECK_RUN(test_null_switches);
    CHECK_RUN(test_gemma3n_defaults);
    CHECK_RUN(test_gemma3n_refusals);
    CHECK_RUN(test_hybrids_and_apertus_refusals);
    CHECK_RUN(test_falcon_h1);
    CHECK_RUN(test_falcon_h1_norm);
    CHECK_RUN(test_falcon_h1_refusals);
    CHECK_RUN(test_nemotron_h);
    CHECK_RUN(test_nemotron_h_lists);
    CHECK_RUN(test_nemotron_h_experts);
    CHECK_RUN(test_nemotron_h_refusals);
    CHECK_RUN(test_generation_config);
    CHECK_RUN(test_generation_rules);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_public_configs);
    return check_end();
}
