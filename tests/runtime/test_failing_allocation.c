/* Every allocation on the way from a folder to an answer fails once: a clean error or no harm, and nothing is lost. */
#include "check.h"

#include "runtime/model/model.h"
#include "session_run.h"
#include "temporary.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

static qrun_context *context;
static temporary_folder folder; /* a model with a tokenizer and a template */
static qrun_model *model;       /* opened from it */
static qrun_session *session;

static void copy_file(const char *from, const char *name) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    CHECK_MSG(qr_file_read(from, SIZE_MAX, &bytes, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    temporary_write(&folder, name, bytes, n_bytes);
    qr_free(bytes);
}

static void make_folder(void) {
    folder = temporary_create();
    copy_file(FIXTURES "models/llama/config.json", "config.json");
    copy_file(FIXTURES "models/llama/generation_config.json", "generation_config.json");
    copy_file(FIXTURES "models/llama/model.safetensors", "model.safetensors");
    copy_file(FIXTURES "tokenizers/llama2/tokenizer.json", "tokenizer.json");
    temporary_text(&folder, "tokenizer_config.json",
                   "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"chat_template\": "
                   "\"{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}\"}");
}

/* ---- The sweep --------------------------------------------------------------------------------------------------- */

/* Runs the operation whole and takes back all that it made. */
typedef qrun_status (*operation)(qrun_error *error);

static void sweep(const char *what, operation run) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(run(&error) == QRUN_OK, "%s: %s", what, error.message); /* what is made once is there now */
    int64_t n = 1, n_harmless = 0;
    for (bool fired = true; fired && check_state.n_failures_in_case == 0; n++) {
        qr_alloc_stats before, after;
        qr_alloc_get_stats(&before);
        error = (qrun_error)QRUN_ERROR_INIT;
        qr_alloc_fail_at(n);
        const qrun_status status = run(&error);
        qr_alloc_fail_at(0);
        qr_alloc_get_stats(&after);
        fired = after.n_allocations - before.n_allocations >= n;
        n_harmless += fired && status == QRUN_OK;
        CHECK_MSG(after.bytes_held == before.bytes_held && after.n_held == before.n_held,
                  "%s: allocation %lld failed and %lld bytes in %lld blocks were lost", what, (long long)n,
                  (long long)(after.bytes_held - before.bytes_held), (long long)(after.n_held - before.n_held));
        CHECK_MSG(status == QRUN_OK || (status == QRUN_ERROR_MEMORY && error.message[0] != '\0'),
                  "%s: allocation %lld failed: %s, \"%s\"", what, (long long)n, qrun_status_name(status),
                  error.message);
        CHECK_MSG(fired || status == QRUN_OK, "%s: %s", what, error.message);
    }
    printf("  %s: %lld allocations, %lld of them not needed\n", what, (long long)n - 2, (long long)n_harmless);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static qrun_status open_context(qrun_error *error) {
    qrun_context *made;
    const qrun_status status = qrun_context_create(NULL, &made, error);
    qrun_context_destroy(made);
    return status;
}

static qrun_status open_model_of(const char *path, qrun_quant quant, qrun_error *error) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path, params.quant = quant;
    qrun_model *made;
    const qrun_status status = qrun_model_open(context, &params, &made, error);
    CHECK((status == QRUN_OK) == (made != NULL));
    qrun_model_destroy(made);
    return status;
}

static qrun_status open_and_quantise(qrun_error *error) { return open_model_of(folder.path, QRUN_QUANT_NF4_DQ, error); }
static qrun_status open_quantised(qrun_error *error) {
    return open_model_of(FIXTURES "models/llama-nf4-dq", QRUN_QUANT_AUTO, error);
}
static qrun_status open_gpt2(qrun_error *error) {
    return open_model_of(FIXTURES "models/gpt2", QRUN_QUANT_INT8, error);
}

static qrun_status open_experts(qrun_error *error) {
    return open_model_of(FIXTURES "models/qwen3-moe-stacked", QRUN_QUANT_INT8, error);
}

static qrun_status open_tokenizer(qrun_error *error) {
    qrun_tokenizer *made;
    const qrun_status status = qrun_tokenizer_open(context, folder.path, &made, error);
    qrun_tokenizer_destroy(made);
    return status;
}

static qrun_status open_adapter(qrun_error *error) {
    qrun_adapter *made;
    const qrun_status status = qrun_adapter_open(model, FIXTURES "adapters/llama-patterns", NULL, &made, error);
    CHECK(qrun_adapter_close(made, NULL) == QRUN_OK);
    return status;
}

static qrun_status make_plan(qrun_error *error) {
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    model_params.path = folder.path;
    qrun_plan_entry *entries;
    int32_t n;
    const qrun_status status = qrun_plan_session(context, &model_params, &session_params, &entries, &n, NULL, error);
    qrun_free(entries);
    return status;
}

static qrun_status open_session(qrun_error *error) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 500, params.max_sequences = 4;
    qrun_session *made;
    const qrun_status status = qrun_session_create(model, &params, &made, error);
    CHECK((status == QRUN_OK) == (made != NULL));
    qrun_session_destroy(made);
    return status;
}

static void test_loading(void) {
    sweep("context", open_context);
    sweep("tokenizer", open_tokenizer);
    sweep("model, quantised while it is read", open_and_quantise);
    sweep("model of experts", open_experts);
    sweep("model stored by bitsandbytes", open_quantised);
    sweep("model with Conv1D weights", open_gpt2);
    sweep("plan", make_plan);
    sweep("session", open_session);
    sweep("adapter", open_adapter);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static qrun_request_params common(run_record *record) {
    static const char *const stops[] = {"never", "ever"};
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    static const int32_t ids[] = {1, 2};
    params.stop = stops, params.n_stop = 2, params.stop_token_ids = ids, params.n_stop_token_ids = 2,
    params.max_tokens = 12, params.n = 3, params.temperature = 1, params.logprobs = 3, params.min_tokens = 4;
    params.prompt_logprobs = 2;
    params.ignore_eos = true, params.on_event = run_on_event, params.user = record;
    return params;
}

/* After a submission, whether it worked or not: all that was accepted runs to its end, with nothing failing. */
static void finish(const run_record *record, qrun_status status) {
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(record->n_last == (status == QRUN_OK) && !record->malformed && record->n_errors == 0);
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK && stats.pages_used == 0 && stats.n_waiting == 0);
}

static qrun_status submit(qrun_request_params params, qrun_error *error) {
    const qrun_status status = qrun_session_submit(session, &params, NULL, error);
    qr_alloc_fail_at(0);
    finish(params.user, status);
    return status;
}

static qrun_status submit_ids(qrun_error *error) {
    static const int32_t ids[] = {5, 6, 7};
    run_record record = {.n_done = 0};
    qrun_request_params params = common(&record);
    params.token_ids = ids, params.n_token_ids = 3;
    return submit(params, error);
}

static qrun_status submit_prompt(qrun_error *error) {
    run_record record = {.n_done = 0};
    qrun_request_params params = common(&record);
    params.prompt = "Once upon a time \xF0\x9F\x98\x80 there was";
    return submit(params, error);
}

static qrun_status submit_messages(qrun_error *error) {
    run_record record = {.n_done = 0};
    qrun_request_params params = common(&record);
    params.messages_json = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
    return submit(params, error);
}

static qrun_status submit_json(qrun_error *error) {
    static const char json[] =
        "{\"prompt\": \"Hello there\", \"stop\": [\"x\", \"yy\"], \"max_tokens\": 5, \"seed\": 1}";
    run_record record = {.n_done = 0};
    const qrun_request_params params = common(&record);
    const qrun_status status =
        qrun_session_submit_json(session, json, strlen(json), "line 1", &params, true, "Be brief.", NULL, error);
    qr_alloc_fail_at(0);
    finish(&record, status);
    return status;
}

static int n_failed_requests;

/* Once accepted, a request ends well, or alone with an error where what it starts with cannot be allocated. */
static qrun_status generate(qrun_error *error) {
    run_record record = {.n_done = 0}, other = {.n_done = 0};
    qrun_request_params params = common(&record);
    params.prompt = "Once upon a time";
    qrun_status status = qrun_session_submit(session, &params, NULL, error);
    if (status != QRUN_OK) {
        qr_alloc_fail_at(0);
        return status;
    }
    status = qrun_session_run(session, error);
    qr_alloc_fail_at(0);
    CHECK(status == QRUN_OK && record.n_last == 1 && !record.malformed);
    n_failed_requests += record.n_errors;
    if (record.n_errors == 0) { CHECK_INT(record.n_done, 3); }
    params.user = &other;
    /* The session continues as if nothing had happened. */
    CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
    finish(&other, QRUN_OK);
    CHECK_INT(other.n_done, 3);
    return status;
}

/* With all kinds of parts; the answer itself is short, because few tokens of the fixture fit it. */
static const char schema[] =
    "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 3}, {\"$ref\": \"#/$defs/o\"}], \"$defs\": {\"o\": {"
    "\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"enum\": [\"x\", 1]}},"
    "\"b\": {\"type\": \"string\", \"pattern\": \"^[a-c]{2,3}|x$\"}, \"c\": {\"oneOf\": [{\"type\": \"null\"}, "
    "{\"type\": \"string\", \"maxLength\": 9}]}}, \"required\": [\"d\"], \"additionalProperties\": {}}}}";

/* In a session of its own, whose first request with a schema makes what all of them need. */
static qrun_status answer_in(const char *json_schema, const qrun_answer_form *forms, int32_t n_forms,
                             qrun_error *error) {
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    session_params.kv_tokens = 200, session_params.max_sequences = 4;
    run_record record = {.n_done = 0};
    qrun_request_params params = common(&record);
    params.prompt = "Once", params.json_schema = json_schema, params.ignore_eos = false, params.prompt_logprobs = -1;
    params.answer_forms = forms, params.n_answer_forms = n_forms;
    qrun_session *made;
    qrun_status status = qrun_session_create(model, &session_params, &made, error);
    if (status == QRUN_OK) { status = qrun_session_submit(made, &params, NULL, error); }
    if (status == QRUN_OK) { status = qrun_session_run(made, error); }
    qr_alloc_fail_at(0);
    CHECK(!record.malformed && (status != QRUN_OK || record.n_last == 1));
    qrun_session_destroy(made);
    return status;
}

static qrun_status answer_in_form(qrun_error *error) { return answer_in(schema, NULL, 0, error); }

static qrun_status answer_in_one_of_forms(qrun_error *error) {
    static const char tags[] = "{\"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"enum\": [\"x\", 1]}}}";
    const qrun_answer_form forms[] = {{.before = "", .schema = schema, .after = ""},
                                      {.name = "tags", .schema = tags, .value = QRUN_FORM_TAGGED}};
    return answer_in(NULL, forms, 2, error);
}

static qrun_status evaluate(qrun_error *error) {
    const qrun_eval_params params = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    static const char text[] = "Once upon a time there was a text that was scored.";
    return qrun_session_eval(session, text, strlen(text), &params, &result, error);
}

static qrun_status render(qrun_error *error) {
    char *text;
    size_t n_bytes;
    const qrun_status status =
        qrun_chat_render(qrun_model_tokenizer(model), "[{\"role\": \"user\", \"content\": \"Hi\"}]", NULL, "{\"a\": 1}",
                         true, &text, &n_bytes, error);
    qrun_free(text);
    return status;
}

static qrun_status tokenize(qrun_error *error) {
    int32_t *ids;
    int64_t n;
    static const char words[] = "some words \xE2\x82\xAC and more of them";
    qrun_status status = qrun_tokenize(qrun_model_tokenizer(model), words, strlen(words), true, true, &ids, &n, error);
    char *text = NULL;
    size_t n_bytes;
    if (status == QRUN_OK) {
        status = qrun_detokenize(qrun_model_tokenizer(model), ids, n, false, &text, &n_bytes, error);
    }
    qrun_free(ids);
    qrun_free(text);
    return status;
}

static void test_requests(void) {
    sweep("tokenize", tokenize);
    sweep("chat template", render);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 500, params.max_sequences = 4;
    session = run_session(model, &params);
    if (session == NULL) { return; }
    sweep("request of ids", submit_ids);
    sweep("request of a prompt", submit_prompt);
    sweep("request of messages", submit_messages);
    sweep("request in JSON", submit_json);
    sweep("generate", generate);
    CHECK(n_failed_requests > 0);
    sweep("answer in a form", answer_in_form);
    sweep("answer in one of several forms", answer_in_one_of_forms);
    sweep("perplexity", evaluate);
    qrun_session_destroy(session);
}

/* ---- The backend's memory ---------------------------------------------------------------------------------------- */

static qrun_status (*real_memory_create)(qr_backend *, qr_memory_kind, size_t, void **, qr_error *);
static int64_t n_until_failure, n_created;

static qrun_status failing_memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                         qr_error *err) {
    *memory = NULL;
    n_created++;
    if (--n_until_failure == 0) { return qr_fail_memory(err, "device memory", n_bytes); }
    return real_memory_create(backend, kind, n_bytes, memory, err);
}

static void test_device_memory(void) {
    static const struct {
        const char *what;
        operation run;
    } operations[] = {{"model", open_and_quantise},
                      {"model of bitsandbytes", open_quantised},
                      {"session", open_session},
                      {"adapter", open_adapter}};
    qr_backend *backend = context->backend;
    real_memory_create = backend->memory_create;
    backend->memory_create = failing_memory_create;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        for (int64_t n = 1;; n++) {
            size_t before, after, peak;
            qr_alloc_stats held_before, held_after;
            backend->memory_held(backend, &before, &peak);
            qr_alloc_get_stats(&held_before);
            n_until_failure = n, n_created = 0;
            qrun_error error = QRUN_ERROR_INIT;
            const qrun_status status = operations[i].run(&error);
            backend->memory_held(backend, &after, &peak);
            qr_alloc_get_stats(&held_after);
            const bool keeps = i == 3; /* the model keeps the adapters' table */
            CHECK_MSG((before == after || keeps) && held_before.bytes_held == held_after.bytes_held,
                      "%s: device memory was lost", operations[i].what);
            CHECK_INT(status, n_created >= n ? QRUN_ERROR_MEMORY : QRUN_OK);
            if (n_created < n) { break; }
        }
    }
    backend->memory_create = real_memory_create;
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    make_folder();
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = folder.path, params.quant = QRUN_QUANT_BF16;
    qrun_error error = QRUN_ERROR_INIT;
    if (qrun_model_open(context, &params, &model, &error) != QRUN_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_loading);
    CHECK_RUN(test_requests);
    CHECK_RUN(test_device_memory);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    temporary_remove(&folder);
    return check_end();
}
