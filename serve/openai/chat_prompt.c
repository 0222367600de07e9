#include "serve/openai/chat_prompt.h"

#include <stdio.h>
#include <string.h>

#include "serve/openai/call_text.h"
#include "serve/openai/text.h"

/* What the text of the last message is rendered with. Where the template trims texts, its last space goes, and so have
 * those before it to go. */
static const char MARK[] = "qrun_continues_here ";
enum { MARK_BYTES = sizeof MARK - 1, TRIMMED_BYTES = MARK_BYTES - 1 };

/* The messages, the last one's text with the mark; NULL: memory is short. */
static cJSON *with_mark(const cJSON *messages) {
    cJSON *copy = cJSON_Duplicate(messages, true);
    cJSON *last = copy != NULL ? copy->child->prev : NULL;
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(last, "content");
    serve_text text = {0};
    if (cJSON_IsString(content)) { serve_text_add(&text, content->valuestring, strlen(content->valuestring)); }
    serve_text_add(&text, MARK, MARK_BYTES);
    cJSON *marked = text.failed ? NULL : cJSON_CreateString(text.data);
    serve_text_free(&text);
    if (marked != NULL && cJSON_ReplaceItemInObjectCaseSensitive(last, "content", marked)) { return copy; }
    cJSON_Delete(marked);
    cJSON_Delete(copy);
    return NULL;
}

static qrun_status fail(qrun_error *error, qrun_status status, const char *message) {
    error->status = status;
    (void)snprintf(error->message, sizeof error->message, "%s", message);
    return status;
}

/* Cuts the text before the last mark in it. */
static qrun_status cut_at_mark(char *rendered, size_t *n_bytes, qrun_error *error) {
    for (size_t n = *n_bytes; n >= TRIMMED_BYTES; n--) {
        const size_t at = n - TRIMMED_BYTES;
        if (memcmp(rendered + at, MARK, TRIMMED_BYTES) != 0) { continue; }
        const bool keeps_space = n < *n_bytes && rendered[n] == ' ';
        *n_bytes = keeps_space ? at : call_without_space(rendered, at);
        rendered[*n_bytes] = '\0';
        return QRUN_OK;
    }
    return fail(error, QRUN_ERROR_INPUT,
                "the last message cannot be continued: the chat template does not write its text as it is");
}

qrun_status chat_prompt_render(const openai_request *request, const qrun_tokenizer *tokenizer, char **rendered,
                               size_t *n_bytes, qrun_error *error) {
    const cJSON *given = request->prompts->child;
    cJSON *marked = request->continues ? with_mark(given) : NULL;
    char *messages = cJSON_PrintUnformatted(request->continues ? marked : given);
    char *tools = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(request->body, "tools"));
    char *arguments = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(request->body, "template_args"));
    qrun_status status = messages != NULL ? qrun_chat_render(tokenizer, messages, tools, arguments, !request->continues,
                                                             rendered, n_bytes, error)
                                          : fail(error, QRUN_ERROR_MEMORY, "the server is out of memory");
    cJSON_Delete(marked);
    cJSON_free(messages);
    cJSON_free(tools);
    cJSON_free(arguments);
    if (status != QRUN_OK || !request->continues) { return status; }
    status = cut_at_mark(*rendered, n_bytes, error);
    if (status != QRUN_OK) { qrun_free(*rendered); }
    return status;
}

bool chat_prompt_set(openai_request *request, const int32_t *ids, int64_t n_ids) {
    cJSON *list = n_ids > 0 && n_ids <= INT32_MAX ? cJSON_CreateIntArray(ids, (int)n_ids) : NULL;
    if (list != NULL && cJSON_ReplaceItemInArray(request->prompts, 0, list)) { return true; }
    cJSON_Delete(list);
    return false;
}
