/* Tokens that a folder's tokenizer has and its model no row for: refused where nothing can be done with them, trained
 * with both tables beside LoRA or with everything, served by the adapter that brings them. Uses the model in
 * examples/model with three tokens added, of which the examples have two. */
#include "check_open.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "loaders/files/safetensors.h"
#include "trainer_run.h"

#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"
#define TABLES "embed_tokens,lm_head"

enum { OWN_TOKENS = 2048, ALL_TOKENS = 2051, UNSEEN = 2050, HIDDEN = 192 };

/* A copy of a model's folder with `from` → `to` in one of its files, or with nothing changed (from NULL). */
static bool copy_folder(const char *source, const char *folder, const char *file, const char *from, const char *to) {
    char command[1200], path[600], *text = NULL;
    size_t n_bytes;
    snprintf(command, sizeof command, "mkdir '%s' && cp '%s'/*.json '%s'/*.safetensors '%s'", folder, source, source,
             folder);
    if (system(command) != 0) { return false; }
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (qr_file_read(path, 1 << 24, &text, &n_bytes, NULL) != QRUN_OK) { return false; }
    const char *at = strstr(text, from);
    FILE *out = at != NULL ? fopen(path, "w") : NULL;
    if (out != NULL) {
        fwrite(text, 1, (size_t)(at - text), out);
        fputs(to, out);
        fputs(at + strlen(from), out);
    }
    qr_free(text);
    return out != NULL && fclose(out) == 0;
}

static bool make_folders(void) {
    FILE *file = fopen(trainer_path("new.jsonl"), "w");
    for (int i = 0; file != NULL && i < 40; i++) {
        fprintf(file, "{\"prompt\": \"The animal number %d is \", \"completion\": \"<%s> and says hello\"}\n", i,
                i % 2 == 0 ? "fox" : "owl");
    }
    if (file == NULL || fclose(file) != 0) { return false; }
    static const char added[] =
        "\"added_tokens\": [{\"id\": 2048, \"content\": \"<fox>\"}, {\"id\": 2049, \"content\": \"<owl>\"}, "
        "{\"id\": 2050, \"content\": \"<elk>\"},";
    return copy_folder(EXAMPLE, trainer_path("model"), "tokenizer.json", "\"added_tokens\": [", added) &&
           copy_folder(trainer_path("model"), trainer_path("two-tables"), "config.json",
                       "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
}

static qrun_model *open_model(const char *path, bool trainable, bool random) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.trainable = trainable;
    params.random_weights = random;
    return check_open_model(trainer_context, &params);
}

static int32_t vocab_of(const qrun_model *model) {
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
    return info.vocab_size;
}

static qrun_train_params params_of(const char *out, const char *modules) {
    qrun_train_params params = trainer_params(out);
    params.data.train_data = trainer_paths("new.jsonl");
    params.lora.modules_to_save = modules;
    params.weights.full = modules == NULL;
    params.lora.rank = modules == NULL ? 0 : params.lora.rank;
    params.optimization.learning_rate = 2e-3;
    return params;
}

static void expect_refused(qrun_model *model, const qrun_train_params *params, qrun_status expected, const char *why) {
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_status status = qrun_trainer_create(model, params, &trainer, &error);
    CHECK_MSG(status == expected && strstr(error.message, why) != NULL, "%d: %s", (int)status, error.message);
    CHECK_INT(vocab_of(model), OWN_TOKENS);
    qrun_trainer_destroy(trainer);
}

/* Greedy, 4 tokens; the status of the submission. */
static qrun_status generate(qrun_model *model, qrun_adapter *adapter, const char *prompt, qrun_error *error) {
    qrun_session *session = NULL;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.prompt = prompt;
    request.max_tokens = 4;
    request.adapter = adapter;
    qrun_status status = qrun_session_create(model, &params, &session, error);
    if (status == QRUN_OK) { status = qrun_session_submit(session, &request, NULL, error); }
    if (status == QRUN_OK) { status = qrun_session_run(session, error); }
    qrun_session_destroy(session);
    return status;
}

static void check_prompt_is_refused(qrun_model *model) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(generate(model, NULL, "The <fox> is", &error), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, "\"<fox>\" (2048)") != NULL, "%s", error.message);
}

/* Of a folder with itself, with an adapter or none. */
static qrun_status compare(const char *adapter, qrun_difference *difference, qrun_error *error) {
    static const char text[] = "The <fox> is here.";
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
    qrun_compare_params params = QRUN_COMPARE_PARAMS_INIT;
    model.path = trainer_path("model");
    params.model = params.other = &model, params.adapter = params.other_adapter = adapter;
    params.text = text, params.text_bytes = strlen(text);
    return qrun_compare_outputs(trainer_context, &params, difference, error);
}

/* A run with the tables beside LoRA, or of everything, in the memory that was planned. */
static void train(qrun_model *model, const qrun_train_params *params, int64_t last, double *losses) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_trainer *trainer = trainer_create(model, params);
    REQUIRE(trainer != NULL);
    CHECK_INT(vocab_of(model), ALL_TOKENS);
    trainer_run_steps(trainer, last, losses);
    CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_MSG((last < 12 ? qrun_trainer_save(trainer, &error) : qrun_trainer_export(trainer, &error)) == QRUN_OK, "%s",
              error.message);
    qrun_trainer_destroy(trainer);
}

static void renew_context(void) { /* whose high-water mark is that of all its models */
    qrun_context_destroy(trainer_context);
    REQUIRE(qrun_context_create(NULL, &trainer_context, NULL) == QRUN_OK);
}

static void test_tokens_without_a_row_are_refused(void) {
    qrun_model *model = open_model(trainer_path("model"), false, false);
    REQUIRE(model != NULL);
    qrun_train_params params = params_of(trainer_path("none"), "lm_head");
    expect_refused(model, &params, QRUN_ERROR_INPUT, "line 1: has the token \"<fox>\" (2048)");
    params.lora.modules_to_save = NULL;
    expect_refused(model, &params, QRUN_ERROR_INPUT, "`modules_to_save=embed_tokens,lm_head`, or `full`");
    params.data.train_data = trainer_paths("data.jsonl");
    params.data.eval_data = trainer_paths("new.jsonl");
    params.data.n_eval_data = 1;
    expect_refused(model, &params, QRUN_ERROR_INPUT, "new.jsonl: line 1");
    params = params_of(trainer_path("none"), TABLES);
    params.memory.memory_bytes = 1 << 20; /* found out once the tables are described with their new rows */
    expect_refused(model, &params, QRUN_ERROR_MEMORY, "needs");
    check_prompt_is_refused(model);
    qrun_model_destroy(model);
    qrun_difference difference = QRUN_DIFFERENCE_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(compare(NULL, &difference, &error), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, "the text has the token \"<fox>\" (2048)") != NULL, "%s", error.message);
}

/* Examples without new tokens leave the tables as they are, so that adapters stay as small and as portable. */
static void test_tables_grow_only_for_the_examples(void) {
    qrun_model *model = open_model(trainer_path("model"), false, false);
    qrun_train_params params = params_of(trainer_path("plain"), TABLES);
    params.data.train_data = trainer_paths("data.jsonl");
    qrun_trainer *trainer = trainer_create(model, &params);
    CHECK_INT(vocab_of(model), OWN_TOKENS);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* The row of a token that no example has: no gradient, no decay, so it is where it began in a table that is only looked
 * up. */
static void check_unseen_row(const char *folder) {
    qr_safetensors *before, *after;
    const qr_safetensors_tensor *old, *new, *head;
    qr_error err = {0};
    static const int64_t old_dims[] = {OWN_TOKENS, HIDDEN}, new_dims[] = {ALL_TOKENS, HIDDEN};
    char path[600];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    REQUIRE(qr_safetensors_open(EXAMPLE, &before, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_open(path, &after, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_require(before, "model.embed_tokens.weight", QR_DTYPES_FLOAT, 2, old_dims, &old, &err) ==
            QRUN_OK);
    REQUIRE(qr_safetensors_require(after, "base_model.model.model.embed_tokens.weight", QR_DTYPES_FLOAT, 2, new_dims,
                                   &new, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_require(after, "base_model.model.lm_head.weight", QR_DTYPES_FLOAT, 2, new_dims, &head,
                                   &err) == QRUN_OK);
    for (int64_t c = 0; c < HIDDEN; c++) {
        double sum = 0;
        float value = 0, seen = 0, rounded = 0;
        uint16_t mean;
        for (int64_t r = 0; r < OWN_TOKENS; r++) {
            qr_elements_to_f32(old->dtype, old->data, r * HIDDEN + c, 1, &value);
            sum += (double)value;
        }
        value = (float)(sum / OWN_TOKENS);
        qr_elements_from_f32(QR_DTYPE_BF16, &value, 1, &mean);
        qr_elements_to_f32(QR_DTYPE_BF16, &mean, 0, 1, &rounded);
        qr_elements_to_f32(new->dtype, new->data, (int64_t)UNSEEN * HIDDEN + c, 1, &value);
        qr_elements_to_f32(new->dtype, new->data, (int64_t)OWN_TOKENS * HIDDEN + c, 1, &seen);
        CHECK_MSG(value == rounded, "column %d: %g, not %g", (int)c, (double)value, (double)rounded);
        CHECK_MSG(seen != rounded, "column %d of a trained row has not moved", (int)c);
    }
    qr_safetensors_close(before);
    qr_safetensors_close(after);
}

static void check_is_served(const char *base, const char *path) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_adapter *adapter = NULL;
    qrun_model *model = open_model(base, false, false);
    CHECK_MSG(qrun_adapter_open(model, path, NULL, &adapter, &error) == QRUN_OK, "%s", error.message);
    CHECK_INT(vocab_of(model), ALL_TOKENS);
    CHECK_MSG(generate(model, adapter, "The <fox> and the <elk>", &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_adapter_close(adapter, NULL) == QRUN_OK);
    CHECK_INT(vocab_of(model), OWN_TOKENS);
    check_prompt_is_refused(model);
    qrun_model_destroy(model);
}

static void test_tables_beside_lora(void) {
    double losses[12], again[12];
    for (int part = 0; part < 3; part++) { /* whole; up to step 5; the rest */
        const qrun_train_params params = params_of(trainer_path(part == 0 ? "whole" : "stopped"), TABLES);
        renew_context();
        qrun_model *model = open_model(trainer_path("model"), false, false);
        train(model, &params, part == 1 ? 5 : 12, part == 0 ? losses : again);
        CHECK_INT(vocab_of(model), OWN_TOKENS);
        check_prompt_is_refused(model);
        qrun_model_destroy(model);
    }
    CHECK_MSG(losses[11] < 0.7 * losses[0], "loss from %.3f to %.3f", losses[0], losses[11]);
    CHECK(memcmp(losses, again, sizeof losses) == 0);
    CHECK(trainer_adapters_are_equal(trainer_path("whole"), trainer_path("stopped")));
    check_unseen_row(trainer_path("whole"));
    check_is_served(trainer_path("model"), trainer_path("whole"));
    qrun_difference difference = QRUN_DIFFERENCE_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(compare(trainer_path("whole"), &difference, &error) == QRUN_OK, "%s", error.message);
    CHECK(difference.n_tokens > 3 && difference.max_logit_difference == 0 && difference.n_same_greedy > 3);
}

static void test_an_adapter_needs_its_tokens(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_adapter *adapter = NULL;
    qrun_model *model = open_model(EXAMPLE, false, false);
    CHECK_INT(qrun_adapter_open(model, trainer_path("whole"), NULL, &adapter, &error), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, "tables of 2051 tokens") != NULL && strstr(error.message, "knows 2048") != NULL,
              "%s", error.message);
    CHECK_INT(vocab_of(model), OWN_TOKENS);
    qrun_model_destroy(model);
}

/* Every weight: what is exported is a model with the new vocabulary, and so is what stays in memory, also for another
 * run. */
static void check_full(const char *base, const char *out, bool random) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = params_of(out, NULL);
    params.weights.init_random = random;
    renew_context();
    qrun_model *model = open_model(base, true, random);
    train(model, &params, 12, NULL);
    CHECK_INT(vocab_of(model), ALL_TOKENS);
    CHECK_MSG(generate(model, NULL, "The <fox> is", &error) == QRUN_OK, "%s", error.message);
    params.saving.out = trainer_path(random ? "again-random" : "again");
    qrun_trainer *trainer = trainer_create(model, &params);
    trainer_run_steps(trainer, 2, NULL);
    qrun_trainer_destroy(trainer);
    CHECK_MSG(generate(model, NULL, "The <fox> is", &error) == QRUN_OK, "%s", error.message);
    qrun_model_destroy(model);
    model = open_model(out, false, false);
    REQUIRE(model != NULL);
    CHECK_INT(vocab_of(model), ALL_TOKENS);
    CHECK_MSG(generate(model, NULL, "The <fox> is", &error) == QRUN_OK, "%s", error.message);
    qrun_model_destroy(model);
}

static void test_every_weight(void) { check_full(trainer_path("model"), trainer_path("full"), false); }

/* Embedding and head apart: a model made at random, which then is given its old vocabulary back to be trained again. */
static void test_two_tables(void) {
    check_full(trainer_path("two-tables"), trainer_path("made"), true);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = params_of(trainer_path("base"), NULL);
    params.data.train_data = trainer_paths("data.jsonl");
    params.weights.init_random = true;
    qrun_model *model = open_model(trainer_path("two-tables"), true, true);
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, 2, NULL);
    CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    params = params_of(trainer_path("two-adapter"), TABLES);
    renew_context();
    model = open_model(trainer_path("base"), false, false);
    REQUIRE(model != NULL);
    train(model, &params, 12, NULL);
    qrun_model_destroy(model);
    check_is_served(trainer_path("base"), trainer_path("two-adapter"));
}

/* A head without rows for the last tokens of its embedding: these are refused, and no rows are added after them. */
static void test_a_short_head(void) {
    enum { HEAD_TOKENS = 1003 };
    static const char unchanged[] = "\"model_type\"", why[] = "the model's head has 1003 rows";
    char command[1200];
    snprintf(command, sizeof command, "cp '%s/tokenizer.json' '%s'", trainer_path("model"), trainer_path("short"));
    REQUIRE(copy_folder(QRUN_SOURCE_DIR "/tests/fixtures/models/apertus1p5", trainer_path("short"), "config.json",
                        unchanged, unchanged) &&
            system(command) == 0);
    qrun_error error = QRUN_ERROR_INIT;
    const char *const modules[] = {NULL, TABLES, "lm_head"};
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        qrun_model *model = open_model(trainer_path("short"), modules[i] == NULL, false);
        REQUIRE(model != NULL);
        qrun_trainer *trainer = NULL;
        const qrun_train_params params = params_of(trainer_path("none"), modules[i]);
        CHECK_INT(qrun_trainer_create(model, &params, &trainer, &error), QRUN_ERROR_UNSUPPORTED);
        CHECK_MSG(strstr(error.message, "new.jsonl: line 1: has the token") != NULL, "%s", error.message);
        CHECK_MSG(strstr(error.message, why) != NULL, "%s", error.message);
        CHECK_INT(vocab_of(model), HEAD_TOKENS);
        CHECK_INT(generate(model, NULL, "The <fox> is", &error), QRUN_ERROR_UNSUPPORTED);
        CHECK_MSG(strstr(error.message, why) != NULL, "%s", error.message);
        qrun_model_destroy(model);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(40) || !make_folders()) { return 1; }
    CHECK_RUN(test_tokens_without_a_row_are_refused);
    CHECK_RUN(test_tables_grow_only_for_the_examples);
    CHECK_RUN(test_tables_beside_lora);
    CHECK_RUN(test_an_adapter_needs_its_tokens);
    CHECK_RUN(test_every_weight);
    CHECK_RUN(test_two_tables);
    CHECK_RUN(test_a_short_head);
    trainer_run_end();
    return check_end();
}
