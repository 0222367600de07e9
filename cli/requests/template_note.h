/* What is given to a chat template that has no place for it. */
#ifndef QRUN_CLI_REQUESTS_TEMPLATE_NOTE_H
#define QRUN_CLI_REQUESTS_TEMPLATE_NOTE_H

#include "cli/requests/conversation.h"
#include "qrun.h"

/* Says what of these the chat template has no place for: the model would never see it. */
void template_note_unused(const qrun_tokenizer *tokenizer, const conversation *c, const char *system);

#endif
