#include "serve/models.h"

#include <stdio.h>
#include <string.h>

void models_open(models *m, qrun_model *model, const char *base_name, const char *folder) {
    *m = (models){.model = model, .base_name = base_name, .folder = folder};
    pthread_mutex_init(&m->lock, NULL);
}

void models_close(models *m) {
    for (int i = 0; i < m->n_adapters; i++) { (void)qrun_adapter_close(m->adapters[i].adapter, NULL); }
    m->n_adapters = 0;
    pthread_mutex_destroy(&m->lock);
}

bool models_add(models *m, const char *name, qrun_adapter *adapter) {
    pthread_mutex_lock(&m->lock);
    const bool fits = m->n_adapters < MODELS_MAX_ADAPTERS && strlen(name) <= MODELS_NAME_BYTES;
    if (fits) {
        served_adapter *added = &m->adapters[m->n_adapters++];
        *added = (served_adapter){.adapter = adapter};
        (void)snprintf(added->name, sizeof added->name, "%s", name);
    }
    pthread_mutex_unlock(&m->lock);
    return fits;
}

/* Under the lock. */
static int index_of(const models *m, const char *name) {
    for (int i = 0; i < m->n_adapters; i++) {
        if (strcmp(m->adapters[i].name, name) == 0) { return i; }
    }
    return -1;
}

bool models_find(models *m, const char *name, char adapter[MODELS_NAME_BYTES + 1], openai_error *error) {
    adapter[0] = '\0';
    if (name[0] == '\0' || strcmp(name, m->base_name) == 0) { return true; }
    pthread_mutex_lock(&m->lock);
    const int i = index_of(m, name);
    if (i >= 0) { memcpy(adapter, m->adapters[i].name, sizeof m->adapters[i].name); }
    pthread_mutex_unlock(&m->lock);
    return i >= 0 || openai_refuse(error, 404, "model",
                                   "there is no model \"%.100s\" here; /v1/models lists those there are", name);
}

int models_list(models *m, served_adapter list[MODELS_MAX_ADAPTERS]) {
    pthread_mutex_lock(&m->lock);
    const int n = m->n_adapters;
    memcpy(list, m->adapters, (size_t)n * sizeof *list);
    pthread_mutex_unlock(&m->lock);
    return n;
}

/* Names are in addresses, logs and headers. */
static bool is_name(const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return name[0] != '\0' && strlen(name) <= MODELS_NAME_BYTES && strspn(name, allowed) == strlen(name);
}

/* Below the folder by its text alone. */
static bool is_inside(const char *path) {
    for (const char *part = path; *part != '\0';) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 2 && memcmp(part, "..", 2) == 0)) { return false; }
        part += n + (part[n] == '/');
    }
    return path[0] != '\0';
}

bool models_load(models *m, const char *name, const char *path, openai_error *error) {
    char whole[4096];
    qrun_adapter *adapter;
    qrun_error why = QRUN_ERROR_INIT;
    if (m->folder == NULL) {
        return openai_refuse(error, 403, NULL, "this server was not told of a folder to load adapters from");
    }
    if (!is_name(name)) {
        return openai_refuse(error, 400, "name", "\"name\" must be of letters, digits, '.', '_' and '-', at most %d",
                             MODELS_NAME_BYTES);
    }
    if (!is_inside(path) || snprintf(whole, sizeof whole, "%s/%s", m->folder, path) >= (int)sizeof whole) {
        return openai_refuse(error, 400, "path", "\"path\" must be relative, and stay below the server's folder");
    }
    pthread_mutex_lock(&m->lock);
    const bool is_taken = strcmp(name, m->base_name) == 0 || index_of(m, name) >= 0;
    const bool is_full = m->n_adapters == MODELS_MAX_ADAPTERS;
    pthread_mutex_unlock(&m->lock);
    if (is_taken) { return openai_refuse(error, 409, "name", "there is a model \"%s\" already", name); }
    if (is_full) { return openai_refuse(error, 409, NULL, "too many adapters are open"); }
    const qrun_status status = qrun_adapter_open(m->model, whole, name, &adapter, &why);
    if (status != QRUN_OK) {
        return openai_refuse(error, status == QRUN_ERROR_NOT_FOUND ? 404 : 400, "path", "%s", why.message);
    }
    return models_add(m, name, adapter);
}

bool models_drop(models *m, const char *name, openai_error *error) {
    qrun_error why = QRUN_ERROR_INIT;
    pthread_mutex_lock(&m->lock);
    const int i = index_of(m, name);
    qrun_adapter *adapter = i >= 0 ? m->adapters[i].adapter : NULL;
    pthread_mutex_unlock(&m->lock);
    if (i < 0) { return openai_refuse(error, 404, "name", "there is no adapter \"%.100s\" here", name); }
    if (adapter == NULL) {
        return openai_refuse(error, 409, "name", "\"%s\" was named when the server was started, and stays", name);
    }
    if (qrun_adapter_close(adapter, &why) != QRUN_OK) { return openai_refuse(error, 409, "name", "%s", why.message); }
    pthread_mutex_lock(&m->lock);
    m->adapters[i] = m->adapters[--m->n_adapters];
    pthread_mutex_unlock(&m->lock);
    return true;
}
