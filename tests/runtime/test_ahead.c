/* Steps that are issued before the tokens of the step before are read, over the CUDA backend on the processor: tokens,
 * log probabilities, texts and ends are those of steps that are issued one after the other, whatever ends, comes or is
 * cancelled meanwhile. And steps go ahead where they can, and nowhere else. */
#include "check_open.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/file.h"
#include "runtime/model/model.h"
#include "session_run.h"
#include "temporary.h"

enum { MOST_REQUESTS = 9, MAX_PROMPT = 60, TEXT_BYTES = 2048 };

static qrun_context *ahead_context, *plain_context;

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* What a request gave, and what its callback does. */
typedef struct heard {
    run_record record;
    char text[TEXT_BYTES];
    size_t n_text;
    qrun_session *session;
    int32_t cancel_after; /* tokens; 0: never */
} heard;

static void on_event(void *user, const qrun_event *event) {
    heard *h = user;
    run_on_event(&h->record, event);
    if (event->sample == 0 && event->text != NULL && h->n_text + event->text_bytes < TEXT_BYTES) {
        memcpy(h->text + h->n_text, event->text, event->text_bytes);
        h->n_text += event->text_bytes;
    }
    if (event->type == QRUN_EVENT_TOKEN && h->record.samples[event->sample].n_tokens == h->cancel_after) {
        CHECK(qrun_session_cancel(h->session, event->request, NULL) == QRUN_OK);
    }
}

/* A session and what is asked of it. A request comes when as many steps have been made as `comes` says. */
typedef struct scene {
    const char *what;
    qrun_session_params session;
    int n_requests;
    qrun_request_params requests[MOST_REQUESTS];
    int32_t ids[MOST_REQUESTS][MAX_PROMPT];
    int comes[MOST_REQUESTS];
    int32_t cancel_after[MOST_REQUESTS];
    int failing_copy; /* the n-th copy out that is waited for fails; 0: none */
} scene;

static scene the_scene;

static scene *scene_begin(const char *what, int n_requests) {
    scene *s = &the_scene;
    memset(s, 0, sizeof *s);
    s->what = what, s->n_requests = n_requests;
    s->session = (qrun_session_params)QRUN_SESSION_PARAMS_INIT;
    s->session.max_sequences = 6, s->session.kv_tokens = 800, s->session.max_step_tokens = 24;
    s->session.speculate = "off";
    for (int r = 0; r < n_requests; r++) {
        qrun_request_params *p = &s->requests[r];
        const int32_t n = 2 + 5 * r % 11;
        for (int32_t i = 0; i < MAX_PROMPT; i++) { s->ids[r][i] = 3 + (r * 31 + i * 7) % 900; }
        *p = (qrun_request_params)QRUN_REQUEST_PARAMS_INIT;
        p->token_ids = s->ids[r], p->n_token_ids = n, p->max_tokens = 4 + 5 * r % 13, p->ignore_eos = true;
        p->logprobs = r % 2 == 0 ? 0 : -1;
        if (r % 3 != 0) { p->temperature = 1.1F, p->has_seed = true, p->seed = (uint64_t)r; }
        if (r % 3 == 2) { p->top_k = 20, p->top_p = 0.8F; }
    }
    return s;
}

/* ---- Running them ------------------------------------------------------------------------------------------------ */

static heard heard_plain[MOST_REQUESTS], heard_ahead[MOST_REQUESTS];
static int copies_left;
static qrun_status (*real_copy_out_end)(qr_backend *backend, uint64_t ticket, qr_error *err);

static qrun_status failing_copy_out_end(qr_backend *backend, uint64_t ticket, qr_error *err) {
    if (--copies_left != 0) { return real_copy_out_end(backend, ticket, err); }
    return qr_fail(err, QRUN_ERROR_DEVICE, "a copy that fails");
}

static void submit(const scene *s, qrun_session *session, int step, heard *out) {
    for (int r = 0; r < s->n_requests; r++) {
        if (s->comes[r] != step) { continue; }
        qrun_request_params request = s->requests[r];
        qrun_error error = QRUN_ERROR_INIT;
        out[r].session = session, out[r].cancel_after = s->cancel_after[r];
        request.on_event = on_event, request.user = &out[r];
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
    }
}

static void make_steps(const scene *s, qrun_session *session, heard *out) {
    bool has_work = true, waits = true;
    for (int step = 0; has_work || waits; step++) {
        qrun_error error = QRUN_ERROR_INIT;
        REQUIRE(step < 2000);
        submit(s, session, step, out);
        const qrun_status status = qrun_session_step(session, &has_work, &error);
        CHECK_MSG(status == QRUN_OK || (s->failing_copy > 0 && status == QRUN_ERROR_DEVICE), "%s", error.message);
        waits = false;
        for (int r = 0; r < s->n_requests; r++) { waits |= s->comes[r] > step; }
    }
}

static qrun_session_stats run_scene(const scene *s, qrun_model *model, heard *out) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session *session = run_session(model, &s->session);
    memset(out, 0, MOST_REQUESTS * sizeof *out);
    if (session == NULL) { return stats; }
    copies_left = s->failing_copy;
    make_steps(s, session, out);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    CHECK_INT(stats.pages_used, 0);
    CHECK_INT(stats.n_running + stats.n_waiting, 0);
    CHECK_INT(stats.n_finished, s->n_requests);
    CHECK(stats.peak_bytes >= stats.planned_bytes);
    qrun_session_destroy(session);
    return stats;
}

static void compare(const scene *s) {
    for (int r = 0; r < s->n_requests; r++) {
        const run_record *ahead = &heard_ahead[r].record, *plain = &heard_plain[r].record;
        char name[128];
        snprintf(name, sizeof name, "%s, request %d", s->what, r);
        CHECK_MSG(ahead->n_last == 1 && !ahead->malformed && ahead->n_errors == 0, "%s: its events", name);
        CHECK_INT(ahead->n_done, plain->n_done);
        for (int i = 0; i < plain->n_done; i++) {
            if (!run_samples_are_equal(&ahead->samples[i], &plain->samples[i], name)) { return; }
        }
    }
}

/* Both ways; returns the statistics of the session whose steps may go ahead. */
static qrun_session_stats check_scene(const scene *s, qrun_model *ahead, qrun_model *plain) {
    const qrun_session_stats without = run_scene(s, plain, heard_plain), with = run_scene(s, ahead, heard_ahead);
    CHECK_INT(without.ahead_steps, 0);
    CHECK_MSG(with.ahead_steps <= with.steps, "%s: %lld of %lld steps", s->what, (long long)with.ahead_steps,
              (long long)with.steps);
    compare(s);
    return with;
}

static void expect_ahead(const scene *s, const qrun_session_stats *stats, int64_t least) {
    CHECK_MSG(stats->ahead_steps >= least, "%s: %lld of %lld steps went ahead", s->what, (long long)stats->ahead_steps,
              (long long)stats->steps);
}

/* ---- What ends, comes and goes ----------------------------------------------------------------------------------- */

static temporary_folder folder;

static void copy_file(const char *from, const char *name) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    CHECK_MSG(qr_file_read(from, SIZE_MAX, &bytes, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    temporary_write(&folder, name, bytes, n_bytes);
    qr_free(bytes);
}

static qrun_model *open_model(qrun_context *context, const char *path) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path, params.quant = QRUN_QUANT_BF16;
    return check_open_model(context, &params);
}

static qrun_model *llama_ahead, *llama_plain; /* with a tokenizer */

/* The batch shrinks from step to step, and no step waits for the tokens of the one before but the first that decodes.
 * Nothing is computed that is not wanted: where a sequence ends by its length, that is known. */
static void test_lengths(void) {
    const scene *s = scene_begin("lengths", 5);
    const qrun_session_stats stats = run_scene(s, llama_ahead, heard_ahead);
    const qrun_session_stats plain = run_scene(s, llama_plain, heard_plain);
    compare(s);
    expect_ahead(s, &stats, stats.steps / 2);
    CHECK_INT(stats.steps, plain.steps);
    CHECK_INT(plain.ahead_steps, 0);
    CHECK_INT(stats.peak_bytes, stats.planned_bytes); /* the first sessions of their contexts */
    CHECK_INT(stats.planned_bytes, plain.planned_bytes);
    CHECK_MSG(stats.replayed_steps > 0, "%lld steps were replayed", (long long)stats.replayed_steps);
}

/* Where a text has three ASCII bytes from `at` on. */
static bool take_stop(const heard *h, char *stop) {
    for (size_t at = h->n_text / 3; at + 3 < h->n_text; at++) {
        memcpy(stop, h->text + at, 3);
        if (((unsigned char)stop[0] | (unsigned char)stop[1] | (unsigned char)stop[2]) < 0x80) { return true; }
    }
    return false;
}

/* End tokens, stop texts and callbacks that cancel, each in the middle of steps that have gone ahead. */
static void test_unexpected_ends(void) {
    static char stop[4];
    static const char *const stops[] = {stop};
    scene *s = scene_begin("unexpected ends", 5);
    for (int r = 0; r < 5; r++) { s->requests[r].max_tokens = 16; }
    (void)run_scene(s, llama_plain, heard_plain);
    qr_token_ids *ends[] = {&llama_ahead->generation.eos, &llama_plain->generation.eos};
    const qr_token_ids kept = *ends[0];
    for (int i = 0; i < 2; i++) { ends[i]->n = 1, ends[i]->ids[0] = heard_plain[1].record.samples[0].tokens[6]; }
    REQUIRE(take_stop(&heard_plain[2], stop));
    s->requests[1].ignore_eos = s->requests[4].ignore_eos = false;
    s->requests[2].stop = stops, s->requests[2].n_stop = 1;
    s->cancel_after[3] = 5;
    const qrun_session_stats stats = check_scene(s, llama_ahead, llama_plain);
    CHECK(heard_ahead[1].record.samples[0].n_tokens <= 6);
    CHECK_STR(heard_ahead[1].record.samples[0].finish_reason, "stop");
    CHECK_STR(heard_ahead[2].record.samples[0].finish_reason, "stop");
    CHECK_INT(heard_ahead[3].record.samples[0].n_tokens, 5);
    CHECK_STR(heard_ahead[3].record.samples[0].finish_reason, "cancelled");
    expect_ahead(s, &stats, 10);
    /* Alone: the step that is under way when it ends is nobody's. */
    s->n_requests = 2, s->comes[1] = 12;
    s->requests[0] = s->requests[1];
    memcpy(s->ids[0], s->ids[1], sizeof s->ids[0]);
    s->requests[0].token_ids = s->ids[0];
    s->what = "an end of one alone";
    const qrun_session_stats alone = check_scene(s, llama_ahead, llama_plain);
    expect_ahead(s, &alone, 8);
    for (int i = 0; i < 2; i++) { *ends[i] = kept; }
}

/* Requests that come meanwhile, samples of one prompt, prompts in pieces, and too few slots. */
static void test_admission(void) {
    scene *s = scene_begin("admission", 7);
    s->session.max_sequences = 4, s->session.max_step_tokens = 16;
    for (int r = 2; r < 7; r++) { s->comes[r] = 3 * r; }
    s->requests[0].max_tokens = 24;
    s->requests[3].n = 3;
    s->requests[5].n_token_ids = MAX_PROMPT;
    s->cancel_after[6] = 1;
    const qrun_session_stats stats = check_scene(s, llama_ahead, llama_plain);
    expect_ahead(s, &stats, 10);
}

/* Sequences that outgrow the pool. */
static void test_few_pages(void) {
    scene *s = scene_begin("few pages", 4);
    s->session.kv_tokens = 64;
    for (int r = 0; r < 4; r++) { s->requests[r].max_tokens = 22, s->requests[r].n_token_ids = 3 + r; }
    s->cancel_after[2] = 18;
    const qrun_session_stats stats = check_scene(s, llama_ahead, llama_plain);
    expect_ahead(s, &stats, 12);
    CHECK_MSG(stats.n_preemptions > 0, "nothing was preempted");
}

/* An answer that says something new until it repeats one token: steps go ahead until there are drafts. */
static void test_speculation(void) {
    scene *s = scene_begin("speculation", 1);
    s->session.speculate = "ngram";
    for (int32_t i = 0; i < MAX_PROMPT; i++) { s->ids[0][i] = 127 + i * 7; }
    s->requests[0].n_token_ids = 11, s->requests[0].max_tokens = 40;
    const qrun_session_stats stats = check_scene(s, llama_ahead, llama_plain);
    const run_sample *answer = &heard_ahead[0].record.samples[0];
    CHECK_INT(answer->tokens[33], answer->tokens[34]);
    CHECK_MSG(stats.draft_tokens > 0, "there were no drafts");
    expect_ahead(s, &stats, 20);
}

/* A copy of tokens that fails, with a step behind it: all is computed again. */
static void test_failure(void) {
    scene *s = scene_begin("a failure", 3);
    qr_backend *backend = ahead_context->backend;
    (void)run_scene(s, llama_plain, heard_plain);
    real_copy_out_end = backend->copy_out_end;
    backend->copy_out_end = failing_copy_out_end;
    s->failing_copy = 4;
    const qrun_session_stats stats = run_scene(s, llama_ahead, heard_ahead);
    backend->copy_out_end = real_copy_out_end;
    CHECK(copies_left < 0);
    compare(s);
    expect_ahead(s, &stats, 4);
}

/* ---- Where steps do not go ahead --------------------------------------------------------------------------------- */

/* What the host samples, for all of the batch; and from the step on after which nobody asks for it. */
static void test_the_host_samples(void) {
    scene *s = scene_begin("best ids", 2);
    s->requests[0].max_tokens = 6, s->requests[0].logprobs = 3, s->requests[1].max_tokens = 6;
    const qrun_session_stats stats = check_scene(s, llama_ahead, llama_plain);
    CHECK_INT(stats.ahead_steps, 0);
    s->what = "penalties, and a longer answer without", s->requests[1].max_tokens = 16;
    s->requests[0].logprobs = 0, s->requests[0].repetition_penalty = 1.3F;
    const qrun_session_stats later = check_scene(s, llama_ahead, llama_plain);
    CHECK_MSG(later.ahead_steps >= 6 && later.ahead_steps <= 10, "%lld steps", (long long)later.ahead_steps);
}

static void test_backends_without(void) {
    const scene *s = scene_begin("turned off", 2);
    for (int i = 0; i < 2; i++) {
        if (i == 0) { CHECK(setenv("QRUN_CUDA_RUN_AHEAD", "0", 1) == 0); }
        qrun_context *context = check_open_context(i == 0 ? "cuda" : "cpu", 1);
        CHECK(unsetenv("QRUN_CUDA_RUN_AHEAD") == 0);
        REQUIRE(context != NULL);
        CHECK(context->backend->copy_out_begin == NULL);
        qrun_model *model = open_model(context, folder.path);
        CHECK_INT(run_scene(s, model, heard_plain).ahead_steps, 0);
        qrun_model_destroy(model);
        qrun_context_destroy(context);
    }
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

static qrun_session_stats check_model(const scene *s, const char *name) {
    char path[512];
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/models/%s", name);
    qrun_model *ahead = open_model(ahead_context, path), *plain = open_model(plain_context, path);
    qrun_session_stats stats = {0};
    if (ahead != NULL && plain != NULL) { stats = check_scene(s, ahead, plain); }
    qrun_model_destroy(ahead);
    qrun_model_destroy(plain);
    return stats;
}

/* Pages that leave windows of eight tokens. */
static void test_windows(void) {
    scene *s = scene_begin("windows", 3);
    s->session.kv = QRUN_KV_INT8;
    for (int r = 0; r < 3; r++) { s->requests[r].max_tokens = 20; }
    const qrun_session_stats stats = check_model(s, "gemma3");
    expect_ahead(s, &stats, 15);
}

/* Rotary frequencies that change when a sequence outgrows 40 tokens. */
static void test_rotary_lengths(void) {
    scene *s = scene_begin("rotary lengths", 2);
    s->requests[0].n_token_ids = 33, s->requests[0].max_tokens = 14;
    s->requests[1].n_token_ids = 20, s->requests[1].max_tokens = 8;
    const qrun_session_stats stats = check_model(s, "phi3-longrope");
    expect_ahead(s, &stats, 8);
}

/* A state of each sequence, which a step too many spoils for a snapshot: only without any. */
static void test_states(void) {
    scene *s = scene_begin("states with snapshots", 2);
    s->requests[0].max_tokens = s->requests[1].max_tokens = 6;
    CHECK_INT(check_model(s, "qwen3-next").ahead_steps, 0);
    s->what = "states", s->session.no_prefix_sharing = true;
    const qrun_session_stats stats = check_model(s, "qwen3-next");
    expect_ahead(s, &stats, 4);
}

/* Inputs of each layer by the token, and steps that are issued op by op. */
static void test_layer_inputs_without_graphs(void) {
    scene *s = scene_begin("layer inputs", 2);
    s->requests[0].max_tokens = s->requests[1].max_tokens = 6;
    qrun_status (*real)(qr_backend *, qr_error *) = ahead_context->backend->record_begin;
    ahead_context->backend->record_begin = NULL;
    const qrun_session_stats stats = check_model(s, "gemma4");
    ahead_context->backend->record_begin = real;
    CHECK_INT(stats.replayed_steps, 0);
    expect_ahead(s, &stats, 4);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/models/llama/config.json", "config.json");
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/models/llama/model.safetensors", "model.safetensors");
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/llama2/tokenizer.json", "tokenizer.json");
    ahead_context = check_open_context("cuda", 1), plain_context = check_open_context("cuda", 1);
    if (ahead_context == NULL || plain_context == NULL) { return 1; }
    plain_context->backend->copy_out_begin = NULL;
    llama_ahead = open_model(ahead_context, folder.path), llama_plain = open_model(plain_context, folder.path);
    if (llama_ahead == NULL || llama_plain == NULL) { return 1; }
    CHECK_RUN(test_lengths);
    CHECK_RUN(test_unexpected_ends);
    CHECK_RUN(test_admission);
    CHECK_RUN(test_few_pages);
    CHECK_RUN(test_speculation);
    CHECK_RUN(test_failure);
    CHECK_RUN(test_the_host_samples);
    CHECK_RUN(test_backends_without);
    CHECK_RUN(test_windows);
    CHECK_RUN(test_rotary_lengths);
    CHECK_RUN(test_states);
    CHECK_RUN(test_layer_inputs_without_graphs);
    qrun_model_destroy(llama_ahead);
    qrun_model_destroy(llama_plain);
    qrun_context_destroy(ahead_context);
    qrun_context_destroy(plain_context);
    temporary_remove(&folder);
    return check_end();
}
