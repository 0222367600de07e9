/* qrun tokenize: text to token ids and back. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/requests/conversation.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/terminal.h"

typedef struct tokenize_options {
    const char *model;
    template_options template;
    bool decode, ids, chat, json, no_special, plain_text;
    const char *system;
} tokenize_options;

#define AT(field) INTO(tokenize_options, field)

/* clang-format off */
static const option tokenize_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(model), .completion = COMPLETE_FOLDER,
     .help = "The model's folder, or its id in the Hugging Face cache. Only its tokenizer is read, and nothing else "
             "need be there."},
    {.name = "ids", .kind = OPTION_FLAG, AT(ids), .help = "Print the ids alone, on one line."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print {\"ids\": [...], \"tokens\": [...]}."},
    {.name = "decode", .letter = 'd', .kind = OPTION_FLAG, AT(decode),
     .help = "The other way round: the text is ids, separated by spaces or commas, and is printed as text."},
    {.name = "chat", .kind = OPTION_FLAG, AT(chat),
     .help = "The text is a user's message: wrap it with the chat template first, and show the result."},
    {.name = "system", .kind = OPTION_TEXT, .value_name = "TEXT", AT(system),
     .help = "The system message before it (with --chat)."},
    {.name = "no-special", .kind = OPTION_FLAG, AT(no_special),
     .help = "Leave out the tokens that begin a text for this model (BOS); with --decode: special tokens."},
    {.name = "plain-text", .kind = OPTION_FLAG, AT(plain_text),
     .help = "Text such as <|im_start|> stays text. Default: it becomes the special token of that name."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Options", tokenize_table, 0),
    OPTION_GROUP("Chat template", template_option_table, offsetof(tokenize_options, template)),
};

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static void append_token(text_buffer *out, const qrun_tokenizer *tokenizer, int32_t id) {
    size_t n_bytes;
    const char *spelled = qrun_token_text(tokenizer, id, &n_bytes);
    text_json_string(out, spelled != NULL ? spelled : "", spelled != NULL ? n_bytes : 0);
}

static void print_ids(const tokenize_options *o, const qrun_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids) {
    text_buffer out = {0};
    if (o->json) {
        text_puts(&out, "{\"ids\":[");
        for (int64_t i = 0; i < n_ids; i++) { text_format(&out, "%s%d", i > 0 ? "," : "", (int)ids[i]); }
        text_puts(&out, "],\"tokens\":[");
        for (int64_t i = 0; i < n_ids; i++) {
            if (i > 0) { text_puts(&out, ","); }
            append_token(&out, tokenizer, ids[i]);
        }
        text_puts(&out, "]}\n");
    } else if (o->ids) {
        for (int64_t i = 0; i < n_ids; i++) { text_format(&out, "%s%d", i > 0 ? " " : "", (int)ids[i]); }
        text_puts(&out, "\n");
    } else {
        for (int64_t i = 0; i < n_ids; i++) {
            text_format(&out, "%8d  ", (int)ids[i]);
            append_token(&out, tokenizer, ids[i]);
            text_puts(&out, "\n");
        }
        text_format(&out, "%lld tokens\n", (long long)n_ids);
    }
    if (out.size > 0) { fwrite(out.data, 1, out.size, stdout); }
    text_free(&out);
}

/* ---- Working ----------------------------------------------------------------------------------------------------- */

static int render_chat(const tokenize_options *o, const qrun_tokenizer *tokenizer, text_buffer *input) {
    conversation c = {0};
    qrun_error error = QRUN_ERROR_INIT;
    char *rendered = NULL;
    size_t n_bytes = 0;
    conversation_start(&c, o->system);
    conversation_add(&c, "user", input->data, input->size);
    int code = template_read(&o->template, &c);
    if (code == EXIT_OK) {
        code = complain_unless_ok(qrun_chat_render(tokenizer, c.messages.data, c.tools.data, c.template_arguments.data,
                                                   true, &rendered, &n_bytes, &error),
                                  &error);
    }
    if (code == EXIT_OK) {
        text_clear(input);
        text_append(input, rendered, n_bytes);
        if (!o->json && !o->ids) { printf("%s\n\n", rendered); }
    }
    qrun_free(rendered);
    conversation_free(&c);
    return code;
}

static int encode(const tokenize_options *o, const qrun_tokenizer *tokenizer, text_buffer *input) {
    qrun_error error = QRUN_ERROR_INIT;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    if (o->chat) { /* the template writes BOS and special tokens itself */
        RETURN_IF_FAILED(text_require_utf8("the message", input->data, input->size));
        RETURN_IF_FAILED(render_chat(o, tokenizer, input));
    }
    const bool add_special = !o->no_special && !o->chat, parse_special = !o->plain_text || o->chat;
    if (qrun_tokenize(tokenizer, input->data, input->size, add_special, parse_special, &ids, &n_ids, &error) !=
        QRUN_OK) {
        return complain_error(&error);
    }
    print_ids(o, tokenizer, ids, n_ids);
    qrun_free(ids);
    return EXIT_OK;
}

static int parse_ids(const text_buffer *input, int32_t **ids, int64_t *n_ids) {
    int64_t capacity = 0;
    *n_ids = 0;
    for (const char *at = input->data;;) {
        at += strspn(at, " \t\r\n,[]");
        if (*at == '\0') { return EXIT_OK; }
        char *end;
        errno = 0;
        const long value = strtol(at, &end, 10);
        if (end == at || errno != 0 || value < 0 || value > INT32_MAX || strchr(" \t\r\n,[]", *end) == NULL) {
            return complain(EXIT_USAGE, "'%.*s' is not a token id", (int)strcspn(at, " \t\r\n,[]"), at);
        }
        *ids = reallocate_for_more(*ids, *n_ids, &capacity, sizeof **ids);
        (*ids)[(*n_ids)++] = (int32_t)value;
        at = end;
    }
}

static int decode(const tokenize_options *o, const qrun_tokenizer *tokenizer, const text_buffer *input) {
    qrun_error error = QRUN_ERROR_INIT;
    int32_t *ids = NULL;
    int64_t n_ids;
    char *decoded = NULL;
    size_t n_bytes;
    int code = parse_ids(input, &ids, &n_ids);
    if (code == EXIT_OK) {
        code = complain_unless_ok(qrun_detokenize(tokenizer, ids, n_ids, o->no_special, &decoded, &n_bytes, &error),
                                  &error);
    }
    if (code == EXIT_OK) {
        fwrite(decoded, 1, n_bytes, stdout);
        if (terminal_is(stdout)) { putchar('\n'); }
    }
    qrun_free(decoded);
    free(ids);
    return code;
}

/* The arguments joined by spaces, or stdin as it is. */
static int read_input(const option_texts *arguments, text_buffer *input) {
    if (arguments->count == 0) {
        if (terminal_is(stdin)) { return complain(EXIT_USAGE, "no text: give it as an argument or on stdin"); }
        return file_read(input, "-");
    }
    for (int i = 0; i < arguments->count; i++) {
        if (i > 0) { text_puts(input, " "); }
        text_puts(input, arguments->values[i]);
    }
    return EXIT_OK;
}

static int check_combination(const tokenize_options *o) {
    if (o->model == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->decode && (o->chat || o->ids || o->json)) {
        return complain(EXIT_USAGE, "--decode prints text; --chat, --ids and --json are for the other direction");
    }
    return o->chat ? EXIT_OK : template_require_chat(&o->template, o->system);
}

static int run(const void *options, const command_line *line, engine *e) {
    const tokenize_options *o = options;
    const qrun_context_params context_params = {.struct_size = sizeof context_params, .n_threads = 1};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_tokenizer *tokenizer = NULL;
    text_buffer input = {0};
    int code = check_combination(o);
    if (code == EXIT_OK) { code = read_input(&line->arguments, &input); }
    if (code == EXIT_OK) { code = engine_open_context(e, &context_params); }
    if (code == EXIT_OK) {
        code = complain_unless_ok(qrun_tokenizer_open(e->context, o->model, &tokenizer, &error), &error);
    }
    if (code == EXIT_OK) { code = o->decode ? decode(o, tokenizer, &input) : encode(o, tokenizer, &input); }
    qrun_tokenizer_destroy(tokenizer);
    text_free(&input);
    return code;
}

static const tokenize_options defaults;

const command command_tokenize = {
    .name = "tokenize",
    .summary = "show the tokens of a text, or the text of tokens",
    .usage = "--model DIR [OPTIONS] [TEXT…]",
    .description = "Without TEXT, stdin is read as it is, its last newline included. Tokens are shown as the "
                   "vocabulary spells them.",
    .examples = "  qrun tokenize --model path/to/model \"Once upon a time\"\n"
                "  qrun tokenize --model path/to/model --ids \"Once upon a time\"\n"
                "  qrun tokenize --model path/to/model --decode 1 403 407 261 378\n"
                "  qrun tokenize --model path/to/model --chat --system \"Be brief.\" \"Hello!\"",
    .first_options = "model ids decode chat system json",
    COMMAND_OPTIONS(groups, defaults),
    .max_arguments = OPTION_LIST_MAX,
    .run = run,
};
