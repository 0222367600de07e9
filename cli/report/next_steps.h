/* The next lines after a result: how to use it, here and in other programs, as they are typed. */
#ifndef QRUN_CLI_REPORT_NEXT_STEPS_H
#define QRUN_CLI_REPORT_NEXT_STEPS_H

#include <stdbool.h>

#include "cli/terminal/text.h"
#include "qrun.h"

/* A word, quoted where a shell needs that. */
void put_shell_word(text_buffer *out, const char *word);

/* A result: an adapter and its model, or (adapter NULL) a model, a folder of its own. */
typedef struct next_steps {
    const char *model, *adapter;
    int rank;        /* of the adapter */
    bool must_merge; /* it has more than LoRA of linear layers, which is all that vLLM adds to a model */
} next_steps;

/* Lines for llama.cpp, ollama, vLLM and Python, to stdout; or why it cannot be exported. */
void next_steps_print(qrun_context *context, const next_steps *result);

/* The same for a GGUF file. lora: the file is an adapter for the GGUF file of its model. */
void next_steps_print_gguf(const char *file, bool lora);

/* Whether `out` has the ending of a file, where `command` writes a folder. Then the user is told which command writes
 * such a file, with these arguments; model and adapter may be NULL. */
bool complain_file_ending(const char *command, const char *out, const char *model, const char *adapter);

#endif
