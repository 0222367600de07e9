/* qrun merge: writes an adapter into its model, and says what that changed. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/next_steps.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct merge_options {
    qrun_context_params context;
    qrun_merge_params merge;
    const char *text;
    int32_t max_tokens;
    bool no_compare, json, quiet;
} merge_options;

#define AT(field) INTO(merge_options, field)

/* clang-format off */
static const option_choice ontos[] = {
    {"auto", QRUN_MERGE_AUTO}, {"original", QRUN_MERGE_ORIGINAL}, {"quantized", QRUN_MERGE_QUANTIZED}, {NULL, 0}};
static const option_choice quants[] = {
    {"auto", QRUN_QUANT_AUTO}, {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"nf4", QRUN_QUANT_NF4}, {"int8", QRUN_QUANT_INT8},
    {NULL, 0}};
static const option_choice dtypes[] = {
    {"auto", QRUN_QUANT_AUTO}, {"bf16", QRUN_QUANT_BF16}, {"f16", QRUN_QUANT_F16}, {"f32", QRUN_QUANT_F32}, {NULL, 0}};

static const option merge_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(merge.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model that the adapter was made for: a Hugging Face folder, or the id of one in the Hugging Face "
             "cache."},
    {.name = "adapter", .letter = 'a', .kind = OPTION_TEXT, .value_name = "DIR", AT(merge.adapter),
     .completion = COMPLETE_FOLDER,
     .help = "The adapter: a folder that 'qrun finetune' or PEFT wrote. LoRA (rsLoRA, ranks and alphas by module), "
             "DoRA, and modules that it brings whole."},
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", AT(merge.out),
     .completion = COMPLETE_FOLDER,
     .help = "The folder to write. It must not exist yet, and appears whole or not at all."},
    {.name = "onto", .kind = OPTION_CHOICE, AT(merge.onto), .choices = ontos,
     .help = "The weights to add it to, original or quantized. Quantized ones are as the adapter was trained on: "
             "linear layers quantised and back. Default: auto, the original ones; quantized for a folder that is "
             "stored so."},
    {.name = "quant", .kind = OPTION_CHOICE, AT(merge.quant), .choices = quants,
     .help = "With --onto quantized: the format to take linear layers through. Default: nf4-dq. With --onto original: "
             "how the model is held that the result is compared with. Default: in its own type."},
    {.name = "dtype", .kind = OPTION_CHOICE, AT(merge.dtype), .choices = dtypes,
     .help = "Type of the tensors to write. Default: bf16, or f16 where the model is f16. Experts in mxfp4 stay so "
             "unless a type is given or the adapter changes them."},
    {.name = "max-shard-size", .kind = OPTION_BYTES, .value_name = "SIZE", AT(merge.max_shard_bytes),
     .help = "Largest file to write. Default: that of the model; 5GB where all is in one file."},
};
/* clang-format on */

/* clang-format off */
static const option compare_table[] = {
    {.name = "text", .kind = OPTION_TEXT, .value_name = "FILE", AT(text), .completion = COMPLETE_FILE,
     .help = "The text to compare on, UTF-8 (\"-\": stdin). Default: a short one of the program's own."},
    {.name = "max-tokens", .kind = OPTION_INT, .value_name = "N", AT(max_tokens), .low = 1, .high = INT_MAX,
     .help = "Compare at the first N tokens of it. Default: 256."},
    {.name = "no-compare", .kind = OPTION_FLAG, AT(no_compare), .help = "Only write the folder."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print one JSON object."},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, AT(quiet), .help = "No progress, no result."},
    {.name = "threads", .letter = 't', .kind = OPTION_INT, .value_name = "N", AT(context.n_threads), .low = 1,
     .high = 1024,
     .help = "Threads. Default: one for each CPU this process may use."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Merging", merge_table, 0),
    OPTION_GROUP("Comparison with the unmerged adapter", compare_table, 0),
};

/* What a run found out. */
typedef struct merge_report {
    qrun_merge_result merged;
    qrun_difference difference;
    bool compared;
    char why_not[API_NAMES_TEXT_BYTES]; /* the comparison could not be made; "" */
    const char *held;                   /* what the unmerged model was held in */
    double seconds;
} merge_report;

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static const char *quant_name(qrun_quant quant) {
    return quant == QRUN_QUANT_AUTO ? "its stored form" : option_choice_name(quant_choices, (int64_t)quant);
}

static void print_difference(const merge_report *r) {
    const qrun_difference *d = &r->difference;
    printf("\nDifference from the unmerged adapter (model held in %s), at %lld tokens, computed in f32:\n", r->held,
           (long long)d->n_tokens);
    printf("  logits     mean |Δ| %.3g, largest %.3g; the logits themselves reach %.3g\n", d->mean_logit_difference,
           d->max_logit_difference, d->max_abs_logit);
    printf("  KL         mean %.3g, largest %.3g nats per token\n", d->mean_kl, d->max_kl);
    printf("  greedy     the same token at %lld of %lld positions\n", (long long)d->n_same_greedy,
           (long long)d->n_tokens);
}

/* What became of experts in MXFP4. */
static const char *experts_text(qrun_quant quant) {
    if (quant == QRUN_QUANT_AUTO) { return ""; }
    return quant == QRUN_QUANT_MXFP4 ? " (experts in mxfp4, as they were)" : " (experts too, which were in mxfp4)";
}

static void print_result(const merge_options *o, const merge_report *r) {
    const qrun_merge_result *m = &r->merged;
    printf("%s: %lld %s merged onto %s weights", o->merge.out, (long long)m->n_merged,
           m->n_merged == 1 ? "matrix" : "matrices", m->onto == QRUN_MERGE_QUANTIZED ? "quantized" : "original");
    if (m->n_replaced > 0) { printf(", %lld parameters replaced", (long long)m->n_replaced); }
    printf("; %s in %s%s, in %.1f s\n", size_text(m->n_bytes).text, quant_name(m->dtype), experts_text(m->expert_quant),
           r->seconds);
    if (m->head_untied) { printf("embedding and output head were one matrix and are two now\n"); }
    if (r->compared) { print_difference(r); }
}

static void print_difference_json(const merge_report *r, text_buffer *out) {
    const qrun_difference *d = &r->difference;
    text_format(out,
                "{\"held\":\"%s\",\"tokens\":%lld,\"max_abs_logit\":%s,\"mean_logit_difference\":%s,"
                "\"max_logit_difference\":%s,\"mean_kl\":%s,\"max_kl\":%s,\"greedy_agreement\":%s}",
                r->held, (long long)d->n_tokens, json_double(d->max_abs_logit).text,
                json_double(d->mean_logit_difference).text, json_double(d->max_logit_difference).text,
                json_double(d->mean_kl).text, json_double(d->max_kl).text,
                json_double((double)d->n_same_greedy / (double)d->n_tokens).text);
}

static void print_json(const merge_options *o, const merge_report *r) {
    const qrun_merge_result *m = &r->merged;
    text_buffer out = {0};
    char experts[40] = "";
    if (m->expert_quant != QRUN_QUANT_AUTO) {
        (void)snprintf(experts, sizeof experts, "\"experts\":\"%s\",", quant_name(m->expert_quant));
    }
    text_puts(&out, "{\"out\":");
    text_json_string(&out, o->merge.out, strlen(o->merge.out));
    text_format(&out,
                ",\"onto\":\"%s\",\"base\":\"%s\",\"dtype\":\"%s\",\"merged\":%lld,\"replaced\":%lld,"
                "\"head_untied\":%s,\"tensors\":%lld,\"bytes\":%lld,\"seconds\":%.6f,%s\"difference\":",
                ontos[m->onto].name, quant_name(m->base_quant), quant_name(m->dtype), (long long)m->n_merged,
                (long long)m->n_replaced, m->head_untied ? "true" : "false", (long long)m->n_tensors,
                (long long)m->n_bytes, r->seconds, experts);
    if (r->compared) {
        print_difference_json(r, &out);
    } else {
        text_puts(&out, "null");
    }
    if (r->why_not[0] != '\0') {
        text_puts(&out, ",\"why_not\":");
        text_json_string(&out, r->why_not, strlen(r->why_not));
    }
    printf("%s}\n", out.data);
    text_free(&out);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static bool show_tokens(void *user, int64_t done, int64_t total) {
    (void)user;
    if (progress_due()) { progress_draw((double)done, (double)total, "comparing with the unmerged adapter"); }
    return !interrupted();
}

static qrun_status merge(const merge_options *o, qrun_context *context, merge_report *r, qrun_error *error) {
    qrun_merge_params params = o->merge;
    params.progress = engine_show_bytes;
    params.progress_user = "merging";
    const double begin = clock_seconds();
    const qrun_status status = qrun_merge_folder(context, &params, &r->merged, error);
    progress_clear();
    r->seconds = clock_seconds() - begin;
    return status;
}

/* The merged folder against the model with the unmerged adapter, in F32, so that no rounding but that of the merge
 * shows. */
static qrun_status compare(const merge_options *o, const text_buffer *text, qrun_context *context, merge_report *r,
                           qrun_error *error) {
    qrun_model_params unmerged = QRUN_MODEL_PARAMS_INIT, merged = QRUN_MODEL_PARAMS_INIT;
    qrun_compare_params params = QRUN_COMPARE_PARAMS_INIT;
    unmerged.path = o->merge.path;
    unmerged.quant = o->merge.quant != QRUN_QUANT_AUTO ? o->merge.quant : r->merged.base_quant;
    merged.path = o->merge.out;
    merged.quant = r->merged.dtype;
    unmerged.dtype = merged.dtype = QRUN_DTYPE_F32;
    params.model = &unmerged;
    params.other = &merged;
    params.adapter = o->merge.adapter;
    params.text = o->text != NULL ? text->data : NULL;
    params.text_bytes = text->size;
    params.max_tokens = o->max_tokens;
    params.progress = show_tokens;
    r->held = quant_name(unmerged.quant);
    const qrun_status status = qrun_compare_outputs(context, &params, &r->difference, error);
    progress_clear();
    r->compared = status == QRUN_OK;
    (void)api_names_to_options(error->message, r->why_not);
    return status;
}

static int merge_and_compare(const merge_options *o, const text_buffer *text, qrun_context *context) {
    qrun_error error = QRUN_ERROR_INIT;
    merge_report r = {.merged = QRUN_MERGE_RESULT_INIT, .difference = QRUN_DIFFERENCE_INIT};
    if (merge(o, context, &r, &error) != QRUN_OK) { return complain_error(&error); }
    const qrun_status status = o->no_compare ? QRUN_OK : compare(o, text, context, &r, &error);
    if (o->json) {
        print_json(o, &r);
    } else if (!o->quiet) {
        print_result(o, &r);
        next_steps_print(context, &(next_steps){.model = o->merge.out});
    }
    /* The folder is whole; that the engine cannot run both sides here says nothing against it. What can be merged and
     * not served is refused as INPUT too. */
    if (status == QRUN_ERROR_UNSUPPORTED || status == QRUN_ERROR_MEMORY || status == QRUN_ERROR_INPUT) {
        notify("the difference from the unmerged adapter could not be measured: %s", r.why_not);
        return EXIT_OK;
    }
    return status == QRUN_OK ? EXIT_OK : complain_error(&error);
}

static int run(const void *options, const command_line *line, engine *e) {
    const merge_options *o = options;
    text_buffer text = {0};
    (void)line;
    if (o->merge.path == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->merge.adapter == NULL) { return complain(EXIT_USAGE, "no adapter: give --adapter DIR"); }
    if (o->merge.out == NULL) { return complain(EXIT_USAGE, "no folder for the result: give --out DIR"); }
    if (complain_file_ending("merge", o->merge.out, o->merge.path, o->merge.adapter)) { return EXIT_USAGE; }
    if (o->no_compare && o->text != NULL) { return complain(EXIT_USAGE, "--no-compare and --text exclude each other"); }
    if (o->quiet) { progress_silence(); }
    int code = o->text != NULL ? file_read_text(&text, o->text) : EXIT_OK;
    if (code == EXIT_OK && o->text != NULL && text.size == 0) {
        code = complain(EXIT_USAGE, "--text '%s' is empty; there is nothing to compare on", o->text);
    }
    if (code == EXIT_OK) { code = engine_open_context(e, &o->context); }
    if (code == EXIT_OK) { code = merge_and_compare(o, &text, e->context); }
    text_free(&text);
    return code;
}

static const merge_options defaults = {.context = QRUN_CONTEXT_PARAMS_INIT, .merge = QRUN_MERGE_PARAMS_INIT};

const command command_merge = {
    .name = "merge",
    .summary = "write an adapter into its model, as a model of its own",
    .usage = "--model DIR --adapter DIR --out DIR [OPTIONS]",
    .description =
        "The new folder is a plain Hugging Face model in 16 bits (or 32) that answers, alone, as the model with the "
        "adapter does; any tool loads it. Config without quantisation, tokenizer, template and generation defaults "
        "come along.\n\n"
        "An adapter that was trained on a quantised model has learned to make up for its rounding. --onto quantized "
        "keeps exactly what was trained. --onto original adds it to the better weights, which is what most people do. "
        "What that changes is printed: both models run over a text, and their logits are compared.",
    .examples = "  qrun merge --model path/to/model --adapter my-adapter --out merged\n"
                "  qrun merge --model path/to/model --adapter my-adapter --out merged --quant nf4-dq\n"
                "  qrun merge --model path/to/model-nf4 --adapter my-adapter --out merged --dtype f16 --json",
    .first_options = "model adapter out onto dtype",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
