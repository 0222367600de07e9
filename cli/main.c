/* qrun: the table of commands, and the way into them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/help.h"
#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/nearest.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "qrun.h"

const command *const commands[] = {&command_generate, &command_chat,  &command_finetune,   &command_merge,
                                   &command_inspect,  &command_plan,  &command_tokenize,   &command_eval,
                                   &command_quantize, &command_bench, &command_completion, NULL};

const command *command_find(const char *name) {
    for (int i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0) { return commands[i]; }
    }
    return NULL;
}

static int complain_unknown_command(const char *name) {
    nearest search = NEAREST_INIT(name);
    for (int i = 0; commands[i] != NULL; i++) { nearest_offer(&search, commands[i]->name); }
    if (search.best != NULL) {
        return complain(EXIT_USAGE, "there is no command '%s'; did you mean 'qrun %s'?", name, search.best);
    }
    return complain(EXIT_USAGE, "there is no command '%s'; 'qrun help' lists them", name);
}

static int run_help(int argc, char **argv) {
    if (argc == 0) {
        help_print_program();
        return EXIT_OK;
    }
    const command *cmd = command_find(argv[0]);
    if (cmd == NULL) { return complain_unknown_command(argv[0]); }
    help_print_command(cmd);
    return EXIT_OK;
}

static int run_command(const command *cmd, int argc, char **argv) {
    void *options = allocate(cmd->options_bytes);
    command_line line;
    bool help;
    if (cmd->defaults != NULL) { memcpy(options, cmd->defaults, cmd->options_bytes); }
    int code = options_parse(cmd, argc, argv, options, &line, &help);
    if (code == EXIT_OK && help) {
        help_print_command(cmd);
    } else if (code == EXIT_OK) {
        engine e = {0};
        code = cmd->run(options, &line, &e);
        engine_close(&e);
    }
    free(options);
    return code;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        help_print_program();
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return run_help(argc - 2, argv + 2);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0) {
        printf("qrun %s\n", qrun_version());
        return EXIT_OK;
    }
    if (name[0] == '-') {
        return complain(EXIT_USAGE, "a command comes first, as in 'qrun generate %s …'; 'qrun help' lists them", name);
    }
    const command *cmd = command_find(name);
    return cmd != NULL ? run_command(cmd, argc - 2, argv + 2) : complain_unknown_command(name);
}

int main(int argc, char **argv) {
    interrupt_install();
    return finish_stdout(dispatch(argc, argv));
}
