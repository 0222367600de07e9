/* What a kernel that is launched early does before it waits for the kernels ahead. On a GPU those may not have run yet.
 * Here they have, and so the first block's threads run up to their wait with every word that those kernels changed
 * poisoned. Then memory is as it was, and it is an error if a thread wrote to it. A copy orders everything.
 *
 * The kernels ahead are those back to the last one that was not launched early. With much device memory, only a random
 * part of the launches is looked at. */
#ifndef QR_TESTS_SIMT_EARLY_LAUNCH_H
#define QR_TESTS_SIMT_EARLY_LAUNCH_H

#include <stddef.h>

namespace simt {

/* Device memory comes and goes. */
void early_add_memory(void *memory, size_t n_bytes);
void early_remove_memory(void *memory);

/* Before a launch. Whether its first block is to be held up at its wait. */
bool early_before_launch(bool early);
void early_poison();
/* Whether nothing was written since early_poison. */
bool early_restore();

/* All that was issued so far is done before what follows. */
void early_order_all();
/* From now on, or no longer, somebody else writes to device memory (device_link_stream.cc): nothing is looked at. */
void early_others_write(bool write);

} // namespace simt

#endif
