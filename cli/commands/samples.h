/* What a model answers to a few prompts before and after a training run (--sample-prompts): as files in the output
 * folder, samples-before.jsonl and samples-after.jsonl, and on the page of the run. */
#ifndef QRUN_CLI_COMMANDS_SAMPLES_H
#define QRUN_CLI_COMMANDS_SAMPLES_H

#include "cli/options/train.h"
#include "cli/terminal/text.h"

/* Answers from the model as it is opened, with the adapter in that folder unless it is NULL, as lines of JSON into
 * *answers. There must be no trainer: both would need the memory. Returns 0 or an exit code; so does the other. */
int samples_take(const finetune_options *options, engine *e, const char *adapter, text_buffer *answers);

/* The same of a model that is opened for it alone, and closed: where the run's own is shared out (--zero 3). model
 * NULL: the one that the run begins with; else the folder that --full has written. Its layers are offloaded where they
 * do not fit otherwise. */
int samples_take_whole(const finetune_options *options, const char *model, const char *adapter, text_buffer *answers);

/* Writes both into the output folder and onto report.html. */
int samples_publish(const finetune_options *options, const text_buffer *before, const text_buffer *after);

#endif
