/* Few rows of x: each weight is read once, dequantised and multiplied at once. Included by linear_tiles_template.h.
 *
 * The weight rows of a task are one flat sequence of runs (16 rows by 128 columns). While run s is dequantised into one
 * slot of a ring, the tiles of run s − 1 in the other slot meet x, and the tables of run s + 1 are made. Each comes in
 * quarters, so that the tile unit works beside the vector ports. */

enum {
    MAX_STREAM_K = 16384, /* of double-quantised NF4 */
    MAX_NESTED = 2 + TILE_ROWS * (MAX_STREAM_K / 64) / QR_NESTED_BLOCK,
    PREFETCH_RUNS = 4, /* 4 KiB of codes of 4 bits, 8 lines of each INT8 row */
};

typedef struct decode_scratch {
    uint16_t ring[2][RUN_TILES * TILE_ELEMENTS];
    uint16_t tables[2][TILE_ROWS][TABLES];
    float turned[2][2][TILE_ROWS * QR_TILES_COLS];
    float nested[MAX_NESTED][QR_NESTED_BLOCK]; /* map[code] · nested absmax + offset, for the codes of a group's rows */
} decode_scratch;

/* A run: 16 rows from `row` on, 128 columns from 128 · run on. */
typedef struct run_position {
    int64_t row, run;
} run_position;

typedef struct decode_stream {
    const qr_cpu_tiles_task *task;
    const tiles_weights *w;
    decode_scratch *scratch;
    tiles_state *tiles;
    int64_t n_runs; /* of a row */
    run_position make, fill,
        multiply;                   /* the run that is next to have its tables made, to be filled, to be multiplied */
    const float *values[TILE_ROWS]; /* nested tables of the rows whose tables are made */
} decode_stream;

static void advance(run_position *position, int64_t n_runs) {
    if (++position->run == n_runs) {
        position->run = 0;
        position->row += TILE_ROWS;
    }
}

/* The absmax values of a nested block: one of 256, and a nested block has 256 blocks. */
static void nest(const tiles_weights *w, int64_t nested_block, float *values) {
    const float *map = qr_dynamic8_map(true);
    const unsigned char *data = w->weight->data;
    const __m512 scale = _mm512_set1_ps(((const float *)(const void *)(data + w->layout->nested_offset))[nested_block]);
    const __m512 offset = _mm512_set1_ps(w->weight->nested_offset);
    for (int i = 0; i < QR_NESTED_BLOCK; i += 16) {
        _mm512_storeu_ps(values + i, _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(map + i), scale), offset));
    }
}

/* Points `values` at the nested tables of the run whose tables come next. The two blocks of a run lie in one nested
 * block, as the number of blocks of a row is even. */
static void find_nested(decode_stream *d) {
    const int64_t row_blocks = d->w->n_k / 64, row = d->make.row;
    const int64_t first = row * row_blocks / QR_NESTED_BLOCK;
    if (d->make.run == 0) {
        const int64_t last = ((row + TILE_ROWS) * row_blocks - 1) / QR_NESTED_BLOCK;
        for (int64_t j = first; j <= last; j++) { nest(d->w, j, d->scratch->nested[j - first]); }
    }
    if (d->make.run != 0 && QR_NESTED_BLOCK % row_blocks == 0) { return; }
    for (int64_t r = 0; r < TILE_ROWS; r++) {
        const int64_t block = (row + r) * row_blocks + 2 * d->make.run;
        d->values[r] = d->scratch->nested[block / QR_NESTED_BLOCK - first];
    }
}

/* Where a step reads, in registers: the barriers between products make the compiler read memory again. */
typedef struct step_operands {
    const unsigned char *scales; /* of the first block of the run whose tables are made, `blocks` further in each row */
    int64_t blocks;
    const unsigned char *src; /* of the run that is filled, rows src_stride bytes apart */
    size_t src_stride;
    int64_t ahead;      /* bytes from there to what is prefetched */
    const uint16_t *x;  /* of the run that is multiplied */
    int64_t x_step, x1; /* elements from one tile of x to the next along k, and to that of the next 16 rows */
    size_t x_row_bytes;
} step_operands;

QR_INLINE step_operands operands_of(const decode_stream *d, const weights_kind kind, const bool nested) {
    const tiles_weights *w = d->w;
    const qr_cpu_tiles_task *task = d->task;
    const bool is_mxfp4 = kind == WEIGHTS_MXFP4;
    const int64_t blocks = w->n_k / qr_cpu_scale_cols_of(is_mxfp4), fill_k = d->fill.run * RUN_K;
    const size_t scale_bytes = nested || is_mxfp4 ? 1 : sizeof(float);
    step_operands o = {
        .blocks = blocks,
        .x = task->x + d->multiply.run * RUN_TILES * 32 * task->tile_cols,
        .x_step = 32 * task->tile_cols,
        .x1 = QR_TILES_COLS * task->n_k_padded,
        .x_row_bytes = (size_t)task->tile_cols * 4,
    };
    if (has_tables(kind)) {
        o.scales = (const unsigned char *)w->weight->data + w->layout->scales_offset +
                   (size_t)(d->make.row * blocks + RUN_K / qr_cpu_scale_cols_of(is_mxfp4) * d->make.run) * scale_bytes;
        o.src = group_codes(w, d->fill.row, fill_k);
        o.src_stride = 64;
        o.ahead = PREFETCH_RUNS * TILE_ROWS * 64;
        return o;
    }
    o.src = element_row(w, d->fill.row, fill_k, 1);
    o.src_stride = w->layout->row_bytes;
    o.ahead = PREFETCH_RUNS * RUN_K;
    if (d->fill.run + PREFETCH_RUNS >= d->n_runs) { /* in the next 16 rows */
        o.ahead += (int64_t)(TILE_ROWS * w->layout->row_bytes) - d->n_runs * RUN_K;
    }
    return o;
}

QR_INLINE void make_run_tables(const step_operands *o, const float *values, const int r, const weights_kind kind,
                               const bool nested, uint16_t *dst) {
    const __m512 code = values_of_codes(kind);
    const unsigned char *codes = o->scales + r * o->blocks;
    if (kind == WEIGHTS_MXFP4) {
        const float scales[4] = {qr_e8m0_to_f32(codes[0]), qr_e8m0_to_f32(codes[1]), qr_e8m0_to_f32(codes[2]),
                                 qr_e8m0_to_f32(codes[3])};
        make_tables(code, scales, kind, dst);
    } else if (nested) {
        make_two_tables(code, values[codes[0]], values[codes[1]], dst);
    } else {
        make_tables(code, (const float *)(const void *)o->scales + r * o->blocks, kind, dst);
    }
}

/* Row r of the run that is being filled, and a prefetch of what comes PREFETCH_RUNS later. */
QR_INLINE void fill_run_row(const step_operands *o, const int r, const weights_kind kind, const uint16_t *tables,
                            uint16_t *dst) {
    const unsigned char *src = o->src + (size_t)r * o->src_stride;
    if (has_tables(kind)) {
        _mm_prefetch((const char *)src + o->ahead, _MM_HINT_T1);
        look_up(src, tables, kind, dst);
        return;
    }
    _mm_prefetch((const char *)src + o->ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)src + o->ahead + 64, _MM_HINT_T0);
    convert_int8(src, dst);
}

/* Tile j of a run's four meets one or two tiles of x. */
QR_INLINE void multiply_run_tile(tiles_state *state, const step_operands *o, const uint16_t *w, size_t w_stride,
                                 const int64_t j, const bool two_x) {
    const uint16_t *x = o->x + j * o->x_step;
    tiles_load(state, TILES_B0, x, o->x_row_bytes);
    tiles_load(state, TILES_A0, w, w_stride);
    tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
    if (two_x) {
        tiles_load(state, TILES_B1, x + o->x1, QR_TILES_COLS * 4);
        tiles_dot(state, TILES_C1, TILES_A0, TILES_B1);
    }
}

/* One step of the sequence. makes, fills and multiplies are constants wherever all of them happen. */
QR_INLINE void decode_step(const decode_stream *d, int64_t step, const bool makes, const bool fills,
                           const bool multiplies, const weights_kind kind, const bool nested, const bool two_x) {
    const step_operands o = operands_of(d, kind, nested);
    tiles_state *state = d->tiles;
    uint16_t *filled = d->scratch->ring[step & 1];
    const uint16_t *ready = d->scratch->ring[~step & 1];
    uint16_t(*made)[TABLES] = d->scratch->tables[~step & 1], (*used)[TABLES] = d->scratch->tables[step & 1];
    QR_UNROLL for (int quarter = 0; quarter < 4; quarter++) {
        QR_UNROLL for (int r = 4 * quarter; r < 4 * quarter + 4; r++) {
            if (makes) { make_run_tables(&o, d->values[r], r, kind, nested, made[r]); }
            if (fills) { fill_run_row(&o, r, kind, used[r], filled + 32 * r); }
        }
        TILES_BARRIER();
        if (multiplies) { multiply_run_tile(state, &o, ready + quarter * TILE_ELEMENTS, 64, quarter, two_x); }
        TILES_BARRIER();
    }
}

/* C of the 16 weight rows that are finished leaves when the next 16 are, long after it was written. */
static void store_group(const decode_stream *d, int64_t row, int64_t number) {
    const qr_cpu_tiles_task *task = d->task;
    const float(*sums)[TILE_ROWS * QR_TILES_COLS] =
        (const float(*)[TILE_ROWS * QR_TILES_COLS]) d->scratch->turned[number & 1];
    if (task->n_x == 1 && task->tile_cols == 1) {
        const outputs out = outputs_of(task, row);
        store_outputs(&out, task->i, qr_vec_load(sums[0]));
        return;
    }
    for (int64_t i = 0; i < task->n_x; i += QR_TILES_COLS) {
        store_tile(task, sums[i / QR_TILES_COLS], row, task->i + i, qr_min(task->n_x - i, QR_TILES_COLS));
    }
}

/* With one row of x the 16 sums lie next to each other. */
QR_INLINE void end_group(const decode_stream *d, int64_t row, int64_t number, const bool two_x) {
    float(*sums)[TILE_ROWS * QR_TILES_COLS] = d->scratch->turned[number & 1];
    TILES_BARRIER();
    tiles_store(d->tiles, TILES_C0, sums[0], d->task->tile_cols == 1 ? 4 : 64);
    if (two_x) { tiles_store(d->tiles, TILES_C1, sums[1], 64); }
    TILES_BARRIER();
    if (number > 0) { store_group(d, row - TILE_ROWS, number - 1); }
}

QR_INLINE void begin_group(const decode_stream *d, const bool two_x) {
    tiles_zero(d->tiles, TILES_C0);
    if (two_x) { tiles_zero(d->tiles, TILES_C1); }
}

/* n_groups groups of 16 rows of NF4, MXFP4 or INT8. */
QR_INLINE void stream_dequantised(decode_stream *d, int64_t n_groups, const weights_kind kind, const bool nested,
                                  const bool two_x) {
    const int64_t n_steps = n_groups * d->n_runs;
    int64_t number = 0;
    for (int64_t step = has_tables(kind) ? -1 : 0; step <= n_steps; step++) {
        const bool makes = has_tables(kind) && step + 1 < n_steps;
        const bool fills = step >= 0 && step < n_steps, multiplies = step >= 1;
        if (makes && nested) { find_nested(d); }
        if (multiplies && d->multiply.run == 0) { begin_group(d, two_x); }
        if (fills && multiplies && (makes || !has_tables(kind))) {
            decode_step(d, step, has_tables(kind), true, true, kind, nested, two_x);
        } else {
            decode_step(d, step, makes, fills, multiplies, kind, nested, two_x);
        }
        if (multiplies && d->multiply.run == d->n_runs - 1) { end_group(d, d->multiply.row, number++, two_x); }
        if (makes) { advance(&d->make, d->n_runs); }
        if (fills) { advance(&d->fill, d->n_runs); }
        if (multiplies) { advance(&d->multiply, d->n_runs); }
    }
    store_group(d, d->multiply.row - TILE_ROWS, number - 1);
}

/* BF16 rows are tiles as they lie. */
QR_INLINE void stream_bf16(decode_stream *d, int64_t n_groups, const bool two_x) {
    enum { PREFETCH_TILES = 8 };
    const size_t row_bytes = d->w->layout->row_bytes;
    for (int64_t number = 0; number < n_groups; number++) {
        begin_group(d, two_x);
        for (; d->multiply.run < d->n_runs; d->multiply.run++) {
            const step_operands o = operands_of(d, WEIGHTS_BF16, false);
            for (int64_t j = 0; j < RUN_TILES; j++) {
                const int64_t k = d->multiply.run * RUN_K + 32 * j, ahead = k + PREFETCH_TILES * 32;
                const unsigned char *w = element_row(d->w, d->multiply.row, k, 2);
                const int64_t wrapped = ahead < d->w->n_k ? 0 : (int64_t)(TILE_ROWS * row_bytes) - 2 * d->w->n_k;
                for (size_t r = 0; r < TILE_ROWS; r++) {
                    _mm_prefetch((const char *)w + PREFETCH_TILES * 64 + wrapped + r * row_bytes, _MM_HINT_T0);
                }
                multiply_run_tile(d->tiles, &o, (const uint16_t *)(const void *)w, row_bytes, j, two_x);
            }
        }
        end_group(d, d->multiply.row, number, two_x);
        d->multiply = (run_position){.row = d->multiply.row + TILE_ROWS};
    }
    store_group(d, d->multiply.row - TILE_ROWS, n_groups - 1);
}

/* Weight rows that stream: whole groups of whole runs, in blocks of 64. */
static int64_t streamed_rows(const tiles_weights *w, const qr_cpu_tiles_task *task) {
    const qr_weight_desc *desc = &w->weight->desc;
    const bool nf4 = w->kind == WEIGHTS_NF4;
    if (w->kind == WEIGHTS_OTHER || w->n_k % RUN_K != 0 || (nf4 && desc->block != 64)) { return 0; }
    if (desc->format == QR_WEIGHT_NF4_DQ && w->n_k > MAX_STREAM_K) { return 0; }
    return task->n_rows / TILE_ROWS * TILE_ROWS;
}

static __attribute__((noinline)) void stream_one(decode_stream *d, int64_t n_groups) {
    switch (d->w->weight->desc.format) {
        case QR_WEIGHT_NF4_DQ: stream_dequantised(d, n_groups, WEIGHTS_NF4, true, false); break;
        case QR_WEIGHT_NF4: stream_dequantised(d, n_groups, WEIGHTS_NF4, false, false); break;
        case QR_WEIGHT_MXFP4: stream_dequantised(d, n_groups, WEIGHTS_MXFP4, false, false); break;
        case QR_WEIGHT_INT8: stream_dequantised(d, n_groups, WEIGHTS_INT8, false, false); break;
        default: stream_bf16(d, n_groups, false); break;
    }
}

static __attribute__((noinline)) void stream_two(decode_stream *d, int64_t n_groups) {
    switch (d->w->weight->desc.format) {
        case QR_WEIGHT_NF4_DQ: stream_dequantised(d, n_groups, WEIGHTS_NF4, true, true); break;
        case QR_WEIGHT_NF4: stream_dequantised(d, n_groups, WEIGHTS_NF4, false, true); break;
        case QR_WEIGHT_MXFP4: stream_dequantised(d, n_groups, WEIGHTS_MXFP4, false, true); break;
        case QR_WEIGHT_INT8: stream_dequantised(d, n_groups, WEIGHTS_INT8, false, true); break;
        default: stream_bf16(d, n_groups, true); break;
    }
}

static void decode(const qr_cpu_tiles_task *task) {
    const tiles_weights w = tiles_weights_of(task->args->weight, task->layout);
    const int64_t n_streamed = streamed_rows(&w, task);
    if (n_streamed > 0) {
        tiles_state state;
        const run_position first = {.row = task->row};
        decode_stream stream = {
            .task = task,
            .w = &w,
            .scratch = task->scratch,
            .tiles = &state,
            .n_runs = w.n_k / RUN_K,
            .make = first,
            .fill = first,
            .multiply = first,
        };
        tiles_begin(&state, TILE_ROWS, task->tile_cols, TILE_PAIRS);
        (task->n_x > QR_TILES_COLS ? stream_two : stream_one)(&stream, n_streamed / TILE_ROWS);
        tiles_end(&state);
    }
    if (n_streamed == task->n_rows) { return; }
    qr_cpu_tiles_task rest = *task;
    rest.row += n_streamed;
    rest.n_rows -= n_streamed;
    panels(&rest);
}
