/* Live memory over time as stacked areas: one SVG, with names, phases and sizes beside it, that four buttons stretch
 * without a script. */
#ifndef QRUN_CLI_REPORT_MEMORY_AREAS_H
#define QRUN_CLI_REPORT_MEMORY_AREAS_H

#include "cli/profile/live_memory.h"
#include "cli/terminal/text.h"

/* Needs the rules of profile_style. Nothing where the timeline has no events. */
void memory_areas_html(const qrun_timeline *timeline, const live_memory *memory, text_buffer *out);
/* The colour and texture of a row, for tables on the same page. */
void memory_areas_swatch(const live_memory *memory, int row, text_buffer *out);

#endif
