/* A JSON text laid out for people: members as aligned lines, objects as headings, arrays of objects as tables. */
#ifndef QRUN_CLI_TERMINAL_JSON_VIEW_H
#define QRUN_CLI_TERMINAL_JSON_VIEW_H

#include <stdbool.h>

/* Another heading for the members of this name. */
typedef struct json_view_title {
    const char *name, *title;
} json_view_title;

/* False when the text is not a JSON object. Prints to stdout. Members whose names end in "_bytes" are shown as sizes.
 * `titles` ends with a NULL name. */
bool json_view_print(const char *json, const json_view_title *titles);

#endif
