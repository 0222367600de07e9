/* Several ranks, in processes of their own: what each of them holds at most is its plan to the byte, and what it sends
 * in a step is the plan's count to the byte, whatever ranks share out. */
#include "check.h"

#include "base/sizes.h"
#include "kernels/ops_train.h"
#include "qrun.h"
#include "rank_processes.h"
#include "temporary.h"

enum { MAX_RANKS = 8, N_STEPS = 3 };

static temporary_folder folder;

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

typedef struct rank_case {
    int32_t n_ranks, zero, grad_accum;
    qrun_optimizer optimizer;
    bool full;
    int32_t grad_sums; /* 0: one */
} rank_case;

typedef struct measurement {
    bool done;
    int64_t planned, peak;                                /* bytes held */
    int64_t planned_before;                               /* by qrun_plan_training, without any rank */
    int64_t step_sent, sent;                              /* by the plan, of a step; counted, of all steps */
    int64_t step_sent_before, ring;                       /* by qrun_plan_training */
    int64_t optimizer, gradients, weights, host, masters; /* by the plan */
    double loss, grad_norm; /* of the last step, which depends on the updates before; rank 0 knows them */
} measurement;

static int64_t entry_of(const qrun_trainer *trainer, const char *category) {
    int32_t n;
    const qrun_plan_entry *plan = qrun_trainer_plan(trainer, &n);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(plan[i].category, category) == 0) { return plan[i].bytes; }
    }
    return -1;
}

static qrun_status plan_before(qrun_context *context, const qrun_model_params *model_params, qrun_train_params params,
                               int32_t n_ranks, int32_t rank, measurement *m, qrun_error *error) {
    qrun_plan_entry *entries = NULL;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    int32_t n;
    params.ranks.n_ranks = n_ranks, params.ranks.plan_rank = rank;
    const qrun_status status = qrun_plan_training(context, model_params, &params, &entries, &n, NULL, &info, error);
    qrun_free(entries);
    m->planned_before = info.total_bytes;
    m->step_sent_before = info.sent_bytes, m->ring = info.ring_bytes;
    return status;
}

/* Rank 0 has a loop of its own; the others follow it until it ends. */
static qrun_status run_steps(qrun_trainer *trainer, int32_t rank, measurement *m, qrun_error *error) {
    if (rank > 0) { return qrun_trainer_run(trainer, error); }
    for (int step = 0; step < N_STEPS; step++) {
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        bool done;
        QR_RETURN_IF_ERROR(qrun_trainer_step(trainer, &metrics, &done, error));
        CHECK(!metrics.skipped);
        m->loss = metrics.loss, m->grad_norm = metrics.grad_norm;
    }
    return QRUN_OK;
}

static qrun_status train(const rank_case *c, int32_t rank, measurement *m, qrun_error *error) {
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_status status;
    char data[128], out[128];
    snprintf(data, sizeof data, "%s/data.jsonl", folder.path);
    snprintf(out, sizeof out, "%s/out", folder.path);
    context_params.ranks = true, context_params.n_threads = 1, context_params.collective_timeout = 60;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    model_params.trainable = c->full, model_params.shard_parameters = c->zero == 3;
    params.data.train_data = (const char *[]){data}, params.data.n_train_data = 1, params.saving.out = out;
    params.saving.restart = true, params.weights.full = c->full, params.optimization.optimizer = c->optimizer;
    params.batches.seq_len = 64, params.batches.max_steps = N_STEPS, params.batches.grad_accum = c->grad_accum;
    params.batches.grad_sums = c->grad_sums, params.ranks.zero = c->zero;
    QR_TRY(qrun_context_create(&context_params, &context, error));
    QR_TRY(plan_before(context, &model_params, params, c->n_ranks, rank, m, error));
    QR_TRY(qrun_model_open(context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, error));
    const int64_t sent_before = info.sent_bytes;
    QR_TRY(run_steps(trainer, rank, m, error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, error));
    m->done = true;
    m->planned = info.planned_bytes, m->peak = info.peak_bytes;
    m->step_sent = info.step_sent_bytes, m->sent = info.sent_bytes - sent_before;
    m->optimizer = entry_of(trainer, "optimizer"), m->gradients = entry_of(trainer, "gradients");
    m->weights = entry_of(trainer, "weights"), m->host = entry_of(trainer, "host");
    m->masters = entry_of(trainer, "master weights");
out:
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static qrun_status run_rank(const void *arg, int32_t rank, void *result, qrun_error *error) {
    return train(arg, rank, result, error);
}

static void measure(const rank_case *c, measurement of[MAX_RANKS]) {
    rank_processes_run(run_rank, c, c->n_ranks, of, sizeof *of);
}

static const char *const optimizer_names[] = {"adamw", "adamw8bit", "adafactor", "sgd"};

static void check(const rank_case *c, measurement of[MAX_RANKS]) {
    int64_t sent = 0;
    measure(c, of);
    for (int32_t r = 0; r < c->n_ranks; r++) {
        const measurement *m = &of[r];
        CHECK_MSG(m->done, "rank %d of %d: no measurement", (int)r, (int)c->n_ranks);
        CHECK_MSG(m->peak == m->planned, "rank %d of %d, zero %d: %lld bytes held at most, %lld planned", (int)r,
                  (int)c->n_ranks, (int)c->zero, (long long)m->peak, (long long)m->planned);
        CHECK_INT(m->planned_before, m->planned);
        CHECK_INT(m->step_sent_before, m->step_sent);
        CHECK_MSG(m->sent == N_STEPS * m->step_sent, "rank %d of %d, zero %d: %lld bytes sent, %lld planned", (int)r,
                  (int)c->n_ranks, (int)c->zero, (long long)m->sent, (long long)(N_STEPS * m->step_sent));
        sent += m->step_sent;
    }
    printf("  %d ranks, zero %d, %-9s %-4s windows of %d in %d: rank 0 plans %7.1f kB of states, %7.1f kB of "
           "gradients; all send %8.1f kB a step\n",
           (int)c->n_ranks, (int)c->zero, optimizer_names[c->optimizer], c->full ? "full" : "lora", (int)c->grad_accum,
           (int)qr_max(c->grad_sums, 1), (double)of[0].optimizer / 1e3, (double)of[0].gradients / 1e3,
           (double)sent / 1e3);
}

enum { N_LAYERS = 4, PART_ALIGNMENT = 64, SHARD_ALIGNMENT = 1024 }; /* layers of the model, all alike; bytes */
enum { VECTOR_BYTES = 2 * 192 * 4 };                                /* of a layer: two norms in F32 */
enum { N_CUT = N_LAYERS + 2 };                                      /* each layer, the embedding, the last norm */

/* What is shared out of the layers' weights: a rank has its share and two layers, one in its stage and one on its way,
 * and the rest as before. Its share is of the layers as they are held or, where all is trained, of the values that they
 * are made from. */
static void check_shares(const measurement *held, const measurement *shared, int32_t n_ranks, bool full) {
    for (int32_t r = 0; r < n_ranks; r++) {
        const int64_t less = held[r].weights - shared[r].weights, layer = less / (N_LAYERS - 1);
        const int64_t coming = layer + (full ? VECTOR_BYTES : 0), share = shared[r].host - held[r].host - coming;
        const int64_t wanted = full ? 0 : N_LAYERS * layer;
        CHECK_INT(less % (N_LAYERS - 1), 0);
        CHECK_MSG(layer > 0 && llabs(share * n_ranks - wanted) <= (int64_t)N_LAYERS * n_ranks * PART_ALIGNMENT,
                  "rank %d of %d holds %lld bytes of layers of %lld", (int)r, (int)n_ranks, (long long)share,
                  (long long)layer);
        CHECK_MSG(!full || llabs(shared[r].masters * n_ranks - held[r].masters) <= N_CUT * n_ranks * SHARD_ALIGNMENT,
                  "rank %d of %d holds %lld bytes of %lld", (int)r, (int)n_ranks, (long long)shared[r].masters,
                  (long long)held[r].masters);
        CHECK_INT(shared[r].optimizer, held[r].optimizer);
        CHECK_INT(shared[r].gradients, held[r].gradients);
        const int64_t masters = full ? shared[r].masters - held[r].masters : 0;
        CHECK_INT(shared[r].peak - held[r].peak, share + coming + layer - N_LAYERS * layer + masters);
    }
}

static void test_a_rank_holds_and_sends_what_is_planned(void) {
    for (int o = QRUN_OPTIMIZER_ADAMW; o <= QRUN_OPTIMIZER_SGD; o++) {
        double loss = 0, grad_norm = 0;
        for (int32_t n = 1; n <= 4; n++) {
            measurement of[4][MAX_RANKS] = {{{.done = false}}};
            if (check_thins() && (CHECK_SANITIZED ? n != 1 + (o + 1) % 4 : n > 1 && (n + o) % 2 != 0)) { continue; }
            for (int32_t zero = 0; zero <= 3; zero++) {
                const rank_case c = {n, zero, 4, (qrun_optimizer)o, o % 2 == 1, 0};
                check(&c, of[zero]);
                if (loss == 0) { loss = of[zero][0].loss, grad_norm = of[zero][0].grad_norm; }
                CHECK_MSG(of[zero][0].loss == loss && of[zero][0].grad_norm == grad_norm,
                          "%d ranks, zero %d: loss %.17g and norm %.17g are not those of one rank, %.17g and %.17g",
                          (int)n, (int)zero, of[zero][0].loss, of[zero][0].grad_norm, loss, grad_norm);
            }
            for (int32_t r = 0; r < n && n > 1; r++) {
                CHECK(of[1][r].optimizer < of[0][r].optimizer && of[2][r].optimizer == of[1][r].optimizer);
                CHECK(of[2][r].gradients < of[1][r].gradients);
                CHECK_INT(of[2][r].step_sent, of[1][r].step_sent);
            }
            if (n > 1) { check_shares(of[2], of[3], n, o % 2 == 1); }
        }
    }
    measurement of[MAX_RANKS] = {{.done = false}};
    for (int32_t zero = 1; zero <= 3; zero++) { /* three have nothing to compute */
        const rank_case uneven = {MAX_RANKS, zero, 5, QRUN_OPTIMIZER_ADAMW8BIT, true, 0};
        check(&uneven, of);
    }
}

/* Ranks send no more than around a ring, also single ones, unless tensors stay whole (Adafactor) and only some of a
 * layer's are theirs. */
static void check_ring(const rank_case *c, const measurement of[MAX_RANKS]) {
    const double tail =
        c->zero > 0 ? N_CUT * QR_SQUARES_CHUNK * sizeof(float) : 0; /* at most, of a chunk of squares each */
    const bool by_tensor = c->full && c->zero == 3 && c->optimizer == QRUN_OPTIMIZER_ADAFACTOR;
    double sent = 0, ring = 0;
    for (int32_t r = 0; r < c->n_ranks; r++) {
        CHECK_MSG((double)of[r].step_sent <= 1.01 * (double)of[r].ring + tail || by_tensor,
                  "rank %d of %d, zero %d, %d sums: %lld bytes, a ring sends %lld", (int)r, (int)c->n_ranks,
                  (int)c->zero, (int)c->grad_sums, (long long)of[r].step_sent, (long long)of[r].ring);
        sent += (double)of[r].step_sent, ring += (double)of[r].ring;
    }
    CHECK_MSG(sent <= 1.01 * ring + tail * c->n_ranks, "%d ranks, zero %d, %d sums: %.0f bytes, a ring sends %.0f",
              (int)c->n_ranks, (int)c->zero, (int)c->grad_sums, sent, ring);
}

/* Of several micro-batches of each rank: one sum is sent where the number of ranks divides that of the sums, and the
 * bits are those of one rank everywhere. */
static void check_sums(int32_t grad_accum, int32_t grad_sums, qrun_optimizer optimizer, bool full) {
    double loss = 0, grad_norm = 0;
    static const int32_t numbers[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < QR_COUNT_OF(numbers); i++) {
        const int32_t n = numbers[i];
        for (int32_t zero = 0; zero <= (n == 1 ? 0 : 3); zero++) {
            measurement of[MAX_RANKS] = {{.done = false}};
            const rank_case c = {n, zero, grad_accum, optimizer, full, grad_sums};
            if (CHECK_SANITIZED && n != 4) { continue; }
            check(&c, of);
            if (loss == 0) { loss = of[0].loss, grad_norm = of[0].grad_norm; }
            CHECK_MSG(
                of[0].loss == loss && of[0].grad_norm == grad_norm,
                "%d ranks, zero %d, %d sums: loss %.17g and norm %.17g are not those of one rank, %.17g and %.17g",
                (int)n, (int)zero, (int)grad_sums, of[0].loss, of[0].grad_norm, loss, grad_norm);
            if (grad_sums % n == 0) { check_ring(&c, of); }
        }
    }
}

static void test_a_rank_sends_one_sum(void) {
    check_sums(8, 2, QRUN_OPTIMIZER_ADAMW, false);
    check_sums(8, 8, QRUN_OPTIMIZER_SGD, false);
    check_sums(10, 4, QRUN_OPTIMIZER_ADAFACTOR, true); /* some ranks have one batch less than others */
    check_sums(9, 8, QRUN_OPTIMIZER_ADAMW8BIT, true);
}

/* GPUs that are linked: what the ranks send each other lies in device memory, their shares of the layers too. */
static void test_linked_devices(void) {
    if (getenv("QRUN_CUDA_NCCL") == NULL) {
        check_skip("there are no linked devices (QRUN_CUDA_NCCL)");
        return;
    }
    for (int32_t n = 2; n <= 4; n += 2) {
        double loss = 0, grad_norm = 0;
        const int32_t least = n == 2 ? 0 : 3;
        for (int32_t zero = least; zero <= 3; zero++) {
            measurement of[MAX_RANKS] = {{.done = false}};
            if (check_thins() && zero == 1) { continue; } /* with several batches of each rank, below */
            const rank_case c = {n, zero, n, QRUN_OPTIMIZER_ADAMW, false, 0};
            check(&c, of);
            if (zero == least) { loss = of[0].loss, grad_norm = of[0].grad_norm; }
            CHECK_MSG(of[0].loss == loss && of[0].grad_norm == grad_norm, "%d ranks, zero %d: other bits", (int)n,
                      (int)zero);
            CHECK_MSG(zero < 3 || of[0].host < of[0].weights, "%d ranks: the shares are in host memory", (int)n);
        }
        for (int32_t zero = 1; zero <= 3 && n == 2; zero += 2) { /* one sum of each rank, at once or by layers */
            measurement of[MAX_RANKS] = {{.done = false}};
            const rank_case c = {n, zero, 5, QRUN_OPTIMIZER_ADAMW, false, 4};
            check(&c, of);
            if (zero == 1) { loss = of[0].loss, grad_norm = of[0].grad_norm; }
            CHECK_MSG(of[0].loss == loss && of[0].grad_norm == grad_norm, "%d ranks: other bits by layers", (int)n);
        }
    }
}

/* ---- Plans alone ------------------------------------------------------------------------------------------------- */

typedef struct planned_bytes {
    int64_t states, gradients;
} planned_bytes;

/* The plan of the rank that needs the most. */
static qrun_plan_info plan_of(qrun_context *context, int32_t n_ranks, int32_t zero, int32_t grad_accum,
                              int32_t grad_sums, planned_bytes *bytes) {
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    qrun_plan_entry *entries = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    model_params.path = QRUN_SOURCE_DIR "/bench/shapes/llama-3.2-1b.json";
    model_params.random_weights = true;
    params.batches.seq_len = 256, params.batches.grad_accum = grad_accum, params.batches.grad_sums = grad_sums;
    params.memory.checkpointing = "full", params.memory.memory_bytes = INT64_C(1) << 50;
    params.ranks = (qrun_train_ranks){.zero = zero, .n_ranks = n_ranks, .plan_rank = QRUN_AUTO};
    CHECK_MSG(qrun_plan_training(context, &model_params, &params, &entries, &n, NULL, &info, &error) == QRUN_OK, "%s",
              error.message);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, "optimizer") == 0) { bytes->states = entries[i].bytes; }
        if (strcmp(entries[i].category, "gradients") == 0) { bytes->gradients = entries[i].bytes; }
    }
    qrun_free(entries);
    return info;
}

static void test_what_is_sent_is_near_a_ring(void) {
    qrun_context *context = NULL;
    planned_bytes all = {0, 0}, of = {0, 0};
    REQUIRE(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    CHECK_INT(plan_of(context, 1, 1, 1, 0, &all).sent_bytes, 0);
    for (int32_t n = 2; n <= 64; n *= 2) {
        for (int32_t zero = 1; zero <= 3; zero++) {
            const qrun_plan_info info = plan_of(context, n, zero, n, 0, &of);
            CHECK_MSG((double)info.sent_bytes <= 1.01 * (double)info.ring_bytes,
                      "%d ranks: %lld bytes, a ring sends %lld", (int)n, (long long)info.sent_bytes,
                      (long long)info.ring_bytes);
            CHECK_MSG((double)of.states <= 1.02 * (double)all.states / n + 1e5,
                      "%d ranks: %lld bytes of states, one has %lld", (int)n, (long long)of.states,
                      (long long)all.states);
        }
    }
    qrun_context_destroy(context);
}

/* However many batches a rank has; for one sum of all gradients, those of one layer, and log2 of a rank's sums besides.
 * A rank alone has no more than that either. */
static void test_sums_are_sent_as_a_ring_does(void) {
    qrun_context *context = NULL;
    planned_bytes all = {0, 0}, of = {0, 0};
    REQUIRE(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    (void)plan_of(context, 1, 0, 1, 0, &all); /* the gradients of one batch alone */
    const double pieces = 8 * 65536 * sizeof(float), layer = 1.0 / 16;
    for (int32_t sums = 1; sums <= 8; sums *= 2) {
        const int32_t unfinished = sums == 1 ? 1 : sums == 2 ? 2 : sums == 4 ? 3 : 4;
        (void)plan_of(context, 1, 0, 16, sums, &of);
        CHECK_MSG((double)of.gradients <= (unfinished + layer) * (double)all.gradients + 64,
                  "alone, %d sums: %lld bytes, of which one batch has %lld", (int)sums, (long long)of.gradients,
                  (long long)all.gradients);
    }
    for (int32_t n = 2; n <= 64; n *= 4) {
        for (int32_t more = 1; more <= 4; more *= 2) {
            for (int32_t zero = 0; zero <= 3; zero++) {
                const int32_t unfinished = 1 + (more == 1 ? 0 : more == 2 ? 1 : 2);
                const qrun_plan_info info = plan_of(context, n, zero, 8 * n, more * n, &of);
                CHECK_MSG((double)info.sent_bytes <= 1.01 * (double)info.ring_bytes,
                          "%d ranks, %d sums: %lld bytes, a ring sends %lld", (int)n, (int)(more * n),
                          (long long)info.sent_bytes, (long long)info.ring_bytes);
                CHECK_MSG((double)of.gradients <= (unfinished + layer) * (double)all.gradients + pieces,
                          "%d ranks, %d sums: %lld bytes, of which one batch has %lld", (int)n, (int)(more * n),
                          (long long)of.gradients, (long long)all.gradients);
            }
        }
        const qrun_plan_info in_turn = plan_of(context, n, 0, 8 * n, 1, &of);
        CHECK(in_turn.sent_bytes > 4 * in_turn.ring_bytes);
    }
    qrun_context_destroy(context);
}

static void test_what_is_refused(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.random_tokens = true;
    params.ranks.zero = 4;
    CHECK_INT(qrun_train_params_check(&params, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`zero`") != NULL, "%s", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    params.ranks = (qrun_train_ranks){.n_ranks = 2, .plan_rank = 2};
    CHECK_INT(qrun_train_params_check(&params, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`plan_rank`") != NULL, "%s", error.message);
    static const struct {
        int32_t grad_accum, grad_sums;
        const char *why;
    } sums[] = {{8, 3, "a power of two"},
                {0, 2, "at most `grad_accum`"},
                {8, 16, "at most `grad_accum`"},
                {4096, 2048, "`grad_sums`"},
                {8, -2, "`grad_sums`"}};
    for (size_t i = 0; i < QR_COUNT_OF(sums); i++) {
        error = (qrun_error)QRUN_ERROR_INIT;
        params.ranks = (qrun_train_ranks){.n_ranks = 2};
        params.batches.grad_accum = sums[i].grad_accum, params.batches.grad_sums = sums[i].grad_sums;
        CHECK_INT(qrun_train_params_check(&params, &error), QRUN_ERROR_ARGUMENT);
        CHECK_MSG(strstr(error.message, sums[i].why) != NULL, "%s", error.message);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = temporary_create();
    char text[64 * 120] = "";
    size_t n = 0;
    for (int i = 0; i < 64; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"text\": \"line %d: the quick brown fox jumps over the lazy dog, again and again\"}\n",
                              i);
    }
    temporary_text(&folder, "data.jsonl", text);
    CHECK_RUN(test_a_rank_holds_and_sends_what_is_planned);
    CHECK_RUN(test_a_rank_sends_one_sum);
    CHECK_RUN(test_linked_devices);
    CHECK_RUN(test_what_is_sent_is_near_a_ring);
    CHECK_RUN(test_sums_are_sent_as_a_ring_does);
    CHECK_RUN(test_what_is_refused);
    temporary_remove(&folder);
    return check_end();
}
