/* A host program with a decimal comma: every file that the library writes has the bytes that it has under C, and is
 * read as it is there, checkpoints of either by the other. */
#include "check.h"

#include <dirent.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "loaders/template/jinja.h"
#include "locales.h"
#include "trainer_run.h"

#define MODEL QRUN_SOURCE_DIR "/examples/model"

/* ---- Everything that is written ---------------------------------------------------------------------------------- */

/* Values that need a point, wherever one is written. */
static qrun_train_params fractions(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.lora.alpha = 6.5F;
    params.lora.lora_dropout = 0.125;
    params.optimization.weight_decay = 0.01;
    params.optimization.loraplus_lr_ratio = 2.5;
    params.data.eval_split = 0.1;
    params.evaluation.eval_every = 2;
    params.batches.max_steps = 4;
    params.saving.keep = 9;
    return params;
}

/* Runs to `last`, resuming what is there, and saves; the adapter is written after the last step. */
static void train_until(const qrun_train_params *params, int64_t last) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16); /* its loss scale is part of a checkpoint */
    qrun_trainer *trainer = trainer_create(model, params);
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    double loss;
    bool done;
    REQUIRE(trainer != NULL);
    for (qrun_train_action next; (next = qrun_trainer_next(trainer)) != QRUN_TRAIN_DONE;) {
        if (next == QRUN_TRAIN_STEP && metrics.step == last) { break; }
        const qrun_status status = next == QRUN_TRAIN_EVALUATE ? qrun_trainer_evaluate(trainer, &loss, &error)
                                                               : qrun_trainer_step(trainer, &metrics, &done, &error);
        CHECK_MSG(status == QRUN_OK, "%s", error.message);
        if (status != QRUN_OK) { break; }
        if (next == QRUN_TRAIN_EVALUATE) { CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK); }
    }
    CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message);
    if (last == params->batches.max_steps) { CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK); }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void train_whole(const char *out) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_train_params params = fractions(out);
    params.lora = (qrun_train_lora){0};
    params.optimization.loraplus_lr_ratio = 0;
    params.weights.full = true;
    params.batches.max_steps = 1;
    model_params.path = MODEL;
    model_params.trainable = true;
    REQUIRE(qrun_model_open(trainer_context, &model_params, &model, &error) == QRUN_OK);
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    CHECK_MSG(qrun_trainer_run(trainer, &error) == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void write_folders(const char *adapter, const char *quantized, const char *merged, const char *facts) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_quantize_params quantize = QRUN_QUANTIZE_PARAMS_INIT;
    qrun_merge_params merge = QRUN_MERGE_PARAMS_INIT;
    char *json = NULL;
    quantize.path = MODEL;
    quantize.out = quantized;
    CHECK_MSG(qrun_quantize_folder(trainer_context, &quantize, &error) == QRUN_OK, "%s", error.message);
    merge.path = quantized;
    merge.adapter = adapter;
    merge.out = merged;
    CHECK_MSG(qrun_merge_folder(trainer_context, &merge, NULL, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_folder_inspect(trainer_context, MODEL, true, &json, &error) == QRUN_OK, "%s", error.message);
    CHECK(json != NULL && qr_file_write(facts, json, strlen(json), &error) == QRUN_OK);
    qrun_free(json);
}

/* Two folders have the same files, to the byte, and no others. Returns how many. */
static int compare_folders(const char *a, const char *b) {
    DIR *listing = opendir(a);
    int n = 0;
    CHECK_MSG(listing != NULL, "%s", a);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.') { continue; }
        char *of_a = qr_path_join(a, entry->d_name), *of_b = qr_path_join(b, entry->d_name);
        if (qr_file_is_folder(of_a)) {
            n += compare_folders(of_a, of_b);
        } else {
            CHECK_MSG(qr_file_exists(of_b) && trainer_files_are_equal(of_a, of_b), "%s differs from %s", of_b, of_a);
            n++;
        }
        qr_free(of_a);
        qr_free(of_b);
    }
    if (listing != NULL) { closedir(listing); }
    return n;
}

static void write_everything(const char *folder) {
    char out[6][512];
    static const char *const names[] = {"adapter", "whole", "quantized", "merged", "inspect.json", "tokens"};
    for (int i = 0; i < 6; i++) { snprintf(out[i], sizeof out[i], "%s/%s", folder, names[i]); }
    REQUIRE(qr_folder_create(folder, NULL) == QRUN_OK);
    qrun_train_params params = fractions(out[0]);
    params.data.cache_folder = out[5];
    train_until(&params, 4);
    train_whole(out[1]);
    write_folders(out[0], out[2], out[3], out[4]);
}

static void test_files_have_the_same_bytes(void) {
    char *of_c = trainer_path("c"), *of_de = trainer_path("de");
    write_everything(of_c);
    if (!locales_begin("de_DE")) { return; }
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    CHECK_STR(text, "0,5"); /* the locale is one that matters */
    write_everything(of_de);
    locales_end();
    const int n = compare_folders(of_c, of_de);
    CHECK_MSG(n >= 30, "only %d files", n);
}

/* What one locale has written the other resumes, to the same bytes. */
static void test_checkpoints_are_read_in_either(void) {
    const qrun_train_params whole = fractions(trainer_path("unbroken"));
    const qrun_train_params from_c = fractions(trainer_path("from_c")), from_de = fractions(trainer_path("from_de"));
    train_until(&whole, 4);
    train_until(&from_c, 2);
    if (!locales_begin("de_DE")) { return; }
    train_until(&from_c, 4);
    train_until(&from_de, 2);
    locales_end();
    train_until(&from_de, 4);
    CHECK(compare_folders(whole.saving.out, from_c.saving.out) > 10);
    CHECK(compare_folders(whole.saving.out, from_de.saving.out) > 10);
}

/* ---- What is read, said and rendered ----------------------------------------------------------------------------- */

typedef struct sampled {
    int32_t tokens[16];
    int n;
} sampled;

static void on_event(void *user, const qrun_event *event) {
    sampled *s = user;
    if (event->type == QRUN_EVENT_TOKEN && s->n < 16) { s->tokens[s->n++] = event->token_id; }
}

/* A request with fractions, in JSON. */
static void sample(qrun_session *session, sampled *out) {
    static const char request[] = "{\"prompt\": \"Once\", \"temperature\": 0.85, \"top_p\": 0.9, \"min_p\": 1.5e-2, "
                                  "\"repetition_penalty\": 1.1, \"seed\": 3, \"max_tokens\": 12}";
    qrun_error error = QRUN_ERROR_INIT;
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.on_event = on_event;
    params.user = out;
    CHECK_MSG(qrun_session_submit_json(session, request, sizeof request - 1, "request", &params, false, NULL, NULL,
                                       &error) == QRUN_OK,
              "%s", error.message);
    CHECK(qrun_session_run(session, &error) == QRUN_OK);
}

static void test_models_and_requests_are_read_the_same(void) {
    sampled of_c = {.n = 0}, of_de = {.n = 0};
    for (int i = 0; i < 2; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_session *session = NULL;
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        params.kv_tokens = 128;
        params.max_sequences = 2;
        if (i == 1 && !locales_begin("de_DE")) { return; }
        qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F32);
        REQUIRE(model != NULL && qrun_session_create(model, &params, &session, &error) == QRUN_OK);
        sample(session, i == 0 ? &of_c : &of_de);
        qrun_session_destroy(session);
        qrun_model_destroy(model);
    }
    locales_end();
    CHECK(of_c.n > 0);
    CHECK_INT(of_de.n, of_c.n);
    CHECK(memcmp(of_c.tokens, of_de.tokens, sizeof of_c.tokens) == 0);
}

/* The scores of a Unigram vocabulary decide where it cuts. */
static void test_tokenizers_are_read_the_same(void) {
    static const char text[] = "the quick brown fox jumps over the lazy dog 3.14";
    int32_t *ids[2] = {NULL, NULL};
    int64_t n[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_tokenizer *tokenizer = NULL;
        if (i == 1 && !locales_begin("de_DE")) { break; }
        CHECK_MSG(qrun_tokenizer_open(trainer_context, QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/unigram_bytes",
                                      &tokenizer, &error) == QRUN_OK,
                  "%s", error.message);
        CHECK(qrun_tokenize(tokenizer, text, sizeof text - 1, true, false, &ids[i], &n[i], &error) == QRUN_OK);
        qrun_tokenizer_destroy(tokenizer);
    }
    if (ids[1] != NULL) {
        locales_end();
        CHECK(n[0] > 0 && n[0] == n[1] && memcmp(ids[0], ids[1], (size_t)n[0] * sizeof *ids[0]) == 0);
    }
    qrun_free(ids[0]);
    qrun_free(ids[1]);
}

/* Python's strftime_now knows no locale either, unless its program sets one. */
static void render(char *out, size_t n_bytes) {
    static const char text[] = "{{ 0.5 }} {{ '%.2f'|format(1.5) }} {{ '{:.3%}'.format(0.125) }} {{ '1.25'|float }} "
                               "{{ 2.675|round(2) }} {{ x|tojson }} {{ strftime_now('%A %d %b %x %c') }}";
    static const char json[] = "{\"tenth\": 0.1, \"tiny\": 1e-7}";
    qr_error err = {0};
    qr_jinja_template *parsed = NULL;
    qr_json *root = NULL;
    qr_buffer rendered = {0};
    CHECK_MSG(qr_jinja_parse(text, sizeof text - 1, "t", &parsed, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_json_parse(json, sizeof json - 1, "j", &root, &err) == QRUN_OK, "%s", err.message);
    const qr_jinja_variable x = {.name = "x", .kind = QR_JINJA_GIVE_JSON, .json = root};
    CHECK_MSG(qr_jinja_render(parsed, &x, 1, 1700000000, &rendered, &err) == QRUN_OK, "%s", err.message);
    qr_json_append(&rendered, root);
    snprintf(out, n_bytes, "%s", rendered.data != NULL ? rendered.data : "");
    qr_jinja_free(parsed);
    qr_json_free(root);
    qr_buffer_free(&rendered);
}

static void test_templates_render_the_same(void) {
    char of_c[512], of_de[512];
    render(of_c, sizeof of_c);
    CHECK_MSG(strstr(of_c, "0.5 1.50 12.500% 1.25") == of_c, "%s", of_c);
    CHECK_MSG(strstr(of_c, "Tuesday 14 Nov") != NULL, "%s", of_c);
    CHECK_MSG(strstr(of_c, "{\"tenth\":0.1,\"tiny\":1e-07}") != NULL, "%s", of_c);
    if (!locales_begin("de_DE")) { return; }
    render(of_de, sizeof of_de);
    locales_end();
    CHECK_STR(of_de, of_c);
}

static void test_messages_have_points(void) {
    if (!locales_begin("de_DE")) { return; }
    qrun_error error = QRUN_ERROR_INIT;
    qrun_peaks peaks = {.struct_size = sizeof peaks};
    qrun_train_params params = trainer_params("/");
    params.optimization.warmup = -0.5;
    CHECK_INT(qrun_context_measure_peaks(trainer_context, -0.5, &peaks, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "not -0.5") != NULL, "%s", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(qrun_train_params_check(&params, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "not -0.5") != NULL, "%s", error.message);
    locales_end();
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    CHECK_RUN(test_files_have_the_same_bytes);
    CHECK_RUN(test_checkpoints_are_read_in_either);
    CHECK_RUN(test_models_and_requests_are_read_the_same);
    CHECK_RUN(test_tokenizers_are_read_the_same);
    CHECK_RUN(test_templates_render_the_same);
    CHECK_RUN(test_messages_have_points);
    trainer_run_end();
    return check_end();
}
