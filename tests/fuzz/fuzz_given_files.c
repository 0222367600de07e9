/* What the program itself reads of what users give. The first byte says what the rest is: a file of --config, whose
 * entries have names and values, none of them twice unless in a list; or a line of --prompts. A line keeps its length,
 * and where it is an object of JSON it stays one, without its ids and with everything else; what is taken of it is JSON
 * too. */
#include <cjson/cJSON.h>

#include "cli/options/config.h"
#include "cli/requests/request_line.h"
#include "fuzz.h"
#include "loaders/files/json.h"
#include "program.h"

static void check_config(const uint8_t *data, size_t size) {
    config file = {0}, again = {0};
    const char *path = fuzz_file("run.yaml", data, size);
    const int code = config_read(&file, path);
    FUZZ_CHECK(config_read(&again, path) == code && again.n_entries == file.n_entries);
    int64_t line = 1;
    for (int64_t i = 0; i < file.n_entries && code == EXIT_OK; i++) {
        const config_entry *entry = &file.entries[i];
        FUZZ_CHECK(entry->name != NULL && entry->value != NULL && entry->line >= line);
        FUZZ_CHECK(strcmp(entry->value, again.entries[i].value) == 0);
        line = entry->line;
    }
    config_free(&file);
    config_free(&again);
    fuzz_file_remove("run.yaml");
}

/* `members` after a first one, as an object; NULL where that is not JSON. */
static qr_json *parse_members(const text_buffer *members) {
    text_buffer object = {0};
    qr_json *root = NULL;
    text_format(&object, "{\"\":0%s}", members->data != NULL ? members->data : "");
    (void)qr_json_parse(object.data, object.size, "", &root, NULL);
    text_free(&object);
    return root;
}

static void check_line(const uint8_t *data, size_t size) {
    text_buffer line = {0}, id = {0}, prompt = {0};
    qr_json *before = NULL, *after = NULL;
    if (memchr(data, 0, size) != NULL) { return; } /* a line of the reader's that has one is refused by the library */
    text_append(&line, (const char *)data, size);
    (void)qr_json_parse(line.data, line.size, "", &before, NULL);
    request_line_take_id(&line, &id);
    FUZZ_CHECK(line.size == size);
    qr_json *taken = parse_members(&id);
    FUZZ_CHECK(taken != NULL);
    if (cJSON_IsObject(before)) {
        FUZZ_CHECK(qr_json_parse(line.data, line.size, "", &after, NULL) == QRUN_OK);
        FUZZ_CHECK(qr_json_count(before) == qr_json_count(after) + qr_json_count(taken) - 1);
        for (const qr_json *item = qr_json_first(after); item != NULL; item = item->next) {
            FUZZ_CHECK(cJSON_Compare(item, qr_json_get(before, item->string), true));
        }
        request_line_copy_prompt(&line, &prompt);
        qr_json *copied = parse_members(&prompt);
        FUZZ_CHECK(copied != NULL);
        qr_json_free(copied);
    }
    qr_json_free(before);
    qr_json_free(after);
    qr_json_free(taken);
    text_free(&line);
    text_free(&id);
    text_free(&prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) { return 0; }
    if (*data == 'c') { check_config(data + 1, size - 1); }
    if (*data == 'l') { check_line(data + 1, size - 1); }
    return 0;
}
