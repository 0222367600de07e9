/* Which instruction sets this machine has, found out once, and the choice among them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/sizes.h"
#include "kernels/cpu/attention/attention_packed.h"
#include "kernels/cpu/attention/attention_tiling.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/lora.h"
#include "kernels/cpu/vector_ops.h"

#if defined(__x86_64__) && !defined(QRUN_SCALAR)
#define QR_CPU_X86 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define QR_CPU_X86 0
#endif

#if defined(__aarch64__) && !defined(QRUN_SCALAR)
#define QR_CPU_ARM 1
#include <sys/auxv.h>
#else
#define QR_CPU_ARM 0
#endif

#define KERNELS_OF(ops, bf16, f32, backward)                                        \
    .vector_ops = &qr_cpu_vector_ops_##ops, .matmul_bf16 = &qr_cpu_matmul_##bf16,   \
    .matmul_f16 = &qr_cpu_matmul_f16_##f32, .matmul_f32 = &qr_cpu_matmul_f32_##f32, \
    .backward_bf16 = &qr_cpu_matmul_##backward
#define KERNELS(ops, bf16, f32, backward) \
    { KERNELS_OF(ops, bf16, f32, backward) }
/* On matrix tiles all that has BF16 operands, or may have. */
#define TILES(isa)                                                                                         \
    {                                                                                                      \
        .backward_parts = &qr_cpu_matmul_bf16_##isa, .packed_tiles = &qr_cpu_packed_tiles_##isa,           \
        .attention_on_tiles = &qr_cpu_attention_##isa, KERNELS_OF(avx512, bf16_##isa, avx512, bf16_##isa), \
    }
#define AVX512_BF16                                                                              \
    {                                                                                            \
        .lora_pairs = &qr_cpu_lora_pairs_bf16, .packed_tiles = &qr_cpu_packed_tiles_avx512_bf16, \
        KERNELS_OF(avx512, bf16_avx512_bf16, avx512, bf16_avx512_bf16),                          \
    }
#define AVX2 \
    { .matmul_int16 = &qr_cpu_matmul_int16_avx2, KERNELS_OF(avx2, bf16_chains_avx2, avx2, bf16_avx2), }
/* The gradients of the portable kernels are chains of F32 in order, which no instruction set has to imitate. */
#define PORTABLE(isa) KERNELS(isa, tile_order_##isa, isa, bf16_##isa)

/* Best first. */
static const qr_cpu_isa isas[] = {
#if QR_CPU_X86
    {"amx-bf16", QR_CPU_AMX_BF16, TILES(amx), KERNELS(avx512, bf16_amx, avx512, bf16_avx512), false},
    {"avx512-bf16", QR_CPU_AVX512_BF16, AVX512_BF16, PORTABLE(avx512), false},
    {"avx512", QR_CPU_AVX512, KERNELS(avx512, bf16_avx512, avx512, bf16_avx512), PORTABLE(avx512), false},
    {"avx2", QR_CPU_AVX2, AVX2, PORTABLE(wide_avx2), false},
    /* The AMX kernels on emulated tiles, so that machines without AMX test their logic. */
    {"amx-bf16-emulated", QR_CPU_AVX512_VBMI, TILES(amx_emulated),
     KERNELS(avx512, bf16_amx_emulated, avx512, bf16_avx512), true},
#endif
#if QR_CPU_ARM
    {"neon-bf16", QR_CPU_NEON_BF16, KERNELS(neon, bf16_neon_bf16, neon, bf16_neon_bf16), PORTABLE(wide_c), false},
    {"neon", QR_CPU_NEON, KERNELS(neon, bf16_neon, neon, bf16_neon), PORTABLE(wide_c), false},
#endif
    {"c", QR_CPU_C, KERNELS(c, bf16_c, c, bf16_c), PORTABLE(wide_c), false},
};

static pthread_once_t detect_once = PTHREAD_ONCE_INIT;
static qr_cpu_level detected_level;
static const char *available_names[QR_COUNT_OF(isas) + 1];

#if QR_CPU_X86

static bool has_bits(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

/* The CPU state that the operating system saves (XCR0): bits 1-2 AVX, 5-7 AVX-512, 17-18 AMX. */
static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux gives the tile state to a process that asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). */
static bool tiles_permitted(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static qr_cpu_level detect_level(void) {
    enum { STATE_AVX = 0x6, STATE_AVX512 = 0xE6, STATE_AMX = 0x60000 };
    uint32_t a, b, c, d, a1 = 0, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d)) { return QR_CPU_C; }
    const bool fma_f16c = has_bits(c, bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE);
    if (!fma_f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) { return QR_CPU_C; }
    if (a >= 1) { __get_cpuid_count(7, 1, &a1, &unused, &unused, &unused); }
    const uint64_t state = enabled_state();
    if ((state & STATE_AVX) != STATE_AVX || !has_bits(b, bit_AVX2)) { return QR_CPU_C; }
    if ((state & STATE_AVX512) != STATE_AVX512) { return QR_CPU_AVX2; }
    if (!has_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL)) { return QR_CPU_AVX2; }
    if (!has_bits(a1, bit_AVX512BF16)) { return QR_CPU_AVX512; }
    if (!has_bits(c, bit_AVX512VBMI)) { return QR_CPU_AVX512_BF16; }
    const uint32_t amx = 1U << 22 | 1U << 24; /* AMX-BF16, AMX-TILE */
    if ((state & STATE_AMX) != STATE_AMX || !has_bits(d, amx) || !tiles_permitted()) { return QR_CPU_AVX512_VBMI; }
    return QR_CPU_AMX_BF16;
}

#elif QR_CPU_ARM

static qr_cpu_level detect_level(void) {
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMD) == 0) { return QR_CPU_C; }
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 ? QR_CPU_NEON_BF16 : QR_CPU_NEON;
}

#else

static qr_cpu_level detect_level(void) { return QR_CPU_C; }

#endif

static void detect(void) {
    detected_level = detect_level();
    size_t n = 0;
    for (size_t i = 0; i < QR_COUNT_OF(isas); i++) {
        if (isas[i].level <= detected_level && !isas[i].test_only) { available_names[n++] = isas[i].name; }
    }
}

const char *const *qr_backend_cpu_isas(void) {
    pthread_once(&detect_once, detect);
    return available_names;
}

static qrun_status refuse(const char *name, qr_error *err) {
    qr_buffer list = {0};
    for (const char *const *available = available_names; *available != NULL; available++) {
        qr_buffer_append_format(&list, "%s%s", list.size > 0 ? ", " : "", *available);
    }
    const qrun_status status = qr_fail(err, QRUN_ERROR_ARGUMENT,
                                       "instruction set \"%s\" is not available here; this build on "
                                       "this CPU has: %s",
                                       name, qr_buffer_ok(&list) ? list.data : "c");
    qr_buffer_free(&list);
    return status;
}

qrun_status qr_cpu_isa_choose(const char *name, const qr_cpu_isa **isa, qr_error *err) {
    pthread_once(&detect_once, detect);
    if (name == NULL) {
        name = getenv("QRUN_FORCE_ISA");
        if (name != NULL && strncmp(name, "sm_", 3) == 0) { name = NULL; } /* a GPU's */
    }
    if (name == NULL || name[0] == '\0') { name = available_names[0]; }
    for (size_t i = 0; i < QR_COUNT_OF(isas); i++) {
        if (strcmp(isas[i].name, name) == 0 && isas[i].level <= detected_level) {
            *isa = &isas[i];
            return QRUN_OK;
        }
    }
    return refuse(name, err);
}
