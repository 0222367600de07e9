/* What help and the manual say about the program as a whole. */
#ifndef QRUN_CLI_ABOUT_H
#define QRUN_CLI_ABOUT_H

extern const char about_program[]; /* a sentence whose subject is qrun */

/* The last entry of each table has no text. */
typedef struct about_exit_code {
    int code;
    const char *text;
} about_exit_code;

typedef struct about_variable {
    const char *name, *text;
} about_variable;

extern const about_exit_code about_exit_codes[];
extern const about_variable about_environment[];

#endif
