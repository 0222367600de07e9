/* qrun generate: text for one prompt, or answers for a file of requests. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/sampling.h"
#include "cli/report/generate_summary.h"
#include "cli/report/profile_html.h"
#include "cli/requests/conversation.h"
#include "cli/requests/job.h"
#include "cli/requests/replicas.h"
#include "cli/requests/stream.h"
#include "cli/requests/template_note.h"
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
    const char *json_schema; /* a file */
    const char *output;
    const char *profile; /* a folder; NULL: none */
    bool resume, retry_errors, force, with_prompt, json, stats, summary, quiet;
    int32_t data_parallel;
    bool is_replica;
} generate_options;

#define AT(field) INTO(generate_options, field)

/* clang-format off */
static const option prompt_table[] = {
    {.name = "prompt", .letter = 'p', .kind = OPTION_TEXT, .value_name = "TEXT", AT(prompt),
     .help = "The prompt. Without it and without --prompts, the prompt is read from stdin (a final newline "
             "is dropped)."},
    {.name = "prompts", .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(prompts), .neutral = true,
     .completion = COMPLETE_FILE,
     .help = "Many requests, one JSON object per line (\"-\": stdin). A line has \"prompt\" or \"messages\" (with "
             "\"tools\" and \"template_args\") or \"token_ids\"; its \"id\" or \"custom_id\" is repeated by the "
             "answer. It may have any of adapter, temperature, top_k, top_p, min_p, repetition_penalty, "
             "presence_penalty, frequency_penalty, seed, stop, stop_token_ids, min_tokens, max_tokens, max_length, n, "
             "logprobs, ignore_eos and response_format. "
             "prompt_logprobs asks for log probabilities of the prompt's tokens, with as many of the best at each "
             "position; prompt_only generates nothing. Members of generation_config.json are suppress_tokens, "
             "bad_words_ids, no_repeat_ngram_size, min_new_tokens and others. "
             "What a line does not say comes from the command line. A line may have 1 MiB, and 64 bytes for each token "
             "of the context."},
    {.name = "chat", .kind = OPTION_FLAG, AT(chat),
     .help = "Prompts are messages of a user: wrap them with the model's chat template."},
    {.name = "system", .kind = OPTION_TEXT, .value_name = "TEXT", AT(system),
     .help = "The system message before the user's (with --chat)."},
    {.name = "json-schema", .kind = OPTION_TEXT, .value_name = "FILE.json", AT(json_schema),
     .completion = COMPLETE_FILE,
     .help = "Answers are JSON that this JSON Schema accepts; {\"type\": \"object\"} is any object. A line of "
             "--prompts may have a \"response_format\" of its own, as OpenAI's requests do."},
    {.name = "no-special", .kind = OPTION_FLAG, AT(sampling.request.no_special),
     .help = "Do not add the tokens that begin a text for this model (BOS)."},
    {.name = "plain-text", .kind = OPTION_FLAG, AT(sampling.request.plain_text),
     .help = "Text such as <|im_start|> in a prompt stays text. Default: it becomes the special token of that name."},
};
/* clang-format on */

/* clang-format off */
static const option output_table[] = {
    {.name = "output", .letter = 'o', .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(output), .neutral = true,
     .completion = COMPLETE_FILE,
     .help = "Write one JSON object per answer (\"-\": to stdout), in the order in which they finish. It has index (of "
             "the request, from 0), sample, text, token_ids, finish_reason (stop, length), prompt_tokens, "
             "completion_tokens, cached_tokens, times (seconds) and logprobs; the first sample also prompt_logprobs. "
             "A request that failed has index and error. The file appears under its name when it is whole; until then "
             "it is FILE.jsonl.partial, with a small FILE.jsonl.partial.job. A file of that name that is there already "
             "is not replaced without --force."},
    {.name = "force", .kind = OPTION_FLAG, AT(force), .neutral = true,
     .help = "Replace an --output that is there already."},
    {.name = "resume", .kind = OPTION_FLAG, AT(resume), .neutral = true,
     .help = "Continue an interrupted --output: the same command with --resume skips what FILE.jsonl.partial answers "
             "already. The prompts and the options that shape answers must be the same; both are checked."},
    {.name = "retry-errors", .kind = OPTION_FLAG, AT(retry_errors), .neutral = true,
     .help = "With --resume: answer again what ended in an error, also in a FILE.jsonl that is whole."},
    {.name = "with-prompt", .kind = OPTION_FLAG, AT(with_prompt),
     .help = "Answers repeat what they answer: \"prompt\", \"messages\" or \"token_ids\"."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .neutral = true,
     .help = "Write JSON to stdout for a single prompt too."},
    {.name = "profile", .kind = OPTION_TEXT, .value_name = "DIR", AT(profile), .neutral = true,
     .completion = COMPLETE_FOLDER,
     .help = "Write where time and memory go into this folder: trace.json for Perfetto, memory.pickle for "
             "torch.cuda._memory_viz, a file for TensorBoard, and a page, report.html. Of a long run, its first "
             "131,072 ops, copies and waits."},
    {.name = "summary", .kind = OPTION_FLAG, AT(summary), .neutral = true,
     .help = "At the end, say on stderr what happened: tokens, speed, memory, K/V pages. Done without asking after a "
             "batch where stderr is a terminal."},
    {.name = "stats", .kind = OPTION_FLAG, AT(stats), .neutral = true,
     .help = "The same as one line of JSON."},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, AT(quiet), .neutral = true,
     .help = "No progress and no summary."},
};
/* clang-format on */

/* clang-format off */
static const option replica_table[] = {
    {.name = "data-parallel", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = REPLICAS_MAX,
     AT(data_parallel),
     .help = "With --prompts: answer with N copies of the model, each a process of this machine with its own memory "
             "and its share of the CPUs. A request goes to the copy with the fewest. Answers are those of one. Sizes, "
             "such as --memory, are each copy's. Default: 1."},
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
    OPTION_GROUP("Speed", speed_option_table, offsetof(generate_options, engine)),
    OPTION_GROUP("Several devices", devices_option_table, offsetof(generate_options, engine)),
    OPTION_GROUP("Copies of the model", replica_table, 0),
};

/* The texts that requests are made of. */
typedef struct request_texts {
    text_buffer prompt, schema;
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
    if (o->retry_errors && !o->resume) { return complain(EXIT_USAGE, "--retry-errors needs --resume"); }
    if (o->with_prompt && !writes_json(o)) {
        return complain(EXIT_USAGE, "--with-prompt needs JSON output: add --json, or --output FILE.jsonl");
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
    RETURN_IF_FAILED(text_require_utf8("the prompt", texts->prompt.data, texts->prompt.size));
    if (!o->chat) { return EXIT_OK; }
    conversation_start(&texts->conversation, o->system);
    conversation_add(&texts->conversation, "user", texts->prompt.data, texts->prompt.size);
    return EXIT_OK;
}

enum { MAX_SCHEMA_BYTES = 256 << 10 }; /* as many as the library takes */

static int read_texts(const generate_options *o, request_texts *texts) {
    RETURN_IF_FAILED(template_read(&o->template, &texts->conversation));
    if (o->json_schema != NULL) {
        RETURN_IF_FAILED(file_read_short_text(&texts->schema, o->json_schema, MAX_SCHEMA_BYTES));
        text_puts(&texts->schema, ""); /* an empty file is no schema, and not none */
    }
    return o->prompts == NULL ? read_prompt(o, texts) : EXIT_OK;
}

/* The defaults of every request, or the one request itself. */
static int make_request(const generate_options *o, const command_line *line, const engine *e,
                        const request_texts *texts, qrun_request_params *request) {
    RETURN_IF_FAILED(sampling_apply(&o->sampling, line, e->model, request));
    request->no_special = o->sampling.request.no_special;
    request->plain_text = o->sampling.request.plain_text;
    request->adapter = engine_default_adapter(e);
    request->tools_json = texts->conversation.tools.data;
    request->template_json = texts->conversation.template_arguments.data;
    request->json_schema = texts->schema.data;
    if (o->chat) { template_note_unused(qrun_model_tokenizer(e->model), &texts->conversation, o->system); }
    if (o->prompts != NULL) { return EXIT_OK; }
    const size_t max_bytes = request_text_limit(e);
    if (texts->prompt.size > max_bytes) { return complain_text_too_long("the prompt", max_bytes); }
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
    const run_counts counts = {.n_answered = 1,
                               .n_failed = code != EXIT_OK,
                               .memory_bytes = o->engine.model.memory_bytes,
                               .seconds = clock_seconds() - begin};
    if (terminal_is(stdout) && (code == EXIT_OK || code == EXIT_INTERRUPTED)) { putchar('\n'); }
    fflush(stdout);
    report_run(o, e, &counts, o->summary);
    stream_free(&stream);
    return code;
}

/* ---- Many requests, JSON out ------------------------------------------------------------------------------------- */

/* What must be the same for a job to be resumed: {"prompts": hash, "files": hash, "options": {…}}; "files", what the
 * options' files say, is there if they say something. */
static void identify_job(const generate_options *o, const command_line *line, const request_texts *texts,
                         const request_file *requests, text_buffer *identity) {
    const uint64_t hash =
        o->prompts != NULL ? requests->hash : hash_bytes(HASH_START, texts->prompt.data, texts->prompt.size);
    const text_buffer *files[] = {&texts->schema, &texts->conversation.tools};
    uint64_t files_hash = HASH_START;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i]->size > 0) { files_hash = hash_bytes(files_hash, files[i]->data, files[i]->size + 1); }
    }
    text_format(identity, "{\"prompts\":\"%016llx %lld\",", (unsigned long long)hash, (long long)requests->n_requests);
    if (files_hash != HASH_START) { text_format(identity, "\"files\":\"%016llx\",", (unsigned long long)files_hash); }
    text_puts(identity, "\"options\":");
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

/* After job_run: ends the output, tells what happened and decides the exit code. e: NULL where replicas ran. */
static int end_job(const generate_options *o, const engine *e, job *j, int code) {
    const run_counts counts = {.n_answered = j->n_answered,
                               .n_failed = j->n_failed,
                               .n_resumed = j->n_resumed,
                               .memory_bytes = o->engine.model.memory_bytes,
                               .seconds = clock_seconds() - j->begin_seconds};
    const int64_t n_failed = j->n_failed + j->output->n_done_failed;
    if (o->is_replica) { /* who has started it says the rest */
        return code == EXIT_OK ? answer_file_finish(j->output, false) : code;
    }
    interrupt_hold(); /* the answers so far are brought to disk */
    interrupt_last_words(NULL);
    if (code == EXIT_INTERRUPTED) { tell_interrupted(o, j); }
    if (code == EXIT_OK && j->n_answered + j->n_resumed == 0) { notify("note: '%s' has no requests", o->prompts); }
    if (code == EXIT_OK) {
        code = answer_file_finish(j->output, j->n_failed > 0);
    } else {
        answer_file_abandon(j->output);
    }
    if (n_failed > 0) {
        notify("%lld of %lld requests failed%s%s", (long long)n_failed, (long long)(j->n_answered + j->n_resumed),
               j->n_failed > 0 ? "; the first: " : "", j->first_failure);
    }
    if (e != NULL) { report_run(o, e, &counts, o->summary || progress_enabled()); }
    return code == EXIT_OK && n_failed > 0 ? EXIT_SOME_FAILED : code;
}

/* Under any name: --force would replace the requests by their answers. */
static bool is_one_file(const char *a, const char *b) {
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && S_ISREG(one.st_mode) && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Before the model is loaded, which can take long: says at once that a file cannot be written, or is whole. */
static int open_output(const generate_options *o, const command_line *line, const request_texts *texts,
                       const request_file *requests, answer_file *output, bool *already_whole) {
    text_buffer identity = {0};
    if (o->prompts != NULL && o->output != NULL && is_one_file(o->prompts, o->output)) {
        return complain(EXIT_USAGE, "--output '%s' is the file of --prompts, which would be lost; choose another one",
                        o->output);
    }
    identify_job(o, line, texts, requests, &identity);
    const answer_file_options options = {o->output, o->resume, o->retry_errors, o->force};
    const int code = answer_file_open(output, &options, &identity, already_whole);
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
    j->with_prompt = o->with_prompt;
    j->is_replica = o->is_replica;
    j->prompt = request->prompt != NULL ? request->prompt : o->prompt != NULL ? o->prompt : "";
    const int64_t two_batches = 2 * (int64_t)o->engine.session.max_sequences;
    j->max_in_flight = two_batches > IN_FLIGHT_MIN ? two_batches : IN_FLIGHT_MIN;
    if (j->output->aside) { interrupt_last_words("; to resume, repeat the command with --resume"); }
    return end_job(o, e, j, job_run(j));
}

/* ---- The session for the job ------------------------------------------------------------------------------------- */

enum {
    DEFAULT_SEQUENCES = 64,
    DEFAULT_STEP_TOKENS = 512,
    REPLICA_REQUESTS_MIN = 512
}; /* what 0 means in qrun_session_params */

/* What all requests take together. */
typedef struct job_size {
    int64_t prompt_tokens, n_sequences, longest; /* longest 0: as far as the context allows */
    bool is_open_ended;
} job_size;

static void add_size(job_size *total, const qrun_request_size *size) {
    total->prompt_tokens += size->prompt_tokens;
    total->n_sequences += size->n_sequences;
    total->is_open_ended = total->is_open_ended || size->sequence_tokens == 0;
    if (size->sequence_tokens > total->longest) { total->longest = size->sequence_tokens; }
}

/* Reads the lines of a short file. A line that is no request takes nothing: it gets its error when it is submitted. */
static int measure_lines(const generate_options *o, const engine *e, const qrun_request_params *request,
                         request_file *requests, job_size *total) {
    const text_buffer *line = &requests->reader.line;
    bool read_failed;
    requests->reader.max_bytes = request_text_limit(e);
    while (request_file_next(requests, &read_failed)) {
        qrun_request_size size = QRUN_REQUEST_SIZE_INIT;
        if (!requests->reader.too_long && qrun_request_measure_json(e->model, line->data, line->size, NULL, request,
                                                                    o->chat, o->system, &size, NULL) == QRUN_OK) {
            add_size(total, &size);
        }
    }
    return read_failed ? EXIT_FILE : request_file_rewind(requests);
}

/* Makes the session no larger than the job needs, where all its requests are known. They are for one prompt, and for a
 * file with no more lines than run at once. */
static int fit_session(const generate_options *o, const engine *e, const qrun_request_params *request,
                       request_file *requests, qrun_session_params *params) {
    const int64_t most_sequences = params->max_sequences > 0 ? params->max_sequences : DEFAULT_SEQUENCES;
    const int64_t most_tokens = params->max_step_tokens > 0 ? params->max_step_tokens : DEFAULT_STEP_TOKENS;
    job_size total = {0};
    qrun_request_size size = QRUN_REQUEST_SIZE_INIT;
    if (o->prompts == NULL) {
        if (qrun_request_measure(e->model, request, &size, NULL) == QRUN_OK) { add_size(&total, &size); }
    } else if (requests->n_requests >= 0 && requests->n_requests <= most_sequences) {
        RETURN_IF_FAILED(measure_lines(o, e, request, requests, &total));
    }
    if (total.n_sequences == 0) { return EXIT_OK; }
    if (total.n_sequences < most_sequences) { params->max_sequences = (int32_t)total.n_sequences; }
    const int64_t at_once = total.n_sequences < most_sequences ? total.n_sequences : most_sequences;
    const int64_t step_tokens = total.prompt_tokens > at_once ? total.prompt_tokens : at_once;
    if (step_tokens < most_tokens) { params->max_step_tokens = (int32_t)step_tokens; }
    /* A context that was asked for has room, or is refused. */
    if (!total.is_open_ended && params->context_tokens == 0) { params->sequence_tokens = total.longest; }
    return EXIT_OK;
}

static int write_profile(const generate_options *o, profile *p) {
    if (o->profile == NULL) { return EXIT_OK; }
    RETURN_IF_FAILED(profile_take(p, 0));
    const qrun_phases *phases = &p->timeline.phases;
    const event_scalar scalars[] = {
        {"memory/live_bytes", p->memory.peak_event >= 0 ? (double)p->memory.total[p->memory.peak_event] : 0},
        {"memory/planned_bytes", (double)p->memory.planned_bytes},
        {"phases/prefill", phases->prefill},
        {"phases/decode", phases->decode},
        {"phases/sample", phases->sample},
        {"phases/copies", phases->copies},
        {"phases/waiting", phases->waiting},
    };
    RETURN_IF_FAILED(profile_scalars(p, 0, scalars, sizeof scalars / sizeof scalars[0]));
    return profile_write_page(p, o->profile);
}

static int answer_all(const generate_options *o, const command_line *line, engine *e, const request_texts *texts,
                      request_file *requests, answer_file *output) {
    job j = {.output = output, .requests = o->prompts != NULL ? requests : NULL};
    profile profiled = {0};
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_session_params session = engine_session_params(&o->engine);
    RETURN_IF_FAILED(engine_open_ranks(e, &o->engine));
    RETURN_IF_FAILED(engine_open_model(e, &o->engine));
    RETURN_IF_FAILED(make_request(o, line, e, texts, &request));
    RETURN_IF_FAILED(fit_session(o, e, &request, requests, &session));
    int code = profile_begin(&profiled, o->profile, e);
    if (code == EXIT_OK) { code = engine_open_session(e, &session); }
    if (code != EXIT_OK) {
        profile_end(&profiled);
        return code;
    }
    code = writes_json(o) ? run_job(o, e, &request, &j) : run_text(o, e, &request);
    if (code == EXIT_OK) { code = write_profile(o, &profiled); }
    profile_end(&profiled);
    if (!interrupted()) { engine_keep_prefixes(e); }
    engine_close(e); /* its session knows the job's requests */
    job_free(&j);
    return code;
}

static int answer(const generate_options *o, const command_line *line, engine *e) {
    request_texts texts = {0};
    request_file requests = {.n_requests = -1};
    answer_file output = {0};
    bool already_whole = false;
    int code = engine_meet(e, &o->engine);
    if (code == EXIT_OK && e->rank > 0) { return engine_follow(e, &o->engine); }
    if (code == EXIT_OK) { code = read_texts(o, &texts); }
    if (code == EXIT_OK && o->prompts != NULL) { code = request_file_open(&requests, o->prompts); }
    if (code == EXIT_OK && writes_json(o)) { code = open_output(o, line, &texts, &requests, &output, &already_whole); }
    if (code == EXIT_OK && !already_whole) { code = answer_all(o, line, e, &texts, &requests, &output); }
    answer_file_abandon(&output); /* does nothing to one that was finished */
    request_file_close(&requests);
    text_free(&texts.prompt);
    text_free(&texts.schema);
    conversation_free(&texts.conversation);
    return code;
}

/* ---- Replicas ---------------------------------------------------------------------------------------------------- */

static int check_replicas(const generate_options *o) {
    if (o->prompts == NULL) {
        return complain(EXIT_USAGE, "--data-parallel needs --prompts: one prompt takes one copy");
    }
    if (o->engine.model.tensor_parallel > 1) {
        return complain(EXIT_USAGE, "--data-parallel and --tensor-parallel exclude each other");
    }
    if (o->profile != NULL || o->stats || o->summary) {
        return complain(EXIT_USAGE, "--profile, --stats and --summary are of one process; leave --data-parallel out");
    }
    return EXIT_OK;
}

/* The same options for requests from stdin, with its share of the CPUs. */
static int be_replica(const generate_options *o, const command_line *line, engine *e) {
    generate_options own = *o;
    own.prompts = own.output = "-";
    own.resume = own.retry_errors = own.force = false;
    own.quiet = own.is_replica = true;
    if (own.engine.context.n_threads == 0) { own.engine.context.n_threads = local_threads(o->data_parallel); }
    progress_silence();
    interrupt_hold(); /* it ends with the process that has started it */
    return answer(&own, line, e);
}

static int run_replicas(const generate_options *o, const command_line *line, engine *e) {
    replicas r = {0};
    request_texts texts = {0};
    request_file requests = {.n_requests = -1};
    answer_file output = {0};
    bool already_whole = false;
    int number;
    job j = {.output = &output, .requests = &requests};
    const int64_t batches = 4 * (int64_t)o->engine.session.max_sequences;
    r.most_open = batches > REPLICA_REQUESTS_MIN ? batches : REPLICA_REQUESTS_MIN;
    RETURN_IF_FAILED(check_replicas(o));
    int code = replicas_start(&r, o->data_parallel, &number);
    if (code == EXIT_OK && number >= 0) { return be_replica(o, line, e); }
    if (code == EXIT_OK) { code = template_read(&o->template, &texts.conversation); }
    if (code == EXIT_OK) { code = request_file_open(&requests, o->prompts); }
    if (code == EXIT_OK) { code = open_output(o, line, &texts, &requests, &output, &already_whole); }
    if (code == EXIT_OK && !already_whole) {
        if (output.aside) { interrupt_last_words("; to resume, repeat the command with --resume"); }
        code = end_job(o, NULL, &j, replicas_run(&r, &j));
    }
    replicas_end(&r);
    job_free(&j);
    answer_file_abandon(&output);
    request_file_close(&requests);
    conversation_free(&texts.conversation);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    const generate_options *o = options;
    if (o->quiet) { progress_silence(); }
    RETURN_IF_FAILED(check_combination(o));
    return o->data_parallel > 1 ? run_replicas(o, line, e) : answer(o, line, e);
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
        "Ctrl-C (or SIGTERM, or SIGHUP) keeps what is answered and ends the program within two seconds; a second "
        "Ctrl-C "
        "ends it at once.",
    .examples = "  qrun generate --model path/to/model --prompt \"Once upon a time\"\n"
                "  qrun generate --model path/to/model --chat --prompt \"Name three rivers.\" --temperature 0.7\n"
                "  # many at once: two lines of a requests.jsonl, and the answers to them\n"
                "  {\"id\": \"a\", \"prompt\": \"The sea is\", \"max_tokens\": 20, \"seed\": 1}\n"
                "  {\"id\": \"b\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}\n"
                "  qrun generate --model path/to/model --prompts requests.jsonl --output answers.jsonl\n"
                "\n"
                "  echo \"Once upon a time\" | qrun generate --model path/to/model --max-tokens 50\n"
                "  qrun generate --model path/to/model --adapter french=path/to/adapter \\\n"
                "                --prompts requests.jsonl --output answers.jsonl --force",
    .first_options = "model adapter prompt prompts chat system temperature max-tokens seed output memory quiet",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
