/* Optimisers over tensors of every kind: states held in host memory give the bits of those on the device; what decays,
 * and what learns faster. */
#include "check.h"

#include "base/alloc.h"
#include "base/random.h"
#include "runtime/model/model.h"
#include "runtime/train/update.h"

enum { N_STEPS = 3 };

/* A model that is nothing but a backend to hold parameters on. */
typedef struct fixture {
    qrun_context context;
    qrun_model model;
    qr_parameters parameters;
} fixture;

/* DEVICE: that of tests/simt, where QRUN_CUDA_LIBRARY names its library. Its transfers come late. */
typedef enum fixture_backend { CPU, REF, DEVICE, N_BACKENDS } fixture_backend;

static qrun_status create_backend(fixture_backend backend, qr_backend **made, qr_error *err) {
    return backend == REF      ? qr_backend_ref_create(NULL, made, err)
           : backend == DEVICE ? qr_backend_cuda_create(NULL, made, err)
                               : qr_backend_cpu_create(NULL, NULL, made, err);
}

static void fixture_create(fixture *f, fixture_backend backend) {
    static const qr_parameter list[] = {
        {.kind = QR_PARAMETER_LORA_A, .rows = 4, .cols = 63},
        {.kind = QR_PARAMETER_LORA_B, .rows = 300, .cols = 4},
        {.kind = QR_PARAMETER_NORM, .rows = 1, .cols = 5},
        {.kind = QR_PARAMETER_BIAS, .rows = 1, .cols = 4097},
        {.kind = QR_PARAMETER_MATRIX, .role = QR_ROLE_EMBEDDING, .rows = 83, .cols = 61},
        {.kind = QR_PARAMETER_LORA_MAGNITUDE, .rows = 1, .cols = 256},
        {.kind = QR_PARAMETER_MATRIX, .role = QR_ROLE_Q, .rows = 64, .cols = 64},
        {.kind = QR_PARAMETER_MATRIX, .role = QR_ROLE_Q, .rows = 2, .cols = 1},
        {.kind = QR_PARAMETER_NORM, .role = QR_ROLE_EXPERT_SCALE, .rows = 1, .cols = 7},
    };
    qr_error err = {0};
    *f = (fixture){0};
    CHECK_MSG(create_backend(backend, &f->context.backend, &err) == QRUN_OK, "%s", err.message);
    f->model.context = &f->context;
    f->parameters.model = &f->model;
    f->parameters.backend = f->context.backend;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        int64_t offset;
        CHECK_MSG(qr_parameters_add(&f->parameters, list[i], &offset, &err) == QRUN_OK, "%s", err.message);
    }
    CHECK_MSG(qr_parameters_create(&f->parameters, &err) == QRUN_OK, "%s", err.message);
}

static void fixture_destroy(fixture *f) {
    size_t held, peak;
    qr_parameters_destroy(&f->parameters);
    f->context.backend->memory_held(f->context.backend, &held, &peak);
    CHECK_INT(held, 0);
    qr_backend_destroy(f->context.backend);
}

static void fill(float *values, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) {
        values[i] = (float)(2 * qr_random_uniform(7, stream, (uint64_t)i) - 1) * (i % 3 == 0 ? 1e-3F : 1.0F);
    }
}

/* Values after some steps of the same random gradients, on the host (qr_free), and the optimiser (to be destroyed);
 * gradients 0: none. */
static float *run_keeping(fixture *f, const qr_optimizer_options *options, float learning_rate, float gradients,
                          qr_optimizer **kept) {
    qr_parameters *p = &f->parameters;
    qr_optimizer *optimizer = NULL;
    qr_error err = {0};
    size_t before, held, peak;
    qr_workspace workspace = {0};
    f->context.backend->memory_held(f->context.backend, &before, &peak);
    CHECK_MSG(qr_optimizer_create(p, options, &optimizer, &err) == QRUN_OK, "%s", err.message);
    f->context.backend->memory_held(f->context.backend, &held, &peak);
    const bool is_apart = f->context.backend->memory_info != NULL;
    CHECK_INT(held - before, qr_optimizer_bytes(p, options) + (is_apart ? 0 : qr_optimizer_host_bytes(p, options)));
    int64_t copied_bytes = 0;
    CHECK(qr_update_plan(p, options, &workspace.n_bytes, &copied_bytes, &err) == QRUN_OK);
    CHECK(f->context.backend->memory_create(f->context.backend, QR_MEMORY_DEVICE, workspace.n_bytes, &workspace.memory,
                                            &err) == QRUN_OK);
    fill(p->values, p->n_floats, 0);
    for (int64_t step = 1; step <= N_STEPS; step++) {
        fill(p->gradients, p->n_floats, (uint64_t)step);
        for (int64_t i = 0; i < p->n_floats; i++) { p->gradients[i] *= gradients; }
        const qr_optimizer_numbers numbers = {p->gradients, true, step, learning_rate, 0.5F};
        CHECK_MSG(qr_optimizer_step(optimizer, &numbers, workspace, &err) == QRUN_OK, "%s", err.message);
    }
    float *values = qr_alloc_array((size_t)p->n_floats, sizeof *values);
    memcpy(values, p->values, (size_t)p->n_floats * sizeof *values);
    f->context.backend->memory_destroy(f->context.backend, QR_MEMORY_DEVICE, workspace.memory, workspace.n_bytes);
    *kept = optimizer;
    return values;
}

/* The same, and the states; NULL: not asked for. */
static float *run(fixture *f, const qr_optimizer_options *options, float learning_rate, float gradients,
                  unsigned char **states, size_t *n_states) {
    qr_parameters *p = &f->parameters;
    qr_optimizer *optimizer = NULL;
    qr_error err = {0};
    float *values = run_keeping(f, options, learning_rate, gradients, &optimizer);
    if (states != NULL) {
        *n_states = qr_optimizer_states_bytes(optimizer);
        *states = qr_alloc(*n_states);
        CHECK(qr_optimizer_states_read(optimizer, 0, *n_states, *states, &err) == QRUN_OK);
        memset(p->values, 0, 8); /* what is written is what is read */
        CHECK(qr_optimizer_states_write(optimizer, 3, *n_states - 3, *states + 3, &err) == QRUN_OK);
        unsigned char byte;
        CHECK(qr_optimizer_states_read(optimizer, *n_states - 1, 1, &byte, &err) == QRUN_OK);
        CHECK_INT(byte, (*states)[*n_states - 1]);
    }
    qr_optimizer_destroy(optimizer);
    return values;
}

static void check_offload(fixture_backend backend, qrun_optimizer kind, int64_t stage_elements) {
    fixture f;
    fixture_create(&f, backend);
    const qr_optimizer_options resident = {.kind = kind, .weight_decay = 0.01F};
    qr_optimizer_options offloaded = resident;
    offloaded.offload = true;
    offloaded.stage_elements = stage_elements;
    CHECK_INT(qr_optimizer_host_bytes(&f.parameters, &resident), 0);
    CHECK(qr_optimizer_host_bytes(&f.parameters, &offloaded) > 0);
    if (stage_elements == 256 && kind != QRUN_OPTIMIZER_ADAFACTOR) { /* Adafactor's scratch is larger than its states */
        CHECK(4 * qr_optimizer_bytes(&f.parameters, &offloaded) < qr_optimizer_bytes(&f.parameters, &resident));
    }
    unsigned char *a_states, *b_states;
    size_t n_a, n_b;
    float *a = run(&f, &resident, 0.01F, 1, &a_states, &n_a), *b = run(&f, &offloaded, 0.01F, 1, &b_states, &n_b);
    CHECK_MSG(memcmp(a, b, (size_t)f.parameters.n_floats * sizeof *a) == 0, "values of optimiser %d differ", (int)kind);
    CHECK_MSG(n_a == n_b && memcmp(a_states, b_states, n_a) == 0, "states of optimiser %d differ", (int)kind);
    float *untouched = qr_alloc_array((size_t)f.parameters.n_floats, sizeof *untouched);
    fill(untouched, f.parameters.n_floats, 0);
    for (int64_t i = 0; i < f.parameters.n; i++) { /* every tensor to its end */
        const qr_parameter *p = &f.parameters.list[i];
        CHECK(a[p->offset] != untouched[p->offset]);
        CHECK(a[p->offset + p->rows * p->cols - 1] != untouched[p->offset + p->rows * p->cols - 1]);
    }
    qr_free(untouched);
    qr_free(a);
    qr_free(b);
    qr_free(a_states);
    qr_free(b_states);
    fixture_destroy(&f);
}

static void test_offloaded_states_give_the_same_bits(void) {
    for (int kind = QRUN_OPTIMIZER_ADAMW; kind <= QRUN_OPTIMIZER_SGD; kind++) {
        for (int b = CPU; b < N_BACKENDS; b++) {
            if (b == DEVICE && getenv("QRUN_CUDA_LIBRARY") == NULL) { continue; }
            check_offload((fixture_backend)b, (qrun_optimizer)kind, 256);
            check_offload((fixture_backend)b, (qrun_optimizer)kind, 4096);
            check_offload((fixture_backend)b, (qrun_optimizer)kind, 0);
        }
    }
}

/* Where a rank's part of a section begins: between blocks of the states or, uncut, between tensors. */
static bool is_boundary(const qr_parameters *p, int64_t begin, bool whole_tensors) {
    bool between = begin == p->n_floats;
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t into = begin - p->list[i].offset, n = p->list[i].rows * p->list[i].cols;
        between = between || into == 0 || (!whole_tensors && into > 0 && into < n && into % QR_SHARD_BLOCK == 0);
    }
    return between;
}

/* The parts of a section follow each other from its begin to its end, equal but for a block, and its chunks are each
 * of one part. What follows each other in a rank's shard has places that do. */
static void check_shards(const qr_parameters *p, const qr_shards *shards, bool whole_tensors) {
    int64_t places[QR_MAX_RANKS] = {0}, n_chunks = 0, n_floats = 0;
    for (int64_t s = 0; s < p->n_sections; s++) {
        const int64_t begin = p->sections[s].begin, end = qr_parameters_section_end(p, s);
        int64_t at = begin, chunks = 0;
        CHECK_INT(qr_parameters_section(p, begin), s);
        CHECK_INT(qr_parameters_section(p, end - 1), s);
        for (int32_t r = 0; r < shards->n_ranks; r++) {
            const qr_shard_part part = qr_shards_part(shards, s, r);
            const qr_shard_chunks c = qr_shards_chunks(shards, s, r);
            const qr_section *section = &p->sections[s];
            const int64_t target = begin + section->all_floats * r / shards->n_ranks - section->floats_before;
            int64_t first;
            CHECK(part.begin == at && part.end >= at && part.end <= end);
            CHECK(is_boundary(p, part.begin, whole_tensors));
            CHECK(whole_tensors || part.begin == begin || part.begin <= target);
            CHECK(whole_tensors || part.begin == end || part.begin > target - QR_SHARD_BLOCK);
            CHECK_INT(qr_shards_common(shards, r, begin, end, &first), part.end - part.begin);
            if (part.begin < part.end) {
                CHECK_INT(qr_shards_place(shards, r, part.begin), places[r]);
                CHECK_INT(qr_shards_place(shards, r, part.end - 1), places[r] + part.end - part.begin - 1);
            }
            if (c.n > 0) {
                CHECK_INT(c.begin, begin + chunks * QR_SQUARES_CHUNK);
                CHECK(c.begin >= part.begin && c.begin < part.end && c.tail == part.end && c.end <= end);
                CHECK_INT(qr_ceil_div(c.end - c.begin, QR_SQUARES_CHUNK), c.n);
            }
            places[r] += part.end - part.begin;
            chunks += c.n;
            at = part.end;
        }
        CHECK_INT(at, end);
        CHECK_INT(chunks, qr_ceil_div(end - begin, QR_SQUARES_CHUNK));
        n_chunks += chunks;
    }
    for (int32_t r = 0; r < shards->n_ranks; r++) {
        CHECK_INT(qr_shards_floats(shards, r), places[r]);
        n_chunks -= qr_shards_count_chunks(shards, r);
        n_floats += places[r];
    }
    CHECK(n_chunks == 0 && n_floats == p->n_floats);
}

/* What each of n ranks makes of its shard is what one makes of everything. So are the states, brought together from
 * what the ranks send of two pieces of them. */
static void check_ranks(fixture *f, const qr_optimizer_options *whole, int32_t n_ranks) {
    const qr_parameters *p = &f->parameters;
    unsigned char *states, *together, *packed;
    size_t n_states, n_found = 0;
    qr_shards shards;
    qr_error err = {0};
    float *wanted = run(f, whole, 0.01F, 1, &states, &n_states);
    together = qr_alloc_zeroed(n_states), packed = qr_alloc(n_states);
    for (int32_t r = 0; r < n_ranks; r++) {
        qr_optimizer_options options = *whole;
        qr_optimizer *optimizer = NULL, *fresh = NULL;
        options.shards = &shards;
        shards = (qr_shards){p, whole->kind == QRUN_OPTIMIZER_ADAFACTOR, r, n_ranks};
        check_shards(p, &shards, whole->kind == QRUN_OPTIMIZER_ADAFACTOR);
        float *values = run_keeping(f, &options, 0.01F, 1, &optimizer);
        for (int64_t s = 0; s < p->n_sections; s++) {
            const qr_shard_part part = qr_shards_part(&shards, s, r);
            const size_t n_bytes = (size_t)(part.end - part.begin) * sizeof *values;
            CHECK_MSG(memcmp(values + part.begin, wanted + part.begin, n_bytes) == 0,
                      "optimiser %d: rank %d of %d has other values", (int)whole->kind, (int)r, (int)n_ranks);
        }
        for (size_t at = 0; at < n_states;) { /* a first piece of an odd size, and the rest */
            const size_t n_piece = at == 0 ? n_states / 3 : n_states - at;
            const size_t n_own = qr_optimizer_states_count(optimizer, r, at, n_piece);
            CHECK(qr_optimizer_states_pack(optimizer, at, n_piece, packed, &err) == QRUN_OK);
            qr_optimizer_states_unpack(optimizer, r, at, n_piece, packed, together + at);
            n_found += n_own;
            at += n_piece;
        }
        /* What a checkpoint has is taken by whoever has the shard. */
        CHECK_INT(qr_optimizer_states_bytes(optimizer), n_states);
        CHECK(qr_optimizer_create(&f->parameters, &options, &fresh, &err) == QRUN_OK);
        CHECK(qr_optimizer_states_write(fresh, 0, n_states, states, &err) == QRUN_OK);
        unsigned char *a = qr_alloc(n_states), *b = qr_alloc(n_states);
        CHECK(qr_optimizer_states_read(optimizer, 0, n_states, a, &err) == QRUN_OK);
        CHECK(qr_optimizer_states_read(fresh, 0, n_states, b, &err) == QRUN_OK);
        CHECK(memcmp(a, b, n_states) == 0);
        qr_free(a);
        qr_free(b);
        qr_free(values);
        qr_optimizer_destroy(fresh);
        qr_optimizer_destroy(optimizer);
    }
    CHECK(n_found <= n_states && n_found > n_states - 64 * 6 * (size_t)p->n); /* all but the gaps between arrays */
    CHECK_MSG(memcmp(together, states, n_states) == 0, "optimiser %d: the states of %d ranks differ", (int)whole->kind,
              (int)n_ranks);
    qr_free(wanted);
    qr_free(states);
    qr_free(together);
    qr_free(packed);
}

static void test_shards_give_the_same_bits(void) {
    static const int32_t counts[] = {1, 2, 3, 8, 100};
    for (int kind = QRUN_OPTIMIZER_ADAMW; kind <= QRUN_OPTIMIZER_SGD; kind++) {
        for (int b = CPU; b < N_BACKENDS; b++) {
            if (b == DEVICE && getenv("QRUN_CUDA_LIBRARY") == NULL) { continue; }
            fixture f;
            fixture_create(&f, (fixture_backend)b);
            for (size_t i = 0; i < QR_COUNT_OF(counts); i++) {
                qr_optimizer_options options = {.kind = (qrun_optimizer)kind, .weight_decay = 0.01F};
                check_ranks(&f, &options, counts[i]);
                options.offload = true, options.stage_elements = 512;
                if (counts[i] < 8) { check_ranks(&f, &options, counts[i]); }
            }
            fixture_destroy(&f);
        }
    }
}

/* With no gradient a step is the decay alone. */
static void test_norms_and_biases_do_not_decay(void) {
    for (int kind = QRUN_OPTIMIZER_ADAMW; kind <= QRUN_OPTIMIZER_SGD; kind++) {
        for (int all = 0; all < 2; all++) {
            fixture f;
            fixture_create(&f, CPU);
            const qr_optimizer_options options = {
                .kind = (qrun_optimizer)kind, .weight_decay = 0.5F, .decay_all = all != 0, .offload = all != 0};
            float *values = run(&f, &options, 0.1F, 0, NULL, NULL);
            float *before = qr_alloc_array((size_t)f.parameters.n_floats, sizeof *before);
            fill(before, f.parameters.n_floats, 0);
            for (int64_t i = 0; i < f.parameters.n; i++) {
                const qr_parameter *p = &f.parameters.list[i];
                const bool decays = all || (i != 2 && i != 3); /* the norm and the bias; scales do */
                /* SGD's decay goes through its momentum of 0.9, that of the others does not. */
                double expected = 1, velocity = 0;
                for (int s = 0; s < N_STEPS && decays; s++) {
                    velocity = kind == QRUN_OPTIMIZER_SGD ? 0.9 * velocity + 0.5 * expected : 0.5 * expected;
                    expected -= 0.1 * velocity;
                }
                for (int64_t k = p->offset; k < p->offset + p->rows * p->cols; k++) {
                    const double error = fabs((double)values[k] - expected * (double)before[k]);
                    CHECK_MSG(decays ? error <= 1e-6 * fabs((double)before[k]) : values[k] == before[k],
                              "optimiser %d, tensor %d: %g of %g", kind, (int)i, (double)values[k], (double)before[k]);
                }
            }
            qr_free(values);
            qr_free(before);
            fixture_destroy(&f);
        }
    }
}

/* LoRA+: B and vectors (DoRA's magnitudes, norms, biases) learn as at a higher rate, everything else as before. */
static void test_the_rate_of_b(void) {
    fixture f;
    fixture_create(&f, CPU);
    const qr_optimizer_options plain = {.kind = QRUN_OPTIMIZER_ADAMW, .weight_decay = 0.1F};
    qr_optimizer_options plus = plain;
    plus.lr_ratio_b = 16;
    float *slow = run(&f, &plain, 1e-3F, 1, NULL, NULL), *high = run(&f, &plain, 16 * 1e-3F, 1, NULL, NULL);
    float *both = run(&f, &plus, 1e-3F, 1, NULL, NULL);
    for (int64_t i = 0; i < f.parameters.n; i++) {
        const qr_parameter *p = &f.parameters.list[i];
        const bool is_fast = p->kind != QR_PARAMETER_LORA_A && p->kind != QR_PARAMETER_MATRIX;
        const float *expected = is_fast ? high : slow;
        CHECK(memcmp(both + p->offset, expected + p->offset, (size_t)(p->rows * p->cols) * sizeof *both) == 0);
    }
    CHECK(memcmp(slow, high, (size_t)f.parameters.n_floats * sizeof *slow) != 0);
    qr_free(slow);
    qr_free(high);
    qr_free(both);
    fixture_destroy(&f);
}

/* The largest change of a tensor's values in steps of adamw8bit at a rate of 1e-3, where one row of four has gradients
 * of 1 in each step, and the others of 1e-4 in the first. */
static double largest_change(fixture *f, const qr_parameter *tensor) {
    const qr_optimizer_options options = {.kind = QRUN_OPTIMIZER_ADAMW8BIT};
    qr_parameters *p = &f->parameters;
    qr_optimizer *optimizer = NULL;
    qr_error err = {0};
    double largest = 0;
    CHECK_MSG(qr_optimizer_create(p, &options, &optimizer, &err) == QRUN_OK, "%s", err.message);
    memset(p->values, 0, (size_t)p->n_floats * sizeof *p->values);
    memset(p->gradients, 0, (size_t)p->n_floats * sizeof *p->gradients);
    for (int64_t step = 1; step <= N_STEPS; step++) {
        for (int64_t i = 0; i < tensor->rows * tensor->cols; i++) {
            p->gradients[tensor->offset + i] = i / tensor->cols % 4 == 0 ? 1.0F : step == 1 ? 1e-4F : 0;
        }
        const qr_optimizer_numbers numbers = {p->gradients, true, step, 1e-3F, 1.0F};
        CHECK_MSG(qr_optimizer_step(optimizer, &numbers, (qr_workspace){0}, &err) == QRUN_OK, "%s", err.message);
    }
    for (int64_t i = 0; i < tensor->rows * tensor->cols; i++) {
        largest = fmax(largest, fabs((double)p->values[tensor->offset + i]));
    }
    qr_optimizer_destroy(optimizer);
    return largest;
}

/* In 8 bits, second moments of 1e-8 times those of their block are zeros, and first ones of 1e-4 times are not: the
 * next update is their quotient. Tables, whose rows differ like this, have 32 bits. */
static void test_tables_have_states_of_32_bits(void) {
    fixture f;
    fixture_create(&f, CPU);
    const qr_parameter *table = &f.parameters.list[4], *matrix = &f.parameters.list[6];
    CHECK(table->role == QR_ROLE_EMBEDDING && matrix->role == QR_ROLE_Q);
    CHECK(fabs(largest_change(&f, table) - N_STEPS * 1e-3) < 1e-5);
    CHECK(largest_change(&f, matrix) > 10 * N_STEPS * 1e-3);
    fixture_destroy(&f);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_offloaded_states_give_the_same_bits);
    CHECK_RUN(test_shards_give_the_same_bits);
    CHECK_RUN(test_norms_and_biases_do_not_decay);
    CHECK_RUN(test_the_rate_of_b);
    CHECK_RUN(test_tables_have_states_of_32_bits);
    return check_end();
}
