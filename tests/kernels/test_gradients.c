/* The reference's backward ops against central differences of its forward ops: what every other backend is compared
 * with must be the derivative. The sum of dy · y, in float64, is the function that is differentiated; dy is random.
 *
 * Differences of fourth order, (8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12 h, with h = 2^-5: the truncation is h⁴ / 30 ≈
 * 3e-8 times a fifth derivative, and the rounding of outputs to F32 about u / h ≈ 2e-6 of the outputs, a little more
 * where many are summed. Inputs are multiples of 2^-10, so that x ± 2h is exact. The error of a gradient tensor, as a
 * Euclidean norm, must be below TOLERANCE of the gradient's norm. */
#include "check.h"

#include "base/random.h"
#include "base/sizes.h"
#include "kernels/backend.h"

#define STEP 0x1p-5F
#define TOLERANCE 2e-5

enum { SEED = 20250101, MAX_ELEMENTS = 1024 };

static qr_backend *ref;
static _Alignas(64) double workspace_memory[4096];
static const qr_workspace workspace = {workspace_memory, sizeof workspace_memory};

#define RUN(op, ...)                                                                       \
    do {                                                                                   \
        const qr_##op##_args run_args = __VA_ARGS__;                                       \
        qr_error err = {0};                                                                \
        CHECK_MSG(qr_##op(ref, &run_args, workspace, &err) == QRUN_OK, "%s", err.message); \
    } while (0)

/* Normal numbers, to multiples of 2^-10. */
static void fill(float *x, int64_t n, uint64_t stream, double scale) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(rint(qr_random_normal(SEED, stream, (uint64_t)i) * scale * 1024.0) / 1024.0);
    }
}

/* What is differentiated: `forward` writes y [n] from the case's inputs; dy weighs it. */
typedef struct function {
    void (*forward)(void);
    const float *y, *dy;
    int64_t n;
} function;

static double value_at(const function *f, float *x, float at) {
    const float before = *x;
    double sum = 0.0;
    *x = at;
    f->forward();
    *x = before;
    for (int64_t i = 0; i < f->n; i++) { sum += (double)f->dy[i] * (double)f->y[i]; }
    return sum;
}

static double difference(const function *f, float *x) {
    const float at = *x;
    const double near = value_at(f, x, at + STEP) - value_at(f, x, at - STEP);
    const double far = value_at(f, x, at + 2.0F * STEP) - value_at(f, x, at - 2.0F * STEP);
    return (8.0 * near - far) / (12.0 * (double)STEP);
}

static void check_gradient(const function *f, const char *what, float *x, int64_t n, const float *dx) {
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double expected = difference(f, &x[i]);
        error += ((double)dx[i] - expected) * ((double)dx[i] - expected);
        norm += expected * expected;
    }
    CHECK_MSG(norm > 0.0, "%s: the differences are zero", what);
    CHECK_MSG(sqrt(error) <= TOLERANCE * sqrt(norm), "%s: relative error %.3g", what, sqrt(error / norm));
}

/* The inputs, outputs and gradients of the case that runs. */
static float x[MAX_ELEMENTS], u[MAX_ELEMENTS], w[MAX_ELEMENTS], bias[MAX_ELEMENTS], y[MAX_ELEMENTS], dy[MAX_ELEMENTS];
static float dx[MAX_ELEMENTS], du[MAX_ELEMENTS], dw[MAX_ELEMENTS], dbias[MAX_ELEMENTS];

/* Fresh inputs; gradients that are added to begin at zero. */
static void begin_case(uint64_t stream) {
    float *const inputs[] = {x, u, w, bias, dy};
    float *const gradients[] = {dx, du, dw, dbias, y};
    for (size_t i = 0; i < QR_COUNT_OF(inputs); i++) { fill(inputs[i], MAX_ELEMENTS, 10 * stream + i, 1.0); }
    for (size_t i = 0; i < QR_COUNT_OF(gradients); i++) { memset(gradients[i], 0, sizeof x); }
}

/* --- linear and lora --- */

enum { N_ROWS = 5, IN = 7, OUT = 6, RANK = 3 };

static const qr_weight weight = {.desc = {.format = QR_WEIGHT_F32, .rows = OUT, .cols = IN}, .data = w};

static void forward_linear(void) {
    RUN(linear, {.weight = &weight,
                 .bias = bias,
                 .x = x,
                 .x_dtype = QR_DTYPE_F32,
                 .y = y,
                 .n_rows = N_ROWS,
                 .x_stride = IN,
                 .y_stride = OUT});
}

static void test_linear(void) {
    const function f = {forward_linear, y, dy, N_ROWS * OUT};
    begin_case(1);
    RUN(linear_backward, {.weight = &weight,
                          .dy = dy,
                          .dy_dtype = QR_DTYPE_F32,
                          .dx = dx,
                          .n_rows = N_ROWS,
                          .dy_stride = OUT,
                          .dx_stride = IN});
    RUN(weight_backward, {.x = x,
                          .x_dtype = QR_DTYPE_F32,
                          .dy = dy,
                          .dw = dw,
                          .dbias = dbias,
                          .n_rows = N_ROWS,
                          .in = IN,
                          .out = OUT,
                          .x_stride = IN,
                          .dy_stride = OUT});
    check_gradient(&f, "linear dx", x, N_ROWS * IN, dx);
    check_gradient(&f, "linear dw", w, OUT * IN, dw);
    check_gradient(&f, "linear dbias", bias, OUT, dbias);
}

/* --- experts --- */

/* Tokens are x, logits are u, the matrices of all experts are w. */
enum { N_EXPERTS = 7, TOP_K = 3, N_SLOTS = N_ROWS * TOP_K };

static int32_t chosen[N_SLOTS], slots[N_SLOTS], slot_row[N_SLOTS], expert_start[N_EXPERTS + 1];
static float shares[N_SLOTS];
static const qr_routing routing = {chosen, slots, slot_row, shares, expert_start, N_ROWS, N_EXPERTS, TOP_K};
static qr_weight expert_weights[N_EXPERTS];
static qr_router router = {.factor = 1.0F};
static float expert_bias[N_EXPERTS * OUT];
static float expert_scale[N_EXPERTS] = {1.5F, 0.5F, 2.0F, 0.75F, 1.0F, 1.25F, 0.625F};

static void forward_experts(void) {
    static float outputs[N_SLOTS * OUT];
    RUN(route, {.logits = u, .scale = expert_scale, .routing = routing, .router = router});
    RUN(expert_linear, {.weights = expert_weights,
                        .routing = routing,
                        .x = x,
                        .x_dtype = QR_DTYPE_F32,
                        .y = outputs,
                        .x_stride = IN,
                        .y_stride = OUT,
                        .gathers = true});
    RUN(expert_bias, {.routing = routing, .bias = expert_bias, .y = outputs, .dim = OUT, .y_stride = OUT});
    RUN(expert_sum, {.routing = routing, .src = outputs, .dst = y, .dim = OUT, .dst_stride = OUT, .by_share = true});
}

static void begin_experts(uint64_t stream) {
    begin_case(stream);
    for (int e = 0; e < N_EXPERTS; e++) {
        expert_weights[e] = (qr_weight){.desc = weight.desc, .data = w + e * OUT * IN};
    }
    for (int i = 0; i < N_EXPERTS * OUT; i++) { expert_bias[i] = 0.25F * (float)(i * 7 % 11 - 5); }
    /* So far apart that a difference changes no choice, and where sigmoids are steep. */
    for (int i = 0; i < N_ROWS * N_EXPERTS; i++) {
        const int order = (i % N_EXPERTS * 3 + i / N_EXPERTS) % N_EXPERTS;
        u[i] = 0.5F * (float)order + 0.125F * rintf(u[i]) / 8.0F - (router.is_sigmoid ? 1.5F : 0.0F);
    }
}

/* From rows of slots, with the shares in dy, the same dw comes out as from those of tokens. */
static void check_slots_gradient(const float *h, const float *of_tokens) {
    float of_slots[N_EXPERTS * OUT * IN] = {0.0F}, dout[N_SLOTS * OUT];
    for (int p = 0; p < N_SLOTS; p++) {
        for (int o = 0; o < OUT; o++) { dout[p * OUT + o] = shares[p] * dy[slot_row[p] * OUT + o]; }
    }
    RUN(expert_weight_backward, {.dw = of_slots,
                                 .routing = routing,
                                 .x = h,
                                 .x_dtype = QR_DTYPE_F32,
                                 .dy = dout,
                                 .in = IN,
                                 .out = OUT,
                                 .dw_stride = OUT * IN,
                                 .x_stride = IN,
                                 .dy_stride = OUT});
    for (int i = 0; i < N_EXPERTS * OUT * IN; i++) {
        CHECK_MSG(fabsf(of_slots[i] - of_tokens[i]) <= 1e-5F, "experts dw of slots: element %d is %g, expected %g", i,
                  (double)of_slots[i], (double)of_tokens[i]);
    }
}

static void check_experts(uint64_t stream) {
    const function f = {forward_experts, y, dy, N_ROWS * OUT};
    static float dh[N_SLOTS * IN], h[N_SLOTS * IN], dshare[N_SLOTS];
    float dscale[N_EXPERTS] = {0.0F};
    begin_experts(stream);
    forward_experts();
    RUN(gather_rows, {.src = x, .rows = slot_row, .dst = h, .n_rows = N_SLOTS, .dim = IN});
    RUN(expert_linear_backward, {.weights = expert_weights,
                                 .routing = routing,
                                 .dy = dy,
                                 .dy_dtype = QR_DTYPE_F32,
                                 .dx = dh,
                                 .dy_stride = OUT,
                                 .dx_stride = IN,
                                 .gathers = true});
    RUN(expert_weight_backward, {.dw = dw,
                                 .dbias = dbias,
                                 .routing = routing,
                                 .x = x,
                                 .x_dtype = QR_DTYPE_F32,
                                 .dy = dy,
                                 .in = IN,
                                 .out = OUT,
                                 .dw_stride = OUT * IN,
                                 .x_stride = IN,
                                 .dy_stride = OUT,
                                 .gathers = true,
                                 .shares = true});
    RUN(expert_share_backward,
        {.routing = routing, .h = h, .h_dtype = QR_DTYPE_F32, .dh = dh, .dshare = dshare, .dim = IN});
    RUN(expert_bias_backward, {.routing = routing, .bias = expert_bias, .dy = dy, .dshare = dshare, .dim = OUT});
    RUN(expert_sum, {.routing = routing, .src = dh, .dst = dx, .dim = IN, .dst_stride = IN});
    RUN(route_backward, {.logits = u,
                         .scale = expert_scale,
                         .routing = routing,
                         .dshare = dshare,
                         .dlogits = du,
                         .dscale = dscale,
                         .router = router});
    check_slots_gradient(h, dw); /* while the shares are those of the inputs as they are */
    check_gradient(&f, "experts dw", w, N_EXPERTS * OUT * IN, dw);
    check_gradient(&f, "experts dbias", expert_bias, N_EXPERTS * OUT, dbias);
    check_gradient(&f, "experts' scales", expert_scale, N_EXPERTS, dscale);
    check_gradient(&f, "experts dx", x, N_ROWS * IN, dx);
    check_gradient(&f, "router's logits", u, N_ROWS * N_EXPERTS, du);
}

static void test_experts(void) {
    check_experts(14);
    router.normalize = true;
    check_experts(15);
    router = (qr_router){.factor = 1.5F};
    check_experts(16);
    router = (qr_router){.is_sigmoid = true, .eps = 1e-6F, .factor = 1.75F};
    check_experts(17);
    router.normalize = true;
    check_experts(18);
}

/* Rows are x, gates u. */
static void forward_share_rows(void) {
    memcpy(y, x, N_ROWS * IN * sizeof *y);
    RUN(share_rows, {.g = u, .x = y, .x_dtype = QR_DTYPE_F32, .n_rows = N_ROWS, .dim = IN});
}

static void test_share_rows(void) {
    const function f = {forward_share_rows, y, dy, N_ROWS * IN};
    begin_case(16);
    forward_share_rows();
    memcpy(dx, dy, sizeof dx);
    RUN(share_rows_backward,
        {.g = u, .x = y, .x_dtype = QR_DTYPE_F32, .dx = dx, .dg = du, .n_rows = N_ROWS, .dim = IN});
    check_gradient(&f, "share_rows dx", x, N_ROWS * IN, dx);
    check_gradient(&f, "share_rows dg", u, N_ROWS, du);
}

/* A is w, B is u. */
static void forward_lora(void) {
    static const int32_t row_adapter[N_ROWS] = {0};
    const qr_lora_factor factor = {.a = w, .b = u, .rank = RANK, .scale = -1.75F};
    memset(y, 0, sizeof y);
    RUN(lora, {.factors = &factor,
               .row_adapter = row_adapter,
               .x = x,
               .x_dtype = QR_DTYPE_F32,
               .y = y,
               .n_rows = N_ROWS,
               .in = IN,
               .out = OUT,
               .x_stride = IN,
               .y_stride = OUT,
               .n_adapters = 1,
               .max_rank = RANK});
}

static void test_lora(void) {
    const function f = {forward_lora, y, dy, N_ROWS * OUT};
    begin_case(2);
    RUN(lora_backward, {.a = w,
                        .b = u,
                        .da = dw,
                        .db = du,
                        .x = x,
                        .x_dtype = QR_DTYPE_F32,
                        .dy = dy,
                        .dx = dx,
                        .n_rows = N_ROWS,
                        .in = IN,
                        .out = OUT,
                        .x_stride = IN,
                        .dy_stride = OUT,
                        .dx_stride = IN,
                        .rank = RANK,
                        .scale = -1.75F});
    check_gradient(&f, "lora dx", x, N_ROWS * IN, dx);
    check_gradient(&f, "lora da", w, RANK * IN, dw);
    check_gradient(&f, "lora db", u, OUT * RANK, du);
}

/* Magnitudes are w; z is x. The norm is no variable. */
static const float dora_norms[OUT] = {0.5F, 2.0F, 1.25F, 3.0F, 0.75F, 1.0F};

static void forward_dora(void) {
    static const int32_t row_adapter[N_ROWS] = {0};
    float ratio[OUT];
    for (int o = 0; o < OUT; o++) { ratio[o] = w[o] / dora_norms[o]; }
    const qr_lora_factor factor = {.rank = RANK, .ratio = ratio};
    RUN(dora, {.factors = &factor,
               .row_adapter = row_adapter,
               .src = x,
               .bias = bias,
               .dst = y,
               .n_rows = N_ROWS,
               .dim = OUT,
               .src_stride = OUT,
               .dst_stride = OUT,
               .n_adapters = 1});
}

/* With no bias to take off: what dora_backward calls z. */
static void test_dora(void) {
    const function f = {forward_dora, y, dy, N_ROWS * OUT};
    begin_case(3);
    memset(bias, 0, sizeof bias);
    RUN(dora_backward, {.dy = dy,
                        .z = x,
                        .norm = dora_norms,
                        .dmagnitude = dw,
                        .n_rows = N_ROWS,
                        .dim = OUT,
                        .dy_stride = OUT,
                        .z_stride = OUT});
    check_gradient(&f, "dora dmagnitude", w, OUT, dw);
}

/* --- Norms --- */

enum { GROUPS = 3, DIM = 8, NORM_ROW = GROUPS * DIM };

/* One element in eight is large: the norm of a group stays well above the step, and the derivatives small. */
static void spread_rows(void) {
    for (int64_t i = 0; i < N_ROWS * NORM_ROW; i += 4) { x[i] += x[i] < 0.0F ? -4.0F : 4.0F; }
}

static void forward_rms_norm(void) {
    RUN(rms_norm, {.src = x,
                   .weight = w,
                   .dst = y,
                   .dst_dtype = QR_DTYPE_F32,
                   .n_rows = N_ROWS,
                   .n_groups = GROUPS,
                   .dim = DIM,
                   .src_stride = NORM_ROW,
                   .dst_stride = NORM_ROW,
                   .eps = 0.5F,
                   .weight_offset = 1.0F});
}

static void test_rms_norm(void) {
    const function f = {forward_rms_norm, y, dy, N_ROWS * NORM_ROW};
    begin_case(3);
    spread_rows();
    RUN(rms_norm_backward, {.x = x,
                            .weight = w,
                            .dy = dy,
                            .dx = dx,
                            .dweight = dw,
                            .n_rows = N_ROWS,
                            .n_groups = GROUPS,
                            .dim = DIM,
                            .x_stride = NORM_ROW,
                            .dy_stride = NORM_ROW,
                            .dx_stride = NORM_ROW,
                            .eps = 0.5F,
                            .weight_offset = 1.0F});
    check_gradient(&f, "rms_norm dx", x, N_ROWS * NORM_ROW, dx);
    check_gradient(&f, "rms_norm dweight", w, DIM, dw);
}

static void forward_layer_norm(void) {
    RUN(layer_norm, {.src = x,
                     .weight = w,
                     .bias = bias,
                     .dst = y,
                     .dst_dtype = QR_DTYPE_F32,
                     .n_rows = N_ROWS,
                     .dim = NORM_ROW,
                     .eps = 0.5F,
                     .weight_offset = 1.0F});
}

static void test_layer_norm(void) {
    const function f = {forward_layer_norm, y, dy, N_ROWS * NORM_ROW};
    begin_case(4);
    spread_rows();
    RUN(layer_norm_backward, {.x = x,
                              .weight = w,
                              .dy = dy,
                              .dx = dx,
                              .dweight = dw,
                              .dbias = dbias,
                              .n_rows = N_ROWS,
                              .dim = NORM_ROW,
                              .eps = 0.5F,
                              .weight_offset = 1.0F});
    check_gradient(&f, "layer_norm dx", x, N_ROWS * NORM_ROW, dx);
    check_gradient(&f, "layer_norm dweight", w, NORM_ROW, dw);
    check_gradient(&f, "layer_norm dbias", bias, NORM_ROW, dbias);
}

/* --- rope: in place, so the forward op works on a copy --- */

enum { HEADS = 2, HEAD_DIM = 10, HALF = 4, ROPE_ROW = HEADS * HEAD_DIM };

static bool interleaved;

static void forward_rope(void) {
    memcpy(y, x, sizeof y);
    RUN(rope, {.x = y,
               .cos_table = u,
               .sin_table = w,
               .n_tokens = N_ROWS,
               .n_heads = HEADS,
               .head_dim = HEAD_DIM,
               .half = HALF,
               .x_stride = ROPE_ROW,
               .interleaved = interleaved});
}

static void test_rope(void) {
    const function f = {forward_rope, y, dy, N_ROWS * ROPE_ROW};
    begin_case(5);
    for (int64_t i = 0; i < N_ROWS * HALF; i++) {
        const double angle = (double)w[i];
        u[i] = 1.25F * (float)cos(angle); /* with an attention factor */
        w[i] = 1.25F * (float)sin(angle);
    }
    for (int i = 0; i < 2; i++) {
        interleaved = i == 1;
        memcpy(dx, dy, sizeof dx);
        RUN(rope_backward, {.dx = dx,
                            .cos_table = u,
                            .sin_table = w,
                            .n_tokens = N_ROWS,
                            .n_heads = HEADS,
                            .head_dim = HEAD_DIM,
                            .half = HALF,
                            .dx_stride = ROPE_ROW,
                            .interleaved = interleaved});
        check_gradient(&f, interleaved ? "interleaved rope dx" : "rope dx", x, N_ROWS * ROPE_ROW, dx);
    }
}

/* --- attention_packed --- */

enum { Q_HEADS = 4, KV_HEADS = 2, WIDTH = 4, QKV_ROW = (Q_HEADS + 2 * KV_HEADS) * WIDTH, TOKENS = 15, N_SEQS = 3 };

static const int32_t seq_start[N_SEQS + 1] = {0, 1, 6, TOKENS};
static float lse[TOKENS * Q_HEADS];
static qr_attention_packed_args packed;

static void forward_attention(void) { RUN(attention_packed, packed); }

static void begin_attention(int32_t window, float softcap) {
    begin_case(6);
    packed = (qr_attention_packed_args){
        .q = x,
        .k = x + Q_HEADS * WIDTH,
        .v = x + (Q_HEADS + KV_HEADS) * WIDTH,
        .dst = y,
        .dst_dtype = QR_DTYPE_F32,
        .lse = lse,
        .seq_start = seq_start,
        .n_tokens = TOKENS,
        .qkv_stride = QKV_ROW,
        .n_heads = Q_HEADS,
        .n_kv_heads = KV_HEADS,
        .head_dim = WIDTH,
        .n_seqs = N_SEQS,
        .max_seq_tokens = 9,
        .scale = 0.5F,
        .softcap = softcap,
        .window = window,
    };
}

static void check_attention_gradient(int32_t window, float softcap, float *sinks) {
    const function f = {forward_attention, y, dy, TOKENS * Q_HEADS * WIDTH};
    char what[80];
    begin_attention(window, softcap);
    packed.sinks = sinks;
    forward_attention();
    RUN(attention_packed_backward, {.forward = packed,
                                    .dout = dy,
                                    .dq = dx,
                                    .dk = dx + Q_HEADS * WIDTH,
                                    .dv = dx + (Q_HEADS + KV_HEADS) * WIDTH,
                                    .dsinks = sinks != NULL ? dbias : NULL,
                                    .dqkv_stride = QKV_ROW});
    snprintf(what, sizeof what, "attention_packed window %d softcap %g%s", (int)window, (double)softcap,
             sinks != NULL ? " sinks" : "");
    check_gradient(&f, what, x, TOKENS * QKV_ROW, dx);
    if (sinks != NULL) { check_gradient(&f, "attention_packed dsinks", sinks, Q_HEADS, dbias); }
}

static void test_attention_packed(void) {
    static const int32_t windows[] = {0, 1, 3, 100};
    static float sinks[Q_HEADS] = {-2.0F, 0.0F, 0.5F, 3.0F};
    for (size_t i = 0; i < QR_COUNT_OF(windows); i++) {
        check_attention_gradient(windows[i], 0.0F, NULL);
        check_attention_gradient(windows[i], 2.0F, NULL);
    }
    check_attention_gradient(0, 0.0F, sinks);
    check_attention_gradient(3, 2.0F, sinks);
}

/* The same numbers through pages of a cache: each sequence in a page of its own, bit for bit, in F32 and rounded to
 * BF16. */
static void check_packed_is_paged(int32_t window, float softcap, bool round_kv) {
    const qr_kv_layout layout = {
        .format = round_kv ? QR_KV_BF16 : QR_KV_F32, .n_kv_heads = KV_HEADS, .head_dim = WIDTH};
    static _Alignas(64) unsigned char pages[N_SEQS * 2048];
    static const int32_t first_position[N_SEQS] = {0}, table[N_SEQS] = {2, 0, 1};
    int32_t token_page[TOKENS], position[TOKENS];
    begin_attention(window, softcap);
    packed.round_kv = round_kv;
    for (int32_t s = 0; s < N_SEQS; s++) {
        for (int32_t t = seq_start[s]; t < seq_start[s + 1]; t++) {
            token_page[t] = table[s];
            position[t] = t - seq_start[s];
        }
    }
    CHECK(qr_kv_layer_bytes(&layout) <= 2048);
    RUN(kv_write, {.layout = layout,
                   .k = packed.k,
                   .v = packed.v,
                   .n_tokens = TOKENS,
                   .k_stride = QKV_ROW,
                   .v_stride = QKV_ROW,
                   .token_page = token_page,
                   .position = position,
                   .pages = pages,
                   .page_stride_bytes = 2048});
    RUN(attention, {.layout = layout,
                    .q = x,
                    .dst = u,
                    .dst_dtype = QR_DTYPE_F32,
                    .n_tokens = TOKENS,
                    .q_stride = QKV_ROW,
                    .n_heads = Q_HEADS,
                    .n_seqs = N_SEQS,
                    .q_start = seq_start,
                    .first_position = first_position,
                    .block_table = table,
                    .table_stride = 1,
                    .pages = pages,
                    .page_stride_bytes = 2048,
                    .scale = packed.scale,
                    .softcap = softcap,
                    .window = window});
    forward_attention();
    CHECK_MSG(memcmp(u, y, TOKENS * Q_HEADS * WIDTH * sizeof *y) == 0, "window %d, softcap %g: packed is not paged",
              (int)window, (double)softcap);
}

static void test_packed_attention_is_paged_attention(void) {
    for (int i = 0; i < 8; i++) { check_packed_is_paged(i % 2 == 0 ? 0 : 4, i / 2 % 2 == 0 ? 0.0F : 2.0F, i >= 4); }
}

/* lse is the logarithm of what the probabilities are divided by: with one position, the score. */
static void test_lse_by_hand(void) {
    begin_attention(1, 0.0F);
    forward_attention();
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int64_t h = 0; h < Q_HEADS; h++) {
            double score = 0.0;
            for (int64_t j = 0; j < WIDTH; j++) {
                score +=
                    (double)packed.q[t * QKV_ROW + h * WIDTH + j] * (double)packed.k[t * QKV_ROW + h / 2 * WIDTH + j];
            }
            CHECK(lse[t * Q_HEADS + h] == (float)(0.5 * score));
        }
    }
}

/* --- Activations --- */

enum { ACT_DIM = 40, N_ACTS = N_ROWS * ACT_DIM };

static qr_act_fn act_fn;

static void forward_activation(void) {
    RUN(activation, {.fn = act_fn,
                     .x = x,
                     .dst = y,
                     .dst_dtype = QR_DTYPE_F32,
                     .n_rows = N_ROWS,
                     .dim = ACT_DIM,
                     .x_stride = ACT_DIM});
}

static void forward_gate(void) {
    RUN(gate, {.fn = act_fn,
               .g = x,
               .u = u,
               .dst = y,
               .dst_dtype = QR_DTYPE_F32,
               .n_rows = N_ROWS,
               .dim = ACT_DIM,
               .g_stride = ACT_DIM,
               .u_stride = ACT_DIM});
}

static void test_activations(void) {
    static const char *const names[] = {"silu", "gelu tanh", "gelu erf", "relu2"};
    const function activation = {forward_activation, y, dy, N_ACTS}, gate = {forward_gate, y, dy, N_ACTS};
    for (int fn = 0; fn < 4; fn++) {
        act_fn = (qr_act_fn)fn;
        begin_case(7);
        for (int64_t i = 0; i < N_ACTS; i++) { x[i] *= 2.0F; }
        if (act_fn == QR_ACT_RELU2) { /* away from 0, where its slope has a kink */
            for (int64_t i = 0; i < N_ACTS; i++) { x[i] += copysignf(4.0F * STEP, x[i]); }
        }
        RUN(activation_backward, {.fn = act_fn,
                                  .x = x,
                                  .dy = dy,
                                  .dx = dx,
                                  .n_rows = N_ROWS,
                                  .dim = ACT_DIM,
                                  .x_stride = ACT_DIM,
                                  .dy_stride = ACT_DIM,
                                  .dx_stride = ACT_DIM});
        check_gradient(&activation, names[fn], x, N_ACTS, dx);
        RUN(gate_backward, {.fn = act_fn,
                            .g = x,
                            .u = u,
                            .dy = dy,
                            .dg = dx,
                            .du = du,
                            .n_rows = N_ROWS,
                            .dim = ACT_DIM,
                            .g_stride = ACT_DIM,
                            .u_stride = ACT_DIM,
                            .dg_stride = ACT_DIM,
                            .du_stride = ACT_DIM});
        check_gradient(&gate, names[fn], x, N_ACTS, dx);
        check_gradient(&gate, names[fn], u, N_ACTS, du);
    }
}

static const qr_clamped_gate_args clamped = {.g = x,
                                             .u = u,
                                             .dst = y,
                                             .dst_dtype = QR_DTYPE_F32,
                                             .n_rows = N_ROWS,
                                             .dim = ACT_DIM,
                                             .stride = ACT_DIM,
                                             .alpha = 1.702F,
                                             .limit = 1.0F};

static void forward_clamped_gate(void) { RUN(clamped_gate, clamped); }

/* Values at the limit have no derivative: they are moved away from it. */
static void test_clamped_gate(void) {
    const function f = {forward_clamped_gate, y, dy, N_ACTS};
    begin_case(8);
    for (int64_t i = 0; i < N_ACTS; i++) {
        x[i] += fabsf(x[i] - 1.0F) < 0.1F ? 0.25F : 0.0F;
        u[i] += fabsf(fabsf(u[i]) - 1.0F) < 0.1F ? 0.25F : 0.0F;
    }
    RUN(clamped_gate_backward, {.forward = clamped, .dy = dy, .dg = dx, .du = du, .dgu_stride = ACT_DIM});
    check_gradient(&f, "clamped_gate, g", x, N_ACTS, dx);
    check_gradient(&f, "clamped_gate, u", u, N_ACTS, du);
}

static float alpha_p[1], alpha_n[1], dalpha_p[1], dalpha_n[1];
static const float xielu_beta[1] = {0.5F}, xielu_eps[1] = {-1e-6F};
static const qr_xielu_args xielu = {.x = x,
                                    .alpha_p = alpha_p,
                                    .alpha_n = alpha_n,
                                    .beta = xielu_beta,
                                    .eps = xielu_eps,
                                    .dst = y,
                                    .dst_dtype = QR_DTYPE_F32,
                                    .n_rows = N_ROWS,
                                    .dim = ACT_DIM,
                                    .x_stride = ACT_DIM};

static void forward_xielu(void) { RUN(xielu, xielu); }

/* Next to 0 the function is not smooth: values are moved away from it. */
static void test_xielu(void) {
    const function f = {forward_xielu, y, dy, N_ACTS};
    begin_case(8);
    alpha_p[0] = 0.4F;
    alpha_n[0] = -0.7F;
    dalpha_p[0] = dalpha_n[0] = 0.0F;
    for (int64_t i = 0; i < N_ACTS; i++) { x[i] += fabsf(x[i]) < 0.1F ? 0.25F : 0.0F; }
    RUN(xielu_backward, {.forward = xielu,
                         .dy = dy,
                         .dx = dx,
                         .dalpha_p = dalpha_p,
                         .dalpha_n = dalpha_n,
                         .dy_stride = ACT_DIM,
                         .dx_stride = ACT_DIM});
    check_gradient(&f, "xielu, x", x, N_ACTS, dx);
    check_gradient(&f, "xielu, alpha_p", alpha_p, 1, dalpha_p);
    check_gradient(&f, "xielu, alpha_n", alpha_n, 1, dalpha_n);
}

/* --- Residual streams, which the ops change in place: forward works on copies, in y --- */

enum { N_STREAMS = 3, STREAM_DIM = 6, N_STREAM = N_ROWS * N_STREAMS * STREAM_DIM, N_COEFS = N_STREAMS * N_STREAMS };

static const qr_stream_coefs_args stream_coefs = {.x = x,
                                                  .router = w,
                                                  .mixes = bias,
                                                  .dst = y,
                                                  .n_rows = N_ROWS,
                                                  .dim = STREAM_DIM,
                                                  .n_streams = N_STREAMS,
                                                  .n_coefs = N_COEFS};

static void forward_stream_coefs(void) { RUN(stream_coefs, stream_coefs); }

static void test_stream_coefs(void) {
    const function f = {forward_stream_coefs, y, dy, N_ROWS * N_COEFS};
    begin_case(31);
    RUN(stream_coefs_backward, {.forward = stream_coefs, .dcoefs = dy, .dx = dx, .drouter = dw, .dmixes = dbias});
    check_gradient(&f, "stream_coefs, x", x, N_ROWS * STREAM_DIM, dx);
    check_gradient(&f, "stream_coefs, router", w, N_STREAMS * STREAM_DIM, dw);
    check_gradient(&f, "stream_coefs, mixes", bias, N_COEFS * N_STREAMS, dbias);
}

/* What streams become, and after them stream 0 apart. */
static void forward_stream_predict(void) {
    memcpy(y, x, N_STREAM * sizeof *y);
    RUN(stream_predict, {.streams = y,
                         .coefs = u,
                         .active = y + N_STREAM,
                         .n_rows = N_ROWS,
                         .dim = STREAM_DIM,
                         .n_streams = N_STREAMS});
}

static void test_stream_predict(void) {
    const function f = {forward_stream_predict, y, dy, N_STREAM + N_ROWS * STREAM_DIM};
    begin_case(32);
    memcpy(dx, dy, N_STREAM * sizeof *dx);
    RUN(stream_predict_backward, {.streams = x,
                                  .coefs = u,
                                  .dactive = dy + N_STREAM,
                                  .dstreams = dx,
                                  .dcoefs = du,
                                  .n_rows = N_ROWS,
                                  .dim = STREAM_DIM,
                                  .n_streams = N_STREAMS});
    check_gradient(&f, "stream_predict, streams", x, N_STREAM, dx);
    check_gradient(&f, "stream_predict, coefs", u, N_ROWS * N_COEFS, du);
}

static void forward_stream_correct(void) {
    memcpy(y, x, N_STREAM * sizeof *y);
    RUN(stream_correct, {.streams = y,
                         .coefs = u,
                         .x = w,
                         .scale = bias,
                         .dst = y + N_STREAM,
                         .dst_dtype = QR_DTYPE_F32,
                         .n_rows = N_ROWS,
                         .dim = STREAM_DIM,
                         .n_streams = N_STREAMS});
}

static void test_stream_correct(void) {
    static float active[N_ROWS * STREAM_DIM];
    const function f = {forward_stream_correct, y, dy, N_STREAM + N_ROWS * STREAM_DIM};
    begin_case(33);
    for (int64_t i = 0; i < N_ROWS; i++) {
        memcpy(active + i * STREAM_DIM, x + i * N_STREAMS * STREAM_DIM, STREAM_DIM * sizeof *active);
    }
    memcpy(dx, dy, N_STREAM * sizeof *dx);
    RUN(stream_correct_backward, {.active = active,
                                  .coefs = u,
                                  .x = w,
                                  .scale = bias,
                                  .dy = dy + N_STREAM,
                                  .dstreams = dx,
                                  .dx = dw,
                                  .dcoefs = du,
                                  .dscale = dbias,
                                  .n_rows = N_ROWS,
                                  .dim = STREAM_DIM,
                                  .n_streams = N_STREAMS});
    check_gradient(&f, "stream_correct, streams", x, N_STREAM, dx);
    check_gradient(&f, "stream_correct, x", w, N_ROWS * STREAM_DIM, dw);
    check_gradient(&f, "stream_correct, coefs", u, N_ROWS * N_STREAMS, du);
    check_gradient(&f, "stream_correct, scale", bias, STREAM_DIM, dbias);
}

static void forward_stream_level(void) {
    memcpy(y, x, N_STREAM * sizeof *y);
    RUN(stream_level, {.streams = y, .n_rows = N_ROWS, .dim = STREAM_DIM, .n_streams = N_STREAMS});
}

/* Values are moved away from 0, lest a stream be small and its factor bend. */
static void test_stream_level(void) {
    const function f = {forward_stream_level, y, dy, N_STREAM};
    begin_case(34);
    for (int64_t i = 0; i < N_STREAM; i++) { x[i] += x[i] < 0.0F ? -2.0F : 2.0F; }
    memcpy(dx, dy, N_STREAM * sizeof *dx);
    RUN(stream_level_backward,
        {.streams = x, .dstreams = dx, .n_rows = N_ROWS, .dim = STREAM_DIM, .n_streams = N_STREAMS});
    check_gradient(&f, "stream_level", x, N_STREAM, dx);
}

enum { TOPK_DIM = 12 };

static const qr_gaussian_topk_args topk = {.x = x,
                                           .dst = y,
                                           .n_rows = N_ROWS,
                                           .dim = TOPK_DIM,
                                           .x_stride = TOPK_DIM,
                                           .dst_stride = TOPK_DIM,
                                           .quantile = 0.75F};

static void forward_topk(void) { RUN(gaussian_topk, topk); }

/* Two values are far above the mean, and the others far below the cutoff, where the function is not smooth. */
static void test_gaussian_topk(void) {
    const function f = {forward_topk, y, dy, N_ROWS * TOPK_DIM};
    begin_case(35);
    for (int64_t i = 0; i < N_ROWS * TOPK_DIM; i++) { x[i] = 0.25F * x[i] + (i % 6 == 1 ? 6.0F : 0.0F); }
    RUN(gaussian_topk_backward, {.forward = topk, .dy = dy, .dx = dx, .dy_stride = TOPK_DIM, .dx_stride = TOPK_DIM});
    check_gradient(&f, "gaussian_topk", x, N_ROWS * TOPK_DIM, dx);
}

/* --- cross_entropy: the op gives its own gradient; dy is dloss for every row --- */

enum { VOCAB = 13 };

static const int32_t target[N_ROWS] = {3, -1, 0, 12, 5};
static float loss_softcap;
#define DLOSS 0.75F

static void run_cross_entropy(float *logits) {
    memcpy(logits, x, sizeof x);
    RUN(cross_entropy, {.logits = logits,
                        .target = target,
                        .loss = y,
                        .n_rows = N_ROWS,
                        .vocab = VOCAB,
                        .softcap = loss_softcap,
                        .dloss = DLOSS});
}

static void forward_cross_entropy(void) { run_cross_entropy(u); }

static void test_cross_entropy(void) {
    static float dloss[N_ROWS] = {DLOSS, DLOSS, DLOSS, DLOSS, DLOSS};
    const function f = {forward_cross_entropy, y, dloss, N_ROWS};
    for (int i = 0; i < 2; i++) {
        loss_softcap = i == 0 ? 0.0F : 3.0F;
        begin_case(8);
        run_cross_entropy(dx);
        check_gradient(&f, i == 0 ? "cross_entropy" : "cross_entropy soft-capped", x, N_ROWS * VOCAB, dx);
        for (int64_t v = 0; v < VOCAB; v++) { CHECK(dx[VOCAB + v] == 0.0F); }
        CHECK(y[1] == 0.0F);
    }
}

/* --- Embedding, gather and scatter --- */

enum { TABLE_ROWS = 6, TABLE_DIM = 5 };

static const qr_weight table = {.desc = {.format = QR_WEIGHT_F32, .rows = TABLE_ROWS, .cols = TABLE_DIM}, .data = w};
static const int32_t ids[N_ROWS] = {4, 0, 4, 5, 4};

static void forward_embedding(void) {
    RUN(embedding, {.table = &table, .ids = ids, .dst = y, .n_tokens = N_ROWS, .scale = 2.5F});
}

static void test_embedding(void) {
    const function f = {forward_embedding, y, dy, N_ROWS * TABLE_DIM};
    begin_case(9);
    RUN(embedding_backward,
        {.ids = ids, .dy = dy, .dtable = dw, .n_tokens = N_ROWS, .dim = TABLE_DIM, .vocab = TABLE_ROWS, .scale = 2.5F});
    check_gradient(&f, "embedding dtable", w, TABLE_ROWS * TABLE_DIM, dw);
}

static const int32_t gathered[] = {0, 2, 5};

static void forward_gather(void) {
    RUN(gather_rows, {.src = x, .rows = gathered, .dst = y, .n_rows = QR_COUNT_OF(gathered), .dim = TABLE_DIM});
}

static void test_scatter_is_the_gradient_of_gather(void) {
    const function f = {forward_gather, y, dy, QR_COUNT_OF(gathered) * TABLE_DIM};
    begin_case(10);
    memset(dx, 0xFF, sizeof dx);
    RUN(scatter_rows, {.src = dy,
                       .rows = gathered,
                       .dst = dx,
                       .n_rows = QR_COUNT_OF(gathered),
                       .n_dst_rows = TABLE_ROWS,
                       .dim = TABLE_DIM});
    check_gradient(&f, "gather_rows dx", x, TABLE_ROWS * TABLE_DIM, dx);
}

/* --- dropout --- */

enum { DROP_DIM = 200 };

static const int64_t row_keys[N_ROWS] = {7, INT64_C(1) << 40, 9, 0, 8};
#define DROP_P 0.3F
#define DROP_KEY UINT64_C(0xFEEDFACE12345678)

static void drop(const float *src, float *dst, const int64_t *row_key, int64_t n_rows, uint64_t key) {
    RUN(dropout, {.x = src,
                  .x_dtype = QR_DTYPE_F32,
                  .dst = dst,
                  .row_key = row_key,
                  .key = key,
                  .p = DROP_P,
                  .n_rows = n_rows,
                  .dim = DROP_DIM,
                  .x_stride = DROP_DIM,
                  .dst_stride = DROP_DIM});
}

static void forward_dropout(void) { drop(x, y, row_keys, N_ROWS, DROP_KEY); }

/* The op is its own backward: the same keys drop the same elements of dy. */
static void test_dropout(void) {
    const function f = {forward_dropout, y, dy, N_ROWS * DROP_DIM};
    begin_case(11);
    drop(dy, dx, row_keys, N_ROWS, DROP_KEY);
    check_gradient(&f, "dropout dx", x, N_ROWS * DROP_DIM, dx);
}

/* Of 100,000 elements 30 % are dropped, to five standard deviations (145 each). */
static void test_dropout_rate(void) {
    int64_t n_dropped = 0;
    begin_case(12);
    for (int64_t i = 0; i < MAX_ELEMENTS; i++) { x[i] = 1.0F; }
    for (int64_t i = 0; i < 500; i++) {
        const int64_t key = i;
        drop(x, y, &key, 1, DROP_KEY);
        for (int64_t j = 0; j < DROP_DIM; j++) {
            n_dropped += y[j] == 0.0F;
            CHECK(y[j] == 0.0F || y[j] == (float)(1.0 / (1.0 - (double)DROP_P)));
        }
    }
    CHECK_MSG(n_dropped > 30000 - 5 * 145 && n_dropped < 30000 + 5 * 145, "%lld of 100000 dropped",
              (long long)n_dropped);
}

/* A row's mask follows its key, wherever the row lies, and another key gives another mask. */
static void test_dropout_masks_follow_keys(void) {
    static const int64_t turned[N_ROWS] = {8, 0, 9, INT64_C(1) << 40, 7};
    begin_case(13);
    for (int64_t i = 0; i < MAX_ELEMENTS; i++) { x[i] = 1.0F; }
    drop(x, y, row_keys, N_ROWS, DROP_KEY);
    drop(x, u, turned, N_ROWS, DROP_KEY);
    drop(x, w, row_keys, N_ROWS, DROP_KEY + 1);
    for (int64_t i = 0; i < N_ROWS; i++) {
        const float *row = y + i * DROP_DIM;
        CHECK(memcmp(row, u + (N_ROWS - 1 - i) * DROP_DIM, DROP_DIM * sizeof *row) == 0);
        CHECK(memcmp(row, w + i * DROP_DIM, DROP_DIM * sizeof *row) != 0);
        CHECK(i == 0 || memcmp(row, y, DROP_DIM * sizeof *row) != 0);
    }
}

/* --- The recurrence, with what goes with it --- */

static const int32_t delta_start[] = {0, 4, 6};
static const qr_recurrence two_sequences = {.n_seqs = 2, .max_seq_tokens = 4, .start = delta_start};

enum { DELTA_TOKENS = 6, CHANNELS = 5, KERNEL = 3 };

static qr_act_fn conv_fn;
static const float *conv_bias;

static qr_conv1d_causal_args conv_args(void) {
    return (qr_conv1d_causal_args){.fn = conv_fn,
                                   .x = x,
                                   .weight = w,
                                   .bias = conv_bias,
                                   .dst = y,
                                   .n_tokens = DELTA_TOKENS,
                                   .dim = CHANNELS,
                                   .x_stride = CHANNELS,
                                   .kernel = KERNEL,
                                   .sequences = two_sequences};
}

static void forward_conv(void) {
    const qr_conv1d_causal_args args = conv_args();
    qr_error err = {0};
    CHECK_MSG(qr_conv1d_causal(ref, &args, workspace, &err) == QRUN_OK, "%s", err.message);
}

static void check_conv1d_causal(qr_act_fn fn, bool biased) {
    const function f = {forward_conv, y, dy, DELTA_TOKENS * CHANNELS};
    conv_fn = fn;
    conv_bias = biased ? bias : NULL;
    begin_case(40);
    RUN(conv1d_causal_backward, {.forward = conv_args(),
                                 .dy = dy,
                                 .dx = dx,
                                 .dweight = dw,
                                 .dbias = biased ? dbias : NULL,
                                 .dx_stride = CHANNELS});
    check_gradient(&f, "conv1d_causal, x", x, DELTA_TOKENS * CHANNELS, dx);
    check_gradient(&f, "conv1d_causal, weight", w, CHANNELS * KERNEL, dw);
    if (biased) { check_gradient(&f, "conv1d_causal, bias", bias, CHANNELS, dbias); }
}

static void test_conv1d_causal(void) {
    for (int biased = 0; biased < 2; biased++) {
        check_conv1d_causal(QR_ACT_SILU, biased == 1);
        check_conv1d_causal(QR_ACT_NONE, biased == 1);
    }
}

enum { KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 3, VALUE_DIM = 2, VALUES = VALUE_HEADS * VALUE_DIM };
enum { QKV = 2 * KEY_HEADS * KEY_DIM + VALUES };

static bool doubles_beta, decays_channels;

static int64_t delta_decays(void) { return (int64_t)VALUE_HEADS * (decays_channels ? KEY_DIM : 1); }

/* x: q, k and v; u: b and a; w: a_log; bias: dt_bias. */
static qr_gated_delta_args delta_args(void) {
    return (qr_gated_delta_args){.qkv = x,
                                 .a = u + VALUE_HEADS,
                                 .b = u,
                                 .a_log = w,
                                 .dt_bias = bias,
                                 .dst = y,
                                 .n_tokens = DELTA_TOKENS,
                                 .qkv_stride = QKV,
                                 .ab_stride = VALUE_HEADS + delta_decays(),
                                 .n_key_heads = KEY_HEADS,
                                 .n_value_heads = VALUE_HEADS,
                                 .key_dim = KEY_DIM,
                                 .value_dim = VALUE_DIM,
                                 .doubles_beta = doubles_beta,
                                 .decays_channels = decays_channels,
                                 .sequences = two_sequences};
}

static void forward_delta(void) {
    const qr_gated_delta_args args = delta_args();
    qr_error err = {0};
    CHECK_MSG(qr_gated_delta(ref, &args, workspace, &err) == QRUN_OK, "%s", err.message);
}

static void check_gated_delta(bool doubles, bool by_channel) {
    const function f = {forward_delta, y, dy, DELTA_TOKENS * VALUES};
    doubles_beta = doubles;
    decays_channels = by_channel;
    begin_case(41);
    fill(w, VALUE_HEADS, 410, 0.25); /* the fifth derivative is of the order of exp(5 a_log) */
    RUN(gated_delta_backward, {.forward = delta_args(),
                               .dy = dy,
                               .dqkv = dx,
                               .da = du + VALUE_HEADS,
                               .db = du,
                               .da_log = dw,
                               .ddt_bias = dbias,
                               .dqkv_stride = QKV,
                               .dab_stride = VALUE_HEADS + delta_decays()});
    check_gradient(&f, "gated_delta, q, k and v", x, (int64_t)DELTA_TOKENS * QKV, dx);
    check_gradient(&f, "gated_delta, a and b", u, DELTA_TOKENS * (VALUE_HEADS + delta_decays()), du);
    check_gradient(&f, "gated_delta, a_log", w, VALUE_HEADS, dw);
    check_gradient(&f, "gated_delta, dt_bias", bias, delta_decays(), dbias);
}

static void test_gated_delta(void) {
    check_gated_delta(false, false);
    check_gated_delta(true, false);
    check_gated_delta(false, true);
}

enum { SPACE_HEADS = 4, SPACE_GROUPS = 2, SPACE_DIM = 3, SPACE_STATE = 2, SPACE_VALUES = SPACE_HEADS * SPACE_DIM };
enum { XBC = SPACE_VALUES + 2 * SPACE_GROUPS * SPACE_STATE };

/* x: x, B and C; u: dt; w: a_log; bias: dt_bias, then skip. */
static qr_state_space_args space_args(void) {
    return (qr_state_space_args){.xbc = x,
                                 .dt = u,
                                 .a_log = w,
                                 .dt_bias = bias,
                                 .skip = bias + SPACE_HEADS,
                                 .dst = y,
                                 .n_tokens = DELTA_TOKENS,
                                 .xbc_stride = XBC,
                                 .dt_stride = SPACE_HEADS,
                                 .n_heads = SPACE_HEADS,
                                 .n_groups = SPACE_GROUPS,
                                 .head_dim = SPACE_DIM,
                                 .state_dim = SPACE_STATE,
                                 .sequences = two_sequences};
}

static void forward_space(void) {
    const qr_state_space_args args = space_args();
    qr_error err = {0};
    CHECK_MSG(qr_state_space(ref, &args, workspace, &err) == QRUN_OK, "%s", err.message);
}

static void test_state_space(void) {
    const function f = {forward_space, y, dy, (int64_t)DELTA_TOKENS * SPACE_VALUES};
    begin_case(43);
    fill(w, SPACE_HEADS, 430, 0.25); /* as gated_delta's */
    RUN(state_space_backward, {.forward = space_args(),
                               .dy = dy,
                               .dxbc = dx,
                               .ddt = du,
                               .da_log = dw,
                               .ddt_bias = dbias,
                               .dskip = dbias + SPACE_HEADS,
                               .dxbc_stride = XBC,
                               .ddt_stride = SPACE_HEADS});
    check_gradient(&f, "state_space, x, B and C", x, (int64_t)DELTA_TOKENS * XBC, dx);
    check_gradient(&f, "state_space, dt", u, (int64_t)DELTA_TOKENS * SPACE_HEADS, du);
    check_gradient(&f, "state_space, a_log", w, SPACE_HEADS, dw);
    check_gradient(&f, "state_space, dt_bias", bias, SPACE_HEADS, dbias);
    check_gradient(&f, "state_space, skip", bias + SPACE_HEADS, SPACE_HEADS, dbias + SPACE_HEADS);
}

static int64_t gate_dim;
static bool gate_by_softplus;

static qr_head_gate_args head_gate_args(void) {
    return (qr_head_gate_args){.x = x,
                               .gate = u,
                               .dst = y,
                               .dtype = QR_DTYPE_F32,
                               .n_rows = N_ROWS,
                               .n_heads = 2,
                               .dim = IN,
                               .gate_dim = gate_dim,
                               .gate_stride = 4 * IN,
                               .gate_head_stride = 2 * IN,
                               .by_softplus = gate_by_softplus};
}

static void forward_head_gate(void) {
    const qr_head_gate_args args = head_gate_args();
    qr_error err = {0};
    CHECK_MSG(qr_head_gate(ref, &args, workspace, &err) == QRUN_OK, "%s", err.message);
}

static void test_head_gate(void) {
    const function f = {forward_head_gate, y, dy, N_ROWS * 2 * IN};
    static const uint64_t seeds[] = {42, 52, 43, 53};
    for (int i = 0; i < 4; i++) {
        begin_case(seeds[i]);
        gate_dim = i % 2 == 1 ? 1 : IN;
        gate_by_softplus = i / 2 == 1;
        RUN(head_gate_backward, {.forward = head_gate_args(), .dy = dy, .dx = dx, .dgate = du});
        check_gradient(&f, "head_gate, x", x, N_ROWS * 2 * IN, dx);
        check_gradient(&f, "head_gate, gates", u, N_ROWS * 4 * IN, du);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", SEED);
    if (qr_backend_ref_create(NULL, &ref, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_linear);
    CHECK_RUN(test_experts);
    CHECK_RUN(test_share_rows);
    CHECK_RUN(test_lora);
    CHECK_RUN(test_dora);
    CHECK_RUN(test_rms_norm);
    CHECK_RUN(test_layer_norm);
    CHECK_RUN(test_rope);
    CHECK_RUN(test_attention_packed);
    CHECK_RUN(test_packed_attention_is_paged_attention);
    CHECK_RUN(test_lse_by_hand);
    CHECK_RUN(test_activations);
    CHECK_RUN(test_clamped_gate);
    CHECK_RUN(test_xielu);
    CHECK_RUN(test_stream_coefs);
    CHECK_RUN(test_stream_predict);
    CHECK_RUN(test_stream_correct);
    CHECK_RUN(test_stream_level);
    CHECK_RUN(test_gaussian_topk);
    CHECK_RUN(test_cross_entropy);
    CHECK_RUN(test_embedding);
    CHECK_RUN(test_scatter_is_the_gradient_of_gather);
    CHECK_RUN(test_dropout);
    CHECK_RUN(test_dropout_rate);
    CHECK_RUN(test_conv1d_causal);
    CHECK_RUN(test_gated_delta);
    CHECK_RUN(test_state_space);
    CHECK_RUN(test_head_gate);
    CHECK_RUN(test_dropout_masks_follow_keys);
    qr_backend_destroy(ref);
    return check_end();
}
