/* linear_backward, weight_backward and the same of experts: products of gemm_backward.h, and the sums of dbias. */
#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/train/lora_backward.h"

static size_t product_workspace(const qr_backend *backend, const void *args) {
    (void)args;
    return qr_cpu_gemm_backward_workspace(backend);
}

/* --- dx = dy · W ------------------------------------------------------------------------------------------------- */

static size_t packed_dy_bytes(const qr_backend *backend, const qr_linear_backward_args *args) {
    return qr_cpu_gemm_packed_a_bytes(qr_cpu_backward_matmul_of(backend, args->dy_dtype), args->n_rows,
                                      args->weight->desc.rows);
}

static size_t linear_backward_workspace(const qr_backend *backend, const void *untyped) {
    const qr_linear_backward_args *args = untyped;
    const size_t own = product_workspace(backend, args) + packed_dy_bytes(backend, args);
    if (args->lora == NULL) { return own; }
    const size_t with_kept = own + qr_cpu_lora_backward_kept_bytes(args->lora);
    const size_t lora = qr_cpu_op_lora_backward.workspace_bytes(backend, args->lora);
    return lora > with_kept ? lora : with_kept;
}

/* With `also` in the same sums where not NULL. */
static void run_dx(qr_backend *backend, const qr_linear_backward_args *args, const qr_cpu_gemm_args *also,
                   void *workspace) {
    float *packed_dy = (float *)(void *)((unsigned char *)workspace + product_workspace(backend, args));
    const qr_cpu_gemm_args product = {
        .matmul = qr_cpu_backward_matmul_of(backend, args->dy_dtype),
        .m = args->n_rows,
        .n = args->weight->desc.cols,
        .k = args->weight->desc.rows,
        .a = {.data = args->dy, .dtype = args->dy_dtype, .stride = args->dy_stride},
        .weight = args->weight,
        .c = args->dx,
        .c_stride = args->dx_stride,
        .accumulate = args->accumulate,
        .factor = 1.0F,
        .packed_a = packed_dy_bytes(backend, args) == 0 ? NULL : packed_dy,
        .also = also,
    };
    qr_cpu_gemm_backward(backend, &product, workspace);
}

static void run_linear_backward(qr_backend *backend, const qr_linear_backward_args *args, void *workspace) {
    const qr_lora_backward_args *lora = args->lora;
    const bool joins =
        lora != NULL && lora->dx == args->dx && lora->n_rows == args->n_rows &&
        qr_cpu_lora_backward_has_halves(backend, lora, qr_cpu_backward_matmul_of(backend, args->dy_dtype));
    if (joins) {
        const qr_cpu_gemm_args also = qr_cpu_lora_backward_sums(backend, lora, workspace);
        run_dx(backend, args, &also, (unsigned char *)workspace + qr_cpu_lora_backward_kept_bytes(lora));
        qr_cpu_lora_backward_factors(backend, lora, workspace);
        return;
    }
    run_dx(backend, args, NULL, workspace);
    if (lora != NULL) { (void)qr_cpu_op_lora_backward.run(backend, lora, workspace, NULL); }
}

QR_CPU_CHECKED_OP(linear_backward, linear_backward_workspace, run_linear_backward)

/* --- The same of every slot with its expert's W ------------------------------------------------------------------ */

static size_t expert_product_workspace(const qr_backend *backend, const void *untyped) {
    const qr_expert_linear_backward_args *args = untyped;
    return qr_cpu_gemm_backward_workspace(backend) + qr_cpu_row_groups_bytes(&args->routing);
}

static void run_expert_linear_backward(qr_backend *backend, const qr_expert_linear_backward_args *args,
                                       void *workspace) {
    unsigned char *memory = (unsigned char *)workspace + qr_cpu_gemm_backward_workspace(backend);
    const qr_cpu_row_groups groups = qr_cpu_row_groups_of(args->weights, &args->routing, args->gathers, memory);
    const qr_cpu_gemm_args product = {
        .matmul = qr_cpu_backward_matmul_of(backend, args->dy_dtype),
        .m = qr_routing_slots(&args->routing),
        .n = args->weights->desc.cols,
        .k = args->weights->desc.rows,
        .a = {.data = args->dy, .dtype = args->dy_dtype, .stride = args->dy_stride},
        .weight = args->weights,
        .groups = &groups,
        .c = args->dx,
        .c_stride = args->dx_stride,
        .accumulate = args->accumulate,
        .factor = 1.0F,
    };
    qr_cpu_gemm_backward(backend, &product, workspace);
}

QR_CPU_CHECKED_OP(expert_linear_backward, expert_product_workspace, run_expert_linear_backward)

/* --- dw += dyᵀ · x ----------------------------------------------------------------------------------------------- */

/* dbias of up to BIAS_COLS outputs, tokens ascending. */
enum { BIAS_COLS = 256 };

static void add_bias(void *untyped, int64_t index, int worker) {
    (void)worker;
    const qr_weight_backward_args *args = untyped;
    const int64_t first = index * BIAS_COLS, n = qr_min(args->out - first, BIAS_COLS);
    float *sums = args->dbias + first;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *dy = args->dy + i * args->dy_stride + first;
        for (int64_t o = 0; o < n; o++) { sums[o] += dy[o]; }
    }
}

/* In F32 for x of any type: rounding dy to BF16 would be an error of 2^-9 of every term. On tiles with x in BF16, dy is
 * three parts, which are exact. */
static void run_weight_backward(qr_backend *backend, const qr_weight_backward_args *args, void *workspace) {
    const qr_cpu_kernels *kernels = qr_cpu(backend)->kernels;
    const bool in_parts = kernels->backward_parts != NULL && args->x_dtype == QR_DTYPE_BF16;
    const qr_cpu_gemm_args product = {
        .matmul = in_parts ? kernels->backward_parts : kernels->matmul_f32,
        .m = args->out,
        .n = args->in,
        .k = args->n_rows,
        .a = {.data = args->dy, .dtype = QR_DTYPE_F32, .transposed = true, .stride = args->dy_stride},
        .b = {.data = args->x, .dtype = args->x_dtype, .stride = args->x_stride},
        .c = args->dw,
        .c_stride = args->in,
        .accumulate = true,
        .parts = in_parts ? &qr_cpu_gemm_triple_by_exact : NULL,
    };
    qr_cpu_gemm_backward(backend, &product, workspace);
    if (args->dbias != NULL) {
        qr_threads_run(backend->threads, qr_ceil_div(args->out, BIAS_COLS), add_bias, (void *)(uintptr_t)args);
    }
}

QR_CPU_CHECKED_OP(weight_backward, product_workspace, run_weight_backward)

/* --- The same of every expert from its slots --------------------------------------------------------------------- */

/* dbias of up to BIAS_COLS outputs of an expert, slots ascending. */
static void add_expert_bias(void *untyped, int64_t index, int worker) {
    (void)worker;
    const qr_expert_weight_backward_args *args = untyped;
    const qr_routing *r = &args->routing;
    const int64_t n_blocks = qr_ceil_div(args->out, BIAS_COLS), e = index / n_blocks;
    const int64_t first = index % n_blocks * BIAS_COLS, n = qr_min(args->out - first, BIAS_COLS);
    float *sums = args->dbias + e * args->out + first;
    for (int64_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
        const float *dy = args->dy + (args->shares ? r->slot_row[p] : p) * args->dy_stride + first;
        const float share = args->shares ? r->share[p] : 1.0F;
        for (int64_t o = 0; o < n; o++) { sums[o] += share * dy[o]; }
    }
}

/* Always in F32: an expert's slots are not those of 32 tokens at a time, so on tiles sums would depend on how tokens
 * are cut into calls. */
static void run_expert_weight_backward(qr_backend *backend, const qr_expert_weight_backward_args *args,
                                       void *workspace) {
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        const int64_t first = r->expert_start[e], n_slots = r->expert_start[e + 1] - first;
        const size_t x_offset = args->gathers ? 0 : (size_t)(first * args->x_stride) * qr_dtype_bytes(args->x_dtype);
        const qr_cpu_gemm_args product = {
            .matmul = qr_cpu(backend)->kernels->matmul_f32,
            .m = args->out,
            .n = args->in,
            .k = n_slots,
            .a = {.data = args->dy + (args->shares ? 0 : first * args->dy_stride),
                  .dtype = QR_DTYPE_F32,
                  .transposed = true,
                  .stride = args->dy_stride,
                  .source_row = args->shares ? r->slot_row + first : NULL,
                  .row_factor = args->shares ? r->share + first : NULL},
            .b = {.data = (const unsigned char *)args->x + x_offset,
                  .dtype = args->x_dtype,
                  .stride = args->x_stride,
                  .source_row = args->gathers ? r->slot_row + first : NULL},
            .c = args->dw + e * args->dw_stride,
            .c_stride = args->in,
            .accumulate = true,
        };
        if (n_slots > 0) { qr_cpu_gemm_backward(backend, &product, workspace); }
    }
    if (args->dbias != NULL) {
        qr_threads_run(backend->threads, r->n_experts * qr_ceil_div(args->out, BIAS_COLS), add_expert_bias,
                       (void *)(uintptr_t)args);
    }
}

QR_CPU_CHECKED_OP(expert_weight_backward, product_workspace, run_expert_weight_backward)
