/* Any bytes as a line of a requests file, which is the input that most often comes from others. It is refused with one
 * line that names it, twice the same and with nothing kept; or it is a JSON object that names one prompt, and it runs:
 * as many samples as it asks for, no longer than it says, in whole characters, to one end. */
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "fuzz.h"
#include "loaders/files/json.h"
#include "qrun.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONTEXT_TOKENS = 64, MAX_TOKENS = 3, MAX_SAMPLES = 256 };

static qrun_session *open_session(void) {
    static qrun_context *context;
    static qrun_model *model;
    static qrun_session *session;
    if (session != NULL) { return session; }
    qrun_error err = QRUN_ERROR_INIT;
    const qrun_context_params context_params = {.struct_size = sizeof context_params, .n_threads = 1, .device = "cpu"};
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    session_params.context_tokens = CONTEXT_TOKENS;
    session_params.max_sequences = 4;
    session_params.memory_bytes = (int64_t)256 << 20;
    FUZZ_CHECK(qrun_context_create(&context_params, &context, &err) == QRUN_OK);
    FUZZ_CHECK(qrun_model_open(context, &model_params, &model, &err) == QRUN_OK);
    FUZZ_CHECK(qrun_session_create(model, &session_params, &session, &err) == QRUN_OK);
    return session;
}

/* What the events of one request said. */
typedef struct outcome {
    int n_done, n_last, n_errors;
    int32_t prompt_tokens, completion_tokens[MAX_SAMPLES];
    bool after_last;
} outcome;

static void on_event(void *user, const qrun_event *event) {
    outcome *o = user;
    FUZZ_CHECK(o->n_last == 0);
    FUZZ_CHECK(event->sample >= 0 && event->sample < MAX_SAMPLES);
    FUZZ_CHECK(event->text_bytes == 0 || qr_utf8_valid_prefix(event->text, event->text_bytes) == event->text_bytes);
    if (event->type == QRUN_EVENT_TOKEN) { o->completion_tokens[event->sample]++; }
    if (event->type == QRUN_EVENT_ERROR) { o->n_errors++; }
    if (event->type == QRUN_EVENT_DONE) {
        const char *reason = event->finish_reason;
        FUZZ_CHECK(strcmp(reason, "stop") == 0 || strcmp(reason, "length") == 0 || strcmp(reason, "cancelled") == 0);
        o->n_done++;
        o->prompt_tokens = event->prompt_tokens;
    }
    o->n_last += event->is_last;
}

static int64_t whole_member(const qr_json *root, const char *key, int64_t otherwise) {
    const qr_json *member = qr_json_get(root, key);
    return qr_json_is_null(member) ? otherwise : (int64_t)member->valuedouble;
}

/* An accepted line says what it was taken for. */
static void check_meaning(const char *line, size_t size, const outcome *o) {
    qr_json *root = NULL;
    FUZZ_CHECK(qr_json_parse_line(line, size, "line 1", &root, NULL) == QRUN_OK);
    const qr_json *ids = qr_json_get(root, "token_ids");
    const int n_prompts = !qr_json_is_null(qr_json_get(root, "prompt")) + !qr_json_is_null(ids) +
                          !qr_json_is_null(qr_json_get(root, "messages"));
    const int64_t n = whole_member(root, "n", 1), max_tokens = whole_member(root, "max_tokens", MAX_TOKENS);
    FUZZ_CHECK(n_prompts == 1);
    FUZZ_CHECK(n >= 0 && n <= MAX_SAMPLES && max_tokens >= 0);
    FUZZ_CHECK(o->n_last == 1 && o->n_errors == 0);
    FUZZ_CHECK(o->n_done == (n > 1 ? n : 1));
    FUZZ_CHECK(o->prompt_tokens > 0 && o->prompt_tokens <= CONTEXT_TOKENS);
    FUZZ_CHECK(qr_json_is_null(ids) || (size_t)o->prompt_tokens == qr_json_count(ids));
    for (int i = 0; i < MAX_SAMPLES; i++) {
        FUZZ_CHECK(i < o->n_done || o->completion_tokens[i] == 0);
        FUZZ_CHECK(max_tokens == 0 || o->completion_tokens[i] <= max_tokens);
        FUZZ_CHECK(o->prompt_tokens + o->completion_tokens[i] <= CONTEXT_TOKENS + 1); /* the last one is not read */
    }
    qr_json_free(root);
}

/* Steps of the model take a hundred times as long as all the rest, so most requests are cancelled before the first. */
static void run_to_the_end(qrun_session *session, uint64_t request, int n_steps, const outcome *o) {
    enum { STEPS_MAX = 4096 };
    bool has_work = true;
    for (int step = 0; has_work; step++) {
        FUZZ_CHECK(step < STEPS_MAX);
        if (step == n_steps && o->n_last == 0) { FUZZ_CHECK(qrun_session_cancel(session, request, NULL) == QRUN_OK); }
        FUZZ_CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK);
    }
}

static void check_refusal(qrun_status status, const qrun_error *err) {
    FUZZ_CHECK(status == QRUN_ERROR_INPUT || status == QRUN_ERROR_ARGUMENT || status == QRUN_ERROR_NOT_FOUND ||
               status == QRUN_ERROR_UNSUPPORTED || status == QRUN_ERROR_MEMORY);
    FUZZ_CHECK(strncmp(err->message, "line 1", 6) == 0);
    FUZZ_CHECK(qr_utf8_valid_prefix(err->message, strlen(err->message)) == strlen(err->message));
    for (const char *c = err->message; *c != '\0'; c++) { FUZZ_CHECK((unsigned char)*c >= 0x20U && *c != 0x7F); }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > 4096) { return 0; }
    qrun_session *session = open_session();
    const bool chat = (data[0] & 1U) != 0; /* the first byte is what is not in the line */
    const char *system_prompt = (data[0] & 2U) != 0 ? "Be brief." : NULL, *line = (const char *)data + 1;
    size--;
    outcome o = {0};
    qrun_request_params defaults = QRUN_REQUEST_PARAMS_INIT;
    defaults.max_tokens = MAX_TOKENS;
    defaults.on_event = on_event;
    defaults.user = &o;
    qrun_error first = QRUN_ERROR_INIT, second = QRUN_ERROR_INIT;
    qr_alloc_stats before, after;
    uint64_t request = 0;
    qr_alloc_get_stats(&before);
    const qrun_status status =
        qrun_session_submit_json(session, line, size, "line 1", &defaults, chat, system_prompt, &request, &first);
    if (status == QRUN_OK) {
        FUZZ_CHECK(first.message[0] == '\0' && request > 0);
        run_to_the_end(session, request, (data[0] & 0x1CU) == 0x14U ? 4 : 0, &o);
        check_meaning(line, size, &o);
        return 0;
    }
    check_refusal(status, &first);
    FUZZ_CHECK(qrun_session_submit_json(session, line, size, "line 1", &defaults, chat, system_prompt, NULL, &second) ==
               status);
    FUZZ_CHECK(strcmp(first.message, second.message) == 0);
    qr_alloc_get_stats(&after);
    FUZZ_CHECK(after.n_held == before.n_held);
    return 0;
}
