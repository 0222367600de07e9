/* Options of a command, declared as a table from which they are parsed, documented (help.h) and completed
 * (commands/completion.c). Options that several commands share are groups of their own, with a struct that each
 * command's options embed. Accepted spellings: --name value, --name=value, -x value, and "--" before arguments that
 * begin with a dash. Abbreviations are not accepted; a misspelling is answered with the nearest name. */
#ifndef QRUN_CLI_OPTIONS_OPTIONS_H
#define QRUN_CLI_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an option's value becomes. Texts lend from argv. `given` is false until the option appears. */
typedef struct option_int {
    int64_t value;
    bool given;
} option_int;

typedef struct option_seed {
    uint64_t value;
    bool given;
} option_seed;

typedef struct option_number {
    double value;
    bool given;
} option_number;

enum { OPTION_LIST_MAX = 64 };

typedef struct option_texts {
    const char *values[OPTION_LIST_MAX];
    int count;
} option_texts;

typedef struct option_ints {
    int64_t values[OPTION_LIST_MAX];
    int count;
} option_ints;

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char *, NULL until given */
    OPTION_TEXTS,  /* option_texts: may be given several times */
    OPTION_INT,    /* option_int, within [low, high] */
    OPTION_SEED,   /* option_seed: 0 … 2^64 − 1 */
    OPTION_NUMBER, /* option_number, within [low, high] */
    OPTION_BYTES,  /* option_int: 6GiB, 500MB, 1.5G (G alone is GiB) */
    OPTION_CHOICE, /* option_int: the index into `choices` */
    OPTION_INTS    /* option_ints: 1,8,16, each within [low, high] */
} option_kind;

typedef enum option_completion { COMPLETE_NOTHING, COMPLETE_FILE, COMPLETE_FOLDER } option_completion;

typedef struct option {
    const char *name; /* without the dashes */
    char letter;      /* of the short form; 0: none */
    option_kind kind;
    const char *value_name; /* in help: "DIR"; NULL for a flag, and for a choice (its choices are shown) */
    const char *help;
    size_t offset; /* of the value in the group's struct */
    double low, high;
    const char *const *choices; /* NULL-terminated */
    option_completion completion;
    bool neutral; /* does not change what is answered: a job may be resumed with another value */
} option;

typedef struct option_group {
    const char *title;
    const option *options;
    size_t n_options;
    size_t offset; /* of the group's struct in the command's options */
} option_group;

#define OPTION_GROUP(title_, table, offset_) \
    { title_, table, sizeof(table) / sizeof((table)[0]), offset_ }

struct command;
struct text_buffer;

/* Parses argv[0, argc) (after the command's name) into `values` (zero-initialised by the caller) and gathers what is
 * no option in `arguments`. Returns 0, or an exit code after it has told the user what is wrong. *help is set, and
 * parsing ends, at --help or -h. */
int options_parse(const struct command *command, int argc, char **argv, void *values, option_texts *arguments,
                  bool *help);

/* The options that were given and are not neutral, as a JSON object of texts by option name. */
void options_describe(const struct command *command, const void *values, struct text_buffer *out);

/* "6GiB" in bytes; false when `text` is no size. */
bool parse_bytes(const char *text, int64_t *bytes);

#endif
