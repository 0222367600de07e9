/* The CPU backend: the vtable, and memory from mmap with huge pages asked for (a decode step streams the whole model:
 * 4 KiB pages would cost a TLB miss every 64 lines). */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/cpu/backend/limits.h"
#include "kernels/cpu/cpu.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

static qr_cpu_backend *own(qr_backend *backend) { return (qr_cpu_backend *)backend; }

static void backend_destroy(qr_backend *backend) { qr_free(backend); }

static void count_held(qr_cpu_backend *cpu, size_t n_bytes) {
    const size_t now = atomic_fetch_add(&cpu->held_bytes, n_bytes) + n_bytes;
    size_t peak = atomic_load(&cpu->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&cpu->peak_bytes, &peak, now)) {}
}

/* Whole pages, of whatever size up to 64 KiB; untouched ones cost nothing. */
static bool page_round(size_t n_bytes, size_t *rounded) {
    return qr_size_align(n_bytes > 0 ? n_bytes : 1, 65536, rounded);
}

/* Maps a huge page more than is needed and gives back the ends, so that huge pages fit from the first byte on. */
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
    count_held(own(backend), n_bytes);
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    (void)kind;
    if (memory == NULL) { return; }
    qr_cpu_unmap(memory, n_bytes);
    atomic_fetch_sub(&own(backend)->held_bytes, n_bytes);
}

static void memory_held(const qr_backend *backend, size_t *now, size_t *peak) {
    *now = atomic_load(&qr_cpu(backend)->held_bytes);
    *peak = atomic_load(&qr_cpu(backend)->peak_bytes);
}

static qrun_status copy(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memcpy(dst, src, n_bytes); }
    return QRUN_OK;
}

/* There is nothing that a copy could run beside. */
static qrun_status transfer(qr_backend *backend, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    *ticket = 0;
    return copy(backend, dst, src, n_bytes, err);
}

static qrun_status transfer_wait(qr_backend *backend, uint64_t ticket, qr_error *err) {
    (void)backend, (void)ticket, (void)err;
    return QRUN_OK;
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memset(device, 0, n_bytes); }
    return QRUN_OK;
}

static qrun_status sync(qr_backend *backend, qr_error *err) {
    (void)backend, (void)err;
    return QRUN_OK;
}

static const qr_op_impl *const implementations[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = &qr_cpu_op_##name,
    QR_OPS(QR_X)
#undef QR_X
};

qrun_status qr_backend_cpu_create(const char *isa, qr_threads *threads, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    const qr_cpu_isa *chosen;
    QR_RETURN_IF_ERROR(qr_cpu_isa_choose(isa, &chosen, err));
    qr_cpu_backend *cpu = qr_alloc_zeroed(sizeof *cpu);
    if (cpu == NULL) { return qr_fail_memory(err, "the cpu backend", sizeof *cpu); }
    cpu->isa = chosen;
    cpu->base = (qr_backend){
        .version = QR_BACKEND_VERSION,
        .name = "cpu",
        .isa = chosen->name,
        .threads = threads,
        .destroy = backend_destroy,
        .memory_create = memory_create,
        .memory_destroy = memory_destroy,
        .memory_held = memory_held,
        .copy_in = copy,
        .copy_in_async = copy,
        .copy_out = copy,
        .copy_within = copy,
        .fill_zero = fill_zero,
        .sync = sync,
        .transfer_in = transfer,
        .transfer_out = transfer,
        .transfer_wait = transfer_wait,
        .weight_bytes = qr_cpu_weight_bytes,
        .weight_put_rows = qr_cpu_weight_put_rows,
        .weight_put_scales = qr_cpu_weight_put_scales,
        .weight_get_rows = qr_cpu_weight_get_rows,
        .weight_get_scales = qr_cpu_weight_get_scales,
        .measure_limits = qr_cpu_measure_limits,
    };
    for (int op = 0; op < QR_OP_COUNT; op++) { cpu->base.ops[op] = *implementations[op]; }
    *backend = &cpu->base;
    return QRUN_OK;
}
