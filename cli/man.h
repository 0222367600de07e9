/* Manual pages (man(7)) made from the commands' own tables, on stdout. */
#ifndef QRUN_CLI_MAN_H
#define QRUN_CLI_MAN_H

#include "cli/options/command.h"

void man_print_program(void);               /* qrun(1) */
void man_print_command(const command *cmd); /* qrun-COMMAND(1) */

#endif
