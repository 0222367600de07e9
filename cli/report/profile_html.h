/* What --profile has found, for a page: memory over a step as stacked areas, what the peak is made of, the largest
 * tensors, what layers keep for the backward pass, and time by phase and op. No scripts; a texture of its own tells
 * each area from the others where colour does not. */
#ifndef QRUN_CLI_REPORT_PROFILE_HTML_H
#define QRUN_CLI_REPORT_PROFILE_HTML_H

#include "cli/profile/profile.h"

/* The rules that the section needs in the page's style sheet, which has the colours --ink, --soft, --line and --page.
 */
extern const char profile_style[];

/* Nothing where no profile has been taken. */
void profile_html(const profile *p, text_buffer *out);
/* The same as a page of its own: report.html in the folder of the profile. Returns 0 or an exit code, after telling the
 * user. */
int profile_write_page(const profile *p, const char *title);

#endif
