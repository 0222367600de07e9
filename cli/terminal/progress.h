/* The one line of progress on stderr. It is drawn only where stderr is a terminal that can redraw it; everything here
 * does nothing otherwise. */
#ifndef QRUN_CLI_TERMINAL_PROGRESS_H
#define QRUN_CLI_TERMINAL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/terminal/messages.h"

double clock_seconds(void);   /* monotonic */
int64_t peak_rss_bytes(void); /* memory that the process had resident at most, so far */

/* Turns drawing off for the rest of the run (--quiet). */
void progress_silence(void);
/* Whether a line would be drawn. */
bool progress_enabled(void);
/* True when the last line is old enough (100 ms) to draw another: ask before gathering what it should say. */
bool progress_due(void);

/* Draws "[####    ] text", the bar for done/total (no bar when total ≤ 0). Cut to the terminal's width. */
void progress_draw(double done, double total, const char *format, ...) CLI_PRINTF(3, 4);
void progress_clear(void);

#endif
