/* The first byte chooses how calls are written (a capital: with thoughts), the second how the answer is cut. Pieces
 * give what the whole gives; calls have a name and arguments that are a JSON object. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "serve/openai/answer_parser.h"

static const char tools_json[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"b\":{\"type\":\"string\"},\"l\":{\"type\":"
    "\"array\"},\"n\":{\"type\":[\"string\",\"null\"]}}}}},{\"function\":{\"name\":\"g\"}}]";

/* By call_style. */
static const char style_letters[] = "ntsailjdkmpbgh";
_Static_assert(sizeof style_letters - 1 == N_CALL_STYLES, "a letter for each style");

static void take_apart(const answer_format *format, const cJSON *tools, const char *answer, size_t n, size_t most,
                       answer_delta *whole) {
    answer_parser parser;
    answer_parser_start(&parser, format, tools, false);
    for (size_t at = 0; at < n; at += most) {
        answer_parser_push(&parser, answer + at, n - at < most ? n - at : most, whole);
    }
    answer_parser_finish(&parser, whole);
    answer_parser_free(&parser);
}

static bool same(const serve_text *a, const serve_text *b) {
    return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > 4096) { return 0; }
    const bool thinks = data[0] >= 'A' && data[0] <= 'Z';
    const char *style = memchr(style_letters, thinks ? data[0] + 'a' - 'A' : data[0], N_CALL_STYLES);
    const answer_format format = {.calls = style != NULL ? (call_style)(style - style_letters) : CALLS_NONE,
                                  .think_begin = thinks ? "<think>" : NULL,
                                  .think_end = thinks ? "</think>" : NULL,
                                  .hidden = {{1, "[ARGS]"}},
                                  .n_hidden = 1};
    cJSON *tools = cJSON_Parse(tools_json);
    answer_delta one = {.calls = NULL}, many = {.calls = NULL};
    const char *answer = (const char *)data + 2;
    take_apart(&format, tools, answer, size - 2, size, &one);
    take_apart(&format, tools, answer, size - 2, 1 + data[1] % 16, &many);
    FUZZ_CHECK(same(&one.content, &many.content) && same(&one.thought, &many.thought));
    FUZZ_CHECK(cJSON_GetArraySize(one.calls) == cJSON_GetArraySize(many.calls));
    const cJSON *call;
    cJSON_ArrayForEach(call, one.calls) {
        const cJSON *name = cJSON_GetObjectItem(call, "name"), *arguments = cJSON_GetObjectItem(call, "arguments");
        FUZZ_CHECK(cJSON_IsString(name) && name->valuestring[0] != '\0' && cJSON_IsString(arguments));
        cJSON *parsed = cJSON_ParseWithOpts(arguments->valuestring, NULL, true);
        FUZZ_CHECK(cJSON_IsObject(parsed));
        cJSON_Delete(parsed);
    }
    answer_delta_free(&one);
    answer_delta_free(&many);
    cJSON_Delete(tools);
    return 0;
}
