/* The matrices of experts as kernels read them: by value in a kernel's parameters, so many of them in one launch. */
#ifndef QR_KERNELS_CUDA_EXPERT_MATRICES_CUH
#define QR_KERNELS_CUDA_EXPERT_MATRICES_CUH

#include "kernels/cuda/expert_slots.cuh"
#include "kernels/cuda/matrix.cuh"

enum { LAUNCH_EXPERTS = 256 }; /* 3 of the 4 KB that parameters may have */

/* Matrices begin, …, begin + n − 1 of the routing's experts, of one description. */
struct expert_matrices {
    matrix like; /* matrix `begin` */
    int32_t begin, n;
    const unsigned char *data[LAUNCH_EXPERTS];
    float nested_offset[LAUNCH_EXPERTS];

    /* One of these; all parts of a matrix lie at the same distances from its beginning. */
    QR_DEVICE matrix of(int32_t expert) const {
        matrix m = like;
        const int64_t distance = data[expert - begin] - like.codes;
        m.codes += distance;
        m.scales = reinterpret_cast<const float *>(reinterpret_cast<const unsigned char *>(m.scales) + distance);
        m.absmax_codes += distance;
        m.nested_absmax =
            reinterpret_cast<const float *>(reinterpret_cast<const unsigned char *>(m.nested_absmax) + distance);
        m.nested_offset = nested_offset[expert - begin];
        return m;
    }
    QR_DEVICE bool has(const slot_tile &tile) const {
        return tile.n > 0 && tile.expert >= begin && tile.expert < begin + n;
    }
};

/* Calls launch(matrices) for all experts, LAUNCH_EXPERTS at a time. */
template <typename F>
static qrun_status experts_by_launches(const qr_cuda_backend &cuda, const qr_weight *weights, int32_t n_experts,
                                       const F &launch) {
    expert_matrices part = {};
    for (part.begin = 0; part.begin < n_experts; part.begin += LAUNCH_EXPERTS) {
        part.like = matrix_of(cuda, weights[part.begin]);
        part.n = static_cast<int32_t>(qr_min(LAUNCH_EXPERTS, n_experts - part.begin));
        for (int32_t i = 0; i < part.n; i++) {
            part.data[i] = static_cast<const unsigned char *>(weights[part.begin + i].data);
            part.nested_offset[i] = weights[part.begin + i].nested_offset;
        }
        QR_RETURN_IF_ERROR(launch(part));
    }
    return QRUN_OK;
}

/* The rows of x that a tile's slots have, in place of linear_rows (linear/linear.cuh). */
struct slot_rows {
    const int32_t *slot_row; /* NULL: x has a row for each slot */
    int32_t first_slot;

    QR_DEVICE int64_t first(int, unsigned) const { return 0; }
    QR_DEVICE int64_t of_x(int64_t row) const {
        return slot_row != NULL ? int64_t{slot_row[first_slot + row]} : first_slot + row;
    }
};

QR_DEVICE slot_rows slot_rows_of(const qr_routing &r, const slot_tile &tile, bool gathers) {
    return {gathers ? r.slot_row : NULL, tile.first};
}

#endif
