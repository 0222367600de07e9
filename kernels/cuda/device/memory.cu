/* device/memory.h over CUDA's runtime and NVML. */
#include "kernels/cuda/device/memory.h"

#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/sizes.h"
}

/* --- The kernels of this library --- */

/* nvcc's code names each kernel to CUDA's runtime when the library is opened, by this function; the linker leads the
 * calls here (its option "wrap"), so that the list needs no upkeep. What other libraries have is not in it. */
enum { MOST_KERNELS = 2048 };
static const void *kernels[MOST_KERNELS];
static int n_kernels;

extern "C" {
void __real___cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int thread_limit,
                                   uint3 *thread, uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp_size);
void __wrap___cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int thread_limit,
                                   uint3 *thread, uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp_size);

void __wrap___cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int thread_limit,
                                   uint3 *thread, uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp_size) {
    if (n_kernels < MOST_KERNELS) { kernels[n_kernels++] = host; }
    __real___cudaRegisterFunction(image, host, device, name, thread_limit, thread, block, block_size, grid_size,
                                  warp_size);
}
}

/* CUDA loads a kernel when it is first referred to. */
static qrun_status load_kernels(const qr_device *device, qr_error *err) {
    qrun_status status = QRUN_OK;
    for (int i = 0; i < n_kernels && status == QRUN_OK; i++) {
        cudaFuncAttributes attributes;
        status = qr_device_check(device, cudaFuncGetAttributes(&attributes, kernels[i]), "loading the kernels", err);
    }
    return status;
}

/* --- NVML, part of the driver: the memory of a GPU without a context on it --- */

struct nvml_memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct nvml {
    void *library;
    int (*init)();
    int (*shutdown)();
    int (*device_by_bus_id)(const char *bus_id, void **device);
    int (*memory_info)(void *device, nvml_memory *memory);
};

static bool ask_nvml(const nvml &nvml, const char *bus_id, nvml_memory *memory) {
    void *device;
    if (nvml.init() != 0) { return false; }
    const bool answered = nvml.device_by_bus_id(bus_id, &device) == 0 && nvml.memory_info(device, memory) == 0;
    nvml.shutdown();
    return answered;
}

static bool memory_by_nvml(int index, nvml_memory *memory) {
    char bus_id[32];
    nvml nvml;
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) { return false; }
    nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml.library == NULL) { return false; }
    const bool answered = qr_find_symbol(nvml.library, "nvmlInit_v2", &nvml.init) &&
                          qr_find_symbol(nvml.library, "nvmlShutdown", &nvml.shutdown) &&
                          qr_find_symbol(nvml.library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml.device_by_bus_id) &&
                          qr_find_symbol(nvml.library, "nvmlDeviceGetMemoryInfo", &nvml.memory_info) &&
                          ask_nvml(nvml, bus_id, memory);
    dlclose(nvml.library);
    return answered;
}

void qr_device_memory_before_context(qr_device *device) {
    nvml_memory memory;
    const bool known = memory_by_nvml(device->index, &memory);
    device->total_before = known ? static_cast<int64_t>(memory.total) : -1;
    device->free_before = known ? static_cast<int64_t>(memory.free) : -1;
    device->context_bytes = -1;
}

/* --- CUDA --- */

/* Kept out of plans: allocations, some twenty, are rounded up to pages of 2 MiB, graphs take memory of the driver's,
 * and cuBLASLt loads its kernels when they are first used. */
static const int64_t RESERVE_BYTES = INT64_C(128) << 20;

static qrun_status ask_cuda(const qr_device *device, int64_t *total_bytes, int64_t *free_bytes, qr_error *err) {
    size_t total = 0, free = 0;
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaMemGetInfo(&free, &total), "asking for the GPU's memory", err));
    *total_bytes = static_cast<int64_t>(total);
    *free_bytes = static_cast<int64_t>(free);
    return QRUN_OK;
}

/* NVML speaks of the whole GPU where CUDA sees a slice of it (MIG): then the two cannot be compared. */
static bool is_whole_gpu(int64_t nvml_total, int64_t cuda_total) { return cuda_total > nvml_total - nvml_total / 8; }

qrun_status qr_device_memory_measure_context(qr_device *device, qr_error *err) {
    int64_t total = 0, free = 0;
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(load_kernels(device, err));
    QR_RETURN_IF_ERROR(ask_cuda(device, &total, &free, err));
    if (device->free_before >= 0 && is_whole_gpu(device->total_before, total)) {
        device->context_bytes = qr_max(device->free_before - free, 0);
    }
    return QRUN_OK;
}

qrun_status qr_device_memory_info(const qr_device *device, int64_t *total_bytes, int64_t *free_bytes,
                                  int64_t *context_bytes, qr_error *err) {
    const qrun_status status = ask_cuda(device, total_bytes, free_bytes, err);
    *free_bytes = qr_max(*free_bytes - RESERVE_BYTES, 0);
    *context_bytes = device->context_bytes;
    return status;
}
