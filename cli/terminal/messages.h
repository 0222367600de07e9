/* What qrun tells the user on stderr, and the exit code that goes with it. */
#ifndef QRUN_CLI_TERMINAL_MESSAGES_H
#define QRUN_CLI_TERMINAL_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "qrun.h"

#if defined(__GNUC__)
#define CLI_PRINTF(format_index, arguments_index) __attribute__((format(printf, format_index, arguments_index)))
#else
#define CLI_PRINTF(format_index, arguments_index)
#endif

/* What the shell sees; `qrun help` documents them. */
typedef enum exit_code {
    EXIT_OK = 0,
    EXIT_SOME_FAILED = 1,  /* some requests failed, the others were answered */
    EXIT_USAGE = 2,        /* wrong options or arguments */
    EXIT_FILE = 3,         /* a model or file cannot be read or written */
    EXIT_MEMORY = 4,       /* out of memory, or over the memory budget */
    EXIT_ENGINE = 5,       /* the device failed, or qrun itself is wrong */
    EXIT_NO_FIT = 6,       /* a plan that was asked for does not fit into the memory */
    EXIT_INTERRUPTED = 130 /* SIGINT, SIGTERM or SIGHUP */
} exit_code;

/* Writes "qrun: …" and a newline to stderr, after clearing a progress bar; returns `code`. It is one line, whatever the
 * arguments have: control characters become '?'. */
int complain(int code, const char *format, ...) CLI_PRINTF(2, 3);

/* The same without a verdict, for advice and notes. */
#define notify(...) ((void)complain(EXIT_OK, __VA_ARGS__))

/* Of several ranks, this one's number is put before its messages; 0: nothing is. */
void messages_are_of_rank(int rank);

/* The library's message, and the exit code for its status. Silent where another rank failed, because rank 0 says it. */
int complain_error(const qrun_error *error);
/* The same for a call of the library that may have succeeded: EXIT_OK then. */
int complain_unless_ok(qrun_status status, const qrun_error *error);

/* Returns an exit code other than EXIT_OK from the function that it is in. */
#define RETURN_IF_FAILED(call)                  \
    do {                                        \
        const int code_ = (call);               \
        if (code_ != EXIT_OK) { return code_; } \
    } while (0)

/* Ends the program with EXIT_MEMORY when the program's own small allocations fail. Zero-initialised; never NULL. */
void *allocate(size_t n_bytes);
void *reallocate(void *memory, size_t n_bytes);
/* An array of `count` items with room for one more; *capacity counts items too. */
void *reallocate_for_more(void *items, int64_t count, int64_t *capacity, size_t item_bytes);

/* Says once that stdout (on a full disk, say) does not take what is written; silent when its reader went away. Returns
 * EXIT_FILE. */
int complain_stdout(int error_number);
/* Flushes stdout and checks that it took everything: `code`, or EXIT_FILE after telling the user. */
int finish_stdout(int code);

#endif
