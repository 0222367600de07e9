/* The number formats against the definitions of bitsandbytes: tables, ties, blocks that straddle rows, extremes. */
#include "check.h"

#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "quant/dynamic8.h"
#include "quant/format.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { SEED = 20240131 };

static float random_weight(uint64_t stream, int64_t index) {
    return (float)(0.02 * qr_random_normal(SEED, stream, (uint64_t)index));
}

static void fill_random(float *dst, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) { dst[i] = random_weight(stream, i); }
}

static uint8_t code_at(const uint8_t *codes, int64_t index) {
    return index % 2 == 0 ? codes[index / 2] >> 4 : codes[index / 2] & 0xFU;
}

static bool same_bits(const void *a, const void *b, size_t n_bytes) { return memcmp(a, b, n_bytes) == 0; }

/* As they stand in the machine code of bitsandbytes' CUDA library. */
static const uint32_t midpoint_bits[15] = {
    0xBF591CD9, 0xBF1C5270, 0xBEEB8480, 0xBEADEA76, 0xBE703CEC, 0xBE0D38BC, 0xBD3A7871, 0x3D22FAFF,
    0x3DF64863, 0x3E5067E0, 0x3E9582D4, 0x3EC753F9, 0x3F006D03, 0x3F248DAF, 0x3F5C89D9,
};

static void test_nf4_tables(void) {
    CHECK(qr_nf4_code[0] == -1.0F && qr_nf4_code[7] == 0.0F && qr_nf4_code[15] == 1.0F);
    for (int i = 0; i < 15; i++) {
        const float half = (qr_nf4_code[i] + qr_nf4_code[i + 1]) * 0.5F;
        CHECK(qr_nf4_code[i] < qr_nf4_midpoints[i] && qr_nf4_midpoints[i] < qr_nf4_code[i + 1]);
        CHECK_INT(qr_f32_bits(qr_nf4_midpoints[i]), midpoint_bits[i]);
        CHECK_MSG(fabsf(qr_nf4_midpoints[i] - half) <= 0x1p-24F, "midpoint %d is %.9g, not about %.9g", i,
                  (double)qr_nf4_midpoints[i], (double)half);
    }
}

static void test_nf4_encode_ties_go_down(void) {
    for (int i = 0; i < 16; i++) { CHECK_INT(qr_nf4_encode(qr_nf4_code[i]), i); }
    for (int i = 0; i < 15; i++) {
        CHECK_INT(qr_nf4_encode(qr_nf4_midpoints[i]), i);
        CHECK_INT(qr_nf4_encode(nextafterf(qr_nf4_midpoints[i], 2.0F)), i + 1);
        CHECK_INT(qr_nf4_encode(nextafterf(qr_nf4_midpoints[i], -2.0F)), i);
    }
    CHECK_INT(qr_nf4_encode(INFINITY), 15);
    CHECK_INT(qr_nf4_encode(-INFINITY), 0);
    CHECK_INT(qr_nf4_encode(NAN), 0);
    CHECK_INT(qr_nf4_encode(-0.0F), 7);
}

/* A block by hand: absmax 2, so x is the weight halved. */
static void test_nf4_quantize_by_hand(void) {
    const float src[5] = {2.0F, -2.0F, 0.0F, 1.0F, -0.5F};
    uint8_t codes[3];
    float absmax[1], back[5];
    qr_nf4_quantize(src, 5, 64, codes, absmax);
    CHECK(absmax[0] == 2.0F);
    CHECK_INT(codes[0], 0xF0);
    CHECK_INT(codes[1], 0x7C); /* 0.5 lies just under the midpoint of codes 12 and 13 */
    CHECK_INT(codes[2], 0x47); /* -0.25 lies between the midpoints of code 4; the spare nibble is that of zero */
    qr_nf4_dequantize(codes, absmax, 64, 0, 5, back);
    for (int i = 0; i < 5; i++) { CHECK(back[i] == qr_nf4_code[code_at(codes, i)] * 2.0F); }
}

/* Every code is the nearest one by the midpoints of x · (1 / absmax), whatever the block size and count. */
static void test_nf4_block_sizes_and_odd_counts(void) {
    enum { MAX = 9000 };
    static float src[MAX], back[MAX], absmax[MAX];
    static uint8_t codes[MAX];
    const int blocks[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
    const int64_t counts[] = {1, 2, 31, 63, 64, 65, 4095, 4097, 8999};
    fill_random(src, MAX, 1);
    for (size_t b = 0; b < QR_COUNT_OF(blocks); b++) {
        for (size_t c = 0; c < QR_COUNT_OF(counts); c++) {
            const int64_t n = counts[c];
            memset(codes, 0xEE, sizeof codes);
            qr_nf4_quantize(src, n, blocks[b], codes, absmax);
            for (int64_t i = 0; i < n; i++) {
                float largest = 0.0F;
                const int64_t first = i / blocks[b] * blocks[b];
                for (int64_t j = first; j < qr_min(first + blocks[b], n); j++) {
                    largest = fmaxf(largest, fabsf(src[j]));
                }
                REQUIRE(absmax[i / blocks[b]] == largest);
                REQUIRE(code_at(codes, i) == qr_nf4_encode(src[i] * (1.0F / largest)));
            }
            CHECK(n % 2 == 0 || (codes[n / 2] & 0xFU) == 7);
            CHECK_INT(codes[(n + 1) / 2], 0xEE);
            qr_nf4_dequantize(codes, absmax, blocks[b], n / 3, n - n / 3, back);
            for (int64_t i = n / 3; i < n; i++) {
                const float expected = qr_nf4_code[code_at(codes, i)] * absmax[i / blocks[b]];
                REQUIRE(back[i - n / 3] == expected);
            }
        }
    }
}

static void test_nf4_zero_block_is_zero(void) {
    const float zeros[70] = {0};
    uint8_t codes[35];
    float absmax[2], back[70];
    qr_nf4_quantize(zeros, 70, 64, codes, absmax);
    for (size_t i = 0; i < sizeof codes; i++) { CHECK_INT(codes[i], 0x77); }
    qr_nf4_dequantize(codes, absmax, 64, 0, 70, back);
    for (int i = 0; i < 70; i++) { CHECK(back[i] == 0.0F); }
}

static void test_nf4_extremes(void) {
    const float values[8] = {INFINITY, -INFINITY, NAN, 1e-45F, -1e-45F, 3.4e38F, 0.0F, -0.0F};
    uint8_t codes[4];
    float absmax[1], back[8];
    qr_nf4_quantize(values, 8, 32, codes, absmax);
    CHECK(isinf(absmax[0]));
    qr_nf4_dequantize(codes, absmax, 32, 0, 8, back);
    /* A denormal absmax has an infinite inverse: the signs of the others survive, the zero among them does not. */
    const float tiny[4] = {1e-45F, -1e-45F, 0.0F, 2e-45F};
    qr_nf4_quantize(tiny, 4, 32, codes, absmax);
    CHECK_INT(codes[0], 0xF0);
    CHECK_INT(codes[1], 0x0F);
    const float nans[2] = {NAN, NAN};
    qr_nf4_quantize(nans, 2, 32, codes, absmax);
    CHECK(absmax[0] == 0.0F);
}

static bool cell_is_right(float x, bool is_signed) {
    const float *bounds = qr_dynamic8_bounds(is_signed);
    const int c = qr_dynamic8_cells(is_signed)[qr_dynamic8_cell(x)];
    return isnan(x) || c + (x > bounds[c]) == qr_dynamic8_encode(x, is_signed);
}

/* From its cell on, one comparison finds the code that the search finds: in every cell, at its ends, and next to every
 * bound. */
static void check_cells(bool is_signed) {
    static const uint32_t in_cell[] = {0, 1, 0x2AAA, 0x5555, 0x8000, 0xAAAA, 0xFFFE, 0xFFFF};
    const float *bounds = qr_dynamic8_bounds(is_signed);
    int64_t n_wrong = 0;
    for (uint32_t high = 0; high <= 0xFFFF; high++) {
        for (size_t i = 0; i < QR_COUNT_OF(in_cell); i++) {
            const uint32_t bits = high << 16 | in_cell[i];
            float x;
            memcpy(&x, &bits, sizeof x);
            n_wrong += !cell_is_right(x, is_signed);
        }
    }
    for (int b = 0; b < 255; b++) {
        n_wrong += !cell_is_right(bounds[b], is_signed);
        n_wrong += !cell_is_right(nextafterf(bounds[b], 2.0F), is_signed);
        n_wrong += !cell_is_right(nextafterf(bounds[b], -2.0F), is_signed);
    }
    CHECK_INT(n_wrong, 0);
}

static void test_dynamic_maps(void) {
    /* FNV-1a of the 256 floats that bitsandbytes 0.50 builds on an x86-64 with AVX2. */
    CHECK(qr_hash_bytes(QR_HASH_START, qr_dynamic8_map(true), 1024) == UINT64_C(0xD677F22A96665BC4));
    CHECK(qr_hash_bytes(QR_HASH_START, qr_dynamic8_map(false), 1024) == UINT64_C(0x43811B16730A873E));
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const float *map = qr_dynamic8_map(is_signed);
        for (int i = 1; i < 256; i++) { CHECK(map[i - 1] < map[i]); }
        CHECK(map[255] == 1.0F);
    }
    const float *map = qr_dynamic8_map(true);
    CHECK(map[127] == 0.0F);
    CHECK(map[0] == -0.99296874F);
    for (int i = 0; i < 127; i++) { CHECK(map[i] == -map[254 - i]); }
    CHECK(qr_dynamic8_map(false)[0] == 0.0F);
}

static void test_dynamic_encode_takes_the_nearest(void) {
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const float *map = qr_dynamic8_map(is_signed);
        for (int i = 0; i < 256; i++) { CHECK_INT(qr_dynamic8_encode(map[i], is_signed), i); }
        for (int i = 0; i < 255; i++) {
            const float midpoint = (map[i] + map[i + 1]) * 0.5F;
            CHECK_INT(qr_dynamic8_encode(nextafterf(midpoint, 2.0F), is_signed), i + 1);
            CHECK_INT(qr_dynamic8_encode(nextafterf(midpoint, -2.0F), is_signed), i);
            const int tie = qr_dynamic8_encode(midpoint, is_signed);
            CHECK(tie == i || tie == i + 1);
        }
        CHECK_INT(qr_dynamic8_encode(7.0F, is_signed), 255);
        CHECK_INT(qr_dynamic8_encode(-7.0F, is_signed), 0);
        CHECK_INT(qr_dynamic8_encode(NAN, is_signed), 0);
        check_cells(is_signed);
    }
    CHECK_INT(qr_dynamic8_encode(-1.0F, true), 0);
    CHECK_INT(qr_dynamic8_encode(0.0F, true), 127);
}

static void test_nest_and_unnest(void) {
    enum { MAX = 1000 };
    float absmax[MAX], nested[4], back[MAX], part[MAX];
    uint8_t codes[MAX];
    const float *map = qr_dynamic8_map(true);
    const int64_t counts[] = {1, 2, 255, 256, 257, 1000};
    for (int64_t i = 0; i < MAX; i++) { absmax[i] = fabsf(random_weight(2, i)) + 0.03F; }
    for (size_t c = 0; c < QR_COUNT_OF(counts); c++) {
        const int64_t n = counts[c];
        const float offset = qr_nf4_nested_offset(absmax, n);
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++) { sum += (double)absmax[i]; }
        CHECK(offset == (float)(sum / (double)n));
        qr_nf4_nest(absmax, n, offset, codes, nested);
        qr_nf4_unnest(codes, nested, offset, 0, n, back);
        qr_nf4_unnest(codes, nested, offset, n / 2, n - n / 2, part);
        CHECK(same_bits(part, back + n / 2, (size_t)(n - n / 2) * sizeof(float)));
        for (int64_t i = 0; i < n; i++) {
            const float scale = nested[i / 256];
            CHECK(back[i] == map[codes[i]] * scale + offset);
            /* Codes are at most 0.0141 apart (between 0.1 and 1), so half of that times the scale, and rounding. */
            CHECK(fabsf(back[i] - absmax[i]) <= 0.00705F * scale + 4e-7F * absmax[i]);
        }
    }
}

static void test_nest_equal_values_come_back_exactly(void) {
    float absmax[300], back[300], nested[2];
    uint8_t codes[300];
    for (int i = 0; i < 300; i++) { absmax[i] = 0.0625F; }
    const float offset = qr_nf4_nested_offset(absmax, 300);
    qr_nf4_nest(absmax, 300, offset, codes, nested);
    CHECK(nested[0] == 0.0F && nested[1] == 0.0F);
    CHECK_INT(codes[0], 0);
    qr_nf4_unnest(codes, nested, offset, 0, 300, back);
    CHECK(same_bits(back, absmax, sizeof back));
}

static void test_int8(void) {
    const float src[6] = {1.0F, -2.0F, 0.5F, 0.0F, 0.0078740157F, 65536.0F};
    int8_t codes[6];
    float back[6];
    CHECK(qr_int8_quantize_row(src, 5, codes) == 2.0F);
    CHECK_INT(codes[0], 64); /* 63.5 rounds to even */
    CHECK_INT(codes[1], -127);
    CHECK_INT(codes[2], 32); /* 31.75 */
    CHECK_INT(codes[3], 0);
    CHECK_INT(codes[4], 0); /* 0.0078740157 is 0.00787354 in F16, so just under one half */
    qr_int8_dequantize_row(codes, 2.0F, 5, back);
    CHECK(back[0] == 64.0F * 2.0F * (1.0F / 127.0F));
    CHECK(fabsf(back[1] + 2.0F) <= 0x1p-22F);
    /* Beyond F16 the row's absmax is infinite: nothing crashes, nothing is a number of the row. */
    CHECK(isinf(qr_int8_quantize_row(src, 6, codes)));
    CHECK_INT(codes[1], 0);
    CHECK_INT(codes[5], 0);
    const float odd[4] = {NAN, 1e-8F, -1e-8F, 0.0F}; /* 1e-8 is 0 in F16 */
    CHECK(qr_int8_quantize_row(odd, 4, codes) == 0.0F);
    for (int i = 0; i < 4; i++) { CHECK_INT(codes[i], 0); }
    const float denormal[2] = {6e-8F, -3e-6F};
    CHECK(qr_int8_quantize_row(denormal, 2, codes) == 0x1.9p-19F);
    CHECK_INT(codes[0], 3); /* 2^-24 / (50 · 2^-24) · 127 = 2.54 */
    CHECK_INT(codes[1], -127);
}

static void test_int8_rounds_to_the_nearest(void) {
    enum { N = 999 };
    float src[N], back[N];
    int8_t codes[N];
    fill_random(src, N, 3);
    const float absmax = qr_int8_quantize_row(src, N, codes);
    qr_int8_dequantize_row(codes, absmax, N, back);
    for (int i = 0; i < N; i++) {
        const float rounded = qr_f16_to_f32(qr_f32_to_f16(src[i]));
        CHECK(fabsf(back[i] - rounded) <= absmax / 127.0F * 0.50001F);
    }
}

static void test_format_sizes(void) {
    const qr_weight_desc nf4 = {.format = QR_WEIGHT_NF4_DQ, .block = 64, .rows = 65, .cols = 31};
    CHECK_INT(qr_weight_elements(&nf4), 2015);
    CHECK_INT(qr_weight_blocks(&nf4), 32);
    CHECK_INT(qr_weight_code_bytes(&nf4), 1008);
    CHECK_INT(qr_weight_row_offset(&nf4, 64), 992);
    CHECK_INT(qr_weight_row_offset(&nf4, 65), 1008);
    const qr_weight_desc mxfp4 = {.format = QR_WEIGHT_MXFP4, .rows = 3, .cols = 2880}; /* 0.53125 bytes each */
    CHECK_INT(qr_weight_blocks(&mxfp4), 270);
    CHECK_INT(qr_weight_code_bytes(&mxfp4), 4320);
    const qr_weight_desc f16 = {.format = QR_WEIGHT_F16, .rows = 3, .cols = 5};
    CHECK_INT(qr_weight_blocks(&f16), 0);
    CHECK_INT(qr_weight_code_bytes(&f16), 30);
    CHECK_INT(qr_weight_row_offset(&f16, 2), 20);
}

static void test_format_names(void) {
    for (int i = 0; i < QR_WEIGHT_FORMAT_COUNT; i++) {
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(qr_weight_format_name((qr_weight_format)i), qr_weight_format_name((qr_weight_format)j)) != 0);
        }
    }
    CHECK_STR(qr_weight_format_name(QR_WEIGHT_FORMAT_COUNT), "?");
    CHECK_STR(qr_weight_format_name(QR_WEIGHT_NF4_DQ), "nf4-dq");
    CHECK_STR(qr_weight_format_name(QR_WEIGHT_MXFP4), "mxfp4");
}

static void check_refused(qr_weight_desc desc, const char *part) {
    qr_error err = {0};
    CHECK_INT(qr_weight_desc_check(&desc, "layer 3", &err), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(err.message, "layer 3") != NULL && strstr(err.message, part) != NULL, "message is \"%s\"",
              err.message);
}

static void test_format_check(void) {
    const qr_weight_desc good = {.format = QR_WEIGHT_NF4, .block = 4096, .rows = 1, .cols = 1};
    CHECK_INT(qr_weight_desc_check(&good, "w", NULL), QRUN_OK);
    check_refused((qr_weight_desc){.format = QR_WEIGHT_NF4, .block = 48, .rows = 1, .cols = 1}, "48");
    check_refused((qr_weight_desc){.format = QR_WEIGHT_NF4, .block = 16, .rows = 1, .cols = 1}, "16");
    check_refused((qr_weight_desc){.format = QR_WEIGHT_NF4_DQ, .block = 8192, .rows = 1, .cols = 1}, "8192");
    check_refused((qr_weight_desc){.format = QR_WEIGHT_F32, .rows = 0, .cols = 1}, "[0, 1]");
    check_refused((qr_weight_desc){.format = QR_WEIGHT_F32, .rows = 1, .cols = -1}, "[1, -1]");
    check_refused((qr_weight_desc){.format = QR_WEIGHT_F32, .rows = INT64_MAX / 2, .cols = 3}, "too many");
    check_refused((qr_weight_desc){.format = (qr_weight_format)99, .rows = 1, .cols = 1}, "99");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", SEED);
    CHECK_RUN(test_nf4_tables);
    CHECK_RUN(test_nf4_encode_ties_go_down);
    CHECK_RUN(test_nf4_quantize_by_hand);
    CHECK_RUN(test_nf4_block_sizes_and_odd_counts);
    CHECK_RUN(test_nf4_zero_block_is_zero);
    CHECK_RUN(test_nf4_extremes);
    CHECK_RUN(test_dynamic_maps);
    CHECK_RUN(test_dynamic_encode_takes_the_nearest);
    CHECK_RUN(test_nest_and_unnest);
    CHECK_RUN(test_nest_equal_values_come_back_exactly);
    CHECK_RUN(test_int8);
    CHECK_RUN(test_int8_rounds_to_the_nearest);
    CHECK_RUN(test_format_sizes);
    CHECK_RUN(test_format_names);
    CHECK_RUN(test_format_check);
    return check_end();
}
