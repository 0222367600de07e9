#include "cli/report/next_steps.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal/api_names.h"
#include "cli/terminal/messages.h"

void put_shell_word(text_buffer *out, const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=@%+,-";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        text_puts(out, word);
        return;
    }
    text_puts(out, "'");
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            text_puts(out, "'\\''");
        } else {
            text_append(out, word, 1);
        }
    }
    text_puts(out, "'");
}

/* The last part of a path, without slashes after it. */
static text_buffer last_part(const char *path) {
    text_buffer name = {0};
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') { end--; }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') { begin--; }
    text_append(&name, path + begin, end - begin);
    return name;
}

/* The path as a line of a Modelfile has it: relative ones need "./". */
static void put_modelfile_path(text_buffer *out, const char *path) {
    if (path[0] != '/' && strncmp(path, "./", 2) != 0 && strncmp(path, "../", 3) != 0) { text_puts(out, "./"); }
    text_puts(out, path);
}

/* The path, without slashes after it, and the ending. */
static text_buffer name_beside(const char *path, const char *ending) {
    text_buffer name = {0};
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') { end--; }
    text_append(&name, path, end);
    text_puts(&name, ending);
    return name;
}

static bool is_gguf(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot != NULL && strcmp(dot, ".gguf") == 0;
}

/* An adapter for a GGUF file stays one: there is no folder to merge it into. */
static void put_export(text_buffer *out, const char *model, const char *adapter, const char *file) {
    text_puts(out, "qrun export --model ");
    put_shell_word(out, model);
    if (adapter != NULL) {
        text_puts(out, " --adapter ");
        put_shell_word(out, adapter);
    }
    if (is_gguf(model)) { text_puts(out, " --format gguf-lora"); }
    text_puts(out, " --out ");
    put_shell_word(out, file);
}

static void put_modelfile_line(text_buffer *out, const char *keyword, const char *file) {
    text_buffer line = {0};
    text_puts(&line, keyword);
    put_modelfile_path(&line, file);
    text_puts(out, " ");
    put_shell_word(out, line.data);
    text_free(&line);
}

/* lora: an adapter for the file, or NULL. */
static void put_llama_and_ollama(text_buffer *out, const char *file, const char *lora) {
    text_buffer name = last_part(lora != NULL ? lora : file);
    char *ending = strrchr(name.data, '.');
    if (ending != NULL) { *ending = '\0'; }
    text_puts(out, "  llama.cpp  llama-cli -m ");
    put_shell_word(out, file);
    if (lora != NULL) {
        text_puts(out, " --lora ");
        put_shell_word(out, lora);
    }
    text_puts(out, "\n  ollama     printf '%s\\n'");
    put_modelfile_line(out, "FROM ", file);
    if (lora != NULL) { put_modelfile_line(out, "ADAPTER ", lora); }
    text_puts(out, " > Modelfile && ollama create ");
    put_shell_word(out, name.data);
    text_puts(out, " -f Modelfile\n");
    text_free(&name);
}

/* A model as vLLM's argument: of an id in the hub's cache the revision is an option of its own. */
static void put_vllm_model(text_buffer *out, const char *model) {
    const char *at = strchr(model, '@');
    if (at == NULL || access(model, F_OK) == 0) {
        put_shell_word(out, model);
        return;
    }
    text_buffer id = {0};
    text_append(&id, model, (size_t)(at - model));
    put_shell_word(out, id.data);
    text_puts(out, " --revision ");
    put_shell_word(out, at + 1);
    text_free(&id);
}

/* What --max-lora-rank has to be: vLLM knows powers of two, and 16 is its default. */
static int vllm_rank(int rank) {
    int most = 16;
    while (most < rank) { most *= 2; }
    return most;
}

static void put_vllm_merged(text_buffer *out, const next_steps *r) {
    text_buffer merged = name_beside(r->adapter, "-merged");
    text_puts(out, "qrun merge --model ");
    put_shell_word(out, r->model);
    text_puts(out, " --adapter ");
    put_shell_word(out, r->adapter);
    text_puts(out, " --out ");
    put_shell_word(out, merged.data);
    text_puts(out, " && vllm serve ");
    put_shell_word(out, merged.data);
    text_free(&merged);
}

static void put_vllm(text_buffer *out, const next_steps *r) {
    text_puts(out, "  vLLM       ");
    if (r->adapter != NULL && r->must_merge) {
        put_vllm_merged(out, r);
        text_puts(out, "\n");
        return;
    }
    text_puts(out, "vllm serve ");
    put_vllm_model(out, r->model);
    if (r->adapter != NULL) {
        text_buffer module = last_part(r->adapter);
        text_puts(&module, "=");
        text_puts(&module, r->adapter);
        text_puts(out, " --enable-lora");
        if (vllm_rank(r->rank) != vllm_rank(0)) { text_format(out, " --max-lora-rank %d", vllm_rank(r->rank)); }
        text_puts(out, " --lora-modules ");
        put_shell_word(out, module.data);
        text_free(&module);
    }
    text_puts(out, "\n");
}

static void put_python(text_buffer *out, const char *model, const char *adapter) {
    text_puts(out, adapter != NULL ? "  PEFT       peft.AutoPeftModelForCausalLM.from_pretrained("
                                   : "  Python     transformers.AutoModelForCausalLM.from_pretrained(");
    const char *folder = adapter != NULL ? adapter : model;
    text_json_string(out, folder, strlen(folder));
    text_puts(out, ")\n");
}

/* Whether `qrun export` with these lines' arguments would write the file; else *error says why not. */
static bool can_export(qrun_context *context, const next_steps *r, const char *file, qrun_error *error) {
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    params.path = r->model;
    params.adapter = r->adapter;
    params.out = file;
    params.format = is_gguf(r->model) ? QRUN_EXPORT_GGUF_LORA : QRUN_EXPORT_GGUF;
    params.check_only = true;
    return qrun_export(context, &params, NULL, error) == QRUN_OK;
}

static void put_gguf(text_buffer *out, qrun_context *context, const next_steps *r) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer file = name_beside(r->adapter != NULL ? r->adapter : r->model, ".gguf");
    text_puts(out, "  GGUF       ");
    if (can_export(context, r, file.data, &error)) {
        put_export(out, r->model, r->adapter, file.data);
        text_puts(out, "\n");
        put_llama_and_ollama(out, is_gguf(r->model) ? r->model : file.data, is_gguf(r->model) ? file.data : NULL);
    } else {
        char reason[API_NAMES_TEXT_BYTES];
        text_format(out, "not possible: %s\n", api_names_to_options(error.message, reason));
    }
    text_free(&file);
}

void next_steps_print(qrun_context *context, const next_steps *r) {
    text_buffer out = {0};
    text_puts(&out, "Elsewhere:\n");
    put_gguf(&out, context, r);
    if (!is_gguf(r->model)) {
        put_vllm(&out, r);
        put_python(&out, r->model, r->adapter);
    }
    fputs(out.data, stdout);
    text_free(&out);
}

void next_steps_print_gguf(const char *file, bool lora) {
    text_buffer out = {0};
    if (lora) {
        put_llama_and_ollama(&out, "MODEL.gguf", file);
    } else {
        text_puts(&out, "  qrun       qrun generate --model ");
        put_shell_word(&out, file);
        text_puts(&out, " --prompt \"…\"\n");
        put_llama_and_ollama(&out, file, NULL);
    }
    fputs(out.data, stdout);
    text_free(&out);
}

bool complain_file_ending(const char *command, const char *out, const char *model, const char *adapter) {
    static const char *const endings[] = {".gguf", ".safetensors", ".bin", ".pt", ".pth", ".zip"};
    const char *dot = out != NULL ? strrchr(out, '.') : NULL;
    size_t i = 0;
    while (dot != NULL && i < sizeof endings / sizeof endings[0] && strcmp(dot, endings[i]) != 0) { i++; }
    if (dot == NULL || i == sizeof endings / sizeof endings[0]) { return false; }
    if (i > 0) {
        (void)complain(EXIT_USAGE, "--out '%s': '%s' writes a folder, not a %s file; give a name without an ending",
                       out, command, dot);
        return true;
    }
    text_buffer line = {0};
    put_export(&line, model != NULL ? model : "DIR", adapter, out);
    (void)complain(EXIT_USAGE, "--out '%s': '%s' writes a folder; a GGUF file comes from: %s", out, command, line.data);
    text_free(&line);
    return true;
}
