/* For fuzz targets of parts of the program: its messages, unseen, and its memory. Include it once. */
#ifndef QR_TESTS_FUZZ_PROGRAM_H
#define QR_TESTS_FUZZ_PROGRAM_H

#include <stdarg.h>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "fuzz.h"

int complain(int code, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    FUZZ_CHECK(vsnprintf(text, sizeof text, format, arguments) > 0);
    va_end(arguments);
    return code;
}

int complain_stdout(int error_number) {
    (void)error_number;
    return EXIT_FILE;
}

void progress_clear(void) {}

bool interrupted(void) { return false; }

void *reallocate(void *memory, size_t n_bytes) {
    void *grown = realloc(memory, n_bytes > 0 ? n_bytes : 1);
    FUZZ_CHECK(grown != NULL);
    return grown;
}

void *reallocate_for_more(void *items, int64_t count, int64_t *capacity, size_t item_bytes) {
    if (count < *capacity) { return items; }
    *capacity = *capacity > 0 ? 2 * *capacity : 64;
    return reallocate(items, (size_t)*capacity * item_bytes);
}

void *allocate(size_t n_bytes) { return memset(reallocate(NULL, n_bytes), 0, n_bytes); }

#endif
