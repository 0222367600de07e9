/* Experts' slots as kernels take them: by tiles of one expert. A launch's grid follows from the number of rows and
 * experts alone, and which tile a block has from the routing in the device's memory. So a recorded launch serves every
 * routing, and the host never waits for one. */
#ifndef QR_KERNELS_CUDA_EXPERT_SLOTS_CUH
#define QR_KERNELS_CUDA_EXPERT_SLOTS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

/* Slots [first, first + n) of an expert; n 0: there is nothing to do. */
struct slot_tile {
    int32_t expert, first, n;
};

/* By pair, a tile that begins at a pair's slot is that pair's: found at once, where slots are few. Else tile number i
 * of expert e is number expert_start[e] / n_rows + e + i, which leaves enough for an expert's last tile without a look
 * at the lengths of those before. */
enum { SLOT_TILES_BY_PAIR = 256 };

static __host__ QR_DEVICE bool slot_tiles_by_pair(const qr_routing &r) {
    return r.n_rows * r.top_k <= SLOT_TILES_BY_PAIR;
}

/* The numbers of tiles, of n_rows slots each, that slot_tile_of needs at most. */
static inline int64_t slot_tile_numbers(const qr_routing &r, int n_rows) {
    return slot_tiles_by_pair(r) ? qr_routing_slots(&r) : qr_routing_slots(&r) / n_rows + r.n_experts;
}

static QR_DEVICE slot_tile slot_tile_of(const qr_routing &r, int n_rows, int32_t number) {
    slot_tile tile = {};
    if (slot_tiles_by_pair(r)) {
        tile.expert = r.expert[number];
        tile.first = r.slot[number];
        if ((tile.first - r.expert_start[tile.expert]) % n_rows != 0) { return tile; }
    } else {
        const auto begin = [&](int32_t e) { return r.expert_start[e] / n_rows + e; };
        tile.expert = last_at_or_before(r.n_experts, number, begin);
        tile.first = r.expert_start[tile.expert] + (number - begin(tile.expert)) * n_rows;
    }
    const int32_t left = r.expert_start[tile.expert + 1] - tile.first;
    tile.n = left < n_rows ? left : n_rows; /* below 0 where a number is left over */
    if (tile.n < 0) { tile.n = 0; }
    return tile;
}

static QR_DEVICE int32_t expert_of_slot(const qr_routing &r, int64_t slot) {
    /* The last of those that begin there: empty experts before it begin at the same slot. */
    return last_at_or_before(r.n_experts, static_cast<int32_t>(slot), [&](int32_t e) { return r.expert_start[e]; });
}

#endif
