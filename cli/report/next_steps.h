/* The next lines after a result: how to use it, here and in other programs, as they are typed. */
#ifndef QRUN_CLI_REPORT_NEXT_STEPS_H
#define QRUN_CLI_REPORT_NEXT_STEPS_H

#include <stdbool.h>

#include "cli/terminal/text.h"

/* A word, quoted where a shell needs that. */
void put_shell_word(text_buffer *out, const char *word);

/* Lines for llama.cpp, ollama, vLLM and Python, to stdout. adapter NULL: `model` is the result, a folder of its own. */
void next_steps_print(const char *model, const char *adapter);

/* The same for a GGUF file. lora: the file is an adapter for the GGUF file of its model. */
void next_steps_print_gguf(const char *file, bool lora);

/* Whether `out` has the ending of a file, where `command` writes a folder. Then the user is told which command writes
 * such a file, with these arguments; model and adapter may be NULL. */
bool complain_file_ending(const char *command, const char *out, const char *model, const char *adapter);

#endif
