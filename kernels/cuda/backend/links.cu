/* kernels/device_links.h over NCCL. A communicator that does not block: whatever it takes long for is asked about by
 * `poll`, and can be aborted. */
#include "kernels/cuda/backend/links.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/cuda/device/library_search.h"
#include "kernels/cuda/device/link_stream.h"

/* --- What is used of nccl.h, 2.14 and newer --- */

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[QR_LINK_ID_BYTES];
} ncclUniqueId;
typedef int ncclResult_t; /* an enumeration there */
enum { ncclSuccess = 0, ncclInProgress = 7 };
enum { ncclUint8 = 1 };
/* The first fields, which are all that 2.14 has. Newer ones take the rest for the default, by the version given. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;
enum { NCCL_CONFIG_MAGIC = 0xcafebeef, NCCL_CONFIG_VERSION = 21400 };
enum { NCCL_LEAST_VERSION = 21400 };

typedef ncclResult_t ncclGetVersion_fn(int *version);
typedef ncclResult_t ncclGetUniqueId_fn(ncclUniqueId *id);
typedef ncclResult_t ncclCommInitRankConfig_fn(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                               ncclConfig_t *config);
typedef ncclResult_t ncclCommGetAsyncError_fn(ncclComm_t comm, ncclResult_t *result);
typedef ncclResult_t ncclCommAbort_fn(ncclComm_t comm);
typedef ncclResult_t ncclGroupStart_fn(void);
typedef ncclResult_t ncclGroupEnd_fn(void);
typedef ncclResult_t ncclSend_fn(const void *memory, size_t n, int type, int rank, ncclComm_t comm, void *stream);
typedef ncclResult_t ncclRecv_fn(void *memory, size_t n, int type, int rank, ncclComm_t comm, void *stream);
typedef const char *ncclGetErrorString_fn(ncclResult_t result);
typedef const char *ncclGetLastError_fn(ncclComm_t comm);

#define NCCL_FUNCTIONS(X)     \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommGetAsyncError)  \
    X(ncclCommAbort)          \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclSend)               \
    X(ncclRecv)               \
    X(ncclGetErrorString)     \
    X(ncclGetLastError)

struct qr_cuda_nccl {
    void *library;
    char file[512];
    int version;
#define QR_X(name) name##_fn *name##_;
    NCCL_FUNCTIONS(QR_X)
#undef QR_X
    ncclComm_t comm;
    int32_t n_ranks;
    uint64_t n_exchanges;
    bool is_marked; /* the last exchange is in the stream, and its end marked */
};

/* --- Opening --- */

static bool open_library(const char *path, void *arg) {
    void **library = static_cast<void **>(arg);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return *library != NULL;
}

static void *find_library(const qr_cuda_backend *cuda, const char *named) {
    void *library = NULL;
    if (named != NULL) {
        open_library(named, &library);
    } else if (qr_device_link_searches(cuda->device)) {
        qr_library_search("libnccl.so.2", open_library, &library);
    }
    return library;
}

/* The name of a function that the library does not have, or NULL. */
static const char *find_functions(qr_cuda_nccl *nccl) {
#define QR_X(name)                                       \
    {                                                    \
        void *symbol = dlsym(nccl->library, #name);      \
        if (symbol == NULL) { return #name; }            \
        memcpy(&nccl->name##_, &symbol, sizeof(void *)); \
    }
    NCCL_FUNCTIONS(QR_X)
#undef QR_X
    return NULL;
}

/* Status, what was asked for, and what the library says of it. */
static qrun_status check(const qr_cuda_nccl *nccl, ncclResult_t result, const char *what, qr_error *err) {
    if (result == ncclSuccess || result == ncclInProgress) { return QRUN_OK; }
    const char *text = nccl->ncclGetErrorString_(result), *more = nccl->ncclGetLastError_(nccl->comm);
    const bool has_more = more != NULL && more[0] != '\0';
    return qr_fail(err, QRUN_ERROR_DEVICE, "nccl: %s: %s%s%.300s (NCCL_DEBUG=WARN says more)", what,
                   text != NULL ? text : "unknown", has_more ? ": " : "", has_more ? more : "");
}

static void close_library(qr_cuda_nccl *nccl) {
    if (nccl->library != NULL) { dlclose(nccl->library); }
    qr_free(nccl);
}

static qrun_status open_nccl(qr_cuda_backend *cuda, qr_error *err) {
    struct link_map *map = NULL;
    const char *named = NULL;
    bool wanted;
    QR_RETURN_IF_ERROR(qr_device_switch_read("QRUN_CUDA_NCCL", &wanted, &named, err));
    if (!wanted) { return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "NCCL is off: QRUN_CUDA_NCCL"); }
    qr_cuda_nccl *nccl = static_cast<qr_cuda_nccl *>(qr_alloc_zeroed(sizeof(qr_cuda_nccl)));
    if (nccl == NULL) { return qr_fail_memory(err, "the links of the ranks", sizeof(qr_cuda_nccl)); }
    nccl->library = find_library(cuda, named);
    if (nccl->library == NULL) {
        close_library(nccl);
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       named != NULL ? "QRUN_CUDA_NCCL names no library that can be opened"
                                     : "libnccl.so.2 was not found");
    }
    const char *missing = find_functions(nccl);
    if (missing != NULL) {
        close_library(nccl);
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "libnccl.so.2 has no %s: NCCL 2.14 or newer is needed", missing);
    }
    const bool known = dlinfo(nccl->library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL;
    snprintf(nccl->file, sizeof nccl->file, "%s", known ? map->l_name : "libnccl.so.2");
    const qrun_status status = check(nccl, nccl->ncclGetVersion_(&nccl->version), "asking for its version", err);
    if (status != QRUN_OK || nccl->version < NCCL_LEAST_VERSION) {
        const int version = nccl->version;
        close_library(nccl);
        return status != QRUN_OK ? status
                                 : qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                                           "libnccl.so.2 is of version %d: 2.14 (21400) or newer is needed", version);
    }
    qr_device_link_state(cuda->device) = nccl;
    return QRUN_OK;
}

static qr_cuda_nccl *nccl_of(qr_backend *backend) { return qr_device_link_state(qr_cuda(backend)->device); }

void qr_cuda_links_close(qr_cuda_backend *cuda) {
    if (cuda->device == NULL || nccl_of(&cuda->base) == NULL) { return; }
    qr_cuda_links.leave(&cuda->base);
    close_library(nccl_of(&cuda->base));
    qr_device_link_state(cuda->device) = NULL;
}

static qrun_status find(qr_backend *backend, qr_link_end *own, qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    if (nccl_of(backend) == NULL) { QR_RETURN_IF_ERROR(open_nccl(cuda, err)); }
    own->device = qr_device_link_id(cuda->device);
    own->version = nccl_of(backend)->version;
    return QRUN_OK;
}

static void describe(qr_backend *backend, char *text, size_t n_bytes) {
    enum { THOUSAND = 10000, HUNDRED = 100 };
    const qr_cuda_nccl *nccl = nccl_of(backend);
    int used = snprintf(text, n_bytes, "NCCL %d.%d.%d, %s", nccl->version / THOUSAND,
                        nccl->version % THOUSAND / HUNDRED, nccl->version % HUNDRED, nccl->file);
    for (char **variable = environ; *variable != NULL; variable++) {
        if (strncmp(*variable, "NCCL_", sizeof "NCCL_" - 1) != 0) { continue; }
        if (used < 0 || static_cast<size_t>(used) >= n_bytes) { return; }
        used += snprintf(text + used, n_bytes - static_cast<size_t>(used), ", %.100s", *variable);
    }
}

/* --- The group --- */

static qrun_status make_id(qr_backend *backend, unsigned char id[QR_LINK_ID_BYTES], qr_error *err) {
    const qr_cuda_nccl *nccl = nccl_of(backend);
    ncclUniqueId made = {};
    QR_RETURN_IF_ERROR(check(nccl, nccl->ncclGetUniqueId_(&made), "making an id for the ranks", err));
    memcpy(id, made.internal, QR_LINK_ID_BYTES);
    return QRUN_OK;
}

static qrun_status join(qr_backend *backend, const unsigned char id[QR_LINK_ID_BYTES], int32_t rank, int32_t n_ranks,
                        qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    qr_cuda_nccl *nccl = nccl_of(backend);
    ncclUniqueId given = {};
    ncclConfig_t config = {sizeof config, static_cast<unsigned>(NCCL_CONFIG_MAGIC), NCCL_CONFIG_VERSION, 0};
    void *stream; /* the library takes the GPU that is the thread's */
    memcpy(given.internal, id, QR_LINK_ID_BYTES);
    QR_RETURN_IF_ERROR(qr_device_link_begin(cuda->device, &stream, err));
    nccl->n_ranks = n_ranks;
    nccl->n_exchanges = 0;
    nccl->is_marked = true;
    return check(nccl, nccl->ncclCommInitRankConfig_(&nccl->comm, n_ranks, given, rank, &config), "joining the ranks",
                 err);
}

/* What has been waited for is done, so nothing is lost by an abort, which waits for no other rank. */
static void leave(qr_backend *backend) {
    qr_cuda_nccl *nccl = nccl_of(backend);
    if (nccl == NULL || nccl->comm == NULL) { return; }
    (void)nccl->ncclCommAbort_(nccl->comm);
    nccl->comm = NULL;
}

/* --- An exchange --- */

/* Between the two ends of a group, the last of which it has in any case. */
static qrun_status put_parcels(qr_cuda_nccl *nccl, const qr_parcel *sent, const qr_parcel *received, void *stream,
                               qr_error *err) {
    for (int32_t r = 0; r < nccl->n_ranks; r++) {
        if (sent[r].n_bytes > 0) {
            QR_RETURN_IF_ERROR(check(nccl,
                                     nccl->ncclSend_(sent[r].memory, sent[r].n_bytes, ncclUint8, r, nccl->comm, stream),
                                     "sending to a rank", err));
        }
        if (received[r].n_bytes > 0) {
            QR_RETURN_IF_ERROR(
                check(nccl, nccl->ncclRecv_(received[r].memory, received[r].n_bytes, ncclUint8, r, nccl->comm, stream),
                      "receiving from a rank", err));
        }
    }
    return QRUN_OK;
}

static qrun_status exchange(qr_backend *backend, const qr_parcel *sent, const qr_parcel *received, uint64_t *ticket,
                            qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    qr_cuda_nccl *nccl = nccl_of(backend);
    void *stream;
    *ticket = 0;
    if (nccl == NULL || nccl->comm == NULL) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "nccl: the GPUs of the ranks have not joined");
    }
    QR_RETURN_IF_ERROR(qr_device_link_begin(cuda->device, &stream, err));
    QR_RETURN_IF_ERROR(check(nccl, nccl->ncclGroupStart_(), "beginning an exchange", err));
    const qrun_status status = put_parcels(nccl, sent, received, stream, err);
    const ncclResult_t ended = nccl->ncclGroupEnd_();
    QR_RETURN_IF_ERROR(status);
    QR_RETURN_IF_ERROR(check(nccl, ended, "an exchange", err));
    nccl->is_marked = false;
    *ticket = ++nccl->n_exchanges;
    return QRUN_OK;
}

/* What a communicator is still preparing is not in the stream yet. */
static qrun_status poll_nccl(qr_backend *backend, uint64_t ticket, bool *done, qr_error *err) {
    qr_cuda_backend *cuda = qr_cuda(backend);
    qr_cuda_nccl *nccl = nccl_of(backend);
    ncclResult_t state = ncclSuccess;
    *done = false;
    if (nccl == NULL || nccl->comm == NULL) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "nccl: the GPUs of the ranks have not joined");
    }
    QR_RETURN_IF_ERROR(
        check(nccl, nccl->ncclCommGetAsyncError_(nccl->comm, &state), "asking how the ranks are joined", err));
    QR_RETURN_IF_ERROR(check(nccl, state, ticket == 0 ? "joining the ranks" : "an exchange", err));
    if (state == ncclInProgress) { return QRUN_OK; }
    if (!nccl->is_marked) {
        QR_RETURN_IF_ERROR(qr_device_link_mark(cuda->device, err));
        nccl->is_marked = true;
    }
    if (ticket > 0) { return qr_device_link_is_done(cuda->device, done, err); }
    *done = true;
    return QRUN_OK;
}

const qr_device_links qr_cuda_links = {"NCCL", find, describe, make_id, join, exchange, poll_nccl, leave};
