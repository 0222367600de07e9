#include "serve/openai/tool_calls.h"

#include <string.h>

#include "serve/openai/call_forms.h"

const call_mark call_marks[] = {
    {CALLS_TAGGED, "<tool_call>", "</tool_call>", false},
    {CALLS_TAGGED, "<function=", "</function>", true},
    {CALLS_SEED, "<seed:tool_call>", "</seed:tool_call>", false},
    {CALLS_ARG_KEYS, "<tool_call>", "</tool_call>", false},
    {CALLS_INVOKE, "<minimax:tool_call>", "</minimax:tool_call>", false},
    {CALLS_LLAMA, "<|python_tag|>", NULL, false},
    {CALLS_LIST, "<|tool_call|>", "<|/tool_call|>", false},
    {CALLS_LIST, "<tool_call>", "</tool_call>", false},
    {CALLS_LIST, "functools[", NULL, true},
    {CALLS_DEEPSEEK, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", false},
    {CALLS_KIMI, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", false},
    {CALLS_MISTRAL, "[TOOL_CALLS]", NULL, false},
    {CALLS_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>", false},
    {CALLS_PYTHON, "<function_calls>", "</function_calls>", false},
    {CALLS_GEMMA, "<start_function_call>", "<end_function_call>", false},
    {CALLS_GEMMA, "<|tool_call>", "<tool_call|>", false},
};
const int n_call_marks = sizeof call_marks / sizeof call_marks[0];

/* How the bodies of a style are read (call_forms.h). */
static const struct {
    bool (*take)(cursor *c, const cJSON *tools, cJSON *calls);
    const char *(*find_end)(cursor body, const char *mark, bool is_last); /* NULL: the first end marker */
    bool (*may_begin)(cursor text, const cJSON *tools);                   /* without a marker; NULL: never */
} forms[N_CALL_STYLES] = {
    [CALLS_TAGGED] = {calls_take_tagged, calls_tagged_end, NULL},
    [CALLS_SEED] = {calls_take_seed, calls_seed_end, NULL},
    [CALLS_ARG_KEYS] = {calls_take_arg_keys, calls_arg_keys_end, NULL},
    [CALLS_INVOKE] = {calls_take_invoke, calls_invoke_end, NULL},
    [CALLS_LLAMA] = {calls_take_known_json, NULL, calls_json_may_begin},
    [CALLS_LIST] = {calls_take_list, calls_json_end, NULL},
    [CALLS_DEEPSEEK] = {calls_take_deepseek, calls_deepseek_end, NULL},
    [CALLS_KIMI] = {calls_take_kimi, calls_kimi_end, NULL},
    [CALLS_MISTRAL] = {calls_take_mistral, NULL, NULL},
    [CALLS_PYTHON] = {calls_take_python, calls_python_end, NULL},
    [CALLS_BARE_PYTHON] = {calls_take_known_python, NULL, calls_python_may_begin},
    [CALLS_GEMMA] = {calls_take_gemma, NULL, NULL},
    [CALLS_HARMONY] = {calls_take_harmony, calls_json_end, NULL},
};

const char *calls_end_after(cursor body, const char *closing, const char *mark, bool is_last) {
    const size_t n = strlen(closing);
    cursor rest = body, before;
    while (cursor_takes_until(&rest, mark, &before)) {
        const size_t n_before = call_without_space(body.at, (size_t)(before.end - body.at));
        if (n_before >= n && memcmp(body.at + n_before - n, closing, n) == 0) { return before.end; }
    }
    return is_last ? cursor_find(&body, mark) : NULL;
}

const char *tool_calls_find_end(call_style style, const char *mark, const char *body, size_t n_bytes, bool is_last) {
    const cursor c = {body, body + n_bytes};
    return forms[style].find_end != NULL ? forms[style].find_end(c, mark, is_last) : cursor_find(&c, mark);
}

bool tool_calls_may_begin(call_style style, const char *text, size_t n_bytes, const cJSON *tools) {
    return forms[style].may_begin != NULL && forms[style].may_begin((cursor){text, text + n_bytes}, tools);
}

bool tool_calls_parse(call_style style, const char *body, size_t n_bytes, const cJSON *tools, cJSON *calls) {
    cursor c = {body, body + n_bytes};
    const int n_before = cJSON_GetArraySize(calls);
    cursor_trim(&c);
    if (c.at < c.end && forms[style].take != NULL && forms[style].take(&c, tools, calls)) {
        return cJSON_GetArraySize(calls) > n_before;
    }
    while (cJSON_GetArraySize(calls) > n_before) { cJSON_DeleteItemFromArray(calls, n_before); }
    return false;
}
