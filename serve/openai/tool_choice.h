/* Answers that must be a call: "tool_choice" as forms that the engine holds an answer to. A call is written as the
 * model's chat template writes it, and its arguments are what the tool's "parameters" accept. */
#ifndef QRUN_SERVE_OPENAI_TOOL_CHOICE_H
#define QRUN_SERVE_OPENAI_TOOL_CHOICE_H

#include "serve/openai/call_writing.h"
#include "serve/openai/request.h"
#include "serve/openai/text.h"

/* What a form points at. */
typedef struct tool_form_texts {
    serve_text name, before;
    char *schema;
} tool_form_texts;

typedef struct tool_choice {
    qrun_answer_form *forms; /* [n_forms] one of each tool that may be called */
    tool_form_texts *texts;  /* [n_texts], more than there are forms where one could not be made */
    int n_forms, n_texts;
} tool_choice;

/* tools: of the request, at least one. called: the only one that may be; NULL: any. think_end: the prompt ends within a
 * thought, which this marker ends; NULL: it does not. False with *error set. tool_choice_free in any case. */
bool tool_choice_make(const call_form *form, const cJSON *tools, const char *called, const char *think_end,
                      tool_choice *choice, openai_error *error);
void tool_choice_free(tool_choice *choice); /* fine for a zeroed one */

#endif
