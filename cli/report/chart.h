/* A line chart over steps as inline SVG, without scripts and with colours that the page's style sheet gives (classes
 * "grid", "axis", and those of the series). */
#ifndef QRUN_CLI_REPORT_CHART_H
#define QRUN_CLI_REPORT_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/terminal/text.h"

typedef struct chart_series {
    const double *x, *y; /* [n], x ascending; the line breaks where y is not finite */
    int64_t n;
    const char *style; /* CSS class */
    const char *name;  /* in the legend; NULL: none */
    bool dots;         /* each point marked */
} chart_series;

enum { CHART_SERIES_MAX = 3 };

typedef struct chart {
    const char *title;
    chart_series series[CHART_SERIES_MAX];
    int n_series;
    bool from_zero; /* the y axis begins at 0 */
} chart;

/* Long series are drawn as the means of at most CHART_POINTS_MAX stretches. Values are shown under the pointer, at
 * every step or, of many, at CHART_COLUMNS_MAX of them. */
enum { CHART_POINTS_MAX = 600, CHART_COLUMNS_MAX = 200 };
void chart_svg(const chart *c, text_buffer *out);

#endif
