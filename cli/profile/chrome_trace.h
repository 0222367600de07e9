/* A timeline in Chrome's trace event format (JSON), which Perfetto and chrome://tracing open: a track of phases, one of
 * layers and their parts, one of ops, copies and waits, and the live memory of each category as a counter. Times are in
 * microseconds. */
#ifndef QRUN_CLI_PROFILE_CHROME_TRACE_H
#define QRUN_CLI_PROFILE_CHROME_TRACE_H

#include "cli/profile/live_memory.h"
#include "cli/terminal/text.h"

void chrome_trace_write(const qrun_timeline *timeline, const live_memory *memory, text_buffer *out);

#endif
