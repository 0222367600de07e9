/* What ranks send each other out of the memory of one device into that of another, without the host's: NCCL on GPUs.
 * kernels/collectives/devices.c alone calls it.
 *
 * One exchange at a time. Nothing here waits: who waits asks `poll` again and has a time limit, so that a rank which is
 * gone ends no other one's patience but its own. */
#ifndef QR_KERNELS_DEVICE_LINKS_H
#define QR_KERNELS_DEVICE_LINKS_H

#include "kernels/backend.h"
#include "kernels/collectives.h"

enum { QR_LINK_ID_BYTES = 128 };

typedef struct qr_link_end {
    uint64_t device; /* the same for two ranks that have one device */
    int32_t version; /* of what links them: the same on all, as major · 10000 + minor · 100 + patch */
} qr_link_end;

typedef struct qr_device_links {
    const char *name; /* "NCCL" */
    /* QRUN_ERROR_UNSUPPORTED, with the reason: this device cannot be linked. */
    qrun_status (*find)(qr_backend *backend, qr_link_end *own, qr_error *err);
    /* One line: the file, and the variables of the environment that it reads. */
    void (*describe)(qr_backend *backend, char *text, size_t n_bytes);
    /* What all ranks have to know of the group that they form: made by one of them. */
    qrun_status (*make_id)(qr_backend *backend, unsigned char id[QR_LINK_ID_BYTES], qr_error *err);
    /* Begins to join; poll(0) says when all have. */
    qrun_status (*join)(qr_backend *backend, const unsigned char id[QR_LINK_ID_BYTES], int32_t rank, int32_t n_ranks,
                        qr_error *err);
    /* Parcels [n_ranks] of device memory, the own one too where it has bytes. It begins when what has been issued to
     * the backend is done, and ops issued after it may run meanwhile. */
    qrun_status (*exchange)(qr_backend *backend, const qr_parcel *sent, const qr_parcel *received, uint64_t *ticket,
                            qr_error *err);
    /* *done: the ops that are issued from now on see what has arrived. */
    qrun_status (*poll)(qr_backend *backend, uint64_t ticket, bool *done, qr_error *err);
    /* Ends what is under way too, whether the other ranks are there or not. */
    void (*leave)(qr_backend *backend);
} qr_device_links;

/* Those of a backend's kind of device; NULL: it has none. */
const qr_device_links *qr_device_links_of(const qr_backend *backend);

/* Which GPU: the one that CUDA gives the number `ordinal`, of those that CUDA_VISIBLE_DEVICES leaves. −1: of those that
 * can be used, the local_rank-th: each rank of a machine has its own, as long as there are enough. */
typedef struct qr_gpu_choice {
    int32_t ordinal, local_rank;
} qr_gpu_choice;

/* qr_backend_cuda_create of that GPU. QRUN_ERROR_ARGUMENT, with how many there are: there is none of that number. */
qrun_status qr_backend_cuda_create_for(const qr_gpu_choice *choice, qr_threads *threads, qr_backend **backend,
                                       qr_error *err);

#endif
