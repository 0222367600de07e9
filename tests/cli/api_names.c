/* Prints the options that library messages' fields become, a line for each argument. */
#include "cli/terminal/api_names.h"

#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char field[256], option[API_NAMES_TEXT_BYTES];
        snprintf(field, sizeof field, "`%s`", argv[i]);
        printf("%s\n", api_names_to_options(field, option));
    }
    return 0;
}
