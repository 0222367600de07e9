/* Gradients of layers that share places, without a model that computes between: the sum has the bits of one that is
 * added up in order, and every place is empty before it is used again. It stays on the device, or gradients leave for
 * host memory. Over simt, where transfers come late, a wait that is missing shows. */
#include "check.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "runtime/model/model.h"
#include "runtime/ranks/gradient_sum.h"

enum { N_LAYERS = 5, MOST_BATCHES = 6 };

typedef struct fixture {
    qrun_context context;
    qrun_model model;
    qr_parameters parameters;
    qr_shards shards;
    qr_gradient_sum *sum;
    float *added; /* device, of the arena: what a batch adds to its gradients */
} fixture;

/* Where the sum is. */
typedef enum place { ON_CPU, IN_HOST_MEMORY, IN_HOST_MEMORY_OF_DEVICE, ON_DEVICE } place;

static bool has_device(place where) { return where == ON_DEVICE || where == IN_HOST_MEMORY_OF_DEVICE; }
static bool leaves(place where) { return where == IN_HOST_MEMORY || where == IN_HOST_MEMORY_OF_DEVICE; }

static qr_backend *make_backend(bool on_device) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    const qrun_status status =
        on_device ? qr_backend_cuda_create(NULL, &backend, &err) : qr_backend_cpu_create(NULL, NULL, &backend, &err);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    return backend;
}

/* Tensors of a layer that do not follow each other, and tables that are larger than a layer. */
static void describe(qr_parameters *p) {
    int64_t offset;
    const qr_parameter table = {.kind = QR_PARAMETER_MATRIX, .role = QR_ROLE_EMBEDDING, .rows = 47, .cols = 61};
    CHECK(qr_parameters_add(p, table, &offset, NULL) == QRUN_OK);
    for (int64_t l = 0; l < N_LAYERS; l++) {
        const qr_parameter q = {.role = QR_ROLE_Q, .layer = l, .rows = 9 + l, .cols = 40};
        const qr_parameter norm = {.role = QR_ROLE_ATTN_NORM, .layer = l, .rows = 1, .cols = 33};
        CHECK(qr_parameters_add(p, q, &offset, NULL) == QRUN_OK &&
              qr_parameters_add(p, norm, &offset, NULL) == QRUN_OK);
    }
    for (int64_t l = N_LAYERS; l-- > 0;) {
        const qr_parameter out = {.role = QR_ROLE_ATTN_OUT, .layer = l, .rows = 3, .cols = 50};
        CHECK(qr_parameters_add(p, out, &offset, NULL) == QRUN_OK);
    }
    const qr_parameter norm = {.kind = QR_PARAMETER_NORM, .role = QR_ROLE_FINAL_NORM, .rows = 1, .cols = 70};
    CHECK(qr_parameters_add(p, norm, &offset, NULL) == QRUN_OK);
}

static void open_fixture(fixture *f, place where, int64_t n_batches, int64_t n_parts) {
    *f = (fixture){.context = {.backend = make_backend(has_device(where)), .processor = make_backend(false)}};
    qr_parameters *p = &f->parameters;
    qr_error err = {0};
    void *added = NULL;
    f->model.context = &f->context;
    f->model.shape.n_layers = N_LAYERS;
    p->model = &f->model, p->backend = f->context.backend;
    describe(p);
    if (leaves(where)) { qr_parameters_hold_on_host(p, f->context.processor); }
    if (!leaves(where)) { qr_parameters_share_gradients(p, 1); }
    CHECK(p->n_gradient_floats < p->n_floats);
    CHECK_MSG(qr_parameters_create(p, &err) == QRUN_OK, "%s", err.message);
    f->shards = (qr_shards){.parameters = p, .n_ranks = 1};
    const qr_gradient_options options = {.n_accumulate = n_batches,
                                         .n_parts = n_parts,
                                         .shards = &f->shards,
                                         .host_floats = leaves(where) ? p->n_floats : 0,
                                         .place_floats = p->place_floats};
    CHECK_MSG(qr_gradient_sum_create(p, NULL, &options, &f->sum, &err) == QRUN_OK, "%s", err.message);
    CHECK(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, qr_parameters_bytes(p), &added, &err) == QRUN_OK);
    f->added = added;
}

static void close_fixture(fixture *f) {
    qr_backend *backend = f->context.backend;
    size_t held, peak;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, f->added, qr_parameters_bytes(&f->parameters));
    qr_gradient_sum_destroy(f->sum);
    qr_parameters_destroy(&f->parameters);
    backend->memory_held(backend, &held, &peak);
    CHECK_INT(held, 0);
    qr_backend_destroy(backend);
    qr_backend_destroy(f->context.processor);
}

/* Of every tensor of the layer, as a backward pass does it. */
static void add_gradients(const fixture *f, int64_t layer) {
    const qr_parameters *p = &f->parameters;
    for (int64_t i = 0; i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        const qr_add_args args = {.x = p->gradients + parameter->gradient,
                                  .y = f->added + parameter->offset,
                                  .n = parameter->rows * parameter->cols};
        if (qr_parameter_layer(parameter) != layer) { continue; }
        CHECK(qr_add(p->backend, &args, QR_NO_WORKSPACE, NULL) == QRUN_OK);
    }
}

static void run_batch(fixture *f, int64_t i, const float *values) {
    const qr_parameters *p = &f->parameters;
    qr_backend *backend = p->backend;
    qr_error err = {0};
    CHECK(backend->copy_in(backend, f->added, values, qr_parameters_bytes(p), NULL) == QRUN_OK);
    CHECK(backend->fill_zero(backend, p->gradients, qr_parameters_gradient_bytes(p), NULL) == QRUN_OK);
    qr_gradient_sum_begin_round(f->sum, i, i); /* one rank has a batch in each */
    for (int64_t l = N_LAYERS; l-- > 0;) {
        add_gradients(f, l);
        CHECK_MSG(qr_gradient_sum_layer(f->sum, l, &err) == QRUN_OK, "%s", err.message);
    }
    add_gradients(f, -1);
    CHECK_MSG(qr_gradient_sum_rest(f->sum, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_gradient_sum_end_batch(f->sum, &err) == QRUN_OK, "%s", err.message);
}

/* A value's sum over parts [first, end) of the step's; one batch's values are n_floats after those of the one before.
 */
static float sum_of(const float *values, int64_t n_floats, int64_t n_batches, int64_t n_parts, int64_t first,
                    int64_t end) {
    if (end - first > 1) {
        const int64_t middle = (first + end) / 2;
        return sum_of(values, n_floats, n_batches, n_parts, first, middle) +
               sum_of(values, n_floats, n_batches, n_parts, middle, end);
    }
    const int64_t batch = first * n_batches / n_parts;
    float sum = values[batch * n_floats];
    for (int64_t b = batch + 1; b < end * n_batches / n_parts; b++) { sum += values[b * n_floats]; }
    return sum;
}

/* Of each value, what the batches have of it; padding between tensors stays zero. */
static void fill(const qr_parameters *p, int step, int64_t batch, float *values) {
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t k = 0; k < p->list[i].rows * p->list[i].cols; k++) {
            const int64_t at = p->list[i].offset + k;
            values[at] = (float)qr_random_normal(3, (uint64_t)(step * MOST_BATCHES + batch), (uint64_t)at);
        }
    }
}

static void read_sum(const fixture *f, float *sum) {
    qr_backend *backend = qr_parameters_updater(&f->parameters);
    CHECK(qr_gradient_sum_stays(f->sum));
    CHECK(backend->copy_out(backend, sum, qr_gradient_sum_own(f->sum), qr_parameters_bytes(&f->parameters), NULL) ==
          QRUN_OK);
}

static void check_sum(place where, int64_t n_batches, int64_t n_parts) {
    fixture f;
    open_fixture(&f, where, n_batches, n_parts);
    const qr_parameters *p = &f.parameters;
    float *values = qr_alloc_array_zeroed((size_t)(p->n_floats * n_batches), sizeof *values);
    float *expected = qr_alloc_array_zeroed((size_t)p->n_floats, sizeof *expected);
    float *sum = qr_alloc_array_zeroed((size_t)p->n_floats, sizeof *sum);
    const qr_deal deal = qr_gradient_sum_deal(f.sum, n_batches);
    for (int step = 0; step < 2; step++) { /* nothing of the first is left */
        qr_gradient_sum_begin(f.sum, &deal);
        for (int64_t b = 0; b < n_batches; b++) {
            fill(p, step, b, values + b * p->n_floats);
            run_batch(&f, b, values + b * p->n_floats);
        }
        CHECK(qr_gradient_sum_end_round(f.sum, NULL) == QRUN_OK);
        for (int64_t at = 0; at < p->n_floats; at++) {
            expected[at] = sum_of(values + at, p->n_floats, n_batches, n_parts, 0, n_parts);
        }
        read_sum(&f, sum);
        CHECK_MSG(memcmp(sum, expected, qr_parameters_bytes(p)) == 0, "step %d of %d batches in %d parts", step,
                  (int)n_batches, (int)n_parts);
    }
    qr_free(values);
    qr_free(expected);
    qr_free(sum);
    close_fixture(&f);
}

static void check_sums(place where) {
    check_sum(where, 1, 1);
    check_sum(where, 4, 1);
    check_sum(where, 4, 4);
    check_sum(where, MOST_BATCHES, 2);
    check_sum(where, MOST_BATCHES, 4);
}

static void test_sums_of_a_rank_alone(void) { check_sums(ON_CPU); }

static void test_sums_in_host_memory(void) { check_sums(IN_HOST_MEMORY); }

static void test_transfers_that_come_late(void) {
    if (getenv("QRUN_CUDA_LIBRARY") == NULL) { return; }
    check_sums(ON_DEVICE);
    for (int i = 0; i < 4; i++) { check_sums(IN_HOST_MEMORY_OF_DEVICE); }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_sums_of_a_rank_alone);
    CHECK_RUN(test_sums_in_host_memory);
    CHECK_RUN(test_transfers_that_come_late);
    return check_end();
}
