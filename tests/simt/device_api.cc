/* kernels/cuda/device/api.h over host memory: a device that simt.h executes on. Buffers are blocks of their exact size,
 * so that AddressSanitizer sees every access outside one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_state.h"
#include "early_launch.h"
#include "kernels/cuda/device/link_stream.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/cuda/device/requirements.h"
#include "shared_limit.h"
#include "simt.h"

static bool gpu_is_broken;

static int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoll(text, NULL, 10) : otherwise;
}

static qrun_status check_requirements(int *capability, qr_error *err) {
    enum { OUR_RUNTIME = 12000 };
    const char *text = getenv("QRUN_SIMT_CAPABILITY");
    const qrun_status status =
        qr_device_check_driver(static_cast<int>(setting("QRUN_SIMT_DRIVER", OUR_RUNTIME)), OUR_RUNTIME, err);
    if (status != QRUN_OK) { return status; }
    char *end;
    const int major = static_cast<int>(strtol(text != NULL ? text : "9.0", &end, 10)), minor = atoi(end + 1);
    *capability = major * 10 + minor;
    return qr_device_check_capability(major, minor, err);
}

qrun_status qr_device_open(qr_device **device, qr_error *err) { return qr_device_open_for({-1, 0}, device, err); }

/* As CUDA's programming guide lists them by compute capability. */
static int shared_bytes_of(int capability) { return (capability == 80 ? 164 : capability / 10 == 9 ? 228 : 100) << 10; }

qrun_status qr_device_open_for(const qr_gpu_choice &choice, qr_device **device, qr_error *err) {
    *device = NULL;
    int capability = 0;
    const qrun_status status = check_requirements(&capability, err);
    if (status != QRUN_OK) { return status; }
    const int n_gpus = static_cast<int>(setting("QRUN_SIMT_GPUS", 0));
    QR_RETURN_IF_ERROR(qr_device_check_ordinal(n_gpus > 0 ? n_gpus : 1, choice.ordinal, err));
    qr_device_switches switches;
    QR_RETURN_IF_ERROR(qr_device_switches_read(&switches, err));
    const char *wgmma = getenv("QRUN_SIMT_WGMMA");
    simt::set_wgmma_sums(wgmma == NULL                   ? simt::WGMMA_EXACT
                         : strcmp(wgmma, "differs") == 0 ? simt::WGMMA_ROUNDS
                         : strcmp(wgmma, "wrong") == 0   ? simt::WGMMA_WRONG
                         : strcmp(wgmma, "wide") == 0    ? simt::WGMMA_WIDE_WRONG
                                                         : simt::WGMMA_EXACT);
    simt::set_lost_arrivals(wgmma != NULL && strcmp(wgmma, "stalls") == 0);
    if (gpu_is_broken) { return qr_fail(err, QRUN_ERROR_DEVICE, "cuda: creating a stream: the GPU is broken"); }
    *device = new qr_device();
    (*device)->switches = switches;
    (*device)->transfer_seed = static_cast<uint64_t>(setting("QRUN_SIMT_SEED", 0));
    (*device)->breaks_with_wgmma = wgmma != NULL && strcmp(wgmma, "breaks") == 0;
    (*device)->fails_with_wgmma = (*device)->breaks_with_wgmma || (wgmma != NULL && strcmp(wgmma, "fails") == 0);
    (*device)->capability = capability;
    (*device)->index = n_gpus == 0           ? -1
                       : choice.ordinal >= 0 ? choice.ordinal
                                             : qr_device_choose(n_gpus, choice.local_rank);
    (*device)->size = {(*device)->index < 0 ? 0 : (*device)->index, n_gpus > 0 ? n_gpus : 1,
                       static_cast<int>(setting("QRUN_SIMT_MULTIPROCESSORS", 1)), shared_bytes_of(capability),
                       shared_bytes_of(capability) - 1024};
    (*device)->hold.take((*device)->size.ordinal);
    (*device)->memory_bytes = setting("QRUN_SIMT_MEMORY", INT64_C(4) << 30);
    (*device)->calls_left.store(setting("QRUN_SIMT_LOST_AFTER", INT64_MAX));
    qr_device_memory_before_context(*device);
    return QRUN_OK;
}

void qr_device_close(qr_device *device) {
    if (device != NULL) { qr_device_marks_destroy(device->marks); }
    delete device;
}

bool qr_device_reset(int ordinal) {
    return qr_gpu_while_closed(ordinal, [] {}); /* a new one has no fault */
}

qrun_status qr_device_use(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_fault_check(&device->fault, err));
    qr_device_go_on_transferring(device);
    if (device->calls_left.fetch_sub(1) > 0) { return QRUN_OK; }
    return qr_device_fault_set(&device->fault, "cuda: copying: the GPU is lost, as QRUN_SIMT_LOST_AFTER says", err);
}

qrun_status qr_device_may_run(qr_device *device, const char *kernel, qr_error *err) {
    simt::set_shared_limit(static_cast<size_t>(device->size.block_shared_bytes));
    if (!device->fails_with_wgmma || strstr(kernel, "linear_wgmma") == NULL) { return QRUN_OK; }
    gpu_is_broken = device->breaks_with_wgmma;
    return qr_device_fault_set(&device->fault, "cuda: linear_wgmma_kernel: an illegal instruction (QRUN_SIMT_WGMMA)",
                               err);
}

qrun_status qr_device_trapped(qr_device *device, const char *kernel, qr_error *err) {
    char message[sizeof device->fault.message];
    snprintf(message, sizeof message, "cuda: %s: it trapped", kernel);
    return qr_device_fault_set(&device->fault, message, err);
}

void qr_device_settle(qr_device *device, uint64_t number) {
    const std::lock_guard<std::mutex> held(device->lock);
    std::vector<pending_copy> left;
    for (pending_copy &copy : device->pending) {
        if (copy.number > number) {
            left.push_back(std::move(copy));
        } else if (copy.is_out) {
            memcpy(copy.host, copy.bytes.data(), copy.bytes.size());
        } else if (memcmp(copy.host, copy.bytes.data(), copy.bytes.size()) != 0) {
            fprintf(stderr, "simt: host memory was changed while a copy could still read it\n");
            abort();
        }
    }
    device->pending = std::move(left);
}

const char *qr_device_isa(const qr_device *) { return "simt"; }

int qr_device_capability(const qr_device *device) { return device->capability; }

int qr_device_multiprocessors(const qr_device *device) { return device->size.multiprocessors; }

const qr_device_size &qr_device_size_of(const qr_device *device) { return device->size; }

const qr_device_switches &qr_device_switches_of(const qr_device *device) { return device->switches; }

bool qr_device_launches_early(const qr_device *device) { return device->switches.early_launch; }

/* Whether the device has as much left; then it is taken. */
static bool take(qr_device *device, size_t n_bytes) {
    const std::lock_guard<std::mutex> held(device->lock);
    const int64_t context = device->context_bytes > 0 ? device->context_bytes : 0;
    if (n_bytes > static_cast<size_t>(device->memory_bytes - context - device->held_bytes)) { return false; }
    device->held_bytes += static_cast<int64_t>(n_bytes);
    return true;
}

static void give(qr_device *device, size_t n_bytes) {
    const std::lock_guard<std::mutex> held(device->lock);
    device->held_bytes -= static_cast<int64_t>(n_bytes);
}

qrun_status qr_device_memory_create(qr_device *device, qr_memory_kind kind, size_t n_bytes, void **memory,
                                    qr_error *err) {
    enum { ALIGNMENT = 256 };
    *memory = NULL;
    qrun_status status = qr_device_refuse_recording(device, "making memory", err);
    if (status == QRUN_OK) { status = qr_device_use(device, err); }
    if (status != QRUN_OK) { return status; }
    const size_t most = static_cast<size_t>(1) << 39; /* AddressSanitizer ends the program at more */
    const bool on_device = kind == QR_MEMORY_DEVICE;
    if (n_bytes > most || (on_device && !take(device, n_bytes))) {
        return qr_fail_memory(err, on_device ? "memory of the GPU" : "pinned host memory", n_bytes);
    }
    if (posix_memalign(memory, ALIGNMENT, n_bytes > 0 ? n_bytes : 1) != 0) {
        *memory = NULL;
        if (on_device) { give(device, n_bytes); }
        return qr_fail_memory(err, "memory of the GPU", n_bytes);
    }
    memset(*memory, 0xFF, n_bytes);
    const std::lock_guard<std::mutex> held(device->lock);
    if (on_device) {
        device->device_memory[*memory] = n_bytes;
        simt::early_add_memory(*memory, n_bytes);
    }
    return QRUN_OK;
}

void qr_device_memory_destroy(qr_device *device, qr_memory_kind, void *memory) {
    if (memory == NULL) { return; }
    qr_device_settle(device);
    qr_device_do_transfers(device);
    {
        const std::lock_guard<std::mutex> held(device->lock);
        const auto found = device->device_memory.find(memory);
        if (found != device->device_memory.end()) {
            device->held_bytes -= static_cast<int64_t>(found->second);
            device->device_memory.erase(found);
            simt::early_remove_memory(memory);
        }
    }
    free(memory);
}

static qrun_status copy(qr_device *device, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    simt::early_order_all();
    if (status == QRUN_OK && n_bytes > 0) { memcpy(dst, src, n_bytes); }
    return status;
}

static const char waited_for[] = "a copy that is waited for";

qrun_status qr_device_copy_in(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_refuse_recording(device, waited_for, err);
    return status == QRUN_OK ? copy(device, dst, host, n_bytes, err) : status;
}

qrun_status qr_device_copy_in_async(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err) {
    if (qr_device_is_recording(device)) {
        qr_device_keep(device, [=](qr_error *why) { return qr_device_copy_in_async(device, dst, host, n_bytes, why); });
        return QRUN_OK;
    }
    unsigned char *first = static_cast<unsigned char *>(const_cast<void *>(host));
    {
        const std::lock_guard<std::mutex> held(device->lock);
        device->pending.push_back(
            {first, std::vector<unsigned char>(first, first + n_bytes), ++device->n_copies, false});
    }
    return copy(device, dst, host, n_bytes, err);
}

qrun_status qr_device_copy_out(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_refuse_recording(device, waited_for, err);
    if (status != QRUN_OK) { return status; }
    qr_device_settle(device);
    return copy(device, host, src, n_bytes, err);
}

qrun_status qr_device_copy_within(qr_device *device, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    if (qr_device_is_recording(device)) {
        qr_device_keep(device, [=](qr_error *why) { return copy(device, dst, src, n_bytes, why); });
        return QRUN_OK;
    }
    return copy(device, dst, src, n_bytes, err);
}

static qrun_status zero(qr_device *device, void *memory, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    simt::early_order_all();
    if (status == QRUN_OK && n_bytes > 0) { memset(memory, 0, n_bytes); }
    return status;
}

qrun_status qr_device_zero(qr_device *device, void *memory, size_t n_bytes, qr_error *err) {
    if (qr_device_is_recording(device)) {
        qr_device_keep(device, [=](qr_error *why) { return zero(device, memory, n_bytes, why); });
        return QRUN_OK;
    }
    return zero(device, memory, n_bytes, err);
}

qrun_status qr_device_sync(qr_device *device, qr_error *err) {
    const qrun_status refused = qr_device_refuse_recording(device, "a wait", err);
    if (refused != QRUN_OK) { return refused; }
    qr_device_settle(device);
    qr_device_do_transfers(device);
    return qr_device_use(device, err);
}

static double seconds_now() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

qrun_status qr_device_timer_start(qr_device *device, qr_error *) {
    device->began = seconds_now();
    return QRUN_OK;
}

qrun_status qr_device_timer_stop(qr_device *device, double *seconds, qr_error *) {
    *seconds = seconds_now() - device->began;
    return QRUN_OK;
}
