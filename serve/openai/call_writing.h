/* How a model writes a call of a tool, so that an answer can be held to it: learned from the chat template, or as
 * models of its style usually do. */
#ifndef QRUN_SERVE_OPENAI_CALL_WRITING_H
#define QRUN_SERVE_OPENAI_CALL_WRITING_H

#include "serve/openai/answer_format.h"

/* before, the name, between, the arguments, after. Arguments are JSON, or each of them stands between texts. */
typedef struct call_form {
    char before[96], between[96], after[96];
    char before_key[32], after_key[64], after_value[64]; /* of arguments that are no JSON */
    bool is_json;                                        /* the name is within a JSON text */
    bool is_tagged;                                      /* arguments are no JSON */
    bool is_known; /* else there is no such form, and `why` says what of the model is to blame */
    const char *why;
} call_form;

/* From the template, or as models of its style usually do where it does not show that. */
void call_form_learn(const qrun_tokenizer *tokenizer, const answer_format *format, call_form *form);

#endif
