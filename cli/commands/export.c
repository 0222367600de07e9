/* qrun export: writes a model, or an adapter, as one file for llama.cpp and what is built on it. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/next_steps.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct export_options {
    qrun_context_params context;
    qrun_export_params export;
    bool force, json, quiet;
} export_options;

#define AT(field) INTO(export_options, field)

/* clang-format off */
static const option_choice formats[] = {{"gguf", QRUN_EXPORT_GGUF}, {"gguf-lora", QRUN_EXPORT_GGUF_LORA}, {NULL, 0}};
static const option_choice types[] = {
    {"auto", QRUN_GGUF_AUTO}, {"q8_0", QRUN_GGUF_Q8_0}, {"q4_0", QRUN_GGUF_Q4_0}, {"f16", QRUN_GGUF_F16},
    {"bf16", QRUN_GGUF_BF16}, {"f32", QRUN_GGUF_F32}, {NULL, 0}};

static const option export_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(export.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model: a Hugging Face folder, or the id of one in the Hugging Face cache."},
    {.name = "adapter", .letter = 'a', .kind = OPTION_TEXT, .value_name = "DIR", AT(export.adapter),
     .completion = COMPLETE_FOLDER,
     .help = "An adapter for it: merged into the file, or with --format gguf-lora written alone."},
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "FILE", AT(export.out),
     .completion = COMPLETE_FILE,
     .help = "The file to write, NAME.gguf. It appears whole or not at all. One of that name that is there already is "
             "not replaced without --force."},
    {.name = "force", .kind = OPTION_FLAG, AT(force), .help = "Replace an --out that is there already."},
    {.name = "format", .kind = OPTION_CHOICE, AT(export.format), .choices = formats,
     .help = "The model with tokenizer and chat template in it (gguf), or the adapter alone for llama.cpp's --lora "
             "(gguf-lora). Default: gguf."},
    {.name = "type", .kind = OPTION_CHOICE, AT(export.type), .choices = types,
     .help = "Type of the matrices: 8.5 bits a weight, 4.5 bits (embedding and head in 8.5), or floats. Default: "
             "q8_0; f32 for gguf-lora."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print one JSON object."},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, AT(quiet), .help = "No progress, no result."},
    {.name = "threads", .letter = 't', .kind = OPTION_INT, .value_name = "N", AT(context.n_threads), .low = 1,
     .high = 1024,
     .help = "Threads. Default: one for each CPU this process may use."},
};
/* clang-format on */

static const option_group groups[] = {OPTION_GROUP("Options", export_table, 0)};

static void print_json(const export_options *o, const qrun_export_result *r, double seconds) {
    text_buffer out = {0};
    text_puts(&out, "{\"out\":");
    text_json_string(&out, o->export.out, strlen(o->export.out));
    text_format(&out, ",\"type\":\"%s\",\"tensors\":%lld,\"bytes\":%lld,\"context\":%lld,\"seconds\":%.6f}",
                option_choice_name(types, (int64_t)r->type), (long long)r->n_tensors, (long long)r->n_bytes,
                (long long)r->context_tokens, seconds);
    printf("%s\n", out.data);
    text_free(&out);
}

static int export_model(const export_options *o, qrun_context *context) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_export_params params = o->export;
    qrun_export_result result = QRUN_EXPORT_RESULT_INIT;
    const bool lora = params.format == QRUN_EXPORT_GGUF_LORA;
    params.progress = engine_show_bytes;
    params.progress_user = "exporting";
    const double begin = clock_seconds();
    const qrun_status status = qrun_export(context, &params, &result, &error);
    progress_clear();
    if (status != QRUN_OK) { return complain_error(&error); }
    const double seconds = clock_seconds() - begin;
    if (o->json) {
        print_json(o, &result, seconds);
    } else if (!o->quiet) {
        printf("%s: %s as %s, %lld tensors, %s, in %.1f s\n", params.out, lora ? "the adapter" : "the model",
               option_choice_name(types, (int64_t)result.type), (long long)result.n_tensors,
               size_text(result.n_bytes).text, seconds);
        next_steps_print_gguf(params.out, lora);
    }
    return EXIT_OK;
}

static bool ends_in_gguf(const char *out) {
    const char *dot = strrchr(out, '.');
    return dot != NULL && strcmp(dot, ".gguf") == 0;
}

static bool is_there(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

static int run(const void *options, const command_line *line, engine *e) {
    const export_options *o = options;
    (void)line;
    if (o->export.path == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->export.out == NULL) { return complain(EXIT_USAGE, "no file for the result: give --out NAME.gguf"); }
    if (!ends_in_gguf(o->export.out)) {
        return complain(EXIT_USAGE, "--out '%s': 'export' writes GGUF files; give a name that ends in .gguf",
                        o->export.out);
    }
    if (!o->force && is_there(o->export.out)) {
        return complain(EXIT_USAGE, "'%s' is there already: --force replaces it, or choose another --out",
                        o->export.out);
    }
    if (o->quiet) { progress_silence(); }
    RETURN_IF_FAILED(engine_open_context(e, &o->context));
    return export_model(o, e->context);
}

static const export_options defaults = {.context = QRUN_CONTEXT_PARAMS_INIT, .export = QRUN_EXPORT_PARAMS_INIT};

const command command_export = {
    .name = "export",
    .summary = "write a model or an adapter as a GGUF file, for llama.cpp and ollama",
    .usage = "--model DIR --out FILE.gguf [OPTIONS]",
    .description =
        "One file with weights, config, tokenizer and chat template. 'qrun generate' and 'chat' read such files too. "
        "What llama.cpp would compute differently is refused, with the reason; a model whose sliding window it does "
        "not have is written with the window as its context.",
    .examples = "  qrun export --model path/to/model --out model.gguf\n"
                "  qrun export --model path/to/model --adapter my-adapter --type q4_0 --out mine.gguf\n"
                "  qrun export --model path/to/model --adapter my-adapter --format gguf-lora --out my-lora.gguf",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
