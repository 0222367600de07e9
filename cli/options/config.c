#include "cli/options/config.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"

enum { MAX_BYTES = 1 << 20, MAX_ENTRIES = 10000 };

/* A position in the file. */
typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one read last */
    bool has_event;
    const char *path;
} reader;

static long long line_of(const reader *r) { return (long long)r->event.start_mark.line + 1; }

static int next_event(reader *r) {
    if (r->has_event) { yaml_event_delete(&r->event); }
    r->has_event = yaml_parser_parse(&r->parser, &r->event) == 1;
    if (r->has_event) { return EXIT_OK; }
    if (r->parser.error == YAML_MEMORY_ERROR) { return complain(EXIT_MEMORY, "out of memory"); }
    return complain(EXIT_FILE, "%s:%lld: is not YAML: %s", r->path, (long long)r->parser.problem_mark.line + 1,
                    r->parser.problem != NULL ? r->parser.problem : "it is not UTF-8");
}

/* Whether the event is of the kind; a scalar also has to be one without anchor or tag. */
static int require(const reader *r, yaml_event_type_t kind, const char *what) {
    if (r->event.type == YAML_ALIAS_EVENT) {
        return complain(EXIT_FILE, "%s:%lld: aliases (*name) are not read; write the value out", r->path, line_of(r));
    }
    if (r->event.type != kind) {
        return complain(EXIT_FILE, "%s:%lld: %s should be here, as in \"rank: 8\" or \"data: [a.jsonl, b.jsonl]\"",
                        r->path, line_of(r), what);
    }
    if (kind == YAML_SCALAR_EVENT && (r->event.data.scalar.anchor != NULL || r->event.data.scalar.tag != NULL)) {
        return complain(EXIT_FILE, "%s:%lld: anchors (&name) and tags (!name) are not read", r->path, line_of(r));
    }
    return EXIT_OK;
}

static int copy_scalar(const reader *r, char **copy) {
    const size_t n_bytes = r->event.data.scalar.length;
    const char *text = (const char *)r->event.data.scalar.value;
    if (memchr(text, 0, n_bytes) != NULL) {
        return complain(EXIT_FILE, "%s:%lld: this text has a zero byte", r->path, line_of(r));
    }
    *copy = memcpy(allocate(n_bytes + 1), text, n_bytes);
    return EXIT_OK;
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

static int require_room(const reader *r, const config *file) {
    if (file->n_entries < MAX_ENTRIES) { return EXIT_OK; }
    return complain(EXIT_FILE, "%s:%lld: more than %d values are too many for a file of options", r->path, line_of(r),
                    MAX_ENTRIES);
}

static config_entry *add_entry(config *file, const char *name, long long line) {
    file->entries = reallocate_for_more(file->entries, file->n_entries, &file->capacity, sizeof *file->entries);
    config_entry *entry = &file->entries[file->n_entries++];
    *entry = (config_entry){.name = strcpy(allocate(strlen(name) + 1), name), .line = line};
    return entry;
}

/* Whether YAML means nothing by the scalar: no text, or null, without quotes. */
static bool is_null(const yaml_event_t *event) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    if (event->type != YAML_SCALAR_EVENT || event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) { return false; }
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++) {
        if (strcmp((const char *)event->data.scalar.value, nulls[i]) == 0) { return true; }
    }
    return false;
}

/* The scalar that was read, as a value of the name. */
static int take_value(const reader *r, config *file, const char *name) {
    if (is_null(&r->event)) { return complain(EXIT_FILE, "%s:%lld: '%.60s' has no value", r->path, line_of(r), name); }
    RETURN_IF_FAILED(require(r, YAML_SCALAR_EVENT, "a value"));
    RETURN_IF_FAILED(require_room(r, file));
    return copy_scalar(r, &add_entry(file, name, line_of(r))->value);
}

static int read_values(reader *r, config *file, const char *name) {
    RETURN_IF_FAILED(next_event(r));
    if (r->event.type != YAML_SEQUENCE_START_EVENT) { return take_value(r, file, name); }
    if (r->event.data.sequence_start.anchor != NULL || r->event.data.sequence_start.tag != NULL) {
        return complain(EXIT_FILE, "%s:%lld: anchors (&name) and tags (!name) are not read", r->path, line_of(r));
    }
    for (;;) {
        RETURN_IF_FAILED(next_event(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) { return EXIT_OK; }
        RETURN_IF_FAILED(take_value(r, file, name));
    }
}

static bool has_name(const config *file, const char *name) {
    for (int64_t i = 0; i < file->n_entries; i++) {
        if (strcmp(file->entries[i].name, name) == 0) { return true; }
    }
    return false;
}

static int read_mapping(reader *r, config *file) {
    for (;;) {
        char *name = NULL;
        RETURN_IF_FAILED(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) { return EXIT_OK; }
        RETURN_IF_FAILED(require(r, YAML_SCALAR_EVENT, "the name of an option"));
        const long long line = line_of(r);
        RETURN_IF_FAILED(copy_scalar(r, &name));
        int code = has_name(file, name) ? complain(EXIT_FILE, "%s:%lld: '%.60s' is given twice", r->path, line, name)
                                        : read_values(r, file, name);
        free(name);
        if (code != EXIT_OK) { return code; }
    }
}

/* From the first event to the last. */
static int read_document(reader *r, config *file) {
    RETURN_IF_FAILED(next_event(r)); /* the stream begins */
    RETURN_IF_FAILED(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT) { return EXIT_OK; } /* nothing but comments */
    RETURN_IF_FAILED(next_event(r));                                /* after the document's beginning */
    RETURN_IF_FAILED(require(r, YAML_MAPPING_START_EVENT, "names of options with their values"));
    RETURN_IF_FAILED(read_mapping(r, file));
    RETURN_IF_FAILED(next_event(r)); /* the document ends */
    RETURN_IF_FAILED(next_event(r));
    return require(r, YAML_STREAM_END_EVENT, "the end of the file, and not a second document,");
}

int config_read(config *file, const char *path) {
    text_buffer text = {0};
    reader r = {.path = path};
    int code = file_read(&text, path);
    if (code == EXIT_OK && text.size > MAX_BYTES) {
        code = complain(EXIT_FILE, "'%s' has more than %d bytes, too many for a file of options", path, MAX_BYTES);
    }
    if (code == EXIT_OK && yaml_parser_initialize(&r.parser) != 1) { code = complain(EXIT_MEMORY, "out of memory"); }
    if (code == EXIT_OK) {
        const char *bytes = text.data != NULL ? text.data : "";
        const size_t mark = strncmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes + mark, text.size - mark);
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        code = read_document(&r, file);
        if (r.has_event) { yaml_event_delete(&r.event); }
        yaml_parser_delete(&r.parser);
    }
    text_free(&text);
    return code;
}

void config_free(config *file) {
    for (int64_t i = 0; i < file->n_entries; i++) {
        free(file->entries[i].name);
        free(file->entries[i].value);
    }
    free(file->entries);
    *file = (config){0};
}
