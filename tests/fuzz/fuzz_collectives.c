/* What a rank reads of the network. The first byte says which: the hello of someone who connects, or the frames of two
 * other ranks, of which the first has as many bytes as the two next ones say. An exchange succeeds where every frame is
 * what it waits for, and then gives exactly its bytes; it fails with one line otherwise, and so does all that follows.
 */
#include <sys/socket.h>

#include "base/sizes.h"
#include "fuzz.h"
#include "kernels/collectives/sockets.h"

enum { N_RANKS = 3, MAX_BYTES = 8192, MOST_PARTS = 64, FRAME_BYTES = 16, DATA_FRAME = 0x71726431 };

static const qr_launch launch = {.launcher = QR_LAUNCHER_TORCHRUN, .n_ranks = N_RANKS, .n_local_ranks = 1, .job = 7};

/* What a rank has sent, and how much of it was waited for. */
typedef struct stream {
    const uint8_t *bytes;
    size_t n, at;
} stream;

static void check_line(const qr_error *err) {
    FUZZ_CHECK(err->message[0] != '\0' && strchr(err->message, '\n') == NULL);
}

/* A connection on which these bytes have come, and no more will. *other: its other end. */
static int connection_with(const uint8_t *bytes, size_t n, int *other) {
    int ends[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    FUZZ_CHECK(n == 0 || send(ends[1], bytes, n, 0) == (ssize_t)n);
    FUZZ_CHECK(shutdown(ends[1], SHUT_WR) == 0);
    *other = ends[1];
    return ends[0];
}

/* ---- The hello --------------------------------------------------------------------------------------------------- */

static void check_hello(const uint8_t *bytes, size_t n) {
    const int descriptors[N_RANKS] = {-1, -1, 5};
    qr_error err = {0};
    int32_t rank;
    uint16_t port;
    int other;
    const int connection = connection_with(bytes, n, &other);
    const qrun_status status = qr_sockets_greet(&launch, descriptors, -1, connection, &rank, &port, &err);
    FUZZ_CHECK(rank == -1 || rank == 1); /* 0 is this rank, and 2 is there already */
    FUZZ_CHECK(status == QRUN_OK || rank == -1);
    if (status != QRUN_OK) { check_line(&err); }
    close(connection);
    close(other);
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* The bytes of the exchange's frame, or NULL where what came is another one. */
static const uint8_t *take_frame(stream *s, uint32_t exchange, uint64_t n_bytes) {
    uint32_t words[2];
    uint64_t length;
    if (s->n - s->at < FRAME_BYTES) { return NULL; }
    memcpy(words, s->bytes + s->at, sizeof words);
    memcpy(&length, s->bytes + s->at + sizeof words, sizeof length);
    if (words[0] != DATA_FRAME || words[1] != exchange || length != n_bytes) { return NULL; }
    if (s->n - s->at - FRAME_BYTES < n_bytes) { return NULL; }
    s->at += FRAME_BYTES + (size_t)n_bytes;
    return s->bytes + s->at - (size_t)n_bytes;
}

/* One exchange: n[r] bytes from rank r. False where it failed, as it had to. */
static bool exchange(qr_collectives *c, stream *streams, uint32_t number, const size_t *n) {
    unsigned char memory[N_RANKS][MOST_PARTS], own[4] = "own";
    qr_parcel sent[N_RANKS], received[N_RANKS];
    const uint8_t *expected[N_RANKS];
    bool all = true;
    qr_error err = {0};
    for (int32_t r = 0; r < N_RANKS; r++) {
        sent[r] = (qr_parcel){own, sizeof own};
        received[r] = (qr_parcel){memory[r], n[r]};
        expected[r] = r > 0 && n[r] > 0 ? take_frame(&streams[r], number, n[r]) : NULL;
        all = all && (r == 0 || n[r] == 0 || expected[r] != NULL);
    }
    const qrun_status status = qr_all_to_all(c, sent, received, &err);
    FUZZ_CHECK((status == QRUN_OK) == all);
    for (int32_t r = 1; r < N_RANKS && all; r++) { FUZZ_CHECK(n[r] == 0 || memcmp(memory[r], expected[r], n[r]) == 0); }
    if (!all) { check_line(&err); }
    return all;
}

static void check_frames(stream *streams) {
    static const size_t sizes[][N_RANKS] = {{0, 5, 0}, {0, 1, MOST_PARTS}, {0, 16, 16}};
    int descriptors[N_RANKS] = {-1}, others[N_RANKS];
    qr_collectives *c = NULL;
    qr_error err = {0};
    for (int32_t r = 1; r < N_RANKS; r++) {
        descriptors[r] = connection_with(streams[r].bytes, streams[r].n, &others[r]);
    }
    FUZZ_CHECK(qr_sockets_create(&launch, 60, descriptors, &c, &err) == QRUN_OK);
    uint32_t number = 1;
    bool ok = true;
    for (size_t i = 0; i < QR_COUNT_OF(sizes) && ok; i++) { ok = exchange(c, streams, number++, sizes[i]); }
    FUZZ_CHECK(ok != c->lost);
    const qrun_status status = qr_agree(c, QRUN_OK, &err);
    FUZZ_CHECK(ok || status != QRUN_OK);
    if (status != QRUN_OK) {
        check_line(&err);
        FUZZ_CHECK(status < 0 && status >= QRUN_ERROR_RANK);
    }
    qr_collectives_destroy(c);
    for (int32_t r = 1; r < N_RANKS; r++) { close(others[r]); }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > MAX_BYTES) { return 0; }
    if (data[0] % 2 == 0) {
        check_hello(data + 1, size - 1);
        return 0;
    }
    const size_t n = size - 3, said = (size_t)data[1] | (size_t)data[2] << 8, n_first = said < n ? said : n;
    stream streams[N_RANKS] = {{0}, {data + 3, n_first, 0}, {data + 3 + n_first, n - n_first, 0}};
    check_frames(streams);
    return 0;
}
