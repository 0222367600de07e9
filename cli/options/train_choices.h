/* Words of options that qrun finetune and qrun bench --train have both. */
#ifndef QRUN_CLI_OPTIONS_TRAIN_CHOICES_H
#define QRUN_CLI_OPTIONS_TRAIN_CHOICES_H

#include <qrun.h>
#include <stdint.h>

extern const char *const train_optimizer_names[]; /* by qrun_optimizer; the last is NULL */

/* What lives in host memory; `choice` is the place of a word. */
extern const char *const train_offload_names[];
void train_set_offload(qrun_train_params *params, int64_t choice);

#endif
