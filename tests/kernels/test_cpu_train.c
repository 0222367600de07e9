/* What the CPU backend's training ops promise beyond agreement with the reference on small shapes, for every
 * instruction set of this machine. Packed attention is generation's attention bit for bit. Long and ragged sequences
 * have the same bits with any number of threads. Losses are over whole vocabularies, and slopes over the whole range of
 * F32. */
#include <float.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "check.h"
#include "cpu_backends.h"
#include "kernels/backend.h"

enum { SEED = 11, MAX_SEQS = 300 };

static void *memory(int64_t n_bytes) {
    void *block = aligned_alloc(64, (size_t)qr_round_up(n_bytes + 1, 64));
    if (block == NULL) { abort(); }
    memset(block, 0xFF, (size_t)n_bytes);
    return block;
}

/* Uniform in [-1, 1). */
static float *numbers(int64_t n, uint64_t stream) {
    float *values = memory(n * (int64_t)sizeof *values);
    for (int64_t i = 0; i < n; i++) { values[i] = (float)(2.0 * qr_random_uniform(SEED, stream, (uint64_t)i) - 1.0); }
    return values;
}

static void run(qr_backend *on, qr_op op, const void *args) {
    qr_error err = {0};
    const qr_op_impl *impl = &on->ops[op];
    CHECK_MSG(impl->supports(on, args, &err), "refused: %s", err.message);
    qr_workspace workspace = {.n_bytes = impl->workspace_bytes(on, args)};
    workspace.memory = memory((int64_t)workspace.n_bytes);
    CHECK_INT(qr_backend_run(on, op, args, workspace, &err), QRUN_OK);
    free(workspace.memory);
}

/* --- Packed attention --- */

typedef struct packed {
    int32_t n_heads, n_kv_heads, head_dim, n_seqs, window;
    int32_t length[MAX_SEQS];
    float softcap;
    bool round_kv;
    bool bf16_products; /* and dst in BF16 */
} packed;

typedef struct packed_data {
    qr_attention_packed_args forward;
    qr_attention_packed_backward_args backward;
    int32_t seq_start[MAX_SEQS + 1];
    float *qkv, *dst, *lse, *dout, *gradients;
} packed_data;

static void packed_make(const packed *p, packed_data *d) {
    int32_t longest = 0;
    d->seq_start[0] = 0;
    for (int s = 0; s < p->n_seqs; s++) {
        d->seq_start[s + 1] = d->seq_start[s] + p->length[s];
        longest = (int32_t)qr_max(longest, p->length[s]);
    }
    const int64_t n = d->seq_start[p->n_seqs], row = (int64_t)p->n_heads * p->head_dim;
    const int64_t kv_row = (int64_t)p->n_kv_heads * p->head_dim, stride = row + 2 * kv_row + 3, f = sizeof(float);
    d->qkv = numbers(n * stride, 1);
    d->dout = numbers(n * row, 2);
    d->dst = memory(n * row * f);
    d->lse = memory(n * p->n_heads * f);
    d->gradients = memory(n * stride * f);
    d->forward = (qr_attention_packed_args){.q = d->qkv,
                                            .k = d->qkv + row,
                                            .v = d->qkv + row + kv_row,
                                            .dst = d->dst,
                                            .dst_dtype = p->bf16_products ? QR_DTYPE_BF16 : QR_DTYPE_F32,
                                            .lse = d->lse,
                                            .seq_start = d->seq_start,
                                            .n_tokens = n,
                                            .qkv_stride = stride,
                                            .n_heads = p->n_heads,
                                            .n_kv_heads = p->n_kv_heads,
                                            .head_dim = p->head_dim,
                                            .n_seqs = p->n_seqs,
                                            .max_seq_tokens = longest,
                                            .scale = 0.4F,
                                            .softcap = p->softcap,
                                            .window = p->window,
                                            .round_kv = p->round_kv || p->bf16_products,
                                            .bf16_products = p->bf16_products};
    d->backward = (qr_attention_packed_backward_args){.forward = d->forward,
                                                      .dout = d->dout,
                                                      .dq = d->gradients,
                                                      .dk = d->gradients + row,
                                                      .dv = d->gradients + row + kv_row,
                                                      .dqkv_stride = stride};
}

static void packed_free(packed_data *d) { free(d->qkv), free(d->dout), free(d->dst), free(d->lse), free(d->gradients); }

static bool same_bytes(const void *a, const void *b, int64_t n_floats) {
    return memcmp(a, b, (size_t)n_floats * sizeof(float)) == 0;
}

/* Forward and backward with one thread and with four: the two cut the backward pass differently. */
static void check_threads_with(const packed *p) {
    packed_data one, four;
    packed_make(p, &one), packed_make(p, &four);
    run(lonely, QR_OP_attention_packed, &one.forward);
    run(lonely, QR_OP_attention_packed_backward, &one.backward);
    run(backend, QR_OP_attention_packed, &four.forward);
    run(backend, QR_OP_attention_packed_backward, &four.backward);
    const int64_t n = one.forward.n_tokens;
    CHECK(same_bytes(one.dst, four.dst, n * p->n_heads * p->head_dim));
    CHECK(same_bytes(one.lse, four.lse, n * p->n_heads));
    CHECK(same_bytes(one.gradients, four.gradients, n * one.forward.qkv_stride));
    packed_free(&one), packed_free(&four);
}

static packed with_bf16_products(const packed *p) {
    packed rounded = *p;
    rounded.bf16_products = true;
    return rounded;
}

static void check_threads(const packed *p) {
    const packed rounded = with_bf16_products(p);
    check_threads_with(p);
    check_threads_with(&rounded);
}

static void test_packed_bits_do_not_depend_on_threads(void) {
    check_threads(&(packed){.n_heads = 4, .n_kv_heads = 1, .head_dim = 40, .n_seqs = 1, .length = {1500}});
    check_threads(
        &(packed){.n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .n_seqs = 2, .length = {333, 900}, .window = 200});
    check_threads(
        &(packed){.n_heads = 71, .n_kv_heads = 1, .head_dim = 15, .n_seqs = 1, .length = {130}, .softcap = 2.0F});
    check_threads(
        &(packed){.n_heads = 3, .n_kv_heads = 1, .head_dim = 256, .n_seqs = 1, .length = {70}, .round_kv = true});
    check_threads(&(packed){.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .n_seqs = 4, .length = {500, 1, 257, 256}});
    check_threads(&(packed){.n_heads = 6,
                            .n_kv_heads = 3,
                            .head_dim = 8,
                            .n_seqs = 8,
                            .length = {1, 64, 65, 2, 300, 16, 128, 17},
                            .window = 1});
}

/* The gradients of every sequence are those it has alone. */
static void check_alone_with(const packed *whole) {
    packed_data together, alone;
    packed_make(whole, &together), packed_make(whole, &alone);
    run(backend, QR_OP_attention_packed, &together.forward);
    run(backend, QR_OP_attention_packed_backward, &together.backward);
    const int64_t stride = together.forward.qkv_stride, row = (int64_t)whole->n_heads * whole->head_dim;
    for (int s = 0; s < whole->n_seqs; s++) {
        const int64_t at = alone.seq_start[s];
        const int32_t bounds[2] = {0, whole->length[s]};
        qr_attention_packed_backward_args args = alone.backward;
        qr_attention_packed_args *forward = &args.forward;
        forward->q += at * stride, forward->k += at * stride, forward->v += at * stride;
        forward->dst = (unsigned char *)alone.dst + (size_t)(at * row) * qr_dtype_bytes(forward->dst_dtype);
        forward->lse += at * whole->n_heads;
        forward->seq_start = bounds, forward->n_seqs = 1;
        forward->n_tokens = forward->max_seq_tokens = whole->length[s];
        args.dout += at * row;
        args.dq += at * stride, args.dk += at * stride, args.dv += at * stride;
        run(lonely, QR_OP_attention_packed, forward);
        run(lonely, QR_OP_attention_packed_backward, &args);
    }
    CHECK(same_bytes(together.dst, alone.dst, together.forward.n_tokens * row));
    CHECK(same_bytes(together.gradients, alone.gradients, together.forward.n_tokens * stride));
    packed_free(&together), packed_free(&alone);
}

static void check_alone(const packed *whole) {
    const packed rounded = with_bf16_products(whole);
    check_alone_with(whole);
    check_alone_with(&rounded);
}

static void test_packed_sequences_do_not_see_each_other(void) {
    check_alone(&(packed){.n_heads = 4, .n_kv_heads = 2, .head_dim = 24, .n_seqs = 4, .length = {70, 1, 200, 33}});
    check_alone(&(packed){.n_heads = 6,
                          .n_kv_heads = 2,
                          .head_dim = 24,
                          .n_seqs = 7,
                          .length = {513, 1, 31, 32, 64, 65, 129},
                          .window = 7});
}

/* Products of BF16 are used where the instruction set has them and the caller permits them, and nowhere else. */
static void test_packed_products_of_bf16(void) {
    const packed p = {
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .n_seqs = 1, .length = {200}, .bf16_products = true};
    const bool has_them = strcmp(isa_name, "avx512-bf16") == 0 || strncmp(isa_name, "amx-bf16", 8) == 0;
    packed_data permitted, refused;
    packed_make(&p, &permitted), packed_make(&p, &refused);
    refused.forward.bf16_products = refused.backward.forward.bf16_products = false;
    run(lonely, QR_OP_attention_packed, &permitted.forward);
    run(lonely, QR_OP_attention_packed, &refused.forward);
    CHECK(same_bytes(permitted.lse, refused.lse, p.length[0] * p.n_heads) == !has_them);
    memcpy(refused.dst, permitted.dst, (size_t)(p.length[0] * p.n_heads * p.head_dim) * sizeof(uint16_t));
    memcpy(refused.lse, permitted.lse, (size_t)(p.length[0] * p.n_heads) * sizeof(float));
    run(lonely, QR_OP_attention_packed_backward, &permitted.backward);
    run(lonely, QR_OP_attention_packed_backward, &refused.backward);
    const int64_t n = p.length[0] * permitted.forward.qkv_stride;
    CHECK(same_bytes(permitted.gradients, refused.gradients, n) == !has_them);
    packed_free(&permitted), packed_free(&refused);
}

/* So many that they are computed in parts, beside one that is long. */
static void test_packed_many_short_sequences(void) {
    packed whole = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .n_seqs = MAX_SEQS};
    for (int s = 0; s < MAX_SEQS; s++) { whole.length[s] = s == 100 ? 700 : 1 + s % 3; }
    check_alone(&whole);
}

/* Room for very many sequences is little more than that for one with all the tokens. */
static void test_packed_workspace(void) {
    enum { TOKENS = 1 << 17 };
    qr_attention_packed_args args = {.dst_dtype = QR_DTYPE_BF16,
                                     .n_tokens = TOKENS,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .n_seqs = 1,
                                     .max_seq_tokens = TOKENS,
                                     .round_kv = true};
    for (int pass = 0; pass < 4; pass++) {
        args.n_seqs = pass % 2 == 0 ? 1 : TOKENS / 2 + 1;
        args.bf16_products = pass >= 2;
        const qr_attention_packed_backward_args back = {.forward = args};
        const double forward = (double)qr_attention_packed_workspace(backend, &args) / TOKENS;
        const double backward = (double)qr_attention_packed_backward_workspace(backend, &back) / TOKENS;
        CHECK_MSG(forward <= 1.5 * 4096 && backward <= 1.5 * 4096, "%.0f and %.0f bytes a token", forward, backward);
    }
}

/* A prompt through pages in another order, as generation has it: the same bits. */
static void test_packed_is_the_attention_of_generation(void) {
    enum { LENGTH = 700, PAGES = 44 };
    const packed p = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .n_seqs = 1, .length = {LENGTH}, .round_kv = true};
    packed_data d;
    packed_make(&p, &d);
    run(backend, QR_OP_attention_packed, &d.forward);
    const qr_kv_layout layout = {.format = QR_KV_BF16, .n_kv_heads = p.n_kv_heads, .head_dim = p.head_dim};
    const int64_t page_bytes = (int64_t)qr_kv_layer_bytes(&layout), row = (int64_t)p.n_heads * p.head_dim;
    unsigned char *pages = memory(PAGES * page_bytes);
    float *dst = memory(LENGTH * row * (int64_t)sizeof(float));
    int32_t table[PAGES], token_page[LENGTH], position[LENGTH];
    const int32_t zero = 0;
    for (int32_t i = 0; i < PAGES; i++) { table[i] = PAGES - 1 - i; }
    for (int32_t i = 0; i < LENGTH; i++) {
        position[i] = i;
        token_page[i] = table[i / QR_KV_PAGE_TOKENS];
    }
    const qr_kv_write_args write = {.layout = layout,
                                    .k = d.forward.k,
                                    .v = d.forward.v,
                                    .n_tokens = LENGTH,
                                    .k_stride = d.forward.qkv_stride,
                                    .v_stride = d.forward.qkv_stride,
                                    .token_page = token_page,
                                    .position = position,
                                    .pages = pages,
                                    .page_stride_bytes = (size_t)page_bytes};
    const qr_attention_args attention = {.layout = layout,
                                         .q = d.forward.q,
                                         .dst = dst,
                                         .dst_dtype = QR_DTYPE_F32,
                                         .n_tokens = LENGTH,
                                         .q_stride = d.forward.qkv_stride,
                                         .n_heads = p.n_heads,
                                         .n_seqs = 1,
                                         .q_start = d.seq_start,
                                         .first_position = &zero,
                                         .block_table = table,
                                         .table_stride = PAGES,
                                         .pages = pages,
                                         .page_stride_bytes = (size_t)page_bytes,
                                         .scale = d.forward.scale};
    run(lonely, QR_OP_kv_write, &write);
    run(lonely, QR_OP_attention, &attention);
    CHECK(same_bytes(d.dst, dst, LENGTH * row));
    free(pages), free(dst);
    packed_free(&d);
}

/* Element `element` of dk of the first key, which every query sees, by the definition, from what forward wrote. */
static double exact_dk_of_first_key(const packed *p, const packed_data *d, int64_t element) {
    const int64_t stride = d->forward.qkv_stride, dim = p->head_dim, row = (int64_t)p->n_heads * dim;
    double dk = 0.0;
    for (int64_t i = 0; i < d->forward.n_tokens * p->n_heads; i++) {
        const int64_t token = i / p->n_heads, head = i % p->n_heads;
        const float *q = d->forward.q + token * stride + head * dim, *dout = d->dout + token * row + head * dim;
        double score = 0.0, dp = 0.0, delta = 0.0;
        for (int64_t j = 0; j < dim; j++) {
            score += (double)q[j] * (double)d->forward.k[j];
            dp += (double)dout[j] * (double)d->forward.v[j];
            delta += (double)dout[j] * (double)d->dst[i * dim + j];
        }
        const double scale = (double)d->forward.scale, probability = exp(score * scale - (double)d->lse[i]);
        dk += probability * (dp - delta) * scale * (double)q[element];
    }
    return dk;
}

/* 4,096 tokens against what must hold of the exact gradients: as the probabilities of a query sum to 1, the sum of dv
 * over keys is that of dout over queries; the sums of dq · q and of dk · k are the same sum over pairs; and dk of one
 * key by its definition. */
static void test_packed_long_sequence(void) {
    const packed p = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .n_seqs = 1, .length = {4096}};
    packed_data d;
    packed_make(&p, &d);
    run(backend, QR_OP_attention_packed, &d.forward);
    run(backend, QR_OP_attention_packed_backward, &d.backward);
    const int64_t stride = d.forward.qkv_stride, row = (int64_t)p.n_heads * p.head_dim;
    double dq_q = 0.0, dk_k = 0.0, magnitude = 0.0;
    for (int64_t j = 0; j < p.head_dim; j++) {
        double dv = 0.0, dout = 0.0;
        for (int64_t t = 0; t < p.length[0]; t++) {
            dv += (double)d.backward.dv[t * stride + j];
            dk_k += (double)d.backward.dk[t * stride + j] * (double)d.forward.k[t * stride + j];
            for (int64_t at = j; at < row; at += p.head_dim) {
                dout += (double)d.dout[t * row + at];
                const double product = (double)d.backward.dq[t * stride + at] * (double)d.forward.q[t * stride + at];
                dq_q += product;
                magnitude += fabs(product);
            }
        }
        CHECK_MSG(fabs(dv - dout) < 1e-4 * sqrt(4096.0), "dv sums to %g, dout to %g", dv, dout);
        const double dk = (double)d.backward.dk[j], exact = exact_dk_of_first_key(&p, &d, j);
        CHECK_MSG(fabs(dk - exact) < 1e-5 * (0.1 + fabs(exact)), "dk of the first key is %g, expected %g", dk, exact);
    }
    CHECK_MSG(fabs(dq_q - dk_k) < 1e-5 * magnitude, "dq · q is %g, dk · k %g", dq_q, dk_k);
    CHECK(magnitude > 1.0);
    packed_free(&d);
}

/* --- cross_entropy --- */

static double capped(double x, double cap) { return cap > 0.0 ? cap * tanh(x / cap) : x; }

static void check_row(const float *logits, int64_t vocab, int32_t target, float cap) {
    const int64_t bytes = vocab * (int64_t)sizeof(float);
    float *gradient = memory(bytes), loss = NAN;
    memcpy(gradient, logits, (size_t)bytes);
    const qr_cross_entropy_args args = {.logits = gradient,
                                        .target = &target,
                                        .loss = &loss,
                                        .n_rows = 1,
                                        .vocab = vocab,
                                        .softcap = cap,
                                        .dloss = 0.5F};
    run(backend, QR_OP_cross_entropy, &args);
    double highest = -INFINITY, sum = 0.0, worst = 0.0;
    for (int64_t i = 0; i < vocab; i++) { highest = fmax(highest, capped((double)logits[i], (double)cap)); }
    for (int64_t i = 0; i < vocab; i++) { sum += exp(capped((double)logits[i], (double)cap) - highest); }
    const double expected = log(sum) + highest - capped((double)logits[target], (double)cap);
    /* Soft-capped logits are F32: off by 2 units in the last place of the cap. */
    const double tolerance = 1e-6 + (cap > 0.0F ? 4.0 * 0x1p-23 * (double)cap : 0.0);
    CHECK_MSG(fabs((double)loss - expected) <= tolerance * (1.0 + fabs(expected)), "loss is %g, expected %g",
              (double)loss, expected);
    for (int64_t i = 0; i < vocab; i++) {
        const double c = capped((double)logits[i], (double)cap);
        const double slope = cap > 0.0F ? 1.0 - c * c / (double)(cap * cap) : 1.0;
        const double p = exp(c - highest) / sum, size = 0.5 * (i == target ? 1.0 : p) * slope + 1e-30;
        const double exact = 0.5 * (i == target ? p - 1.0 : p) * slope;
        worst = fmax(worst, fabs((double)gradient[i] - exact) / size);
    }
    CHECK_MSG(worst <= 4.0 * tolerance, "a gradient is off by %g of itself", worst);
    free(gradient);
}

static void test_cross_entropy_of_a_whole_vocabulary(void) {
    const int64_t vocab = 262144;
    float *logits = numbers(vocab, 3);
    for (int64_t i = 0; i < vocab; i++) { logits[i] *= 12.0F; }
    check_row(logits, vocab, 77, 0.0F);
    check_row(logits, vocab, 262143, 30.0F);
    for (int64_t i = 0; i < 9000; i++) { logits[i] = -INFINITY; } /* more than one chunk of them, in front */
    logits[200000] = 80.0F;
    check_row(logits, vocab, 200000, 0.0F);
    logits[4096] = 1.0F;
    check_row(logits, 4097, 4096, 0.0F); /* a chunk of nothing but −∞ and one more */
    free(logits);
}

static void test_cross_entropy_says_what_is_not_a_number(void) {
    const float awkward[] = {NAN, INFINITY};
    for (size_t i = 0; i < QR_COUNT_OF(awkward); i++) {
        float *logits = numbers(5000, 4), loss = 0.0F;
        logits[4500] = awkward[i];
        const int32_t target = 3;
        const qr_cross_entropy_args args = {
            .logits = logits, .target = &target, .loss = &loss, .n_rows = 1, .vocab = 5000, .dloss = 1.0F};
        run(backend, QR_OP_cross_entropy, &args);
        CHECK_MSG(!isfinite(loss), "a logit of %g gives a loss of %g", (double)awkward[i], (double)loss);
        free(logits);
    }
}

/* --- Slopes --- */

static double normal_slope(double x) { return 0.5 * erfc(-x * sqrt(0.5)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI); }
static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static double exact_slope(qr_act_fn fn, double x) {
    if (fn == QR_ACT_GELU_ERF) { return normal_slope(x); }
    if (fn == QR_ACT_SILU) { return sigmoid(x) * (1.0 + x * sigmoid(-x)); }
    const double root = sqrt(8.0 / M_PI), u = root * (x + 0.044715 * x * x * x);
    return sigmoid(u) * (1.0 + x * sigmoid(-u) * root * (1.0 + 3.0 * 0.044715 * x * x));
}

static float slope_of(qr_act_fn fn, float x) {
    float one = 1.0F, dx = NAN;
    const qr_activation_backward_args args = {
        .fn = fn, .x = &x, .dy = &one, .dx = &dx, .n_rows = 1, .dim = 1, .x_stride = 1, .dy_stride = 1, .dx_stride = 1};
    CHECK_INT(qr_activation_backward(lonely, &args, QR_NO_WORKSPACE, NULL), QRUN_OK);
    return dx;
}

/* The slopes reach 1.13 and pass through 0 once; left of that they keep to a share of what the tail has left. */
static void test_slopes_over_their_range(void) {
    for (int fn = QR_ACT_SILU; fn <= QR_ACT_GELU_ERF; fn++) {
        double worst = 0.0, worst_tail = 0.0;
        for (int i = -4000; i <= 4000; i++) {
            const float x = (float)i * 0.005F;
            const double exact = exact_slope((qr_act_fn)fn, (double)x);
            const double error = fabs((double)slope_of((qr_act_fn)fn, x) - exact);
            worst = fmax(worst, error);
            if (x < -3.0F && fabs(exact) > 1e-30) { worst_tail = fmax(worst_tail, error / fabs(exact)); }
        }
        CHECK_MSG(worst < 5e-7, "function %d: a slope is off by %g", fn, worst);
        CHECK_MSG(worst_tail < 5e-5, "function %d: a slope of the tail is off by %g of itself", fn, worst_tail);
        CHECK(slope_of((qr_act_fn)fn, FLT_MAX) == 1.0F && slope_of((qr_act_fn)fn, INFINITY) == 1.0F);
        CHECK(slope_of((qr_act_fn)fn, -FLT_MAX) == 0.0F && slope_of((qr_act_fn)fn, -INFINITY) == 0.0F);
        CHECK(isnan(slope_of((qr_act_fn)fn, NAN)));
    }
    CHECK(slope_of(QR_ACT_RELU2, -3.0F) == 0.0F && slope_of(QR_ACT_RELU2, 3.0F) == 6.0F);
    CHECK(slope_of(QR_ACT_RELU2, -INFINITY) == 0.0F && slope_of(QR_ACT_RELU2, INFINITY) == INFINITY);
    CHECK(isnan(slope_of(QR_ACT_RELU2, NAN)));
    CHECK(slope_of(QR_ACT_NONE, -3.0F) == 1.0F && slope_of(QR_ACT_NONE, INFINITY) == 1.0F);
}

/* --- sum_squares --- */

static void test_sum_squares_counts_what_is_not_finite(void) {
    enum { CHUNKS = 25 };
    const int64_t n = 100003;
    float *x = numbers(n, 5);
    double sums[2][CHUNKS];
    int64_t counts[2][CHUNKS];
    CHECK_INT(qr_ceil_div(n, QR_SQUARES_CHUNK), CHUNKS);
    for (int i = 0; i < 2; i++) {
        const qr_sum_squares_args args = {.x = x, .n = n, .dst = sums[i], .n_nonfinite = counts[i]};
        run(i == 0 ? lonely : backend, QR_OP_sum_squares, &args);
    }
    CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
    for (int c = 0; c < CHUNKS; c++) { CHECK(sums[0][c] > 0 && counts[0][c] == 0 && counts[1][c] == 0); }
    x[0] = FLT_MAX, x[QR_SQUARES_CHUNK - 1] = NAN, x[QR_SQUARES_CHUNK] = INFINITY, x[n - 1] = -INFINITY;
    const qr_sum_squares_args args = {.x = x, .n = n, .dst = sums[0], .n_nonfinite = counts[0]};
    run(backend, QR_OP_sum_squares, &args);
    for (int c = 0; c < CHUNKS; c++) { CHECK_INT(counts[0][c], c < 2 || c == CHUNKS - 1); }
    free(x);
}

static void run_tests(void) {
    CHECK_RUN(test_packed_bits_do_not_depend_on_threads);
    CHECK_RUN(test_packed_sequences_do_not_see_each_other);
    CHECK_RUN(test_packed_products_of_bf16);
    CHECK_RUN(test_packed_many_short_sequences);
    CHECK_RUN(test_packed_workspace);
    CHECK_RUN(test_packed_is_the_attention_of_generation);
    CHECK_RUN(test_packed_long_sequence);
    CHECK_RUN(test_cross_entropy_of_a_whole_vocabulary);
    CHECK_RUN(test_cross_entropy_says_what_is_not_a_number);
    CHECK_RUN(test_slopes_over_their_range);
    CHECK_RUN(test_sum_squares_counts_what_is_not_finite);
}

/* What runs on matrix tiles. */
static void run_tests_on_tiles(void) {
    CHECK_RUN(test_packed_bits_do_not_depend_on_threads);
    CHECK_RUN(test_packed_sequences_do_not_see_each_other);
    CHECK_RUN(test_packed_products_of_bf16);
    CHECK_RUN(test_packed_many_short_sequences);
    CHECK_RUN(test_packed_workspace);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    return run_for_every_isa(run_tests, run_tests_on_tiles) ? check_end() : 1;
}
