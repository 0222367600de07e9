/* Help made from the commands' own tables. */
#ifndef QRUN_CLI_HELP_H
#define QRUN_CLI_HELP_H

#include "cli/options/command.h"

void help_print_program(void);
/* One screen: how it is used, the options that most people need, an example. */
void help_print_command(const command *cmd);
/* Everything about it. */
void help_print_all(const command *cmd);
void help_print_option(const option *o);

#endif
