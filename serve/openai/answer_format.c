#include "serve/openai/answer_format.h"

#include <string.h>

static const char PROBE[] = CALL_EXAMPLE_NAME, THOUGHT[] = "qrun_thought", ANSWER[] = "qrun_answer";

static const char *const thoughts[][2] = {
    {"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}};

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Templates differ in whether content may be empty or has to be missing, and arguments are JSON or a text. */
static const char *const conversations[N_CALL_EXAMPLES] = {
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
    "\"" CALL_EXAMPLE_ID "\",\"type\":\"function\",\"function\":{\"name\":\"" CALL_EXAMPLE_NAME
    "\",\"arguments\":{\"b\":\"c\"}}}]}]",
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":"
    "\"" CALL_EXAMPLE_ID "\",\"type\":\"function\",\"function\":{\"name\":\"" CALL_EXAMPLE_NAME
    "\",\"arguments\":{\"b\":\"c\"}}}]}]",
    [EXAMPLE_WITH_TEXT] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
        "\"" CALL_EXAMPLE_ID "\",\"type\":\"function\",\"function\":{\"name\":\"" CALL_EXAMPLE_NAME
        "\",\"arguments\":\"{\\\"b\\\": \\\"c\\\"}\"}}]}]",
};
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"other\",\"description\":\"d\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"b\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"b\"]}}}]";

/* What is written before the name of the probe, and after it, tells how calls are written. The first fit counts. */
static const struct {
    const char *before, *after; /* after NULL: anything */
    call_style style;
} styles[] = {
    {"[TOOL_CALLS]", NULL, CALLS_MISTRAL},
    {"<start_function_call>", NULL, CALLS_GEMMA},
    {"<|tool_call>", NULL, CALLS_GEMMA},
    {"<|tool_call_start|>", NULL, CALLS_PYTHON},
    {"<function_calls>", NULL, CALLS_PYTHON},
    {"<|tool_call|>", NULL, CALLS_LIST},
    {"<tool_call>", "<arg_key>", CALLS_ARG_KEYS},
    {"<tool_call>[", NULL, CALLS_LIST},
    {"<tool_call>", NULL, CALLS_TAGGED},
    {"<seed:tool_call>", NULL, CALLS_SEED},
    {"<minimax:tool_call>", NULL, CALLS_INVOKE},
    {"<｜tool▁call▁begin｜>", NULL, CALLS_DEEPSEEK}, /* these are no ASCII bars */
    {"<|tool_calls_section_begin|>", NULL, CALLS_KIMI},
    {"<function=", NULL, CALLS_TAGGED},
    {"<|python_tag|>", NULL, CALLS_LLAMA},
    {"{\"name\": \"", NULL, CALLS_LLAMA},
    {"{\"name\":\"", NULL, CALLS_LLAMA},
    {"to=functions.", NULL, CALLS_HARMONY},
};

/* Some templates leave the call out, or its markers, and say how it is written. */
static const struct {
    const char *said;
    call_style style;
} instructions[] = {
    {"<|tool_call|>", CALLS_LIST},         {"functools[", CALLS_LIST},
    {"<tool_call>", CALLS_TAGGED},         {"<|tool_call_start|>", CALLS_PYTHON},
    {"<|tool_list_start|>", CALLS_PYTHON}, /* LFM2 */
    {"<function_calls>", CALLS_PYTHON},    {"<|tool_calls_section_begin|>", CALLS_KIMI},
};

/* Of a template that leaves the call out. */
static call_style style_of_instructions(const char *rendered) {
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++) {
        if (strstr(rendered, instructions[i].said) != NULL) { return instructions[i].style; }
    }
    return CALLS_NONE;
}

static call_style style_of(const char *rendered) {
    enum { NEAR_BYTES = 64 };
    const char *probe = strstr(rendered, PROBE);
    if (probe == NULL || strstr(rendered, "functools[") != NULL) { return style_of_instructions(rendered); }
    const size_t n_before = (size_t)(probe - rendered) < NEAR_BYTES ? (size_t)(probe - rendered) : NEAR_BYTES;
    char before[NEAR_BYTES + 1] = "";
    memcpy(before, probe - n_before, n_before);
    for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
        const bool is_after = styles[i].after == NULL || strstr(probe, styles[i].after) != NULL;
        if (is_after && strstr(before, styles[i].before) != NULL) { return styles[i].style; }
    }
    return strstr(rendered, "[" CALL_EXAMPLE_NAME "(") != NULL ? CALLS_BARE_PYTHON : CALLS_NONE;
}

char *answer_format_call_example(const qrun_tokenizer *tokenizer, int number) {
    char *rendered;
    size_t n_bytes;
    return qrun_chat_render(tokenizer, conversations[number], tools, NULL, false, &rendered, &n_bytes, NULL) == QRUN_OK
               ? rendered
               : NULL;
}

static void learn_calls(const qrun_tokenizer *tokenizer, answer_format *format) {
    for (int i = 0; i < N_CALL_EXAMPLES; i++) {
        char *rendered = answer_format_call_example(tokenizer, i);
        if (rendered == NULL) { continue; }
        format->calls = style_of(rendered);
        format->has_text_arguments = i == EXAMPLE_WITH_TEXT && format->calls != CALLS_NONE;
        qrun_free(rendered);
        if (format->calls != CALLS_NONE) { return; }
    }
}

/* ---- The system -------------------------------------------------------------------------------------------------- */

static bool takes_late_system(const qrun_tokenizer *tokenizer) {
    static const char messages[] = "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},{"
                                   "\"role\":\"system\",\"content\":\"qrun_probe\"}]";
    char *rendered;
    size_t n_bytes;
    if (qrun_chat_render(tokenizer, messages, NULL, NULL, true, &rendered, &n_bytes, NULL) != QRUN_OK) { return false; }
    const bool takes = strstr(rendered, PROBE) != NULL;
    qrun_free(rendered);
    return takes;
}

/* ---- Thoughts ---------------------------------------------------------------------------------------------------- */

/* A template knows thoughts if it begins one for the answer, or writes one that a message has. It also does if it takes
 * one out of an answer of an earlier turn. */
static bool knows_thoughts(const qrun_tokenizer *tokenizer, const char *begin, const char *end) {
    char inline_thought[512];
    static const char with_member[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":"
        "\"qrun_thought\",\"thinking\":\"qrun_thought\"}]";
    const char *const parts[] = {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"",
                                 begin,
                                 THOUGHT,
                                 end,
                                 ANSWER,
                                 "\"},{\"role\":\"user\",\"content\":\"c\"}]"};
    inline_thought[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) { strcat(inline_thought, parts[i]); }
    char *rendered;
    size_t n_bytes;
    bool knows = false;
    if (qrun_chat_render(tokenizer, "[{\"role\":\"user\",\"content\":\"a\"}]", NULL, NULL, true, &rendered, &n_bytes,
                         NULL) == QRUN_OK) {
        knows = strstr(rendered, begin) != NULL;
        qrun_free(rendered);
    }
    if (!knows && qrun_chat_render(tokenizer, with_member, NULL, NULL, false, &rendered, &n_bytes, NULL) == QRUN_OK) {
        const char *thought = strstr(rendered, THOUGHT), *mark = strstr(rendered, begin);
        knows = thought != NULL && mark != NULL && mark < thought;
        qrun_free(rendered);
    }
    if (!knows && qrun_chat_render(tokenizer, inline_thought, NULL, NULL, true, &rendered, &n_bytes, NULL) == QRUN_OK) {
        knows = strstr(rendered, THOUGHT) == NULL && strstr(rendered, ANSWER) != NULL;
        qrun_free(rendered);
    }
    return knows;
}

static bool ends_with(const char *text, size_t n_bytes, const char *end) {
    const size_t n = strlen(end);
    return n_bytes >= n && memcmp(text + n_bytes - n, end, n) == 0;
}

bool answer_format_prompt_thinks(const answer_format *format, const char *prompt, size_t n_bytes) {
    static const char budget[] = "<seed:cot_budget_reflect>"; /* a thought of Seed-OSS begins with how long it may be */
    if (format->think_begin == NULL) { return false; }
    while (n_bytes > 0 && strchr(" \t\r\n", prompt[n_bytes - 1]) != NULL) { n_bytes--; }
    if (ends_with(prompt, n_bytes, budget)) { n_bytes -= strlen(budget); }
    return ends_with(prompt, n_bytes, format->think_begin);
}

/* ---- Hidden markers ---------------------------------------------------------------------------------------------- */

/* The one token that a marker is, if an answer's text leaves it out; else −1. */
static int32_t hidden_token(const qrun_tokenizer *tokenizer, const char *marker) {
    int32_t *ids, token = -1;
    int64_t n_ids;
    char *shown;
    size_t n_bytes;
    if (qrun_tokenize(tokenizer, marker, strlen(marker), false, true, &ids, &n_ids, NULL) != QRUN_OK) { return -1; }
    if (n_ids == 1 && qrun_detokenize(tokenizer, ids, 1, true, &shown, &n_bytes, NULL) == QRUN_OK) {
        if (n_bytes == 0) { token = ids[0]; }
        qrun_free(shown);
    }
    qrun_free(ids);
    return token;
}

/* Of Harmony alone: other models end a turn with one of them. */
static const char *const channel_markers[] = {"<|start|>",     "<|channel|>", "<|message|>", "<|end|>",
                                              "<|constrain|>", "<|call|>",    "<|return|>"};

static const char *const markers[] = {
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<function_calls>",
    "</function_calls>",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call>",
    "<start_function_call>",
    "<end_function_call>",
    "<tool_call|>",
    "<escape>",
    "<|\"|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<seed:think>",
    "</seed:think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_calls_section_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
};

static void learn_hidden(const qrun_tokenizer *tokenizer, answer_format *format) {
    const size_t n_markers = sizeof markers / sizeof markers[0];
    const size_t n_channel_markers = sizeof channel_markers / sizeof channel_markers[0];
    _Static_assert(sizeof markers / sizeof markers[0] <= FORMAT_MAX_HIDDEN, "room for all markers");
    _Static_assert(sizeof channel_markers / sizeof channel_markers[0] <= FORMAT_MAX_HIDDEN, "room for all markers");
    const bool has_channels = format->calls == CALLS_HARMONY;
    const char *const *list = has_channels ? channel_markers : markers;
    const size_t n = has_channels ? n_channel_markers : n_markers;
    for (size_t i = 0; i < n; i++) {
        const int32_t token = hidden_token(tokenizer, list[i]);
        if (token < 0) { continue; }
        format->hidden[format->n_hidden].token = token;
        format->hidden[format->n_hidden++].text = list[i];
    }
}

const char *answer_format_hidden(const answer_format *format, int32_t token) {
    for (int i = 0; i < format->n_hidden; i++) {
        if (format->hidden[i].token == token) { return format->hidden[i].text; }
    }
    return NULL;
}

void answer_format_learn(const qrun_tokenizer *tokenizer, answer_format *format) {
    *format = (answer_format){.calls = CALLS_NONE};
    if (tokenizer == NULL || !qrun_tokenizer_has_chat_template(tokenizer)) { return; }
    format->has_late_system = takes_late_system(tokenizer);
    learn_calls(tokenizer, format);
    if (knows_thoughts(tokenizer, "<|channel|>analysis<|message|>", "<|end|>")) { format->calls = CALLS_HARMONY; }
    if (format->calls == CALLS_HARMONY) {
        learn_hidden(tokenizer, format);
        return;
    }
    for (size_t i = 0; i < sizeof thoughts / sizeof thoughts[0] && format->think_begin == NULL; i++) {
        if (!knows_thoughts(tokenizer, thoughts[i][0], thoughts[i][1])) { continue; }
        format->think_begin = thoughts[i][0];
        format->think_end = thoughts[i][1];
    }
    if (format->calls != CALLS_NONE || format->think_begin != NULL) { learn_hidden(tokenizer, format); }
}
