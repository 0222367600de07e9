/* qrun completion: shell completion made from the commands' option tables. */
#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/text.h"

static const char *const shells[] = {"bash", "zsh", "fish", NULL};

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void print_words(const char *const *words) {
    for (int i = 0; words[i] != NULL; i++) { printf("%s%s", i > 0 ? " " : "", words[i]); }
}

static void print_choices(const option *o) {
    text_buffer names = {0};
    option_choice_list(o->choices, " ", &names);
    printf("%s", names.data);
    text_free(&names);
}

static void print_bash_values(const command *cmd) {
    const option *o;
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) {
        if (o->kind == OPTION_FLAG) { continue; }
        printf("        %s:--%s", cmd->name, o->name);
        if (o->letter != 0) { printf("|%s:-%c", cmd->name, o->letter); }
        if (o->kind == OPTION_CHOICE || o->kind == OPTION_SET) {
            printf(") COMPREPLY=($(compgen -W '");
            print_choices(o);
            printf("' -- \"$cur\")); return ;;\n");
        } else if (o->completion == COMPLETE_NOTHING) {
            printf(") COMPREPLY=(); return ;;\n");
        } else {
            printf(") compopt -o filenames; COMPREPLY=($(compgen -%c -- \"$cur\")); return ;;\n",
                   o->completion == COMPLETE_FOLDER ? 'd' : 'f');
        }
    }
}

static void print_bash_options(const command *cmd) {
    const option *o;
    printf("        %s) words='--help", cmd->name);
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) { printf(" --%s", o->name); }
    if (cmd->argument_choices != NULL) {
        putchar(' ');
        print_words(cmd->argument_choices);
    }
    printf("' ;;\n");
}

static void print_bash(void) {
    printf("# bash completion of qrun. To use it:  source <(qrun completion bash)\n"
           "_qrun() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]} words=''\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$cmd\" = help ] && [ \"$COMP_CWORD\" -eq 2 ]; }; then\n"
           "        COMPREPLY=($(compgen -W '");
    for (int i = 0; commands[i] != NULL; i++) { printf("%s ", commands[i]->name); }
    printf("help --version' -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case \"$cmd:$prev\" in\n");
    for (int i = 0; commands[i] != NULL; i++) { print_bash_values(commands[i]); }
    printf("    esac\n"
           "    case \"$cmd\" in\n");
    for (int i = 0; commands[i] != NULL; i++) { print_bash_options(commands[i]); }
    printf("    esac\n"
           "    case \"$cur\" in\n"
           "        -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
           "        *) compopt -o filenames\n"
           "           COMPREPLY=($(compgen -W \"$words\" -- \"$cur\") $(compgen -f -- \"$cur\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -F _qrun qrun\n");
}

/* ---- zsh and fish ------------------------------------------------------------------------------------------------ */

/* The first sentence of a help text, without the characters that mean something in the shell's quotes. */
static void print_first_sentence(const char *help) {
    for (const char *c = help; *c != '\0' && !(c[0] == '.' && (c[1] == ' ' || c[1] == '\0')); c++) {
        const bool special = strchr("'\"[]:\\$`", *c) != NULL;
        putchar(special ? ' ' : *c);
    }
}

static void print_zsh_option(const option *o) {
    const char *repeated = option_is_list(o) ? "*" : "";
    printf("                '%s--%s%s[", repeated, o->name, o->kind == OPTION_FLAG ? "" : "=");
    print_first_sentence(o->help);
    putchar(']');
    if (o->kind == OPTION_CHOICE || o->kind == OPTION_SET) {
        printf(":value:(");
        print_choices(o);
        putchar(')');
    } else if (o->kind != OPTION_FLAG) {
        printf(":value:%s", o->completion == COMPLETE_FOLDER ? "_files -/"
                            : o->completion == COMPLETE_FILE ? "_files"
                                                             : " ");
    }
    printf("' \\\n");
}

static void print_zsh(void) {
    printf("#compdef qrun\n"
           "# zsh completion of qrun. To use it:  qrun completion zsh > \"${fpath[1]}/_qrun\"\n"
           "_qrun() {\n"
           "    local -a names\n"
           "    names=(\n");
    for (int i = 0; commands[i] != NULL; i++) {
        printf("        '%s:", commands[i]->name);
        print_first_sentence(commands[i]->summary);
        printf("'\n");
    }
    printf("        'help:explain a command'\n"
           "    )\n"
           "    if (( CURRENT == 2 )) || [[ ${words[2]} == help ]]; then\n"
           "        _describe command names\n"
           "        return\n"
           "    fi\n"
           "    local name=${words[2]}\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $name in\n");
    for (int c = 0; commands[c] != NULL; c++) {
        const command *cmd = commands[c];
        printf("        %s)\n            _arguments \\\n", cmd->name);
        const option *o;
        for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) { print_zsh_option(o); }
        printf("                '*:argument:");
        if (cmd->argument_choices != NULL) {
            putchar('(');
            print_words(cmd->argument_choices);
            putchar(')');
        } else {
            printf("_files");
        }
        printf("' ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "if [ \"${funcstack[1]}\" = _qrun ]; then _qrun \"$@\"; else compdef _qrun qrun; fi\n");
}

static void print_fish_option(const command *cmd, const option *o) {
    printf("complete -c qrun -n '__fish_seen_subcommand_from %s' -l %s", cmd->name, o->name);
    if (o->letter != 0) { printf(" -s %c", o->letter); }
    if (o->kind == OPTION_CHOICE || o->kind == OPTION_SET) {
        printf(" -xa '");
        print_choices(o);
        putchar('\'');
    } else if (o->completion == COMPLETE_FOLDER) {
        printf(" -xa '(__fish_complete_directories)'");
    } else if (o->completion == COMPLETE_FILE) {
        printf(" -rF");
    } else if (o->kind != OPTION_FLAG) {
        printf(" -x");
    }
    printf(" -d '");
    print_first_sentence(o->help);
    printf("'\n");
}

static void print_fish(void) {
    printf("# fish completion of qrun. To use it:  qrun completion fish > ~/.config/fish/completions/qrun.fish\n");
    for (int c = 0; commands[c] != NULL; c++) {
        const command *cmd = commands[c];
        printf("complete -c qrun -n __fish_use_subcommand -fa %s -d '", cmd->name);
        print_first_sentence(cmd->summary);
        printf("'\n");
        const option *o;
        for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) { print_fish_option(cmd, o); }
        if (cmd->argument_choices != NULL) {
            printf("complete -c qrun -n '__fish_seen_subcommand_from %s' -fa '", cmd->name);
            print_words(cmd->argument_choices);
            printf("'\n");
        }
    }
}

static int run(const void *options, const command_line *line, engine *e) {
    const char *shell = line->arguments.values[0];
    (void)options, (void)e;
    if (strcmp(shell, "bash") == 0) {
        print_bash();
    } else if (strcmp(shell, "zsh") == 0) {
        print_zsh();
    } else if (strcmp(shell, "fish") == 0) {
        print_fish();
    } else {
        return complain(EXIT_USAGE, "there is no completion for '%s'; there is for bash, zsh and fish", shell);
    }
    return EXIT_OK;
}

const command command_completion = {
    .name = "completion",
    .summary = "print the completion script of a shell",
    .usage = "bash|zsh|fish",
    .description = "The script completes commands, options and their values.",
    .examples = "  source <(qrun completion bash)      # for this shell; add it to ~/.bashrc for all\n"
                "  qrun completion zsh > \"${fpath[1]}/_qrun\"\n"
                "  qrun completion fish > ~/.config/fish/completions/qrun.fish",
    .argument_choices = shells,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
