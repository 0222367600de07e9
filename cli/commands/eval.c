/* qrun eval: perplexity of a text. */
#include <limits.h>
#include <stdio.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct eval_options {
    engine_options engine;
    const char *file;
    qrun_eval_params eval;
    bool json;
} eval_options;

#define AT(field) INTO(eval_options, field)

/* clang-format off */
static const option eval_table[] = {
    {.name = "text", .kind = OPTION_TEXT, .value_name = "FILE", AT(file), .completion = COMPLETE_FILE,
     .help = "The text, UTF-8 (\"-\": stdin)."},
    {.name = "window", .kind = OPTION_INT, .value_name = "N", AT(eval.window_tokens), .low = 2, .high = INT_MAX,
     .help = "The text is cut into windows of N tokens, each read from its start. Default: 2048, or the model's "
             "context where that is smaller."},
    {.name = "max-tokens", .kind = OPTION_INT, .value_name = "N", AT(eval.max_tokens), .low = 1, .high = 1e15,
     .help = "Stop after N scored tokens. Default: the whole text."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print one JSON object."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(eval_options, engine)),
    OPTION_GROUP("Adapters", one_adapter_option_table, offsetof(eval_options, engine)),
    OPTION_GROUP("Text", eval_table, 0),
    OPTION_GROUP("Machine", machine_option_table, offsetof(eval_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(eval_options, engine)),
};

static bool show_tokens(void *user, int64_t done, int64_t total) {
    const double *begin = user;
    if (progress_due()) {
        const double seconds = clock_seconds() - *begin;
        progress_draw((double)done, (double)total, "%lld of %lld tokens  %.0f tokens/s", (long long)done,
                      (long long)total, seconds > 0 ? (double)done / seconds : 0);
    }
    return !interrupted();
}

static void print_result(const eval_options *o, const engine *e, const qrun_eval_result *r) {
    const double rate = r->seconds > 0 ? (double)r->n_tokens / r->seconds : 0;
    if (o->json) {
        printf("{\"perplexity\":%.10g,\"mean_nll\":%.12g,\"tokens\":%lld,\"seconds\":%.6f,\"tokens_per_second\":%.3f,"
               "\"quant\":\"%s\",\"head\":\"%s\",\"dtype\":\"%s\"}\n",
               r->perplexity, r->mean_nll, (long long)r->n_tokens, r->seconds, rate, e->info.quant, e->info.head_format,
               e->info.dtype);
        return;
    }
    printf("perplexity  %.6g\nmean NLL    %.6g per token\ntokens      %lld scored in %.2f s: %.0f tokens/s\n"
           "weights     %s, head %s, computed in %s\n",
           r->perplexity, r->mean_nll, (long long)r->n_tokens, r->seconds, rate, e->info.quant, e->info.head_format,
           e->info.dtype);
}

static int run(const void *options, const command_line *line, engine *e) {
    const eval_options *o = options;
    text_buffer input = {0};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    (void)line;
    if (o->file == NULL) { return complain(EXIT_USAGE, "no text: give --text FILE"); }
    int code = engine_require_one_adapter(&o->engine);
    if (code == EXIT_OK) { code = file_read_text(&input, o->file); }
    if (code == EXIT_OK) { code = engine_open(e, &o->engine); }
    if (code == EXIT_OK) {
        double begin = clock_seconds();
        qrun_eval_params params = o->eval;
        params.adapter = engine_default_adapter(e);
        params.progress = show_tokens;
        params.progress_user = &begin;
        code =
            complain_unless_ok(qrun_session_eval(e->session, input.data, input.size, &params, &result, &error), &error);
        progress_clear();
    }
    if (code == EXIT_OK) { print_result(o, e, &result); }
    text_free(&input);
    return code;
}

static const eval_options defaults = {
    .engine = ENGINE_OPTIONS_INIT, .engine.session.speculate = "off", .eval = QRUN_EVAL_PARAMS_INIT};

const command command_eval = {
    .name = "eval",
    .summary = "measure the perplexity of a text",
    .usage = "--model DIR --text FILE [OPTIONS]",
    .description = "How well the model predicts a text, token by token: exp of the mean negative log-likelihood. Every "
                   "token of a window but its first is scored. Lower is better; only numbers of the same text, "
                   "tokenizer and window compare.",
    .examples = "  qrun eval --model path/to/model --text wiki.test.raw\n"
                "  qrun eval --model path/to/model --text wiki.test.raw --quant int8 --max-tokens 20000 --json",
    .first_options = "model adapter text window max-tokens quant memory json",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
