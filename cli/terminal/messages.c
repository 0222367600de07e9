#include "cli/terminal/messages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/api_names.h"
#include "cli/terminal/printable.h"
#include "cli/terminal/progress.h"

static int own_rank;

void messages_are_of_rank(int rank) { own_rank = rank; }

int complain(int code, const char *format, ...) {
    char line[8192]; /* more than a path and a message of the library; what is longer is cut */
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(line, sizeof line, format, arguments) < 0) { line[0] = '\0'; }
    va_end(arguments);
    printable_line(line);
    progress_clear();
    if (own_rank > 0) {
        fprintf(stderr, "qrun: rank %d: %s\n", own_rank, line);
    } else {
        fprintf(stderr, "qrun: %s\n", line);
    }
    return code;
}

static int exit_code_of(qrun_status status) {
    switch (status) {
        case QRUN_OK: return EXIT_OK;
        case QRUN_ERROR_ARGUMENT: return EXIT_USAGE;
        case QRUN_ERROR_NOT_FOUND:
        case QRUN_ERROR_IO:
        case QRUN_ERROR_INPUT:
        case QRUN_ERROR_UNSUPPORTED:
        case QRUN_ERROR_BUSY: return EXIT_FILE; /* another program has the folder */
        case QRUN_ERROR_MEMORY:
        case QRUN_ERROR_FULL: return EXIT_MEMORY;
        case QRUN_ERROR_CANCELLED: return EXIT_INTERRUPTED;
        case QRUN_ERROR_DEVICE:
        case QRUN_ERROR_RANK:
        case QRUN_ERROR_INTERNAL: return EXIT_ENGINE;
    }
    return EXIT_ENGINE;
}

int complain_error(const qrun_error *error) {
    const char *message = error->message[0] != '\0' ? error->message : qrun_status_message(error->status);
    char text[API_NAMES_TEXT_BYTES];
    if (error->status == QRUN_ERROR_RANK) { return exit_code_of(error->status); }
    return complain(exit_code_of(error->status), "%s", api_names_to_options(message, text));
}

int complain_unless_ok(qrun_status status, const qrun_error *error) {
    return status == QRUN_OK ? EXIT_OK : complain_error(error);
}

void *reallocate(void *memory, size_t n_bytes) {
    void *grown = realloc(memory, n_bytes > 0 ? n_bytes : 1);
    if (grown == NULL) { exit(complain(EXIT_MEMORY, "out of memory (%zu bytes)", n_bytes)); }
    return grown;
}

void *reallocate_for_more(void *items, int64_t count, int64_t *capacity, size_t item_bytes) {
    if (count < *capacity) { return items; }
    *capacity = *capacity > 0 ? 2 * *capacity : 64;
    return reallocate(items, (size_t)*capacity * item_bytes);
}

void *allocate(size_t n_bytes) { return memset(reallocate(NULL, n_bytes), 0, n_bytes); }

int complain_stdout(int error_number) {
    static bool told;
    const bool is_news = !told && error_number != EPIPE;
    told = true;
    if (!is_news) { return EXIT_FILE; }
    return complain(EXIT_FILE, "cannot write to stdout: %s",
                    error_number != 0 ? strerror(error_number) : "an earlier write failed");
}

int finish_stdout(int code) {
    const bool failed_before = ferror(stdout) != 0;
    errno = 0;
    return fflush(stdout) == 0 && !failed_before ? code : complain_stdout(errno);
}
