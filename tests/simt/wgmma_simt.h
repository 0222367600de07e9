/* The products of kernels/cuda/linear/wgmma.cuh for the CPU, by simt.h. Included there where QR_SIMT is defined. */
#ifndef QR_TESTS_WGMMA_SIMT_H
#define QR_TESTS_WGMMA_SIMT_H

inline wgmma_tiles wgmma_tiles_at(const void *first) { return {static_cast<const unsigned char *>(first)}; }
inline void wgmma_begin() { simt::wgmma_begin(); }
inline void wgmma_end() { simt::wgmma_end(); }
template <unsigned n_pending> void wgmma_wait() { simt::wgmma_wait(n_pending); }
inline void wgmma_show() {}
inline void wgmma_bf16(float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b, unsigned tile,
                       unsigned step) {
    simt::wgmma_64x128x16(&d[0][0], a, b.first + tile * WGMMA_TILE_BYTES, step, true);
}
inline void wgmma_f16(float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b, unsigned tile,
                      unsigned step) {
    simt::wgmma_64x128x16(&d[0][0], a, b.first + tile * WGMMA_TILE_BYTES, step, false);
}
inline void wgmma_wide_bf16(float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                            const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    simt::wgmma_64x256x16(&d[0][0], a.first + a_tile * WGMMA_LEFT_BYTES, b.first + b_tile * WGMMA_WIDE_BYTES, step,
                          true);
}
inline void wgmma_wide_f16(float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile, const wgmma_tiles &b,
                           unsigned b_tile, unsigned step) {
    simt::wgmma_64x256x16(&d[0][0], a.first + a_tile * WGMMA_LEFT_BYTES, b.first + b_tile * WGMMA_WIDE_BYTES, step,
                          false);
}
template <unsigned n> void wgmma_take_registers() {}
template <unsigned n> void wgmma_leave_registers() {}

#endif
