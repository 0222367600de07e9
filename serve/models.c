#include "serve/models.h"

#include <stdio.h>
#include <string.h>

bool models_add(models *m, const char *name) {
    if (m->n_adapters == MODELS_MAX_ADAPTERS || strlen(name) > MODELS_NAME_BYTES) { return false; }
    served_adapter *added = &m->adapters[m->n_adapters++];
    *added = (served_adapter){.adapter = NULL};
    (void)snprintf(added->name, sizeof added->name, "%s", name);
    return true;
}

void models_close(models *m) {
    for (int i = 0; i < m->n_adapters; i++) { (void)qrun_adapter_close(m->adapters[i].adapter, NULL); }
    m->n_adapters = 0;
}

static int index_of(const models *m, const char *name) {
    for (int i = 0; i < m->n_adapters; i++) {
        if (strcmp(m->adapters[i].name, name) == 0) { return i; }
    }
    return -1;
}

bool models_find(const models *m, const char *name, const char **adapter, openai_error *error) {
    *adapter = NULL;
    if (name[0] == '\0' || strcmp(name, m->base_name) == 0) { return true; }
    const int i = index_of(m, name);
    if (i >= 0) { *adapter = m->adapters[i].name; }
    return i >= 0 || openai_refuse(error, 404, "model",
                                   "there is no model \"%.100s\" here; /v1/models lists those there are", name);
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
    if (strcmp(name, m->base_name) == 0 || index_of(m, name) >= 0) {
        return openai_refuse(error, 409, "name", "there is a model \"%s\" already", name);
    }
    if (m->n_adapters == MODELS_MAX_ADAPTERS) { return openai_refuse(error, 409, NULL, "too many adapters are open"); }
    const qrun_status status = qrun_adapter_open(m->model, whole, name, &adapter, &why);
    if (status != QRUN_OK) {
        return openai_refuse(error, status == QRUN_ERROR_NOT_FOUND ? 404 : 400, "path", "%s", why.message);
    }
    (void)models_add(m, name);
    m->adapters[m->n_adapters - 1].adapter = adapter;
    return true;
}

bool models_drop(models *m, const char *name, openai_error *error) {
    const int i = index_of(m, name);
    qrun_error why = QRUN_ERROR_INIT;
    if (i < 0) { return openai_refuse(error, 404, "name", "there is no adapter \"%.100s\" here", name); }
    if (m->adapters[i].adapter == NULL) {
        return openai_refuse(error, 409, "name", "\"%s\" was named when the server was started, and stays", name);
    }
    if (qrun_adapter_close(m->adapters[i].adapter, &why) != QRUN_OK) {
        return openai_refuse(error, 409, "name", "%s", why.message);
    }
    m->adapters[i] = m->adapters[--m->n_adapters];
    return true;
}
