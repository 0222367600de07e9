/* The library's messages name fields of qrun.h: `memory_bytes`, or with a value `checkpointing=full`. Here they become
 * the options that set these fields: --memory, --checkpointing full. Every text of the library that a person reads goes
 * through here. */
#ifndef QRUN_CLI_TERMINAL_API_NAMES_H
#define QRUN_CLI_TERMINAL_API_NAMES_H

enum { API_NAMES_TEXT_BYTES = 1280 }; /* more than the longest message of the library */

/* Writes message, with options instead of fields, into out, which is returned: NUL-terminated, cut where it is too
 * long. */
char *api_names_to_options(const char *message, char out[API_NAMES_TEXT_BYTES]);
/* The same into memory of its own (free). */
char *api_names_copy(const char *message);

#endif
