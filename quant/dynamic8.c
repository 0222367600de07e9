#include "quant/dynamic8.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { MAP_SIZE = 256, EXPONENTS = 7, MAX_EDGES = (1 << EXPONENTS) + 1 };

static pthread_once_t built = PTHREAD_ONCE_INIT;
static float signed_map[MAP_SIZE];
static float unsigned_map[MAP_SIZE];
static float signed_bounds[MAP_SIZE];
static float unsigned_bounds[MAP_SIZE];
static uint8_t signed_cells[2 * QR_DYNAMIC8_CELLS];
static uint8_t unsigned_cells[2 * QR_DYNAMIC8_CELLS];

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* linspace(0.1, 1, n) in F32, from both ends towards the middle with fused multiply-adds: the bits that PyTorch's CPU
 * build for AVX2 gives, and therefore those in the files people have. */
static void spaced_edges(float *edges, int n) {
    const float first = 0.1F, last = 1.0F;
    const float step = (last - first) / (float)(n - 1);
    for (int k = 0; k < n; k++) {
        edges[k] = k < n / 2 ? fmaf(step, (float)k, first) : fmaf(-step, (float)(n - 1 - k), last);
    }
}

static void build_map(float *map, bool is_signed) {
    static const float powers[EXPONENTS] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1e0F};
    float edges[MAX_EDGES];
    int n = 0;
    for (int i = 0; i < EXPONENTS; i++) {
        const int n_edges = (1 << (is_signed ? i : i + 1)) + 1;
        spaced_edges(edges, n_edges);
        for (int k = 0; k + 1 < n_edges; k++) {
            const float value = powers[i] * ((edges[k] + edges[k + 1]) / 2.0F);
            map[n++] = value;
            if (is_signed) { map[n++] = -value; }
        }
    }
    map[n++] = 0.0F;
    map[n++] = 1.0F;
    qsort(map, (size_t)n, sizeof *map, compare_floats);
}

/* bitsandbytes walks the map in halving steps from 127 to an even code. It then takes the neighbour on the side of x if
 * x lies beyond the midpoint of the two, so x on the midpoint itself gets the even code. With that written into the
 * bounds, encoding is a search of comparisons that choose values, not paths: they are as good as random, and a
 * mispredicted path costs more than the search (37 ns before, 8 after, Zen 5). A NaN fails every comparison and gets
 * code 0. */
static void build_bounds(const float *map, float *bounds) {
    for (int c = 0; c + 1 < MAP_SIZE; c++) {
        const float midpoint = (map[c] + map[c + 1]) * 0.5F;
        bounds[c] = c % 2 == 0 ? midpoint : nextafterf(midpoint, -INFINITY);
    }
    bounds[MAP_SIZE - 1] = INFINITY;
}

static uint8_t search(float x, const float *bounds) {
    int code = 0;
    for (int step = MAP_SIZE / 2; step > 0; step /= 2) { code += x > bounds[code + step - 1] ? step : 0; }
    return (uint8_t)code;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A cell has the code of its least number: that nearest to 0, and of negative numbers that farthest from it. */
static void build_cells(const float *bounds, uint8_t *cells) {
    const uint32_t first = (uint32_t)QR_DYNAMIC8_FIRST_CELL << 16, step = (uint32_t)1 << 16, sign = (uint32_t)1 << 31;
    for (uint32_t c = 0; c < QR_DYNAMIC8_CELLS; c++) {
        const uint32_t end = first + c * step; /* where its magnitudes end */
        const uint32_t begin = c == 0 ? 0 : end - step;
        cells[c] = search(float_of(begin), bounds);
        cells[QR_DYNAMIC8_CELLS + c] =
            search(c + 1 == QR_DYNAMIC8_CELLS ? -INFINITY : float_of(sign | (end - 1)), bounds);
    }
}

static void build_maps(void) {
    build_map(signed_map, true);
    build_map(unsigned_map, false);
    build_bounds(signed_map, signed_bounds);
    build_bounds(unsigned_map, unsigned_bounds);
    build_cells(signed_bounds, signed_cells);
    build_cells(unsigned_bounds, unsigned_cells);
}

const float *qr_dynamic8_map(bool is_signed) {
    (void)pthread_once(&built, build_maps);
    return is_signed ? signed_map : unsigned_map;
}

const float *qr_dynamic8_bounds(bool is_signed) {
    (void)pthread_once(&built, build_maps);
    return is_signed ? signed_bounds : unsigned_bounds;
}

const uint8_t *qr_dynamic8_cells(bool is_signed) {
    (void)pthread_once(&built, build_maps);
    return is_signed ? signed_cells : unsigned_cells;
}

uint8_t qr_dynamic8_encode(float x, bool is_signed) { return search(x, qr_dynamic8_bounds(is_signed)); }
