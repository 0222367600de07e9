/* The CUDA backend's vtable: memory, copies, and the table of ops. */
#include <stdio.h>

#include <new>

#include "kernels/cuda/backend/groups.h"
#include "kernels/cuda/backend/links.h"
#include "kernels/cuda/backend/staging.h"
#include "kernels/cuda/backend/unsupported.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/gpus.h"
#include "kernels/cuda/device/graph_capture.h"
#include "kernels/cuda/device/link_stream.h"
#include "kernels/cuda/device/marks.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/cuda/device/transfer.h"
#include "kernels/cuda/linear/wgmma_check.h"

extern "C" {
#include "quant/dynamic8.h"
#include "quant/nf4.h"
}

static void count_held(qr_cuda_held *held, size_t n_bytes) {
    const size_t now = held->now.fetch_add(n_bytes) + n_bytes;
    size_t peak = held->peak.load();
    while (now > peak && !held->peak.compare_exchange_weak(peak, now)) {}
}

static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    qrun_status status = QRUN_OK;
    QR_RETURN_IF_ERROR(qr_device_memory_create(cuda->device, kind, n_bytes, memory, err));
    if (kind == QR_MEMORY_HOST) {
        memset(*memory, 0, n_bytes);
    } else {
        status = qr_device_zero(cuda->device, *memory, n_bytes, err);
    }
    if (status != QRUN_OK) {
        qr_device_memory_destroy(cuda->device, kind, *memory);
        *memory = NULL;
        return status;
    }
    count_held(&cuda->held[kind], n_bytes);
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    if (memory == NULL) { return; }
    qr_device_memory_destroy(qr_cuda(backend)->device, kind, memory);
    qr_cuda(backend)->held[kind].now.fetch_sub(n_bytes);
}

static void memory_held(const qr_backend *backend, size_t *held, size_t *peak) {
    *held = qr_cuda(backend)->held[QR_MEMORY_DEVICE].now.load();
    *peak = qr_cuda(backend)->held[QR_MEMORY_DEVICE].peak.load();
}

static qrun_status memory_info(const qr_backend *backend, qr_backend_memory *memory, qr_error *err) {
    const qr_cuda_backend *cuda = qr_cuda(backend);
    const qr_cuda_held *host = &cuda->held[QR_MEMORY_HOST];
    *memory = {};
    memory->host_held_bytes = static_cast<int64_t>(host->now.load());
    memory->host_peak_bytes = static_cast<int64_t>(host->peak.load());
    return qr_device_memory_info(cuda->device, &memory->total_bytes, &memory->free_bytes, &memory->context_bytes, err);
}

/* A function of the vtable that the device has as it is. */
template <auto function, typename... A> static qrun_status on_device(qr_backend *backend, A... args) {
    return function(qr_cuda(backend)->device, args...);
}

static void features(const qr_backend *backend, char *text, size_t n_bytes) {
    const qr_cuda_backend *cuda = qr_cuda(backend);
    const qr_device_switches &switches = qr_device_switches_of(cuda->device);
    const char *early = qr_device_launches_early(cuda->device) ? "on"
                        : switches.early_launch                ? "none"
                                                               : "off: QRUN_CUDA_EARLY_LAUNCH";
    const qr_device_size &size = qr_device_size_of(cuda->device);
    snprintf(text, n_bytes,
             "graphs %s; early launch %s; steps ahead %s; wgmma %s; cuBLASLt %s; GPU %d of %d: %d multiprocessors, "
             "%d KiB of shared memory a block",
             switches.graphs ? "on" : "off: QRUN_CUDA_GRAPHS", early,
             switches.run_ahead ? "on" : "off: QRUN_CUDA_RUN_AHEAD", cuda->wgmma_note, qr_cublaslt_file(cuda->device),
             size.ordinal, size.n_gpus, size.multiprocessors, size.block_shared_bytes >> 10);
}

static void recording_destroy(qr_backend *backend, qr_recording *recording) {
    qr_device_recording_destroy(qr_cuda(backend)->device, recording);
}

static void destroy(qr_backend *backend) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    qr_cuda_loading_end(backend);
    qr_cuda_links_close(cuda);
    qr_backend_destroy(cuda->host);
    if (cuda->device != NULL) {
        qr_device_memory_destroy(cuda->device, QR_MEMORY_DEVICE, const_cast<qr_cuda_tables *>(cuda->tables));
        qr_device_close(cuda->device);
    }
    cuda->~qr_cuda_backend();
    qr_free(cuda);
}

/* The tables of quant/, which kernels read from device memory. */
static qrun_status put_tables(qr_cuda_backend *cuda, qr_error *err) {
    qr_cuda_tables tables = {};
    memcpy(tables.nf4, qr_nf4_code, sizeof tables.nf4);
    memcpy(tables.float4, qr_weight_code_values(QR_WEIGHT_MXFP4), sizeof tables.float4);
    memcpy(tables.nf4_midpoints, qr_nf4_midpoints, sizeof tables.nf4_midpoints);
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        memcpy(tables.dynamic_map[is_signed], qr_dynamic8_map(is_signed != 0), 256 * sizeof(float));
        memcpy(tables.dynamic_bounds[is_signed], qr_dynamic8_bounds(is_signed != 0), 255 * sizeof(float));
    }
    void *memory = NULL;
    QR_RETURN_IF_ERROR(qr_device_memory_create(cuda->device, QR_MEMORY_DEVICE, sizeof tables, &memory, err));
    cuda->tables = static_cast<const qr_cuda_tables *>(memory);
    return qr_device_copy_in(cuda->device, memory, &tables, sizeof tables, err);
}

static void fill_vtable(qr_cuda_backend *cuda, qr_threads *threads) {
    qr_backend *base = &cuda->base;
    base->version = QR_BACKEND_VERSION;
    base->name = "cuda";
    base->isa = cuda->isa;
    base->threads = threads;
    base->destroy = destroy;
    base->memory_create = memory_create;
    base->memory_destroy = memory_destroy;
    base->memory_held = memory_held;
    base->memory_info = memory_info;
    base->features = features;
    base->copy_in = on_device<qr_device_copy_in>;
    base->copy_in_async = on_device<qr_device_copy_in_async>;
    base->copy_out = on_device<qr_device_copy_out>;
    if (qr_device_switches_of(cuda->device).run_ahead) {
        base->copy_out_begin = on_device<qr_device_copy_out_begin>;
        base->copy_out_end = on_device<qr_device_copy_out_end>;
    }
    base->copy_within = on_device<qr_device_copy_within>;
    base->fill_zero = on_device<qr_device_zero>;
    base->sync = on_device<qr_device_sync>;
    if (qr_device_switches_of(cuda->device).graphs) {
        base->record_begin = on_device<qr_device_record_begin>;
        base->record_end = on_device<qr_device_record_end>;
        base->replay = on_device<qr_device_replay>;
        base->recording_destroy = recording_destroy;
    }
    base->marks_begin = on_device<qr_device_marks_begin>;
    base->mark = on_device<qr_device_mark>;
    base->mark_seconds = on_device<qr_device_mark_seconds>;
    base->transfer_in = on_device<qr_device_transfer_in>;
    base->transfer_out = on_device<qr_device_transfer_out>;
    base->transfer_wait = on_device<qr_device_transfer_wait>;
    base->weight_bytes = qr_cuda_weight_bytes;
    base->weight_put_rows = qr_cuda_weight_put_rows;
    base->weight_put_scales = qr_cuda_weight_put_scales;
    base->weight_get_rows = qr_cuda_weight_get_rows;
    base->weight_get_scales = qr_cuda_weight_get_scales;
    base->loading_begin = qr_cuda_loading_begin;
    base->loading_wait = qr_cuda_loading_wait;
    base->loading_end = qr_cuda_loading_end;
    base->weight_put_source = qr_cuda_weight_put_source;
    base->measure_peaks = qr_cuda_measure_peaks;
    base->run_group = qr_cuda_run_group;
#define QR_X(name) base->ops[QR_OP_##name] = qr_cuda_op_##name;
    QR_OPS(QR_X)
#undef QR_X
}

static qrun_status create(const qr_gpu_choice &choice, qr_threads *threads, qr_cuda_backend **made, qr_error *err) {
    void *memory = qr_alloc_zeroed(sizeof(qr_cuda_backend));
    if (memory == NULL) { return qr_fail_memory(err, "the cuda backend", sizeof(qr_cuda_backend)); }
    qr_cuda_backend *cuda = *made = new (memory) qr_cuda_backend();
    char fault[QR_GPU_FAULT_BYTES];
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_open_for(choice, &cuda->device, err));
    QR_TRY(put_tables(cuda, err));
    QR_TRY(qr_device_memory_measure_context(cuda->device, err));
    fill_vtable(cuda, threads);
    qr_gpu_get_fault(qr_device_size_of(cuda->device).ordinal, fault);
    QR_TRY(qr_cuda_choose_wgmma(cuda, fault, err));
out:
    return status;
}

/* Hopper's products may break a device on which the rest works, or not end, which does the same (bulk_copy.cuh). Then
 * it is opened again without them, and later devices of the process do not try them either: that would break the
 * others, too. cuda: what was made, closed here. */
static qrun_status create_without_wgmma(const qr_gpu_choice &choice, qr_threads *threads, const char *fault,
                                        qr_cuda_backend **cuda, qr_error *err) {
    qr_error again = {};
    const int gpu = qr_device_size_of((*cuda)->device).ordinal;
    qr_gpu_set_fault(gpu, fault);
    destroy(&(*cuda)->base);
    *cuda = NULL;
    if (!qr_device_reset(gpu)) {
        return qr_fail(err, QRUN_ERROR_DEVICE,
                       "%s; this process has the GPU open elsewhere, so it cannot be opened again without wgmma; with "
                       "QRUN_CUDA_WGMMA=0 it is not tried",
                       fault);
    }
    const qrun_status status = create(choice, threads, cuda, &again);
    if (status == QRUN_OK) { return QRUN_OK; }
    return qr_fail(err, status, "%s; opened again without wgmma: %s; with QRUN_CUDA_WGMMA=0 it is not tried", fault,
                   again.message);
}

qrun_status qr_cuda_backend_create_for(const qr_gpu_choice *choice, qr_threads *threads, qr_backend *host,
                                       qr_backend **backend, qr_error *err) {
    qr_error reason = {};
    qr_cuda_backend *cuda = NULL;
    *backend = NULL;
    qrun_status status = create(*choice, threads, &cuda, &reason);
    if (status == QRUN_ERROR_DEVICE && cuda->base.version != 0) {
        status = create_without_wgmma(*choice, threads, reason.message, &cuda, err);
    } else if (status != QRUN_OK) {
        (void)qr_fail(err, status, "%s", reason.message);
    }
    if (status == QRUN_OK) {
        cuda->host = host;
        *backend = &cuda->base;
    } else {
        qr_backend_destroy(host);
        if (cuda != NULL) { destroy(&cuda->base); }
    }
    return status;
}
