/* Which replica a request goes to: by load, and to where its prompt's beginning was read. And a replica whose session
 * fails is named. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "check.h"

#include <dlfcn.h>

#include "serve/placement.h"

/* ---- Placement --------------------------------------------------------------------------------------------------- */

static placement chooser;

static beginnings of(const char *json, const char *adapter) {
    beginnings b;
    cJSON *prompt = cJSON_Parse(json);
    beginnings_of(prompt, NULL, adapter, &b);
    cJSON_Delete(prompt);
    return b;
}

static beginnings of_text(char letter, size_t n_bytes) {
    char *text = malloc(n_bytes + 1);
    memset(text, letter, n_bytes);
    text[n_bytes] = '\0';
    cJSON *prompt = cJSON_CreateString(text);
    beginnings b;
    beginnings_of(prompt, NULL, "", &b);
    cJSON_Delete(prompt);
    free(text);
    return b;
}

static void test_load(void) {
    const beginnings none = {.n = 0};
    placement_open(&chooser, 3);
    CHECK(placement_choose(&chooser, &none, 1) == 0);
    CHECK(placement_choose(&chooser, &none, 5) == 1);
    CHECK(placement_choose(&chooser, &none, 2) == 2);
    CHECK(placement_choose(&chooser, &none, 1) == 0);
    CHECK(placement_choose(&chooser, &none, 1) == 2); /* two open samples each; 2 has had fewer requests */
    placement_end(&chooser, 1, 5);
    CHECK(placement_choose(&chooser, &none, 1) == 1);
    CHECK(placement_requests(&chooser, 0) == 2 && placement_requests(&chooser, 2) == 2);
    placement_close(&chooser);
}

static void test_conversations(void) {
    static const char first[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char next[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
                               "{\"role\":\"user\",\"content\":\"c\"}]";
    const beginnings a = of(first, ""), b = of(next, ""), other = of(first, "pirate"), none = {.n = 0};
    CHECK(a.n == 1 && b.n == 3 && b.hashes[0] == a.hashes[0] && other.hashes[0] != a.hashes[0]);
    placement_open(&chooser, 2);
    CHECK(placement_choose(&chooser, &none, 1) == 0);
    CHECK(placement_choose(&chooser, &a, 1) == 1);
    CHECK(placement_choose(&chooser, &b, 1) == 1);     /* although the other one has less to do */
    CHECK(placement_choose(&chooser, &other, 1) == 0); /* another adapter's pages are others */
    placement_end(&chooser, 0, 2);
    CHECK(placement_choose(&chooser, &b, PLACEMENT_AHEAD - 1) == 1);
    CHECK(placement_choose(&chooser, &b, 1) == 0); /* too far behind; now both have read it */
    CHECK(placement_choose(&chooser, &b, 1) == 0);
    placement_close(&chooser);
}

/* The longest beginning counts, and many messages or bytes are no more than the marks there are. */
static void test_long_prompts(void) {
    char *json = malloc(1 << 16);
    size_t n = (size_t)sprintf(json, "[");
    for (int i = 0; i < 1000; i++) { n += (size_t)sprintf(json + n, "%s{\"content\":\"%d\"}", i > 0 ? "," : "", i); }
    (void)sprintf(json + n, "]");
    const beginnings many = of(json, ""), text = of_text('x', 100000), shorter = of_text('x', 300);
    (void)sprintf(json, "[1");
    for (int i = 1; i < 200; i++) { strcat(json, ",7"); }
    strcat(json, "]");
    const beginnings ids = of(json, "");
    free(json);
    CHECK(many.n == PLACEMENT_BEGINNINGS_MAX);
    CHECK(text.n == 9 && shorter.n == 1 && text.hashes[0] == shorter.hashes[0]); /* 256 … 65,536 */
    CHECK(of_text('x', 255).n == 0 && of_text('y', 256).hashes[0] != shorter.hashes[0]);
    CHECK(ids.n == 2); /* 64, 128 */
    placement_open(&chooser, 2);
    CHECK(placement_choose(&chooser, &shorter, PLACEMENT_AHEAD + 1) == 0);
    CHECK(placement_choose(&chooser, &text, 1) == 1);
    CHECK(placement_choose(&chooser, &many, 0) == 1);
    placement_end(&chooser, 0, PLACEMENT_AHEAD + 1);
    CHECK(placement_choose(&chooser, &text, 1) == 1); /* 0 has nothing to do, and knows only the beginning */
    placement_close(&chooser);
}

/* ---- A session that fails ---------------------------------------------------------------------------------------- */

static const qrun_session *failing;

/* The library's, but for one session. */
qrun_status qrun_session_step(qrun_session *session, bool *has_work, qrun_error *error) {
    qrun_status (*step)(qrun_session *, bool *, qrun_error *);
    if (session == failing) {
        error->status = QRUN_ERROR_DEVICE;
        (void)snprintf(error->message, sizeof error->message, "the device is gone");
        return QRUN_ERROR_DEVICE;
    }
    *(void **)&step = dlsym(RTLD_NEXT, "qrun_session_step");
    return step(session, has_work, error);
}

static bool open_replica(serve_replica *one, qrun_context **context) {
    const qrun_context_params own = {.struct_size = sizeof own, .n_threads = 1};
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session = QRUN_SESSION_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    model.path = QRUN_SOURCE_DIR "/examples/model";
    session.context_tokens = 64;
    session.max_sequences = 2;
    const bool is_open = qrun_context_create(&own, context, &error) == QRUN_OK &&
                         qrun_model_open(*context, &model, &one->model, &error) == QRUN_OK &&
                         qrun_session_create(one->model, &session, &one->session, &error) == QRUN_OK;
    if (!is_open) { fprintf(stderr, "%s\n", error.message); }
    return is_open;
}

static void test_failure(void) {
    serve_replica replicas[2] = {{.model = NULL}, {.model = NULL}};
    qrun_context *contexts[2] = {NULL, NULL};
    qrun_error error = QRUN_ERROR_INIT;
    for (int i = 0; i < 2; i++) { CHECK(open_replica(&replicas[i], &contexts[i])); }
    failing = replicas[1].session;
    for (int n = 1; n <= 2; n++) {
        serve_params params = {.replicas = n == 1 ? &replicas[1] : replicas,
                               .n_replicas = n,
                               .model = replicas[0].model,
                               .model_name = "model",
                               .defaults = QRUN_REQUEST_PARAMS_INIT,
                               .host = "127.0.0.1",
                               .max_waiting = 1,
                               .max_body_bytes = 1 << 10,
                               .max_connections = 4,
                               .request_seconds = 9,
                               .idle_seconds = 9};
        CHECK(!serve_run(&params, &error));
        CHECK(error.status == QRUN_ERROR_DEVICE);
        CHECK(strcmp(error.message, n == 1 ? "the device is gone" : "replica 1: the device is gone") == 0);
    }
    for (int i = 0; i < 2; i++) {
        qrun_session_destroy(replicas[i].session);
        qrun_model_destroy(replicas[i].model);
        qrun_context_destroy(contexts[i]);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_load);
    CHECK_RUN(test_conversations);
    CHECK_RUN(test_long_prompts);
    CHECK_RUN(test_failure);
    return check_end();
}
