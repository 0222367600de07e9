/* json_text FILE KEY…: writes the string, number or truth value found by following the keys (numbers index arrays). */
#include <stdio.h>
#include <stdlib.h>

#include "loaders/files/json.h"

static const qr_json *follow(const qr_json *value, const char *key) {
    if (!cJSON_IsArray(value)) { return qr_json_get(value, key); }
    const qr_json *item = qr_json_first(value);
    for (long index = strtol(key, NULL, 10); index > 0 && item != NULL; index--) { item = item->next; }
    return item;
}

int main(int argc, char **argv) {
    qr_json *root = NULL;
    qr_error error = QRUN_ERROR_INIT;
    if (argc < 2 || qr_json_read(argv[1], (size_t)1 << 26, &root, &error) != QRUN_OK) {
        fprintf(stderr, "json_text: %s\n", argc < 2 ? "usage: json_text FILE KEY..." : error.message);
        return 2;
    }
    const qr_json *value = root;
    for (int i = 2; i < argc; i++) { value = follow(value, argv[i]); }
    int result = 0;
    if (cJSON_IsString(value)) {
        fputs(value->valuestring, stdout);
    } else if (cJSON_IsNumber(value)) {
        printf("%.17g", value->valuedouble);
    } else if (cJSON_IsBool(value)) {
        fputs(cJSON_IsTrue(value) ? "true" : "false", stdout);
    } else {
        result = 1;
    }
    qr_json_free(root);
    return result;
}
