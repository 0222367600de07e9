#include "kernels/plan/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/host_memory.h"
#include "kernels/op_flops.h"

enum { ALIGNMENT = 64 };

/* Where memory seems to begin: no address of a process is as high. */
static const uintptr_t FIRST_ADDRESS = (uintptr_t)1 << 62;

typedef struct plan_backend {
    qr_host_backend host; /* first: a qr_backend * of this backend is a plan_backend * */
    const qr_backend *of;
    uintptr_t next_address;
    qr_planned planned;
} plan_backend;

static plan_backend *plan_of(qr_backend *backend) { return (plan_backend *)backend; }
static const qr_backend *real_of(const qr_backend *backend) { return ((const plan_backend *)backend)->of; }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    plan_backend *plan = plan_of(backend);
    (void)kind;
    *memory = NULL;
    if (n_bytes > UINTPTR_MAX - plan->next_address - ALIGNMENT) { return qr_fail_memory(err, "a plan", n_bytes); }
    *memory = (void *)plan->next_address;
    plan->next_address += (n_bytes / ALIGNMENT + 1) * ALIGNMENT;
    qr_host_memory_taken(backend, n_bytes);
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    (void)kind;
    if (memory != NULL) { qr_host_memory_released(backend, n_bytes); }
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static qrun_status copy(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    (void)backend, (void)dst, (void)src, (void)n_bytes, (void)err;
    return QRUN_OK;
}

static qrun_status copy_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err) {
    (void)backend, (void)device, (void)err;
    if (n_bytes > 0) { memset(host, 0, n_bytes); }
    return QRUN_OK;
}

static qrun_status copy_out_begin(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                  qr_error *err) {
    *ticket = 0;
    return copy_out(backend, host, device, n_bytes, err);
}

static qrun_status copy_out_end(qr_backend *backend, uint64_t ticket, qr_error *err) {
    (void)backend, (void)ticket, (void)err;
    return QRUN_OK;
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    (void)backend, (void)device, (void)n_bytes, (void)err;
    return QRUN_OK;
}

static qrun_status transfer(qr_backend *backend, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    (void)dst, (void)src, (void)err;
    plan_of(backend)->planned.copied_bytes += (int64_t)n_bytes;
    *ticket = 0;
    return QRUN_OK;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static size_t weight_bytes(const qr_backend *backend, const qr_weight_desc *desc) {
    return real_of(backend)->weight_bytes(real_of(backend), desc);
}

static qrun_status put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows, const void *codes,
                            qr_error *err) {
    qr_weight_desc rows = weight->desc;
    (void)row, (void)codes, (void)err;
    rows.rows = n_rows;
    plan_of(backend)->planned.copied_bytes += (int64_t)qr_weight_code_bytes(&rows);
    return QRUN_OK;
}

static qrun_status put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales, qr_error *err) {
    (void)backend, (void)weight, (void)scales, (void)err;
    return QRUN_OK;
}

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

/* At most: of every slot another expert. */
static int64_t fetched_bytes(const qr_expert_fetch_args *args) {
    return qr_min(qr_routing_slots(&args->routing), args->routing.n_experts) * args->n_bytes;
}

static qrun_status run(qr_backend *backend, qr_op op, const void *args, qr_error *err) {
    plan_backend *plan = plan_of(backend);
    const qr_op_impl *impl = &plan->of->ops[op];
    if (!impl->supports(plan->of, args, err)) {
        return err != NULL && err->status != QRUN_OK ? err->status : QRUN_ERROR_ARGUMENT;
    }
    const size_t n_bytes = impl->workspace_bytes(plan->of, args);
    qr_planned *planned = &plan->planned;
    planned->workspace_bytes = n_bytes > planned->workspace_bytes ? n_bytes : planned->workspace_bytes;
    planned->n_calls++;
    planned->flops += qr_op_flops(op, args);
    if (op == QR_OP_expert_fetch) { planned->copied_bytes += fetched_bytes(args); }
    return QRUN_OK;
}

#define QR_X(name)                                                                                         \
    static bool supports_##name(const qr_backend *backend, const void *args, qr_error *err) {              \
        return real_of(backend)->ops[QR_OP_##name].supports(real_of(backend), args, err);                  \
    }                                                                                                      \
    static size_t workspace_##name(const qr_backend *backend, const void *args) {                          \
        return real_of(backend)->ops[QR_OP_##name].workspace_bytes(real_of(backend), args);                \
    }                                                                                                      \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        (void)workspace;                                                                                   \
        return run(backend, QR_OP_##name, args, err);                                                      \
    }
QR_OPS(QR_X)
#undef QR_X

static const qr_op_impl ops[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = {supports_##name, workspace_##name, run_##name},
    QR_OPS(QR_X)
#undef QR_X
};

qrun_status qr_backend_plan_create(const qr_backend *of, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    plan_backend *plan = qr_alloc_zeroed(sizeof *plan);
    if (plan == NULL) { return qr_fail_memory(err, "a plan", sizeof *plan); }
    plan->of = of;
    plan->next_address = FIRST_ADDRESS;
    qr_backend *base = &plan->host.base;
    *base = (qr_backend){
        .version = QR_BACKEND_VERSION,
        .name = of->name,
        .isa = of->isa,
        .threads = of->threads,
        .memory_create = memory_create,
        .memory_destroy = memory_destroy,
    };
    qr_host_memory_set_functions(&plan->host, NULL);
    base->copy_in = base->copy_in_async = base->copy_within = copy;
    base->copy_out = copy_out;
    if (of->copy_out_begin != NULL) { /* more host memory is taken then */
        base->copy_out_begin = copy_out_begin;
        base->copy_out_end = copy_out_end;
    }
    base->transfer_in = base->transfer_out = transfer;
    base->fill_zero = fill_zero;
    base->weight_bytes = weight_bytes;
    base->weight_put_rows = put_rows;
    base->weight_put_scales = put_scales;
    base->weight_get_rows = NULL;
    base->weight_get_scales = NULL;
    memcpy(base->ops, ops, sizeof ops);
    *backend = base;
    return QRUN_OK;
}

const qr_planned *qr_backend_planned(const qr_backend *backend) { return &((const plan_backend *)backend)->planned; }

bool qr_backend_plans(const qr_backend *backend) { return backend->weight_put_rows == put_rows; }

void qr_backend_plan_again(qr_backend *backend, const qr_planned *before, int64_t n_times) {
    qr_planned *planned = &plan_of(backend)->planned;
    planned->n_calls += n_times * (planned->n_calls - before->n_calls);
    planned->flops += (double)n_times * (planned->flops - before->flops);
    planned->copied_bytes += n_times * (planned->copied_bytes - before->copied_bytes);
}
