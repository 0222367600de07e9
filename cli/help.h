/* Help made from the commands' own tables. */
#ifndef QRUN_CLI_HELP_H
#define QRUN_CLI_HELP_H

#include "cli/options/command.h"

void help_print_program(void);
void help_print_command(const command *cmd);

#endif
