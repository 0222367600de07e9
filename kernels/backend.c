/* What all backends share: destruction, the check of workspaces, and the layout of K/V pages. */
#include "kernels/backend.h"

#include "base/sizes.h"
#include "base/status.h"
#include "kernels/profile.h"

void qr_backend_destroy(qr_backend *backend) {
    if (backend == NULL) { return; }
    if (backend->profile != NULL) { (void)qr_profile_end(backend, NULL, NULL, NULL); }
    backend->destroy(backend);
}

const char *qr_op_name(qr_op op) {
    static const char *const names[QR_OP_COUNT] = {
#define QR_X(name) #name,
        QR_OPS(QR_X)
#undef QR_X
    };
    return names[op];
}

qrun_status qr_backend_run(qr_backend *backend, qr_op op, const void *args, qr_workspace workspace, qr_error *err) {
    const size_t needed = backend->ops[op].workspace_bytes(backend, args);
    if (needed > workspace.n_bytes) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "%s on %s needs %zu bytes of workspace and was given %zu",
                       qr_op_name(op), backend->name, needed, workspace.n_bytes);
    }
    if (backend->profile != NULL) { return qr_profile_run(backend, op, args, workspace.memory, err); }
    return backend->ops[op].run(backend, args, workspace.memory, err);
}

size_t qr_kv_element_bytes(qr_kv_format format) {
    switch (format) {
        case QR_KV_F32: return 4;
        case QR_KV_BF16:
        case QR_KV_F16: return 2;
        case QR_KV_INT8: return 1;
    }
    return 0;
}

static size_t kv_element_count(const qr_kv_layout *layout) {
    return (size_t)layout->n_kv_heads * QR_KV_PAGE_TOKENS * (size_t)layout->head_dim;
}

static size_t kv_scale_bytes(const qr_kv_layout *layout) {
    return layout->format == QR_KV_INT8 ? (size_t)layout->n_kv_heads * QR_KV_PAGE_TOKENS * sizeof(float) : 0;
}

/* Sixteen tokens make every part a multiple of 16 bytes, so scales are aligned whatever the sizes. */
size_t qr_kv_scale_offset(const qr_kv_layout *layout) {
    return kv_element_count(layout) * qr_kv_element_bytes(layout->format);
}

/* Of K, or of V. */
static size_t kv_part_bytes(const qr_kv_layout *layout) { return qr_kv_scale_offset(layout) + kv_scale_bytes(layout); }

size_t qr_kv_v_offset(const qr_kv_layout *layout) { return layout->keys_are_values ? 0 : kv_part_bytes(layout); }

size_t qr_kv_layer_bytes(const qr_kv_layout *layout) {
    return (size_t)qr_round_up((int64_t)(qr_kv_v_offset(layout) + kv_part_bytes(layout)), 64);
}
