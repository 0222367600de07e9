/* Which rows a block of attention_mma_kernel takes, what they see, and where partial results lie. Row r of a sequence
 * and K/V head is query head r % group of the group, of token r / group. The rows share the keys they see, and are rows
 * of one matrix product, each of which a product computes by itself. */
#ifndef QR_KERNELS_CUDA_ATTENTION_TILES_CUH
#define QR_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/attention/attention_splits.cuh"

static constexpr float LOG2_E = 1.44269504088896340736F;

/* Which sequences a launch takes. A batch of single tokens and long chunks is two launches. */
enum attention_part { PART_ALL, PART_SINGLE_TOKENS, PART_CHUNKS };

/* By value in a kernel's parameters; from n_tokens, n_seqs, table_stride, heads and window alone, so that a recorded
 * launch serves every batch of these. */
struct attention_tiling {
    attention_part part;
    int32_t group;   /* query heads a K/V head */
    int32_t n_slots; /* splits kept of a row: split s is in slot s % n_slots */
    /* A score in powers of two is product · score_factor, or score_cap · tanh of that. */
    float score_factor, score_cap;
    bool q_pairs; /* two neighbouring floats of q can be read at once */
    /* One block a split: its partial results, [rows, n_slots, head_dim] and [rows, n_slots], rows token · n_heads +
     * head, of PART_SINGLE_TOKENS sequence · n_heads + head. NULL: a block walks all splits. */
    float *sums;
    softmax_state *states;
};

/* Rows of one sequence: the first, and the row after the last. All rows of q together are fewer than 2^31. */
struct row_tile {
    int32_t seq, first, end;
    int32_t first_position; /* of the sequence's first token */
    int32_t q_start;
};

/* Tile `index` of n_rows rows each; tiles do not cross sequences. Those of sequence s begin at number (rows before s +
 * s · (n_rows − 1)) / n_rows: enough for what a sequence's last tile lacks, computed without reading the lengths of the
 * sequences before. Some indices name no tile: false then, and for sequences of the other part. */
template <int n_rows>
static QR_DEVICE bool find_tile(const qr_attention_args &a, const attention_tiling &tiling, int32_t index,
                                row_tile &tile) {
    int32_t number;
    if (tiling.part == PART_SINGLE_TOKENS) {
        const int32_t of_token = (tiling.group + n_rows - 1) / n_rows;
        tile.seq = index / of_token;
        number = index % of_token;
    } else {
        const auto begin = [&](int32_t s) { return (a.q_start[s] * tiling.group + s * (n_rows - 1)) / n_rows; };
        tile.seq = last_at_or_before(a.n_seqs, index, begin);
        number = index - begin(tile.seq);
    }
    tile.q_start = a.q_start[tile.seq];
    const int32_t n_tokens = a.q_start[tile.seq + 1] - tile.q_start, rows = n_tokens * tiling.group;
    tile.first = number * n_rows;
    tile.end = rows - tile.first > n_rows ? tile.first + n_rows : rows;
    tile.first_position = a.first_position[tile.seq];
    const bool wanted = tiling.part == PART_ALL || (n_tokens == 1) == (tiling.part == PART_SINGLE_TOKENS);
    return wanted && tile.first < rows;
}

/* The number of indices that find_tile needs at most. */
static inline int64_t count_tiles(const qr_attention_args &a, attention_part part, int32_t group, int n_rows) {
    if (part == PART_SINGLE_TOKENS) { return a.n_seqs * qr_ceil_div(group, n_rows); }
    return (a.n_tokens * group + static_cast<int64_t>(a.n_seqs) * (n_rows - 1)) / n_rows;
}

/* The first position that one at `position` sees. */
QR_DEVICE int32_t first_seen(const qr_attention_args &a, int32_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

/* What a row of a tile of this block's K/V head (blockIdx.y) is: rows past the last one repeat it, and are not stored.
 */
struct query_row {
    int32_t token; /* row of q */
    int32_t head;
    int32_t position;
    bool stored;
};

static QR_DEVICE query_row row_at(const attention_tiling &tiling, const row_tile &tile, int32_t row) {
    const int32_t at = row < tile.end ? row : tile.end - 1, token = at / tiling.group;
    query_row result;
    result.token = tile.q_start + token;
    result.head = static_cast<int32_t>(blockIdx.y) * tiling.group + (at - token * tiling.group);
    result.position = tile.first_position + token;
    result.stored = row < tile.end;
    return result;
}

/* Where a row's partial result of a split lies, in `states`; its sums begin at this times head_dim. */
static QR_DEVICE int64_t partial_at(const qr_attention_args &a, const attention_tiling &tiling, int32_t seq,
                                    int32_t token, int32_t head, int32_t split) {
    const int32_t row = (tiling.part == PART_SINGLE_TOKENS ? seq : token) * a.n_heads + head;
    return static_cast<int64_t>(row) * tiling.n_slots + split % tiling.n_slots;
}

/* Adds the head's sink, if there are sinks, to a row's joined splits: what their sums are multiplied with then. */
static QR_DEVICE float join_sink(const qr_attention_args &a, int32_t head, softmax_state &joined) {
    if (a.sinks == NULL) { return 1.0F; }
    return join_split(joined, softmax_state{a.sinks[head] * LOG2_E, 1.0F}).before;
}

#endif
