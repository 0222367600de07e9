#include "cli/options/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/nearest.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/text.h"

enum { NUMBER_TEXT_BYTES = 32 };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static bool parse_whole(const char *text, int64_t *value) {
    if (*text != '-' && (*text < '0' || *text > '9')) { return false; }
    char *end;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0') { return false; }
    *value = parsed;
    return true;
}

static bool parse_number(const char *text, double *value) {
    if (*text == '\0' || strspn(text, "+-.0123456789eE") != strlen(text)) { return false; }
    char *end;
    const double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(parsed)) { return false; }
    *value = parsed;
    return true;
}

static bool parse_seed(const char *text, uint64_t *value) {
    if (*text < '0' || *text > '9') { return false; }
    char *end;
    errno = 0;
    const unsigned long long parsed = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0') { return false; }
    *value = parsed;
    return true;
}

static bool parse_bytes(const char *text, int64_t *bytes) {
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},       {"B", 1},        {"K", 0x1p10},   {"KiB", 0x1p10}, {"KB", 1e3},
                 {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},     {"G", 0x1p30},   {"GiB", 0x1p30},
                 {"GB", 1e9},   {"T", 0x1p40},   {"TiB", 0x1p40}, {"TB", 1e12}};
    const size_t digits = strspn(text, "0123456789.");
    char number[32];
    if (digits == 0 || digits >= sizeof number) { return false; }
    memcpy(number, text, digits);
    number[digits] = '\0';
    double value;
    if (!parse_number(number, &value)) { return false; }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text + digits, units[i].unit) != 0) { continue; }
        const double product = value * units[i].factor;
        if (product < 1 || product >= 0x1p62) { return false; }
        *bytes = (int64_t)product;
        return true;
    }
    return false;
}

/* ---- Storing one option ------------------------------------------------------------------------------------------ */

/* "1000000000000000", not "1e+15"; "1e-06" where it is no whole number. */
static const char *number_text(double value, char out[NUMBER_TEXT_BYTES]) {
    const bool is_whole = fabs(value) < 0x1p53 && value == floor(value);
    (void)snprintf(out, NUMBER_TEXT_BYTES, is_whole ? "%.0f" : "%.15g", value);
    return out;
}

static int complain_range(const option *o, const char *kind, const char *text) {
    char low[NUMBER_TEXT_BYTES], high[NUMBER_TEXT_BYTES];
    if (o->low <= -1e18 || o->high >= 1e18) {
        return complain(EXIT_USAGE, "--%s takes %s, not '%s'", o->name, kind, text);
    }
    return complain(EXIT_USAGE, "--%s takes %s from %s to %s, not '%s'", o->name, kind, number_text(o->low, low),
                    number_text(o->high, high), text);
}

/* An empty path is an unset variable of a script more often than not; taken as it is, it would name odd places. */
static int check_path(const option *o, const char *text) {
    if (o->completion == COMPLETE_NOTHING || text[0] != '\0') { return EXIT_OK; }
    return complain(EXIT_USAGE, "--%s takes the path of a %s, and this one is empty", o->name,
                    o->completion == COMPLETE_FILE ? "file" : "folder");
}

/* Writes a whole number into a field of 1 (bool), 4 or 8 bytes. */
static void put_whole(const option *o, int64_t value, void *field) {
    const bool truth = value != 0;
    const int32_t narrow = (int32_t)value;
    memcpy(field,
           o->bytes == sizeof truth    ? (const void *)&truth
           : o->bytes == sizeof narrow ? (const void *)&narrow
                                       : &value,
           o->bytes);
}

static int64_t get_whole(const option *o, const void *field) {
    return o->bytes == sizeof(bool)      ? *(const bool *)field
           : o->bytes == sizeof(int32_t) ? *(const int32_t *)field
                                         : *(const int64_t *)field;
}

static bool chooses_text(const option *o) { return o->bytes == sizeof(const char *); }

const char *option_choice_name(const option_choice *choices, int64_t value) {
    while (choices->name != NULL && choices->value != value) { choices++; }
    return choices->name != NULL ? choices->name : "";
}

void option_choice_list(const option_choice *choices, const char *separator, text_buffer *out) {
    for (const option_choice *c = choices; c->name != NULL; c++) {
        text_format(out, "%s%s", c == choices ? "" : separator, c->name);
    }
}

static const char *option_chosen(const option *o, const void *field) {
    return chooses_text(o) ? *(const char *const *)field : option_choice_name(o->choices, get_whole(o, field));
}

static int store_choice(const option *o, const char *text, void *field) {
    nearest search = NEAREST_INIT(text);
    text_buffer list = {0};
    for (const option_choice *c = o->choices; c->name != NULL; c++) {
        nearest_offer(&search, c->name);
        if (strcmp(text, c->name) != 0) { continue; }
        if (chooses_text(o)) {
            *(const char **)field = c->name;
        } else {
            put_whole(o, c->value, field);
        }
        return EXIT_OK;
    }
    option_choice_list(o->choices, ", ", &list);
    const int code = search.best != NULL
                         ? complain(EXIT_USAGE, "--%s cannot be '%s'; did you mean '%s'? (One of: %s.)", o->name, text,
                                    search.best, list.data)
                         : complain(EXIT_USAGE, "--%s cannot be '%s'; it is one of: %s", o->name, text, list.data);
    text_free(&list);
    return code;
}

static bool parse_within(const option *o, const char *text, int64_t *value) {
    return parse_whole(text, value) && (double)*value >= o->low && (double)*value <= o->high;
}

static int store_ints(const option *o, const char *text, option_ints *target) {
    target->count = 0;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        char item[32] = "";
        if (length < sizeof item) { memcpy(item, at, length); }
        if (target->count == OPTION_LIST_MAX || !parse_within(o, item, &target->values[target->count])) {
            return complain_range(o, "whole numbers separated by commas", text);
        }
        target->count++;
        at += length;
        if (*at == '\0') { return EXIT_OK; }
    }
}

static int store_number(const option *o, const char *text, void *field) {
    double value;
    if (!parse_number(text, &value) || value < o->low || value > o->high) {
        return complain_range(o, "a number", text);
    }
    if (o->bytes == sizeof(float)) {
        *(float *)field = (float)value;
    } else {
        *(double *)field = value;
    }
    return EXIT_OK;
}

static int store_value(const option *o, const char *text, void *field) {
    int64_t whole;
    if ((o->kind == OPTION_TEXT || o->kind == OPTION_TEXTS) && check_path(o, text) != EXIT_OK) { return EXIT_USAGE; }
    switch (o->kind) {
        case OPTION_FLAG: *(bool *)field = true; return EXIT_OK;
        case OPTION_TEXT: *(const char **)field = text; return EXIT_OK;
        case OPTION_TEXTS: {
            option_texts *list = field;
            if (list->count == OPTION_LIST_MAX) {
                return complain(EXIT_USAGE, "--%s can be given %d times at most", o->name, OPTION_LIST_MAX);
            }
            list->values[list->count++] = text;
            return EXIT_OK;
        }
        case OPTION_INT:
            if (!parse_within(o, text, &whole)) { return complain_range(o, "a whole number", text); }
            put_whole(o, whole, field);
            return EXIT_OK;
        case OPTION_NUMBER: return store_number(o, text, field);
        case OPTION_CHOICE: return store_choice(o, text, field);
        case OPTION_INTS: return store_ints(o, text, field);
        case OPTION_SEED:
            if (parse_seed(text, field)) { return EXIT_OK; }
            return complain(EXIT_USAGE, "--%s takes a whole number from 0 to 2^64 - 1, not '%s'", o->name, text);
        case OPTION_BYTES:
            if (parse_bytes(text, field)) { return EXIT_OK; }
            return complain(EXIT_USAGE, "--%s takes a size such as 6GiB, 500MB or 1.5G, not '%s'", o->name, text);
    }
    return complain(EXIT_ENGINE, "--%s has no kind", o->name);
}

/* ---- Finding options --------------------------------------------------------------------------------------------- */

typedef struct match {
    const option *found;
    size_t offset; /* of its value in the command's struct */
} match;

const option *option_at(const command *cmd, size_t number, size_t *offset) {
    for (const option_group *group = cmd->groups; group < cmd->groups + cmd->n_groups; group++) {
        if (number < group->n_options) {
            if (offset != NULL) { *offset = group->offset + group->options[number].offset; }
            return &group->options[number];
        }
        number -= group->n_options;
    }
    return NULL;
}

static match find_option(const command *cmd, const char *name, size_t length, char letter) {
    match m;
    for (size_t i = 0; (m.found = option_at(cmd, i, &m.offset)) != NULL; i++) {
        const bool same = name != NULL ? strlen(m.found->name) == length && strncmp(m.found->name, name, length) == 0
                                       : letter != 0 && m.found->letter == letter;
        if (same) { return m; }
    }
    return (match){NULL, 0};
}

/* Options that had another name. */
static const struct {
    const char *before, *now;
} renamed[] = {
    {"max-batch", "max-sequences"},
    {"step-tokens", "max-step-tokens"},
    {"lora-targets", "target-modules"},
    {"lr", "learning-rate"},
    {"early-stopping", "early-stopping-patience"},
    {"shard-size", "max-shard-size"},
};

static int complain_unknown(const command *cmd, const char *argument) {
    char name[64];
    const char *start = argument + strspn(argument, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    for (char *c = name; *c != '\0'; c++) {
        if (*c == '_') { *c = '-'; } /* as in a JSONL request */
    }
    nearest search = NEAREST_INIT(name);
    const option *o;
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) { nearest_offer(&search, o->name); }
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        const bool is_it = strcmp(name, renamed[i].before) == 0;
        if (is_it && find_option(cmd, renamed[i].now, strlen(renamed[i].now), 0).found != NULL) {
            search.best = renamed[i].now;
        }
    }
    if (search.best != NULL) {
        return complain(EXIT_USAGE, "'%s' has no option '%s'; did you mean '--%s'?", cmd->name, argument, search.best);
    }
    return complain(EXIT_USAGE, "'%s' has no option '%s'; 'qrun help %s' lists them", cmd->name, argument, cmd->name);
}

/* Splits one argument that begins with a dash into its option and, where it has "=", its value. */
static match split_argument(const command *cmd, const char *argument, const char **value) {
    *value = NULL;
    if (argument[1] != '-') {
        if (argument[2] != '\0' && argument[2] != '=') { return (match){NULL, 0}; }
        if (argument[2] == '=') { *value = argument + 3; }
        return find_option(cmd, NULL, 0, argument[1]);
    }
    const char *name = argument + 2;
    const size_t length = strcspn(name, "=");
    if (name[length] == '=') { *value = name + length + 1; }
    return find_option(cmd, name, length, 0);
}

static bool is_option(const command *cmd, const char *argument) {
    const char *value;
    return argument[0] == '-' && argument[1] == '-' && split_argument(cmd, argument, &value).found != NULL;
}

static void add_given(command_line *line, const option *o) {
    if (!option_given(line, o->name) && line->n_given < OPTIONS_GIVEN_MAX) { line->given[line->n_given++] = o; }
}

/* Parses the option at argv[*at] and moves *at past its value. */
static int parse_option(const command *cmd, int argc, char **argv, int *at, void *values, command_line *line) {
    const char *argument = argv[*at], *value;
    const match m = split_argument(cmd, argument, &value);
    if (m.found == NULL) { return complain_unknown(cmd, argument); }
    const option *o = m.found;
    if (o->kind == OPTION_FLAG) {
        if (value != NULL) { return complain(EXIT_USAGE, "--%s takes no value", o->name); }
    } else if (value == NULL) {
        if (*at + 1 >= argc) { return complain(EXIT_USAGE, "--%s needs a value", o->name); }
        value = argv[++*at];
        if (is_option(cmd, value)) {
            return complain(EXIT_USAGE, "--%s needs a value before '%s' (a value that looks so: --%s=%s)", o->name,
                            value, o->name, value);
        }
    }
    add_given(line, o);
    return store_value(o, value, (char *)values + m.offset);
}

static int check_argument_count(const command *cmd, const option_texts *arguments) {
    if (arguments->count < cmd->min_arguments) {
        return complain(EXIT_USAGE, "'%s' needs more: qrun %s %s", cmd->name, cmd->name, cmd->usage);
    }
    if (arguments->count > cmd->max_arguments) {
        return complain(EXIT_USAGE, "'%s' does not know what to do with '%s': qrun %s %s", cmd->name,
                        arguments->values[cmd->max_arguments], cmd->name, cmd->usage);
    }
    return EXIT_OK;
}

bool option_given(const command_line *line, const char *name) {
    for (int i = 0; i < line->n_given; i++) {
        if (strcmp(line->given[i]->name, name) == 0) { return true; }
    }
    return false;
}

int options_parse(const command *cmd, int argc, char **argv, void *values, command_line *line, bool *help) {
    option_texts *arguments = &line->arguments;
    bool only_arguments = false;
    arguments->count = line->n_given = 0;
    *help = false;
    for (int at = 0; at < argc; at++) {
        const char *argument = argv[at];
        if (!only_arguments && strcmp(argument, "--") == 0) {
            only_arguments = true;
        } else if (only_arguments || argument[0] != '-' || argument[1] == '\0') {
            if (arguments->count == OPTION_LIST_MAX) { return complain(EXIT_USAGE, "too many arguments"); }
            arguments->values[arguments->count++] = argument;
        } else if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            *help = true;
            return EXIT_OK;
        } else {
            RETURN_IF_FAILED(parse_option(cmd, argc, argv, &at, values, line));
        }
    }
    return check_argument_count(cmd, arguments);
}

void options_copy_given(const command_line *line, const option *table, size_t n_options, const void *from, void *to) {
    for (size_t i = 0; i < n_options; i++) {
        if (!option_given(line, table[i].name)) { continue; }
        memcpy((char *)to + table[i].offset, (const char *)from + table[i].offset, table[i].bytes);
    }
}

/* ---- Describing -------------------------------------------------------------------------------------------------- */

/* With the fewest digits that read back as the same value of the field's type. */
static void describe_number(const option *o, const void *field, text_buffer *out) {
    if (o->bytes == sizeof(double)) {
        text_puts(out, json_double(*(const double *)field).text);
        return;
    }
    char digits[NUMBER_TEXT_BYTES];
    const double value = (double)*(const float *)field;
    int n = 6;
    do {
        snprintf(digits, sizeof digits, "%.*g", n, value);
    } while ((float)strtod(digits, NULL) != (float)value && ++n < 9);
    text_puts(out, digits);
}

/* Appends the value as text. */
static void describe_value(const option *o, const void *field, text_buffer *out) {
    const option_texts *texts = field;
    const option_ints *ints = field;
    switch (o->kind) {
        case OPTION_FLAG: text_puts(out, "yes"); return;
        case OPTION_TEXT: text_puts(out, *(const char *const *)field); return;
        case OPTION_TEXTS:
            for (int i = 0; i < texts->count; i++) { text_format(out, "%s%s", i > 0 ? "\n" : "", texts->values[i]); }
            return;
        case OPTION_INT:
        case OPTION_BYTES: text_format(out, "%lld", (long long)get_whole(o, field)); return;
        case OPTION_CHOICE: text_puts(out, option_chosen(o, field)); return;
        case OPTION_SEED: text_format(out, "%llu", *(const unsigned long long *)field); return;
        case OPTION_NUMBER: describe_number(o, field, out); return;
        case OPTION_INTS:
            for (int i = 0; i < ints->count; i++) {
                text_format(out, "%s%lld", i > 0 ? "," : "", (long long)ints->values[i]);
            }
            return;
    }
}

void options_describe(const command *cmd, const void *values, const command_line *line, text_buffer *out) {
    text_buffer value = {0};
    const option *o;
    size_t offset;
    bool first = true;
    text_puts(out, "{");
    for (size_t i = 0; (o = option_at(cmd, i, &offset)) != NULL; i++) {
        if (o->neutral || !option_given(line, o->name)) { continue; }
        text_clear(&value);
        describe_value(o, (const char *)values + offset, &value);
        text_format(out, "%s\"%s\":", first ? "" : ",", o->name);
        text_json_string(out, value.data, value.size);
        first = false;
    }
    text_puts(out, "}");
    text_free(&value);
}
