/* What ops refuse, and that the message names the precondition. */
#include "check.h"

#include "kernels/op_check.h"

#define REFUSED(op, part, ...)                                                                               \
    do {                                                                                                     \
        const qr_##op##_args changed = __VA_ARGS__;                                                          \
        qr_error refusal = {0};                                                                              \
        CHECK_MSG(!qr_check_##op(&changed, &refusal), "%s: accepted what it should refuse: %s", #op, part);  \
        CHECK_INT(refusal.status, QRUN_ERROR_ARGUMENT);                                                      \
        CHECK_MSG(strstr(refusal.message, part) != NULL, "%s: \"%s\" lacks %s", #op, refusal.message, part); \
    } while (0)

static const qr_weight weight = {.desc = {.format = QR_WEIGHT_NF4, .block = 64, .rows = 4, .cols = 8}};
static const qr_weight bad_weight = {.desc = {.format = QR_WEIGHT_NF4, .block = 63, .rows = 4, .cols = 8}};

static qr_linear_args linear(void) {
    return (qr_linear_args){.weight = &weight, .x_dtype = QR_DTYPE_F32, .n_rows = 2, .x_stride = 8, .y_stride = 4};
}

static void test_linear(void) {
    qr_linear_args a = linear();
    CHECK(qr_check_linear(&a, NULL));
    a.weight = NULL;
    REFUSED(linear, "no weight", a);
    a.weight = &bad_weight;
    REFUSED(linear, "63", a);
    a = linear();
    a.x_dtype = QR_DTYPE_I8;
    REFUSED(linear, "x is I8", a);
    a = linear();
    a.n_rows = 0;
    REFUSED(linear, "rows is 0", a);
    a = linear();
    a.x_stride = 7;
    REFUSED(linear, "x has a row stride of 7", a);
    a = linear();
    a.y_stride = 3;
    REFUSED(linear, "y has a row stride of 3", a);
    a.y_stride = INT64_MAX / 2;
    REFUSED(linear, "too large", a);
    a = linear();
    const qr_lora_args lora = {.x_dtype = a.x_dtype, .n_rows = a.n_rows, .in = 8, .out = 3};
    a.lora = &lora;
    REFUSED(linear, "the adapter's rows, sizes or y are not those of the matrix", a);
}

static qr_attention_args attention(void) {
    return (qr_attention_args){.layout = {.format = QR_KV_INT8, .n_kv_heads = 2, .head_dim = 8},
                               .dst_dtype = QR_DTYPE_BF16,
                               .n_tokens = 3,
                               .q_stride = 48,
                               .n_heads = 6,
                               .n_seqs = 1,
                               .table_stride = 1,
                               .page_stride_bytes = 768,
                               .scale = 1.0F};
}

static void test_attention(void) {
    qr_attention_args a = attention();
    qr_error err = {0};
    CHECK_MSG(qr_check_attention(&a, &err), "%s", err.message);
    a.n_heads = 5;
    REFUSED(attention, "5 query heads", a);
    a = attention();
    a.page_stride_bytes = 704;
    REFUSED(attention, "704", a);
    a = attention();
    a.window = -1;
    REFUSED(attention, "window is -1", a);
    a = attention();
    a.softcap = -2.0F;
    REFUSED(attention, "softcap is -2", a);
    a = attention();
    a.layout.format = (qr_kv_format)7;
    REFUSED(attention, "7 is not a K/V format", a);
    a = attention();
    a.layout.head_dim = 0;
    REFUSED(attention, "head_dim is 0", a);
    a = attention();
    a.q_stride = 47;
    REFUSED(attention, "stride of 47", a);
}

static void test_the_others(void) {
    REFUSED(quantize, "source is I8", {.src_dtype = QR_DTYPE_I8, .n_rows = 1, .cols = 1});
    REFUSED(embedding, "the table is nf4", {.table = &weight, .n_tokens = 1});
    const qr_weight plain = {.desc = {.format = QR_WEIGHT_F32, .rows = 1, .cols = 1}};
    const qr_sampled sampled = {.token = 0};
    REFUSED(embedding, "0 sampled tokens at", {.table = &plain, .n_tokens = 1, .sampled = &sampled});
    REFUSED(embedding, "1 sampled tokens at", {.table = &plain, .n_tokens = 1, .n_sampled = 1});
    REFUSED(gather_rows, "row is 0", {.n_rows = 1});
    REFUSED(rms_norm, "dst is I8",
            {.dst_dtype = QR_DTYPE_I8, .n_rows = 1, .n_groups = 1, .dim = 1, .src_stride = 1, .dst_stride = 1});
    REFUSED(rms_norm, "src has a row stride of 5",
            {.dst_dtype = QR_DTYPE_F32, .n_rows = 1, .n_groups = 2, .dim = 3, .src_stride = 5, .dst_stride = 6});
    REFUSED(layer_norm, "eps is -1", {.dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 1, .eps = -1.0F});
    REFUSED(dora_norm, "no weight", {.rank = 1});
    REFUSED(dora, "the number of adapters is 0", {.n_rows = 1, .dim = 1, .src_stride = 1, .dst_stride = 1});
    REFUSED(dora, "dst has a row stride of 1",
            {.n_adapters = 1, .n_rows = 1, .dim = 2, .src_stride = 2, .dst_stride = 1});
    REFUSED(lora, "max_rank is 0",
            {.x_dtype = QR_DTYPE_F32, .n_rows = 1, .in = 1, .out = 1, .x_stride = 1, .y_stride = 1, .n_adapters = 1});
    REFUSED(rope_table, "row is 0", {.n_tokens = 1});
    REFUSED(rope, "half is 3", {.n_tokens = 1, .n_heads = 1, .head_dim = 4, .half = 3, .x_stride = 4});
    REFUSED(kv_write, "k has a row stride of 7",
            {.layout = {.format = QR_KV_F32, .n_kv_heads = 1, .head_dim = 8},
             .n_tokens = 1,
             .k_stride = 7,
             .v_stride = 8,
             .page_stride_bytes = 1024});
    qr_head_gate_args gates = {.dtype = QR_DTYPE_F32,
                               .n_rows = 1,
                               .n_heads = 2,
                               .dim = 3,
                               .gate_dim = 1,
                               .gate_stride = 2,
                               .gate_head_stride = 1};
    CHECK(qr_check_head_gate(&gates, NULL));
    gates.gate_dim = 3;
    REFUSED(head_gate, "gates of 3 elements are 1 apart", gates);
    gates.gate_dim = 2;
    REFUSED(head_gate, "gates have 2 elements, heads 3", gates);
    gates.gate_dim = 0;
    REFUSED(head_gate, "gates have 0 elements, heads 3", gates);
    REFUSED(activation, "9 is not an activation", {.fn = (qr_act_fn)9});
    REFUSED(gate, "u has a row stride of 2",
            {.dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 3, .g_stride = 3, .u_stride = 2});
    REFUSED(add, "row is 0", {.n = 0});
    REFUSED(softcap, "cap is 0", {.n = 1});
    REFUSED(scale_columns, "part 1 has -2 columns", {.n_rows = 1, .x_stride = 4, .parts = {{1, 1.0F}, {-2, 1.0F}}});
    REFUSED(scale_columns, "factor 0 is nan", {.n_rows = 1, .x_stride = 4, .parts = {{1, NAN}}});
    REFUSED(scale_columns, "x has a row stride of 4", {.n_rows = 1, .x_stride = 4, .parts = {{3, 1.0F}, {2, 1.0F}}});
    REFUSED(xielu, "x has a row stride of 2", {.dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 3, .x_stride = 2});
    REFUSED(xielu_backward, "dx has a row stride of 2",
            {.forward = {.n_rows = 1, .dim = 3, .x_stride = 3}, .dy_stride = 3, .dx_stride = 2});
    REFUSED(gaussian_topk, "quantile is nan", {.n_rows = 1, .dim = 3, .x_stride = 3, .dst_stride = 3, .quantile = NAN});
    REFUSED(gaussian_topk, "dst has a row stride of 2", {.n_rows = 1, .dim = 3, .x_stride = 3, .dst_stride = 2});
    REFUSED(gaussian_topk_backward, "dy has a row stride of 2",
            {.forward = {.n_rows = 1, .dim = 3, .x_stride = 3}, .dy_stride = 2, .dx_stride = 3});
    REFUSED(stream_coefs, "there are 17 coefficients", {.n_rows = 1, .dim = 3, .n_streams = 4, .n_coefs = 17});
    REFUSED(stream_coefs, "there are 5 streams", {.n_rows = 1, .dim = 3, .n_streams = 5, .n_coefs = 5});
    REFUSED(stream_predict, "there are 0 streams", {.n_rows = 1, .dim = 3});
    REFUSED(stream_correct, "dst is I8", {.dst_dtype = QR_DTYPE_I8, .n_rows = 1, .dim = 3, .n_streams = 2});
    REFUSED(stream_level, "row is 0", {.n_rows = 1, .n_streams = 2});
    REFUSED(stream_coefs_backward, "there are 0 coefficients", {.forward = {.n_rows = 1, .dim = 3, .n_streams = 2}});
    REFUSED(stream_predict_backward, "rows is 0", {.dim = 3, .n_streams = 2});
    REFUSED(stream_correct_backward, "there are -1 streams", {.n_rows = 1, .dim = 3, .n_streams = -1});
    REFUSED(stream_level_backward, "there are 5 streams", {.n_rows = 1, .dim = 3, .n_streams = 5});
    REFUSED(nll, "vocabulary", {.n_rows = 1, .vocab = (int64_t)1 << 40});
    REFUSED(sample, "vocabulary", {.n_samples = 1, .vocab = (int64_t)1 << 40});
    REFUSED(sample, "rows is 0", {.vocab = 7});
}

static void test_backward_ops(void) {
    REFUSED(linear_backward, "no weight", {.dy_dtype = QR_DTYPE_F32, .n_rows = 1, .dy_stride = 4, .dx_stride = 8});
    REFUSED(linear_backward, "dy is I8",
            {.weight = &weight, .dy_dtype = QR_DTYPE_I8, .n_rows = 1, .dy_stride = 4, .dx_stride = 8});
    REFUSED(linear_backward, "dx has a row stride of 7",
            {.weight = &weight, .dy_dtype = QR_DTYPE_F32, .n_rows = 1, .dy_stride = 4, .dx_stride = 7});
    REFUSED(weight_backward, "dy has a row stride of 2",
            {.x_dtype = QR_DTYPE_F32, .n_rows = 1, .in = 1, .out = 3, .x_stride = 1, .dy_stride = 2});
    int32_t none[2] = {0, 0};
    float dscale[1] = {0.0F};
    const qr_routing routing = {none, none, none, NULL, none, 1, 1, 1};
    REFUSED(expert_weight_backward, "dw has a row stride of 5",
            {.routing = routing,
             .x_dtype = QR_DTYPE_F32,
             .in = 2,
             .out = 3,
             .dw_stride = 5,
             .x_stride = 2,
             .dy_stride = 3});
    REFUSED(expert_weight_backward, "dy has a row stride of 2",
            {.routing = routing,
             .x_dtype = QR_DTYPE_F32,
             .in = 2,
             .out = 3,
             .dw_stride = 6,
             .x_stride = 2,
             .dy_stride = 2});
    REFUSED(route_backward, "there are no scales for dscale", {.routing = routing, .dscale = dscale});
    REFUSED(route_backward, "factor 0", {.routing = routing});
    REFUSED(route_backward, "factor 0", {.routing = routing, .router = {.is_sigmoid = true}});
    REFUSED(route_backward, "eps -1",
            {.routing = routing, .router = {.is_sigmoid = true, .eps = -1.0F, .factor = 1.0F}});
    const qr_route_args sigmoids = {
        .routing = routing, .choice_bias = dscale, .router = {.is_sigmoid = true, .eps = 1e-6F, .factor = 1.0F}};
    CHECK(qr_check_route(&sigmoids, NULL));
    qr_lora_backward_args lora = {.x_dtype = QR_DTYPE_F32,
                                  .n_rows = 1,
                                  .in = 4,
                                  .out = 1,
                                  .x_stride = 4,
                                  .dy_stride = 1,
                                  .dx_stride = 3,
                                  .rank = 2,
                                  .scale = 1.0F};
    CHECK(qr_check_lora_backward(&lora, NULL)); /* no dx: its stride does not matter */
    REFUSED(linear_backward, "the adapter's rows, sizes or dx are not those of the matrix",
            {.weight = &weight, .dy_dtype = QR_DTYPE_F32, .n_rows = 1, .dy_stride = 4, .dx_stride = 8, .lora = &lora});
    REFUSED(linear_backward, "dy has a row stride of 4",
            {.weight = &weight, .dy_dtype = QR_DTYPE_F32, .n_rows = 1, .dy_stride = 4, .dx_stride = 8, .dy_room = 1});
    float dx[4];
    lora.dx = dx;
    REFUSED(lora_backward, "dx has a row stride of 3", lora);
    lora.rank = 0;
    REFUSED(lora_backward, "rank is 0", lora);
    REFUSED(dora_backward, "z has a row stride of 2", {.n_rows = 1, .dim = 3, .dy_stride = 3, .z_stride = 2});
    REFUSED(rms_norm_backward, "dy has a row stride of 5",
            {.n_rows = 1, .n_groups = 2, .dim = 3, .x_stride = 6, .dy_stride = 5, .dx_stride = 6});
    REFUSED(layer_norm_backward, "eps is -1", {.n_rows = 1, .dim = 1, .eps = -1.0F});
    REFUSED(rope_backward, "half is 3", {.n_tokens = 1, .n_heads = 1, .head_dim = 4, .half = 3, .dx_stride = 4});
    REFUSED(activation_backward, "dx has a row stride of 2",
            {.n_rows = 1, .dim = 3, .x_stride = 3, .dy_stride = 3, .dx_stride = 2});
    REFUSED(gate_backward, "9 is not an activation", {.fn = (qr_act_fn)9});
    REFUSED(embedding_backward, "row is 0", {.n_tokens = 1, .vocab = 1});
    REFUSED(scatter_rows, "3 rows do not fit into 2", {.n_rows = 3, .n_dst_rows = 2, .dim = 1});
}

static void test_attention_packed(void) {
    qr_attention_packed_backward_args a = {
        .forward = {.dst_dtype = QR_DTYPE_F32,
                    .n_tokens = 5,
                    .qkv_stride = 64,
                    .n_heads = 4,
                    .n_kv_heads = 2,
                    .head_dim = 8,
                    .n_seqs = 2,
                    .max_seq_tokens = 3,
                    .scale = 1.0F},
        .dqkv_stride = 31,
    };
    qr_error err = {0};
    CHECK_MSG(qr_check_attention_packed(&a.forward, &err), "%s", err.message);
    REFUSED(attention_packed_backward, "dq has a row stride of 31", a);
    a.dqkv_stride = 64;
    CHECK_MSG(qr_check_attention_packed_backward(&a, &err), "%s", err.message);
    float dsinks[4];
    a.dsinks = dsinks;
    REFUSED(attention_packed_backward, "dsinks is asked for, and there are no sinks", a);
    a.dsinks = NULL;
    a.forward.n_kv_heads = 3;
    REFUSED(attention_packed, "4 query heads", a.forward);
    REFUSED(attention_packed_backward, "4 query heads", a);
    a.forward.n_kv_heads = 2;
    a.forward.max_seq_tokens = 6;
    REFUSED(attention_packed, "max_seq_tokens is 6", a.forward);
    a.forward.max_seq_tokens = 3;
    a.forward.window = -1;
    REFUSED(attention_packed, "window is -1", a.forward);
    a.forward.window = 0;
    a.forward.softcap = NAN;
    REFUSED(attention_packed, "softcap is nan", a.forward);
}

static void test_loss_and_optimizers(void) {
    REFUSED(cross_entropy, "vocabulary", {.n_rows = 1, .vocab = (int64_t)1 << 40});
    REFUSED(cross_entropy, "dloss is inf", {.n_rows = 1, .vocab = 1, .dloss = INFINITY});
    REFUSED(dropout, "p is 1",
            {.p = 1.0F, .x_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = 1, .x_stride = 1, .dst_stride = 1});
    REFUSED(round_act, "dst is I8", {.dst_dtype = QR_DTYPE_I8, .n_rows = 1, .dim = 1, .src_stride = 1});
    const qr_weight quantised = {.desc = {.format = QR_WEIGHT_INT8, .rows = 2, .cols = 3}};
    REFUSED(store_weight, "no weight", {.src = NULL});
    REFUSED(store_weight, "the weight is int8", {.weight = &quantised});
    REFUSED(sum_squares, "row is 0", {.n = 0});
    REFUSED(adamw, "step is 0", {.n = 1, .lr = 1.0F, .grad_scale = 1.0F});
    REFUSED(adamw, "beta2 is 1", {.n = 1, .step = 1, .beta2 = 1.0F});
    REFUSED(adamw8bit, "grad_scale is nan", {.n = 1, .step = 1, .grad_scale = NAN});
    REFUSED(sgd, "momentum is -1", {.n = 1, .step = 1, .momentum = -1.0F});
    REFUSED(adafactor, "clip_threshold is 0", {.rows = 1, .cols = 1, .step = 1});
    REFUSED(adafactor, "decay_rate is 0.8",
            {.rows = 1, .cols = 1, .step = 1, .clip_threshold = 1.0F, .decay_rate = 0.8F});
}

/* The sizes of one layer's part of a page, by hand. */
static void test_kv_layout(void) {
    const qr_kv_layout bf16 = {.format = QR_KV_BF16, .n_kv_heads = 2, .head_dim = 8},
                       int8 = {.format = QR_KV_INT8, .n_kv_heads = 3, .head_dim = 17};
    CHECK_INT(qr_kv_v_offset(&bf16), 512);
    CHECK_INT(qr_kv_layer_bytes(&bf16), 1024);
    CHECK_INT(qr_kv_scale_offset(&int8), 816);
    CHECK_INT(qr_kv_v_offset(&int8), 816 + 192);
    CHECK_INT(qr_kv_layer_bytes(&int8), 2048); /* 2016 rounded up */
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_linear);
    CHECK_RUN(test_attention);
    CHECK_RUN(test_the_others);
    CHECK_RUN(test_backward_ops);
    CHECK_RUN(test_attention_packed);
    CHECK_RUN(test_loss_and_optimizers);
    CHECK_RUN(test_kv_layout);
    return check_end();
}
