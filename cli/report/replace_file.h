/* Files that are there whole or not at all. */
#ifndef QRUN_CLI_REPORT_REPLACE_FILE_H
#define QRUN_CLI_REPORT_REPLACE_FILE_H

#include <stdbool.h>

#include "cli/terminal/text.h"

/* Writes `content` to disk as `path`.partial, and then renames it. Returns 0 or an exit code, after telling
 * the user; what was there before then stays. */
int replace_file(const char *path, const text_buffer *content);

/* Writes all of `content` at the descriptor's position; false with errno set. */
bool write_whole(int descriptor, const text_buffer *content);

#endif
