/* Scalars for TensorBoard: a file of TFRecords (a length and the record, each with its masked CRC-32C), whose records
 * are Event messages of protocol buffers (tensorboard/compat/proto/event.proto, summary.proto). */
#ifndef QRUN_CLI_PROFILE_EVENT_FILE_H
#define QRUN_CLI_PROFILE_EVENT_FILE_H

#include "cli/terminal/text.h"

typedef struct event_scalar {
    const char *tag; /* "loss", "phases/forward" */
    double value;    /* stored as a float */
} event_scalar;

/* Appends the record that a file begins with, and one of scalars of a step. seconds: since 1970. */
void event_file_begin(text_buffer *out, double seconds);
void event_file_scalars(text_buffer *out, double seconds, int64_t step, const event_scalar *scalars, int n_scalars);

#endif
