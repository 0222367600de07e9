/* rms_norm_backward and layer_norm_backward. dx: a warp or a block for a row (or head), by its length (vec4.cuh), which
 * computes the row's moments and then writes it. The gradients of weight and bias, where wanted, are computed first,
 * because dx may be dy. A norm is described by a struct: its moments, and an element's dx. */
#include "kernels/cuda/column_sums.cuh"

/* A row or head of x and dy, and where its dx begins. */
struct norm_row {
    const float *x, *dy;
    int64_t dx_at;
};

struct rms_gradient {
    typedef qr_rms_norm_backward_args args;

    struct moments {
        float s, dot; /* s = 1 / sqrt(mean(x²) + eps), and mean(g · x) */
    };

    static int64_t n_rows(const args &a) { return a.n_rows * a.n_groups; }
    static bool wants_sums(const args &a) { return a.dweight != NULL; }
    static bool aligned(const args &a) {
        return a.dim % VEC4 == 0 && vec4_aligned(a.x, a.x_stride) && vec4_aligned(a.weight, 0) &&
               vec4_aligned(a.dy, a.dy_stride) && vec4_aligned(a.dx, a.dx_stride);
    }

    static QR_DEVICE bool has_row(const args &a, int64_t group) { return group < a.n_rows * a.n_groups; }
    static QR_DEVICE norm_row row_of(const args &a, int64_t group) {
        const int64_t row = a.n_groups == 1 ? group : group / a.n_groups, at = (group - row * a.n_groups) * a.dim;
        return {a.x + row * a.x_stride + at, a.dy + row * a.dy_stride + at, row * a.dx_stride + at};
    }
    template <bool is_block>
    static QR_DEVICE moments moments_of(const args &a, const norm_row &row, const row_team<is_block> &team,
                                        bool aligned) {
        float squares = 0.0F, dot = 0.0F;
        team.for_each_vec4(a.dim, [&](int64_t j) {
            float x[VEC4], dy[VEC4], w[VEC4];
            load_vec4(x, row.x, j, a.dim, aligned);
            load_vec4(dy, row.dy, j, a.dim, aligned);
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
    static QR_DEVICE float dx(const args &a, const moments &m, float x, float dy, float w) {
        return m.s * (dy * (w + a.weight_offset) - x * m.s * m.s * m.dot);
    }
    static qrun_status add_sums(qr_cuda_backend &cuda, const args &a, bool aligned, const moments *rows, float *sums,
                                qr_error *err);
};

/* With n = (x − mean) · s and g = dy · (weight + weight_offset), dx = s · (g − mean(g) − n · mean(g · n)). */
struct layer_gradient {
    typedef qr_layer_norm_backward_args args;

    struct moments {
        float mean, s, mean_g, mean_gn;
    };

    static int64_t n_rows(const args &a) { return a.n_rows; }
    static bool wants_sums(const args &a) { return a.dweight != NULL || a.dbias != NULL; }
    static bool aligned(const args &a) {
        return vec4_aligned(a.x, a.dim) && vec4_aligned(a.weight, 0) && vec4_aligned(a.dy, 0) && vec4_aligned(a.dx, 0);
    }

    static QR_DEVICE bool has_row(const args &a, int64_t row) { return row < a.n_rows; }
    static QR_DEVICE norm_row row_of(const args &a, int64_t row) {
        return {a.x + row * a.dim, a.dy + row * a.dim, row * a.dim};
    }
    template <bool is_block>
    static QR_DEVICE moments moments_of(const args &a, const norm_row &row, const row_team<is_block> &team,
                                        bool aligned) {
        const row_moments m = team.moments_of(row.x, a.dim, a.eps, aligned);
        const float n = static_cast<float>(a.dim);
        float sum_g = 0.0F, sum_gn = 0.0F, x[VEC4], dy[VEC4], w[VEC4];
        team.for_each_vec4(a.dim, [&](int64_t j) {
            load_vec4(x, row.x, j, a.dim, aligned);
            load_vec4(dy, row.dy, j, a.dim, aligned);
            load_vec4(w, a.weight, j, a.dim, aligned);
            for (int k = 0; k < VEC4; k++) {
                const float g = dy[k] * (w[k] + a.weight_offset); /* 0 after the row's end, as dy is */
                sum_g += g;
                sum_gn = fmaf(g, (x[k] - m.mean) * m.inverse, sum_gn);
            }
        });
        sum_g = team.sum(sum_g);
        sum_gn = team.sum(sum_gn);
        return {m.mean, m.inverse, sum_g / n, sum_gn / n};
    }
    static QR_DEVICE float dx(const args &a, const moments &m, float x, float dy, float w) {
        return m.s * (dy * (w + a.weight_offset) - m.mean_g - (x - m.mean) * m.s * m.mean_gn);
    }
    static qrun_status add_sums(qr_cuda_backend &cuda, const args &a, bool aligned, const moments *rows, float *sums,
                                qr_error *err);
};

/* --- The gradients of weight and bias: sums [n_chunks, dim], chunks in the y dimension of the grid --- */

template <class norm, bool is_block>
__global__ void norm_moments_kernel(typename norm::args a, bool aligned, typename norm::moments *moments) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t row = team.row();
    if (!norm::has_row(a, row)) { return; }
    const typename norm::moments m = norm::moments_of(a, norm::row_of(a, row), team, aligned);
    if (team.rank() == 0) { moments[row] = m; }
}

__global__ void rms_norm_dweight_kernel(qr_rms_norm_backward_args a, bool aligned, const rms_gradient::moments *moments,
                                        int64_t chunk_rows, float *sums) {
    const int64_t j = global_thread() * VEC4;
    if (j >= a.dim) { return; }
    float total[VEC4] = {}, x[VEC4], dy[VEC4];
    for_chunk(a.n_rows * a.n_groups, chunk_rows, [&](int64_t i) {
        const norm_row row = rms_gradient::row_of(a, i);
        load_vec4(x, row.x, j, a.dim, aligned);
        load_vec4(dy, row.dy, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { total[k] = fmaf(dy[k] * x[k], moments[i].s, total[k]); }
    });
    store_vec4(sums + blockIdx.y * a.dim, j, a.dim, a.dim % VEC4 == 0, total);
}

__global__ void layer_norm_dweight_kernel(qr_layer_norm_backward_args a, bool aligned,
                                          const layer_gradient::moments *moments, int64_t chunk_rows,
                                          float *weight_sums, float *bias_sums) {
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

qrun_status rms_gradient::add_sums(qr_cuda_backend &cuda, const args &a, bool aligned, const moments *rows, float *sums,
                                   qr_error *err) {
    const int64_t n = n_rows(a);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, rms_norm_dweight_kernel, chunks_grid(n, a.dim), vec4_threads(a.dim),
                                 0, a, aligned, rows, chunk_rows_of(n), sums));
    return qr_cuda_add_chunks(cuda, a.dweight, sums, n_chunks_of(n), a.dim, err);
}

qrun_status layer_gradient::add_sums(qr_cuda_backend &cuda, const args &a, bool aligned, const moments *rows,
                                     float *sums, qr_error *err) {
    const int64_t n_chunks = n_chunks_of(a.n_rows);
    float *bias_sums = sums + n_chunks * a.dim;
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, layer_norm_dweight_kernel, chunks_grid(a.n_rows, a.dim),
                                 vec4_threads(a.dim), 0, a, aligned, rows, chunk_rows_of(a.n_rows), sums, bias_sums));
    if (a.dweight != NULL) { QR_RETURN_IF_ERROR(qr_cuda_add_chunks(cuda, a.dweight, sums, n_chunks, a.dim, err)); }
    return a.dbias != NULL ? qr_cuda_add_chunks(cuda, a.dbias, bias_sums, n_chunks, a.dim, err) : QRUN_OK;
}

/* --- dx --- */

template <class norm, bool is_block> __global__ void norm_dx_kernel(typename norm::args a, bool aligned) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t index = team.row();
    if (!norm::has_row(a, index)) { return; }
    const norm_row row = norm::row_of(a, index);
    const typename norm::moments m = norm::moments_of(a, row, team, aligned);
    team.for_each_vec4(a.dim, [&](int64_t j) {
        float x[VEC4], dy[VEC4], w[VEC4], before[VEC4] = {};
        load_vec4(x, row.x, j, a.dim, aligned);
        load_vec4(dy, row.dy, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        if (a.accumulate) { load_vec4(before, a.dx + row.dx_at, j, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) {
            const float value = norm::dx(a, m, x[k], dy[k], w[k]);
            x[k] = a.accumulate ? before[k] + value : value;
        }
        store_vec4(a.dx + row.dx_at, j, a.dim, aligned, x);
    });
}

/* --- The ops --- */

template <class norm> static size_t moments_bytes(const typename norm::args &args) {
    const int64_t n_bytes = norm::n_rows(args) * static_cast<int64_t>(sizeof(typename norm::moments));
    return static_cast<size_t>(qr_round_up(n_bytes, 64));
}

static size_t rms_norm_workspace(const qr_rms_norm_backward_args &args) {
    return moments_bytes<rms_gradient>(args) +
           static_cast<size_t>(n_chunks_of(args.n_rows * args.n_groups) * args.dim) * sizeof(float);
}

static size_t layer_norm_workspace(const qr_layer_norm_backward_args &args) {
    return moments_bytes<layer_gradient>(args) +
           2 * static_cast<size_t>(n_chunks_of(args.n_rows) * args.dim) * sizeof(float);
}

template <class norm, bool is_block>
static qrun_status launch(qr_cuda_backend &cuda, const typename norm::args &args, void *workspace, qr_error *err) {
    using team = row_team<is_block>;
    typename norm::moments *moments = static_cast<typename norm::moments *>(workspace);
    const bool aligned = norm::aligned(args);
    const dim3 grid = team::grid(norm::n_rows(args));
    if (norm::wants_sums(args)) {
        unsigned char *sums = static_cast<unsigned char *>(workspace) + moments_bytes<norm>(args);
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, (norm_moments_kernel<norm, is_block>), grid, VEC4_THREADS,
                                     team::shared_bytes(), args, aligned, moments));
        QR_RETURN_IF_ERROR(norm::add_sums(cuda, args, aligned, moments, reinterpret_cast<float *>(sums), err));
    }
    return QR_LAUNCH(cuda.device, err, (norm_dx_kernel<norm, is_block>), grid, VEC4_THREADS, team::shared_bytes(), args,
                     aligned);
}

template <class norm>
static qrun_status run(qr_cuda_backend &cuda, const typename norm::args &args, void *workspace, qr_error *err) {
    return args.dim > VEC4_BLOCK_DIM ? launch<norm, true>(cuda, args, workspace, err)
                                     : launch<norm, false>(cuda, args, workspace, err);
}

QR_CUDA_OP(rms_norm_backward, rms_norm_workspace, run<rms_gradient>)
QR_CUDA_OP(layer_norm_backward, layer_norm_workspace, run<layer_gradient>)
