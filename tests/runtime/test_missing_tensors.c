/* Folders of a model with two kinds of layers whose tensors do not fit config.json: one line with the tensor's name. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/safetensors.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/model/model.h"
#include "temporary.h"

#define MODEL QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3_5"
#define LAYER0 "model.layers.0.linear_attn."
enum { MAX_TENSORS = 256 };

static qrun_context *context;

/* One tensor is called otherwise, left out (to NULL), or has its two dimensions changed over. */
typedef struct change {
    const char *name, *to;
    bool turned;
    const char *message;
} change;

static void write_tensors(const char *path, const change *c) {
    qr_error err = {0};
    qr_safetensors *source = NULL;
    qr_safetensors_writer *writer = NULL;
    static qr_safetensors_spec specs[MAX_TENSORS];
    static const qr_safetensors_tensor *tensors[MAX_TENSORS];
    size_t n = 0;
    REQUIRE(qr_safetensors_open(MODEL, &source, &err) == QRUN_OK);
    bool found = false;
    for (size_t i = 0; i < qr_safetensors_count(source) && n < MAX_TENSORS; i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        const bool is_changed = strcmp(tensor->name, c->name) == 0;
        found |= is_changed;
        if (is_changed && c->to == NULL) { continue; }
        tensors[n] = tensor;
        specs[n] = (qr_safetensors_spec){.name = is_changed ? c->to : tensor->name, .dtype = tensor->dtype};
        specs[n].n_dims = tensor->n_dims;
        memcpy(specs[n].dims, tensor->dims, sizeof tensor->dims);
        if (is_changed && c->turned) { specs[n].dims[0] = tensor->dims[1], specs[n].dims[1] = tensor->dims[0]; }
        n++;
    }
    CHECK_MSG(found, "the fixture has no %s", c->name);
    REQUIRE(qr_safetensors_writer_create(path, "model", specs, n, 0, &writer, &err) == QRUN_OK);
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        size_t i = 0; /* the writer has an order of its own */
        while (i < n && strcmp(specs[i].name, spec->name) != 0) { i++; }
        REQUIRE(i < n);
        CHECK(qr_safetensors_writer_write(writer, tensors[i]->data, tensors[i]->n_bytes, &err) == QRUN_OK);
    }
    CHECK_MSG(qr_safetensors_writer_commit(writer, &err) == QRUN_OK, "%s", err.message);
    qr_safetensors_close(source);
}

static void check_refused(const change *c) {
    const temporary_folder folder = temporary_create();
    char *config = NULL;
    size_t n_bytes = 0;
    REQUIRE(qr_file_read(MODEL "/config.json", 1 << 20, &config, &n_bytes, NULL) == QRUN_OK);
    temporary_write(&folder, "config.json", config, n_bytes);
    qr_free(config);
    write_tensors(folder.path, c);
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = folder.path;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_INPUT);
    CHECK_MSG(model == NULL && strstr(error.message, c->message) != NULL && strchr(error.message, '\n') == NULL,
              "%s: \"%s\", expected \"%s\"", c->name, error.message, c->message);
    temporary_remove(&folder);
}

static void test_tensors_that_do_not_fit(void) {
    static const change changes[] = {
        {LAYER0 "A_log", NULL, false, LAYER0 "A_log"},
        {LAYER0 "dt_bias", NULL, false, LAYER0 "dt_bias"},
        {LAYER0 "norm.weight", NULL, false, LAYER0 "norm.weight"},
        {LAYER0 "conv1d.weight", NULL, false, LAYER0 "conv1d.weight"},
        {LAYER0 "conv1d.weight", LAYER0 "conv1d.weight", true, LAYER0 "conv1d.weight"},
        {LAYER0 "in_proj_qkv.weight", NULL, false, LAYER0 "in_proj_qkv.weight"},
        {LAYER0 "in_proj_z.weight", LAYER0 "in_proj_z.weight", true, LAYER0 "in_proj_z.weight"},
        {LAYER0 "out_proj.weight", "model.layers.0.self_attn.o_proj.weight", false,
         "has model.layers.0.self_attn.o_proj.weight, which a qwen3_5 model with this config.json does not have"},
        {LAYER0 "A_log", LAYER0 "A_log.weight", false, "has " LAYER0 "A_log.weight, which"},
        {"model.layers.3.self_attn.q_proj.weight", "model.layers.3.linear_attn.in_proj_qkv.weight", false,
         "has model.layers.3.linear_attn.in_proj_qkv.weight, which"},
        {"model.layers.3.self_attn.q_norm.weight", NULL, false, "model.layers.3.self_attn.q_norm.weight"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(changes); i++) { check_refused(&changes[i]); }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_tensors_that_do_not_fit);
    qrun_context_destroy(context);
    return check_end();
}
