#include "cli/man.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/about.h"
#include "cli/terminal/text.h"
#include "qrun.h"

/* text[0, n_bytes) as words of a page: nothing in it is a request of roff. Lines are joined, and an empty line begins a
 * paragraph, with `paragraph` as its request. */
static void put_words(const char *text, size_t n_bytes, const char *paragraph) {
    bool line_begins = true;
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = text[i];
        if (c == '\n' && i + 1 < n_bytes && text[i + 1] == '\n') {
            printf("\n%s\n", paragraph);
            line_begins = true;
            i++;
            continue;
        }
        if (line_begins && (c == '.' || c == '\'')) { printf("\\&"); }
        if (c == '\\') {
            printf("\\e");
        } else if (c == '-') {
            printf("\\-");
        } else {
            putchar(c == '\n' ? ' ' : c);
        }
        line_begins = false;
    }
}

static void put_text(const char *text) { put_words(text, strlen(text), ".PP"); }

/* Lines as they stand. */
static void put_lines(const char *text) {
    printf(".PP\n.nf\n");
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        put_words(text, length, "");
        putchar('\n');
        text += length + (text[length] == '\n');
    }
    printf(".fi\n");
}

static void put_title(const char *name) {
    printf(".TH \"");
    for (const char *c = name; *c != '\0'; c++) { putchar(toupper((unsigned char)*c)); }
    printf("\" 1 \"\" \"qrun %s\" \"qrun manual\"\n.SH NAME\n", qrun_version());
    put_text(name);
    printf(" \\- ");
}

static void put_bold(const char *text) {
    printf("\\fB");
    put_text(text);
    printf("\\fR");
}

static void put_option(const option *o) {
    printf(".TP\n");
    if (o->letter != 0) { printf("\\fB\\-%c\\fR, ", o->letter); }
    printf("\\fB\\-\\-");
    put_text(o->name);
    printf("\\fR");
    if (o->kind == OPTION_CHOICE || o->kind == OPTION_SET) {
        text_buffer names = {0};
        option_choice_list(o->choices, "|", &names);
        putchar(' ');
        put_text(names.data);
        text_free(&names);
    } else if (o->kind != OPTION_FLAG) {
        printf(" \\fI");
        put_text(o->value_name);
        printf("\\fR");
    }
    putchar('\n');
    put_words(o->help, strlen(o->help), ".IP");
    putchar('\n');
}

static void put_group(const option_group *group) {
    printf(".SS \"");
    put_text(group->title);
    printf("\"\n");
    for (size_t i = 0; i < group->n_options; i++) { put_option(&group->options[i]); }
}

static void put_exit_codes(void) {
    printf(".SH EXIT STATUS\n");
    for (const about_exit_code *code = about_exit_codes; code->text != NULL; code++) {
        printf(".TP\n%d\n", code->code);
        put_text(code->text);
        printf(".\n");
    }
}

static void put_environment(void) {
    printf(".SH ENVIRONMENT\n");
    for (const about_variable *variable = about_environment; variable->text != NULL; variable++) {
        printf(".TP\n");
        put_bold(variable->name);
        putchar('\n');
        put_text(variable->text);
        printf(".\n");
    }
}

static void put_see_also(const command *except) {
    printf(".SH SEE ALSO\n");
    if (except != NULL) { printf("\\fBqrun\\fR(1),\n"); }
    for (int i = 0, left = -1; commands[i] != NULL; i++) {
        if (commands[i] == except) { continue; }
        if (left++ >= 0) { printf(",\n"); }
        printf("\\fBqrun\\-%s\\fR(1)", commands[i]->name);
    }
    printf("\n");
}

void man_print_command(const command *cmd) {
    text_buffer name = {0};
    text_format(&name, "qrun-%s", cmd->name);
    put_title(name.data);
    text_free(&name);
    put_text(cmd->summary);
    printf("\n.SH SYNOPSIS\n");
    put_bold("qrun ");
    put_bold(cmd->name);
    putchar(' ');
    put_text(cmd->usage);
    printf("\n.SH DESCRIPTION\n");
    put_text(cmd->description);
    putchar('\n');
    printf(".SH OPTIONS\n");
    for (size_t i = 0; i < cmd->n_groups; i++) { put_group(&cmd->groups[i]); }
    put_group(&common_options);
    if (cmd->examples != NULL) {
        printf(".SH EXAMPLES\n");
        put_lines(cmd->examples);
    }
    put_exit_codes();
    put_see_also(cmd);
}

void man_print_program(void) {
    put_title("qrun");
    printf("QLoRA fine\\-tuning and batched generation\n.SH SYNOPSIS\n\\fBqrun\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
           ".SH DESCRIPTION\n\\fBqrun\\fR ");
    put_text(about_program);
    printf("\n.SH COMMANDS\n");
    for (int i = 0; commands[i] != NULL; i++) {
        printf(".TP\n\\fBqrun\\-%s\\fR(1)\n", commands[i]->name);
        put_text(commands[i]->summary);
        printf(".\n");
    }
    put_exit_codes();
    put_environment();
    put_see_also(NULL);
}
