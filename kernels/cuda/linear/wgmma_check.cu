/* A row's bits must not depend on the number of rows, nor on the kernel that computes it. linear_wgmma.cu keeps the
 * others' order of sums between its products; what a product does inside is the tensor core's, and that wgmma adds its
 * 16 terms as mma.sync does is nowhere promised. So each device is asked, with terms whose sizes differ so much that
 * another order, another rounding or other terms would show. */
#include "kernels/cuda/linear/wgmma_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmath>

#include "kernels/cuda/linear/linear.cuh"

extern "C" {
#include "base/half.h"
#include "base/number.h"
}

/* Edges of both kernels' tiles, an odd number of chunks, and segments of one and of two. */
#ifdef QR_SIMT
enum { ROWS = 66, OUTPUTS = 24, COLS = 192 };
#else
enum { ROWS = 200, OUTPUTS = 136, COLS = 576 };
#endif
enum { HOPPER = 90, N_Y = ROWS * OUTPUTS, N_X = ROWS * COLS, WEIGHT_BYTES = OUTPUTS * COLS * 2 + 64 };

struct host_numbers {
    uint16_t x[N_X];
    unsigned char weight[WEIGHT_BYTES];
    float tile[N_Y], wgmma[N_Y], wide[N_Y];
};

struct device_numbers {
    alignas(256) uint16_t x[N_X];
    alignas(256) unsigned char weight[WEIGHT_BYTES];
    alignas(256) float y[N_Y];
}; /* then the workspace of wide tiles */

/* 32 mixed bits of an index (the finaliser of MurmurHash3). */
static uint32_t mix(uint32_t stream, int64_t i) {
    uint32_t bits = static_cast<uint32_t>(i) + stream * 0x9E3779B9U;
    bits = (bits ^ bits >> 16) * 0x85EBCA6BU;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35U;
    return bits ^ bits >> 16;
}

/* Of either sign, from 2^-8 to 2^8, zeros among them. */
static float number(uint32_t stream, int64_t i) {
    const float size = static_cast<float>(1 << i % 17) / 256.0F;
    return i % 11 == 7 ? 0.0F : (static_cast<float>(mix(stream, i) >> 8) / 0x1p23F - 1.0F) * size;
}

static void fill_16(uint16_t *dst, int64_t n, uint32_t stream, qr_dtype dtype) {
    for (int64_t i = 0; i < n; i++) {
        const float value = number(stream, i);
        dst[i] = dtype == QR_DTYPE_F16 ? qr_f32_to_f16(value) : qr_f32_to_bf16(value);
    }
}

/* Any codes, and any scales of one sign. A row of x is zeros: sums of them have a sign. */
static void fill(host_numbers *host, const qr_weight_desc &desc, qr_dtype dtype) {
    fill_16(host->x, N_X, 1, dtype);
    memset(host->x + COLS, 0, COLS * sizeof *host->x);
    if (desc.format == QR_WEIGHT_BF16 || desc.format == QR_WEIGHT_F16) {
        fill_16(reinterpret_cast<uint16_t *>(host->weight), OUTPUTS * COLS, 2, dtype);
        return;
    }
    const qr_cuda_layout layout = qr_cuda_layout_of(&desc);
    for (size_t i = 0; i < layout.scales_offset; i++) {
        host->weight[i] = static_cast<unsigned char>(mix(3, static_cast<int64_t>(i)));
    }
    for (size_t i = 0; i < (layout.total_bytes - layout.scales_offset) / sizeof(float); i++) {
        const float scale = fabsf(number(4, static_cast<int64_t>(i))) + 1.0F;
        memcpy(host->weight + layout.scales_offset + i * sizeof scale, &scale, sizeof scale);
    }
}

/* --- How far the two kernels are apart --- */

/* What of linear_tile.cu's results a kernel's are apart from: what the largest difference was, relative to the largest
 * sum of its tile, and where. */
struct wgmma_difference {
    double relative;
    bool same; /* bit by bit */
    int row, output;
    const char *format;
};

enum { TILE = 64 };

static void compare_tile(const float *tile, const float *wgmma, int row, int output, const char *format,
                         wgmma_difference *worst) {
    const int last_row = row + TILE < ROWS ? row + TILE : ROWS,
              last = output + TILE < OUTPUTS ? output + TILE : OUTPUTS;
    double largest = 0.0, difference = 0.0;
    for (int r = row; r < last_row; r++) {
        for (int o = output; o < last; o++) {
            const double a = tile[r * OUTPUTS + o], b = wgmma[r * OUTPUTS + o];
            if (!std::isfinite(b)) { difference = HUGE_VAL; }
            if (fabs(a) > largest) { largest = fabs(a); }
            if (fabs(a - b) > difference) { difference = fabs(a - b); }
        }
    }
    const double relative = difference > 0.0 ? difference / largest : 0.0;
    if (relative > worst->relative) {
        worst->relative = relative;
        worst->row = row, worst->output = output, worst->format = format;
    }
}

static void compare_results(const float *tile, const float *wgmma, const char *format, wgmma_difference *worst) {
    worst->same = worst->same && memcmp(tile, wgmma, N_Y * sizeof *tile) == 0;
    for (int row = 0; row < ROWS; row += TILE) {
        for (int output = 0; output < OUTPUTS; output += TILE) {
            compare_tile(tile, wgmma, row, output, format, worst);
        }
    }
}

/* Both kernels of wgmma. */
struct wgmma_differences {
    wgmma_difference narrow, wide;
    const char *format, *kernel; /* that run */
};

/* The same product by all three kernels. */
static qrun_status compare(qr_cuda_backend &cuda, host_numbers *host, device_numbers *device, const char *name,
                           qr_weight_format format, qr_dtype dtype, wgmma_differences *worst, qr_error *err) {
    qr_weight weight = {};
    weight.desc.format = format, weight.desc.rows = OUTPUTS, weight.desc.cols = COLS;
    weight.desc.block = format == QR_WEIGHT_NF4 ? QR_NF4_BLOCK : 0;
    weight.data = device->weight;
    worst->format = name, worst->kernel = "mma.sync";
    fill(host, weight.desc, dtype);
    qr_linear_args args = {};
    args.weight = &weight, args.x = device->x, args.x_dtype = dtype, args.y = device->y;
    args.n_rows = ROWS, args.x_stride = COLS, args.y_stride = OUTPUTS;
    QR_RETURN_IF_ERROR(qr_device_copy_in(cuda.device, device->x, host->x, sizeof host->x, err));
    QR_RETURN_IF_ERROR(qr_device_copy_in(cuda.device, device->weight, host->weight, sizeof host->weight, err));
    QR_RETURN_IF_ERROR(qr_cuda_linear_tile(cuda, args, err));
    QR_RETURN_IF_ERROR(qr_device_copy_out(cuda.device, host->tile, device->y, sizeof host->tile, err));
    QR_RETURN_IF_ERROR(qr_device_zero(cuda.device, device->y, sizeof device->y, err));
    worst->kernel = "narrow tiles";
    QR_RETURN_IF_ERROR(qr_cuda_linear_wgmma(cuda, args, err));
    QR_RETURN_IF_ERROR(qr_device_copy_out(cuda.device, host->wgmma, device->y, sizeof host->wgmma, err));
    QR_RETURN_IF_ERROR(qr_device_zero(cuda.device, device->y, sizeof device->y, err));
    worst->kernel = "wide tiles";
    QR_RETURN_IF_ERROR(qr_cuda_linear_wgmma_wide(cuda, args, device + 1, err));
    QR_RETURN_IF_ERROR(qr_device_copy_out(cuda.device, host->wide, device->y, sizeof host->wide, err));
    compare_results(host->tile, host->wgmma, name, &worst->narrow);
    compare_results(host->tile, host->wide, name, &worst->wide);
    return QRUN_OK;
}

/* Of every format: it follows from the sizes. */
static size_t workspace_bytes(const qr_cuda_backend &cuda) {
    qr_weight weight = {};
    weight.desc.rows = OUTPUTS, weight.desc.cols = COLS;
    qr_linear_args args = {};
    args.weight = &weight, args.n_rows = ROWS;
    return qr_cuda_linear_wgmma_wide_bytes(cuda, args);
}

static qrun_status compare_all(qr_cuda_backend &cuda, wgmma_differences *worst, qr_error *err) {
    host_numbers *host = static_cast<host_numbers *>(qr_alloc_zeroed(sizeof *host));
    if (host == NULL) { return qr_fail_memory(err, "checking the device", sizeof *host); }
    void *memory = NULL;
    device_numbers *device = NULL;
    *worst = {{0.0, true, 0, 0, ""}, {0.0, true, 0, 0, ""}, "", ""};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_memory_create(cuda.device, QR_MEMORY_DEVICE, sizeof(device_numbers) + workspace_bytes(cuda),
                                   &memory, err));
    device = static_cast<device_numbers *>(memory);
    QR_TRY(compare(cuda, host, device, "NF4", QR_WEIGHT_NF4, QR_DTYPE_BF16, worst, err));
    QR_TRY(compare(cuda, host, device, "INT8", QR_WEIGHT_INT8, QR_DTYPE_F16, worst, err));
    QR_TRY(compare(cuda, host, device, "BF16", QR_WEIGHT_BF16, QR_DTYPE_BF16, worst, err));
    QR_TRY(compare(cuda, host, device, "F16", QR_WEIGHT_F16, QR_DTYPE_F16, worst, err));
out:
    qr_device_memory_destroy(cuda.device, QR_MEMORY_DEVICE, memory);
    qr_free(host);
    return status;
}

/* Whether the variants are wanted at all. */
static qrun_status read_forced(const qr_device *device, bool *variants, qr_error *err) {
    const char *forced = getenv("QRUN_FORCE_ISA");
    char own[16];
    snprintf(own, sizeof own, "sm_%d", qr_device_capability(device));
    *variants = true;
    if (forced == NULL || strncmp(forced, "sm_", 3) != 0 || strcmp(forced, own) == 0) { return QRUN_OK; }
    *variants = false;
    if (strcmp(forced, "sm_80") == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "cuda: instruction set \"%s\" (QRUN_FORCE_ISA) is not available here; this GPU has: %s, sm_80",
                   forced, own);
}

/* isa says that it is not used, and the note in a few words why. */
template <typename... A> static void leave_out(qr_cuda_backend *cuda, const char *why, A... args) {
    snprintf(cuda->wgmma_note, sizeof cuda->wgmma_note, why, args...);
    snprintf(cuda->isa, sizeof cuda->isa, "%s without wgmma", qr_device_isa(cuda->device));
}

/* Why a kernel that has such differences is not used. */
static void say_why(const wgmma_difference &worst, char *text, size_t n_bytes) {
    if (worst.relative <= QR_WGMMA_ROUNDING) {
        qr_format(text, n_bytes, "off: it rounds otherwise, by %.1e of a sum at most", worst.relative);
    } else {
        qr_format(text, n_bytes, "off: FAULT: %s, rows from %d, outputs from %d: differs by %.1e of the largest sum",
                  worst.format, worst.row, worst.output, worst.relative);
    }
}

/* Wide tiles alone may be left out. */
static void judge(qr_cuda_backend *cuda, const wgmma_differences &worst) {
    char why[160] = "";
    cuda->has_wgmma = worst.narrow.same;
    cuda->has_wgmma_wide = cuda->has_wgmma && worst.wide.same;
    if (!cuda->has_wgmma || !cuda->has_wgmma_wide) {
        say_why(cuda->has_wgmma ? worst.wide : worst.narrow, why, sizeof why);
    }
    if (!cuda->has_wgmma) {
        leave_out(cuda, "%s", why);
    } else {
        snprintf(cuda->wgmma_note, sizeof cuda->wgmma_note, cuda->has_wgmma_wide ? "on" : "on, its wide tiles %s", why);
    }
}

qrun_status qr_cuda_choose_wgmma(qr_cuda_backend *cuda, const char *fault, qr_error *err) {
    bool variants = false;
    wgmma_differences worst;
    cuda->has_wgmma = cuda->has_wgmma_wide = false;
    snprintf(cuda->isa, sizeof cuda->isa, "%s", qr_device_isa(cuda->device));
    QR_RETURN_IF_ERROR(read_forced(cuda->device, &variants, err));
    if (qr_device_capability(cuda->device) != HOPPER) {
        snprintf(cuda->wgmma_note, sizeof cuda->wgmma_note, "none");
    } else if (!variants) {
        snprintf(cuda->wgmma_note, sizeof cuda->wgmma_note, "off: QRUN_FORCE_ISA");
        snprintf(cuda->isa, sizeof cuda->isa, "%s as sm_80", qr_device_isa(cuda->device));
    } else if (!qr_device_switches_of(cuda->device).wgmma) {
        leave_out(cuda, "off: QRUN_CUDA_WGMMA");
    } else if (fault[0] != '\0') {
        leave_out(cuda, "off: FAULT: %s", fault);
    } else {
        qr_error reason = {};
        const qrun_status status = compare_all(*cuda, &worst, &reason);
        if (status != QRUN_OK && status != QRUN_ERROR_MEMORY) {
            return qr_fail(err, status, "%s, %s: %s", worst.format, worst.kernel, reason.message);
        }
        if (status == QRUN_OK) { judge(cuda, worst); }
        if (status == QRUN_ERROR_MEMORY) { leave_out(cuda, "off: no memory for its check"); }
    }
    return QRUN_OK;
}
