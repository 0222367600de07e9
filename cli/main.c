/* qrun: the table of commands, and the way into them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/help.h"
#include "cli/man.h"
#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/nearest.h"
#include "cli/options/peers.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/terminal.h"
#include "qrun.h"

const command *const commands[] = {
    &command_generate,   &command_chat, &command_serve,    &command_finetune, &command_merge,    &command_export,
    &command_inspect,    &command_plan, &command_tokenize, &command_eval,     &command_quantize, &command_bench,
    &command_completion, NULL};

const command *command_find(const char *name) {
    for (int i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0) { return commands[i]; }
    }
    return NULL;
}

static int complain_unknown_command(const char *name) {
    nearest search = NEAREST_INIT(name);
    for (int i = 0; commands[i] != NULL; i++) { nearest_offer(&search, commands[i]->name); }
    const char *meant = peer_command(name), *reason = peer_missing_command(name);
    if (meant == NULL) { meant = search.best; }
    if (reason != NULL) { return complain(EXIT_USAGE, "there is no command '%s': %s", name, reason); }
    if (meant != NULL) {
        return complain(EXIT_USAGE, "there is no command '%s'; did you mean 'qrun %s'?", name, meant);
    }
    return complain(EXIT_USAGE, "there is no command '%s'; 'qrun help' lists them", name);
}

/* One option, by its name, with dashes or without, or by another word for it. */
static int explain_option(const command *cmd, const char *argument) {
    const char *name = argument + strspn(argument, "-");
    const option *o = option_find(cmd, name);
    if (o == NULL && (o = option_find_meant(cmd, name)) != NULL) {
        printf("'%s' is '--%s' here.\n\n", argument, o->name);
    }
    if (o == NULL) {
        return complain(EXIT_USAGE, "'%s' has no option '%s'; 'qrun help %s --all' lists them", cmd->name, argument,
                        cmd->name);
    }
    help_print_option(o);
    return EXIT_OK;
}

static bool is_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static bool is_all(const char *word) { return strcmp(word, "--all") == 0 || strcmp(word, "-a") == 0; }

static int run_help(int argc, char **argv) {
    const bool manual = argc > 0 && strcmp(argv[0], "--man") == 0; /* for those who package qrun */
    if (manual) { argc--, argv++; }
    if (argc == 0 || is_help(argv[0])) {
        (manual ? man_print_program : help_print_program)();
        return EXIT_OK;
    }
    const bool all_first = is_all(argv[0]);
    if (all_first && argc == 1) {
        return complain(EXIT_USAGE, "of which command? 'qrun help COMMAND %s' has all about one", argv[0]);
    }
    const char *name = argv[all_first], *topic = all_first ? argv[0] : argc > 1 ? argv[1] : NULL;
    const command *cmd = command_find(name);
    if (cmd == NULL) { return complain_unknown_command(name); }
    if (argc > (manual ? 1 : 2)) {
        return complain(EXIT_USAGE, "help takes a command and one option, and '%s' is more", argv[manual ? 1 : 2]);
    }
    if (manual) {
        man_print_command(cmd);
    } else if (topic == NULL) {
        help_print_command(cmd);
    } else if (is_all(topic)) {
        help_print_all(cmd);
    } else {
        return explain_option(cmd, topic);
    }
    return EXIT_OK;
}

static int run_command(const command *cmd, int argc, char **argv) {
    void *options = allocate(cmd->options_bytes);
    command_line line;
    bool help;
    if (cmd->defaults != NULL) { memcpy(options, cmd->defaults, cmd->options_bytes); }
    int code = options_parse(cmd, argc, argv, options, &line, &help);
    if (code == EXIT_OK && help) {
        (argc > 0 && is_all(argv[argc - 1]) ? help_print_all : help_print_command)(cmd);
    } else if (code == EXIT_OK) {
        engine e = {0};
        code = cmd->run(options, &line, &e);
        engine_close(&e);
    }
    config_free(&line.file);
    free(options);
    return code;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        help_print_program();
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (is_help(name)) { return run_help(argc - 2, argv + 2); }
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

/* A file that is opened where stdin, stdout or stderr should be would be read, or written over, in their place. So none
 * of the three stays closed: what is opened here fails when it is used, as a closed descriptor does. */
static bool open_standard_descriptors(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int i = 0; i < 3; i++) {
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", modes[i]) != i) { return false; }
    }
    return true;
}

int main(int argc, char **argv) {
    if (!open_standard_descriptors()) { return EXIT_FILE; }
    if (!terminal_guard_output()) { return EXIT_MEMORY; }
    interrupt_install();
    return finish_stdout(dispatch(argc, argv));
}
