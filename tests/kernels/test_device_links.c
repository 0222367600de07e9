/* The links between GPUs (kernels/device_links.h), with one rank that sends to itself: NCCL on a machine that has one,
 * and its stand-in over tests/simt. Exit code 77: there is no GPU, or no NCCL, and why. */
#include "check.h"

#include <time.h>

#include "base/clock.h"
#include "kernels/device_links.h"

enum { N_BYTES = 1 << 20, N_EXCHANGES = 3, MOST_SECONDS = 60, EXIT_SKIPPED = 77 };

static qr_backend *backend;
static const qr_device_links *links;
static qr_error err;

#define REQUIRE_OK(call)                                              \
    do {                                                              \
        const qrun_status required = (call);                          \
        CHECK_MSG(required == QRUN_OK, "%s: %s", #call, err.message); \
        if (required != QRUN_OK) { return; }                          \
    } while (0)

static qrun_status wait_for(uint64_t ticket) {
    const struct timespec pause = {.tv_nsec = 100000};
    const double deadline = qr_now_seconds() + MOST_SECONDS;
    for (bool done = false; !done;) {
        QR_RETURN_IF_ERROR(links->poll(backend, ticket, &done, &err));
        if (!done && qr_now_seconds() > deadline) { return qr_fail(&err, QRUN_ERROR_DEVICE, "it takes too long"); }
        if (!done) { (void)nanosleep(&pause, NULL); }
    }
    return QRUN_OK;
}

/* What an op has written is sent, and ops after the exchange see what has come. */
static void test_a_rank_sends_to_itself(void) {
    static unsigned char wanted[N_BYTES], got[N_BYTES];
    unsigned char id[QR_LINK_ID_BYTES];
    void *from = NULL, *to = NULL;
    REQUIRE_OK(backend->memory_create(backend, QR_MEMORY_DEVICE, N_BYTES, &from, &err));
    REQUIRE_OK(backend->memory_create(backend, QR_MEMORY_DEVICE, N_BYTES, &to, &err));
    REQUIRE_OK(links->make_id(backend, id, &err));
    REQUIRE_OK(links->join(backend, id, 0, 1, &err));
    REQUIRE_OK(wait_for(0));
    for (int i = 0; i < N_EXCHANGES; i++) {
        const qr_parcel sent = {from, (size_t)(N_BYTES - i)}, received = {to, (size_t)(N_BYTES - i)};
        uint64_t ticket;
        for (int64_t k = 0; k < N_BYTES; k++) { wanted[k] = (unsigned char)(k * 7 + i); }
        REQUIRE_OK(backend->copy_in(backend, from, wanted, N_BYTES, &err));
        REQUIRE_OK(links->exchange(backend, &sent, &received, &ticket, &err));
        REQUIRE_OK(wait_for(ticket));
        REQUIRE_OK(backend->copy_out(backend, got, to, N_BYTES, &err));
        CHECK(memcmp(got, wanted, (size_t)(N_BYTES - i)) == 0);
    }
    links->leave(backend);
    uint64_t ticket;
    const qr_parcel nothing = {NULL, 0};
    CHECK_INT(links->exchange(backend, &nothing, &nothing, &ticket, &err), QRUN_ERROR_INTERNAL);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, from, N_BYTES);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, to, N_BYTES);
}

int main(int argc, char **argv) {
    qr_link_end own;
    char text[256];
    check_begin(argc, argv);
    if (qr_backend_cuda_create(NULL, &backend, &err) != QRUN_OK || (links = qr_device_links_of(backend)) == NULL ||
        links->find(backend, &own, &err) != QRUN_OK) {
        printf("skipped: %s\n", err.message);
        qr_backend_destroy(backend);
        return EXIT_SKIPPED;
    }
    links->describe(backend, text, sizeof text);
    printf("%s\n", text);
    CHECK_RUN(test_a_rank_sends_to_itself);
    qr_backend_destroy(backend);
    return check_end();
}
