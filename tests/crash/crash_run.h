/* Runs of `qrun finetune` that may end badly: the program with its output, what must hold in an output folder at any
 * moment, and whether two runs came to the same end. */
#ifndef QR_TESTS_CRASH_RUN_H
#define QR_TESTS_CRASH_RUN_H

#include "check.h"

#include <sys/types.h>

#include "temporary.h"

/* In memory where there is such a place: what is tested is the order of calls, and a disk takes a second for some
 * hundred of them. */
temporary_folder crash_folder(void);

/* A tiny model with a tokenizer, made of fixtures, in folder/model. */
void crash_make_model(const temporary_folder *folder);

typedef struct crash_result {
    int exit_code;      /* −signal where a signal ended it */
    char message[4096]; /* of stderr */
} crash_result;

/* Starts the program with NULL-terminated arguments; variables (NULL-terminated "NAME=value", or NULL) are added to the
 * environment. stderr goes to the file. */
pid_t crash_start(const char *const *arguments, const char *const *variables, const char *stderr_path);
int crash_wait(pid_t process); /* the exit code, or −signal */
crash_result crash_run(const char *const *arguments, const char *const *variables, const char *stderr_path);

/* Whatever happened to the run in `out`, every name there that promises a whole file or folder keeps it, and there is a
 * checkpoint of `least_step` or later (−1: there need be none). */
void crash_check_folder(const char *out, int64_t least_step);

/* The finished run in `out` is that of `whole`, to the byte: adapter, last checkpoint, metrics but for times; and the
 * same names are in both, nothing half written among them. */
void crash_check_equal(const char *whole, const char *out);

/* The same of the adapter and the metrics alone. */
void crash_check_result(const char *whole, const char *out);

char *crash_read(const char *folder, const char *name, size_t *n_bytes); /* NULL: there is none */

#endif
