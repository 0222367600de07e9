/* The library's messages name fields of qrun.h: `memory_bytes`, or with a value `checkpointing=full`. Here they become
 * the options that set these fields: --memory, --checkpointing full. */
#ifndef QRUN_CLI_TERMINAL_API_NAMES_H
#define QRUN_CLI_TERMINAL_API_NAMES_H

#include <stddef.h>

/* Writes message, with options in place of fields, into out[0, n_bytes): NUL-terminated, cut where it is too long.
 * Returns out. */
char *api_names_to_options(const char *message, char *out, size_t n_bytes);

#endif
