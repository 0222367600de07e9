#include "cli/help.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal/terminal.h"
#include "cli/terminal/text.h"
#include "qrun.h"

enum { OPTION_COLUMN = 28, WIDTH_MAX = 100 };

static int help_width(void) {
    const int width = terminal_width(stdout);
    return width > WIDTH_MAX ? WIDTH_MAX : width < 60 ? 60 : width;
}

static void heading(const char *title) {
    printf("\n%s%s%s\n", terminal_sequence(stdout, STYLE_BOLD), title, terminal_sequence(stdout, STYLE_PLAIN));
}

/* Prints `words` wrapped to the width; the cursor is at column `column` now, later lines begin at `indent`. An empty
 * line parts paragraphs. */
static void print_wrapped(const char *words, int column, int indent) {
    const int width = help_width();
    bool line_begins = true;
    while (*words != '\0') {
        const size_t length = strcspn(words, " \n");
        const int columns = text_columns(words, length);
        if (!line_begins && column + 1 + columns > width) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (!line_begins && length > 0) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)length, words);
        column += columns;
        line_begins = false;
        words += length;
        if (words[0] == '\n' && words[1] == '\n') {
            printf("\n\n%*s", indent, "");
            column = indent;
            line_begins = true;
        }
        words += strspn(words, " \n");
    }
    putchar('\n');
}

/* "  -m, --model DIR" into `out`. */
static void write_synopsis(const option *o, text_buffer *out) {
    if (o->letter != 0) {
        text_format(out, "  -%c, --%s", o->letter, o->name);
    } else {
        text_format(out, "      --%s", o->name);
    }
    if (o->kind == OPTION_CHOICE) {
        text_puts(out, " ");
        option_choice_list(o->choices, "|", out);
    } else if (o->kind != OPTION_FLAG) {
        text_format(out, " %s", o->value_name);
    }
}

static void print_entry(const char *synopsis, const char *explanation) {
    const int columns = text_columns(synopsis, strlen(synopsis));
    printf("%s", synopsis);
    if (columns + 2 > OPTION_COLUMN) {
        printf("\n%*s", OPTION_COLUMN, "");
    } else {
        printf("%*s", OPTION_COLUMN - columns, "");
    }
    print_wrapped(explanation, OPTION_COLUMN, OPTION_COLUMN);
}

static void print_group(const option_group *group) {
    heading(group->title);
    for (size_t i = 0; i < group->n_options; i++) {
        text_buffer synopsis = {0};
        write_synopsis(&group->options[i], &synopsis);
        print_entry(synopsis.data, group->options[i].help);
        text_free(&synopsis);
    }
}

static void print_exit_codes(void) {
    static const struct {
        int code;
        const char *meaning;
    } codes[] = {{EXIT_OK, "all went well"},
                 {EXIT_SOME_FAILED, "some requests failed and the others were answered; or training diverged"},
                 {EXIT_USAGE, "wrong options, arguments or request"},
                 {EXIT_FILE, "a model or another file cannot be read or written"},
                 {EXIT_MEMORY, "out of memory, or over the memory budget"},
                 {EXIT_ENGINE, "the device failed, or qrun has a bug"},
                 {EXIT_INTERRUPTED, "interrupted (Ctrl-C or SIGTERM)"}};
    heading("Exit codes");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        printf("  %3d  %s\n", codes[i].code, codes[i].meaning);
    }
}

void help_print_command(const command *cmd) {
    printf("qrun %s: %s\n", cmd->name, cmd->summary);
    heading("Usage");
    printf("  qrun %s %s\n\n", cmd->name, cmd->usage);
    print_wrapped(cmd->description, 0, 0);
    for (size_t i = 0; i < cmd->n_groups; i++) { print_group(&cmd->groups[i]); }
    if (cmd->examples != NULL) {
        heading("Examples");
        printf("%s\n", cmd->examples);
    }
    print_exit_codes();
}

void help_print_program(void) {
    printf("qrun %s: opens an unmodified Hugging Face model folder, holds it in 4 or 8 bits,\n"
           "generates for many prompts at once, and trains LoRA adapters.\n",
           qrun_version());
    heading("Usage");
    printf("  qrun COMMAND [OPTIONS]\n");
    heading("Commands");
    for (int i = 0; commands[i] != NULL; i++) { printf("  %-12s%s\n", commands[i]->name, commands[i]->summary); }
    heading("Help");
    printf("  qrun help COMMAND       every option of a command, with examples (also: qrun COMMAND --help)\n"
           "  qrun --version          the version\n");
    heading("Examples");
    printf("  qrun generate --model path/to/model --prompt \"Once upon a time\"\n"
           "  qrun chat --model path/to/model\n"
           "  qrun finetune --model path/to/model --data train.jsonl --out my-adapter\n"
           "  qrun inspect path/to/model\n");
    print_exit_codes();
    heading("Environment");
    printf("  NO_COLOR           when set, no colours\n"
           "  HF_HOME            where the Hugging Face cache is, for models given by id (or\n"
           "                     HF_HUB_CACHE, its folder itself)\n"
           "  QRUN_FORCE_ISA     instruction set of the CPU to compute with, of those it has:\n"
           "                     c, avx2, avx512, avx512-bf16, amx-bf16; or sm_80: of a GPU\n"
           "                     what every one has, without Hopper's own instructions\n"
           "  QRUN_CUDA_LIBRARY  path of libqrun_cuda.so, where it is not beside libqrun.so\n");
}
