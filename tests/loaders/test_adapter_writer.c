/* Adapters written as PEFT does: the config to the byte, tensors read back, PEFT's own adapters written again. */
#include "check.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/adapter/adapter.h"
#include "loaders/adapter/adapter_writer.h"
#include "temporary.h"

static const float values[12] = {1, -2, 3.5F, 0, 1e-30F, 7, 8, 9, 10, 11, 12, -13};
static const char *const targets[] = {"up_proj", "q_proj"};
static const char *const saved[] = {"lm_head"};
static const qr_adapter_factor_spec factors[] = {{.module = "model.layers.1.mlp.up_proj", .in = 3, .out = 4},
                                                 {.module = "model.layers.0.self_attn.q_proj", .in = 2, .out = 1}};

/* What the callbacks give out. */
typedef struct factor_values {
    const float *a, *b, *magnitude;
    int64_t n_a, n_b, n_magnitude;
} factor_values;

static qrun_status read_factor(void *user, size_t i, bool is_b, float *out, qr_error *err) {
    const factor_values *factor = (const factor_values *)user + i;
    const int64_t n = is_b ? factor->n_b : factor->n_a;
    if (n == 0) { return qr_fail(err, QRUN_ERROR_IO, "no values"); }
    memcpy(out, is_b ? factor->b : factor->a, (size_t)n * sizeof *out);
    return QRUN_OK;
}

static qrun_status read_magnitude(void *user, size_t i, float *out, qr_error *err) {
    const factor_values *factor = (const factor_values *)user + i;
    (void)err;
    memcpy(out, factor->magnitude, (size_t)factor->n_magnitude * sizeof *out);
    return QRUN_OK;
}

static factor_values rank_2[] = {{values, values + 4, NULL, 6, 8, 0}, {values + 2, values, NULL, 4, 2, 0}};

static qr_adapter_spec small_spec(void) {
    return (qr_adapter_spec){.base_model = "some/\"model\"",
                             .rank = 2,
                             .alpha = 16,
                             .dropout = 0.05,
                             .targets = targets,
                             .n_targets = 2,
                             .factors = factors,
                             .n_factors = 2,
                             .read = read_factor,
                             .user = rank_2};
}

/* Writes an adapter as a new folder, which appears whole or not at all. */
static qrun_status write_folder(const char *path, const qr_adapter_spec *spec, qr_error *err) {
    qr_folder_writer folder;
    qrun_status status = qr_folder_writer_open(&folder, path, err);
    if (status != QRUN_OK) { return status; }
    status = qr_adapter_write(folder.partial_path, spec, err);
    if (status == QRUN_OK) { return qr_folder_writer_commit(&folder, err); }
    qr_folder_writer_abort(&folder);
    return status;
}

static void check_values(const qr_safetensors_tensor *tensor, const float *expected, int64_t n) {
    CHECK(tensor != NULL && tensor->dtype == QR_DTYPE_F32 && tensor->n_bytes == (size_t)n * sizeof *expected);
    if (tensor != NULL) { CHECK(memcmp(tensor->data, expected, (size_t)n * sizeof *expected) == 0); }
}

static char *read_text(const char *folder, const char *name) {
    char *path = qr_path_join(folder, name), *text = NULL;
    size_t n_bytes;
    qr_error err = {0};
    CHECK_MSG(qr_file_read(path, 1 << 20, &text, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    qr_free(path);
    return text;
}

static void test_config(void) {
    const temporary_folder folder = temporary_create();
    const char *path = temporary_path(&folder, "adapter");
    const qr_adapter_spec spec = small_spec();
    qr_error err = {0};
    CHECK_MSG(write_folder(path, &spec, &err) == QRUN_OK, "%s", err.message);
    char *text = read_text(path, "adapter_config.json");
    CHECK_STR(text, "{\n  \"base_model_name_or_path\": \"some/\\\"model\\\"\",\n  \"bias\": \"none\",\n"
                    "  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n"
                    "  \"lora_alpha\": 16,\n  \"lora_dropout\": 0.05,\n  \"modules_to_save\": null,\n"
                    "  \"peft_type\": \"LORA\",\n  \"r\": 2,\n  \"target_modules\": [\n    \"q_proj\",\n"
                    "    \"up_proj\"\n  ],\n"
                    "  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": false\n}");
    qr_free(text);
    CHECK(write_folder(path, &spec, &err) == QRUN_ERROR_ARGUMENT); /* it is there already */
    temporary_remove(&folder);
}

static void test_read_back(void) {
    const temporary_folder folder = temporary_create();
    const char *path = temporary_path(&folder, "adapter");
    const qr_adapter_parameter_spec head = {"lm_head.weight", 2, {3, 4}, values};
    const int32_t ranks[] = {1, 2};
    const double alphas[] = {16, 2.5};
    factor_values own[] = {{values, values + 4, values + 3, 3, 4, 4}, {values + 2, values, values + 5, 4, 2, 1}};
    qr_adapter_spec spec = small_spec();
    spec.user = own;
    spec.ranks = ranks;
    spec.alphas = alphas;
    spec.read_magnitude = read_magnitude;
    spec.parameters = &head;
    spec.n_parameters = 1;
    spec.modules_to_save = saved;
    spec.n_modules_to_save = 1;
    spec.rslora = spec.fan_in_fan_out = true;
    qr_error err = {0};
    CHECK_MSG(write_folder(path, &spec, &err) == QRUN_OK, "%s", err.message);
    qr_adapter *adapter = NULL;
    CHECK_MSG(qr_adapter_open(path, &adapter, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(adapter != NULL);
    CHECK(adapter->config.use_dora && adapter->config.use_rslora && adapter->config.fan_in_fan_out);
    for (size_t i = 0; i < 2; i++) {
        const qr_adapter_module *module = qr_adapter_find(adapter, factors[i].module);
        REQUIRE(module != NULL);
        CHECK(module->rank == ranks[i] && module->alpha == alphas[i]);
        CHECK(module->scale == alphas[i] / sqrt((double)ranks[i]));
        check_values(module->a, own[i].a, own[i].n_a);
        check_values(module->b, own[i].b, own[i].n_b);
        check_values(module->magnitude, own[i].magnitude, own[i].n_magnitude);
    }
    CHECK_INT(adapter->n_parameters, 1);
    CHECK_STR(adapter->parameters[0].name, "lm_head.weight");
    check_values(adapter->parameters[0].tensor, values, 12);
    qr_adapter_close(adapter);
    temporary_remove(&folder);
}

/* Nothing is left of an adapter that its own settings contradict. */
static void test_refused(void) {
    const temporary_folder folder = temporary_create();
    qr_adapter_spec spec = small_spec();
    spec.n_targets = 1;
    qr_error err = {0};
    CHECK(write_folder(temporary_path(&folder, "adapter"), &spec, &err) == QRUN_ERROR_INPUT);
    CHECK(strstr(err.message, "adapter_config.json does not target it") != NULL);
    spec = small_spec();
    factor_values none[2] = {{0}};
    spec.user = none;
    qr_error_clear(&err);
    CHECK(write_folder(temporary_path(&folder, "adapter"), &spec, &err) == QRUN_ERROR_IO);
    spec.rank = 0;
    qr_error_clear(&err);
    CHECK(write_folder(temporary_path(&folder, "adapter"), &spec, &err) == QRUN_ERROR_ARGUMENT);
    CHECK_INT(remove(folder.path), 0); /* it is empty */
    spec = small_spec();
    qr_error_clear(&err);
    CHECK(write_folder("/nowhere/adapter", &spec, &err) == QRUN_ERROR_NOT_FOUND);
}

static char *read_fixture(const char *name, const char *file) {
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/tests/fixtures/training/adapters/%s", QRUN_SOURCE_DIR, name);
    char *text = read_text(path.data, file);
    qr_buffer_free(&path);
    return text;
}

/* An adapter that PEFT saved, written again: the tensors' file is the same to the byte. */
static void check_same_file(const char *name) {
    const temporary_folder folder = temporary_create();
    qr_buffer path = {0}, command = {0};
    qr_adapter *adapter = NULL;
    qr_error err = {0};
    qr_buffer_append_format(&path, "%s/tests/fixtures/training/adapters/%s", QRUN_SOURCE_DIR, name);
    CHECK_MSG(qr_adapter_open(path.data, &adapter, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(adapter != NULL);
    const qr_adapter_config *config = &adapter->config;
    qr_adapter_factor_spec own[64];
    factor_values own_values[64];
    REQUIRE(adapter->n_modules <= QR_COUNT_OF(own));
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *m = &adapter->modules[i];
        own[i] = (qr_adapter_factor_spec){.module = m->name, .in = m->in_features, .out = m->out_features};
        own_values[i] = (factor_values){(const void *)m->a->data,
                                        (const void *)m->b->data,
                                        m->magnitude != NULL ? (const void *)m->magnitude->data : NULL,
                                        m->rank * m->in_features,
                                        m->rank * m->out_features,
                                        m->out_features};
    }
    const qr_adapter_spec spec = {.base_model = config->base_model,
                                  .rank = (int32_t)config->rank,
                                  .alpha = config->alpha,
                                  .rslora = config->use_rslora,
                                  .fan_in_fan_out = config->fan_in_fan_out,
                                  .targets = (const char *const *)config->target_modules.names,
                                  .n_targets = config->target_modules.n_names,
                                  .factors = own,
                                  .n_factors = adapter->n_modules,
                                  .read = read_factor,
                                  .read_magnitude = config->use_dora ? read_magnitude : NULL,
                                  .user = own_values};
    CHECK_MSG(write_folder(temporary_path(&folder, "adapter"), &spec, &err) == QRUN_OK, "%s", err.message);
    qr_buffer_append_format(&command, "cmp %s/adapter_model.safetensors %s/adapter/adapter_model.safetensors",
                            path.data, folder.path);
    CHECK_MSG(system(command.data) == 0, "%s", name);
    /* Every line of the config is one of PEFT's. */
    char *theirs = read_fixture(name, "adapter_config.json");
    char *ours = read_text(temporary_path(&folder, "adapter"), "adapter_config.json");
    for (char *line = strtok(ours, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (line[strlen(line) - 1] == ',') { line[strlen(line) - 1] = '\0'; }
        CHECK_MSG(strstr(theirs, line) != NULL, "%s: %s", name, line);
    }
    qr_free(ours);
    qr_free(theirs);
    qr_adapter_close(adapter);
    qr_buffer_free(&path);
    qr_buffer_free(&command);
    temporary_remove(&folder);
}

static void test_as_peft_saved_them(void) {
    static const char *const names[] = {"llama", "llama-dora", "llama-rslora", "gpt2", "gemma3", "qwen3"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) { check_same_file(names[i]); }
}

static qrun_status attempt(void *context, qr_error *err) {
    const temporary_folder *folder = context;
    char path[128];
    snprintf(path, sizeof path, "%s/adapter", folder->path);
    qr_adapter_spec spec = small_spec();
    spec.alpha = 1.5; /* with patterns */
    const qrun_status status = write_folder(path, &spec, err);
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (size_t i = 0; i < QR_COUNT_OF(files) && status == QRUN_OK; i++) {
        char file[256];
        snprintf(file, sizeof file, "%s/%s", path, files[i]);
        CHECK_INT(remove(file), 0);
    }
    CHECK((remove(path) == 0) == (status == QRUN_OK));
    return status;
}

static void test_failing_allocations(void) {
    const temporary_folder folder = temporary_create();
    temporary_folder context = folder;
    check_failing_allocations(attempt, &context, true);
    CHECK_INT(remove(folder.path), 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_config);
    CHECK_RUN(test_read_back);
    CHECK_RUN(test_refused);
    CHECK_RUN(test_as_peft_saved_them);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
