#include "cli/commands/samples.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/train_samples.h"
#include "cli/requests/job.h"
#include "cli/terminal/files.h"

enum { MAX_PROMPTS = 64, SEQUENCES = 8, STEP_TOKENS = 256, ANSWER_TOKENS = 128 };

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

static int read_back(FILE *stream, text_buffer *answers) {
    char chunk[4096];
    size_t n;
    rewind(stream);
    text_puts(answers, "");
    while ((n = fread(chunk, 1, sizeof chunk, stream)) > 0) { text_append(answers, chunk, n); }
    return ferror(stream) == 0 ? EXIT_OK : complain(EXIT_FILE, "cannot read the samples back: %s", strerror(errno));
}

/* is_first: before training, when it is time to say what has no answer. */
static int answer_all(const finetune_options *o, const engine *e, const qrun_adapter *adapter, bool is_first,
                      request_file *requests, text_buffer *answers) {
    answer_file output = {.path = o->sample_prompts, .stream = tmpfile()};
    if (output.stream == NULL) { return complain(EXIT_FILE, "cannot create a scratch file: %s", strerror(errno)); }
    job j = {.engine = e,
             .requests = requests,
             .output = &output,
             .defaults = QRUN_REQUEST_PARAMS_INIT,
             .chat = e->info.has_chat_template,
             .with_prompt = true,
             .max_in_flight = MAX_PROMPTS};
    j.defaults.max_tokens = ANSWER_TOKENS;
    j.defaults.adapter = adapter;
    int code = job_run(&j);
    if (code == EXIT_OK) { code = read_back(output.stream, answers); }
    if (code == EXIT_OK && j.n_failed > 0 && is_first) {
        notify("note: %lld of %lld requests of --sample-prompts have no answer; the first: %s", (long long)j.n_failed,
               (long long)j.n_answered, j.first_failure);
    }
    job_free(&j);
    answer_file_abandon(&output);
    return code;
}

int samples_take(const finetune_options *o, engine *e, const char *adapter_folder, text_buffer *answers) {
    qrun_error error = QRUN_ERROR_INIT;
    request_file requests;
    qrun_adapter *adapter = NULL;
    qrun_session_params params = engine_session_params(&o->engine);
    params.max_sequences = SEQUENCES;
    params.max_step_tokens = STEP_TOKENS;
    RETURN_IF_FAILED(request_file_open(&requests, o->sample_prompts));
    int code = EXIT_OK;
    if (requests.n_requests < 1 || requests.n_requests > MAX_PROMPTS) {
        code = complain(EXIT_USAGE, "--sample-prompts takes a file of 1 to %d requests, one on each line", MAX_PROMPTS);
    }
    if (code == EXIT_OK && adapter_folder != NULL) {
        code = complain_unless_ok(qrun_adapter_open(e->model, adapter_folder, "sampled", &adapter, &error), &error);
    }
    if (code == EXIT_OK) { code = engine_open_session(e, &params); }
    const bool is_first = adapter_folder == o->train.lora.adapter && !e->is_copy;
    if (code == EXIT_OK) { code = answer_all(o, e, adapter, is_first, &requests, answers); }
    qrun_session_destroy(e->session);
    e->session = NULL;
    (void)qrun_adapter_close(adapter, NULL);
    request_file_close(&requests);
    return code;
}

/* What matrices that are trained are held in. */
static qrun_quant held_in(qrun_dtype dtype) {
    if (dtype == QRUN_DTYPE_F32) { return QRUN_QUANT_F32; }
    return dtype == QRUN_DTYPE_F16 ? QRUN_QUANT_F16 : QRUN_QUANT_BF16;
}

int samples_take_whole(const finetune_options *o, const char *model, const char *adapter, text_buffer *answers) {
    engine whole = {.is_copy = true};
    engine_options wanted = o->engine;
    wanted.model = finetune_model_params(o);
    if (wanted.model.trainable) { wanted.model.quant = held_in(wanted.model.dtype); }
    wanted.model.trainable = wanted.model.shard_parameters = false;
    wanted.model.offload_parameters = QRUN_OFFLOAD_AUTO;
    if (model != NULL) {
        wanted.shape = NULL;
        wanted.model.path = model;
        wanted.model.random_weights = false;
    }
    int code = engine_open_context(&whole, &wanted.context);
    if (code == EXIT_OK) { code = engine_open_model(&whole, &wanted); }
    if (code == EXIT_OK) { code = samples_take(o, &whole, adapter, answers); }
    engine_close(&whole);
    return code;
}

/* ---- Publishing -------------------------------------------------------------------------------------------------- */

static int write_file(const char *folder, const char *name, const text_buffer *content) {
    text_buffer path = {0};
    text_format(&path, "%s/%s", folder, name);
    const int code = replace_own_file(path.data, content);
    text_free(&path);
    return code;
}

/* Puts the section where the page has its mark. */
static int extend_report(const char *folder, const text_buffer *before, const text_buffer *after) {
    text_buffer path = {0}, page = {0}, extended = {0};
    text_format(&path, "%s/report.html", folder);
    int code = file_read_own(&page, path.data);
    const char *mark = code == EXIT_OK && page.size > 0 ? strstr(page.data, TRAIN_SAMPLES_MARK) : NULL;
    if (mark != NULL) {
        text_append(&extended, page.data, (size_t)(mark - page.data));
        train_samples_html(before->data, after->data, &extended);
        text_puts(&extended, mark);
        code = replace_own_file(path.data, &extended);
    }
    text_free(&path);
    text_free(&page);
    text_free(&extended);
    return code;
}

int samples_publish(const finetune_options *o, const text_buffer *before, const text_buffer *after) {
    const char *folder = o->train.saving.out;
    RETURN_IF_FAILED(write_file(folder, "samples-before.jsonl", before));
    RETURN_IF_FAILED(write_file(folder, "samples-after.jsonl", after));
    return extend_report(folder, before, after);
}
