/* What was typed before, kept in a file that only its owner can read: one message a line, in which a line break is \n
 * and a backslash is \\. Each message is added when it is typed, so that several programs may share a file. */
#ifndef QRUN_CLI_TERMINAL_HISTORY_FILE_H
#define QRUN_CLI_TERMINAL_HISTORY_FILE_H

#include <stdbool.h>

#include "cli/terminal/text.h"

/* Zero-initialise. `path` is empty where nothing is kept. */
typedef struct history_file {
    text_buffer path;
    bool is_given; /* by the user: it may be a link, or no regular file, and its folder is there */
    bool failed;   /* said already */
} history_file;

/* Opens `path`; NULL: qrun/NAME in XDG_STATE_HOME, else in ~/.local/state, whose folders are made. Calls take(line) for
 * each of its newest messages, the oldest first. What cannot be read is said, and not kept then. */
void history_file_open(history_file *h, const char *path, const char *name, void (*take)(const char *line));
void history_file_add(history_file *h, const text_buffer *line);
void history_file_close(history_file *h);

#endif
