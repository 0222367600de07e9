/* report.html: a training run on one page, with nothing loaded from elsewhere. */
#ifndef QRUN_CLI_REPORT_TRAIN_REPORT_H
#define QRUN_CLI_REPORT_TRAIN_REPORT_H

#include "cli/report/train_log.h"
#include "qrun.h"

typedef struct train_report_facts {
    const char *model, *data, *out; /* as given */
    const char *state;              /* "finished", "running" … */
    const qrun_model_info *model_info;
    const qrun_train_info *info;
    const qrun_plan_entry *plan; /* [n_plan] */
    int32_t n_plan;
    const char *options_json; /* the options given, an object of texts */
} train_report_facts;

void train_report_html(const train_log *log, const train_report_facts *facts, text_buffer *out);

#endif
