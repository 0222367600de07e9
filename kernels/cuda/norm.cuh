/* rms_norm of one row, for kernels that do more with it: the same bits wherever it is computed. */
#ifndef QR_KERNELS_CUDA_NORM_CUH
#define QR_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

/* Runs of VEC4 elements that a thread keeps between the sum and the product. It reads more twice. */
enum { NORM_KEPT = 4 };

/* The weights of the elements that a thread keeps. They do not depend on the row, so a kernel may load them before it
 * waits for that. */
template <bool is_block> struct row_norm {
    const row_team<is_block> &team;
    const qr_rms_norm_args &a;
    const bool aligned;
    float weights[NORM_KEPT][VEC4];

    __device__ row_norm(const row_team<is_block> &row, const qr_rms_norm_args &args, bool is_aligned)
        : team(row), a(args), aligned(is_aligned) {
#pragma unroll
        for (int i = 0; i < NORM_KEPT; i++) { load(weights[i], a.weight, place(i)); }
    }

    QR_DEVICE int64_t place(int i) const { return (int64_t{i} * row_team<is_block>::SIZE + team.rank()) * VEC4; }

    /* Elements [j, j + 4); zeros after the end. Where a row is aligned its length is a multiple of four. */
    QR_DEVICE void load(float x[VEC4], const float *row, int64_t j) const {
        if (!aligned) {
            load_vec4(x, row, j, a.dim, false);
        } else if (j < a.dim) {
            load_vec4(x, row + j);
        } else {
            x[0] = x[1] = x[2] = x[3] = 0.0F;
        }
    }

    /* Calls put(j, x) with the elements [j, j + 4) of the result, for those of this thread, of the row at src. */
    template <typename F> QR_DEVICE void run(const float *src, const F &put) const {
        enum { STEP = row_team<is_block>::SIZE * VEC4 };
        float squares = 0.0F, kept[NORM_KEPT][VEC4], x[VEC4], w[VEC4];
#pragma unroll
        for (int i = 0; i < NORM_KEPT; i++) { load(kept[i], src, place(i)); }
#pragma unroll
        for (int i = 0; i < NORM_KEPT; i++) {
#pragma unroll
            for (int k = 0; k < VEC4; k++) { squares = fmaf(kept[i][k], kept[i][k], squares); }
        }
#pragma unroll 2
        for (int64_t j = place(NORM_KEPT); j < a.dim; j += STEP) {
            load(x, src, j);
            for (int k = 0; k < VEC4; k++) { squares = fmaf(x[k], x[k], squares); }
        }
        const float inverse = 1.0F / sqrtf(team.sum(squares) / static_cast<float>(a.dim) + a.eps);
        const auto put_product = [&](int64_t j, const float from[VEC4], const float by[VEC4]) {
            float product[VEC4];
#pragma unroll
            for (int k = 0; k < VEC4; k++) { product[k] = from[k] * inverse * (by[k] + a.weight_offset); }
            put(j, product);
        };
#pragma unroll
        for (int i = 0; i < NORM_KEPT; i++) {
            if (place(i) < a.dim) { put_product(place(i), kept[i], weights[i]); }
        }
#pragma unroll 2
        for (int64_t j = place(NORM_KEPT); j < a.dim; j += STEP) {
            load(x, src, j);
            load(w, a.weight, j);
            put_product(j, x, w);
        }
    }
};

static inline bool rms_norm_is_aligned(const qr_rms_norm_args &args) {
    return args.dim % VEC4 == 0 && vec4_aligned(args.src, args.src_stride) && vec4_aligned(args.weight, 0) &&
           vec4_aligned(args.dst, args.dst_stride, qr_dtype_bytes(args.dst_dtype));
}

#endif
