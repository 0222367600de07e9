/* A memory plan as a table for people and as JSON. */
#ifndef QRUN_CLI_REPORT_PLAN_TABLE_H
#define QRUN_CLI_REPORT_PLAN_TABLE_H

#include "cli/terminal/text.h"
#include "qrun.h"

/* Categories that take nothing are left out. Host memory apart from the device is listed after the sum. */
void plan_table_print(const qrun_plan_entry *entries, int32_t n_entries);
/* A line with the budget, as it was understood; none where there is none (0). */
void plan_table_print_budget(int64_t memory_bytes);
/* {"total_bytes": …, "host_bytes": … (apart from the device), "entries": [{"category", "bytes" (null: not known)}, …]}
 */
void plan_table_json(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out);

/* What `qrun plan` and `--plan` print: the table, the memory there is, and a line that says whether it fits. If it does
 * not, the library's error says why. plan_report_json appends the table's members and those of the verdict, without
 * braces. The exit code is EXIT_OK or EXIT_NO_FIT. */
typedef struct plan_report {
    const qrun_plan_entry *entries;
    int32_t n_entries;
    int64_t memory_bytes; /* of --memory; 0: not given */
    const qrun_plan_info *info;
    const qrun_error *error;
} plan_report;

void plan_report_print(const plan_report *report);
/* What --fit found, before the plan of it: a line, or the first members of the object. */
void plan_report_print_fit(const char *what, const qrun_fit_result *fitted);
void plan_report_print_fit_json(const char *what, const qrun_fit_result *fitted);
void plan_report_json(const plan_report *report, text_buffer *out);
int plan_report_code(const plan_report *report);

#endif
