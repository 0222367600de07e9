/* rms_norm_backward and layer_norm_backward. dx: a warp or a block for a row (or head), by its length (vec4.cuh),
 * which finds what the gradient needs of the whole row and then writes it. The gradients of weight and bias, where
 * wanted, come first, because dx may be dy. */
#include "kernels/cuda/column_sums.cuh"

/* --- rms_norm_backward --- */

/* Of a group: s = 1 / sqrt(mean(x²) + eps), and mean(g · x). */
struct rms_moments {
    float s, dot;
};

/* A group's rows of x and dy, and where its dx begins. */
struct rms_group {
    const float *x, *dy;
    int64_t dx_at;
};

static __device__ __forceinline__ rms_group rms_group_of(const qr_rms_norm_backward_args &a, int64_t group) {
    const int64_t row = a.n_groups == 1 ? group : group / a.n_groups, at = (group - row * a.n_groups) * a.dim;
    return {a.x + row * a.x_stride + at, a.dy + row * a.dy_stride + at, row * a.dx_stride + at};
}

template <bool is_block>
static __device__ __forceinline__ rms_moments rms_moments_of(const qr_rms_norm_backward_args &a, const rms_group &group,
                                                             const row_team<is_block> &team, bool aligned) {
    float squares = 0.0F, dot = 0.0F;
    team.for_each_vec4(a.dim, [&](int64_t j) {
        float x[VEC4], dy[VEC4], w[VEC4];
        load_vec4(x, group.x, j, a.dim, aligned);
        load_vec4(dy, group.dy, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            squares = fmaf(x[k], x[k], squares);
            dot = fmaf(dy[k] * (w[k] + a.weight_offset), x[k], dot);
        }
    });
    squares = team.sum(squares);
    dot = team.sum(dot);
    const float n = static_cast<float>(a.dim);
    return {1.0F / sqrtf(squares / n + a.eps), dot / n};
}

template <bool is_block>
__global__ void rms_norm_moments_kernel(qr_rms_norm_backward_args a, bool aligned, rms_moments *moments) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t group = team.row();
    if (group >= a.n_rows * a.n_groups) { return; }
    const rms_moments m = rms_moments_of<is_block>(a, rms_group_of(a, group), team, aligned);
    if (team.rank() == 0) { moments[group] = m; }
}

/* sums [n_chunks, dim], the y dimension of the grid: a thread for four columns. */
__global__ void rms_norm_dweight_kernel(qr_rms_norm_backward_args a, bool aligned, const rms_moments *moments,
                                        int64_t chunk_rows, float *sums) {
    const int64_t j = global_thread() * VEC4;
    if (j >= a.dim) { return; }
    float total[VEC4] = {}, x[VEC4], dy[VEC4];
    for_chunk(a.n_rows * a.n_groups, chunk_rows, [&](int64_t i) {
        const rms_group group = rms_group_of(a, i);
        load_vec4(x, group.x, j, a.dim, aligned);
        load_vec4(dy, group.dy, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { total[k] = fmaf(dy[k] * x[k], moments[i].s, total[k]); }
    });
    store_vec4(sums + blockIdx.y * a.dim, j, a.dim, a.dim % VEC4 == 0, total);
}

template <bool is_block> __global__ void rms_norm_dx_kernel(qr_rms_norm_backward_args a, bool aligned) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t index = team.row();
    if (index >= a.n_rows * a.n_groups) { return; }
    const rms_group group = rms_group_of(a, index);
    const rms_moments m = rms_moments_of<is_block>(a, group, team, aligned);
    team.for_each_vec4(a.dim, [&](int64_t j) {
        float x[VEC4], dy[VEC4], w[VEC4], before[VEC4] = {};
        load_vec4(x, group.x, j, a.dim, aligned);
        load_vec4(dy, group.dy, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        if (a.accumulate) { load_vec4(before, a.dx + group.dx_at, j, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) {
            const float value = m.s * (dy[k] * (w[k] + a.weight_offset) - x[k] * m.s * m.s * m.dot);
            x[k] = a.accumulate ? before[k] + value : value;
        }
        store_vec4(a.dx + group.dx_at, j, a.dim, aligned, x);
    });
}

static size_t rms_moments_bytes(const qr_rms_norm_backward_args &args) {
    const int64_t n_bytes = args.n_rows * args.n_groups * static_cast<int64_t>(sizeof(rms_moments));
    return static_cast<size_t>(qr_round_up(n_bytes, 64));
}

static size_t rms_norm_workspace(const qr_rms_norm_backward_args &args) {
    return rms_moments_bytes(args) +
           static_cast<size_t>(n_chunks_of(args.n_rows * args.n_groups) * args.dim) * sizeof(float);
}

static qrun_status add_rms_dweight(qr_cuda_backend &cuda, const qr_rms_norm_backward_args &args, bool aligned,
                                   const rms_moments *moments, float *sums, qr_error *err) {
    const int64_t n = args.n_rows * args.n_groups;
    const qrun_status status = QR_LAUNCH(cuda.device, err, rms_norm_dweight_kernel, chunks_grid(n, args.dim),
                                         vec4_threads(args.dim), 0, args, aligned, moments, chunk_rows_of(n), sums);
    return status != QRUN_OK ? status : qr_cuda_add_chunks(cuda, args.dweight, sums, n_chunks_of(n), args.dim, err);
}

template <bool is_block>
static qrun_status launch_rms_norm_backward(qr_cuda_backend &cuda, const qr_rms_norm_backward_args &args,
                                            unsigned char *workspace, qr_error *err) {
    using team = row_team<is_block>;
    rms_moments *moments = reinterpret_cast<rms_moments *>(workspace);
    const bool aligned = args.dim % VEC4 == 0 && vec4_aligned(args.x, args.x_stride) && vec4_aligned(args.weight, 0) &&
                         vec4_aligned(args.dy, args.dy_stride) && vec4_aligned(args.dx, args.dx_stride);
    const dim3 grid = team::grid(args.n_rows * args.n_groups);
    if (args.dweight != NULL) {
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, rms_norm_moments_kernel<is_block>, grid, VEC4_THREADS,
                                     team::shared_bytes(), args, aligned, moments));
        QR_RETURN_IF_ERROR(add_rms_dweight(cuda, args, aligned, moments,
                                           reinterpret_cast<float *>(workspace + rms_moments_bytes(args)), err));
    }
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, rms_norm_dx_kernel<is_block>, grid, VEC4_THREADS,
                                 team::shared_bytes(), args, aligned));
    return QRUN_OK;
}

static qrun_status run_rms_norm_backward(qr_cuda_backend &cuda, const qr_rms_norm_backward_args &args, void *workspace,
                                         qr_error *err) {
    unsigned char *bytes = static_cast<unsigned char *>(workspace);
    return args.dim > VEC4_BLOCK_DIM ? launch_rms_norm_backward<true>(cuda, args, bytes, err)
                                     : launch_rms_norm_backward<false>(cuda, args, bytes, err);
}

QR_CUDA_OP(rms_norm_backward, rms_norm_workspace, run_rms_norm_backward)

/* --- layer_norm_backward: with n = (x − mean) · s and g = dy · weight, dx = s · (g − mean(g) − n · mean(g · n)) --- */

struct layer_moments {
    float mean, s, mean_g, mean_gn;
};

template <bool is_block>
static __device__ __forceinline__ layer_moments layer_moments_of(const qr_layer_norm_backward_args &a, int64_t row,
                                                                 const row_team<is_block> &team, bool aligned) {
    const float *src = a.x + row * a.dim, *src_dy = a.dy + row * a.dim;
    const float n = static_cast<float>(a.dim);
    float sum = 0.0F, squares = 0.0F, sum_g = 0.0F, sum_gn = 0.0F, x[VEC4], dy[VEC4], w[VEC4];
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { sum += x[k]; }
    });
    const float mean = team.sum(sum) / n;
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            if (j + k < a.dim) { squares = fmaf(x[k] - mean, x[k] - mean, squares); }
        }
    });
    const float s = 1.0F / sqrtf(team.sum(squares) / n + a.eps);
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        load_vec4(dy, src_dy, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            const float g = dy[k] * w[k]; /* 0 behind the row */
            sum_g += g;
            sum_gn = fmaf(g, (x[k] - mean) * s, sum_gn);
        }
    });
    sum_g = team.sum(sum_g);
    sum_gn = team.sum(sum_gn);
    return {mean, s, sum_g / n, sum_gn / n};
}

template <bool is_block>
__global__ void layer_norm_moments_kernel(qr_layer_norm_backward_args a, bool aligned, layer_moments *moments) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t row = team.row();
    if (row >= a.n_rows) { return; }
    const layer_moments m = layer_moments_of<is_block>(a, row, team, aligned);
    if (team.rank() == 0) { moments[row] = m; }
}

/* weight_sums and bias_sums [n_chunks, dim], as rms_norm_dweight_kernel. */
__global__ void layer_norm_dweight_kernel(qr_layer_norm_backward_args a, bool aligned, const layer_moments *moments,
                                          int64_t chunk_rows, float *weight_sums, float *bias_sums) {
    const int64_t j = global_thread() * VEC4;
    if (j >= a.dim) { return; }
    float dweight[VEC4] = {}, dbias[VEC4] = {}, x[VEC4], dy[VEC4];
    for_chunk(a.n_rows, chunk_rows, [&](int64_t row) {
        load_vec4(x, a.x + row * a.dim, j, a.dim, aligned);
        load_vec4(dy, a.dy + row * a.dim, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            dweight[k] = fmaf(dy[k], (x[k] - moments[row].mean) * moments[row].s, dweight[k]);
            dbias[k] += dy[k];
        }
    });
    store_vec4(weight_sums + blockIdx.y * a.dim, j, a.dim, a.dim % VEC4 == 0, dweight);
    store_vec4(bias_sums + blockIdx.y * a.dim, j, a.dim, a.dim % VEC4 == 0, dbias);
}

template <bool is_block> __global__ void layer_norm_dx_kernel(qr_layer_norm_backward_args a, bool aligned) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t row = team.row();
    if (row >= a.n_rows) { return; }
    const layer_moments m = layer_moments_of<is_block>(a, row, team, aligned);
    team.for_each_vec4(a.dim, [&](int64_t j) {
        float x[VEC4], dy[VEC4], w[VEC4], before[VEC4] = {};
        load_vec4(x, a.x + row * a.dim, j, a.dim, aligned);
        load_vec4(dy, a.dy + row * a.dim, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        if (a.accumulate) { load_vec4(before, a.dx + row * a.dim, j, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) {
            const float value = m.s * (dy[k] * w[k] - m.mean_g - (x[k] - m.mean) * m.s * m.mean_gn);
            x[k] = a.accumulate ? before[k] + value : value;
        }
        store_vec4(a.dx + row * a.dim, j, a.dim, aligned, x);
    });
}

static size_t layer_moments_bytes(const qr_layer_norm_backward_args &args) {
    const int64_t n_bytes = args.n_rows * static_cast<int64_t>(sizeof(layer_moments));
    return static_cast<size_t>(qr_round_up(n_bytes, 64));
}

static size_t layer_norm_workspace(const qr_layer_norm_backward_args &args) {
    return layer_moments_bytes(args) + 2 * static_cast<size_t>(n_chunks_of(args.n_rows) * args.dim) * sizeof(float);
}

static qrun_status add_layer_dweight(qr_cuda_backend &cuda, const qr_layer_norm_backward_args &args, bool aligned,
                                     const layer_moments *moments, float *sums, qr_error *err) {
    const int64_t n_chunks = n_chunks_of(args.n_rows);
    float *bias_sums = sums + n_chunks * args.dim;
    qrun_status status =
        QR_LAUNCH(cuda.device, err, layer_norm_dweight_kernel, chunks_grid(args.n_rows, args.dim),
                  vec4_threads(args.dim), 0, args, aligned, moments, chunk_rows_of(args.n_rows), sums, bias_sums);
    if (status == QRUN_OK && args.dweight != NULL) {
        status = qr_cuda_add_chunks(cuda, args.dweight, sums, n_chunks, args.dim, err);
    }
    if (status == QRUN_OK && args.dbias != NULL) {
        status = qr_cuda_add_chunks(cuda, args.dbias, bias_sums, n_chunks, args.dim, err);
    }
    return status;
}

template <bool is_block>
static qrun_status launch_layer_norm_backward(qr_cuda_backend &cuda, const qr_layer_norm_backward_args &args,
                                              unsigned char *workspace, qr_error *err) {
    using team = row_team<is_block>;
    layer_moments *moments = reinterpret_cast<layer_moments *>(workspace);
    const bool aligned = vec4_aligned(args.x, args.dim) && vec4_aligned(args.weight, 0) && vec4_aligned(args.dy, 0) &&
                         vec4_aligned(args.dx, 0);
    if (args.dweight != NULL || args.dbias != NULL) {
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, layer_norm_moments_kernel<is_block>, team::grid(args.n_rows),
                                     VEC4_THREADS, team::shared_bytes(), args, aligned, moments));
        QR_RETURN_IF_ERROR(add_layer_dweight(cuda, args, aligned, moments,
                                             reinterpret_cast<float *>(workspace + layer_moments_bytes(args)), err));
    }
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, layer_norm_dx_kernel<is_block>, team::grid(args.n_rows),
                                 VEC4_THREADS, team::shared_bytes(), args, aligned));
    return QRUN_OK;
}

static qrun_status run_layer_norm_backward(qr_cuda_backend &cuda, const qr_layer_norm_backward_args &args,
                                           void *workspace, qr_error *err) {
    unsigned char *bytes = static_cast<unsigned char *>(workspace);
    return args.dim > VEC4_BLOCK_DIM ? launch_layer_norm_backward<true>(cuda, args, bytes, err)
                                     : launch_layer_norm_backward<false>(cuda, args, bytes, err);
}

QR_CUDA_OP(layer_norm_backward, layer_norm_workspace, run_layer_norm_backward)
