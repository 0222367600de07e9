#include "cli/options/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/options/command.h"
#include "cli/options/nearest.h"
#include "cli/options/peers.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/text.h"

enum { NUMBER_TEXT_BYTES = 32, NAME_BYTES = 64 };

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
        if (strcasecmp(text + digits, units[i].unit) != 0) { continue; }
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

/* What a value is for, and how the user named that: "--rank", or "run.yaml:3: rank". */
typedef struct value_place {
    const option *o;
    const char *name;
} value_place;

static int complain_range(const value_place *p, const char *kind, const char *text) {
    const option *o = p->o;
    char low[NUMBER_TEXT_BYTES], high[NUMBER_TEXT_BYTES];
    if (o->low <= -1e18 || o->high >= 1e18) {
        return complain(EXIT_USAGE, "%s takes %s, not '%s'", p->name, kind, text);
    }
    return complain(EXIT_USAGE, "%s takes %s from %s to %s, not '%s'", p->name, kind, number_text(o->low, low),
                    number_text(o->high, high), text);
}

/* An empty path is an unset variable of a script more often than not; taken as it is, it would name odd places. What is
 * no path is a text, and UTF-8 as in JSON. */
static int check_text(const value_place *p, const char *text) {
    if (p->o->completion == COMPLETE_NOTHING) { return text_require_utf8(p->name, text, strlen(text)); }
    if (text[0] != '\0') { return EXIT_OK; }
    return complain(EXIT_USAGE, "%s takes the path of a %s, and this one is empty", p->name,
                    p->o->completion == COMPLETE_FILE ? "file" : "folder");
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

static int complain_choice(const value_place *p, const char *text) {
    const option *o = p->o;
    nearest search = NEAREST_INIT(text);
    text_buffer list = {0};
    for (const option_choice *c = o->choices; c->name != NULL; c++) { nearest_offer(&search, c->name); }
    const char *meant = peer_value(o, text);
    if (meant == NULL) { meant = search.best; }
    option_choice_list(o->choices, ", ", &list);
    const int code = meant != NULL
                         ? complain(EXIT_USAGE, "%s cannot be '%s'; did you mean '%s'? (One of: %s.)", p->name, text,
                                    meant, list.data)
                         : complain(EXIT_USAGE, "%s cannot be '%s'; it is one of: %s", p->name, text, list.data);
    text_free(&list);
    return code;
}

/* Whether a text is a choice, or one and its number: cuda:1. What numbers there are is the library's to say. */
static bool names_choice(const option *o, const option_choice *c, const char *text) {
    const size_t length = strlen(c->name);
    if (strncmp(text, c->name, length) != 0) { return false; }
    const bool numbered = chooses_text(o) && c->value != 0 && text[length] == ':' && text[length + 1] != '\0';
    return text[length] == '\0' || (numbered && text[length + 1 + strspn(text + length + 1, "0123456789")] == '\0');
}

static int store_choice(const value_place *p, const char *text, void *field) {
    const option *o = p->o;
    for (const option_choice *c = o->choices; c->name != NULL; c++) {
        if (!names_choice(o, c, text)) { continue; }
        if (chooses_text(o)) {
            *(const char **)field = text;
        } else {
            put_whole(o, c->value, field);
        }
        return EXIT_OK;
    }
    return complain_choice(p, text);
}

static int store_set(const value_place *p, const char *text, void *field) {
    int64_t sum = 0;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        const option_choice *c = p->o->choices;
        while (c->name != NULL && (strlen(c->name) != length || strncmp(c->name, at, length) != 0)) { c++; }
        if (c->name == NULL) { return complain_choice(p, text); }
        if (c->value == 0 && text[length] != '\0') {
            return complain(EXIT_USAGE, "%s is '%s': '%s' goes alone", p->name, text, c->name);
        }
        sum |= c->value;
        at += length;
        if (*at == '\0') { break; }
    }
    put_whole(p->o, sum, field);
    return EXIT_OK;
}

static void describe_set(const option *o, int64_t sum, text_buffer *out) {
    bool first = true;
    for (const option_choice *c = o->choices; c->name != NULL; c++) {
        if (sum == 0 ? c->value != 0 : c->value == 0 || (sum & c->value) != c->value) { continue; }
        text_format(out, "%s%s", first ? "" : ",", c->name);
        first = false;
    }
}

/* The name that a whole number may have instead of digits; "": none. */
static const char *special_name(const option *o, const void *field) {
    return o->choices != NULL ? option_choice_name(o->choices, get_whole(o, field)) : "";
}

static bool store_special(const option *o, const char *text, void *field) {
    for (const option_choice *c = o->choices; c != NULL && c->name != NULL; c++) {
        if (strcmp(text, c->name) == 0) {
            put_whole(o, c->value, field);
            return true;
        }
    }
    return false;
}

/* What follows "NAME:", for the name of a special number; else all of it. */
static const char *after_special(const option *o, const char *text) {
    for (const option_choice *c = o->choices; c != NULL && c->name != NULL; c++) {
        const size_t length = strlen(c->name);
        if (strncmp(text, c->name, length) == 0 && text[length] == ':') { return text + length + 1; }
    }
    return text;
}

static bool parse_within(const option *o, const char *text, int64_t *value) {
    return parse_whole(text, value) && (double)*value >= o->low && (double)*value <= o->high;
}

static int store_ints(const value_place *p, const char *text, option_ints *target) {
    target->count = 0;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        char item[32] = "";
        int64_t value;
        if (length < sizeof item) { memcpy(item, at, length); }
        if (target->count == OPTION_LIST_MAX) {
            return complain(EXIT_USAGE, "%s takes %d numbers at most", p->name, OPTION_LIST_MAX);
        }
        if (!parse_within(p->o, item, &value)) { return complain_range(p, "whole numbers separated by commas", text); }
        target->values[target->count++] = (int32_t)value;
        at += length;
        if (*at == '\0') { return EXIT_OK; }
    }
}

static int store_number(const value_place *p, const char *text, void *field) {
    const option *o = p->o;
    double value;
    if (!parse_number(text, &value) || value < o->low || value > o->high) {
        return complain_range(p, "a number", text);
    }
    if (o->kind == OPTION_NUMBERS) {
        option_numbers *list = field;
        list->values[list->count++] = value;
    } else if (o->bytes == sizeof(float)) {
        *(float *)field = (float)value;
    } else {
        *(double *)field = value;
    }
    return EXIT_OK;
}

static int store_text(const value_place *p, const char *text, void *field) {
    RETURN_IF_FAILED(check_text(p, text));
    if (p->o->kind == OPTION_TEXTS) {
        option_texts *list = field;
        list->values[list->count++] = text;
    } else {
        *(const char **)field = text;
    }
    return EXIT_OK;
}

bool option_is_list(const option *o) { return o->kind == OPTION_TEXTS || o->kind == OPTION_NUMBERS; }

/* How often an option that takes several values was given before. */
static int list_count(const option *o, const void *field) {
    return o->kind == OPTION_TEXTS ? ((const option_texts *)field)->count : ((const option_numbers *)field)->count;
}

/* Of two values one would be lost. A flag that is given twice says the same twice. */
static int check_count(const option *o, const command_line *line, const void *field) {
    if (option_is_list(o) && list_count(o, field) == OPTION_LIST_MAX) {
        return complain(EXIT_USAGE, "--%s can be given %d times at most", o->name, OPTION_LIST_MAX);
    }
    if (option_is_list(o) || o->kind == OPTION_FLAG || !option_given(line, o->name)) { return EXIT_OK; }
    return complain(EXIT_USAGE, "--%s is given twice; give it once", o->name);
}

static int store_value(const value_place *p, const char *text, void *field) {
    int64_t whole;
    switch (p->o->kind) {
        case OPTION_FLAG: *(bool *)field = true; return EXIT_OK;
        case OPTION_TEXT:
        case OPTION_TEXTS: return store_text(p, text, field);
        case OPTION_INT:
            if (store_special(p->o, text, field)) { return EXIT_OK; }
            if (!parse_within(p->o, text, &whole)) { return complain_range(p, "a whole number", text); }
            put_whole(p->o, whole, field);
            return EXIT_OK;
        case OPTION_NUMBER:
        case OPTION_NUMBERS: return store_number(p, text, field);
        case OPTION_CHOICE: return store_choice(p, text, field);
        case OPTION_SET: return store_set(p, text, field);
        case OPTION_INTS: return store_ints(p, text, field);
        case OPTION_SEED:
            if (parse_seed(text, field)) { return EXIT_OK; }
            return complain(EXIT_USAGE, "%s takes a whole number from 0 to 2^64 - 1, not '%s'", p->name, text);
        case OPTION_BYTES:
            if (store_special(p->o, text, field) || parse_bytes(after_special(p->o, text), field)) { return EXIT_OK; }
            return complain(EXIT_USAGE, "%s takes %s such as 6GiB, 500MB or 1.5G, not '%s'", p->name,
                            p->o->choices == NULL ? "a size" : p->o->value_name, text);
    }
    return complain(EXIT_ENGINE, "%s has no kind", p->name);
}

/* ---- Finding options --------------------------------------------------------------------------------------------- */

/* Those of every command; their values are in the command line's own struct. */
static const option common_table[] = {
    {.name = "config",
     .kind = OPTION_TEXT,
     .value_name = "FILE.yaml",
     .neutral = true,
     .once = true,
     INTO(command_line, config),
     .completion = COMPLETE_FILE,
     .help =
         "Options from a YAML file, by their names without dashes: \"rank: 8\", \"full: true\", a list for what may "
         "be given several times. What the command line says wins over the file."},
};
const option_group common_options = {"Options from a file", common_table, sizeof common_table / sizeof common_table[0],
                                     0};

typedef struct match {
    const option *found;
    size_t offset;  /* of its value */
    bool is_common; /* in the command line; else in the command's struct */
} match;

static bool is_common(const option *o) {
    return o >= common_table && o < common_table + sizeof common_table / sizeof common_table[0];
}

const option *option_at(const command *cmd, size_t number, size_t *offset) {
    for (size_t g = 0; g < cmd->n_groups; g++) {
        const option_group *group = &cmd->groups[g];
        if (number < group->n_options) {
            if (offset != NULL) { *offset = group->offset + group->options[number].offset; }
            return &group->options[number];
        }
        number -= group->n_options;
    }
    if (number >= common_options.n_options) { return NULL; }
    if (offset != NULL) { *offset = common_table[number].offset; }
    return &common_table[number];
}

static match find_option(const command *cmd, const char *name, size_t length, char letter) {
    match m = {0};
    for (size_t i = 0; (m.found = option_at(cmd, i, &m.offset)) != NULL; i++) {
        const bool same = name != NULL ? strlen(m.found->name) == length && strncmp(m.found->name, name, length) == 0
                                       : letter != 0 && m.found->letter == letter;
        if (!same) { continue; }
        m.is_common = is_common(m.found);
        return m;
    }
    return (match){0};
}

/* The option that somebody may have meant, by meaning first and then by spelling; NULL: none is near. */
static const char *find_meant(const command *cmd, char name[NAME_BYTES]) {
    for (char *c = name; *c != '\0'; c++) {
        if (*c == '_') { *c = '-'; } /* as in a JSONL request */
    }
    nearest search = NEAREST_INIT(name);
    const option *o;
    for (size_t i = 0; (o = option_at(cmd, i, NULL)) != NULL; i++) { nearest_offer(&search, o->name); }
    const char *meant = peer_option(cmd, name);
    return meant != NULL ? meant : search.best;
}

const option *option_find(const command *cmd, const char *name) {
    return find_option(cmd, name, strlen(name), 0).found;
}

const option *option_find_meant(const command *cmd, const char *name) {
    char copy[NAME_BYTES];
    snprintf(copy, sizeof copy, "%s", name);
    const char *meant = find_meant(cmd, copy);
    return meant != NULL ? option_find(cmd, meant) : NULL;
}

static int complain_unknown(const command *cmd, const char *argument) {
    char name[NAME_BYTES];
    const char *start = argument + strspn(argument, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    const char *meant = find_meant(cmd, name), *missing = peer_missing_option(cmd, name);
    if (missing != NULL && peer_option(cmd, name) == NULL) {
        return complain(EXIT_USAGE, "'%s' has no option '%s': %s", cmd->name, argument, missing);
    }
    if (meant != NULL) {
        return complain(EXIT_USAGE, "'%s' has no option '%s'; did you mean '--%s'?", cmd->name, argument, meant);
    }
    return complain(EXIT_USAGE, "'%s' has no option '%s'; 'qrun help %s --all' lists them", cmd->name, argument,
                    cmd->name);
}

/* Splits one argument that begins with a dash into its option and, where it has "=", its value. */
static match split_argument(const command *cmd, const char *argument, const char **value) {
    *value = NULL;
    if (argument[1] != '-') {
        if (argument[2] != '\0' && argument[2] != '=') { return (match){0}; }
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

static void *field_of(const match *m, void *values, command_line *line) {
    return (char *)(m->is_common ? (void *)line : values) + m->offset;
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
    void *field = field_of(&m, values, line);
    char name[NAME_BYTES];
    RETURN_IF_FAILED(check_count(o, line, field));
    add_given(line, o);
    snprintf(name, sizeof name, "--%s", o->name);
    return store_value(&(value_place){o, name}, value, field);
}

/* ---- From a file ------------------------------------------------------------------------------------------------- */

/* "true" or "false" of a flag; *given is whether it counts. */
static int read_flag(const char *name, const config_entry *entry, bool *given) {
    *given = strcmp(entry->value, "true") == 0;
    if (*given || strcmp(entry->value, "false") == 0) { return EXIT_OK; }
    return complain(EXIT_USAGE, "%s takes true or false, not '%s'", name, entry->value);
}

/* Takes one entry of the file, unless the command line has the option: n_before is how many it gave. */
static int take_entry(const command *cmd, const config_entry *entry, int n_before, void *values, command_line *line) {
    char name[NAME_BYTES], place[512];
    const match m = find_option(cmd, entry->name, strlen(entry->name), 0);
    snprintf(place, sizeof place, "%s:%lld", line->config, (long long)entry->line);
    if (m.found == NULL || m.is_common) {
        snprintf(name, sizeof name, "%s", entry->name);
        const char *meant = m.found == NULL ? find_meant(cmd, name) : NULL;
        if (meant != NULL) {
            return complain(EXIT_USAGE, "%s: '%s' has no option '%.60s'; did you mean '%s'?", place, cmd->name,
                            entry->name, meant);
        }
        return complain(EXIT_USAGE,
                        "%s: '%s' has no option '%.60s' that a file may have; 'qrun help %s --all' lists them", place,
                        cmd->name, entry->name, cmd->name);
    }
    for (int i = 0; i < n_before; i++) {
        if (line->given[i] == m.found) { return EXIT_OK; }
    }
    void *field = field_of(&m, values, line);
    bool given = true;
    snprintf(place + strlen(place), sizeof place - strlen(place), ": %s", m.found->name);
    if (m.found->kind == OPTION_FLAG) { RETURN_IF_FAILED(read_flag(place, entry, &given)); }
    if (!given) { return EXIT_OK; }
    if (!option_is_list(m.found) && option_given(line, m.found->name)) {
        return complain(EXIT_USAGE, "%s takes one value and no list; where it is several names, they are one text: a,b",
                        place);
    }
    RETURN_IF_FAILED(check_count(m.found, line, field));
    add_given(line, m.found);
    return store_value(&(value_place){m.found, place}, entry->value, field);
}

static int take_config(const command *cmd, void *values, command_line *line) {
    const int n_before = line->n_given;
    RETURN_IF_FAILED(config_read(&line->file, line->config));
    for (int64_t i = 0; i < line->file.n_entries; i++) {
        RETURN_IF_FAILED(take_entry(cmd, &line->file.entries[i], n_before, values, line));
    }
    return EXIT_OK;
}

/* ---- All of a command line --------------------------------------------------------------------------------------- */

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
    *line = (command_line){0};
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
    if (line->config != NULL) { RETURN_IF_FAILED(take_config(cmd, values, line)); }
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
    const option_numbers *numbers = field;
    switch (o->kind) {
        case OPTION_FLAG: text_puts(out, "yes"); return;
        case OPTION_TEXT: text_puts(out, *(const char *const *)field); return;
        case OPTION_TEXTS:
            for (int i = 0; i < texts->count; i++) { text_format(out, "%s%s", i > 0 ? "\n" : "", texts->values[i]); }
            return;
        case OPTION_INT:
        case OPTION_BYTES:
            if (special_name(o, field)[0] != '\0') {
                text_puts(out, special_name(o, field));
                return;
            }
            text_format(out, "%lld", (long long)get_whole(o, field));
            return;
        case OPTION_CHOICE: text_puts(out, option_chosen(o, field)); return;
        case OPTION_SET: describe_set(o, get_whole(o, field), out); return;
        case OPTION_SEED: text_format(out, "%llu", *(const unsigned long long *)field); return;
        case OPTION_NUMBER: describe_number(o, field, out); return;
        case OPTION_NUMBERS:
            for (int i = 0; i < numbers->count; i++) {
                text_format(out, "%s%s", i > 0 ? "\n" : "", json_double(numbers->values[i]).text);
            }
            return;
        case OPTION_INTS:
            for (int i = 0; i < ints->count; i++) { text_format(out, "%s%d", i > 0 ? "," : "", ints->values[i]); }
            return;
    }
}

/* Whether the field has a value that the option could be given as: none stands for a default without one. */
static bool has_value(const option *o, const void *field) {
    switch (o->kind) {
        case OPTION_FLAG: return *(const bool *)field;
        case OPTION_TEXT: return *(const char *const *)field != NULL;
        case OPTION_TEXTS: return ((const option_texts *)field)->count > 0;
        case OPTION_NUMBERS: return ((const option_numbers *)field)->count > 0;
        case OPTION_INTS: return ((const option_ints *)field)->count > 0;
        case OPTION_CHOICE: return option_chosen(o, field) != NULL && option_chosen(o, field)[0] != '\0';
        case OPTION_SET:
        case OPTION_SEED: return true;
        case OPTION_BYTES: return special_name(o, field)[0] != '\0' || get_whole(o, field) > 0;
        case OPTION_INT:
            return special_name(o, field)[0] != '\0' ||
                   ((double)get_whole(o, field) >= o->low && (double)get_whole(o, field) <= o->high);
        case OPTION_NUMBER: break;
    }
    const double value = o->bytes == sizeof(float) ? (double)*(const float *)field : *(const double *)field;
    return value >= o->low && value <= o->high;
}

/* What a description has: what was given and shapes the answers, or (no line) everything with a value. */
static bool is_described(const option *o, const void *field, const command_line *line) {
    return line != NULL ? !o->neutral && option_given(line, o->name) : !o->once && has_value(o, field);
}

void options_describe(const command *cmd, const void *values, const command_line *line, text_buffer *out) {
    text_buffer value = {0};
    const option *o;
    size_t offset;
    bool first = true;
    text_puts(out, "{");
    for (size_t i = 0; (o = option_at(cmd, i, &offset)) != NULL && !is_common(o); i++) {
        const void *field = (const char *)values + offset;
        if (!is_described(o, field, line)) { continue; }
        text_clear(&value);
        describe_value(o, field, &value);
        text_format(out, "%s\"%s\":", first ? "" : ",", o->name);
        text_json_string(out, value.data != NULL ? value.data : "", value.size);
        first = false;
    }
    text_puts(out, "}");
    text_free(&value);
}

/* A text in quotes, whose escapes are JSON's and YAML's alike; or the value of a number, as it is. */
static void put_yaml(const option *o, const char *value, size_t n_bytes, text_buffer *out) {
    const bool is_text = o->kind == OPTION_TEXT || o->kind == OPTION_TEXTS || o->kind == OPTION_INTS;
    if (o->kind == OPTION_FLAG) {
        text_puts(out, "true");
    } else if (is_text) {
        text_json_string(out, value, n_bytes);
    } else {
        text_append(out, value, n_bytes);
    }
}

void options_write_config(const command *cmd, const void *values, text_buffer *out) {
    text_buffer value = {0};
    const option *o;
    size_t offset;
    for (size_t i = 0; (o = option_at(cmd, i, &offset)) != NULL && !is_common(o); i++) {
        const void *field = (const char *)values + offset;
        if (!is_described(o, field, NULL)) { continue; }
        text_clear(&value);
        if (o->kind == OPTION_TEXTS) { /* a text may have line ends of its own */
            const option_texts *texts = field;
            text_format(out, "%s:\n", o->name);
            for (int k = 0; k < texts->count; k++) {
                text_puts(out, "  - ");
                put_yaml(o, texts->values[k], strlen(texts->values[k]), out);
                text_puts(out, "\n");
            }
            continue;
        }
        describe_value(o, field, &value);
        if (o->kind == OPTION_NUMBERS) {
            text_format(out, "%s: [", o->name);
            for (const char *c = value.data; *c != '\0'; c++) {
                text_append(out, *c == '\n' ? ", " : c, *c == '\n' ? 2 : 1);
            }
            text_puts(out, "]\n");
            continue;
        }
        text_format(out, "%s: ", o->name);
        put_yaml(o, value.data != NULL ? value.data : "", value.size, out);
        text_puts(out, "\n");
    }
    text_free(&value);
}
