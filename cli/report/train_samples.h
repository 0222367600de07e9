/* Answers of a model before and after training, side by side on the page of a run. */
#ifndef QRUN_CLI_REPORT_TRAIN_SAMPLES_H
#define QRUN_CLI_REPORT_TRAIN_SAMPLES_H

#include "cli/terminal/text.h"

/* Where the section goes. */
#define TRAIN_SAMPLES_MARK "<!-- samples -->"

/* Both are lines of answers with their prompts, as 'qrun generate --with-prompt' writes them, in any order. */
void train_samples_html(const char *before, const char *after, text_buffer *out);

#endif
