/* Finding a model: paths, the hub's cache under every variable, and what is refused by name. */
#include "check.h"

#include <unistd.h>

#include "base/sizes.h"
#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"
#include "loaders/files/hub.h"
#include "loaders/files/model_folder.h"
#include "loaders/files/safetensors.h"
#include "temporary.h"

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};

static void clear_variables(void) {
    for (size_t i = 0; i < QR_COUNT_OF(variables); i++) { unsetenv(variables[i]); }
}

static void make_folder(const temporary_folder *base, const char *name) {
    CHECK_INT(qr_folder_create(temporary_path(base, name), NULL), QRUN_OK);
}

static void check_refused(const char *name, qrun_status expected, const char *message) {
    char *folder;
    qr_error err = {0};
    CHECK_INT(qr_model_folder_resolve(name, &folder, &err), expected);
    CHECK(folder == NULL);
    CHECK_MSG(strstr(err.message, message) != NULL, "\"%s\" does not say \"%s\"", err.message, message);
    qr_free(folder);
}

static void check_found(const char *name, const char *expected) {
    char *folder;
    qr_error err = {0};
    CHECK_MSG(qr_model_folder_resolve(name, &folder, &err) == QRUN_OK, "%s", err.message);
    CHECK_STR(folder, expected);
    qr_free(folder);
}

static void test_folders(void) {
    const temporary_folder base = temporary_create();
    make_folder(&base, "m");
    char model[128];
    snprintf(model, sizeof model, "%s/m", base.path);
    check_refused(model, QRUN_ERROR_NOT_FOUND, "has no config.json");
    temporary_text(&base, "m/config.json", "{}");
    check_refused(model, QRUN_ERROR_NOT_FOUND, "no model.safetensors and no model.safetensors.index.json");
    temporary_text(&base, "m/pytorch_model.bin", "");
    check_refused(model, QRUN_ERROR_UNSUPPORTED, "only as PyTorch pickles");
    temporary_text(&base, "m/x.gguf", "");
    check_refused(model, QRUN_ERROR_ARGUMENT, "is a folder with GGUF files; give one of them");
    temporary_text(&base, "m/model.safetensors.index.json", "{}");
    check_found(model, model);
    temporary_text(&base, "m/quant_config.json", "{}"); /* of AWQ and GPTQ: config.json says the same */
    temporary_text(&base, "m/quantize_config.json", "{}");
    check_found(model, model);

    make_folder(&base, "adapter");
    temporary_text(&base, "adapter/adapter_config.json", "{}");
    check_refused(temporary_path(&base, "adapter"), QRUN_ERROR_ARGUMENT, "is an adapter, not a model");
    check_refused(temporary_path(&base, "m/config.json"), QRUN_ERROR_ARGUMENT, "is a file");
    check_refused(temporary_path(&base, "m/x.gguf"), QRUN_ERROR_INPUT, "does not begin as a GGUF file does");
    check_refused("no-such-file.gguf", QRUN_ERROR_NOT_FOUND, "there is no such file");
    temporary_text(&base, "m/blob", "GGUF\3"); /* known by its first bytes, as ollama names files */
    snprintf(model, sizeof model, "%s/m/blob", base.path);
    check_found(model, model);
    check_refused(temporary_path(&base, "absent"), QRUN_ERROR_NOT_FOUND, "there is no such folder");
    check_refused("a/b/c", QRUN_ERROR_NOT_FOUND, "there is no such folder");
    check_refused("", QRUN_ERROR_ARGUMENT, "path is empty");
    check_refused("no-such-config.json", QRUN_ERROR_NOT_FOUND, "there is no such file");
    check_refused("../qrun-absent-name", QRUN_ERROR_NOT_FOUND, "there is no such folder");
    temporary_remove(&base);
}

static void make_cached(const temporary_folder *base, const char *cache, const char *model) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s/refs", cache, model);
    make_folder(base, name);
    snprintf(name, sizeof name, "%s/%s/refs/main", cache, model);
    temporary_text(base, name, "0123abcd\n");
    snprintf(name, sizeof name, "%s/%s/snapshots/0123abcd", cache, model);
    make_folder(base, name);
    snprintf(name, sizeof name, "%s/%s/snapshots/0123abcd/config.json", cache, model);
    temporary_text(base, name, "{}");
    snprintf(name, sizeof name, "%s/%s/snapshots/0123abcd/model.safetensors", cache, model);
    temporary_text(base, name, "");
}

static void test_cache_variables(void) {
    static const struct {
        const char *variable, *value, *cache;
    } places[] = {
        {"HF_HUB_CACHE", "one", "one"},
        {"HUGGINGFACE_HUB_CACHE", "two", "two"},
        {"HF_HOME", "three", "three/hub"},
        {"XDG_CACHE_HOME", "four", "four/huggingface/hub"},
        {"HOME", "five", "five/.cache/huggingface/hub"},
    };
    const temporary_folder base = temporary_create();
    clear_variables();
    /* From the last to the first: each goes before those already set. */
    for (size_t i = QR_COUNT_OF(places); i > 0; i--) {
        make_cached(&base, places[i - 1].cache, "models--org--na.me-1");
        setenv(places[i - 1].variable, temporary_path(&base, places[i - 1].value), 1);
        char expected[512];
        snprintf(expected, sizeof expected, "%s/models--org--na.me-1/snapshots/0123abcd", places[i - 1].cache);
        check_found("org/na.me-1", temporary_path(&base, expected));
    }
    setenv("HOME", temporary_path(&base, "five"), 1);
    setenv("HF_HUB_CACHE", "~/.cache/huggingface/hub", 1);
    make_cached(&base, "five/.cache/huggingface/hub", "models--gpt2");
    check_found("gpt2", temporary_path(&base, "five/.cache/huggingface/hub/models--gpt2/snapshots/0123abcd"));
    clear_variables();
    temporary_remove(&base);
}

static void test_damaged_cache(void) {
    const temporary_folder base = temporary_create();
    clear_variables();
    setenv("HF_HUB_CACHE", base.path, 1);
    check_refused("org/name", QRUN_ERROR_NOT_FOUND, "get it with: hf download org/name");
    check_refused("org/name", QRUN_ERROR_NOT_FOUND, base.path);
    make_cached(&base, ".", "models--org--name");
    temporary_text(&base, "models--org--name/refs/main", "../../../etc");
    check_refused("org/name", QRUN_ERROR_INPUT, "does not hold a commit");
    temporary_text(&base, "models--org--name/refs/main", "");
    check_refused("org/name", QRUN_ERROR_INPUT, "does not hold a commit");
    temporary_text(&base, "models--org--name/refs/main", "ffff");
    check_refused("org/name", QRUN_ERROR_NOT_FOUND, "snapshots/ffff: is not there");
    CHECK_INT(remove(temporary_path(&base, "models--org--name/refs/main")), 0);
    check_refused("org/name", QRUN_ERROR_NOT_FOUND,
                  "\"org/name\" is in the cache, but not its revision main; get it with: hf download org/name");
    check_refused("org/name", QRUN_ERROR_NOT_FOUND, "there are the commits 0123abcd, as in NAME@COMMIT");
    clear_variables();
    temporary_remove(&base);
}

static void test_revisions(void) {
    const temporary_folder base = temporary_create();
    const char *found = "models--org--name/snapshots/0123abcd";
    clear_variables();
    setenv("HF_HUB_CACHE", base.path, 1);
    make_cached(&base, ".", "models--org--name");
    check_found("org/name@main", temporary_path(&base, found));
    check_found("org/name@0123abcd", temporary_path(&base, found));
    check_found("org/name@0123abc", temporary_path(&base, found));
    check_refused("org/name@0123ab", QRUN_ERROR_NOT_FOUND,
                  "not its revision 0123ab; get it with: hf download org/name --revision 0123ab");
    check_refused("org/name@v1", QRUN_ERROR_NOT_FOUND, "--revision v1");
    make_folder(&base, "models--org--name/refs/refs/pr");
    temporary_text(&base, "models--org--name/refs/refs/pr/1", "0123abcd");
    check_found("org/name@refs/pr/1", temporary_path(&base, found));
    make_folder(&base, "models--org--name/snapshots/0123abcf");
    check_found("org/name@0123abcd", temporary_path(&base, found));
    check_refused("org/name@0123abc", QRUN_ERROR_NOT_FOUND, "not its revision 0123abc");
    check_refused("org/name@../main", QRUN_ERROR_NOT_FOUND, "there is no such folder");
    check_refused("org/name@", QRUN_ERROR_NOT_FOUND, "there is no such folder");
    check_refused("other/name@v2", QRUN_ERROR_NOT_FOUND, "get it with: hf download other/name --revision v2");
    clear_variables();
    temporary_remove(&base);
}

/* What a snapshot is called, whatever way leads to it, and what completes it. */
static void test_names_of_snapshots(void) {
    const temporary_folder base = temporary_create();
    char *name;
    clear_variables();
    setenv("HF_HUB_CACHE", base.path, 1);
    make_cached(&base, ".", "models--org--name");
    CHECK_INT(qr_hub_name_of(temporary_path(&base, "models--org--name/snapshots/0123abcd"), &name, NULL), QRUN_OK);
    CHECK_STR(name, "org/name@0123abcd");
    qr_free(name);
    char link[256];
    snprintf(link, sizeof link, "%s/link", base.path);
    REQUIRE(symlink("models--org--name/snapshots/0123abcd", link) == 0);
    CHECK_INT(qr_hub_name_of(link, &name, NULL), QRUN_OK);
    CHECK_STR(name, "org/name@0123abcd");
    qr_free(name);
    CHECK_INT(qr_hub_name_of(base.path, &name, NULL), QRUN_OK);
    CHECK(name == NULL);
    CHECK_INT(remove(temporary_path(&base, "models--org--name/snapshots/0123abcd/model.safetensors")), 0);
    check_refused("org/name", QRUN_ERROR_NOT_FOUND,
                  "index.json; complete the download with: hf download org/name --revision 0123abcd");
    temporary_text(&base, "models--org--name/snapshots/0123abcd/model.safetensors.index.json",
                   "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    qr_safetensors *file;
    qr_error err = {0};
    CHECK_INT(qr_safetensors_open(link, &file, &err), QRUN_ERROR_NOT_FOUND);
    CHECK_MSG(strstr(err.message, "2 of its 2 files of weights are missing: m-1.safetensors, m-2.safetensors; complete "
                                  "the download with: hf download org/name --revision 0123abcd") != NULL,
              "%s", err.message);
    clear_variables();
    temporary_remove(&base);
}

static qrun_status attempt_resolve(void *context, qr_error *err) {
    char *folder;
    const qrun_status status = qr_model_folder_resolve(context, &folder, err);
    qr_free(folder);
    return status;
}

static void test_any_allocation_may_fail(void) {
    const temporary_folder base = temporary_create();
    clear_variables();
    make_cached(&base, "hub", "models--org--name");
    setenv("HF_HOME", base.path, 1);
    char id[] = "org/name";
    check_failing_allocations(attempt_resolve, id, false);
    clear_variables();
    temporary_remove(&base);
}

/* Folders that transformers saved: everything opens, and config and tensors agree. */
static void test_saved_models(void) {
    static const struct {
        const char *name, *embedding;
        qr_model_family family;
        qr_rope_type rope;
        qr_stored_quantization stored;
    } models[] = {
        {"llama", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"llama-linear", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_LINEAR, QR_STORED_PLAIN},
        {"llama-dynamic", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_DYNAMIC, QR_STORED_PLAIN},
        {"llama-llama3", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_LLAMA3, QR_STORED_PLAIN},
        {"llama-yarn", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_YARN, QR_STORED_PLAIN},
        {"llama-longrope", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_LONGROPE, QR_STORED_PLAIN},
        {"llama-nf4", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_DEFAULT, QR_STORED_BNB_NF4},
        {"llama-nf4-dq", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_DEFAULT, QR_STORED_BNB_NF4},
        {"llama-int8", "model.embed_tokens.weight", QR_FAMILY_LLAMA, QR_ROPE_DEFAULT, QR_STORED_BNB_INT8},
        {"mistral", "model.embed_tokens.weight", QR_FAMILY_MISTRAL, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"qwen2", "model.embed_tokens.weight", QR_FAMILY_QWEN2, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"qwen2-window", "model.embed_tokens.weight", QR_FAMILY_QWEN2, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"qwen3", "model.embed_tokens.weight", QR_FAMILY_QWEN3, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"gemma2", "model.embed_tokens.weight", QR_FAMILY_GEMMA2, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"gemma3", "model.embed_tokens.weight", QR_FAMILY_GEMMA3, QR_ROPE_LINEAR, QR_STORED_PLAIN},
        {"phi3", "model.embed_tokens.weight", QR_FAMILY_PHI3, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"phi3-longrope", "model.embed_tokens.weight", QR_FAMILY_PHI3, QR_ROPE_LONGROPE, QR_STORED_PLAIN},
        {"gpt2", "transformer.wte.weight", QR_FAMILY_GPT2, QR_ROPE_DEFAULT, QR_STORED_PLAIN},
        {"gpt2-nf4", "transformer.wte.weight", QR_FAMILY_GPT2, QR_ROPE_DEFAULT, QR_STORED_BNB_NF4},
        {"gpt2-int8", "transformer.wte.weight", QR_FAMILY_GPT2, QR_ROPE_DEFAULT, QR_STORED_BNB_INT8},
    };
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        char path[512], *folder;
        snprintf(path, sizeof path, "%s/tests/fixtures/models/%s", QRUN_SOURCE_DIR, models[i].name);
        qr_error err = {0};
        qr_model_config config;
        qr_generation_config generation;
        qr_safetensors *file;
        CHECK_MSG(qr_model_folder_resolve(path, &folder, &err) == QRUN_OK, "%s", err.message);
        REQUIRE(folder != NULL);
        CHECK_MSG(qr_model_config_read(folder, &config, &err) == QRUN_OK, "%s", err.message);
        CHECK_MSG(qr_generation_config_read(folder, &config, &generation, &err) == QRUN_OK, "%s", err.message);
        CHECK_MSG(qr_safetensors_open(folder, &file, &err) == QRUN_OK, "%s", err.message);
        REQUIRE(err.status == QRUN_OK);
        CHECK_MSG(config.family == models[i].family && config.rope.type == models[i].rope &&
                      config.quantization.stored == models[i].stored,
                  "%s: wrong description", models[i].name);
        CHECK_MSG(config.quantization.double_quantised == (strstr(path, "-dq") != NULL), "%s", models[i].name);
        const int64_t dims[2] = {config.vocab_size, config.hidden_size};
        const qr_safetensors_tensor *embedding;
        CHECK_MSG(qr_safetensors_require(file, models[i].embedding, QR_DTYPES_FLOAT, 2, dims, &embedding, &err) ==
                      QRUN_OK,
                  "%s", err.message);
        qr_safetensors_close(file);
        qr_generation_config_free(&generation);
        qr_model_config_free(&config);
        qr_free(folder);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_folders);
    CHECK_RUN(test_cache_variables);
    CHECK_RUN(test_damaged_cache);
    CHECK_RUN(test_revisions);
    CHECK_RUN(test_names_of_snapshots);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_saved_models);
    return check_end();
}
