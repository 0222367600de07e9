/* What qrun finetune prints on stdout before the first step and after the last. */
#ifndef QRUN_CLI_COMMANDS_FINETUNE_SUMMARY_H
#define QRUN_CLI_COMMANDS_FINETUNE_SUMMARY_H

#include "cli/commands/training.h"
#include "cli/options/train.h"

/* Of each file with such members, a line. */
void finetune_print_unknown_members(const training *t);
/* The data, what is trained, and the plan of memory by category. */
void finetune_print_start(const training *t);
/* {"start": {"data": {…}, "trainable_parameters", …, "plan": {…}}} */
void finetune_print_start_json(const training *t);

/* Loss, speed, memory as it was, and how to use the result, here and elsewhere. settled: the run's options. */
void finetune_print_result(const training *t, const finetune_options *settled, qrun_context *context);
/* {"result": {"adapter", "steps", "first_loss", "last_loss", …}} */
void finetune_print_result_json(const training *t);

#endif
