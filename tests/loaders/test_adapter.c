/* PEFT adapters: scales and patterns, which modules are targeted, what is refused, and adapters that PEFT saved. */
#include "check.h"

#include "base/buffer.h"
#include "base/sizes.h"
#include "loaders/adapter/adapter.h"
#include "loaders/files/safetensors_writer.h"
#include "temporary.h"

/* Configs here are short: single quotes stand for double ones. */
static const char *quoted(const char *text) {
    static char json[4096];
    snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c != '\0'; c++) {
        if (*c == '\'') { *c = '"'; }
    }
    return json;
}

static qrun_status parse(const char *text, qr_adapter_config *config, qr_error *err) {
    const char *json = quoted(text);
    qr_json *root;
    *config = (qr_adapter_config){0};
    qrun_status status = qr_json_parse(json, strlen(json), "config", &root, err);
    if (status == QRUN_OK) { status = qr_adapter_config_parse(root, "config", config, err); }
    qr_json_free(root);
    return status;
}

static void check_targets(const char *text, const char *const *modules, const bool *expected, size_t n) {
    qr_adapter_config config;
    qr_error err = {0};
    CHECK_MSG(parse(text, &config, &err) == QRUN_OK, "%s", err.message);
    for (size_t i = 0; i < n; i++) {
        bool targeted;
        CHECK_MSG(qr_adapter_config_targets(&config, modules[i], &targeted, &err) == QRUN_OK, "%s", err.message);
        CHECK_MSG(targeted == expected[i], "%s: %s is %stargeted", text, modules[i], targeted ? "" : "not ");
    }
    qr_adapter_config_free(&config);
}

/* Expected answers are those of PEFT 0.21's check_target_module_exists. */
static void test_targets(void) {
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj",
                                          "model.layers.1.self_attn.q_proj",
                                          "model.layers.11.mlp.up_proj",
                                          "model.layers.1.mlp.xq_proj",
                                          "lm_head",
                                          "q_proj"};
    static const struct {
        const char *text;
        bool expected[6];
    } cases[] = {
        {"{'peft_type':'LORA','target_modules':['q_proj']}", {1, 1, 0, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['self_attn.q_proj','lm_head']}", {1, 1, 0, 0, 1, 0}},
        {"{'peft_type':'LORA','target_modules':'.*(up|q)_proj'}", {1, 1, 1, 1, 0, 1}},
        {"{'peft_type':'LORA','target_modules':'q_proj|lm_head'}", {0, 0, 0, 0, 1, 1}},
        {"{'peft_type':'LORA','target_modules':'All-Linear'}", {1, 1, 1, 1, 0, 1}},
        {"{'peft_type':'LORA','target_modules':'all-linear','exclude_modules':['q_proj']}", {0, 0, 1, 1, 0, 0}},
        {"{'peft_type':'LORA','target_modules':'all-linear','exclude_modules':'.*q_proj'}", {0, 0, 1, 0, 0, 0}},
        {"{'peft_type':'LORA','target_modules':['q_proj','up_proj'],'layers_to_transform':1}", {0, 1, 0, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['q_proj','up_proj'],'layers_to_transform':[0,11]}", {1, 0, 1, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['q_proj','up_proj'],'layers_to_transform':[]}", {1, 1, 1, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['q_proj','up_proj'],'layers_to_transform':[1],'layers_pattern':'layers'"
         "}",
         {0, 1, 0, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['q_proj'],'layers_to_transform':[1],'layers_pattern':['blocks','h']}",
         {0, 0, 0, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':'.*q_proj','layers_to_transform':[1]}", {1, 1, 0, 1, 0, 1}},
        {"{'peft_type':'LORA','target_modules':['q_proj','lm_head'],'modules_to_save':['lm_head','layers.1']}",
         {1, 0, 0, 0, 0, 1}},
        {"{'peft_type':'LORA','target_modules':[]}", {0, 0, 0, 0, 0, 0}},
        {"{'peft_type':'LORA'}", {1, 1, 1, 1, 1, 1}},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) { check_targets(cases[i].text, modules, cases[i].expected, 6); }
}

static void test_scales(void) {
    static const struct {
        const char *text, *module;
        int64_t rank;
        double alpha, scale;
    } cases[] = {
        {"{'peft_type':'LORA'}", "a.q_proj", 8, 8, 1},
        {"{'peft_type':'LORA','r':4,'lora_alpha':16}", "a.q_proj", 4, 16, 4},
        {"{'peft_type':'LORA','r':4,'lora_alpha':16,'use_rslora':true}", "a.q_proj", 4, 16, 8},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'q_proj':2},'alpha_pattern':{'q_proj':5}}", "a.q_proj", 2, 5, 2.5},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'q_proj':2}}", "a.xq_proj", 4, 8, 2},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'q_proj':2}}", "q_proj", 2, 8, 4},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'q_proj':2}}", "a.q_proj.b", 4, 8, 2},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'layers\\\\.[0-4]\\\\..*':2,'q_proj':16}}", "m.layers.3.q_proj", 2,
         8, 4},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'layers\\\\.[0-4]\\\\..*':2,'q_proj':16}}", "m.layers.5.q_proj", 16,
         8, 0.5},
        {"{'peft_type':'LORA','r':4,'rank_pattern':{'q_proj|k_proj':2}}", "a.k_proj", 2, 8, 4},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_adapter_config config;
        qr_error err = {0};
        CHECK_MSG(parse(cases[i].text, &config, &err) == QRUN_OK, "%s", err.message);
        int64_t rank;
        double alpha, scale;
        CHECK_INT(qr_adapter_config_scale(&config, cases[i].module, NULL, &rank, &alpha, &scale, &err), QRUN_OK);
        CHECK_MSG(rank == cases[i].rank && alpha == cases[i].alpha && scale == cases[i].scale,
                  "%s, %s: rank %lld, alpha %g, scale %g", cases[i].text, cases[i].module, (long long)rank, alpha,
                  scale);
        qr_adapter_config_free(&config);
    }
}

/* What LoRA on experts is of, and the patterns that see it. */
static void test_parameters(void) {
    static const struct {
        const char *text, *module;
        bool is_one_of_two, by_name_alone;
        const char *parameter; /* NULL: none */
        int64_t rank;
        double alpha;
    } cases[] = {
        {"'mlp.experts.down_proj'", "m.0.mlp.experts", false, false, "down_proj", 8, 1},
        {"'mlp.experts.down_proj'", "m.0.mlp.experts", false, true, NULL, 8, 8},
        {"'mlp.experts.down_proj'", "m.0.xmlp.experts", false, false, NULL, 8, 8},
        {"'m.0.mlp.experts.gate_up_proj'", "m.0.mlp.experts", false, false, "gate_up_proj", 4, 8},
        {"'down_proj','gate_up_proj'", "m.0.mlp.experts", true, true, "down_proj", 8, 1},
        {"'down_proj','gate_up_proj'", "m.0.mlp.experts.base_layer", true, true, "gate_up_proj", 4, 8},
        {"'gate_up_proj','down_proj'", "m.0.mlp.experts", true, true, "down_proj", 8, 1},
        {"'gate.weight'", "m.0.mlp.gate", false, false, "weight", 8, 8},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char text[400];
        qr_adapter_config config;
        qr_error err = {0};
        int64_t rank;
        double alpha, scale;
        snprintf(text, sizeof text,
                 "{'peft_type':'LORA','target_modules':['q_proj'],'target_parameters':[%s],'rank_pattern':{'.*\\\\."
                 "gate_up_proj':4,'experts':2},'alpha_pattern':{'experts.down_proj':1,'mlp.experts':3}}",
                 cases[i].text);
        CHECK_MSG(parse(text, &config, &err) == QRUN_OK, "%s", err.message);
        const char *found =
            qr_adapter_config_parameter(&config, cases[i].module, cases[i].is_one_of_two, cases[i].by_name_alone);
        CHECK_STR(found != NULL ? found : "none", cases[i].parameter != NULL ? cases[i].parameter : "none");
        if (found != NULL) {
            CHECK_INT(qr_adapter_config_scale(&config, cases[i].module, found, &rank, &alpha, &scale, &err), QRUN_OK);
            CHECK_INT(rank, cases[i].rank);
            CHECK_MSG(alpha == cases[i].alpha, "%s, %s: alpha %g", text, cases[i].module, alpha);
        }
        qr_adapter_config_free(&config);
    }
}

static void test_config_refusals(void) {
    static const struct {
        const char *text;
        qrun_status status;
        const char *message;
    } cases[] = {
        {"[]", QRUN_ERROR_INPUT, "is not a JSON object"},
        {"{}", QRUN_ERROR_INPUT, "has no \"peft_type\""},
        {"{'peft_type':'IA3'}", QRUN_ERROR_UNSUPPORTED, "adapters of type \"IA3\" are not supported"},
        {"{'peft_type':'LORA','lora_bias':true}", QRUN_ERROR_UNSUPPORTED, "\"lora_bias\" is not supported"},
        {"{'peft_type':'LORA','layer_replication':[[0,4]]}", QRUN_ERROR_UNSUPPORTED, "\"layer_replication\""},
        {"{'peft_type':'LORA','trainable_token_indices':[1]}", QRUN_ERROR_UNSUPPORTED, "\"trainable_token_indices\""},
        {"{'peft_type':'LORA','init_lora_weights':'pissa_niter_4'}", QRUN_ERROR_UNSUPPORTED,
         "path_initial_model_for_weight_conversion"},
        {"{'peft_type':'LORA','r':0}", QRUN_ERROR_INPUT, "\"r\" is 0, outside 1 to 65536"},
        {"{'peft_type':'LORA','rank_pattern':{'q':1.5}}", QRUN_ERROR_INPUT, "something other than an integer"},
        {"{'peft_type':'LORA','rank_pattern':{'q':0}}", QRUN_ERROR_INPUT, "\"rank_pattern\" gives \"q\""},
        {"{'peft_type':'LORA','rank_pattern':[1]}", QRUN_ERROR_INPUT, "\"rank_pattern\" should be an object"},
        {"{'peft_type':'LORA','rank_pattern':{'(q':1}}", QRUN_ERROR_INPUT, "\"(q\" is not a valid regular expression"},
        {"{'peft_type':'LORA','alpha_pattern':{'q':'x'}}", QRUN_ERROR_INPUT, "something other than a number"},
        {"{'peft_type':'LORA','target_modules':3}", QRUN_ERROR_INPUT,
         "\"target_modules\" should be a list of names or"},
        {"{'peft_type':'LORA','target_modules':[3]}", QRUN_ERROR_INPUT,
         "\"target_modules\" should be a list of names or"},
        {"{'peft_type':'LORA','modules_to_save':{}}", QRUN_ERROR_INPUT,
         "\"modules_to_save\" should be a list of names"},
        {"{'peft_type':'LORA','layers_to_transform':['a']}", QRUN_ERROR_INPUT, "should be a layer or a list of layers"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_adapter_config config;
        qr_error err = {0};
        CHECK_MSG(parse(cases[i].text, &config, &err) == cases[i].status, "%s: status %d", cases[i].text, err.status);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", cases[i].text, err.message);
        qr_adapter_config_free(&config);
    }
}

static void test_hostile_pattern_ends(void) {
    qr_adapter_config config;
    qr_error err = {0};
    REQUIRE(parse("{'peft_type':'LORA','rank_pattern':{'(a|aa)+c':2}}", &config, NULL) == QRUN_OK);
    int64_t rank;
    double alpha, scale;
    CHECK_INT(qr_adapter_config_scale(&config, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc", NULL, &rank,
                                      &alpha, &scale, &err),
              QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "write a simpler one") != NULL, "%s", err.message);
    qr_adapter_config_free(&config);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

#define Q "base_model.model.model.layers.0.self_attn.q_proj"

static void write_adapter(const temporary_folder *folder, const char *config, const qr_safetensors_spec *specs,
                          size_t n) {
    temporary_text(folder, "adapter_config.json", quoted(config));
    qr_safetensors_writer *writer;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_writer_create(folder->path, "adapter_model", specs, n, 0, &writer, &err) == QRUN_OK, "%s",
              err.message);
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        static const unsigned char zeros[4096];
        size_t n_bytes;
        CHECK(qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &n_bytes) && n_bytes <= sizeof zeros);
        CHECK_INT(qr_safetensors_writer_write(writer, zeros, n_bytes, NULL), QRUN_OK);
    }
    CHECK_INT(qr_safetensors_writer_commit(writer, NULL), QRUN_OK);
}

static const qr_safetensors_spec everything[] = {
    {Q ".lora_A.weight", QR_DTYPE_F32, 2, {2, 6}},
    {Q ".lora_B.weight", QR_DTYPE_BF16, 2, {4, 2}},
    {Q ".lora_magnitude_vector", QR_DTYPE_F32, 1, {4}},
    {"base_model.model.model.embed_tokens.lora_embedding_A", QR_DTYPE_BF16, 2, {3, 10}},
    {"base_model.model.model.embed_tokens.lora_embedding_B", QR_DTYPE_BF16, 2, {6, 3}},
    {"base_model.model.model.embed_tokens.lora_magnitude_vector", QR_DTYPE_F32, 1, {6}},
    {"base_model.model.model.embed_tokens.base_layer.weight", QR_DTYPE_F16, 2, {10, 6}},
    {"base_model.model.score.bias", QR_DTYPE_F32, 1, {3}},
};
static const char everything_config[] =
    "{'peft_type':'LORA','r':3,'lora_alpha':6,'use_dora':true,'target_modules':['q_proj','embed_tokens'],"
    "'rank_pattern':{'q_proj':2},'modules_to_save':['score'],'base_model_name_or_path':'org/base'}";

static void test_reads_everything(void) {
    const temporary_folder folder = temporary_create();
    write_adapter(&folder, everything_config, everything, QR_COUNT_OF(everything));
    qr_adapter *adapter;
    qr_error err = {0};
    CHECK_MSG(qr_adapter_open(folder.path, &adapter, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(adapter != NULL);
    CHECK_STR(adapter->config.base_model, "org/base");
    CHECK_INT(adapter->n_modules, 2);
    const qr_adapter_module *q = qr_adapter_find(adapter, "model.layers.0.self_attn.q_proj");
    REQUIRE(q != NULL);
    CHECK(!q->is_embedding && q->rank == 2 && q->in_features == 6 && q->out_features == 4 && q->scale == 3);
    CHECK(q->a->dtype == QR_DTYPE_F32 && q->b->dtype == QR_DTYPE_BF16 && q->magnitude->n_bytes == 16);
    const qr_adapter_module *e = qr_adapter_find(adapter, "model.embed_tokens");
    REQUIRE(e != NULL);
    CHECK(e->is_embedding && e->rank == 3 && e->in_features == 10 && e->out_features == 6 && e->scale == 2);
    CHECK(qr_adapter_find(adapter, "model.layers.0.self_attn.k_proj") == NULL);
    REQUIRE(adapter->n_parameters == 2);
    CHECK_STR(adapter->parameters[0].name, "model.embed_tokens.weight");
    CHECK_STR(adapter->parameters[1].name, "score.bias");
    qr_adapter_close(adapter);
    temporary_remove(&folder);
}

static void test_tensor_refusals(void) {
    static const char plain[] = "{'peft_type':'LORA','r':2,'target_modules':['q_proj']}";
    static const char dora[] = "{'peft_type':'LORA','r':2,'target_modules':['q_proj'],'use_dora':true}";
    static const qr_safetensors_spec a = {Q ".lora_A.weight", QR_DTYPE_F32, 2, {2, 6}};
    static const qr_safetensors_spec b = {Q ".lora_B.weight", QR_DTYPE_F32, 2, {4, 2}};
    const struct {
        const char *config;
        qr_safetensors_spec specs[3];
        size_t n;
        const char *message;
    } cases[] = {
        {plain, {a}, 1, "has no tensor lora_B"},
        {plain, {b}, 1, "has no tensor lora_A"},
        {plain, {a, {Q ".lora_B.weight", QR_DTYPE_F32, 2, {4, 3}}}, 2, "has shape [4, 3] and should have [any, 2]"},
        {plain, {{Q ".lora_A.weight", QR_DTYPE_F32, 2, {3, 6}}, b}, 2, "has shape [3, 6] and should have [2, any]"},
        {plain, {{Q ".lora_A.weight", QR_DTYPE_F32, 1, {12}}, b}, 2, "has shape [12] and should have [2, any]"},
        {plain, {{Q ".lora_A.weight", QR_DTYPE_F32, 2, {2, 0}}, b}, 2, "a matrix without elements"},
        {plain, {{Q ".lora_A.weight", QR_DTYPE_I8, 2, {2, 6}}, b}, 2, "is not F32, F16 or BF16"},
        {dora, {a, b}, 2, "has no lora_magnitude_vector"},
        {plain, {a, b, {Q ".lora_magnitude_vector", QR_DTYPE_F32, 1, {4}}}, 3, "does not say use_dora"},
        {dora, {a, b, {Q ".lora_magnitude_vector", QR_DTYPE_F32, 1, {5}}}, 3, "has shape [5] and should have [4]"},
        {plain, {a, b, {"base_model.model.x.lora_A.weight", QR_DTYPE_F32, 2, {2, 6}}}, 3, "\"x\" has no tensor lora_B"},
        {plain, {a, b, {"base_model.model.x.weight", QR_DTYPE_F32, 1, {2}}}, 3, "\"modules_to_save\" does not name"},
        {plain, {a, b, {Q ".lora_C.weight", QR_DTYPE_F32, 1, {2}}}, 3, "is not a tensor of a LoRA adapter"},
        {plain, {a, b, {"x.lora_A.weight", QR_DTYPE_F32, 1, {2}}}, 3, "does not begin with \"base_model.model.\""},
        {plain, {a, b, {Q ".lora_embedding_A", QR_DTYPE_F32, 2, {2, 6}}}, 3, "exists both as lora_"},
        {"{'peft_type':'LORA','r':2,'target_modules':['k_proj']}", {a, b}, 2, "adapter_config.json does not target it"},
        {plain, {a}, 0, "holds no tensors"},
    };
    const temporary_folder folder = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        write_adapter(&folder, cases[i].config, cases[i].specs, cases[i].n);
        qr_adapter *adapter;
        qr_error err = {0};
        CHECK_INT(qr_adapter_open(folder.path, &adapter, &err), QRUN_ERROR_INPUT);
        CHECK(adapter == NULL);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "case %zu: %s", i, err.message);
    }
    /* A config with biases of a model that has none is fine. */
    static const char biases[] = "{'peft_type':'LORA','r':2,'target_modules':['q_proj'],'bias':'all'}";
    const qr_safetensors_spec with_bias[] = {a, b, {Q ".bias", QR_DTYPE_F32, 1, {4}}};
    qr_adapter *adapter;
    qr_error err = {0};
    write_adapter(&folder, biases, with_bias, 2);
    CHECK_MSG(qr_adapter_open(folder.path, &adapter, &err) == QRUN_OK, "%s", err.message);
    qr_adapter_close(adapter);
    write_adapter(&folder, biases, with_bias, 3);
    CHECK_INT(qr_adapter_open(folder.path, &adapter, &err), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "an adapter with trained biases") != NULL, "%s", err.message);
    CHECK_INT(remove(temporary_path(&folder, "adapter_model.safetensors")), 0);
    CHECK_INT(qr_adapter_open(folder.path, &adapter, NULL), QRUN_ERROR_NOT_FOUND);
    temporary_text(&folder, "adapter_model.bin", "");
    err = (qr_error){0};
    CHECK_INT(qr_adapter_open(folder.path, &adapter, &err), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "is a PyTorch pickle") != NULL, "%s", err.message);
    temporary_remove(&folder);
}

static qrun_status attempt_open(void *context, qr_error *err) {
    qr_adapter *adapter;
    const qrun_status status = qr_adapter_open(context, &adapter, err);
    qr_adapter_close(adapter);
    return status;
}

static void test_any_allocation_may_fail(void) {
    temporary_folder folder = temporary_create();
    char config[512];
    snprintf(config, sizeof config, "%.*s,'layers_to_transform':[0],'exclude_modules':['x'],'alpha_pattern':{'.*':6}}",
             (int)strlen(everything_config) - 1, everything_config);
    /* The embedding is in no layer, so its name must be given whole. */
    char *found = strstr(config, "'embed_tokens'");
    REQUIRE(found != NULL);
    qr_buffer text = {0};
    qr_buffer_append(&text, config, (size_t)(found - config));
    qr_buffer_append_text(&text, "'model.embed_tokens'");
    qr_buffer_append_text(&text, found + strlen("'embed_tokens'"));
    write_adapter(&folder, text.data, everything, QR_COUNT_OF(everything));
    qr_buffer_free(&text);
    check_failing_allocations(attempt_open, folder.path, false);
    temporary_remove(&folder);
}

/* Adapters that PEFT 0.21 saved. */
static void test_adapters_of_peft(void) {
    static const struct {
        const char *name;
        size_t n_modules;
        const char *module;
        int64_t rank;
        double scale;
        bool dora;
    } adapters[] = {
        {"gpt2-lora", 8, "transformer.h.1.mlp.c_proj", 5, 2, false},
        {"llama-dora", 4, "model.layers.0.mlp.down_proj", 5, 2, true},
        {"llama-lora", 14, "model.layers.1.self_attn.v_proj", 5, 2, false},
        {"llama-one-layer", 2, "model.layers.1.mlp.up_proj", 5, 2, false},
        {"llama-patterns", 14, "model.layers.0.self_attn.q_proj", 2, 1.5, false},
        {"llama-patterns", 14, "model.layers.1.mlp.down_proj", 7, 10.0 / 7, false},
        {"llama-patterns", 14, "model.layers.1.self_attn.v_proj", 5, 12.0 / 5, false},
        {"llama-rslora", 4, "model.layers.0.self_attn.q_proj", 3, 2.3094010767585034, false},
        {"qwen3-lora", 14, "model.layers.0.mlp.gate_proj", 5, 2, false},
    };
    for (size_t i = 0; i < QR_COUNT_OF(adapters); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/tests/fixtures/adapters/%s", QRUN_SOURCE_DIR, adapters[i].name);
        qr_adapter *adapter;
        qr_error err = {0};
        CHECK_MSG(qr_adapter_open(path, &adapter, &err) == QRUN_OK, "%s", err.message);
        if (adapter == NULL) { continue; }
        CHECK_INT(adapter->n_modules, adapters[i].n_modules);
        CHECK_INT(adapter->n_parameters, 0);
        const qr_adapter_module *module = qr_adapter_find(adapter, adapters[i].module);
        CHECK_MSG(module != NULL && module->rank == adapters[i].rank && module->scale == adapters[i].scale &&
                      (module->magnitude != NULL) == adapters[i].dora,
                  "%s: %s", adapters[i].name, adapters[i].module);
        qr_adapter_close(adapter);
    }
}

static void test_real_config(void) {
    const char *path = check_shared_data("configs/real/Qwen2/lora_demo/adapter_config.json");
    if (path == NULL) {
        check_skip("the public config is not there");
        return;
    }
    qr_adapter_config config;
    qr_error err = {0};
    CHECK_MSG(qr_adapter_config_read(path, &config, &err) == QRUN_OK, "%s", err.message);
    CHECK(config.rank == 8 && config.alpha == 16 && config.target_modules.n_names == 8);
    CHECK_STR(config.base_model, "/data_public/Qwen2-7B");
    qr_adapter_config_free(&config);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_targets);
    CHECK_RUN(test_scales);
    CHECK_RUN(test_parameters);
    CHECK_RUN(test_config_refusals);
    CHECK_RUN(test_hostile_pattern_ends);
    CHECK_RUN(test_reads_everything);
    CHECK_RUN(test_tensor_refusals);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_adapters_of_peft);
    CHECK_RUN(test_real_config);
    return check_end();
}
