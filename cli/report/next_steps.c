#include "cli/report/next_steps.h"

#include <stdio.h>
#include <string.h>

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

static text_buffer gguf_name(const char *path) {
    text_buffer name = {0};
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') { end--; }
    text_append(&name, path, end);
    text_puts(&name, ".gguf");
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

static void put_vllm(text_buffer *out, const char *model, const char *adapter) {
    text_puts(out, "  vLLM       vllm serve ");
    put_shell_word(out, model);
    if (adapter != NULL) {
        text_buffer module = last_part(adapter);
        text_puts(&module, "=");
        text_puts(&module, adapter);
        text_puts(out, " --enable-lora --lora-modules ");
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

void next_steps_print(const char *model, const char *adapter) {
    text_buffer out = {0}, file = gguf_name(adapter != NULL ? adapter : model);
    text_puts(&out, "Elsewhere:\n  GGUF       ");
    put_export(&out, model, adapter, file.data);
    text_puts(&out, "\n");
    if (is_gguf(model)) {
        put_llama_and_ollama(&out, model, file.data);
    } else {
        put_llama_and_ollama(&out, file.data, NULL);
        put_vllm(&out, model, adapter);
        put_python(&out, model, adapter);
    }
    fputs(out.data, stdout);
    text_free(&out);
    text_free(&file);
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
