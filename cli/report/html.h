/* Text made safe for HTML, tables of it, and how a page begins. */
#ifndef QRUN_CLI_REPORT_HTML_H
#define QRUN_CLI_REPORT_HTML_H

#include "cli/terminal/text.h"

/* The text with &, <, >, quotes escaped, for elements and attribute values; control characters become spaces,
 * but for ends of lines. */
void html_text(text_buffer *out, const char *s);
/* <tr><th>name</th><td>value</td></tr> */
void html_row_text(text_buffer *out, const char *name, const char *value);
void html_row(text_buffer *out, const char *name, const char *format, ...) CLI_PRINTF(3, 4);

/* From the doctype to the heading; more_style: rules besides those of all pages, or "". It ends with
 * "</body>\n</html>\n", which the caller writes. */
void html_page_begin(text_buffer *out, const char *title, const char *more_style);

#endif
