/* qrun finetune --plan --compare: what each option that saves memory saves alone, and all of them together, with what
 * they cost; with --measure also what steps with them take. */
#ifndef QRUN_CLI_COMMANDS_FINETUNE_COMPARE_H
#define QRUN_CLI_COMMANDS_FINETUNE_COMPARE_H

#include "cli/options/train.h"

/* `model` and `params` are changed on the way. 0 or an exit code, after telling the user. */
int finetune_compare(const finetune_options *options, const engine *e, qrun_model_params *model,
                     qrun_train_params *params);

#endif
