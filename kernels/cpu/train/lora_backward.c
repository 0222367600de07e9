/* lora_backward: five products of gemm_backward.h. The scale goes into h and dh, which are [n_rows, rank]: with
 * h' = scale · A x and dh = scale · dy B, db += dyᵀ h', da += dhᵀ x and dx += dh A.
 *
 * On tiles and with AVX-512 BF16, where the caller permits it, x and dy are BF16 and everything else is pairs. On tiles
 * h' and dh are then made by linear_tiles.h; else all but dx is computed by lora_pairs_bf16.c. */
#include "kernels/cpu/train/lora_backward.h"

#include "base/sizes.h"
#include "kernels/cpu/linear/lora.h"

/* The workspace is h, dh, then the scratch of the products. */
static size_t sums_bytes(const qr_lora_backward_args *args) {
    return (size_t)qr_round_up(args->n_rows * args->rank * (int64_t)sizeof(float), 64);
}

/* The kernels of the products, and what they take for dy. */
typedef struct lora_products {
    const qr_cpu_matmul *matmul;
    const qr_cpu_lora_pairs *on_vectors; /* of all but dx, in pairs without tiles; NULL: they are by `matmul` */
    bool in_pairs;
    const void *dy;
    qr_dtype dy_dtype;
    int64_t dy_stride;
} lora_products;

static bool may_take_pairs(const qr_backend *backend, const qr_lora_backward_args *args) {
    const qr_cpu_kernels *kernels = qr_cpu(backend)->kernels;
    const bool has_pairs = kernels->backward_parts != NULL || kernels->lora_pairs != NULL;
    return has_pairs && args->in_pairs && args->x_dtype == QR_DTYPE_BF16;
}

static lora_products products_of(const qr_backend *backend, const qr_lora_backward_args *args) {
    const qr_cpu_kernels *kernels = qr_cpu(backend)->kernels;
    if (may_take_pairs(backend, args) && args->dy_rounded != NULL) {
        return (lora_products){
            .matmul = kernels->lora_pairs != NULL ? kernels->backward_bf16 : kernels->backward_parts,
            .on_vectors = kernels->lora_pairs,
            .in_pairs = true,
            .dy = args->dy_rounded,
            .dy_dtype = QR_DTYPE_BF16,
            .dy_stride = args->dy_rounded_stride,
        };
    }
    return (lora_products){
        .matmul = kernels->matmul_f32, .dy = args->dy, .dy_dtype = QR_DTYPE_F32, .dy_stride = args->dy_stride};
}

static const qr_cpu_gemm_parts *parts_of(const lora_products *p, const qr_cpu_gemm_parts *parts) {
    return p->in_pairs ? parts : NULL;
}

/* h' = scale · x Aᵀ, which is the forward pass's first product, and dh = scale · dy B: by rows in pairs … */
static qr_cpu_pairs_args pairs_of_h(const qr_lora_backward_args *args, float *h) {
    const qr_lora_factor factor = {.a = args->a, .rank = args->rank, .scale = args->scale};
    const qr_lora_args forward = {.x = args->x, .n_rows = args->n_rows, .in = args->in, .x_stride = args->x_stride};
    return qr_cpu_lora_down(&forward, &factor, h);
}

static qr_cpu_pairs_args pairs_of_dh(const qr_lora_backward_args *args, float *dh) {
    return (qr_cpu_pairs_args){
        .w = args->b,
        .transposed = true,
        .rank = args->rank,
        .k = args->out,
        .x = args->dy_rounded,
        .n_rows = args->n_rows,
        .x_stride = args->dy_rounded_stride,
        .factor = args->scale,
        .y = dh,
        .y_stride = args->rank,
    };
}

/* … or in F32. */
static void run_f32_sums(qr_backend *backend, const qr_lora_backward_args *args, const qr_cpu_matmul *matmul, float *h,
                         float *dh, void *scratch) {
    const qr_cpu_gemm_args down = {
        .matmul = matmul,
        .m = args->n_rows,
        .n = args->rank,
        .k = args->in,
        .a = {.data = args->x, .dtype = args->x_dtype, .stride = args->x_stride},
        .b = {.data = args->a, .dtype = QR_DTYPE_F32, .transposed = true, .stride = args->in},
        .c = h,
        .c_stride = args->rank,
        .factor = args->scale,
    };
    qr_cpu_gemm_backward(backend, &down, scratch);
    const qr_cpu_gemm_args up = {
        .matmul = matmul,
        .m = args->n_rows,
        .n = args->rank,
        .k = args->out,
        .a = {.data = args->dy, .dtype = QR_DTYPE_F32, .stride = args->dy_stride},
        .b = {.data = args->b, .dtype = QR_DTYPE_F32, .stride = args->rank},
        .c = dh,
        .c_stride = args->rank,
        .factor = args->scale,
    };
    qr_cpu_gemm_backward(backend, &up, scratch);
}

static void run_sums(qr_backend *backend, const qr_lora_backward_args *args, const lora_products *p, float *h,
                     float *dh, void *scratch) {
    if (!p->in_pairs) {
        run_f32_sums(backend, args, p->matmul, h, dh, scratch);
        return;
    }
    const qr_cpu_pairs_args of_h = pairs_of_h(args, h), of_dh = pairs_of_dh(args, dh);
    if (p->on_vectors != NULL) {
        p->on_vectors->down(backend, &of_h, scratch);
        p->on_vectors->down(backend, &of_dh, scratch);
        return;
    }
    qr_cpu_pairs_run(backend, p->matmul, &of_h, scratch);
    qr_cpu_pairs_run(backend, p->matmul, &of_dh, scratch);
}

/* A plan may ask without dy_rounded. */
static size_t scratch_bytes(const qr_backend *backend, const qr_lora_backward_args *args) {
    const size_t of_gradients = qr_cpu_gemm_backward_workspace(backend);
    if (!may_take_pairs(backend, args)) { return of_gradients; }
    const qr_cpu_lora_pairs *on_vectors = qr_cpu(backend)->kernels->lora_pairs;
    if (on_vectors != NULL) {
        const size_t of_pairs =
            on_vectors->workspace_bytes(args->rank, qr_max(qr_max(args->in, args->out), args->n_rows));
        return of_pairs > of_gradients ? of_pairs : of_gradients;
    }
    const qr_cpu_matmul *matmul = qr_cpu(backend)->kernels->backward_parts;
    const qr_cpu_pairs_args of_h = pairs_of_h(args, NULL), of_dh = pairs_of_dh(args, NULL);
    const size_t h_bytes = qr_cpu_pairs_workspace(backend, matmul, &of_h);
    const size_t dh_bytes = qr_cpu_pairs_workspace(backend, matmul, &of_dh);
    const size_t of_sums = h_bytes > dh_bytes ? h_bytes : dh_bytes;
    return of_sums > of_gradients ? of_sums : of_gradients;
}

static size_t lora_backward_workspace(const qr_backend *backend, const void *args) {
    return 2 * sums_bytes(args) + scratch_bytes(backend, args);
}

static void run_factors_on_vectors(qr_backend *backend, const qr_lora_backward_args *args, const lora_products *p,
                                   const float *h, const float *dh, void *scratch) {
    const qr_cpu_pairs_gradient_args db = {.h = h,
                                           .x = p->dy,
                                           .n_rows = args->n_rows,
                                           .rank = args->rank,
                                           .n = args->out,
                                           .x_stride = p->dy_stride,
                                           .c = args->db,
                                           .c_transposed = true};
    p->on_vectors->gradient(backend, &db, scratch);
    const qr_cpu_pairs_gradient_args da = {.h = dh,
                                           .x = args->x,
                                           .n_rows = args->n_rows,
                                           .rank = args->rank,
                                           .n = args->in,
                                           .x_stride = args->x_stride,
                                           .c = args->da};
    p->on_vectors->gradient(backend, &da, scratch);
}

/* Tokens ascending: they are the inner dimension. By pairs db is computed transposed, so that dy need not be. */
static void run_factors(qr_backend *backend, const qr_lora_backward_args *args, const lora_products *p, const float *h,
                        const float *dh, void *scratch) {
    if (p->on_vectors != NULL) {
        run_factors_on_vectors(backend, args, p, h, dh, scratch);
        return;
    }
    const qr_cpu_gemm_operand of_dy = {.data = p->dy, .dtype = p->dy_dtype, .stride = p->dy_stride};
    const qr_cpu_gemm_operand of_h = {.data = h, .dtype = QR_DTYPE_F32, .stride = args->rank};
    qr_cpu_gemm_args db = {
        .matmul = p->matmul,
        .m = p->in_pairs ? args->rank : args->out,
        .n = p->in_pairs ? args->out : args->rank,
        .k = args->n_rows,
        .a = p->in_pairs ? of_h : of_dy,
        .b = p->in_pairs ? of_dy : of_h,
        .c = args->db,
        .c_stride = args->rank,
        .c_transposed = p->in_pairs,
        .accumulate = true,
        .parts = parts_of(p, &qr_cpu_gemm_pair_by_exact),
    };
    db.a.transposed = true;
    qr_cpu_gemm_backward(backend, &db, scratch);
    const qr_cpu_gemm_args da = {
        .matmul = p->matmul,
        .m = args->rank,
        .n = args->in,
        .k = args->n_rows,
        .a = {.data = dh, .dtype = QR_DTYPE_F32, .transposed = true, .stride = args->rank},
        .b = {.data = args->x, .dtype = args->x_dtype, .stride = args->x_stride},
        .c = args->da,
        .c_stride = args->in,
        .accumulate = true,
        .parts = parts_of(p, &qr_cpu_gemm_pair_by_exact),
    };
    qr_cpu_gemm_backward(backend, &da, scratch);
}

/* dx += dh A. */
static qr_cpu_gemm_args product_dx(const qr_lora_backward_args *args, const lora_products *p, const float *dh) {
    return (qr_cpu_gemm_args){
        .matmul = p->matmul,
        .m = args->n_rows,
        .n = args->in,
        .k = args->rank,
        .a = {.data = dh, .dtype = QR_DTYPE_F32, .stride = args->rank},
        .b = {.data = args->a, .dtype = QR_DTYPE_F32, .stride = args->in},
        .c = args->dx,
        .c_stride = args->dx_stride,
        .accumulate = true,
        .parts = parts_of(p, &qr_cpu_gemm_pair_by_pair),
    };
}

size_t qr_cpu_lora_backward_kept_bytes(const qr_lora_backward_args *args) { return 2 * sums_bytes(args); }

bool qr_cpu_lora_backward_has_halves(const qr_backend *backend, const qr_lora_backward_args *args,
                                     const qr_cpu_matmul *matmul) {
    const lora_products p = products_of(backend, args);
    return p.in_pairs && p.matmul == matmul && qr_cpu_gemm_fits_one_block(&qr_cpu_gemm_pair_by_pair, args->rank);
}

/* h' and dh, and the scratch behind them. */
static float *kept(const qr_lora_backward_args *args, void *workspace, float **dh, void **scratch) {
    unsigned char *bytes = workspace;
    *dh = (float *)(void *)(bytes + sums_bytes(args));
    *scratch = bytes + 2 * sums_bytes(args);
    return workspace;
}

qr_cpu_gemm_args qr_cpu_lora_backward_sums(qr_backend *backend, const qr_lora_backward_args *args, void *workspace) {
    float *dh;
    void *scratch;
    float *h = kept(args, workspace, &dh, &scratch);
    const lora_products products = products_of(backend, args);
    run_sums(backend, args, &products, h, dh, scratch);
    return product_dx(args, &products, dh);
}

void qr_cpu_lora_backward_factors(qr_backend *backend, const qr_lora_backward_args *args, void *workspace) {
    float *dh;
    void *scratch;
    const float *h = kept(args, workspace, &dh, &scratch);
    const lora_products products = products_of(backend, args);
    run_factors(backend, args, &products, h, dh, scratch);
}

static void run_lora_backward(qr_backend *backend, const qr_lora_backward_args *args, void *workspace) {
    const qr_cpu_gemm_args dx = qr_cpu_lora_backward_sums(backend, args, workspace);
    qr_cpu_lora_backward_factors(backend, args, workspace);
    if (args->dx != NULL) {
        qr_cpu_gemm_backward(backend, &dx, (unsigned char *)workspace + qr_cpu_lora_backward_kept_bytes(args));
    }
}

QR_CPU_CHECKED_OP(lora_backward, lora_backward_workspace, run_lora_backward)
