/* A timeline as the snapshot of an allocator that torch.cuda._memory_viz and pytorch.org/memory_viz open: a segment for
 * each category of the plan, and in time an allocation for each life of a tensor. Addresses are made up: a category has
 * a range of its own, in which tensors keep their distances. The frames of an allocation are its tensor, with the
 * category for a file and the layer for a line, and the op that filled it. */
#ifndef QRUN_CLI_PROFILE_MEMORY_SNAPSHOT_H
#define QRUN_CLI_PROFILE_MEMORY_SNAPSHOT_H

#include "cli/profile/live_memory.h"
#include "cli/terminal/text.h"

void memory_snapshot_write(const qrun_timeline *timeline, text_buffer *out);

#endif
