/* The files that describe a training run besides its log: report.html, one page with nothing loaded from elsewhere, and
 * the trainer_state.json of the Hugging Face Trainer, which other tools plot from. */
#ifndef QRUN_CLI_REPORT_TRAIN_REPORT_H
#define QRUN_CLI_REPORT_TRAIN_REPORT_H

#include "cli/options/train.h"
#include "cli/profile/profile.h"
#include "cli/report/train_log.h"

typedef struct train_facts {
    const finetune_options *options;
    const char *options_json; /* the settled options, an object of texts */
    const char *config;       /* the same as YAML, for run.yaml */
    const char *state;        /* "finished", "running" … */
    const qrun_model_info *model;
    const qrun_train_info *info;
    const qrun_plan_entry *plan; /* [n_plan] */
    int32_t n_plan;
    const profile *profile; /* NULL, or not taken: none is shown */
} train_facts;

/* Whether the result has the parameters of the best evaluation, not those of the last step. */
bool train_exports_best(const train_facts *facts);

void train_report_html(const train_log *log, const train_facts *facts, text_buffer *out);
void train_state_json(const train_log *log, const train_facts *facts, text_buffer *out);

#endif
