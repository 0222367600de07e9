/* More rows of x: panels of 32 weight rows by 512 columns in L1. Included by linear_tiles_template.h.
 *
 * A task walks K in blocks of 512, of which x and the sums of the task stay in L2; in one, panel by panel, all rows of
 * x, 32 at a time. Beside the products
 *   - in the last pass over a panel, three quarters of the next one are made in tiles that have been used for the last
 *     time, and the rest in the first pass over that one, long before it is needed;
 *   - x streams through L1 without displacing the panel;
 *   - the sums that the next pass begins with are prefetched;
 *   - sums of the panel finished before leave for y, four rows of x at a time: all at once would fill the line fill
 *     buffers, and the products would wait. */

enum {
    BLOCK_COLS = 2 * QR_TILES_COLS,
    BLOCK_SUMS = 4 * TILE_ROWS * QR_TILES_COLS, /* tiles [weights 0, x 0], [0, 1], [1, 0], [1, 1] */
    TASK_PANELS = QR_TILES_PANEL_TASK_ROWS / PANEL_ROWS,
};

typedef struct panels_scratch {
    panel_scratch filling;
    float sums[][BLOCK_SUMS]; /* [panels of the task][n_blocks] */
} panels_scratch;

/* Sums of a finished panel on their way to y. A part is 16 weight rows by four rows of x. */
typedef struct leaving {
    const qr_cpu_tiles_task *task;
    const float (*sums)[BLOCK_SUMS];
    int64_t row, next, n_parts;
} leaving;

enum { TILE_PARTS = QR_TILES_COLS / STORE_ROWS };

/* The sums of tile `number` in the order in which they leave: the tiles of 16 rows of x in turn, and of each the 16
 * weight rows that come first. */
static const float *leaving_tile(const leaving *l, int64_t number) {
    const int64_t x_tile = number / 2, group = number % 2;
    return l->sums[x_tile / 2] + (2 * group + x_tile % 2) * TILE_ROWS * QR_TILES_COLS;
}

static __attribute__((noinline)) void leave_part(leaving *l) {
    const int64_t number = l->next / TILE_PARTS, part = l->next % TILE_PARTS;
    const int64_t o = l->row + number % 2 * TILE_ROWS, i = number / 2 * QR_TILES_COLS + part * STORE_ROWS;
    l->next++;
    if (part == TILE_PARTS - 1 && l->next < l->n_parts) {
        const float *next = leaving_tile(l, number + 1);
        for (int r = 0; r < TILE_ROWS; r++) { _mm_prefetch((const char *)(next + r * QR_TILES_COLS), _MM_HINT_T0); }
    }
    if (o >= l->task->args->weight->desc.rows || i >= l->task->n_x) { return; }
    const outputs out = outputs_of(l->task, o);
    const int64_t n = qr_min(l->task->n_x - i, STORE_ROWS);
    store_rows(&out, leaving_tile(l, number) + part * STORE_ROWS, l->task->i + i, n);
}

/* One pass of a panel: its products with 32 rows of x, and what happens beside them. */
typedef struct panel_pass {
    tiles_state *tiles;
    panel_scratch *filling;
    const uint16_t *x;  /* of the panel's first column */
    int64_t x_step;     /* elements from one tile of x to the next along k */
    int64_t x1;         /* elements from the first tile of 16 rows to the second */
    size_t x_row_bytes; /* of a tile of x */
    float *sums;
    const float *next_sums;
    int64_t n_tiles; /* along k */
    /* After them those of LoRA: of the first 16 weight rows and of the first 16 rows of x; the second follow. */
    const uint16_t *lora_a, *lora_b;
    int64_t n_lora;
    bool first; /* the sums begin at zero */
    leaving *leaving;
    int64_t n_leave; /* parts */
} panel_pass;

enum { PLAIN, BEGIN_NEXT, FINISH_OWN };

/* What the next step of a pass reads. By value, in registers: the barriers between products make the compiler read
 * memory again. */
typedef struct pass_cursor {
    const uint16_t *a, *b, *b1;
    const char *next_sums;
} pass_cursor;

/* The products of 32 columns; with `fills` a batch of the other panel. */
QR_INLINE void multiply_tiles(const panel_pass *p, pass_cursor *at, const bool two_x, const bool fills, unsigned batch,
                              const weights_kind kind) {
    tiles_state *state = p->tiles;
    tiles_stream(state, TILES_B0, at->b, two_x ? 64 : p->x_row_bytes);
    if (two_x) { tiles_stream(state, TILES_B1, at->b1, 64); }
    tiles_load(state, TILES_A0, at->a, 64);
    tiles_load(state, TILES_A1, at->a + GROUP_ELEMENTS, 64);
    tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
    TILES_BARRIER();
    if (fills) { fill_quarter(p->filling, batch, 0, kind); }
    TILES_BARRIER();
    if (two_x) { tiles_dot(state, TILES_C1, TILES_A0, TILES_B1); }
    TILES_BARRIER();
    if (fills) { fill_quarter(p->filling, batch, 1, kind); }
    TILES_BARRIER();
    tiles_dot(state, TILES_C2, TILES_A1, TILES_B0);
    TILES_BARRIER();
    if (fills) { fill_quarter(p->filling, batch, 2, kind); }
    TILES_BARRIER();
    if (two_x) { tiles_dot(state, TILES_C3, TILES_A1, TILES_B1); }
    TILES_BARRIER();
    if (fills) { fill_quarter(p->filling, batch, 3, kind); }
    TILES_BARRIER();
    for (int line = 0; line < 4; line++) { _mm_prefetch(at->next_sums + 64 * line, _MM_HINT_T0); }
    at->a += TILE_ELEMENTS;
    at->b += two_x ? TILE_ELEMENTS : p->x_step;
    at->b1 += TILE_ELEMENTS;
    at->next_sums += 4 * 64;
}

QR_INLINE void load_sums(const panel_pass *p, const bool two_x) {
    tiles_state *state = p->tiles;
    if (p->first) {
        tiles_zero(state, TILES_C0);
        tiles_zero(state, TILES_C1);
        tiles_zero(state, TILES_C2);
        tiles_zero(state, TILES_C3);
        return;
    }
    tiles_load(state, TILES_C0, p->sums, 64);
    tiles_load(state, TILES_C2, p->sums + BLOCK_SUMS / 2, 64);
    if (!two_x) { return; }
    tiles_load(state, TILES_C1, p->sums + BLOCK_SUMS / 4, 64);
    tiles_load(state, TILES_C3, p->sums + 3 * BLOCK_SUMS / 4, 64);
}

QR_INLINE void store_sums(const panel_pass *p, const bool two_x) {
    tiles_state *state = p->tiles;
    TILES_BARRIER();
    tiles_store(state, TILES_C0, p->sums, 64);
    tiles_store(state, TILES_C2, p->sums + BLOCK_SUMS / 2, 64);
    if (two_x) {
        tiles_store(state, TILES_C1, p->sums + BLOCK_SUMS / 4, 64);
        tiles_store(state, TILES_C3, p->sums + 3 * BLOCK_SUMS / 4, 64);
    }
    TILES_BARRIER();
}

QR_INLINE void multiply_lora(const panel_pass *p, const bool two_x) {
    tiles_state *state = p->tiles;
    const int64_t second = p->n_lora * TILE_ELEMENTS;
    for (int64_t t = 0; t < p->n_lora; t++) {
        const uint16_t *a = p->lora_a + t * TILE_ELEMENTS, *b = p->lora_b + t * TILE_ELEMENTS;
        tiles_load(state, TILES_A0, a, 64);
        tiles_load(state, TILES_A1, a + second, 64);
        tiles_load(state, TILES_B0, b, 64);
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
        tiles_dot(state, TILES_C2, TILES_A1, TILES_B0);
        if (!two_x) { continue; }
        tiles_load(state, TILES_B1, b + second, 64);
        tiles_dot(state, TILES_C1, TILES_A0, TILES_B1);
        tiles_dot(state, TILES_C3, TILES_A1, TILES_B1);
    }
}

/* Step t of a pass fills batch t − 4 of the next panel, whose tiles are those up to t − 1; the first four steps of the
 * next pass fill the four batches that are left. Between fours of steps parts of the panel before leave. */
QR_INLINE void multiply_pass(const panel_pass *p, const bool two_x, const int side, const weights_kind kind) {
    enum { STEPS = 4 };
    pass_cursor at = {p->filling->panel, p->x, p->x + p->x1, (const char *)p->next_sums};
    const int64_t n_tiles = p->n_tiles;
    int64_t n_leave = p->n_leave, t = 0;
    load_sums(p, two_x);
    for (; t + STEPS <= n_tiles; t += STEPS) {
        const bool fills = side == BEGIN_NEXT ? t > 0 : side == FINISH_OWN && t == 0;
        const unsigned batch = (unsigned)t + (side == FINISH_OWN ? PANEL_BATCHES : 0) - STEPS;
        if (fills) {
            for (unsigned i = 0; i < STEPS; i++) { multiply_tiles(p, &at, two_x, true, batch + i, kind); }
        } else {
            QR_UNROLL for (int i = 0; i < STEPS; i++) { multiply_tiles(p, &at, two_x, false, 0, kind); }
        }
        if (n_leave > 0) {
            leave_part(p->leaving);
            n_leave--;
        }
    }
    for (; t < n_tiles; t++) { multiply_tiles(p, &at, two_x, false, 0, kind); }
    for (; n_leave > 0; n_leave--) { leave_part(p->leaving); }
    multiply_lora(p, two_x);
    store_sums(p, two_x);
}

#define PASS(name, two_x, side, kind) \
    static __attribute__((noinline)) void name(const panel_pass *p) { multiply_pass(p, two_x, side, kind); }
PASS(pass_one, false, PLAIN, WEIGHTS_OTHER)
PASS(pass_plain, true, PLAIN, WEIGHTS_OTHER)
PASS(pass_begin_nf4, true, BEGIN_NEXT, WEIGHTS_NF4)
PASS(pass_begin_mxfp4, true, BEGIN_NEXT, WEIGHTS_MXFP4)
PASS(pass_begin_int8, true, BEGIN_NEXT, WEIGHTS_INT8)
PASS(pass_begin_bf16, true, BEGIN_NEXT, WEIGHTS_BF16)
PASS(pass_finish_nf4, true, FINISH_OWN, WEIGHTS_NF4)
PASS(pass_finish_mxfp4, true, FINISH_OWN, WEIGHTS_MXFP4)
PASS(pass_finish_int8, true, FINISH_OWN, WEIGHTS_INT8)
PASS(pass_finish_bf16, true, FINISH_OWN, WEIGHTS_BF16)
#undef PASS

static void run_pass(const panel_pass *p, const int side, weights_kind kind) {
    static void (*const beside[2][WEIGHTS_OTHER])(const panel_pass *) = {
        {pass_begin_nf4, pass_begin_mxfp4, pass_begin_int8, pass_begin_bf16},
        {pass_finish_nf4, pass_finish_mxfp4, pass_finish_int8, pass_finish_bf16},
    };
    if (p->x1 == 0) {
        pass_one(p);
    } else if (side == PLAIN) {
        pass_plain(p);
    } else {
        beside[side == FINISH_OWN][kind](p);
    }
}

/* The panel after p: those of a K block, then the next K block. False: p is the last. */
static bool panel_after(const qr_cpu_tiles_task *task, const tiles_panel *p, tiles_panel *next) {
    *next = *p;
    next->row += PANEL_ROWS;
    if (next->row >= task->row + task->n_rows) {
        next->row = task->row;
        next->k += PANEL_K;
        if (next->k >= p->w->n_k) { return false; }
    }
    next->n_k = qr_min(p->w->n_k - next->k, PANEL_K);
    next->n_rows = qr_min(task->row + task->n_rows - next->row, PANEL_ROWS);
    return true;
}

/* A task of panels, and how far it is. */
typedef struct panels_run {
    const qr_cpu_tiles_task *task;
    panels_scratch *scratch;
    tiles_state *tiles;
    tiles_weights w;
    int64_t n_blocks;   /* of 32 rows of x */
    int64_t leave_rate; /* parts a pass, so that a panel has left before the next one is finished */
    leaving leaving;
    bool unfinished; /* the last batches of this panel are still to be filled */
} panels_run;

static float (*panel_sums(const panels_run *run, const tiles_panel *p))[BLOCK_SUMS] {
    return run->scratch->sums + (p->row - run->task->row) / PANEL_ROWS * run->n_blocks;
}

/* All passes of a panel; next: the one after it, or NULL. */
static void run_panel(panels_run *run, const tiles_panel *p, const tiles_panel *next) {
    const qr_cpu_tiles_task *task = run->task;
    float(*sums)[BLOCK_SUMS] = panel_sums(run, p);
    /* Beside the products only whole panels are made. */
    const bool beside = next != NULL && run->n_blocks > 1 && is_regular(p) && p->n_k == PANEL_K && is_regular(next) &&
                        next->n_k == PANEL_K;
    const bool adds = task->n_lora > 0 && p->k + PANEL_K >= run->w.n_k;
    for (int64_t block = 0; block < run->n_blocks; block++) {
        const bool begins = beside && block == run->n_blocks - 1, finishes = run->unfinished && block == 0;
        const panel_pass pass = {
            .tiles = run->tiles,
            .filling = &run->scratch->filling,
            .x = task->x + BLOCK_COLS * block * task->n_k_padded + p->k * task->tile_cols,
            .x_step = 32 * task->tile_cols,
            .x1 = task->args->n_rows > QR_TILES_COLS ? QR_TILES_COLS * task->n_k_padded : 0,
            .x_row_bytes = 4 * (size_t)task->tile_cols,
            .sums = sums[block],
            .next_sums = block + 1 < run->n_blocks ? sums[block + 1]
                         : next != NULL            ? *panel_sums(run, next)
                                                   : *sums,
            .n_tiles = qr_ceil_div(p->n_k, 32),
            .lora_a = adds ? task->lora_b + p->row / TILE_ROWS * task->n_lora * TILE_ELEMENTS : NULL,
            .lora_b = adds ? task->lora_t + 2 * block * task->n_lora * TILE_ELEMENTS : NULL,
            .n_lora = adds ? task->n_lora : 0,
            .first = p->k == 0,
            .leaving = &run->leaving,
            .n_leave = qr_min(run->leaving.n_parts - run->leaving.next, run->leave_rate),
        };
        if (next != NULL && !begins) { prefetch_panel(next, block, run->n_blocks); }
        if (begins) { begin_filling(next, &run->scratch->filling); }
        TILES_BARRIER();
        run_pass(&pass, begins ? BEGIN_NEXT : finishes ? FINISH_OWN : PLAIN, run->w.kind);
    }
    run->unfinished = beside;
    if (next != NULL && !beside) { fill_panel(next, &run->scratch->filling); }
}

static void panels(const qr_cpu_tiles_task *task) {
    tiles_state state;
    panels_run run = {
        .task = task,
        .scratch = task->scratch,
        .tiles = &state,
        .w = tiles_weights_of(task->args->weight, task->layout),
        .n_blocks = qr_ceil_div(task->n_x, BLOCK_COLS),
    };
    const int64_t n_parts = 2 * TILE_PARTS * qr_ceil_div(task->n_x, QR_TILES_COLS);
    run.leave_rate = qr_ceil_div(n_parts, run.n_blocks);
    tiles_panel p = {&run.w, task->row, qr_min(task->n_rows, PANEL_ROWS), 0, qr_min(run.w.n_k, PANEL_K)}, next;
    tiles_begin(&state, TILE_ROWS, task->tile_cols, TILE_PAIRS);
    fill_panel(&p, &run.scratch->filling);
    for (bool more = true; more; p = next) {
        more = panel_after(task, &p, &next);
        run_panel(&run, &p, more ? &next : NULL);
        if (p.k + PANEL_K >= run.w.n_k) {
            while (run.leaving.next < run.leaving.n_parts) { leave_part(&run.leaving); }
            run.leaving = (leaving){task, (const float(*)[BLOCK_SUMS])panel_sums(&run, &p), p.row, 0, n_parts};
        }
    }
    tiles_end(&state);
    while (run.leaving.next < run.leaving.n_parts) { leave_part(&run.leaving); }
    _mm_sfence();
}
