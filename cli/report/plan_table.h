/* A memory plan as a table for people and as JSON. */
#ifndef QRUN_CLI_REPORT_PLAN_TABLE_H
#define QRUN_CLI_REPORT_PLAN_TABLE_H

#include "cli/terminal/text.h"

/* Categories that take nothing are left out. Host memory apart from the device is listed after the sum. */
void plan_table_print(const qrun_plan_entry *entries, int32_t n_entries);
/* {"total_bytes": …, "host_bytes": … (apart from the device), "entries": [{"category", "bytes" (null: not known)}, …]}
 */
void plan_table_json(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out);

#endif
