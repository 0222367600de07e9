/* What the program itself takes from a request's line: its "id" and "custom_id", which the answer repeats, and the
 * prompt as it stands, for answers that repeat that too. */
#ifndef QRUN_CLI_REQUESTS_REQUEST_LINE_H
#define QRUN_CLI_REQUESTS_REQUEST_LINE_H

#include "cli/terminal/text.h"

/* Appends to `id` the members "id" and "custom_id" of the JSON object that the line is, each with a comma before it,
 * where they are texts or whole numbers. In the line they become blanks, so that positions in messages stay. What is
 * no such member stays in the line, for the library to refuse. */
void request_line_take_id(text_buffer *line, text_buffer *id);
/* Appends the member "prompt", "messages" or "token_ids" with a comma before it, of a line that is valid JSON. */
void request_line_copy_prompt(const text_buffer *line, text_buffer *prompt);

#endif
