#include "cli/help.h"

#include <stdio.h>
#include <string.h>

#include "cli/about.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/text.h"
#include "qrun.h"

enum { OPTION_COLUMN = 28, WIDTH_MAX = 100 };

static int help_width(void) {
    const int width = terminal_width(stdout);
    return width > WIDTH_MAX ? WIDTH_MAX : width < 60 ? 60 : width;
}

static void heading(const char *title) {
    printf("\n");
    terminal_put_style(stdout, STYLE_BOLD);
    printf("%s", title);
    terminal_put_style(stdout, STYLE_PLAIN);
    printf("\n");
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
    if (o->kind == OPTION_CHOICE || o->kind == OPTION_SET) {
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
    heading("Exit codes");
    for (const about_exit_code *code = about_exit_codes; code->text != NULL; code++) {
        printf("  %3d  %s\n", code->code, code->text);
    }
}

static void print_environment(void) {
    enum { COLUMN = 22 };
    heading("Environment");
    for (const about_variable *variable = about_environment; variable->text != NULL; variable++) {
        printf("  %-*s", COLUMN - 2, variable->name);
        print_wrapped(variable->text, COLUMN, COLUMN);
    }
}

void help_print_all(const command *cmd) {
    printf("qrun %s: %s\n", cmd->name, cmd->summary);
    heading("Usage");
    printf("  qrun %s %s\n\n", cmd->name, cmd->usage);
    print_wrapped(cmd->description, 0, 0);
    for (size_t i = 0; i < cmd->n_groups; i++) { print_group(&cmd->groups[i]); }
    print_group(&common_options);
    if (cmd->examples != NULL) {
        heading("Examples");
        printf("%s\n", cmd->examples);
    }
}

void help_print_option(const option *o) {
    text_buffer synopsis = {0};
    write_synopsis(o, &synopsis);
    print_entry(synopsis.data, o->help);
    text_free(&synopsis);
}

/* ---- The first screen -------------------------------------------------------------------------------------------- */

static bool is_first(const command *cmd, const option *o) {
    const size_t length = strlen(o->name);
    if (cmd->first_options == NULL) { return true; }
    for (const char *at = cmd->first_options; *at != '\0'; at += strspn(at, " ")) {
        const size_t n_bytes = strcspn(at, " ");
        if (n_bytes == length && strncmp(at, o->name, length) == 0) { return true; }
        at += n_bytes;
    }
    return false;
}

/* Up to one of these marks that a space or the end follows: a point inside a word ends nothing, nor does one between
 * parentheses. */
static size_t find_mark(const char *words, const char *marks) {
    size_t n = 0;
    for (int depth = 0; words[n] != '\0'; n++) {
        depth += (words[n] == '(') - (words[n] == ')');
        if (depth <= 0 && strchr(marks, words[n]) != NULL && (words[n + 1] == ' ' || words[n + 1] == '\0')) { break; }
    }
    return n;
}

/* The first sentence, or a long one up to its colon: the rest is in the whole help. */
static void print_first_sentence(const option *o) {
    enum { LONG = 110 };
    text_buffer synopsis = {0}, sentence = {0};
    size_t n = find_mark(o->help, ".;");
    if (n > LONG) { n = find_mark(o->help, ".;:"); }
    text_append(&sentence, o->help, n);
    text_puts(&sentence, ".");
    write_synopsis(o, &synopsis);
    print_entry(synopsis.data, sentence.data);
    text_free(&synopsis);
    text_free(&sentence);
}

/* The examples up to the first empty line. */
static void print_first_examples(const command *cmd) {
    const char *end = cmd->examples != NULL ? strstr(cmd->examples, "\n\n") : NULL;
    if (cmd->examples == NULL) { return; }
    heading("Examples");
    printf("%.*s\n", end != NULL ? (int)(end - cmd->examples) : (int)strlen(cmd->examples), cmd->examples);
}

void help_print_command(const command *cmd) {
    const option *o;
    printf("qrun %s: %s\n", cmd->name, cmd->summary);
    heading("Usage");
    printf("  qrun %s %s\n", cmd->name, cmd->usage);
    heading(cmd->first_options != NULL ? "First options" : "Options");
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) {
        if (is_first(cmd, o)) { print_first_sentence(o); }
    }
    print_first_examples(cmd);
    heading("More");
    printf("  qrun help %s --all       every option, and all about them\n", cmd->name);
    printf("  qrun help %s OPTION      one option, by its name or what others call it\n", cmd->name);
}

void help_print_program(void) {
    printf("qrun %s: ", qrun_version());
    print_wrapped(about_program, (int)strlen("qrun : ") + (int)strlen(qrun_version()), 0);
    heading("Usage");
    printf("  qrun COMMAND [OPTIONS]\n");
    heading("Commands");
    for (int i = 0; commands[i] != NULL; i++) { printf("  %-12s%s\n", commands[i]->name, commands[i]->summary); }
    heading("Help");
    printf("  qrun help COMMAND         a command on one screen (also: qrun COMMAND --help)\n"
           "  qrun help COMMAND --all   all about it; qrun help COMMAND OPTION: one option\n"
           "  qrun --version            the version\n");
    heading("Examples");
    printf("  qrun chat --model path/to/model\n"
           "  qrun finetune --model path/to/model --data train.jsonl --out my-adapter\n"
           "  qrun chat --model path/to/model --adapter my-adapter\n");
    print_exit_codes();
    print_environment();
}
