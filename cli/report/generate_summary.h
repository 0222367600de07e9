/* What a run of generate came to: for people, and as one line of JSON. */
#ifndef QRUN_CLI_REPORT_GENERATE_SUMMARY_H
#define QRUN_CLI_REPORT_GENERATE_SUMMARY_H

#include "cli/options/engine.h"

typedef struct run_counts {
    int64_t n_answered, n_failed; /* requests of this run; the failed ones are among the answered */
    int64_t n_resumed;            /* answered by an earlier run */
    int64_t memory_bytes;         /* --memory; 0: not given */
    double seconds;               /* from the first submission to the end */
} run_counts;

/* Both write to stderr. */
void report_for_people(const engine *e, const run_counts *counts);
void report_json(const engine *e, const run_counts *counts);

#endif
