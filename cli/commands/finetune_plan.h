/* qrun finetune --plan: what a run would take, the largest run that fits, and what each option saves. */
#ifndef QRUN_CLI_COMMANDS_FINETUNE_PLAN_H
#define QRUN_CLI_COMMANDS_FINETUNE_PLAN_H

#include "cli/options/train.h"

/* With --fit and --compare. Needs the engine's context alone; returns 0 or an exit code, after telling the user. */
int finetune_check_ranks(const finetune_options *options); /* --ranks and what goes with it */
int finetune_show_plan(const finetune_options *options, const engine *e);

#endif
