/* A subcommand of qrun: what help, completion and main need to know about it. */
#ifndef QRUN_CLI_OPTIONS_COMMAND_H
#define QRUN_CLI_OPTIONS_COMMAND_H

#include "cli/options/options.h"
#include "cli/terminal/messages.h"

struct engine;

typedef struct command {
    const char *name;
    const char *summary;       /* one line, for the list of commands */
    const char *usage;         /* after "qrun NAME " */
    const char *description;   /* paragraphs separated by empty lines */
    const char *examples;      /* lines as they are typed, comments begin with '#'; the first ones fit together */
    const char *first_options; /* of the first screen of its help: names with spaces; NULL: all of them */
    const option_group *groups;
    size_t n_groups;
    const void *defaults; /* of the struct that run gets */
    size_t options_bytes;
    int min_arguments, max_arguments;
    const char *const *argument_choices; /* NULL-terminated, for completion; NULL: files */
    int (*run)(const void *options, const command_line *line, struct engine *e); /* e: nothing is open; closed after */
} command;

extern const command command_generate, command_chat, command_finetune, command_merge, command_export, command_inspect,
    command_plan, command_tokenize, command_eval, command_quantize, command_bench, command_serve, command_completion;
extern const command *const commands[]; /* all of them, NULL-terminated */

const command *command_find(const char *name);

/* The members that say what options a command has: the table of its groups, and the struct of their defaults. */
#define COMMAND_OPTIONS(groups_, defaults_)                                                            \
    .groups = (groups_), .n_groups = sizeof(groups_) / sizeof((groups_)[0]), .defaults = &(defaults_), \
    .options_bytes = sizeof(defaults_)

#endif
