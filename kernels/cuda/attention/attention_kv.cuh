/* K and V of a block of keys in shared memory, and as operands of matrix products. A type of pages says
 *   - how its elements lie in a fragment (which four of 16 dims a lane holds of q and k; which two of 8 or 16 of v);
 *   - how F32 values are cut into two of its 16-bit type. Sums over dims do not care about the order, as long as q and
 *     k agree; nor columns of v, as long as they are stored where they belong. So INT8 goes from bytes straight to
 *     fragments. */
#ifndef QR_KERNELS_CUDA_ATTENTION_KV_CUH
#define QR_KERNELS_CUDA_ATTENTION_KV_CUH

#include "kernels/cuda/attention/attention_splits.cuh"
#include "kernels/cuda/kv_page.cuh"

enum {
    KEYS = 64, /* of a block of keys, at positions that are a multiple of it */
    PAGE = QR_KV_PAGE_TOKENS,
    KEY_PAGES = KEYS / PAGE,
};

/* Pages of 16-bit elements. */
struct kv_16 {
    enum {
        ELEMENT_BYTES = 2,
        KEY_STEPS = 2,   /* products (of 16 dims) that one load of keys feeds */
        VALUE_TILES = 1, /* runs of 8 dims that one load of values feeds */
    };
    static constexpr bool SCALED = false;

    /* The first of two neighbouring dims of this lane: of q and k in product `step`, columns 2t (+ 8 if upper). */
    static QR_DEVICE int q_dim(int step, unsigned t, bool upper) {
        return 16 * step + (upper ? 8 : 0) + 2 * static_cast<int>(t);
    }
    /* The dim of column 2t + odd of run `tile` of the sums. */
    static QR_DEVICE int value_dim(int tile, unsigned t, int odd) { return 8 * tile + 2 * static_cast<int>(t) + odd; }
    /* Of what load_matrices gave: the keys of a run of 8 in product `step`. */
    static QR_DEVICE void key_fragment(uint32_t b[2], const uint32_t r[4], int step) {
        b[0] = r[2 * step], b[1] = r[2 * step + 1];
    }
    /* Of what load_matrices_transposed gave: the values of run `tile`, keys [16 step, 16 step + 16). */
    static QR_DEVICE void value_fragment(uint32_t b[2], const uint32_t r[4], int, int step) {
        b[0] = r[2 * step], b[1] = r[2 * step + 1];
    }
};

struct kv_bf16 : kv_16 {
    static constexpr float WEIGHT_SCALE = 1.0F;
    static QR_DEVICE void cut(float low, float high, uint32_t &upper, uint32_t &lower) {
        upper = f32_to_bf16x2(low, high);
        lower = f32_to_bf16x2(low - f32_from_bits(upper << 16), high - f32_from_bits(upper & 0xFFFF0000U));
    }
    static QR_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma_bf16(d, a, b); }
    /* Whether one of the two is infinite or NaN. */
    static QR_DEVICE bool not_finite(uint32_t two) { return (((two & 0x7F807F80U) + 0x00800080U) & 0x80008000U) != 0; }
};

struct kv_f16 : kv_16 {
    static constexpr float WEIGHT_SCALE = F16_WEIGHT_SCALE;
    static QR_DEVICE void cut(float low, float high, uint32_t &upper, uint32_t &lower) {
        upper = f32_to_f16x2(low, high);
        lower = f32_to_f16x2(low - f16_to_f32(static_cast<uint16_t>(upper)),
                             high - f16_to_f32(static_cast<uint16_t>(upper >> 16)));
    }
    static QR_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma_f16(d, a, b); }
    static QR_DEVICE bool not_finite(uint32_t two) { return (((two & 0x7C007C00U) + 0x04000400U) & 0x80008000U) != 0; }
};

/* Codes, which BF16 holds exactly. A 16-bit "element" of a loaded matrix is two neighbouring codes. */
struct kv_int8 {
    enum { ELEMENT_BYTES = 1, KEY_STEPS = 4, VALUE_TILES = 2 };
    static constexpr bool SCALED = true;
    static constexpr float WEIGHT_SCALE = 1.0F;

    static QR_DEVICE int q_dim(int step, unsigned t, bool upper) {
        return 16 * step + 4 * static_cast<int>(t) + (upper ? 2 : 0);
    }
    static QR_DEVICE int value_dim(int tile, unsigned t, int odd) {
        return 16 * (tile / 2) + 4 * static_cast<int>(t) + 2 * odd + tile % 2;
    }
    static QR_DEVICE void key_fragment(uint32_t b[2], const uint32_t r[4], int step) {
        b[0] = int8_to_bf16x2<0, 1>(r[step]), b[1] = int8_to_bf16x2<2, 3>(r[step]);
    }
    static QR_DEVICE void value_fragment(uint32_t b[2], const uint32_t r[4], int tile, int step) {
        for (int i = 0; i < 2; i++) {
            b[i] = tile % 2 == 0 ? int8_to_bf16x2<0, 2>(r[2 * step + i]) : int8_to_bf16x2<1, 3>(r[2 * step + i]);
        }
    }
    static QR_DEVICE void cut(float low, float high, uint32_t &upper, uint32_t &lower) {
        kv_bf16::cut(low, high, upper, lower);
    }
    static QR_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma_bf16(d, a, b); }
    static QR_DEVICE bool not_finite(uint32_t) { return false; }
};

/* K or V of a block of keys in shared memory: rows of DIM elements, an odd number of 16-byte chunks apart, so that 8
 * rows of a matrix lie in different banks. */
template <typename kv, int DIM> struct key_tile {
    enum { CHUNKS = DIM * kv::ELEMENT_BYTES / 16, PITCH = (CHUNKS | 1) * 16, BYTES = KEYS * PITCH };
};

/* The keys of a block that may be read, and their pages; the others become zeros. */
struct key_block {
    int32_t page[KEY_PAGES];
    int first, last;
};

struct page_array {
    const unsigned char *pages;
    size_t stride;
};

/* Copies K or V of a head, `head` bytes after a page's beginning, to `tile`, asynchronously; elements from head_dim on
 * are zeros. */
template <typename kv, int DIM, unsigned THREADS>
static QR_DEVICE void load_key_tile(unsigned char *tile, const key_block &block, const page_array &pages, size_t head,
                                    int head_chunks) {
    typedef key_tile<kv, DIM> shape;
#pragma unroll
    for (int p = 0; p < KEY_PAGES; p++) {
        const unsigned char *page = pages.pages + static_cast<size_t>(block.page[p]) * pages.stride + head;
#pragma unroll
        for (int begin = 0; begin < PAGE * shape::CHUNKS; begin += static_cast<int>(THREADS)) {
            const int i = begin + static_cast<int>(threadIdx.x), token = i / shape::CHUNKS, chunk = i % shape::CHUNKS;
            if (i >= PAGE * shape::CHUNKS) { break; }
            const int key = p * PAGE + token;
            const bool wanted = key >= block.first && key <= block.last && chunk < head_chunks;
            const int at = wanted ? (token * head_chunks + chunk) * 16 : 0;
            copy_async_16(tile + key * shape::PITCH + chunk * 16, page + at, wanted ? 16 : 0);
        }
    }
}

/* Takes values that are not finite out of a tile, of what this thread has copied there: 0 · ∞ is NaN, and a product
 * must not see a value that its row does not see. `hidden` [KEYS][DIM / 8]: a bit for each element, set where one was
 * taken out. The rows that see it become NaN; where all rows see it they become so by the products, or infinite, which
 * attention_value does not tell apart. */
template <typename kv, int DIM, unsigned THREADS>
static QR_DEVICE void hide_values(unsigned char *tile, unsigned char *hidden) {
    typedef key_tile<kv, DIM> shape;
    /* Of a page: as many chunks a thread as load_key_tile gives it. */
    enum { PASSES = (PAGE * shape::CHUNKS + THREADS - 1) / THREADS, STRIDE = PASSES * THREADS };
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < KEY_PAGES * STRIDE; i += static_cast<int>(THREADS)) {
        const int in_page = i % STRIDE, chunk = in_page % shape::CHUNKS;
        const int key = i / STRIDE * PAGE + in_page / shape::CHUNKS;
        if (in_page >= PAGE * shape::CHUNKS) { continue; }
        uint4 *at = reinterpret_cast<uint4 *>(tile + key * shape::PITCH + chunk * 16);
        uint32_t words[4];
        unpack_words(words, *at);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t half = 0xFFFFU << j % 2 * 16;
            if (kv::not_finite(words[j / 2] & half)) {
                words[j / 2] &= ~half;
                bits |= 1U << j;
            }
        }
        hidden[key * shape::CHUNKS + chunk] = static_cast<unsigned char>(bits);
        if (bits != 0) { *at = pack_words(words); }
    }
}

/* The scales [KEYS] of that, by the block's first threads. */
static QR_DEVICE void load_scales(float *scales, const key_block &block, const page_array &pages, size_t head) {
    if (threadIdx.x >= KEYS / 4) { return; }
    const int key = static_cast<int>(threadIdx.x) * 4, left = block.last - key + 1;
    const int n = key + 3 < block.first || left <= 0 ? 0 : left < 4 ? left : 4;
    int32_t page = 0;
#pragma unroll
    for (int p = 0; p < KEY_PAGES; p++) { page += block.page[p] * (key / PAGE == p); } /* an index would need memory */
    const unsigned char *src = pages.pages + static_cast<size_t>(page) * pages.stride + head;
    copy_async_16(scales + key, src + key % PAGE * static_cast<int>(sizeof(float)),
                  static_cast<unsigned>(n) * static_cast<unsigned>(sizeof(float)));
}

#endif
