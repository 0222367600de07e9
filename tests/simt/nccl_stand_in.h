/* What tests/simt's stand-in for libnccl.so.2 and its devices agree on: the stream that the stand-in is given in the
 * place of CUDA's. */
#ifndef QR_TESTS_SIMT_NCCL_STAND_IN_H
#define QR_TESTS_SIMT_NCCL_STAND_IN_H

#include <stdint.h>

/* Work is counted when it is put in, and again when it is done, by whichever thread does it. */
typedef struct simt_stream {
    uint64_t n_begun, n_done; /* by __atomic_… */
} simt_stream;

#endif
