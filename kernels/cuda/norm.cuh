/* rms_norm of one row, for kernels that do more with it: the same bits wherever it is computed. */
#ifndef QR_KERNELS_CUDA_NORM_CUH
#define QR_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

/* Calls put(j, x) with the elements [j, j + 4) of the result, for those of this thread, of the row at src. */
template <bool is_block, typename F>
QR_DEVICE void rms_norm_row(const row_team<is_block> &team, const qr_rms_norm_args &a, const float *src, bool aligned,
                            const F &put) {
    float squares = 0.0F, x[VEC4], w[VEC4];
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { squares = fmaf(x[k], x[k], squares); }
    });
    const float inverse = 1.0F / sqrtf(team.sum(squares) / static_cast<float>(a.dim) + a.eps);
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] = x[k] * inverse * (w[k] + a.weight_offset); }
        put(j, x);
    });
}

static inline bool rms_norm_is_aligned(const qr_rms_norm_args &args) {
    return args.dim % VEC4 == 0 && vec4_aligned(args.src, args.src_stride) && vec4_aligned(args.weight, 0) &&
           vec4_aligned(args.dst, args.dst_stride, qr_dtype_bytes(args.dst_dtype));
}

#endif
