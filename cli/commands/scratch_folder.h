/* A folder for what is needed while the program runs and no longer. */
#ifndef QRUN_CLI_COMMANDS_SCRATCH_FOLDER_H
#define QRUN_CLI_COMMANDS_SCRATCH_FOLDER_H

#include "cli/terminal/text.h"

/* Makes one under TMPDIR (else /tmp) and appends its path. 0 or an exit code, after telling the user. */
int scratch_folder_make(text_buffer *path);
/* With all that is in it; what cannot be removed stays. */
void scratch_folder_remove(const char *path);

#endif
