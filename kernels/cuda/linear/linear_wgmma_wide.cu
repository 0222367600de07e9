/* linear with x in BF16 or F16 for very many rows on Hopper: the sums of linear_wgmma.cu, the same products of the same
 * columns in the same order, in tiles of 128 outputs × 256 rows.
 *
 * Two small kernels bring both operands into the form that products read, in the op's workspace: x once, and the
 * weights a panel of outputs at a time, dequantised to 16 bits. For each tile and chunk of 64 columns there is one
 * contiguous image of what a stage in shared memory holds, so that one thread, the producer, brings a whole stage by
 * two copies (bulk_copy.cuh). Two consumers of 64 outputs each multiply from there (wgmma.cuh) and do nothing else.
 *
 * Two blocks, a cluster, have neighbouring outputs and the same x, of which each brings half to both: the bytes from
 * the last cache would bound it otherwise (docs/cuda.md). So a stage is free when the consumers of both blocks
 * have freed it.
 *
 * Product `step` of a chunk has columns [16t + 4 · step, + 4) of each lane t of four (linear.cuh), at its positions 2t,
 * 2t + 1, 2t + 8 and 2t + 9, in x and in the weights alike: pair 8t + q of a row's 32 is word t of piece q, which is
 * stored at q ^ (row mod 8).
 *
 * The clusters, on two multiprocessors each, take pairs of tiles in turn, outputs first: those that run at the same
 * time share the panel's tiles and few blocks of x, each of which is read from device memory once a panel. Pairs come
 * in rounds of one a cluster, so panels are cut where the last round of each is fullest. A panel of half of the last
 * cache stays there from the kernel that writes it to the products; of few rows that would leave most of the GPU idle,
 * and panels are larger.
 *
 * A thread's 128 sums of a segment leave no registers for 128 totals. Some are in registers, the others in shared
 * memory, 16 bytes a thread side by side: they are touched eight times in a whole tile. While one consumer adds, the
 * other one multiplies. */
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/linear/bulk_copy.cuh"
#include "kernels/cuda/linear/linear.cuh"
#include "kernels/cuda/linear/ops_cublaslt.cuh"

enum {
    WARPGROUP = 128,
    PRODUCERS = WARPGROUP, /* of which one thread stays */
    CONSUMERS = 2 * WARPGROUP,
    THREADS = PRODUCERS + CONSUMERS,
    OUTPUTS = 128,
    ROWS = WGMMA_WIDE_COLUMNS,
    CLUSTER = 2, /* blocks */
    STAGES = 4,
    ROW_BYTES = CHUNK * 2, /* of a row and chunk */
    PIECES = CHUNK / PIECE_COLS,
    REGISTER_TOTALS = 24,
    SHARED_TOTALS = WGMMA_WIDE_TILES - REGISTER_TOTALS,
    LAUNCH_REGISTERS = 168, /* of each thread before it knows what it is: __launch_bounds__ */
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240,
    MOST_ROWS = 8192, /* of x in the workspace */
    PANEL_CACHES = 4, /* a panel is at most as many times as large as what stays in the last cache */
    ROUND_COST = 8,   /* of panel_pairs: a round; a panel costs 1 */
    PAIRS_A_COST = 8, /* so many pairs that do not stay in the cache cost 1 */
    COPY_THREADS = 256,
    COPY_UNROLL = 4, /* pieces a thread, whose loads are under way together */
};
static_assert(PRODUCERS * PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= THREADS * LAUNCH_REGISTERS,
              "consumers would wait for ever for registers that the block does not have");

/* --- Images of the operands --- */

/* Tiles of so many rows in chunks, a line of 128 bytes for a row and chunk, which are an item. */
template <uint32_t tile_rows> struct tile_images {
    unsigned char *first;
    uint32_t n_chunks, n_items;

    QR_DEVICE uint32_t line(uint32_t row, uint32_t chunk) const {
        return (row / tile_rows * n_chunks + chunk) * tile_rows + row % tile_rows;
    }

    QR_DEVICE uint4 *piece(uint32_t line, uint32_t q) const {
        return reinterpret_cast<uint4 *>(first + uint64_t{line} * ROW_BYTES + (q ^ line % PIECES) * 16);
    }
};

/* Rows of 16-bit elements, x or weights, of which n_rows exist; zeros after them. Eight lanes have the pieces of an
 * item, and write 128 bytes together; of each of its four parts they read 32 neighbouring bytes. */
template <uint32_t tile_rows>
__global__ void __launch_bounds__(COPY_THREADS) linear_16_images_kernel(const unsigned char *src, int64_t stride_bytes,
                                                                        int64_t n_rows, tile_images<tile_rows> images) {
    const uint32_t first = (blockIdx.x * COPY_UNROLL * COPY_THREADS + threadIdx.x) / PIECES, q = threadIdx.x % PIECES;
    uint32_t words[COPY_UNROLL][4], line[COPY_UNROLL];
#pragma unroll
    for (unsigned i = 0; i < COPY_UNROLL; i++) {
        const uint32_t item = first + i * (COPY_THREADS / PIECES);
        const uint32_t row = item / images.n_chunks, chunk = item % images.n_chunks;
        const uint32_t *at =
            reinterpret_cast<const uint32_t *>(src + row * stride_bytes + uint64_t{chunk} * ROW_BYTES) + q;
        line[i] = images.line(row, chunk);
#pragma unroll
        for (unsigned t = 0; t < 4; t++) { words[i][t] = item < images.n_items && row < n_rows ? at[t * PIECES] : 0; }
    }
#pragma unroll
    for (unsigned i = 0; i < COPY_UNROLL; i++) {
        const uint32_t item = first + i * (COPY_THREADS / PIECES);
        if (item < images.n_items) { *images.piece(line[i], q) = pack_words(words[i]); }
    }
}

/* The codes of an item of the weights. */
template <weights_path path> struct item_codes {
    uint4 vectors[lane_codes<path>::CHUNK_BYTES / 16];
    absmax_parts absmax;
};

/* Eight weights, pairs 4 · word to 4 · word + 3. */
template <typename type, weights_path path>
static QR_DEVICE void convert_word(const item_codes<path> &codes, const nf4_products &products, int word,
                                   uint32_t pairs[4]) {
    if (path == PATH_NF4) {
        const uint4 &v = codes.vectors[word / 4];
        nf4_lookup(products, word % 4 == 0 ? v.x : word % 4 == 1 ? v.y : word % 4 == 2 ? v.z : v.w, pairs);
    } else {
        const uint4 &v = codes.vectors[word / 2 % (lane_codes<path>::CHUNK_BYTES / 16)];
        int8_convert<type>(word % 2 == 0 ? v.x : v.z, pairs);
        int8_convert<type>(word % 2 == 0 ? v.y : v.w, pairs + 2);
    }
}

/* Outputs from `first` on of NF4 or INT8, which becomes its codes; zeros after the last one. A thread dequantises an
 * item: of NF4 it makes one table for it. Its line then goes through shared memory, so that eight lanes write one. */
template <typename type, weights_path path>
__global__ void __launch_bounds__(COPY_THREADS)
    linear_w_images_kernel(matrix w, nf4_book book, int64_t first, tile_images<OUTPUTS> images) {
    uint4 *lines = shared_memory<uint4>();
    const uint32_t item = blockIdx.x * COPY_THREADS + threadIdx.x, none = ~0U;
    const uint32_t row = item / images.n_chunks, chunk = item % images.n_chunks;
    const uint32_t line = item < images.n_items ? images.line(row, chunk) : none;
    const bool is_there = item < images.n_items && first + row < w.rows;
    const int64_t at = is_there ? (first + row) * images.n_chunks + chunk : 0;
    item_codes<path> codes;
#pragma unroll
    for (unsigned i = 0; i < unsigned{lane_codes<path>::CHUNK_BYTES / 16}; i++) {
        codes.vectors[i] = reinterpret_cast<const uint4 *>(w.codes + at * lane_codes<path>::CHUNK_BYTES)[i];
    }
    nf4_products products = {};
    if (path == PATH_NF4) {
        codes.absmax = matrix_absmax_parts(w, at >> (w.block_shift - 6));
        products = nf4_products_of<type>(book, matrix_absmax_of(w, codes.absmax, w.tables->dynamic_map[1]));
    }
    /* Pairs q, 8 + q, 16 + q and 24 + q become piece q. */
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        uint32_t pairs[4][4];
#pragma unroll
        for (int t = 0; t < 4; t++) { convert_word<type>(codes, products, 2 * t + static_cast<int>(half), pairs[t]); }
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            lines[threadIdx.x * PIECES + ((4 * half + i) ^ threadIdx.x % PIECES)] =
                is_there ? make_uint4(pairs[0][i], pairs[1][i], pairs[2][i], pairs[3][i]) : make_uint4(0, 0, 0, 0);
        }
    }
    warp_sync();
    const uint32_t q = threadIdx.x % PIECES;
#pragma unroll
    for (unsigned i = 0; i < PIECES; i++) {
        const uint32_t lane = i * (WARP_LANES / PIECES) + lane_index() / PIECES, other = warp_shuffle(line, lane);
        const uint4 piece = lines[(warp_index() * WARP_LANES + lane) * PIECES + (q ^ lane % PIECES)];
        if (other != none) { *images.piece(other, q) = piece; }
    }
}

/* --- The products --- */

struct wide_memory {
    uint16_t x[STAGES][ROWS * CHUNK];    /* each a tile as wgmma.cuh has it */
    uint16_t w[STAGES][OUTPUTS * CHUNK]; /* two, one for each consumer */
    float4 totals[SHARED_TOTALS][CONSUMERS];
    phase_barrier full[STAGES], free[STAGES];
};

/* A panel: pair i is of pair i % n_outputs of the weights' tiles and of tile i / n_outputs of x. */
struct wide_panel {
    const unsigned char *x, *w;
    uint32_t first, n_outputs, n_pairs, n_chunks; /* first: tile of the weights */
};

#if QR_HAS_WGMMA

static QR_DEVICE void multiply(of_bf16, float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                               const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    wgmma_wide_bf16(d, a, a_tile, b, b_tile, step);
}

static QR_DEVICE void multiply(of_f16, float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                               const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    wgmma_wide_f16(d, a, a_tile, b, b_tile, step);
}

static QR_DEVICE uint32_t block_of_cluster() { return blockIdx.x % CLUSTER; }

/* Calls body(tile of the panel, tile of x) for each tile of this block. */
template <typename F> QR_DEVICE void for_each_tile(const wide_panel &panel, const F &body) {
#pragma unroll 1
    for (uint32_t pair = blockIdx.x / CLUSTER; pair < panel.n_pairs; pair += gridDim.x / CLUSTER) {
        body(pair % panel.n_outputs * CLUSTER + block_of_cluster(), pair / panel.n_outputs);
    }
}

/* The producer's thread: the n-th chunk of all that the block multiplies is in stage n % STAGES. It waits for the last
 * ones, too: so whatever keeps a consumer of either block from ending, this thread finds out, and the consumers, which
 * have no registers for it, need no limit of time. */
static QR_DEVICE void bring_stages(wide_memory &shared, const wide_panel &panel) {
    enum { X_BYTES = ROWS * ROW_BYTES, W_BYTES = OUTPUTS * ROW_BYTES, HALF_BYTES = X_BYTES / CLUSTER };
    const uint32_t half = block_of_cluster();
    const auto wait_until_free = [&](uint32_t chunk) {
        if (chunk >= STAGES) { phase_barrier_wait_or_trap(shared.free[chunk % STAGES], (chunk / STAGES + 1) % 2); }
    };
    uint32_t n = 0;
    for_each_tile(panel, [&](uint32_t w_tile, uint32_t x_tile) {
        const unsigned char *x = panel.x + uint64_t{x_tile} * panel.n_chunks * X_BYTES + half * HALF_BYTES;
        const unsigned char *w = panel.w + uint64_t{w_tile} * panel.n_chunks * W_BYTES;
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < panel.n_chunks; chunk++, n++) {
            const uint32_t stage = n % STAGES;
            wait_until_free(n);
            phase_barrier_expect(shared.full[stage], X_BYTES + W_BYTES);
            copy_bulk_to_both(&shared.x[stage][half * (HALF_BYTES / 2)], x, HALF_BYTES, shared.full[stage]);
            copy_bulk(shared.w[stage], w, W_BYTES, shared.full[stage]);
            x += X_BYTES, w += W_BYTES;
        }
    });
#pragma unroll 1
    for (uint32_t i = 0; i < STAGES; i++) { wait_until_free(n + i); }
}

/* What a thread of a consumer does. */
template <typename type> struct consumer {
    wide_memory &shared;
    const wgmma_tiles x_tiles, w_tiles;
    const unsigned thread, group; /* of the consumers */
    uint32_t n;                   /* chunks so far */
    float d[WGMMA_WIDE_TILES][4], total[REGISTER_TOTALS][4];

    QR_DEVICE consumer(wide_memory &memory)
        : shared(memory), x_tiles(wgmma_tiles_at(memory.x)), w_tiles(wgmma_tiles_at(memory.w)),
          thread(threadIdx.x - PRODUCERS), group((uniform_warp_index() - PRODUCERS / WARP_LANES) / 4), n(0) {}

    /* The stage of a chunk whose products have ended: a lane for each block that copies to it. */
    QR_DEVICE void free_stage(uint32_t chunk) const {
        if (lane_index() < CLUSTER) { phase_barrier_arrive_in(shared.free[chunk % STAGES], lane_index()); }
    }

    QR_DEVICE void segment(uint32_t n_chunks) {
        if (n_chunks == 0) { return; }
        const uint32_t begin = n, end = n + n_chunks;
#pragma unroll 1
        for (; n != end; n++) {
            const unsigned stage = n % STAGES;
            phase_barrier_wait(shared.full[stage], n / STAGES % 2);
            wgmma_begin();
#pragma unroll
            for (unsigned i = 0; i < CHUNK_STEPS; i++) {
                multiply(type(), d, w_tiles, stage * 2 + group, x_tiles, stage, i);
            }
            wgmma_end();
            wgmma_wait<1>();
            if (n != begin) { free_stage(n - 1); }
        }
        wgmma_wait<0>();
        free_stage(end - 1);
    }

    /* −0: see linear_tile.cu */
    QR_DEVICE void begin_tile() {
        for_each_sum<WGMMA_WIDE_TILES>([&](int i, int j) { d[i][j] = 0.0F; });
        for_each_sum<REGISTER_TOTALS>([&](int i, int j) { total[i][j] = -0.0F; });
#pragma unroll
        for (int i = 0; i < SHARED_TOTALS; i++) { shared.totals[i][thread] = {-0.0F, -0.0F, -0.0F, -0.0F}; }
    }

    QR_DEVICE void add_to_totals() {
        for_each_sum<REGISTER_TOTALS>([&](int i, int j) { total[i][j] += d[i][j]; });
#pragma unroll
        for (int i = 0; i < SHARED_TOTALS; i++) {
            const float(&sum)[4] = d[REGISTER_TOTALS + i];
            const float4 was = shared.totals[i][thread];
            shared.totals[i][thread] = {was.x + sum[0], was.y + sum[1], was.z + sum[2], was.w + sum[3]};
        }
        for_each_sum<WGMMA_WIDE_TILES>([&](int i, int j) { d[i][j] = 0.0F; });
    }

    /* The last segment's sums become the results. */
    QR_DEVICE void add_totals() {
        for_each_sum<REGISTER_TOTALS>([&](int i, int j) { d[i][j] = total[i][j] + d[i][j]; });
#pragma unroll
        for (int i = 0; i < SHARED_TOTALS; i++) {
            float(&sum)[4] = d[REGISTER_TOTALS + i];
            const float4 was = shared.totals[i][thread];
            sum[0] = was.x + sum[0], sum[1] = was.y + sum[1], sum[2] = was.z + sum[2], sum[3] = was.w + sum[3];
        }
    }

    QR_DEVICE void multiply_tile(uint32_t n_chunks) {
        const uint32_t per_segment = static_cast<uint32_t>(linear_segment_chunks(n_chunks));
        uint32_t left = n_chunks;
        begin_tile();
#pragma unroll 1
        for (int i = 1;; i++) {
            const uint32_t here = left < per_segment ? left : per_segment;
            segment(here);
            left -= here;
            if (i == LINEAR_SEGMENTS) { break; }
            add_to_totals();
        }
        add_totals();
    }
};

#endif

template <typename type>
__global__ void __launch_bounds__(THREADS, 1) linear_wgmma_wide_kernel(qr_linear_args a, matrix w, wide_panel panel) {
#if QR_HAS_WGMMA
    wide_memory &shared = *wgmma_shared_memory<wide_memory>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            phase_barrier_create(shared.full[i], 1);
            phase_barrier_create(shared.free[i], CLUSTER * CONSUMERS / WARP_LANES);
        }
        phase_barriers_show();
    }
    cluster_sync();
    if (threadIdx.x < PRODUCERS) {
        wgmma_leave_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) { bring_stages(shared, panel); }
    } else {
        wgmma_take_registers<CONSUMER_REGISTERS>();
        consumer<type> c(shared);
        for_each_tile(panel, [&](uint32_t w_tile, uint32_t x_tile) {
            c.multiply_tile(panel.n_chunks);
            store_linear_tiles(a, w, int64_t{panel.first + w_tile} * OUTPUTS + c.thread / WARP_LANES * 16,
                               int64_t{x_tile} * ROWS, c.d);
        });
        cluster_sync(); /* the other block arrives here no more */
    }
#endif
}

/* --- Launching --- */

/* Pairs of tiles of outputs: of a matrix, and of a panel at most. */
static int64_t pairs_of(const qr_weight_desc &desc) { return qr_ceil_div(desc.rows, OUTPUTS * CLUSTER); }

static int64_t pair_bytes(const qr_weight_desc &desc) { return desc.cols * 2 * OUTPUTS * CLUSTER; }

static int64_t most_panel_pairs(const qr_cuda_backend &cuda, const qr_weight_desc &desc) {
    const int64_t fit = qr_cublaslt_panel_bytes(cuda.device) * PANEL_CACHES / pair_bytes(desc);
    return qr_min(qr_max(fit, 1), pairs_of(desc));
}

/* How many pairs a panel has: what costs least in rounds, in panels (a kernel that writes each, and the end of its
 * products), and, where they do not stay in the cache, in bytes to device memory and back. By what these take with the
 * datasheet rates of an H100 and an H200; the bits do not depend on it. */
static int64_t panel_pairs(const qr_cuda_backend &cuda, const qr_weight_desc &desc, int64_t n_row_tiles,
                           int64_t n_clusters) {
    const int64_t n_pairs = pairs_of(desc), cache_bytes = qr_cublaslt_panel_bytes(cuda.device);
    int64_t best = 1, least = INT64_MAX;
    for (int64_t n = most_panel_pairs(cuda, desc); n > 0; n--) {
        const int64_t n_rounds =
            n_pairs / n * qr_ceil_div(n * n_row_tiles, n_clusters) + qr_ceil_div(n_pairs % n * n_row_tiles, n_clusters);
        const int64_t n_past_cache = n * pair_bytes(desc) > cache_bytes ? n_pairs : 0;
        const int64_t cost = n_rounds * ROUND_COST + qr_ceil_div(n_pairs, n) + n_past_cache / PAIRS_A_COST;
        if (cost < least) { best = n, least = cost; }
    }
    return best;
}

/* Rows of x at a time: all, or as equal parts as whole tiles allow. */
static int64_t rows_at_once(int64_t n_rows) {
    return qr_round_up(qr_ceil_div(n_rows, qr_ceil_div(n_rows, MOST_ROWS)), ROWS);
}

template <uint32_t tile_rows>
static tile_images<tile_rows> images_at(unsigned char *memory, int64_t n_tiles, int64_t cols) {
    const uint32_t n_chunks = static_cast<uint32_t>(cols / CHUNK);
    return {memory, n_chunks, static_cast<uint32_t>(n_tiles) * tile_rows * n_chunks};
}

template <uint32_t tile_rows>
static qrun_status write_16(qr_cuda_backend &cuda, const void *src, int64_t stride, int64_t n_rows,
                            const tile_images<tile_rows> &images, qr_error *err) {
    const dim3 grid = blocks_for(int64_t{images.n_items} * PIECES, COPY_THREADS * COPY_UNROLL);
    return QR_LAUNCH(cuda.device, err, (linear_16_images_kernel<tile_rows>), grid, COPY_THREADS, 0,
                     static_cast<const unsigned char *>(src), stride * 2, n_rows, images);
}

template <typename type, weights_path path>
static qrun_status write_panel(qr_cuda_backend &cuda, const matrix &w, int64_t first,
                               const tile_images<OUTPUTS> &images, qr_error *err) {
    if constexpr (path == PATH_16) {
        return write_16(cuda, w.codes + first * w.cols * 2, w.cols, w.rows - first, images, err);
    } else {
        return QR_LAUNCH(cuda.device, err, (linear_w_images_kernel<type, path>),
                         blocks_for(images.n_items, COPY_THREADS), COPY_THREADS, COPY_THREADS * ROW_BYTES, w,
                         nf4_book_of(w), first, images);
    }
}

/* The panel's products. */
template <typename type>
static qrun_status multiply_panel(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w,
                                  const wide_panel &panel, int64_t n_clusters, qr_error *err) {
    const int64_t n_blocks = qr_min(int64_t{panel.n_pairs}, n_clusters) * CLUSTER;
    return QR_LAUNCH_CLUSTERS(cuda.device, err, (linear_wgmma_wide_kernel<type>), CLUSTER,
                              dim3(static_cast<unsigned>(n_blocks)), THREADS, sizeof(wide_memory) + WGMMA_ALIGNMENT,
                              args, w, panel);
}

/* Of rows that fit in the workspace: x, then the panel. */
template <typename type>
static qrun_status multiply_rows(qr_cuda_backend &cuda, const qr_linear_args &args, unsigned char *workspace,
                                 qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    const int64_t n_row_tiles = qr_ceil_div(args.n_rows, ROWS), n_pairs = pairs_of(args.weight->desc);
    const int64_t n_clusters = qr_max(qr_device_multiprocessors(cuda.device) / CLUSTER, 1);
    const int64_t step = panel_pairs(cuda, args.weight->desc, n_row_tiles, n_clusters);
    unsigned char *panel_memory = workspace + n_row_tiles * ROWS * w.cols * 2;
    const tile_images<ROWS> x = images_at<ROWS>(workspace, n_row_tiles, w.cols);
    QR_RETURN_IF_ERROR(write_16(cuda, args.x, args.x_stride, args.n_rows, x, err));
    for (int64_t pair = 0; pair < n_pairs; pair += step) {
        const int64_t n = qr_min(step, n_pairs - pair), first = pair * CLUSTER;
        const tile_images<OUTPUTS> images = images_at<OUTPUTS>(panel_memory, n * CLUSTER, w.cols);
        const wide_panel panel = {workspace,
                                  panel_memory,
                                  static_cast<uint32_t>(first),
                                  static_cast<uint32_t>(n),
                                  static_cast<uint32_t>(n * n_row_tiles),
                                  images.n_chunks};
        QR_RETURN_IF_ERROR(
            QR_BY_PATH(path_of(w, args.x_dtype), write_panel, type, cuda, w, first * OUTPUTS, images, err));
        QR_RETURN_IF_ERROR(multiply_panel<type>(cuda, args, w, panel, n_clusters, err));
    }
    return QRUN_OK;
}

size_t qr_cuda_linear_wgmma_wide_bytes(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const int64_t n_x = qr_min(qr_round_up(args.n_rows, ROWS), MOST_ROWS);
    return static_cast<size_t>((n_x + most_panel_pairs(cuda, desc) * CLUSTER * OUTPUTS) * desc.cols * 2) +
           QR_CUBLASLT_ALIGNMENT;
}

/* Writing the operands costs 4 bytes an element of x, and of each weight its codes and 4 bytes: little beside the
 * products of some hundred rows. A panel's tiles that fill half of the GPU are enough: linear_wgmma.cu dequantises for
 * every 128 rows anew, between its products. */
size_t qr_cuda_linear_wgmma_wide_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    if (!cuda.has_wgmma_wide || args.x_dtype == QR_DTYPE_F32 || args.n_rows < ROWS) { return 0; }
    const matrix w = matrix_of(cuda, *args.weight);
    const weights_path path = path_of(w, args.x_dtype);
    const int64_t n_outputs = qr_min(qr_ceil_div(desc.rows, OUTPUTS), most_panel_pairs(cuda, desc) * CLUSTER);
    const int64_t n_tiles = n_outputs * qr_ceil_div(args.n_rows, ROWS);
    const bool taken = path != PATH_ANY && !(path == PATH_NF4 && w.block_shift < 6) &&
                       n_tiles * 2 >= qr_device_multiprocessors(cuda.device) &&
                       qr_cuda_cublaslt_workspace(cuda, args) == 0;
    return taken ? qr_cuda_linear_wgmma_wide_bytes(cuda, args) : 0;
}

bool qr_cuda_linear_wgmma_wide_takes(const qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w) {
    return qr_cuda_linear_wgmma_wide_workspace(cuda, args) > 0 && qr_cuda_linear_wgmma_takes(cuda, args, w);
}

qrun_status qr_cuda_linear_wgmma_wide(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace,
                                      qr_error *err) {
    const int64_t step = rows_at_once(args.n_rows);
    qr_linear_args part = args;
    for (int64_t row = 0; row < args.n_rows; row += step) {
        part.n_rows = qr_min(step, args.n_rows - row);
        part.x = static_cast<const uint16_t *>(args.x) + row * args.x_stride;
        part.y = args.y + row * args.y_stride;
        QR_RETURN_IF_ERROR(QR_BY_TYPE(args.x_dtype, multiply_rows, cuda, part, qr_cublaslt_aligned(workspace), err));
    }
    return QRUN_OK;
}
