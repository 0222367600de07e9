/* qrun generate: text for one prompt, or answers for a file of requests. */
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/sampling.h"
#include "cli/report/generate_summary.h"
#include "cli/requests/conversation.h"
#include "cli/requests/job.h"
#include "cli/requests/stream.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"

typedef struct generate_options {
    engine_options engine;
    sampling_options sampling;
    template_options template;
    const char *prompt, *prompts;
    bool chat;
    const char *system;
    const char *output;
    bool resume, json, stats, summary, quiet;
} generate_options;

#define AT(field) INTO(generate_options, field)

/* clang-format off */
static const option prompt_table[] = {
    {.name = "prompt", .letter = 'p', .kind = OPTION_TEXT, .value_name = "TEXT", AT(prompt),
     .help = "The prompt. Without it and without --prompts, the prompt is read from stdin (a final newline "
             "is dropped)."},
    {.name = "prompts", .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(prompts), .neutral = true,
     .completion = COMPLETE_FILE,
     .help = "Many requests, one JSON object per line (\"-\": stdin): \"prompt\" or \"messages\" (with \"tools\" and "
             "\"template_args\") or \"token_ids\", and any of adapter, temperature, top_k, top_p, min_p, "
             "repetition_penalty, presence_penalty, frequency_penalty, seed, stop, max_tokens, n, logprobs, "
             "ignore_eos. What a line does not say comes from the command line."},
    {.name = "chat", .kind = OPTION_FLAG, AT(chat),
     .help = "Prompts are messages of a user: wrap them with the model's chat template."},
    {.name = "system", .kind = OPTION_TEXT, .value_name = "TEXT", AT(system),
     .help = "The system message before the user's (with --chat)."},
    {.name = "no-special", .kind = OPTION_FLAG, AT(sampling.request.no_special),
     .help = "Do not add the tokens that begin a text for this model (BOS)."},
    {.name = "parse-special", .kind = OPTION_FLAG, AT(sampling.request.parse_special),
     .help = "Text such as <|im_start|> in a prompt becomes the special token of that name."},
};
/* clang-format on */

/* clang-format off */
static const option output_table[] = {
    {.name = "output", .letter = 'o', .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(output), .neutral = true,
     .completion = COMPLETE_FILE,
     .help = "Write one JSON object per answer (\"-\": to stdout), in the order in which they finish: index (of the "
             "request, from 0), sample, text, token_ids, finish_reason (stop, length), prompt_tokens, "
             "completion_tokens, cached_tokens, times (seconds) and logprobs; or index and error. The file appears "
             "under its name when it is whole (and replaces an existing one); until then it is FILE.jsonl.partial, "
             "with a small FILE.jsonl.partial.job."},
    {.name = "resume", .kind = OPTION_FLAG, AT(resume), .neutral = true,
     .help = "Continue an interrupted --output: the same command with --resume skips what FILE.jsonl.partial answers "
             "already. The prompts and the options that shape answers must be the same; both are checked."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .neutral = true,
     .help = "Write JSON to stdout for a single prompt too."},
    {.name = "summary", .kind = OPTION_FLAG, AT(summary), .neutral = true,
     .help = "At the end, say on stderr what happened: tokens, speed, memory, K/V pages. Done without asking after a "
             "batch where stderr is a terminal."},
    {.name = "stats", .kind = OPTION_FLAG, AT(stats), .neutral = true,
     .help = "The same as one line of JSON."},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, AT(quiet), .neutral = true,
     .help = "No progress and no summary."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(generate_options, engine)),
    OPTION_GROUP("Adapters", adapter_option_table, offsetof(generate_options, engine)),
    OPTION_GROUP("Prompts", prompt_table, 0),
    OPTION_GROUP("Chat template", template_option_table, offsetof(generate_options, template)),
    OPTION_GROUP("Sampling", sampling_option_table, offsetof(generate_options, sampling)),
    OPTION_GROUP("Answers", sample_shape_option_table, offsetof(generate_options, sampling)),
    OPTION_GROUP("Output", output_table, 0),
    OPTION_GROUP("Machine", machine_option_table, offsetof(generate_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(generate_options, engine)),
};

/* The texts that requests are made of. */
typedef struct request_texts {
    text_buffer prompt;
    conversation conversation;
} request_texts;

static bool writes_json(const generate_options *o) { return o->prompts != NULL || o->output != NULL || o->json; }

static int check_combination(const generate_options *o) {
    RETURN_IF_FAILED(engine_require_model(&o->engine));
    if (o->prompt != NULL && o->prompts != NULL) {
        return complain(EXIT_USAGE, "--prompt and --prompts exclude each other");
    }
    if (o->sampling.request.logprobs >= 0 && !writes_json(o)) {
        return complain(EXIT_USAGE, "--logprobs needs JSON output: add --json, or --output FILE.jsonl");
    }
    if (o->resume && (o->output == NULL || strcmp(o->output, "-") == 0)) {
        return complain(EXIT_USAGE, "--resume needs --output FILE.jsonl");
    }
    if (o->resume && o->prompts != NULL && strcmp(o->prompts, "-") == 0) {
        return complain(EXIT_USAGE, "--resume needs the prompts in a file, not on stdin");
    }
    if (o->chat || (o->prompts != NULL && o->system == NULL)) { return EXIT_OK; } /* lines may have messages */
    return template_require_chat(&o->template, o->system);
}

/* The prompt from the command line or stdin, wrapped in messages with --chat. */
static int read_prompt(const generate_options *o, request_texts *texts) {
    if (o->prompt != NULL) {
        text_puts(&texts->prompt, o->prompt);
    } else {
        if (terminal_is(stdin)) {
            return complain(EXIT_USAGE, "no prompt: give --prompt TEXT, --prompts FILE.jsonl, or text on stdin");
        }
        RETURN_IF_FAILED(file_read(&texts->prompt, "-"));
        text_buffer *p = &texts->prompt;
        if (p->size == 0) {
            return complain(EXIT_USAGE,
                            "no prompt: stdin is empty; give --prompt TEXT (\"\" starts from an empty text)");
        }
        if (p->data[p->size - 1] == '\n') { p->data[--p->size] = '\0'; }
    }
    if (!o->chat) { return EXIT_OK; }
    conversation_start(&texts->conversation, o->system);
    conversation_add(&texts->conversation, "user", texts->prompt.data, texts->prompt.size);
    return EXIT_OK;
}

static int read_texts(const generate_options *o, request_texts *texts) {
    RETURN_IF_FAILED(template_read(&o->template, &texts->conversation));
    return o->prompts == NULL ? read_prompt(o, texts) : EXIT_OK;
}

/* The defaults of every request, or the one request itself. */
static int make_request(const generate_options *o, const command_line *line, const engine *e,
                        const request_texts *texts, qrun_request_params *request) {
    RETURN_IF_FAILED(sampling_apply(&o->sampling, line, e->model, request));
    request->no_special = o->sampling.request.no_special;
    request->parse_special = o->sampling.request.parse_special;
    request->adapter = engine_default_adapter(e);
    request->tools_json = texts->conversation.tools.data;
    request->template_json = texts->conversation.template_arguments.data;
    if (o->prompts != NULL) { return EXIT_OK; }
    if (o->chat) {
        request->messages_json = texts->conversation.messages.data;
    } else {
        request->prompt = texts->prompt.data;
        request->prompt_bytes = texts->prompt.size;
    }
    return EXIT_OK;
}

static void report_run(const generate_options *o, const engine *e, const run_counts *counts, bool summary) {
    if (summary && !o->quiet) { report_for_people(e, counts); }
    if (o->stats) { report_json(e, counts); }
}

/* ---- One prompt, text out ---------------------------------------------------------------------------------------- */

static int run_text(const generate_options *o, const engine *e, const qrun_request_params *request) {
    text_stream stream = {0};
    const double begin = clock_seconds();
    const int code = stream_request(&stream, e, request);
    const run_counts counts = {.n_answered = 1, .n_failed = code != EXIT_OK, .seconds = clock_seconds() - begin};
    if (terminal_is(stdout) && (code == EXIT_OK || code == EXIT_INTERRUPTED)) { putchar('\n'); }
    fflush(stdout);
    report_run(o, e, &counts, o->summary);
    stream_free(&stream);
    return code;
}

/* ---- Many requests, JSON out ------------------------------------------------------------------------------------- */

/* What must be the same for a job to be resumed: {"prompts": hash, "options": {…}}. */
static void identify_job(const generate_options *o, const command_line *line, const request_texts *texts,
                         const request_file *requests, text_buffer *identity) {
    const uint64_t hash =
        o->prompts != NULL ? requests->hash : hash_bytes(HASH_START, texts->prompt.data, texts->prompt.size);
    text_format(identity, "{\"prompts\":\"%016llx %lld\",\"options\":", (unsigned long long)hash,
                (long long)requests->n_requests);
    options_describe(&command_generate, o, line, identity);
    text_puts(identity, "}\n");
}

static void tell_interrupted(const generate_options *o, const job *j) {
    const long long done = (long long)(j->n_answered + j->n_resumed);
    if (o->output == NULL || !j->output->aside) {
        notify("interrupted after %s", count_text(done, "answer").text);
    } else if (done == 0) {
        notify("interrupted before the first answer; nothing is kept");
    } else {
        notify("interrupted; %lld answers are in '%s'. To resume, repeat the command with --resume", done,
               j->output->partial_path.data);
    }
}

/* After job_run: ends the output, tells what happened and decides the exit code. */
static int end_job(const generate_options *o, const engine *e, job *j, int code) {
    const run_counts counts = {.n_answered = j->n_answered,
                               .n_failed = j->n_failed,
                               .n_resumed = j->n_resumed,
                               .seconds = clock_seconds() - j->begin_seconds};
    const int64_t n_failed = j->n_failed + j->output->n_done_failed;
    if (code == EXIT_INTERRUPTED) { tell_interrupted(o, j); }
    if (code == EXIT_OK && j->n_answered + j->n_resumed == 0) { notify("note: '%s' has no requests", o->prompts); }
    if (code == EXIT_OK) {
        code = answer_file_finish(j->output);
    } else {
        answer_file_abandon(j->output);
    }
    if (n_failed > 0) {
        notify("%lld of %lld requests failed%s%s", (long long)n_failed, (long long)(j->n_answered + j->n_resumed),
               j->n_failed > 0 ? "; the first: " : "", j->first_failure);
    }
    report_run(o, e, &counts, o->summary || progress_enabled());
    return code == EXIT_OK && n_failed > 0 ? EXIT_SOME_FAILED : code;
}

/* Before the model is loaded, which can take long: says at once that a file cannot be written, or is whole. */
static int open_output(const generate_options *o, const command_line *line, const request_texts *texts,
                       const request_file *requests, answer_file *output, bool *already_whole) {
    text_buffer identity = {0};
    identify_job(o, line, texts, requests, &identity);
    const int code = answer_file_open(output, o->output, o->resume, &identity, already_whole);
    text_free(&identity);
    if (*already_whole) { notify("'%s' is whole; there is nothing to resume", o->output); }
    return code;
}

static int run_job(const generate_options *o, const engine *e, const qrun_request_params *request, job *j) {
    enum { IN_FLIGHT_MIN = 256 };
    j->engine = e;
    j->defaults = *request;
    j->chat = o->chat;
    j->system = o->system;
    const int64_t two_batches = 2 * (int64_t)o->engine.session.max_sequences;
    j->max_in_flight = two_batches > IN_FLIGHT_MIN ? two_batches : IN_FLIGHT_MIN;
    return end_job(o, e, j, job_run(j));
}

static int answer_all(const generate_options *o, const command_line *line, engine *e, const request_texts *texts,
                      request_file *requests, answer_file *output) {
    job j = {.output = output, .requests = o->prompts != NULL ? requests : NULL};
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    RETURN_IF_FAILED(engine_open(e, &o->engine));
    RETURN_IF_FAILED(make_request(o, line, e, texts, &request));
    const int code = writes_json(o) ? run_job(o, e, &request, &j) : run_text(o, e, &request);
    engine_close(e); /* its session knows the job's requests */
    job_free(&j);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    const generate_options *o = options;
    request_texts texts = {0};
    request_file requests = {.n_requests = -1};
    answer_file output = {0};
    bool already_whole = false;
    if (o->quiet) { progress_silence(); }
    int code = check_combination(o);
    if (code == EXIT_OK) { code = read_texts(o, &texts); }
    if (code == EXIT_OK && o->prompts != NULL) { code = request_file_open(&requests, o->prompts); }
    if (code == EXIT_OK && writes_json(o)) { code = open_output(o, line, &texts, &requests, &output, &already_whole); }
    if (code == EXIT_OK && !already_whole) { code = answer_all(o, line, e, &texts, &requests, &output); }
    answer_file_abandon(&output); /* does nothing to one that was finished */
    request_file_close(&requests);
    text_free(&texts.prompt);
    conversation_free(&texts.conversation);
    return code;
}

static const generate_options defaults = {.engine = ENGINE_OPTIONS_INIT, .sampling = SAMPLING_OPTIONS_INIT(256)};

const command command_generate = {
    .name = "generate",
    .summary = "write text for one prompt, or answers for a file of them",
    .usage = "--model DIR [--prompt TEXT | --prompts FILE.jsonl] [OPTIONS]",
    .description =
        "With --prompt (or text on stdin) the answer goes to stdout as it is written, and nothing else does. With "
        "--prompts, all requests run together and every answer becomes one line of JSON, in --output or on stdout.\n\n"
        "Requests are independent: an answer does not depend on what else runs, and the same request gives the same "
        "answer again. A line that is no valid request becomes an answer with \"error\"; the others still run, and the "
        "exit code is 1.\n\n"
        "Ctrl-C finishes the current step and keeps what is answered; a second Ctrl-C ends the program at once.",
    .examples = "  qrun generate --model path/to/model --prompt \"Once upon a time\"\n"
                "  qrun generate --model path/to/model --chat --prompt \"Name three rivers.\" --temperature 0.7\n"
                "  echo \"Once upon a time\" | qrun generate --model path/to/model --max-tokens 50\n"
                "  qrun generate --model path/to/model --adapter french=path/to/adapter \\\n"
                "                --prompts requests.jsonl --output answers.jsonl\n"
                "\n"
                "  # two lines of a requests.jsonl:\n"
                "  {\"prompt\": \"The sea is\", \"max_tokens\": 20, \"temperature\": 0.8, \"seed\": 1}\n"
                "  {\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"adapter\": \"french\"}",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
