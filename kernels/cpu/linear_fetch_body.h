/* Panels of weights in F32, included by the kernel files beside a lanes_<isa>.h. `round_bf16` is a constant after
 * inlining. */

/* 128 columns of one row of an NF4 group (64 when half), from 64 (32) bytes of codes and 2 (1) scales. */
static inline __attribute__((always_inline)) void fetch_nf4_run(const uint8_t *codes, const float *scales, bool half,
                                                                bool round_bf16, float *dst) {
    const lanes_table t0 = lanes_table_make(qr_nf4_code, scales[0], round_bf16);
    if (half) {
        for (int w = 0; w < 32; w += LANES) {
            const lanes_index index = lanes_index_from_u8(codes + w);
            lanes_store(dst + w, lanes_lookup(&t0, index, 0));
            lanes_store(dst + 32 + w, lanes_lookup(&t0, index, 4));
        }
        return;
    }
    const lanes_table t1 = lanes_table_make(qr_nf4_code, scales[1], round_bf16);
    for (int w = 0; w < 32; w += LANES) {
        const lanes_index index = lanes_index_from_u16(codes + 2 * w);
        lanes_store(dst + w, lanes_lookup(&t0, index, 0));
        lanes_store(dst + 32 + w, lanes_lookup(&t0, index, 4));
        lanes_store(dst + 64 + w, lanes_lookup(&t1, index, 8));
        lanes_store(dst + 96 + w, lanes_lookup(&t1, index, 12));
    }
}

/* n_k is a multiple of 64, k of 128. */
static inline __attribute__((always_inline)) void fetch_nf4_row(const qr_cpu_panel *p, int64_t row, bool round_bf16,
                                                                float *dst) {
    enum { SCALES_AT_ONCE = 32 };
    float scales[SCALES_AT_ONCE];
    for (int64_t k = 0; k < p->n_k; k += 64 * SCALES_AT_ONCE) {
        const int64_t n_k = qr_min(p->n_k - k, 64 * SCALES_AT_ONCE);
        qr_cpu_nf4_scales(p->weight, p->layout, row, p->k + k, n_k / 64, scales);
        for (int64_t j = 0; j < n_k; j += 128) {
            const uint8_t *codes = qr_cpu_nf4_run(p->weight, p->layout, row, p->k + k + j);
            fetch_nf4_run(codes, scales + j / 64, n_k - j < 128, round_bf16, dst + k + j);
        }
    }
}

/* Rows of the ROWS layout are followed by zeros up to 64 bytes, so that whole vectors may be read. */
static inline __attribute__((always_inline)) void fetch_element_row(const qr_cpu_panel *p, int64_t row, bool round_bf16,
                                                                    float *dst) {
    const void *src = qr_cpu_row(p->weight, p->layout, row);
    const qr_weight_format format = p->weight->desc.format;
    for (int64_t j = 0; j < p->n_k; j += LANES) {
        lanes value;
        switch (format) {
        case QR_WEIGHT_F32: value = lanes_load((const float *)src + p->k + j); break;
        case QR_WEIGHT_F16: value = lanes_from_f16((const uint16_t *)src + p->k + j); break;
        case QR_WEIGHT_BF16: value = lanes_from_bf16((const uint16_t *)src + p->k + j); break;
        default: value = lanes_from_i8((const int8_t *)src + p->k + j); break;
        }
        lanes_store(dst + j, round_bf16 ? lanes_round_bf16(value) : value);
    }
}

static inline __attribute__((always_inline)) void fetch_panel_f32(const qr_cpu_panel *p, bool round_bf16) {
    for (int64_t r = 0; r < p->n_rows; r++) {
        float *dst = (float *)p->dst + r * p->dst_stride;
        switch (p->layout->kind) {
        case QR_CPU_ROWS: fetch_element_row(p, p->row + r, round_bf16, dst); break;
        case QR_CPU_NF4_GROUPS: fetch_nf4_row(p, p->row + r, round_bf16, dst); break;
        case QR_CPU_NF4_FLAT: qr_cpu_nf4_flat_row_f32(p, p->row + r, round_bf16, dst); break;
        }
        for (int64_t j = p->n_k; j < p->n_k_padded; j++) { dst[j] = 0.0F; }
    }
}

static void fetch_f32(const qr_cpu_panel *p) { fetch_panel_f32(p, false); }
static void fetch_rounded_to_bf16(const qr_cpu_panel *p) { fetch_panel_f32(p, true); }
