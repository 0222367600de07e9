/* qrun chat: a conversation in the terminal. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/sampling.h"
#include "cli/requests/conversation.h"
#include "cli/requests/stream.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"

typedef struct chat_options {
    engine_options engine;
    sampling_options sampling;
    template_options template;
    const char *system;
} chat_options;

/* clang-format off */
static const option chat_table[] = {
    {.name = "system", .kind = OPTION_TEXT, .value_name = "TEXT", INTO(chat_options, system),
     .help = "The system message that the conversation begins with; /system changes it."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(chat_options, engine)),
    OPTION_GROUP("Adapters", one_adapter_option_table, offsetof(chat_options, engine)),
    OPTION_GROUP("Conversation", chat_table, 0),
    OPTION_GROUP("Chat template", template_option_table, offsetof(chat_options, template)),
    OPTION_GROUP("Sampling", sampling_option_table, offsetof(chat_options, sampling)),
    OPTION_GROUP("Machine", machine_option_table, offsetof(chat_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(chat_options, engine)),
};

typedef struct chat {
    engine *engine;
    conversation conversation;
    text_buffer system;
    qrun_request_params request;
    char *line;
    size_t line_capacity;
    bool at_terminal; /* somebody types, and reads the answers there */
    bool leaving;
    int code;
} chat;

static void start_conversation(chat *c) {
    conversation_start(&c->conversation, c->system.size > 0 ? c->system.data : NULL);
}

/* ---- Commands ---------------------------------------------------------------------------------------------------- */

static void command_help(chat *c, const char *argument);

static void command_clear(chat *c, const char *argument) {
    (void)argument;
    start_conversation(c);
    if (c->at_terminal) { printf("(a new conversation)\n"); }
}

static void command_system(chat *c, const char *argument) {
    text_clear(&c->system);
    text_puts(&c->system, argument);
    start_conversation(c);
    if (c->at_terminal) {
        printf(c->system.size > 0 ? "(a new conversation with this system message)\n"
                                  : "(a new conversation without a system message)\n");
    }
}

static void command_exit(chat *c, const char *argument) {
    (void)argument;
    c->leaving = true;
}

static const struct {
    const char *name, *explanation;
    void (*run)(chat *c, const char *argument);
} chat_commands[] = {
    {"/help", "this list", command_help},
    {"/clear", "forget the conversation and start a new one", command_clear},
    {"/system", "TEXT: start a new conversation with this system message (without TEXT: with none)", command_system},
    {"/exit", "leave (also: Ctrl-D)", command_exit},
};

enum { N_CHAT_COMMANDS = sizeof chat_commands / sizeof chat_commands[0] };

static void command_help(chat *c, const char *argument) {
    (void)c;
    (void)argument;
    for (int i = 0; i < N_CHAT_COMMANDS; i++) {
        printf("  %-9s%s\n", chat_commands[i].name, chat_commands[i].explanation);
    }
    printf("  Ctrl-C   stop the answer\n");
}

/* Runs a line that begins with a slash. */
static void run_chat_command(chat *c, const char *line) {
    const size_t length = strcspn(line, " \t");
    for (int i = 0; i < N_CHAT_COMMANDS; i++) {
        if (strlen(chat_commands[i].name) == length && strncmp(chat_commands[i].name, line, length) == 0) {
            chat_commands[i].run(c, line + length + strspn(line + length, " \t"));
            return;
        }
    }
    notify("there is no command '%.*s' here; /help lists them", (int)length, line);
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static void answer_message(chat *c, const char *message, size_t n_bytes) {
    text_stream stream = {0};
    const size_t size_before = c->conversation.messages.size;
    conversation_add(&c->conversation, "user", message, n_bytes);
    c->request.messages_json = c->conversation.messages.data;
    const int code = stream_request(&stream, c->engine, &c->request);
    putchar('\n');
    if (code == EXIT_OK || code == EXIT_INTERRUPTED) {
        const text_buffer *said = &stream.samples[0];
        conversation_add(&c->conversation, "assistant", said->data != NULL ? said->data : "", said->size);
        if (c->at_terminal && strcmp(stream.finish_reason, "length") == 0) {
            notify("the answer ends at %d tokens; --max-tokens allows longer ones", (int)stream.completion_tokens);
        }
    } else {
        conversation_cut(&c->conversation, size_before);
        if (c->at_terminal && !stream.session_failed) {
            notify("the message was not taken; /clear begins a new conversation");
        }
        if (!c->at_terminal) { c->code = code; }
    }
    if (code == EXIT_INTERRUPTED && (!c->at_terminal || terminated())) {
        c->code = EXIT_INTERRUPTED;
        c->leaving = true;
    }
    if (c->at_terminal && !terminated()) { interrupt_reset(); }
    if (stream.session_failed) { c->code = code; }
    if (stream.session_failed || ferror(stdout)) { c->leaving = true; }
    stream_free(&stream);
}

/* Reads a line without its newline. False at the end of the input, or after two Ctrl-C in a row. */
static bool read_line(chat *c, size_t *n_bytes) {
    for (int n_interrupts = 0; n_interrupts < 2; n_interrupts++) {
        if (c->at_terminal) {
            printf("%s> %s", terminal_sequence(stdout, STYLE_BOLD), terminal_sequence(stdout, STYLE_PLAIN));
            fflush(stdout);
        }
        errno = 0;
        ssize_t length = getline(&c->line, &c->line_capacity, stdin);
        if (length >= 0) {
            while (length > 0 && (c->line[length - 1] == '\n' || c->line[length - 1] == '\r')) { length--; }
            c->line[length] = '\0';
            *n_bytes = (size_t)length;
            return true;
        }
        if (errno != EINTR || !c->at_terminal || terminated()) { break; }
        clearerr(stdin);
        interrupt_reset();
        printf("\n(Ctrl-C again, Ctrl-D or /exit leaves)\n");
    }
    if (c->at_terminal) { putchar('\n'); }
    return false;
}

static void converse(chat *c) {
    size_t n_bytes;
    if (c->at_terminal) {
        printf("%s, %s. /help lists what can be typed here.\n", c->engine->info.family, c->engine->info.quant);
    }
    while (!c->leaving && read_line(c, &n_bytes)) {
        if (n_bytes == 0) { continue; }
        if (c->line[0] == '/') {
            run_chat_command(c, c->line);
        } else {
            answer_message(c, c->line, n_bytes);
        }
    }
    if (terminated() || (interrupted() && !c->at_terminal)) { c->code = EXIT_INTERRUPTED; }
}

static int prepare(chat *c, const chat_options *o, const command_line *line) {
    RETURN_IF_FAILED(template_read(&o->template, &c->conversation));
    RETURN_IF_FAILED(engine_require_one_adapter(&o->engine));
    RETURN_IF_FAILED(engine_open(c->engine, &o->engine));
    if (!c->engine->info.has_tokenizer) {
        return complain(EXIT_FILE, "'%s' has no tokenizer.json, which turns text into tokens; add the file",
                        c->engine->info.folder);
    }
    if (!c->engine->info.has_chat_template) {
        return complain(EXIT_FILE,
                        "'%s' has no chat template (chat_template in tokenizer_config.json), so it is not "
                        "made for conversation; 'qrun generate' continues a text",
                        c->engine->info.folder);
    }
    RETURN_IF_FAILED(sampling_apply(&o->sampling, line, c->engine->model, &c->request));
    c->request.adapter = engine_default_adapter(c->engine);
    c->request.tools_json = c->conversation.tools.data;
    c->request.template_json = c->conversation.template_arguments.data;
    if (o->system != NULL) { text_puts(&c->system, o->system); }
    start_conversation(c);
    return EXIT_OK;
}

static int run(const void *options, const command_line *line, engine *e) {
    chat c = {
        .engine = e, .request = QRUN_REQUEST_PARAMS_INIT, .at_terminal = terminal_is(stdin) && terminal_is(stdout)};
    c.code = prepare(&c, options, line);
    if (c.code == EXIT_OK) { converse(&c); }
    conversation_free(&c.conversation);
    text_free(&c.system);
    free(c.line);
    return c.code;
}

static const chat_options defaults = {.engine = ENGINE_OPTIONS_INIT, .sampling = SAMPLING_OPTIONS_INIT(0)};

const command command_chat = {
    .name = "chat",
    .summary = "hold a conversation in the terminal",
    .usage = "--model DIR [OPTIONS]",
    .description =
        "Type a message and a line break; the answer is written as it comes. The model sees the whole conversation. "
        "/help lists the commands: /clear starts a new conversation, /system TEXT sets the system message, /exit or "
        "Ctrl-D leaves. "
        "Ctrl-C stops an answer; the conversation continues.\n\n"
        "Where stdin is no terminal, every line of it is a message, and stdout has the answers alone. Answers are as "
        "long as the context allows unless --max-tokens says less.",
    .examples = "  qrun chat --model path/to/model\n"
                "  qrun chat --model path/to/model --system \"Answer in one sentence.\" --temperature 0.7",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
