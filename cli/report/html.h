/* Text made safe for HTML, and tables of it. */
#ifndef QRUN_CLI_REPORT_HTML_H
#define QRUN_CLI_REPORT_HTML_H

#include "cli/terminal/text.h"

/* The text with &, <, >, quotes escaped, for elements and attribute values; control characters become spaces,
 * but for ends of lines. */
void html_text(text_buffer *out, const char *s);
/* <tr><th>name</th><td>value</td></tr> */
void html_row_text(text_buffer *out, const char *name, const char *value);
void html_row(text_buffer *out, const char *name, const char *format, ...) CLI_PRINTF(3, 4);

#endif
