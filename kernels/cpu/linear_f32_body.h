/* linear on F32 elements for one instruction set: all of it but the table. Included after a lanes_<isa>.h. */
#include "base/sizes.h"
#include "kernels/cpu/linear.h"
#include "quant/nf4.h"

typedef float tile_element;
typedef lanes tile_vector;
#define TILE_STEP LANES
static inline lanes tile_load(const float *src) { return lanes_load(src); }
static inline lanes tile_dot(lanes acc, lanes w, lanes x) { return lanes_fma(w, x, acc); }

#include "kernels/cpu/linear_fetch_body.h"
#include "kernels/cpu/linear_tile_body.h"
#include "kernels/cpu/outer_f32_body.h"

enum { K_BLOCK = 512 };

static void combine(const float *rows, const float *factors, int64_t n, float *sums) {
    for (int64_t o = 0; o < QR_CPU_PANEL_ROWS; o += LANES) {
        lanes sum = lanes_zero();
        for (int64_t r = 0; r < n; r++) {
            sum = lanes_fma(lanes_set(factors[r]), lanes_load(rows + r * QR_CPU_PANEL_ROWS + o), sum);
        }
        lanes_store(sums + o, sum);
    }
}
