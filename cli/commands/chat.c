/* qrun chat: a conversation in the terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/nearest.h"
#include "cli/options/sampling.h"
#include "cli/requests/conversation.h"
#include "cli/requests/request_file.h"
#include "cli/requests/stream.h"
#include "cli/requests/template_note.h"
#include "cli/terminal/history_file.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/keyboard.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"

typedef struct chat_options {
    engine_options engine;
    sampling_options sampling;
    template_options template;
    const char *system, *session, *history;
    bool no_history;
} chat_options;

/* clang-format off */
static const option chat_table[] = {
    {.name = "system", .kind = OPTION_TEXT, .value_name = "TEXT", INTO(chat_options, system),
     .help = "The system message that the conversation begins with; /system changes it."},
    {.name = "session", .kind = OPTION_TEXT, .value_name = "FILE", INTO(chat_options, session),
     .completion = COMPLETE_FILE,
     .help = "Keep the conversation in FILE, after every answer, and continue the one that is there. With --cache-dir "
             "it need not be read again from its beginning."},
    {.name = "history", .kind = OPTION_TEXT, .value_name = "FILE", INTO(chat_options, history),
     .completion = COMPLETE_FILE,
     .help = "Where typed messages are kept for the arrow keys; only its owner can read it. Default: "
             "qrun/chat_history in XDG_STATE_HOME, else in ~/.local/state. Nothing is kept where messages are piped."},
    {.name = "no-history", .kind = OPTION_FLAG, INTO(chat_options, no_history),
     .help = "Keep no file of what is typed."},
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
    OPTION_GROUP("Speed", speed_option_table, offsetof(chat_options, engine)),
};

typedef struct chat {
    engine *engine;
    conversation conversation;
    text_buffer system;
    const char *session; /* the file of the conversation; NULL: none */
    qrun_request_params request;
    line_reader reader; /* of stdin where that is no terminal; holds the line in either case */
    bool at_terminal;   /* somebody types, and reads the answers there */
    bool edits;         /* on a terminal that redraws: with the keys of libedit */
    history_file history;
    int64_t n_turns; /* of the conversation */
    bool leaving;
    int code;
} chat;

/* Keeps what was said, and what the model made of it. */
static void save_conversation(chat *c) {
    if (c->session != NULL) {
        const int code = conversation_save(&c->conversation, c->session);
        if (code != EXIT_OK) { c->code = code; }
    }
    engine_keep_prefixes(c->engine);
}

static void start_conversation(chat *c) {
    c->n_turns = 0;
    conversation_start(&c->conversation, c->system.size > 0 ? c->system.data : NULL);
}

static void restart_conversation(chat *c) {
    start_conversation(c);
    save_conversation(c);
}

/* The conversation in a file takes the place of this one. */
static int load_conversation(chat *c, const char *path) {
    char *user, *system;
    RETURN_IF_FAILED(conversation_load(&c->conversation, path));
    c->n_turns = conversation_count(&c->conversation, "user", &user);
    (void)conversation_count(&c->conversation, "system", &system);
    text_clear(&c->system);
    text_puts(&c->system, system != NULL ? system : "");
    free(user);
    free(system);
    return EXIT_OK;
}

/* ---- Commands ---------------------------------------------------------------------------------------------------- */

static void command_help(chat *c, const char *argument);

static void command_reset(chat *c, const char *argument) {
    (void)argument;
    restart_conversation(c);
    if (c->at_terminal) { printf("(a new conversation)\n"); }
}

static void command_system(chat *c, const char *argument) {
    text_clear(&c->system);
    text_puts(&c->system, argument);
    restart_conversation(c);
    if (c->at_terminal) {
        printf(c->system.size > 0 ? "(a new conversation with this system message)\n"
                                  : "(a new conversation without a system message)\n");
    }
}

static void command_save(chat *c, const char *argument) {
    if (*argument == '\0') {
        notify("/save needs the name of a file");
    } else if (conversation_may_replace(argument) == EXIT_OK &&
               conversation_save(&c->conversation, argument) == EXIT_OK && c->at_terminal) {
        printf("(saved in %s)\n", argument);
    }
}

static void command_load(chat *c, const char *argument) {
    if (*argument == '\0') {
        notify("/load needs the name of a file that /save wrote");
        return;
    }
    if (load_conversation(c, argument) != EXIT_OK) { return; }
    save_conversation(c);
    if (c->at_terminal) { printf("(a conversation of %s)\n", count_text(c->n_turns, "message").text); }
}

static void command_exit(chat *c, const char *argument) {
    (void)argument;
    c->leaving = true;
}

/* One without an explanation is another name of the one before it. */
static const struct {
    const char *name, *explanation;
    void (*run)(chat *c, const char *argument);
} chat_commands[] = {
    {"/help", "this list", command_help},
    {"/reset", "forget the conversation and start a new one", command_reset},
    {"/clear", NULL, command_reset},
    {"/system", "TEXT: start a new conversation with this system message (without TEXT: with none)", command_system},
    {"/save", "FILE: write the conversation, as a line that generate and finetune read too", command_save},
    {"/load", "FILE: continue a conversation that was saved", command_load},
    {"/exit", "leave (also: Ctrl-D)", command_exit},
    {"/quit", NULL, command_exit},
    {"/bye", NULL, command_exit},
};

enum { N_CHAT_COMMANDS = sizeof chat_commands / sizeof chat_commands[0] };

static void command_help(chat *c, const char *argument) {
    (void)argument;
    for (int i = 0; i < N_CHAT_COMMANDS; i++) {
        if (chat_commands[i].explanation != NULL) {
            printf("  %-11s%s\n", chat_commands[i].name, chat_commands[i].explanation);
        }
    }
    printf("  Ctrl-C     stop the answer\n");
    if (!c->edits) { return; }
    printf("  Alt-Enter  a line break in the message; pasted ones stay too\n"
           "  \"\"\"        a message of several lines, up to the next \"\"\"\n"
           "  Up, Ctrl-R what was typed before, and a search in it\n");
}

static void refuse_command(const char *line, size_t length) {
    char typed[32];
    snprintf(typed, sizeof typed, "%.*s", (int)length, line);
    nearest search = NEAREST_INIT(typed);
    for (int i = 0; i < N_CHAT_COMMANDS; i++) { nearest_offer(&search, chat_commands[i].name); }
    if (search.best != NULL) {
        notify("there is no command '%.*s' here; did you mean %s? /help lists them", (int)length, line, search.best);
    } else {
        notify("there is no command '%.*s' here; /help lists them. A blank before the slash makes it a message",
               (int)length, line);
    }
}

/* Runs a line that begins with a slash. */
static void run_chat_command(chat *c, const char *line) {
    const size_t length = strcspn(line, " \t\n");
    for (int i = 0; i < N_CHAT_COMMANDS; i++) {
        if (strlen(chat_commands[i].name) == length && strncmp(chat_commands[i].name, line, length) == 0) {
            chat_commands[i].run(c, line + length + strspn(line + length, " \t\n"));
            return;
        }
    }
    refuse_command(line, length);
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

/* Why an answer ends before its end: at --max-tokens, or because the conversation fills the context. */
static void explain_length(const chat *c, const text_stream *stream) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    if (c->request.max_tokens > 0 && stream->completion_tokens >= c->request.max_tokens) {
        notify("the answer ends at %d tokens; --max-tokens allows longer ones", (int)stream->completion_tokens);
    } else if (qrun_session_get_stats(c->engine->session, &stats, NULL) == QRUN_OK) {
        notify("the conversation fills the context of %lld tokens; /reset starts a new one%s",
               (long long)stats.context_tokens,
               stats.context_tokens < c->engine->info.context_tokens ? ", and a larger --context allows longer ones"
                                                                     : "");
    }
}

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
        if (c->at_terminal && strcmp(stream.finish_reason, "length") == 0) { explain_length(c, &stream); }
        c->n_turns++;
        save_conversation(c);
    } else {
        conversation_cut(&c->conversation, size_before);
        if (c->at_terminal && !stream.session_failed) {
            notify("the message was not taken%s",
                   c->n_turns > 0 ? "; the prompt is the whole conversation, and /reset starts a new one" : "");
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

static keyboard_event read_plain(text_buffer *line) {
    terminal_put_style(stdout, STYLE_BOLD);
    printf("> ");
    terminal_put_style(stdout, STYLE_PLAIN);
    return keyboard_read(line);
}

static bool ends_in_quotes(const text_buffer *line, size_t begin) {
    return line->size >= begin + 3 && memcmp(line->data + line->size - 3, "\"\"\"", 3) == 0;
}

/* A line, or what stands between """ and """. */
static keyboard_event read_edited(text_buffer *line) {
    keyboard_event event = line_editor_read(">", line);
    if (event != KEYBOARD_LINE || line->size < 3 || memcmp(line->data, "\"\"\"", 3) != 0) { return event; }
    text_buffer more = {0}, whole = {0};
    bool is_whole = ends_in_quotes(line, 3);
    text_append(&whole, line->data + 3, line->size - 3);
    while (!is_whole && (event = line_editor_read("…", &more)) == KEYBOARD_LINE) {
        text_format(&whole, "%s%s", whole.size > 0 ? "\n" : "", more.data);
        is_whole = ends_in_quotes(&whole, 0);
    }
    if (is_whole) { whole.size -= 3; }
    text_clear(line);
    text_append(line, whole.data, whole.size);
    text_free(&more);
    text_free(&whole);
    return event;
}

/* Reads a line that is typed. False at the end of the input, or after two Ctrl-C in a row. */
static bool read_typed(chat *c) {
    text_buffer *line = &c->reader.line;
    keyboard_event event = KEYBOARD_INTERRUPTED;
    for (int n_interrupts = 0; n_interrupts < 2 && event == KEYBOARD_INTERRUPTED && !terminated(); n_interrupts++) {
        event = c->edits ? read_edited(line) : read_plain(line);
        if (event != KEYBOARD_INTERRUPTED || terminated()) { break; }
        interrupt_reset();
        printf("\n(Ctrl-C again, Ctrl-D or /exit leaves)\n");
    }
    c->reader.too_long = line->size > c->reader.max_bytes;
    if (event != KEYBOARD_LINE) { putchar('\n'); }
    if (event == KEYBOARD_LINE && c->edits && line->size > 0) {
        line_editor_remember(line->data);
        history_file_add(&c->history, line);
    }
    return event == KEYBOARD_LINE;
}

/* What can be said of a line before the model sees it. */
static int check_message(const chat *c) {
    if (c->reader.too_long) { return complain_text_too_long("the message", c->reader.max_bytes); }
    return text_require_utf8("the message", c->reader.line.data, c->reader.line.size);
}

static void converse(chat *c) {
    const text_buffer *line = &c->reader.line;
    if (c->at_terminal) {
        printf("%s, %s. /help lists what can be typed here.\n", c->engine->info.family, c->engine->info.quant);
        interrupt_is_a_request();
    }
    while (!c->leaving && (c->at_terminal ? read_typed(c) : line_reader_next(&c->reader))) {
        const int code = check_message(c);
        if (code != EXIT_OK) {
            if (!c->at_terminal) { c->code = code; }
        } else if (line->size > 0 && line->data[0] == '/') {
            run_chat_command(c, line->data);
        } else if (line->size > 0) {
            answer_message(c, line->data, line->size);
        }
    }
    if (terminated() || (interrupted() && !c->at_terminal)) { c->code = complain(EXIT_INTERRUPTED, "interrupted"); }
}

static int resume_conversation(chat *c, const chat_options *o) {
    if (o->system != NULL) {
        return complain(EXIT_USAGE, "the conversation in '%s' has begun; leave --system out, or name another file",
                        o->session);
    }
    RETURN_IF_FAILED(load_conversation(c, o->session));
    if (terminal_is(stdin) && c->n_turns > 0) {
        notify("continuing '%s' after %s; /reset starts a new conversation", o->session,
               count_text(c->n_turns, "message").text);
    }
    return EXIT_OK;
}

static int prepare(chat *c, const chat_options *o, const command_line *line) {
    if (o->history != NULL && o->no_history) {
        return complain(EXIT_USAGE, "--history and --no-history exclude each other");
    }
    RETURN_IF_FAILED(template_read(&o->template, &c->conversation));
    RETURN_IF_FAILED(engine_require_one_adapter(&o->engine));
    engine_options options = o->engine;
    if (options.session.max_sequences == 0) { options.session.max_sequences = 1; } /* one answer at a time */
    RETURN_IF_FAILED(engine_open(c->engine, &options));
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
    c->reader.max_bytes = request_text_limit(c->engine);
    c->request.adapter = engine_default_adapter(c->engine);
    c->request.tools_json = c->conversation.tools.data;
    c->request.template_json = c->conversation.template_arguments.data;
    template_note_unused(qrun_model_tokenizer(c->engine->model), &c->conversation, o->system);
    c->session = o->session;
    if (o->session != NULL && access(o->session, F_OK) == 0) { return resume_conversation(c, o); }
    if (o->system != NULL) { text_puts(&c->system, o->system); }
    start_conversation(c);
    return EXIT_OK;
}

static void begin_typing(chat *c, const chat_options *o) {
    static const char *words[N_CHAT_COMMANDS + 1];
    for (int i = 0; i < N_CHAT_COMMANDS; i++) { words[i] = chat_commands[i].name; }
    c->at_terminal = keyboard_open();
    c->edits = c->at_terminal && line_editor_open(words);
    if (c->edits && !o->no_history) {
        history_file_open(&c->history, o->history, "chat_history", line_editor_remember);
    }
}

static void end_typing(chat *c) {
    history_file_close(&c->history);
    line_editor_close();
    keyboard_close();
}

static int run(const void *options, const command_line *line, engine *e) {
    chat c = {.engine = e, .request = QRUN_REQUEST_PARAMS_INIT, .reader = {.stream = stdin}};
    c.code = prepare(&c, options, line);
    if (c.code == EXIT_OK) {
        begin_typing(&c, options);
        converse(&c);
        end_typing(&c);
    }
    conversation_free(&c.conversation);
    text_free(&c.system);
    text_free(&c.reader.line);
    return c.code;
}

static const chat_options defaults = {.engine = ENGINE_OPTIONS_INIT, .sampling = SAMPLING_OPTIONS_INIT(0)};

const command command_chat = {
    .name = "chat",
    .summary = "hold a conversation in the terminal",
    .usage = "--model DIR [OPTIONS]",
    .description =
        "Type or paste a message, of any length, and a line break; the answer is written as it comes. The model sees "
        "the whole conversation. "
        "/help lists the commands: /reset starts a new conversation, /system TEXT sets the system message, /save and "
        "/load keep conversations, /exit or Ctrl-D leaves. "
        "Ctrl-C stops an answer; the conversation continues.\n\n"
        "Lines are edited with the keys of libedit, as ~/.editrc says; the arrow keys bring back what was typed "
        "before. "
        "Pasted text is one message, Alt-Enter adds a line to it, and \"\"\" begins and ends one of several lines. "
        "With TERM=dumb a line is plain.\n\n"
        "Where stdin is no terminal, every line of it is a message, and stdout has the answers alone. Answers are as "
        "long as the context allows unless --max-tokens says less.",
    .examples = "  qrun chat --model path/to/model\n"
                "  qrun chat --model path/to/model --system \"Answer in one sentence.\" --temperature 0.7",
    .first_options = "model adapter system temperature max-tokens memory",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
