/* The reference backend against numbers worked out by hand: it is what all others are compared with. Its memory is
 * host memory, so ordinary arrays do. */
#include "check.h"

#include "base/half.h"
#include "kernels/backend.h"

static qr_backend *ref;

#define NEAR(actual, expected)                                                                                     \
    CHECK_MSG(fabs((double)(actual) - (expected)) <= 1e-6, "%s is %.9g, expected %.9g", #actual, (double)(actual), \
              expected)

#define RUN(op, ...)                                                                       \
    do {                                                                                   \
        const qr_##op##_args run_args = __VA_ARGS__;                                       \
        double memory[64];                                                                 \
        const qr_workspace workspace = {memory, sizeof memory};                            \
        qr_error err = {0};                                                                \
        CHECK_MSG(qr_##op(ref, &run_args, workspace, &err) == QRUN_OK, "%s", err.message); \
    } while (0)

static void test_linear_by_hand(void) {
    float w[6] = {1.0F, 2.0F, 3.0F, -1.0F, 0.5F, 0.0F};
    const float x[3] = {2.0F, 1.0F, -1.0F}, bias[2] = {10.0F, 20.0F};
    float y[2] = {100.0F, 200.0F};
    const qr_weight weight = {.desc = {.format = QR_WEIGHT_F32, .rows = 2, .cols = 3}, .data = w};
    RUN(linear, {.weight = &weight,
                 .bias = bias,
                 .x = x,
                 .x_dtype = QR_DTYPE_F32,
                 .y = y,
                 .n_rows = 1,
                 .x_stride = 3,
                 .y_stride = 2,
                 .accumulate = true});
    CHECK(y[0] == 111.0F); /* 2 + 2 - 3, + 10, + 100 */
    CHECK(y[1] == 218.5F); /* -2 + 0.5, + 20, + 200 */
}

/* 1 + 2^-8 + 2^-12 rounds to 1 + 2^-7 in BF16, and stays in F32. */
static void test_linear_rounds_weights_for_bf16(void) {
    float w[1] = {1.0F + 0x1p-8F + 0x1p-12F}, y[1];
    const float x[1] = {1.0F};
    const qr_bf16 x_bf16[1] = {qr_f32_to_bf16(1.0F)};
    const qr_weight weight = {.desc = {.format = QR_WEIGHT_F32, .rows = 1, .cols = 1}, .data = w};
    RUN(linear,
        {.weight = &weight, .x = x, .x_dtype = QR_DTYPE_F32, .y = y, .n_rows = 1, .x_stride = 1, .y_stride = 1});
    CHECK(y[0] == w[0]);
    RUN(linear,
        {.weight = &weight, .x = x_bf16, .x_dtype = QR_DTYPE_BF16, .y = y, .n_rows = 1, .x_stride = 1, .y_stride = 1});
    CHECK(y[0] == 1.0F + 0x1p-7F);
}

static void test_norms_by_hand(void) {
    const float x[4] = {1.0F, -1.0F, 3.0F, 5.0F}, weight[4] = {1.0F, 2.0F, 0.0F, 1.0F},
                bias[4] = {0.0F, 1.0F, 7.0F, 0.0F};
    float y[4];
    RUN(rms_norm, {.src = x,
                   .weight = weight,
                   .dst = y,
                   .dst_dtype = QR_DTYPE_F32,
                   .n_rows = 1,
                   .n_groups = 1,
                   .dim = 4,
                   .src_stride = 4,
                   .dst_stride = 4,
                   .weight_offset = 1.0F}); /* the root of 36 / 4 is 3 */
    NEAR(y[0], 2.0 / 3.0);
    NEAR(y[1], -1.0);
    NEAR(y[2], 1.0);
    RUN(layer_norm, {.src = x,
                     .weight = weight,
                     .bias = bias,
                     .dst = y,
                     .dst_dtype = QR_DTYPE_F32,
                     .n_rows = 1,
                     .dim = 4}); /* mean 2, variance (1 + 9 + 1 + 9) / 4 = 5 */
    NEAR(y[0], -1.0 / sqrt(5.0));
    NEAR(y[1], 1.0 - 6.0 / sqrt(5.0));
    NEAR(y[2], 7.0);
}

static void test_rope_rotates_halves(void) {
    float x[5] = {1.0F, 2.0F, 3.0F, 4.0F, 9.0F};
    const float cosines[2] = {0.0F, 1.0F}, sines[2] = {1.0F, 0.0F}; /* a quarter turn; none */
    RUN(rope, {.x = x,
               .cos_table = cosines,
               .sin_table = sines,
               .n_tokens = 1,
               .n_heads = 1,
               .head_dim = 5,
               .half = 2,
               .x_stride = 5});
    CHECK(x[0] == -3.0F && x[2] == 1.0F && x[1] == 2.0F && x[3] == 4.0F && x[4] == 9.0F);
}

static void test_rope_rotates_neighbours(void) {
    float x[5] = {1.0F, 2.0F, 3.0F, 4.0F, 9.0F};
    const float cosines[2] = {0.0F, 1.0F}, sines[2] = {1.0F, 0.0F}; /* a quarter turn; none */
    RUN(rope, {.x = x,
               .cos_table = cosines,
               .sin_table = sines,
               .n_tokens = 1,
               .n_heads = 1,
               .head_dim = 5,
               .half = 2,
               .x_stride = 5,
               .interleaved = true});
    CHECK(x[0] == -2.0F && x[1] == 1.0F && x[2] == 3.0F && x[3] == 4.0F && x[4] == 9.0F);
}

/* Two positions with scores ln 1 and ln 3 weigh 1/4 and 3/4; a window of one sees the last alone. */
static void test_attention_by_hand(void) {
    const qr_kv_layout layout = {.format = QR_KV_F32, .n_kv_heads = 1, .head_dim = 2};
    static _Alignas(64) unsigned char pages[2 * 512];
    const float k[4] = {0.0F, 5.0F, 1.0986123F, 5.0F}, v[4] = {4.0F, 0.0F, 8.0F, -4.0F},
                q[4] = {1.0F, 0.0F, 2.0F, 0.0F};
    const int32_t page[2] = {1, 1}, position[2] = {0, 1}, q_start[2] = {0, 1}, first[1] = {1}, table[1] = {1};
    float y[4];
    RUN(kv_write, {.layout = layout,
                   .k = k,
                   .v = v,
                   .n_tokens = 2,
                   .k_stride = 2,
                   .v_stride = 2,
                   .token_page = page,
                   .position = position,
                   .pages = pages,
                   .page_stride_bytes = 512});
    qr_attention_args a = {.layout = layout,
                           .q = q,
                           .dst = y,
                           .dst_dtype = QR_DTYPE_F32,
                           .n_tokens = 1,
                           .q_stride = 4,
                           .n_heads = 2,
                           .n_seqs = 1,
                           .q_start = q_start,
                           .first_position = first,
                           .block_table = table,
                           .table_stride = 1,
                           .pages = pages,
                           .page_stride_bytes = 512,
                           .scale = 1.0F};
    RUN(attention, a);
    NEAR(y[0], 7.0);
    NEAR(y[1], -3.0);
    NEAR(y[2], 0.1 * 4.0 + 0.9 * 8.0); /* the second head doubles the scores: 1 to 9 */
    a.window = 1;
    RUN(attention, a);
    NEAR(y[0], 8.0);
    a.window = 0;
    a.softcap = 1e-3F; /* scores of 0 and 0.001: about equal weights */
    RUN(attention, a);
    CHECK(fabsf(y[0] - 6.0F) < 2e-3F);
}

static void test_functions_by_hand(void) {
    const float x[2] = {1.0F, -2.0F}, logits[3] = {0.0F, 0.6931472F, 0.0F};
    const int32_t target[1] = {1};
    float y[2];
    RUN(activation,
        {.fn = QR_ACT_SILU, .x = x, .dst = y, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 2, .x_stride = 2});
    NEAR(y[0], 0.731058579);
    NEAR(y[1], -0.238405844);
    RUN(activation,
        {.fn = QR_ACT_GELU_ERF, .x = x, .dst = y, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 2, .x_stride = 2});
    NEAR(y[0], 0.841344746);
    NEAR(y[1], -0.045500264);
    RUN(activation,
        {.fn = QR_ACT_GELU_TANH, .x = x, .dst = y, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 2, .x_stride = 2});
    NEAR(y[0], 0.841191991);
    NEAR(y[1], -0.045402306);
    RUN(activation,
        {.fn = QR_ACT_RELU2, .x = x, .dst = y, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 2, .x_stride = 2});
    CHECK(y[0] == 1.0F && y[1] == 0.0F);
    RUN(activation,
        {.fn = QR_ACT_NONE, .x = x, .dst = y, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 2, .x_stride = 2});
    CHECK(y[0] == 1.0F && y[1] == -2.0F);
    RUN(nll, {.logits = logits, .target = target, .dst = y, .n_rows = 1, .vocab = 3});
    NEAR(y[0], log(2.0)); /* 1, 2 and 1: a half */
}

/* Scores of 1/2, 3/4, 1/4 and 0.88; the bias puts the last one below the first two. transformers' LFM2-MoE router gives
 * the same. */
static void test_router_of_sigmoids_by_hand(void) {
    const float logits[4] = {0.0F, 1.0986123F, -1.0986123F, 2.0F}, bias[4] = {0.3F, 0.0F, 0.0F, -0.5F};
    int32_t expert[2], slot[2], slot_row[2], expert_start[5];
    float share[2];
    qr_route_args a = {.logits = logits,
                       .routing = {expert, slot, slot_row, share, expert_start, 1, 4, 2},
                       .router = {.is_sigmoid = true, .eps = 1e-6F, .factor = 2.0F},
                       .choice_bias = bias};
    RUN(route, a);
    CHECK(expert[0] == 0 && expert[1] == 1);
    NEAR(share[slot[0]], 1.0);
    NEAR(share[slot[1]], 1.5);
    a.router.normalize = true;
    RUN(route, a);
    NEAR(share[slot[0]], 0.8);
    NEAR(share[slot[1]], 1.2);
    a.choice_bias = NULL;
    RUN(route, a);
    CHECK(expert[0] == 3 && expert[1] == 1);
    NEAR(share[slot[0]], 2.0 * 0.880797078 / 1.630798078);
    a.choice_bias = bias; /* 0.3, 1.1, −1.1 and 1.5 beside the logits: the sigmoids of the last and the second */
    a.router.chooses_by_logits = true;
    RUN(route, a);
    CHECK(expert[0] == 3 && expert[1] == 1);
    NEAR(share[slot[1]], 2.0 * 0.75 / 1.630798078);
}

/* A softmax of 1/8, 2/8, 4/8 and 1/8; the bias puts the first above the second. transformers' router of ERNIE 4.5 gives
 * the same. */
static void test_router_with_a_bias_by_hand(void) {
    const float logits[4] = {0.0F, 0.6931472F, 1.3862944F, 0.0F}, bias[4] = {0.3F, 0.0F, 0.0F, 0.1F};
    int32_t expert[2], slot[2], slot_row[2], expert_start[5];
    float share[2];
    qr_route_args a = {.logits = logits,
                       .routing = {expert, slot, slot_row, share, expert_start, 1, 4, 2},
                       .choice_bias = bias,
                       .router = {.factor = 1.0F}};
    RUN(route, a);
    CHECK(expert[0] == 2 && expert[1] == 0);
    NEAR(share[slot[0]], 0.5);
    NEAR(share[slot[1]], 0.125);
    a.router.normalize = true;
    RUN(route, a);
    NEAR(share[slot[0]], 0.8);
    NEAR(share[slot[1]], 0.2);
}

/* Scores of 9/10 and 1/10 in one group, of 6/10 and 1/2 in the other: the first has the best expert, the second the
 * larger sum. */
static void test_groups_by_hand(void) {
    const float logits[4] = {2.1972246F, -2.1972246F, 0.4054651F, 0.0F};
    int32_t expert[2], slot[2], slot_row[2], expert_start[5];
    float share[2];
    qr_route_args a = {.logits = logits,
                       .routing = {expert, slot, slot_row, share, expert_start, 1, 4, 2},
                       .router = {.is_sigmoid = true, .factor = 2.0F, .n_groups = 2, .top_groups = 1}};
    RUN(route, a);
    CHECK(expert[0] == 2 && expert[1] == 3);
    NEAR(share[slot[0]], 1.2);
    a.router.is_sigmoid = false;
    RUN(route, a);
    CHECK(expert[0] == 0 && expert[1] == 1);
    NEAR(share[slot[0]], 2.0 * 9.0 / (9.0 + 1.0 / 9.0 + 1.5 + 1.0));
    a.router.top_groups = 2;
    RUN(route, a);
    CHECK(expert[0] == 0 && expert[1] == 2);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_backend_ref_create(NULL, &ref, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_linear_by_hand);
    CHECK_RUN(test_linear_rounds_weights_for_bf16);
    CHECK_RUN(test_norms_by_hand);
    CHECK_RUN(test_rope_rotates_halves);
    CHECK_RUN(test_rope_rotates_neighbours);
    CHECK_RUN(test_attention_by_hand);
    CHECK_RUN(test_functions_by_hand);
    CHECK_RUN(test_router_of_sigmoids_by_hand);
    CHECK_RUN(test_router_with_a_bias_by_hand);
    CHECK_RUN(test_groups_by_hand);
    qr_backend_destroy(ref);
    return check_end();
}
