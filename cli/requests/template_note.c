#include "cli/requests/template_note.h"

#include <string.h>

#include "cli/terminal/messages.h"

/* What a template makes of it; NULL: it fails, and says so when it is used (qrun_free). */
static char *render(const qrun_tokenizer *tokenizer, const char *messages, const char *tools) {
    char *rendered = NULL;
    size_t n_bytes;
    return qrun_chat_render(tokenizer, messages, tools, NULL, true, &rendered, &n_bytes, NULL) == QRUN_OK ? rendered
                                                                                                          : NULL;
}

void template_note_unused(const qrun_tokenizer *tokenizer, const conversation *c, const char *system) {
    static const char user[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char both[] = "[{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"a\"}]";
    if (tokenizer == NULL || (c->tools.data == NULL && system == NULL)) { return; }
    char *plain = render(tokenizer, user, NULL);
    char *with_tools = c->tools.data != NULL ? render(tokenizer, user, c->tools.data) : NULL;
    char *with_system = system != NULL ? render(tokenizer, both, NULL) : NULL;
    if (plain != NULL && with_tools != NULL && strcmp(plain, with_tools) == 0) {
        notify("note: the model's chat template has no place for --tools, and leaves them out");
    }
    if (plain != NULL && with_system != NULL && strcmp(plain, with_system) == 0) {
        notify("note: the model's chat template has no place for --system, and leaves it out");
    }
    qrun_free(plain);
    qrun_free(with_tools);
    qrun_free(with_system);
}
