/* The words of other programs for what qrun has: llama.cpp, vLLM, transformers, PEFT and TRL, unsloth, axolotl, mlx-lm
 * and Ollama. They are not accepted, but answered with ours. */
#ifndef QRUN_CLI_OPTIONS_PEERS_H
#define QRUN_CLI_OPTIONS_PEERS_H

#include "cli/options/command.h"

/* Each returns our word, or NULL where the table has none that fits here. */
const char *peer_command(const char *theirs);
const char *peer_option(const command *command, const char *theirs); /* theirs: without leading dashes, '_' as '-' */
const char *peer_value(const option *o, const char *theirs);

/* What to do instead of a command that qrun does not have; NULL: the table does not know it. */
const char *peer_missing_command(const char *theirs);
/* What there is in place of an option that no option of this command stands for; NULL: likewise. */
const char *peer_missing_option(const command *command, const char *theirs);

#endif
