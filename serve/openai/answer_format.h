/* How a model writes its answers: what in them is a thought, and what a call of a tool. Learned from the chat template,
 * by rendering a conversation that has both: as the template writes them, the model was trained to write them. And what
 * the template takes of a conversation. */
#ifndef QRUN_SERVE_OPENAI_ANSWER_FORMAT_H
#define QRUN_SERVE_OPENAI_ANSWER_FORMAT_H

#include <stdbool.h>

#include "qrun.h"

typedef enum call_style {
    CALLS_NONE,
    CALLS_TAGGED,   /* <tool_call> JSON </tool_call> (Hermes, Qwen), or <function=…> in the JSON's place (Qwen3) */
    CALLS_SEED,     /* <function=…> between <seed:tool_call> and its end (Seed-OSS) */
    CALLS_ARG_KEYS, /* <tool_call>name, then <arg_key>, <arg_value> … </tool_call> (GLM) */
    CALLS_INVOKE,   /* <invoke name="…"> between <minimax:tool_call> and its end (MiniMax M2) */
    CALLS_LLAMA,    /* the whole answer is JSON: {"name", "parameters"} */
    CALLS_LIST,     /* a list of JSON after <|tool_call|> (Granite 3, Phi-4-mini) or functools (Phi-4-mini) */
    CALLS_DEEPSEEK, /* name<｜tool▁sep｜>JSON between <｜tool▁calls▁begin｜> and its end (DeepSeek, and what it taught)
                     */
    CALLS_KIMI,        /* functions.name:0<|tool_call_argument_begin|>JSON between its markers (Kimi K2) */
    CALLS_MISTRAL,     /* [TOOL_CALLS], then a list of JSON, or name[ARGS]JSON */
    CALLS_PYTHON,      /* name(key=value) between <|tool_call_start|> (LFM2) or <function_calls> (Olmo 3) and its end */
    CALLS_BARE_PYTHON, /* the whole answer is [name(key=value), …] (Llama 3.2) */
    CALLS_GEMMA,   /* call:name{key:value} between <start_function_call> and its end, or between <|tool_call> and its */
    CALLS_HARMONY, /* messages on channels (gpt-oss): one to=functions.name has arguments, one on "analysis" a thought
                    */
    N_CALL_STYLES
} call_style;

enum { FORMAT_MAX_HIDDEN = 48 };

typedef struct answer_format {
    call_style calls;
    bool has_late_system;                /* the template takes a message of the system after others */
    bool has_text_arguments;             /* the template takes the arguments of a call as JSON in a text alone */
    const char *think_begin, *think_end; /* NULL: the model does not think aloud, or on a channel */
    /* Markers that are special tokens, which an answer's text leaves out. */
    struct {
        int32_t token;
        const char *text;
    } hidden[FORMAT_MAX_HIDDEN];
    int n_hidden;
} answer_format;

/* tokenizer NULL, or without a template: neither calls nor thoughts. */
void answer_format_learn(const qrun_tokenizer *tokenizer, answer_format *format);

/* A conversation that ends with a call of CALL_EXAMPLE_NAME with {"b": "c"}, as the template writes it: number
 * 0 to N_CALL_EXAMPLES - 1, as templates differ in what they take. NULL: this one does not. qrun_free. */
#define CALL_EXAMPLE_NAME "qrun_probe"
#define CALL_EXAMPLE_ID "abcdefghi"
enum { N_CALL_EXAMPLES = 3, EXAMPLE_WITH_TEXT = 2 };
char *answer_format_call_example(const qrun_tokenizer *tokenizer, int number);

/* The marker that a token is, where the text leaves it out; else NULL. */
const char *answer_format_hidden(const answer_format *format, int32_t token);

/* Whether a rendered prompt ends within a thought, which the answer then continues. */
bool answer_format_prompt_thinks(const answer_format *format, const char *prompt, size_t n_bytes);

#endif
