/* Hopper's matrix product of a warpgroup (wgmma, sm_90a), for kernels that have a variant that runs on every GPU: d
 * [64, 128] += a [64, 16] · b [16, 128] in F32, a from registers and b from shared memory; and the wide one, d
 * [64, 256] with both from shared memory, a as a tile of 64 rows.
 *
 * A warpgroup is four warps of which the first has a number that four divides. Warp w of it has rows [16w, 16w + 16) of
 * a and of d, in the layout of m16n8k16 (device.cuh): d[n] are columns [8n, 8n + 8). b is a tile of 128 rows of 64
 * 16-bit elements, a row for each column of d, at a multiple of 1,024 bytes; 16-byte piece p of row r is stored at
 * position p ^ (r mod 8), and product number `step` of four takes pieces 2 · step and 2 · step + 1.
 *
 * Products are asynchronous. Consecutive ones add to the same d in their order; d, a and the tile belong to them until
 * the wait. wgmma_begin comes before the products of a group that read registers written since the last wait, wgmma_end
 * after them, and wgmma_wait<n> waits for all groups but the newest n. A thread that wrote the tile calls wgmma_show
 * before the barrier after which products read it.
 *
 * tests/simt executes all of it but the instructions and the tile's descriptor. */
#ifndef QR_KERNELS_CUDA_WGMMA_CUH
#define QR_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/device/device.cuh"

enum {
    WGMMA_OUTPUTS = 64,  /* rows of d */
    WGMMA_COLUMNS = 128, /* of d */
    WGMMA_TILES = WGMMA_COLUMNS / 8,
    WGMMA_ALIGNMENT = 1024, /* of a tile */
    WGMMA_TILE_BYTES = WGMMA_COLUMNS * 128,
    WGMMA_WIDE_COLUMNS = 256,
    WGMMA_WIDE_TILES = WGMMA_WIDE_COLUMNS / 8,
    WGMMA_WIDE_BYTES = WGMMA_WIDE_COLUMNS * 128,
    WGMMA_LEFT_BYTES = WGMMA_OUTPUTS * 128, /* of a tile of a */
};

/* Whether this compilation has the instructions: of sm_90a alone. Elsewhere a kernel has no body, and is not used: a
 * build without sm_90a finds on Hopper that nothing comes of it (wgmma_check.cu). */
#if defined(QR_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QR_HAS_WGMMA 1
#else
#define QR_HAS_WGMMA 0
#endif

/* The launch's shared memory from the first multiple of WGMMA_ALIGNMENT on. */
template <typename T> QR_DEVICE T *wgmma_shared_memory() {
    unsigned char *memory = shared_memory<unsigned char>();
#ifdef QR_SIMT
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
#else
    const size_t address = __cvta_generic_to_shared(memory);
#endif
    return reinterpret_cast<T *>(memory + (WGMMA_ALIGNMENT - address % WGMMA_ALIGNMENT) % WGMMA_ALIGNMENT);
}

/* Consecutive tiles in shared memory, as products take them. */
struct wgmma_tiles {
#ifdef QR_SIMT
    const unsigned char *first;
#else
    uint32_t first; /* of its descriptor, the low half */
#endif
};

#ifdef QR_SIMT
#include "wgmma_simt.h"
#elif QR_HAS_WGMMA

/* QR_GPU_ONLY: instructions, descriptor, fences and registers of wgmma.cuh: its wgmma_* but wgmma_shared_memory */
QR_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
QR_DEVICE void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <unsigned n_pending> QR_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(n_pending) : "memory");
}
QR_DEVICE void wgmma_show() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/* A descriptor, in units of 16 bytes: where the pieces of a product begin (bits 0 to 13), and from eight rows to the
 * next eight (bits 32 to 45). Bits 16 to 29 say nothing in this layout, which is bits 62 and 63: 1, swizzled, 128 bytes
 * a row. */
QR_DEVICE wgmma_tiles wgmma_tiles_at(const void *first) {
    return {(static_cast<uint32_t>(__cvta_generic_to_shared(first)) & 0x3FFFFU) >> 4 | 1U << 16};
}
QR_DEVICE uint64_t wgmma_descriptor(const wgmma_tiles &b, unsigned offset_bytes, unsigned step) {
    return uint64_t{1U << 30 | WGMMA_ALIGNMENT >> 4} << 32 | (b.first + (offset_bytes >> 4) + step * 2);
}

/* Registers a thread of this warpgroup has from here on, of those that all leave or were left: every warp of it calls
 * one of them once. */
template <unsigned n> QR_DEVICE void wgmma_take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(n));
}
template <unsigned n> QR_DEVICE void wgmma_leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(n));
}

#define QR_WGMMA_4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define QR_WGMMA(type)                                                                                         \
    asm volatile("{\n"                                                                                         \
                 ".reg .pred adds;\n"                                                                          \
                 "setp.ne.b32 adds, 1, 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                              \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "            \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "            \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "           \
                 "{%64, %65, %66, %67}, %68, adds, 1, 1, 0;\n"                                                 \
                 "}\n"                                                                                         \
                 : QR_WGMMA_4(0), QR_WGMMA_4(1), QR_WGMMA_4(2), QR_WGMMA_4(3), QR_WGMMA_4(4), QR_WGMMA_4(5),   \
                   QR_WGMMA_4(6), QR_WGMMA_4(7), QR_WGMMA_4(8), QR_WGMMA_4(9), QR_WGMMA_4(10), QR_WGMMA_4(11), \
                   QR_WGMMA_4(12), QR_WGMMA_4(13), QR_WGMMA_4(14), QR_WGMMA_4(15)                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),                                                 \
                   "l"(wgmma_descriptor(b, tile * WGMMA_TILE_BYTES, step)))
QR_DEVICE void wgmma_bf16(float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b, unsigned tile,
                          unsigned step) {
    QR_WGMMA("bf16");
}
QR_DEVICE void wgmma_f16(float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b, unsigned tile,
                         unsigned step) {
    QR_WGMMA("f16");
}
#define QR_WGMMA_WIDE(type)                                                                                          \
    asm volatile("{\n"                                                                                               \
                 ".reg .pred adds;\n"                                                                                \
                 "setp.ne.b32 adds, 1, 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " "                                    \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
                 "%128, %129, adds, 1, 1, 0, 0;\n"                                                                   \
                 "}\n"                                                                                               \
                 : QR_WGMMA_4(0), QR_WGMMA_4(1), QR_WGMMA_4(2), QR_WGMMA_4(3), QR_WGMMA_4(4), QR_WGMMA_4(5),         \
                   QR_WGMMA_4(6), QR_WGMMA_4(7), QR_WGMMA_4(8), QR_WGMMA_4(9), QR_WGMMA_4(10), QR_WGMMA_4(11),       \
                   QR_WGMMA_4(12), QR_WGMMA_4(13), QR_WGMMA_4(14), QR_WGMMA_4(15), QR_WGMMA_4(16), QR_WGMMA_4(17),   \
                   QR_WGMMA_4(18), QR_WGMMA_4(19), QR_WGMMA_4(20), QR_WGMMA_4(21), QR_WGMMA_4(22), QR_WGMMA_4(23),   \
                   QR_WGMMA_4(24), QR_WGMMA_4(25), QR_WGMMA_4(26), QR_WGMMA_4(27), QR_WGMMA_4(28), QR_WGMMA_4(29),   \
                   QR_WGMMA_4(30), QR_WGMMA_4(31)                                                                    \
                 : "l"(wgmma_descriptor(a, a_tile * WGMMA_LEFT_BYTES, step)),                                        \
                   "l"(wgmma_descriptor(b, b_tile * WGMMA_WIDE_BYTES, step)))
QR_DEVICE void wgmma_wide_bf16(float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                               const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    QR_WGMMA_WIDE("bf16");
}
QR_DEVICE void wgmma_wide_f16(float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                              const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    QR_WGMMA_WIDE("f16");
}
#undef QR_WGMMA
#undef QR_WGMMA_WIDE
#undef QR_WGMMA_4

#endif

#endif
