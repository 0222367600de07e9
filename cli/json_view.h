/* A JSON text laid out for people: members as aligned lines, objects as headings, arrays of objects as tables. */
#ifndef QRUN_CLI_JSON_VIEW_H
#define QRUN_CLI_JSON_VIEW_H

#include <stdbool.h>

/* False when the text is no JSON. Prints to stdout. Members whose names end in "_bytes" are shown as sizes. */
bool json_view_print(const char *json);

#endif
