/* A timeline of a training step: computing is the same to the bit with one, and what it calls free really is. A first
 * pass is noted; a second fills every tensor with NaN as soon as its life has ended, and must give the same loss and
 * gradients. So a life that is too short fails, and so does an op whose overwritten arguments are not those that
 * op_tensors.c lists. Lives of one place never overlap, and nothing holds more than the plan. */
#include "check.h"

#include "../runtime/golden_index.h"
#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/timeline/timeline.h"
#include "training_case.h"

static qr_json *golden_index;
static qrun_context *context;

/* ---- What is noted ----------------------------------------------------------------------------------------------- */

/* Of the first pass: what dies at which event. */
typedef struct noted {
    qr_timeline_tensor *tensors;
    qr_timeline_life *lives;
    int64_t n_lives, n_events;
} noted;

static noted copy_of(const qr_timeline *t) {
    noted n = {.n_lives = t->n_lives, .n_events = t->n_events};
    const size_t tensors = (size_t)t->n_tensors * sizeof *n.tensors, lives = (size_t)t->n_lives * sizeof *n.lives;
    n.tensors = malloc(tensors + 1);
    n.lives = malloc(lives + 1);
    memcpy(n.tensors, t->tensors, tensors);
    memcpy(n.lives, t->lives, lives);
    return n;
}

static void free_noted(noted *n) {
    free(n->tensors);
    free(n->lives);
    *n = (noted){0};
}

static bool share_memory(const qr_timeline_tensor *a, const qr_timeline_tensor *b) {
    const uintptr_t x = (uintptr_t)a->address, y = (uintptr_t)b->address;
    return x < y + b->n_bytes && y < x + a->n_bytes;
}

/* No event finds two tensors alive in one place. */
static void check_places(const noted *n, const char *name) {
    for (int64_t i = 0; i < n->n_lives; i++) {
        const qr_timeline_life *a = &n->lives[i];
        CHECK_MSG(a->first >= 0 && a->first <= a->last && a->last < n->n_events, "%s: a life from %lld to %lld", name,
                  (long long)a->first, (long long)a->last);
        for (int64_t j = 0; j < i; j++) {
            const qr_timeline_life *b = &n->lives[j];
            const qr_timeline_tensor *x = &n->tensors[a->tensor], *y = &n->tensors[b->tensor];
            const bool at_once = a->first < b->last && b->first < a->last;
            CHECK_MSG(!at_once || !share_memory(x, y), "%s: %s (layer %d) and %s (layer %d) live in one place", name,
                      x->name, (int)a->layer, y->name, (int)b->layer);
        }
    }
}

/* ---- Filling what is dead ---------------------------------------------------------------------------------------- */

/* Over the functions of a backend with a timeline: the most recent event is the one that has just ended. */
static struct {
    qr_backend timed;
    const noted *noted;
    int depth;
    int64_t n_filled;
} fill;

static void fill_dead(qr_backend *backend) {
    const qr_timeline *t;
    qr_error err = {0};
    if (fill.depth > 0 || qr_timeline_get(backend, &t, &err) != QRUN_OK) { return; }
    for (int64_t i = 0; i < fill.noted->n_lives; i++) {
        const qr_timeline_life *life = &fill.noted->lives[i];
        const qr_timeline_tensor *tensor = &fill.noted->tensors[life->tensor];
        if (life->last != t->n_events - 1) { continue; }
        bool refilled = false; /* by the op that read it last */
        for (int64_t j = 0; j < fill.noted->n_lives; j++) {
            const qr_timeline_life *other = &fill.noted->lives[j];
            refilled = refilled || (other->first == life->last && j != i &&
                                    share_memory(tensor, &fill.noted->tensors[other->tensor]));
        }
        if (refilled) { continue; }
        memset((void *)(uintptr_t)tensor->address, 0xff, tensor->n_bytes);
        fill.n_filled++;
    }
}

#define FILL_AFTER(call)                           \
    fill.depth++;                                  \
    const qrun_status status = (call);             \
    fill.depth--;                                  \
    if (status == QRUN_OK) { fill_dead(backend); } \
    return status

#define QR_X(name)                                                                                         \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        FILL_AFTER(fill.timed.ops[QR_OP_##name].run(backend, args, workspace, err));                       \
    }
QR_OPS(QR_X)
#undef QR_X

static qrun_status copy_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err) {
    FILL_AFTER(fill.timed.copy_in(backend, device, host, n_bytes, err));
}
static qrun_status copy_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err) {
    FILL_AFTER(fill.timed.copy_out(backend, host, device, n_bytes, err));
}
static qrun_status copy_within(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    FILL_AFTER(fill.timed.copy_within(backend, dst, src, n_bytes, err));
}
static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    FILL_AFTER(fill.timed.fill_zero(backend, device, n_bytes, err));
}
static qrun_status transfer_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, uint64_t *ticket,
                               qr_error *err) {
    FILL_AFTER(fill.timed.transfer_in(backend, device, host, n_bytes, ticket, err));
}
static qrun_status transfer_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                qr_error *err) {
    FILL_AFTER(fill.timed.transfer_out(backend, host, device, n_bytes, ticket, err));
}

static void begin_filling(qr_backend *backend, const noted *n) {
    fill.timed = *backend;
    fill.noted = n;
    fill.n_filled = 0;
    backend->copy_in = copy_in;
    backend->copy_out = copy_out;
    backend->copy_within = copy_within;
    backend->fill_zero = fill_zero;
    backend->transfer_in = transfer_in;
    backend->transfer_out = transfer_out;
#define QR_X(name) backend->ops[QR_OP_##name].run = run_##name;
    QR_OPS(QR_X)
#undef QR_X
}

static void end_filling(qr_backend *backend) {
    qr_recorder *timeline = backend->timeline;
    *backend = fill.timed;
    backend->timeline = timeline;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

static float *run_pass(training_fixture *f, const training_batch *batch, double *sum) {
    qr_backend *backend = f->parameters.backend;
    qr_error err = {0};
    const int64_t n = f->parameters.n_floats;
    float *gradients = malloc((size_t)n * sizeof *gradients);
    CHECK(backend->fill_zero(backend, f->parameters.gradients, qr_parameters_gradient_bytes(&f->parameters), &err) ==
          QRUN_OK);
    CHECK(qr_timeline_restart(backend, &err) == QRUN_OK);
    CHECK_MSG(qr_train_pass_run(f->pass, &batch->batch, 0.01F, true, sum, &err) == QRUN_OK, "%s", err.message);
    CHECK(training_read(&f->parameters, f->parameters.gradients, n, gradients, &err) == QRUN_OK);
    return gradients;
}

static void check_same(const training_fixture *f, const float *expected, const float *got, double loss, double sum,
                       const char *name) {
    const size_t n_bytes = (size_t)f->parameters.n_floats * sizeof(float);
    CHECK_MSG(memcmp(expected, got, n_bytes) == 0, "%s: other gradients", name);
    CHECK_MSG(loss == sum, "%s: a loss of %.17g, not %.17g", name, sum, loss);
}

static void check_case_of(const char *model, const training_options *options, const training_batch *batch) {
    training_fixture f;
    qr_backend *backend = context->backend;
    const qr_timeline *timeline;
    qr_error err = {0};
    char name[128];
    double loss = 0, sum = 0;
    snprintf(name, sizeof name, "%s, %s, %d rows%s, type %d", model, options->policy, (int)options->tile_rows,
             options->offload ? ", offload" : "", (int)options->dtype);
    REQUIRE(qr_timeline_begin(backend, 0, &err) == QRUN_OK);
    if (!training_fixture_open(context, entry_named(golden_index, "gradients", model), options, &f)) {
        qr_timeline_end(backend);
        return;
    }
    float *noted_gradients = run_pass(&f, batch, &loss);
    CHECK(qr_timeline_get(backend, &timeline, &err) == QRUN_OK);
    noted n = copy_of(timeline);
    CHECK_INT(timeline->n_dropped, 0);
    CHECK_MSG(n.n_lives > 0, "%s: no lives", name);
    check_places(&n, name);
    begin_filling(backend, &n);
    for (int i = 0; i < 2; i++) { /* the second begins with nothing but NaN */
        float *gradients = run_pass(&f, batch, &sum);
        CHECK_MSG(fill.n_filled >= n.n_lives / 2, "%s: %lld of %lld filled", name, (long long)fill.n_filled,
                  (long long)n.n_lives);
        check_same(&f, noted_gradients, gradients, loss, sum, name);
        free(gradients);
    }
    end_filling(backend);
    qr_timeline_end(backend);
    float *plain = run_pass(&f, batch, &sum);
    check_same(&f, noted_gradients, plain, loss, sum, name);
    free(plain);
    free(noted_gradients);
    free_noted(&n);
    training_fixture_close(&f);
}

static void test_what_is_free_may_hold_anything(void) {
    static const char *const models[] = {"llama",      "gemma3",     "gpt2",          "qwen3",        "llama-dora",
                                         "qwen3-moe",  "qwen3_5",    "gemma4-shared", "gpt-oss-full", "gemma3-full",
                                         "gemma4-moe", "nemotron-h", "falcon-h1",     "gemma3n"};
    static const training_options options[] = {
        {.policy = "none"},
        {.policy = "full", .dropout = 0.25F},
        {.policy = "every:2", .dtype = QRUN_DTYPE_F32, .offload = true},
        {.policy = "attn", .dtype = QRUN_DTYPE_F16},
        {.policy = "mlp"},
        {.policy = "full", .tile_rows = 7, .offload = true},
    };
    static training_batch batch;
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        const qr_json *entry = entry_named(golden_index, "gradients", models[m]);
        REQUIRE(entry != NULL);
        training_batch_read(entry_named(golden_index, "batches", text_of(entry, "batch")), 0, -1, &batch);
        for (size_t o = 0; o < QR_COUNT_OF(options); o++) {
            training_options wanted = options[o];
            wanted.max_tokens = batch.batch.n_tokens;
            const bool carries_states = strcmp(models[m], "qwen3_5") == 0 || strcmp(models[m], "nemotron-h") == 0 ||
                                        strcmp(models[m], "falcon-h1") == 0;
            const bool is_full = training_is_full(entry);
            if (carries_states && wanted.tile_rows > 0) { continue; }
            if (is_full) { wanted.dropout = 0; }
            check_case_of(models[m], &wanted, &batch);
        }
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!training_begin(&context, &golden_index)) { return 1; }
    CHECK_RUN(test_what_is_free_may_hold_anything);
    qrun_context_destroy(context);
    qr_json_free(golden_index);
    return check_end();
}
