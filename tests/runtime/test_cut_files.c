/* Model files that are cut short while they are read: one line that names the file, and nothing left behind. */
#include "check.h"

#include <qrun.h>
#include <unistd.h>

#include "base/sizes.h"
#include "temporary.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"
#define MODELS FIXTURES "models/"

static qrun_context *context;

static void copy_folder(const temporary_folder *folder, const char *from, const char *name) {
    CHECK(qr_folder_create(temporary_path(folder, name), NULL) == QRUN_OK);
    DIR *listing = opendir(from);
    REQUIRE(listing != NULL);
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char to[512];
        char *source = qr_path_join(from, entry->d_name);
        snprintf(to, sizeof to, "%s/%s", name, entry->d_name);
        if (!qr_file_is_folder(source)) { CHECK(qr_file_copy(source, temporary_path(folder, to), NULL) == QRUN_OK); }
        qr_free(source);
    }
    closedir(listing);
}

/* Cuts a file at the first call, and lets the work continue. */
typedef struct cutter {
    const char *path;
    off_t kept_bytes;
    bool done;
} cutter;

static bool cut(void *user, int64_t done_bytes, int64_t total_bytes) {
    cutter *c = user;
    (void)done_bytes, (void)total_bytes;
    if (!c->done) { CHECK(truncate(c->path, c->kept_bytes) == 0); }
    c->done = true;
    return true;
}

static void check_cut(const cutter *c, qrun_status status, const qrun_error *error) {
    CHECK(c->done);
    CHECK_INT(status, QRUN_ERROR_IO);
    CHECK_MSG(strncmp(error->message, c->path, strlen(c->path)) == 0 && strstr(error->message, "cut short") != NULL,
              "%s", error->message);
}

static const off_t kept[] = {0, 60000};

static void test_while_a_model_loads(void) {
    static const struct {
        const char *folder;
        qrun_quant quant;
    } models[] = {{MODELS "llama", QRUN_QUANT_NF4},
                  {MODELS "llama", QRUN_QUANT_F32},
                  {MODELS "gpt2", QRUN_QUANT_INT8},
                  {MODELS "llama-nf4-dq", QRUN_QUANT_AUTO},
                  {MODELS "gpt2-int8", QRUN_QUANT_AUTO}};
    for (size_t i = 0; i < QR_COUNT_OF(models) * QR_COUNT_OF(kept); i++) {
        const temporary_folder folder = temporary_create();
        copy_folder(&folder, models[i / QR_COUNT_OF(kept)].folder, "model");
        char path[256];
        snprintf(path, sizeof path, "%s/model/model.safetensors", folder.path);
        cutter c = {.path = path, .kept_bytes = kept[i % QR_COUNT_OF(kept)]};
        qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
        qrun_model *model = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        params.path = temporary_path(&folder, "model");
        params.quant = models[i / QR_COUNT_OF(kept)].quant;
        params.progress = cut;
        params.progress_user = &c;
        check_cut(&c, qrun_model_open(context, &params, &model, &error), &error);
        CHECK(model == NULL);
        temporary_remove(&folder);
    }
}

static void test_while_a_folder_is_quantised(void) {
    static const qrun_quant quants[] = {QRUN_QUANT_NF4, QRUN_QUANT_AUTO, QRUN_QUANT_INT8};
    for (size_t i = 0; i < QR_COUNT_OF(quants) * QR_COUNT_OF(kept); i++) {
        const temporary_folder folder = temporary_create();
        copy_folder(&folder, MODELS "llama", "model");
        char path[256];
        snprintf(path, sizeof path, "%s/model/model.safetensors", folder.path);
        cutter c = {.path = path, .kept_bytes = kept[i % QR_COUNT_OF(kept)]};
        qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        params.path = temporary_path(&folder, "model");
        params.out = temporary_path(&folder, "out");
        params.quant = quants[i / QR_COUNT_OF(kept)];
        params.progress = cut;
        params.progress_user = &c;
        check_cut(&c, qrun_quantize_folder(context, &params, &error), &error);
        CHECK(!qr_file_exists(temporary_path(&folder, "out")));
        temporary_remove(&folder);
    }
}

/* Of the model, and of the adapter. */
static void test_while_an_adapter_is_merged(void) {
    static const char *const files[] = {"model/model.safetensors", "adapter/adapter_model.safetensors"};
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        const temporary_folder folder = temporary_create();
        copy_folder(&folder, MODELS "llama", "model");
        copy_folder(&folder, FIXTURES "adapters/llama-lora", "adapter");
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder.path, files[i]);
        cutter c = {.path = path};
        qrun_merge_params params = QRUN_MERGE_PARAMS_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        params.path = temporary_path(&folder, "model");
        params.adapter = temporary_path(&folder, "adapter");
        params.out = temporary_path(&folder, "out");
        params.progress = cut;
        params.progress_user = &c;
        check_cut(&c, qrun_merge_folder(context, &params, NULL, &error), &error);
        CHECK(!qr_file_exists(temporary_path(&folder, "out")));
        temporary_remove(&folder);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    params.n_threads = 2;
    if (qrun_context_create(&params, &context, &error) != QRUN_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_while_a_model_loads);
    CHECK_RUN(test_while_a_folder_is_quantised);
    CHECK_RUN(test_while_an_adapter_is_merged);
    qrun_context_destroy(context);
    return check_end();
}
