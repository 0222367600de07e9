/* A YAML file of options: one mapping from names to values, or to lists of values. Read event by event, so nothing is
 * expanded: anchors, aliases and tags are refused, and so is what is nested more deeply. Every value is a text as it
 * stands in the file; its option says what it means (1e-4 is a number there, whatever YAML calls it). */
#ifndef QRUN_CLI_OPTIONS_CONFIG_H
#define QRUN_CLI_OPTIONS_CONFIG_H

#include <stdint.h>

typedef struct config_entry {
    char *name, *value;
    int64_t line; /* from 1 */
} config_entry;

/* Zero-initialise. A list gives an entry for each of its values. */
typedef struct config {
    config_entry *entries;
    int64_t n_entries, capacity;
} config;

/* Returns 0, or an exit code after telling the user. A name that is there twice is refused. */
int config_read(config *file, const char *path);
void config_free(config *file);

#endif
