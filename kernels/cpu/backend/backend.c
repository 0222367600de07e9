/* The CPU backend: the vtable, and memory from mmap that requests huge pages. A decode step streams the whole model,
 * and 4 KiB pages would cost a TLB miss every 64 lines. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/cpu/backend/peaks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_ops.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Whole pages, of whatever size up to 64 KiB; untouched ones cost nothing. */
static bool page_round(size_t n_bytes, size_t *rounded) {
    return qr_size_align(n_bytes > 0 ? n_bytes : 1, 65536, rounded);
}

/* Maps a huge page more than is needed and unmaps the ends, so that huge pages fit from the first byte on. */
void *qr_cpu_map(size_t n_bytes) {
    size_t rounded, mapped_bytes;
    if (!page_round(n_bytes, &rounded)) { return NULL; }
    const size_t slack = rounded >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    if (!qr_size_add(rounded, slack, &mapped_bytes)) { return NULL; }
    unsigned char *mapped =
        mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) { return NULL; }
    if (slack == 0) { return mapped; }
    const size_t head = (size_t)(-(uintptr_t)mapped & (HUGE_PAGE_BYTES - 1));
    if (head > 0) { munmap(mapped, head); }
    if (slack > head) { munmap(mapped + head + rounded, slack - head); }
    madvise(mapped + head, rounded, MADV_HUGEPAGE);
    return mapped + head;
}

void qr_cpu_unmap(void *memory, size_t n_bytes) {
    size_t rounded;
    if (memory != NULL && page_round(n_bytes, &rounded)) { munmap(memory, rounded); }
}

static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    (void)kind; /* host memory is device memory here */
    *memory = qr_cpu_map(n_bytes);
    if (*memory == NULL) { return qr_fail_memory(err, "a buffer of the cpu backend", n_bytes); }
    qr_host_memory_taken(backend, n_bytes);
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    (void)kind;
    if (memory == NULL) { return; }
    qr_cpu_unmap(memory, n_bytes);
    qr_host_memory_released(backend, n_bytes);
}

static const qr_op_impl *const implementations[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = &qr_cpu_op_##name,
    QR_OPS(QR_X)
#undef QR_X
};

static qrun_status create(const char *isa, bool portable, qr_threads *threads, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    const qr_cpu_isa *chosen;
    QR_RETURN_IF_ERROR(qr_cpu_isa_choose(isa, &chosen, err));
    qr_cpu_backend *cpu = qr_alloc_zeroed(sizeof *cpu);
    if (cpu == NULL) { return qr_fail_memory(err, "the cpu backend", sizeof *cpu); }
    cpu->isa = chosen;
    cpu->kernels = portable ? &chosen->portable : &chosen->fastest;
    cpu->host.base = (qr_backend){
        .version = QR_BACKEND_VERSION,
        .name = "cpu",
        .isa = chosen->name,
        .threads = threads,
        .memory_create = memory_create,
        .memory_destroy = memory_destroy,
        .measure_peaks = qr_cpu_measure_peaks,
    };
    const bool in_blocks = cpu->kernels->vector_ops->codes_in_blocks;
    qr_host_memory_set_functions(&cpu->host, in_blocks ? &qr_cpu_weights_blocks : &qr_cpu_weights_words);
    for (int op = 0; op < QR_OP_COUNT; op++) { cpu->host.base.ops[op] = *implementations[op]; }
    *backend = &cpu->host.base;
    return QRUN_OK;
}

qrun_status qr_backend_cpu_create(const char *isa, qr_threads *threads, qr_backend **backend, qr_error *err) {
    return create(isa, false, threads, backend, err);
}

qrun_status qr_backend_cpu_create_portable(const char *isa, qr_threads *threads, qr_backend **backend, qr_error *err) {
    return create(isa, true, threads, backend, err);
}
