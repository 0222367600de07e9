/* The first byte chooses the endpoint: those of OpenAI's API, "r" its responses, "m" and "k" Anthropic's messages and
 * their count. What is accepted becomes a JSON object with one prompt for the engine; what is refused has a status and
 * a reason. */
#include "fuzz.h"
#include "serve/messages/answer.h"
#include "serve/messages/request.h"
#include "serve/openai/request.h"
#include "serve/responses/answer.h"
#include "serve/responses/request.h"

static void check_line(const openai_request *request, int prompt) {
    char *line = openai_request_line(request, prompt, "adapter");
    FUZZ_CHECK(line != NULL);
    cJSON *root = cJSON_Parse(line);
    FUZZ_CHECK(cJSON_IsObject(root));
    int n_prompts = 0;
    static const char *const names[] = {"prompt", "token_ids", "messages"};
    for (int i = 0; i < 3; i++) { n_prompts += cJSON_HasObjectItem(root, names[i]); }
    FUZZ_CHECK(n_prompts == 1 && cJSON_HasObjectItem(root, "n") && cJSON_HasObjectItem(root, "adapter"));
    cJSON_Delete(root);
    cJSON_free(line);
}

typedef struct endpoint {
    uint8_t letter;
    openai_kind kind;
    openai_translation translate;
    char *(*error_text)(const openai_error *error);
} endpoint;

static const endpoint *endpoint_of(uint8_t letter) {
    static const endpoint endpoints[] = {{'t', OPENAI_TEXT, NULL, openai_error_text},
                                         {'c', OPENAI_CHAT, NULL, openai_error_text},
                                         {'e', OPENAI_EMBEDDING, NULL, openai_error_text},
                                         {'m', OPENAI_CHAT, messages_to_chat, messages_error_text},
                                         {'k', OPENAI_CHAT, messages_to_count, messages_error_text},
                                         {'r', OPENAI_CHAT, responses_to_chat, responses_error_text}};
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        if (endpoints[i].letter == letter) { return &endpoints[i]; }
    }
    return &endpoints[0];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) { return 0; }
    openai_request request;
    openai_error error = {0};
    const endpoint *e = endpoint_of(data[0]);
    if (openai_request_read((const char *)data + 1, size - 1, e->kind, e->translate, &request, &error)) {
        const int n = cJSON_GetArraySize(request.prompts);
        FUZZ_CHECK(n > 0 && n <= OPENAI_MAX_PROMPTS && request.n_samples >= 1 && request.n_samples <= 256);
        FUZZ_CHECK(e->translate == NULL || (n == 1 && request.n_samples == 1 && request.logprobs == -1));
        FUZZ_CHECK(request.logprobs >= -1 && request.logprobs <= 20);
        for (int i = 0; i < n; i++) { check_line(&request, i); }
        FUZZ_CHECK(openai_request_move_late_system(&request, &error));
        for (int i = 0; i < n; i++) { check_line(&request, i); }
    } else {
        char *text = e->error_text(&error);
        FUZZ_CHECK(error.status >= 400 && error.message[0] != '\0' && text != NULL);
        cJSON_free(text);
    }
    openai_request_free(&request);
    return 0;
}
