/* device/cublaslt.h over cuBLASLt. The library stores by columns: its first operand is our second one, and its result
 * our c, transposed. */
#include "kernels/cuda/device/cublaslt.h"

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/library_search.h"
#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/alloc.h"
#include "base/sizes.h"
}

int64_t qr_cublaslt_panel_bytes(const qr_device *device) {
    const int64_t least = INT64_C(8) << 20, most = INT64_C(64) << 20;
    int cache_bytes = 0;
    if (cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device->index) != cudaSuccess) { return least; }
    return qr_min(qr_max(cache_bytes / 2, least), most);
}

int64_t qr_cublaslt_min_rows(const qr_device *) { return 128; }

#if !__has_include(<cublasLt.h>)

bool qr_cublaslt_is_there(qr_device *) { return false; }

const char *qr_cublaslt_file(const qr_device *) { return "(this build does not know it)"; }

bool qr_cublaslt_takes(qr_device *, const qr_cublaslt_product *) { return false; }

qrun_status qr_cublaslt_multiply(qr_device *, const qr_cublaslt_product *, void *, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "cuda: this build does not know cuBLASLt");
}

void qr_cublaslt_close(qr_cublaslt *) {}

#else

#include <cublasLt.h>
#include <link.h>
#include <stdio.h>

/* What is called of the library; the header's own inline functions want the symbols at link time. */
#define PRODUCT_FUNCTIONS(X)                 \
    X(cublasLtCreate)                        \
    X(cublasLtDestroy)                       \
    X(cublasLtMatmul)                        \
    X(cublasLtMatmulAlgoGetHeuristic)        \
    X(cublasLtMatmulDescInit_internal)       \
    X(cublasLtMatmulDescSetAttribute)        \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute)  \
    X(cublasLtMatrixLayoutInit_internal)     \
    X(cublasLtMatrixLayoutSetAttribute)

/* What an algorithm follows from. Compared byte by byte, so made from zeros. */
struct product_key {
    int64_t m, n, k, n_parts, a_stride, b_stride, c_stride;
    unsigned a_alignment, b_alignment, c_alignment, bias_alignment;
    int dtype, a_transposed, b_transposed, accumulate;
};

struct known_algorithm {
    product_key key;
    bool refused; /* there is none */
    cublasLtMatmulAlgo_t algorithm;
};

/* More than a model's products of one training step have shapes. */
enum { MOST_KNOWN = 256 };

struct qr_cublaslt {
    void *library;
    cublasLtHandle_t handle;
#define QR_X(name) decltype(&name) name##_;
    PRODUCT_FUNCTIONS(QR_X)
#undef QR_X
    char file[512];
    int n_known, next; /* the oldest is forgotten first */
    known_algorithm known[MOST_KNOWN];
};

/* --- Opening --- */

static bool open_library(const char *path, void *arg) {
    void **library = static_cast<void **>(arg);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return *library != NULL;
}

/* Which file the dynamic linker took. */
static void name_file(qr_cublaslt *products) {
    struct link_map *map = NULL;
    const bool known = dlinfo(products->library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL;
    snprintf(products->file, sizeof products->file, "%s", known ? map->l_name : "(opened, its path is not known)");
}

static void *find_library(const qr_device *device) {
    char name[32];
    void *library = NULL;
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    if (device->switches.cublaslt_path != NULL) {
        open_library(device->switches.cublaslt_path, &library);
    } else {
        qr_library_search(name, open_library, &library);
    }
    return library;
}

static bool fill(qr_cublaslt *products) {
    bool found = true;
#define QR_X(name) found = found && qr_find_symbol(products->library, #name, &products->name##_);
    PRODUCT_FUNCTIONS(QR_X)
#undef QR_X
    return found && products->cublasLtCreate_(&products->handle) == CUBLAS_STATUS_SUCCESS;
}

void qr_cublaslt_close(qr_cublaslt *products) {
    if (products == NULL) { return; }
    if (products->handle != NULL) { products->cublasLtDestroy_(products->handle); }
    if (products->library != NULL) { dlclose(products->library); }
    qr_free(products);
}

static qr_cublaslt *open_products(const qr_device *device) {
    qr_cublaslt *products = static_cast<qr_cublaslt *>(qr_alloc_zeroed(sizeof(qr_cublaslt)));
    if (products == NULL) { return NULL; }
    products->library = find_library(device);
    if (products->library != NULL && fill(products)) {
        name_file(products);
        return products;
    }
    qr_cublaslt_close(products);
    return NULL;
}

bool qr_cublaslt_is_there(qr_device *device) {
    if (!device->looked_for_cublaslt.load() && qr_device_enter(device, NULL) == QRUN_OK) {
        device->cublaslt = device->switches.cublaslt ? open_products(device) : NULL;
        device->looked_for_cublaslt.store(true);
    }
    return device->cublaslt != NULL;
}

const char *qr_cublaslt_file(const qr_device *device) {
    if (!device->switches.cublaslt) { return "(off: QRUN_CUDA_CUBLASLT)"; }
    if (!device->looked_for_cublaslt.load()) { return "(not looked for yet)"; }
    if (device->cublaslt != NULL) { return device->cublaslt->file; }
    return device->switches.cublaslt_path != NULL ? "(QRUN_CUDA_CUBLASLT names no library that can be used)"
                                                  : "(not found)";
}

/* --- A product as the library takes it: all on the stack --- */

struct description {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;
};

static qrun_status check(const qr_device *device, cublasStatus_t status, const char *what, qr_error *err) {
    if (status == CUBLAS_STATUS_SUCCESS) { return QRUN_OK; }
    const cudaError_t left = cudaGetLastError();
    if (left != cudaSuccess) { return qr_device_check(device, left, what, err); }
    return qr_fail(err, QRUN_ERROR_DEVICE, "cuda: cuBLASLt: %s failed with status %d", what, static_cast<int>(status));
}

template <typename T>
static cublasStatus_t set(const qr_cublaslt &lt, description &d, cublasLtMatmulDescAttributes_t name, const T &value) {
    return lt.cublasLtMatmulDescSetAttribute_(&d.operation, name, &value, sizeof value);
}

/* Of a batch: as many matrices, `distance` elements apart. */
struct batch {
    int32_t n;
    int64_t distance;
};

/* rows × cols by columns: a matrix of ours of that many cols and rows. */
static cublasStatus_t lay_out(const qr_cublaslt &lt, cublasLtMatrixLayoutOpaque_t &layout, cudaDataType_t type,
                              int64_t rows, int64_t cols, int64_t stride, const batch &of) {
    cublasStatus_t status = lt.cublasLtMatrixLayoutInit_internal_(
        &layout, sizeof layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride);
    if (status != CUBLAS_STATUS_SUCCESS || of.n == 1) { return status; }
    status = lt.cublasLtMatrixLayoutSetAttribute_(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &of.n, sizeof of.n);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    return lt.cublasLtMatrixLayoutSetAttribute_(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &of.distance,
                                                sizeof of.distance);
}

static cublasStatus_t describe(const qr_cublaslt &lt, const qr_cublaslt_product &p, description &d) {
    const cudaDataType_t type = p.dtype == QR_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    const cublasOperation_t first = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t n_parts = static_cast<int32_t>(qr_cublaslt_parts(p));
    const int64_t terms = qr_cublaslt_terms(p);
    const batch of_first = {n_parts, p.b.transposed ? terms : terms * p.b.stride};
    const batch of_second = {n_parts, p.a.transposed ? terms * p.a.stride : terms};
    const cublasLtEpilogue_t epilogue = p.bias != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const cublasStatus_t results[] = {
        lt.cublasLtMatmulDescInit_internal_(&d.operation, sizeof d.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        set(lt, d, CUBLASLT_MATMUL_DESC_TRANSA, first),
        set(lt, d, CUBLASLT_MATMUL_DESC_TRANSB, second),
        set(lt, d, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue),
        set(lt, d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias),
        lay_out(lt, d.first, type, p.b.transposed ? terms : p.n, p.b.transposed ? p.n : terms, p.b.stride, of_first),
        lay_out(lt, d.second, type, p.a.transposed ? p.m : terms, p.a.transposed ? terms : p.m, p.a.stride, of_second),
        lay_out(lt, d.result, CUDA_R_32F, p.n, p.m, p.c_stride, {n_parts, p.m * p.c_stride}),
    };
    for (const cublasStatus_t result : results) {
        if (result != CUBLAS_STATUS_SUCCESS) { return result; }
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* --- The algorithm --- */

/* The largest power of two up to 256 that divides an address. */
static unsigned alignment_of(const void *data) {
    enum { ENOUGH = 256 };
    const uintptr_t address = reinterpret_cast<uintptr_t>(data) | ENOUGH;
    return static_cast<unsigned>(address & (~address + 1));
}

static product_key key_of(const qr_cublaslt_product &p) {
    product_key key;
    memset(&key, 0, sizeof key);
    key.m = p.m, key.n = p.n, key.k = p.k, key.n_parts = qr_cublaslt_parts(p);
    key.a_stride = p.a.stride, key.b_stride = p.b.stride, key.c_stride = p.c_stride;
    key.a_alignment = alignment_of(p.a.data), key.b_alignment = alignment_of(p.b.data);
    key.c_alignment = alignment_of(p.c), key.bias_alignment = p.bias != NULL ? alignment_of(p.bias) : 0;
    key.dtype = p.dtype, key.a_transposed = p.a.transposed, key.b_transposed = p.b.transposed;
    key.accumulate = p.accumulate;
    return key;
}

static cublasStatus_t choose(const qr_cublaslt &lt, const product_key &key, description &d,
                             cublasLtMatmulAlgo_t *algorithm) {
    const uint64_t workspace_bytes = QR_CUBLASLT_WORKSPACE_BYTES;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t n_bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key.b_alignment, sizeof key.b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key.a_alignment, sizeof key.a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key.c_alignment, sizeof key.c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key.c_alignment, sizeof key.c_alignment},
    };
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasStatus_t status = lt.cublasLtMatmulPreferenceInit_internal_(&preference, sizeof preference);
    for (const auto &wish : wishes) {
        if (status != CUBLAS_STATUS_SUCCESS) { return status; }
        status = lt.cublasLtMatmulPreferenceSetAttribute_(&preference, wish.name, wish.value, wish.n_bytes);
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int n_results = 0;
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    status = lt.cublasLtMatmulAlgoGetHeuristic_(lt.handle, &d.operation, &d.first, &d.second, &d.result, &d.result,
                                                &preference, 1, &result, &n_results);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    *algorithm = result.algo;
    return n_results > 0 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* What the library says of a product that it has no kernel for. */
static bool is_refusal(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Of a product seen before, what was chosen then: the same product is taken or refused every time. */
static cublasStatus_t algorithm_for(qr_cublaslt &lt, const qr_cublaslt_product &p, description &d,
                                    known_algorithm **chosen) {
    const product_key key = key_of(p);
    for (int i = 0; i < lt.n_known; i++) {
        *chosen = &lt.known[i];
        if (memcmp(&lt.known[i].key, &key, sizeof key) == 0) { return CUBLAS_STATUS_SUCCESS; }
    }
    cublasLtMatmulAlgo_t algorithm = {};
    const cublasStatus_t status = choose(lt, key, d, &algorithm);
    if (status != CUBLAS_STATUS_SUCCESS && !is_refusal(status)) { return status; }
    *chosen = &lt.known[lt.next];
    memcpy(&(*chosen)->key, &key, sizeof key);
    (*chosen)->algorithm = algorithm, (*chosen)->refused = is_refusal(status);
    lt.next = (lt.next + 1) % MOST_KNOWN;
    lt.n_known = lt.n_known < MOST_KNOWN ? lt.n_known + 1 : lt.n_known;
    return CUBLAS_STATUS_SUCCESS;
}

bool qr_cublaslt_takes(qr_device *device, const qr_cublaslt_product *p) {
    description d;
    known_algorithm *chosen = NULL;
    if (!qr_cublaslt_is_there(device) || qr_device_enter(device, NULL) != QRUN_OK) { return false; }
    return describe(*device->cublaslt, *p, d) == CUBLAS_STATUS_SUCCESS &&
           algorithm_for(*device->cublaslt, *p, d, &chosen) == CUBLAS_STATUS_SUCCESS && !chosen->refused;
}

qrun_status qr_cublaslt_multiply(qr_device *device, const qr_cublaslt_product *p, void *workspace, qr_error *err) {
    qr_cublaslt &lt = *device->cublaslt;
    const float alpha = 1.0F, beta = p->accumulate ? 1.0F : 0.0F;
    description d;
    known_algorithm *chosen = NULL;
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    cudaGetLastError(); /* of somebody else's call */
    QR_RETURN_IF_ERROR(check(device, describe(lt, *p, d), "describing a product", err));
    QR_RETURN_IF_ERROR(check(device, algorithm_for(lt, *p, d, &chosen), "choosing an algorithm", err));
    if (chosen->refused) { return QR_CUBLASLT_REFUSED; }
    const cublasStatus_t result = lt.cublasLtMatmul_(
        lt.handle, &d.operation, &alpha, p->b.data, &d.first, p->a.data, &d.second, &beta, p->c, &d.result, p->c,
        &d.result, &chosen->algorithm, workspace, QR_CUBLASLT_WORKSPACE_BYTES, qr_device_stream(device));
    chosen->refused = is_refusal(result);
    return chosen->refused ? QR_CUBLASLT_REFUSED : check(device, result, "a product", err);
}

#endif
