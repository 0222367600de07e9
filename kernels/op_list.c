#include "kernels/op_list.h"

#include <string.h>

/* Bytes of the arguments of an op that may wait; 0: it may not. An adapter's arguments would not be copied. */
static size_t waiting_bytes(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_rms_norm: return sizeof(qr_rms_norm_args);
        case QR_OP_linear: return ((const qr_linear_args *)args)->lora == NULL ? sizeof(qr_linear_args) : 0;
        case QR_OP_rope: return sizeof(qr_rope_args);
        case QR_OP_kv_write: return sizeof(qr_kv_write_args);
        case QR_OP_gate: return sizeof(qr_gate_args);
        default: return 0;
    }
}

static void add(qr_op_list *list, qr_op op, const void *args, size_t n_bytes) {
    qr_op_entry *entry = &list->entries[list->n++];
    entry->op = op;
    memcpy(&entry->args, args, n_bytes);
    if (op != QR_OP_linear) { return; }
    entry->weight = *entry->args.linear.weight;
    entry->args.linear.weight = &entry->weight;
}

qrun_status qr_op_list_end(qr_op_list *list, qr_backend *backend, qr_workspace workspace, qr_error *err) {
    qr_op_call calls[QR_OP_LIST_MOST];
    const int32_t n = list->n;
    list->n = 0;
    for (int32_t i = 0; i < n; i++) { calls[i] = (qr_op_call){list->entries[i].op, &list->entries[i].args}; }
    for (int32_t i = 0; i < n;) {
        int32_t n_taken = 0;
        QR_RETURN_IF_ERROR(backend->run_group(backend, calls + i, n - i, &n_taken, err));
        if (n_taken == 0) {
            QR_RETURN_IF_ERROR(qr_backend_run(backend, calls[i].op, calls[i].args, workspace, err));
            n_taken = 1;
        }
        i += n_taken;
    }
    return QRUN_OK;
}

qrun_status qr_op_list_run(qr_op_list *list, qr_backend *backend, qr_op op, const void *args, qr_workspace workspace,
                           qr_error *err) {
    const bool one_by_one = backend->run_group == NULL || backend->profile != NULL || backend->timeline != NULL;
    if (list == NULL || (one_by_one && list->n == 0)) { return qr_backend_run(backend, op, args, workspace, err); }
    const size_t n_bytes = one_by_one ? 0 : waiting_bytes(op, args);
    if (n_bytes == 0 || list->n == QR_OP_LIST_MOST) {
        QR_RETURN_IF_ERROR(qr_op_list_end(list, backend, workspace, err));
    }
    if (n_bytes == 0) { return qr_backend_run(backend, op, args, workspace, err); }
    add(list, op, args, n_bytes);
    return QRUN_OK;
}
