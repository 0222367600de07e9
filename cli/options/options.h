/* Options of a command, declared as a table from which they are parsed, documented (help.h) and completed
 * (commands/completion.c). Options that several commands share are groups of their own, with a struct that each
 * command's options embed. Accepted spellings: --name value, --name=value, -x value, and "--" before arguments that
 * begin with a dash. Abbreviations are not accepted; another program's word for an option is answered with ours
 * (peers.h), and a misspelling with the nearest name. An option is given once, unless its kind is a list of values. */
#ifndef QRUN_CLI_OPTIONS_OPTIONS_H
#define QRUN_CLI_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options/config.h"

/* Texts lend from argv. */
enum { OPTION_LIST_MAX = 64 };

typedef struct option_texts {
    const char *values[OPTION_LIST_MAX];
    int count;
} option_texts;

typedef struct option_ints {
    int32_t values[OPTION_LIST_MAX];
    int count;
} option_ints;

typedef struct option_numbers {
    double values[OPTION_LIST_MAX];
    int count;
} option_numbers;

/* What an option's value is, and the type of the field that it goes to. */
typedef enum option_kind {
    OPTION_FLAG,    /* bool: true */
    OPTION_TEXT,    /* const char * */
    OPTION_TEXTS,   /* option_texts: may be given several times */
    OPTION_INT,     /* int32_t or int64_t, within [low, high]; or by the name of one of the choices, if it has some */
    OPTION_SEED,    /* uint64_t: 0 … 2^64 − 1 */
    OPTION_NUMBER,  /* float or double, within [low, high] */
    OPTION_NUMBERS, /* option_numbers, each within [low, high]: may be given several times */
    OPTION_BYTES,   /* int64_t: 6GiB, 500MB, 1.5G, in any case of letters (G alone is GiB); choices as of OPTION_INT,
                       also as NAME:SIZE, which is SIZE */
    OPTION_CHOICE,  /* an enum or a bool: the choice's value; const char *: its name */
    OPTION_SET,     /* an enum: names of choices separated by commas; the sum of their values */
    OPTION_INTS     /* option_ints: 1,8,16, each within [low, high] */
} option_kind;

typedef struct option_choice {
    const char *name;
    int value; /* of a text: 1, which ":" and a number may follow, or 0 */
} option_choice;

typedef enum option_completion { COMPLETE_NOTHING, COMPLETE_FILE, COMPLETE_FOLDER } option_completion;

typedef struct option {
    const char *name; /* without the dashes */
    char letter;      /* of the short form; 0: none */
    option_kind kind;
    const char *value_name; /* in help: "DIR"; NULL for a flag, and for a choice (its choices are shown) */
    const char *help;
    size_t offset, bytes; /* of the field that parsing fills, in the group's struct: INTO(struct, field) */
    double low, high;
    const option_choice *choices; /* the last has a NULL name */
    option_completion completion;
    bool neutral; /* does not change the answers: a job may be resumed with another value */
    bool once;    /* of this call alone: not a part of what a run is */
} option;

#define INTO(type, field) .offset = offsetof(type, field), .bytes = sizeof(((type *)NULL)->field)

typedef struct option_group {
    const char *title;
    const option *options;
    size_t n_options;
    size_t offset; /* of the group's struct in the command's options */
} option_group;

#define OPTION_GROUP(title_, table, offset_) \
    { title_, table, sizeof(table) / sizeof((table)[0]), offset_ }

/* What a command line has besides the values of its options. */
enum { OPTIONS_GIVEN_MAX = 128 };
typedef struct command_line {
    option_texts arguments; /* what is no option */
    const option *given[OPTIONS_GIVEN_MAX];
    int n_given;
    const char *config; /* the file that others of them are from; NULL: none */
    config file;        /* what the options' texts from it lie in: config_free */
} command_line;

struct command;

extern const option_group common_options; /* of every command, after its own */

/* The option of this number in all groups of a command; NULL after the last. *offset, unless NULL: of its value in the
 * command's options. */
const option *option_at(const struct command *command, size_t number, size_t *offset);
/* By its own name; NULL: there is none of that name. */
const option *option_find(const struct command *command, const char *name);
/* The option that somebody who wrote `name` may have meant, by other programs' words or by spelling; NULL: none is
 * near.
 */
const option *option_find_meant(const struct command *command, const char *name);
bool option_given(const command_line *line, const char *name);
/* Whether the option may be given several times, each with a value of its own. */
bool option_is_list(const option *o);

struct text_buffer;

/* Parses argv[0, argc) (after the command's name), and the file that --config names, into `values`, which the caller
 * has filled with the defaults. Returns 0, or an exit code after telling the user what is wrong. *help is set, and
 * parsing ends, at --help or -h. Free line->file after the values were used, also after an error. */
int options_parse(const struct command *command, int argc, char **argv, void *values, command_line *line, bool *help);

/* Copies the fields of the options that were given from one struct of a group to another. */
void options_copy_given(const command_line *line, const option *table, size_t n_options, const void *from, void *to);

/* The options that were given and are not neutral, as a JSON object of texts by option name. Where line is NULL: all
 * that have a value, defaults included, but those that are of one call alone. */
void options_describe(const struct command *command, const void *values, const command_line *line,
                      struct text_buffer *out);

/* The same options as lines of YAML, which --config reads back to the same values. */
void options_write_config(const struct command *command, const void *values, struct text_buffer *out);

/* The name of a value; "" where it has none. */
const char *option_choice_name(const option_choice *choices, int64_t value);
/* Appends the names of all choices. */
void option_choice_list(const option_choice *choices, const char *separator, struct text_buffer *out);

#endif
