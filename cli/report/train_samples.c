#include "cli/report/train_samples.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/html.h"

/* The first sample of the answer to request `index`; NULL: there is none. cJSON_Delete. */
static cJSON *find_answer(const char *lines, int index) {
    for (const char *at = lines; *at != '\0'; at += strspn(at, "\n")) {
        const size_t n_bytes = strcspn(at, "\n");
        cJSON *line = cJSON_ParseWithLength(at, n_bytes);
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(line, "index");
        const cJSON *sample = cJSON_GetObjectItemCaseSensitive(line, "sample");
        const bool is_first = sample == NULL || (cJSON_IsNumber(sample) && sample->valueint == 0);
        if (cJSON_IsNumber(number) && number->valueint == index && is_first) { return line; }
        cJSON_Delete(line);
        at += n_bytes;
    }
    return NULL;
}

/* What was asked: the prompt, or the last message; ids of tokens are no text. */
static const char *prompt_of(const cJSON *answer) {
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(answer, "prompt");
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(answer, "messages");
    const int n = cJSON_GetArraySize(messages);
    const cJSON *content =
        n > 0 ? cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(messages, n - 1), "content") : NULL;
    return cJSON_IsString(prompt) ? prompt->valuestring : cJSON_IsString(content) ? content->valuestring : "(tokens)";
}

static const char *text_of(const cJSON *answer) {
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(answer, "text");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(answer, "error");
    return cJSON_IsString(text) ? text->valuestring : cJSON_IsString(error) ? error->valuestring : "no answer";
}

static void put_row(const char *name, const char *text, text_buffer *out) {
    html_row_text(out, name, text[0] != '\0' ? text : "(empty)");
}

void train_samples_html(const char *before, const char *after, text_buffer *out) {
    text_puts(out, "<h2>Samples, before and after</h2>\n");
    for (int i = 0;; i++) {
        cJSON *old = find_answer(before, i), *new = find_answer(after, i);
        if (old == NULL && new == NULL) { break; }
        text_puts(out, "<table class=\"sample\">\n");
        put_row("prompt", prompt_of(new != NULL ? new : old), out);
        put_row("before", text_of(old), out);
        put_row("after", text_of(new), out);
        text_puts(out, "</table>\n");
        cJSON_Delete(old);
        cJSON_Delete(new);
    }
}
