/* How much shared memory a block may have on the device that launches it. */
#ifndef QR_TESTS_SHARED_LIMIT_H
#define QR_TESTS_SHARED_LIMIT_H

#include <stddef.h>

namespace simt {

/* Of the launches that follow; a block with more ends the program. */
void set_shared_limit(size_t n_bytes);

} // namespace simt

#endif
