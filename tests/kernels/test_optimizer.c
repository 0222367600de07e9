/* The optimisers: steps worked out by hand and PyTorch's formulas over several steps, on the reference; 8-bit AdamW on
 * every backend against states that a transliteration of bitsandbytes' rules wrote (tests/golden/README.md), byte for
 * byte. */
#include "check.h"

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "kernels/backend.h"
#include "loaders/files/json.h"

#define INDEX QRUN_SOURCE_DIR "/tests/fixtures/training/index.json"

enum { MAX_BACKENDS = 8 };

static qr_backend *backends[MAX_BACKENDS]; /* the first is the reference; memory of all of them is ordinary memory */
static int n_backends;
static qr_threads *threads;

#define NEAR(actual, expected) \
    CHECK_MSG(fabs((double)(actual) - (expected)) <= 2e-6, "%s is %.9g, not %.9g", #actual, (double)(actual), expected)

#define RUN(backend, op, ...)                                                                                    \
    do {                                                                                                         \
        const qr_##op##_args run_args = __VA_ARGS__;                                                             \
        qr_error err = {0};                                                                                      \
        qr_workspace workspace = {.n_bytes = qr_##op##_workspace(backend, &run_args)};                           \
        CHECK((backend)->memory_create(backend, QR_MEMORY_DEVICE, workspace.n_bytes, &workspace.memory, &err) == \
              QRUN_OK);                                                                                          \
        CHECK_MSG(qr_##op(backend, &run_args, workspace, &err) == QRUN_OK, "%s", err.message);                   \
        (backend)->memory_destroy(backend, QR_MEMORY_DEVICE, workspace.memory, workspace.n_bytes);               \
    } while (0)

/* --- By hand --- */

/* The first step is lr · sign(g), the second about that; decay comes first. */
static void test_adamw_by_hand(void) {
    float p[2] = {1.0F, -2.0F}, m[2] = {0}, v[2] = {0};
    const float g[2] = {0.5F, -4.0F};
    RUN(backends[0], adamw,
        {.p = p,
         .g = g,
         .m = m,
         .v = v,
         .n = 2,
         .step = 1,
         .grad_scale = 0.5F,
         .lr = 0.1F,
         .beta1 = 0.9F,
         .beta2 = 0.999F,
         .eps = 1e-8F,
         .weight_decay = 0.01F});
    NEAR(p[0], 0.999 - 0.1);
    NEAR(p[1], -1.998 + 0.1);
    NEAR(m[0], 0.1 * 0.25);
    NEAR(v[1], 0.001 * 4.0);
}

static void test_sgd_by_hand(void) {
    float p[1] = {1.0F}, m[1] = {NAN}; /* not read at the first step */
    const float g[1] = {0.25F};
    qr_sgd_args a = {.p = p,
                     .g = g,
                     .m = m,
                     .n = 1,
                     .step = 1,
                     .grad_scale = 2.0F,
                     .lr = 0.1F,
                     .momentum = 0.9F,
                     .weight_decay = 0.1F};
    RUN(backends[0], sgd, a);
    NEAR(m[0], 0.6);
    NEAR(p[0], 0.94);
    a.step = 2;
    RUN(backends[0], sgd, a);
    NEAR(m[0], 0.54 + 0.594);
    NEAR(p[0], 0.94 - 0.1134);
}

/* Squares 1, 4, 9, 16: row means 2.5 and 12.5 (their mean 7.5), column means 5 and 10. The squares of the updates are
 * 0.6, 1.2, 1.08 and 0.96, their mean 0.96: clipping at 1 leaves them, at 0.5 divides them by sqrt(0.96) / 0.5. */
static void test_adafactor_by_hand(void) {
    float p[4] = {1.0F, 1.0F, 1.0F, 1.0F}, row[2] = {0}, col[2] = {0}, update[4];
    const float g[4] = {1.0F, 2.0F, 3.0F, 4.0F};
    qr_adafactor_args a = {.p = p,
                           .g = g,
                           .row_moment = row,
                           .col_moment = col,
                           .update = update,
                           .rows = 2,
                           .cols = 2,
                           .step = 1,
                           .grad_scale = 1.0F,
                           .lr = 0.1F,
                           .eps1 = 1e-30F,
                           .clip_threshold = 1.0F,
                           .decay_rate = -0.8F};
    RUN(backends[0], adafactor, a);
    NEAR(row[1], 12.5);
    NEAR(col[0], 5.0);
    NEAR(p[0], 1.0 - 0.1 * sqrt(0.6));
    NEAR(p[3], 1.0 - 0.1 * sqrt(0.96));
    a.step = 2; /* the same gradient: the same moments, whatever the decay */
    a.clip_threshold = 0.5F;
    a.weight_decay = 0.5F;
    RUN(backends[0], adafactor, a);
    NEAR(col[1], 10.0);
    NEAR(p[1], (1.0 - 0.1 * sqrt(1.2)) * 0.95 - 0.1 * sqrt(1.2) / sqrt(0.96) * 0.5);
    float vector[2] = {1.0F, 1.0F}, moment[2] = {0}; /* one row: the update is the sign */
    const float vector_g[2] = {-3.0F, 0.125F};
    RUN(backends[0], adafactor,
        {.p = vector,
         .g = vector_g,
         .row_moment = moment,
         .update = update,
         .rows = 1,
         .cols = 2,
         .step = 1,
         .grad_scale = 1.0F,
         .lr = 0.25F,
         .eps1 = 1e-30F,
         .clip_threshold = 1.0F,
         .decay_rate = -0.8F});
    NEAR(vector[0], 1.25);
    NEAR(vector[1], 0.75);
    NEAR(moment[0], 9.0);
}

/* --- PyTorch's formulas, in float64, over several steps --- */

enum { N = 24, ROWS = 4, COLS = 6, N_STEPS = 6 };

static float gradient_of(int64_t step, int64_t i) { return (float)qr_random_normal(11, (uint64_t)step, (uint64_t)i); }

static void check_trajectory(const char *what, const float *p, const double *expected) {
    for (int64_t i = 0; i < N; i++) {
        CHECK_MSG(fabs((double)p[i] - expected[i]) <= 2e-6, "%s: parameter %lld is %.9g, expected %.9g", what,
                  (long long)i, (double)p[i], expected[i]);
    }
}

/* torch/optim/adamw.py, _single_tensor: mul_, lerp_, mul_ and addcmul_, addcdiv_. */
static void test_adamw_follows_torch(void) {
    float p[N], g[N], m[N] = {0}, v[N] = {0};
    double param[N], exp_avg[N] = {0}, exp_avg_sq[N] = {0};
    for (int64_t i = 0; i < N; i++) { param[i] = (double)(p[i] = gradient_of(0, i)); }
    for (int64_t step = 1; step <= N_STEPS; step++) {
        const double step_size = 0.02 / (1.0 - pow(0.8, (double)step)), root = sqrt(1.0 - pow(0.95, (double)step));
        for (int64_t i = 0; i < N; i++) {
            const double grad = (double)(g[i] = gradient_of(step, i));
            param[i] *= 1.0 - 0.02 * 0.1;
            exp_avg[i] += (grad - exp_avg[i]) * (1.0 - 0.8);
            exp_avg_sq[i] = exp_avg_sq[i] * 0.95 + (1.0 - 0.95) * grad * grad;
            param[i] -= step_size * exp_avg[i] / (sqrt(exp_avg_sq[i]) / root + 1e-6);
        }
        RUN(backends[0], adamw,
            {.p = p,
             .g = g,
             .m = m,
             .v = v,
             .n = N,
             .step = step,
             .grad_scale = 1.0F,
             .lr = 0.02F,
             .beta1 = 0.8F,
             .beta2 = 0.95F,
             .eps = 1e-6F,
             .weight_decay = 0.1F});
    }
    check_trajectory("adamw", p, param);
}

/* torch/optim/sgd.py, _single_tensor, dampening 0. */
static void test_sgd_follows_torch(void) {
    float p[N], g[N], m[N];
    double param[N], buffer[N] = {0};
    for (int64_t i = 0; i < N; i++) { param[i] = (double)(p[i] = gradient_of(0, i)); }
    for (int64_t step = 1; step <= N_STEPS; step++) {
        for (int64_t i = 0; i < N; i++) {
            g[i] = gradient_of(step, i);
            const double grad = (double)g[i] + 0.1 * param[i];
            buffer[i] = step == 1 ? grad : buffer[i] * 0.7 + grad;
            param[i] -= 0.02 * buffer[i];
        }
        RUN(backends[0], sgd,
            {.p = p,
             .g = g,
             .m = m,
             .n = N,
             .step = step,
             .grad_scale = 1.0F,
             .lr = 0.02F,
             .momentum = 0.7F,
             .weight_decay = 0.1F});
    }
    check_trajectory("sgd", p, param);
}

/* One step of transformers' optimization.py, Adafactor.step, for a matrix, with its intermediate matrices. */
static void torch_adafactor(double *param, const double *grad, double *row, double *col, int64_t step) {
    const double beta2t = 1.0 - pow((double)step, -0.8);
    double update[N], row_mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < N; i++) { update[i] = grad[i] * grad[i] + 1e-30; }
    for (int64_t r = 0; r < ROWS; r++) {
        double mean = 0.0;
        for (int64_t c = 0; c < COLS; c++) { mean += update[r * COLS + c] / COLS; }
        row[r] = row[r] * beta2t + (1.0 - beta2t) * mean;
        row_mean += row[r] / ROWS;
    }
    for (int64_t c = 0; c < COLS; c++) {
        double mean = 0.0;
        for (int64_t r = 0; r < ROWS; r++) { mean += update[r * COLS + c] / ROWS; }
        col[c] = col[c] * beta2t + (1.0 - beta2t) * mean;
    }
    for (int64_t i = 0; i < N; i++) {
        const double r_factor = 1.0 / sqrt(row[i / COLS] / row_mean), c_factor = 1.0 / sqrt(col[i % COLS]);
        update[i] = r_factor * c_factor * grad[i];
        squares += update[i] * update[i];
    }
    const double rms = sqrt(squares / N);
    for (int64_t i = 0; i < N; i++) {
        const double clipped = update[i] / fmax(1.0, rms / 0.9);
        param[i] += -0.1 * 0.02 * param[i];
        param[i] -= 0.02 * clipped;
    }
}

static void test_adafactor_follows_transformers(void) {
    float p[N], g[N], row[ROWS] = {0}, col[COLS] = {0}, update[N];
    double param[N], grad[N], row_state[ROWS] = {0}, col_state[COLS] = {0};
    for (int64_t i = 0; i < N; i++) { param[i] = (double)(p[i] = gradient_of(0, i)); }
    for (int64_t step = 1; step <= N_STEPS; step++) {
        for (int64_t i = 0; i < N; i++) { grad[i] = (double)(g[i] = gradient_of(step, i)); }
        torch_adafactor(param, grad, row_state, col_state, step);
        RUN(backends[0], adafactor,
            {.p = p,
             .g = g,
             .row_moment = row,
             .col_moment = col,
             .update = update,
             .rows = ROWS,
             .cols = COLS,
             .step = step,
             .grad_scale = 1.0F,
             .lr = 0.02F,
             .eps1 = 1e-30F,
             .clip_threshold = 0.9F,
             .decay_rate = -0.8F,
             .weight_decay = 0.1F});
    }
    check_trajectory("adafactor", p, param);
}

/* --- 8-bit AdamW against the goldens --- */

/* Numbers without rounding, as tests/golden/adamw8bit_goldens.py makes them: SplitMix64 of a counter gives 24 bits of
 * sign and fraction and a power of two. */
static float golden_number(int64_t seed, int64_t step, int64_t i) {
    const uint64_t counter = ((uint64_t)seed << 48) + ((uint64_t)step << 40) + (uint64_t)i + 1;
    const uint64_t z = qr_hash_mix(counter * UINT64_C(0x9E3779B97F4A7C15));
    return ldexpf((float)((int64_t)(z >> 40) - (1 << 23)), -23 - (int)(z & 7));
}

static int64_t whole(const qr_json *object, const char *key) {
    const qr_json *value = qr_json_get(object, key);
    CHECK_MSG(cJSON_IsNumber(value), "no number %s", key);
    return value != NULL ? (int64_t)value->valuedouble : 0;
}

static float real(const qr_json *object, const char *key) {
    const qr_json *value = qr_json_get(object, key);
    CHECK_MSG(cJSON_IsNumber(value), "no number %s", key);
    return value != NULL ? (float)value->valuedouble : 0.0F;
}

static void fill_gradient(const qr_json *golden, int64_t step, int64_t n, float *g) {
    for (int64_t i = 0; i < n; i++) { g[i] = golden_number(whole(golden, "seed"), step, i); }
    for (const qr_json *range = qr_json_first(qr_json_get(golden, "zeros")); range != NULL; range = range->next) {
        const int64_t first = (int64_t)range->child->valuedouble, end = (int64_t)range->child->next->valuedouble;
        for (int64_t i = first; i < end; i++) { g[i] = 0.0F; }
    }
    for (const qr_json *item = qr_json_first(qr_json_get(golden, "non_finite")); item != NULL; item = item->next) {
        const qr_json *at = item->child, *index = at->next, *value = index->next;
        if ((int64_t)at->valuedouble == step) { g[(int64_t)index->valuedouble] = strtof(value->valuestring, NULL); }
    }
}

static void check_hash(const qr_json *hashes, const char *name, const void *bytes, size_t n_bytes, const char *where) {
    const qr_json *expected = qr_json_get(hashes, name);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)qr_hash_bytes(QR_HASH_START, bytes, n_bytes));
    CHECK_MSG(cJSON_IsString(expected) && strcmp(hash, expected->valuestring) == 0, "%s: %s is not that of the golden",
              where, name);
}

typedef struct moments {
    float *p, *g, *m_absmax, *v_absmax;
    uint8_t *m, *v;
    int64_t n;
} moments;

/* The 32-bit states of a tensor too small for 8. */
static void check_small(qr_backend *backend, const qr_json *golden) {
    const int64_t n = whole(golden, "n");
    const size_t size = (size_t)n * sizeof(float);
    float *p = qr_alloc(size), *g = qr_alloc(size), *m = qr_alloc_zeroed(size), *v = qr_alloc_zeroed(size);
    for (int64_t i = 0; i < n; i++) { p[i] = golden_number(whole(golden, "seed"), 0, i); }
    int64_t step = 0;
    for (const qr_json *item = qr_json_first(qr_json_get(golden, "steps")); item != NULL; item = item->next) {
        const qr_json *hashes = qr_json_get(item, "fnv1a64");
        char where[160];
        fill_gradient(golden, ++step, n, g);
        RUN(backend, adamw,
            {.p = p,
             .g = g,
             .m = m,
             .v = v,
             .n = n,
             .step = step,
             .grad_scale = real(golden, "grad_scale"),
             .lr = real(golden, "lr"),
             .beta1 = real(golden, "beta1"),
             .beta2 = real(golden, "beta2"),
             .eps = real(golden, "eps"),
             .weight_decay = real(golden, "weight_decay"),
             .of_8bit = true});
        snprintf(where, sizeof where, "%s/%s: small tensor, step %lld", backend->name, backend->isa, (long long)step);
        check_hash(hashes, "m", m, size, where);
        check_hash(hashes, "v", v, size, where);
        check_hash(hashes, "p", p, size, where);
    }
    CHECK(step > 0);
    qr_free(p), qr_free(g), qr_free(m), qr_free(v);
}

static void check_step(const moments *state, const qr_json *golden_step, const char *where) {
    const size_t n = (size_t)state->n, n_blocks = (size_t)qr_ceil_div(state->n, 256);
    const qr_json *hashes = qr_json_get(golden_step, "fnv1a64");
    check_hash(golden_step, "gradient_fnv1a64", state->g, n * sizeof(float), where);
    check_hash(hashes, "m", state->m, n, where);
    check_hash(hashes, "v", state->v, n, where);
    check_hash(hashes, "m_absmax", state->m_absmax, n_blocks * sizeof(float), where);
    check_hash(hashes, "v_absmax", state->v_absmax, n_blocks * sizeof(float), where);
    check_hash(hashes, "p", state->p, n * sizeof(float), where);
}

static void check_golden(qr_backend *backend, const qr_json *golden) {
    const size_t n = (size_t)whole(golden, "n"), n_blocks = (n + 255) / 256;
    moments state = {.n = (int64_t)n,
                     .p = qr_alloc(n * sizeof(float)),
                     .g = qr_alloc(n * sizeof(float)),
                     .m = qr_alloc_zeroed(n),
                     .v = qr_alloc_zeroed(n),
                     .m_absmax = qr_alloc_zeroed(n_blocks * sizeof(float)),
                     .v_absmax = qr_alloc_zeroed(n_blocks * sizeof(float))};
    for (int64_t i = 0; i < state.n; i++) { state.p[i] = golden_number(whole(golden, "seed"), 0, i); }
    int64_t step = 0;
    for (const qr_json *item = qr_json_first(qr_json_get(golden, "steps")); item != NULL; item = item->next) {
        char where[160];
        fill_gradient(golden, ++step, state.n, state.g);
        RUN(backend, adamw8bit,
            {.p = state.p,
             .g = state.g,
             .m = state.m,
             .v = state.v,
             .m_absmax = state.m_absmax,
             .v_absmax = state.v_absmax,
             .n = state.n,
             .step = step,
             .grad_scale = real(golden, "grad_scale"),
             .lr = real(golden, "lr"),
             .beta1 = real(golden, "beta1"),
             .beta2 = real(golden, "beta2"),
             .eps = real(golden, "eps"),
             .weight_decay = real(golden, "weight_decay")});
        snprintf(where, sizeof where, "%s/%s: %s, step %lld", backend->name, backend->isa,
                 qr_json_get(golden, "name")->valuestring, (long long)step);
        check_step(&state, item, where);
    }
    CHECK(step > 0);
    void *const memory[] = {state.p, state.g, state.m, state.v, state.m_absmax, state.v_absmax};
    for (size_t i = 0; i < QR_COUNT_OF(memory); i++) { qr_free(memory[i]); }
}

static void test_adamw8bit_goldens(void) {
    qr_json *root = NULL;
    qr_error err = {0};
    int n_checked = 0, n_small = 0;
    CHECK_MSG(qr_json_read(INDEX, (size_t)1 << 26, &root, &err) == QRUN_OK, "%s", err.message);
    for (const qr_json *golden = qr_json_first(qr_json_get(root, "adamw8bit")); golden != NULL; golden = golden->next) {
        const bool small = whole(golden, "bits") == 32;
        for (int b = 0; b < n_backends; b++) { (small ? check_small : check_golden)(backends[b], golden); }
        n_checked++;
        n_small += small;
    }
    CHECK(n_checked >= 4 && n_small >= 1);
    qr_json_free(root);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_threads_create(2, &threads, NULL) != QRUN_OK) { return 1; }
    if (qr_backend_ref_create(threads, &backends[n_backends++], NULL) != QRUN_OK) { return 1; }
    for (const char *const *isa = qr_backend_cpu_isas(); *isa != NULL && n_backends < MAX_BACKENDS; isa++) {
        if (qr_backend_cpu_create(*isa, threads, &backends[n_backends++], NULL) != QRUN_OK) { return 1; }
    }
    CHECK_RUN(test_adamw_by_hand);
    CHECK_RUN(test_sgd_by_hand);
    CHECK_RUN(test_adafactor_by_hand);
    CHECK_RUN(test_adamw_follows_torch);
    CHECK_RUN(test_sgd_follows_torch);
    CHECK_RUN(test_adafactor_follows_transformers);
    CHECK_RUN(test_adamw8bit_goldens);
    for (int b = 0; b < n_backends; b++) { qr_backend_destroy(backends[b]); }
    qr_threads_destroy(threads);
    return check_end();
}
