#include "cli/terminal/api_names.h"

#include <stdbool.h>
#include <string.h>

#include "cli/terminal/messages.h"

/* Fields whose option is not their own name with dashes. */
static const struct {
    const char *field, *option;
} others[] = {
    {"budget_bytes", "budget"},
    {"cache_dir_bytes", "cache-dir-size"},
    {"context_tokens", "context"},
    {"data_weights", "data-weight"},
    {"init_random", "init random"},
    {"max_shard_bytes", "max-shard-size"},
    {"memory_bytes", "memory"},
    {"n_ranks", "ranks"},
    {"n_threads", "threads"},
    {"offload_activations", "offload activations"},
    {"offload_experts", "experts host"},
    {"offload_gradients", "offload gradients"},
    {"offload_gradients,offload_activations", "offload gradients,activations"},
    {"offload_optimizer", "offload optimizer"},
    {"offload_parameters", "offload parameters"},
    {"offload_optimizer,offload_activations", "offload optimizer,activations"},
    {"path", "model"},
    {"prefix_cache_bytes", "prefix-cache"},
    {"quant_embedding_int8", "quant-embedding int8"},
    {"quant_head_int8", "quant-head int8"},
    {"template_json", "template-arg"},
    {"tools_json", "tools"},
    {"train_data", "data"},
    {"trainable", "full"},
    {"window_tokens", "window"},
};

typedef struct writer {
    char *out;
    size_t size, capacity; /* capacity without the NUL */
} writer;

static void put(writer *w, char c) {
    if (w->size < w->capacity) { w->out[w->size++] = c; }
}

/* field[0, n_bytes): "name" or "name=value". */
static void put_option(writer *w, const char *field, size_t n_bytes) {
    const size_t n_name = strcspn(field, "=`");
    const char *option = NULL;
    put(w, '-');
    put(w, '-');
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const bool same = strlen(others[i].field) == n_name && memcmp(others[i].field, field, n_name) == 0;
        if (same) { option = others[i].option; }
    }
    for (size_t i = 0; option != NULL && option[i] != '\0'; i++) { put(w, option[i]); }
    for (size_t i = 0; option == NULL && i < n_name; i++) { put(w, field[i] == '_' ? '-' : field[i]); }
    if (n_name < n_bytes) { put(w, ' '); }
    for (size_t i = n_name + 1; i < n_bytes; i++) { put(w, field[i]); }
}

char *api_names_to_options(const char *message, char out[API_NAMES_TEXT_BYTES]) {
    writer w = {out, 0, API_NAMES_TEXT_BYTES - 1};
    for (const char *at = message; *at != '\0';) {
        const char *end = *at == '`' ? strchr(at + 1, '`') : NULL;
        if (end == NULL) {
            put(&w, *at++);
            continue;
        }
        put_option(&w, at + 1, (size_t)(end - at - 1));
        at = end + 1;
    }
    out[w.size] = '\0';
    return out;
}

char *api_names_copy(const char *message) { return api_names_to_options(message, allocate(API_NAMES_TEXT_BYTES)); }
