/* linear with x in BF16 or F16 for up to 64 rows, and for any number of them where linear_tile.cu cannot: bound by
 * reading the weights. A block computes m_tiles · 16 outputs of n_tiles · 8 rows; its eight warps take a segment of the
 * columns each, and meet in shared memory, where the segments' sums are added in order (linear.cuh).
 *
 * What an H100 needs for this, per SM and cycle, to read NF4 at its memory's datasheet rate (3.35 TB/s / 132 SMs / 1.75
 * GHz = 14.5 bytes: 29 weights):
 *   - Bytes under way: 14.5 · 1.75 GHz · ~1 µs of latency, some 25 KB at least, 40 with slack. A warp has its next
 *     DEPTH chunks in registers, 512 bytes each of NF4: 49 KB with three blocks of eight warps (80 registers). Wider
 *     loads would need another order of columns: a quad reads the 32 bytes of a row and chunk, a sector, with 8 a lane.
 *   - Lookups: shared memory gives 32 words a cycle. A weight takes one (F32, since code · absmax is rounded to F32
 *     before it is rounded to 16 bits), which is room for 32 weights; two come with one load of 8 bytes, by the byte
 *     that holds both codes, from a table of 256 pairs in 16 copies, one for each lane of a half warp, so that no two
 *     lanes meet in a bank.
 *   - Instructions: 128 lanes, 4.4 a weight. A warp's 1,024 weights of a chunk are 100 in sm_90a's code for one row,
 *     3.1 a weight (bench/cuda_static.py): 2.5 of them are the address, load, products and rounding of pairs. An
 *     address is one instruction (pair_of): a byte's place in the table and the lane's copy are a dot product of bytes.
 *     The table of the 16 products (weights16.cuh) would spare the loads, but is a block's, and a lane has a quarter of
 *     a block's row: made for 16 weights it costs two instructions a weight. Codes and x are read through pointers that
 *     move once a group, so that a load is one instruction. What a warp's lanes share is in uniform registers.
 *   - absmax: a quad's four lanes load those of four chunks ahead, one each, and hand them on by shuffles.
 *   - x: a warp reads its own segment alone, so a block reads x once a tile. For one row that is a quarter of the bytes
 * of NF4 codes; for eight rows twice as much, though from L2 (or L1, which the codes pass by). Hence the tiles of 32
 * and 64 outputs, where there are enough of them for all multiprocessors. Blocks stay and take tile after tile, so that
 * the table is made once, and load for the next before they add up. The kernel is launched early: its first loads
 * overlap the short kernels that decode has between two linears. */
#include "kernels/cuda/linear/linear_mma.cuh"
#include "kernels/cuda/norm.cuh"

/* x [n_rows, dim] by the norm, in shared memory and, by the first block, where its op has it. `team` is what the op
 * itself has for a row; all warps compute one that is a warp's. wait() is called when the weights are under way. */
template <typename type, bool is_block, typename F>
static QR_DEVICE void put_normed(const qr_rms_norm_args &args, float *scratch, uint16_t *x, const F &wait) {
    const row_team<is_block> team = {scratch};
    const row_norm<is_block> norm(team, args, true);
    wait();
    for (int64_t row = 0; row < args.n_rows; row++) {
        norm.run(args.src + row * args.src_stride, [&](int64_t j, const float four[VEC4]) {
            if (!is_block && warp_index() != 0) { return; }
            const uint2 rounded = make_uint2(type::pack(four[0], four[1]), type::pack(four[2], four[3]));
            *reinterpret_cast<uint2 *>(x + row * args.dim + j) = rounded;
            if (blockIdx.x == 0) {
                *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(args.dst) + row * args.dst_stride + j) = rounded;
            }
        });
    }
    __syncthreads();
}

template <typename type, weights_path path, int m_tiles, int n_tiles, mma_matrices kind>
static QR_DEVICE void run_linear(const mma_group &g, const pair_book &book) {
    mma_memory<path, m_tiles> *shared = shared_memory<mma_memory<path, m_tiles>>();
    static_assert(sizeof *shared % 16 == 0, "x follows");
    const linear_rows rows;
    segment_sum<type, path, m_tiles, n_tiles, kind, linear_rows> segment(g, book, rows, *shared,
                                                                         segment_chunks_of(g.weights[0]));
    /* This overlaps the end of the kernel that writes x: weights are being loaded and the table is filled when x is
     * there. */
    segment.start(blockIdx.x);
    admit_next();
    if (path == PATH_NF4) {
        fill_tables(g.weights[0], book, shared->pairs, shared->map);
        __syncthreads();
    }
    const uint16_t *x = static_cast<const uint16_t *>(g.args[0].x);
    int64_t x_stride = g.args[0].x_stride;
    if (path != PATH_ANY && m_tiles * n_tiles == 1 && g.norm.src != NULL) {
        uint16_t *normed = reinterpret_cast<uint16_t *>(shared + 1);
        float *scratch = &shared->sums[0][0][0][0];
        const auto wait = [] { await_previous(); };
        g.norm.dim > VEC4_BLOCK_DIM ? put_normed<type, true>(g.norm, scratch, normed, wait)
                                    : put_normed<type, false>(g.norm, scratch, normed, wait);
        x = normed;
        x_stride = g.norm.dim;
    } else {
        await_previous();
    }
    segment.run_tiles(x, x_stride, blockIdx.x, gridDim.x);
}

template <typename type, weights_path path, int m_tiles, int n_tiles, mma_matrices kind>
__global__ void __launch_bounds__(THREADS, mma_blocks<path, m_tiles, n_tiles>::AT_ONCE)
    linear_mma_kernel(mma_group g, pair_book book) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL /* which has shared memory for linear_staged.cu: not launched, nor worth compiling */
    if constexpr (path != PATH_ANY && n_tiles > 1) {
        __trap();
    } else {
        run_linear<type, path, m_tiles, n_tiles, kind>(g, book);
    }
#else
    run_linear<type, path, m_tiles, n_tiles, kind>(g, book);
#endif
}

template <typename type, weights_path path, int m_tiles, int n_tiles, mma_matrices kind>
static qrun_status launch(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    const mma_group &g = l.group;
    number_tiles(l, m_tiles * OUTPUTS);
    dim3 grid(g.n_tiles, static_cast<unsigned>(qr_ceil_div(l.n_rows, n_tiles * TILE_ROWS)));
    const size_t x_bytes = g.norm.src != NULL ? static_cast<size_t>(g.norm.n_rows * g.norm.dim) * sizeof(uint16_t) : 0;
    const size_t needed_bytes = sizeof(mma_memory<path, m_tiles>) + x_bytes;
    const int at_once =
        qr_device_blocks_at_once(cuda.device, mma_blocks<path, m_tiles, n_tiles>::AT_ONCE, needed_bytes);
    grid.x = static_cast<unsigned>(qr_min(grid.x, qr_ceil_div(at_once, grid.y)));
    const size_t shared_bytes = qr_device_even_shared_bytes(cuda.device, int64_t{grid.x} * grid.y, needed_bytes);
    return QR_LAUNCH_EARLY(cuda.device, err, (linear_mma_kernel<type, path, m_tiles, n_tiles, kind>), grid, THREADS,
                           shared_bytes, g, pair_book_of(g.weights[0]));
}

/* Whether tiles of this many outputs are neither half empty nor too few for the GPU. */
static bool fills(const qr_cuda_backend &cuda, const group_launch &l, int n_outputs) {
    return l.n_outputs > n_outputs / 2 &&
           qr_ceil_div(l.n_outputs, n_outputs) * 8 >= int64_t{7} * qr_device_multiprocessors(cuda.device);
}

/* One row or two: the smallest tile, as x is little. More, up to 8: twice the outputs. Then linear_staged.cu, and where
 * it cannot, 32 rows at a time, so that weights are dequantised once for them. */
template <typename type, weights_path path, mma_matrices kind>
static qrun_status launch_tiles(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    enum { FEW = path == PATH_ANY ? 1 : 2 }; /* what registers allow */
    const bool few = l.n_rows <= TILE_ROWS;
    if (few && l.n_rows > LINEAR_NORM_ROWS && fills(cuda, l, 2 * OUTPUTS)) {
        return launch<type, path, FEW, 1, kind>(cuda, l, err);
    }
    if constexpr (kind != HEADS) {
        constexpr int more = path == PATH_NF4 || path == PATH_INT8 ? 2 : 1;
        if (!few) { return launch<type, path, more, 4, kind>(cuda, l, err); }
    }
    return launch<type, path, 1, 1, kind>(cuda, l, err);
}

template <typename type, weights_path path>
static qrun_status launch_group(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    if (qr_cuda_linear_staged_takes(cuda, l)) { return qr_cuda_linear_staged(cuda, l, err); }
    if (l.group.gate.dst != NULL) { return launch_tiles<type, path, A_PAIR>(cuda, l, err); }
    return l.group.heads.n_products > 0 ? launch_tiles<type, path, HEADS>(cuda, l, err)
                                        : launch_tiles<type, path, SEVERAL>(cuda, l, err);
}

template <typename type> static qrun_status launch_path(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    const weights_path path = mma_path_of(l.group.args[0], l.group.weights[0]);
    return path == PATH_ANY ? launch_tiles<type, PATH_ANY, ONE>(cuda, l, err)
                            : QR_BY_PATH(path, launch_group, type, cuda, l, err);
}

static void add_matrix(group_launch &l, const qr_cuda_backend &cuda, const qr_linear_args &args) {
    l.group.args[l.n] = args;
    l.group.weights[l.n] = matrix_of(cuda, *args.weight);
    l.group.absmax[l.n] = absmax_source_of(l.group.weights[l.n]);
    l.n_rows = args.n_rows;
    l.n_outputs += l.group.weights[l.n++].rows;
}

qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return linear_by_launches(args, [&](const qr_linear_args &part) {
        group_launch l = {};
        add_matrix(l, cuda, part);
        return QR_BY_TYPE(part.x_dtype, launch_path, cuda, l, err);
    });
}

/* x in shared memory leaves room for three blocks on sm_90. */
static bool takes_norm(const qr_rms_norm_args &norm) {
    enum { MOST_BYTES = 32 << 10 };
    return norm.n_rows <= LINEAR_NORM_ROWS && norm.n_rows * norm.dim <= int64_t{MOST_BYTES / sizeof(uint16_t)} &&
           rms_norm_is_aligned(norm);
}

/* A block has both of a pair where products are of one head, and of pairs or of none; it takes no interleaved pairs.
 * The scale of INT8 is a whole head's, which no block has. */
static bool takes_heads(const heads_ops &ops) {
    const qr_kv_layout &layout = ops.write->layout;
    const auto fits = [](const qr_rope_args *rope) {
        return rope == NULL || (!rope->interleaved && rope->half % (OUTPUTS / 2) == 0);
    };
    return ops.write->n_tokens <= TILE_ROWS && layout.head_dim % OUTPUTS == 0 && layout.format != QR_KV_INT8 &&
           fits(ops.q.rope) && fits(ops.k.rope) && ops.q.norm == NULL && ops.k.norm == NULL;
}

bool qr_cuda_linear_group_takes(const qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                const linear_with &with) {
    if (args[0]->x_dtype == QR_DTYPE_F32 || args[0]->n_rows > LINEAR_MMA_ROWS) { return false; }
    const weights_path path = mma_path_of(*args[0], matrix_of(cuda, *args[0]->weight));
    for (int i = 0; i < n; i++) {
        const qr_weight_desc &desc = args[i]->weight->desc;
        const bool fits = !args[i]->any_order && mma_path_of(*args[i], matrix_of(cuda, *args[i]->weight)) == path &&
                          desc.format == args[0]->weight->desc.format && desc.block == args[0]->weight->desc.block;
        if (path == PATH_ANY || !fits) { return false; }
    }
    return (with.norm == NULL || takes_norm(*with.norm)) && (with.heads == NULL || takes_heads(*with.heads));
}

static mma_heads mma_heads_of(const heads_ops &ops) {
    const qr_rope_args *const ropes[] = {ops.q.rope, ops.k.rope};
    mma_heads heads = {};
    heads.n_products = static_cast<unsigned>(ops.write->layout.head_dim / OUTPUTS);
    heads.inverse = (1U << 28) / heads.n_products + 1;
    for (int i = 0; i < 2; i++) {
        if (ropes[i] == NULL) { continue; }
        heads.half[i] = static_cast<unsigned>(ropes[i]->half);
        heads.cos_table[i] = ropes[i]->cos_table, heads.sin_table[i] = ropes[i]->sin_table;
    }
    heads.write = *ops.write;
    heads.offsets = kv_offsets_of(&ops.write->layout);
    return heads;
}

qrun_status qr_cuda_linear_group(qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                 const linear_with &with, qr_error *err) {
    group_launch l = {};
    for (int i = 0; i < n; i++) { add_matrix(l, cuda, *args[i]); }
    if (with.norm != NULL) { l.group.norm = *with.norm; }
    if (with.gate != NULL) { l.group.gate = *with.gate; }
    if (with.heads != NULL) { l.group.heads = mma_heads_of(*with.heads); }
    return QR_BY_TYPE(args[0]->x_dtype, launch_path, cuda, l, err);
}
