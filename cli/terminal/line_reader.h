/* Lines of a file or a pipe, with a limit: of a longer line no more than that is ever held. */
#ifndef QRUN_CLI_TERMINAL_LINE_READER_H
#define QRUN_CLI_TERMINAL_LINE_READER_H

#include <stdbool.h>
#include <stdio.h>

#include "cli/terminal/text.h"

typedef struct line_reader {
    FILE *stream;
    size_t max_bytes;    /* of a line */
    text_buffer line;    /* without its newline, "\r\n" included; empty where it is too long */
    bool too_long;       /* the line has more than max_bytes, and was passed over */
    int64_t line_number; /* of `line`, from 1 */
} line_reader;

/* Reads a line. False at the end, and where reading failed: ferror(stream), with errno set. */
bool line_reader_next(line_reader *r);

#endif
