/* check_jsonl FILE: whether every line of FILE is one strict JSON object. Says which is not. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "loaders/files/json.h"

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: check_jsonl FILE\n");
        return 2;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int result = 0;
    for (int number = 1; (length = getline(&line, &capacity, file)) > 0; number++) {
        char what[32];
        snprintf(what, sizeof what, "line %d", number);
        qr_json *root = NULL;
        qr_error error = QRUN_ERROR_INIT;
        if (line[length - 1] != '\n') {
            printf("%s has no end\n", what);
            result = 1;
        } else if (qr_json_parse(line, (size_t)length - 1, what, &root, &error) != QRUN_OK) {
            printf("%s\n", error.message);
            result = 1;
        } else if (!cJSON_IsObject(root)) {
            printf("%s is no object\n", what);
            result = 1;
        }
        qr_json_free(root);
    }
    free(line);
    fclose(file);
    return result;
}
