#include "serve/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void models_open(models *m, const serve_replica *replicas, int n_replicas, const char *base_name, const char *folder) {
    *m = (models){.replicas = replicas, .n_replicas = n_replicas, .base_name = base_name, .folder = folder};
    pthread_mutex_init(&m->lock, NULL);
}

/* A request whose last event has come is its session's for a moment more. */
static void close_one(qrun_adapter *adapter) {
    enum { PATIENCE = 2000, PAUSE_NANOSECONDS = 1000000 };
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    qrun_status status = qrun_adapter_close(adapter, NULL);
    for (int i = 0; i < PATIENCE && status == QRUN_ERROR_BUSY; i++) {
        (void)nanosleep(&pause, NULL);
        status = qrun_adapter_close(adapter, NULL);
    }
}

static void close_all(const models *m, qrun_adapter **loaded) {
    for (int i = 0; i < m->n_replicas; i++) { close_one(loaded[i]); }
    free(loaded);
}

/* What a request still uses goes with its model. */
void models_close(models *m) {
    for (int i = 0; i < m->n_adapters; i++) {
        qrun_adapter **loaded = m->adapters[i].loaded;
        for (int k = 0; loaded != NULL && k < m->n_replicas; k++) { (void)qrun_adapter_close(loaded[k], NULL); }
        free(loaded);
    }
    m->n_adapters = 0;
    pthread_mutex_destroy(&m->lock);
}

bool models_add(models *m, const char *name, qrun_adapter **loaded) {
    pthread_mutex_lock(&m->lock);
    const bool fits = m->n_adapters < MODELS_MAX_ADAPTERS && strlen(name) <= MODELS_NAME_BYTES;
    if (fits) {
        served_adapter *added = &m->adapters[m->n_adapters++];
        *added = (served_adapter){.loaded = loaded};
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
    if (i >= 0) {
        memcpy(adapter, m->adapters[i].name, sizeof m->adapters[i].name);
        m->adapters[i].n_users++;
    }
    pthread_mutex_unlock(&m->lock);
    return i >= 0 || openai_refuse(error, 404, "model",
                                   "there is no model \"%.100s\" here; /v1/models lists those there are", name);
}

void models_release(models *m, const char *adapter) {
    pthread_mutex_lock(&m->lock);
    const int i = index_of(m, adapter);
    if (i >= 0) { m->adapters[i].n_users--; }
    pthread_mutex_unlock(&m->lock);
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

/* On all replicas, or on none. */
static qrun_status open_all(const models *m, const char *path, const char *name, qrun_adapter **loaded,
                            qrun_error *error) {
    qrun_status status = QRUN_OK;
    for (int i = 0; i < m->n_replicas && status == QRUN_OK; i++) {
        status = qrun_adapter_open(m->replicas[i].model, path, name, &loaded[i], error);
    }
    return status;
}

bool models_load(models *m, const char *name, const char *path, openai_error *error) {
    char whole[4096];
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
    qrun_adapter **loaded = calloc((size_t)m->n_replicas, sizeof(qrun_adapter *));
    if (loaded == NULL) { return openai_refuse(error, 503, NULL, "the server is out of memory"); }
    const qrun_status status = open_all(m, whole, name, loaded, &why);
    if (status != QRUN_OK) {
        close_all(m, loaded);
        return openai_refuse(error, status == QRUN_ERROR_NOT_FOUND ? 404 : 400, "path", "%s", why.message);
    }
    return models_add(m, name, loaded);
}

/* Out of the list, so that no request finds it any more. NULL with *error set: there is none, or it stays. */
static qrun_adapter **take_out(models *m, const char *name, openai_error *error) {
    pthread_mutex_lock(&m->lock);
    const int i = index_of(m, name);
    const served_adapter found = i >= 0 ? m->adapters[i] : (served_adapter){.n_users = 0};
    const bool goes = found.loaded != NULL && found.n_users == 0;
    if (goes) { m->adapters[i] = m->adapters[--m->n_adapters]; }
    pthread_mutex_unlock(&m->lock);
    if (goes) { return found.loaded; }
    if (i < 0) {
        (void)openai_refuse(error, 404, "name", "there is no adapter \"%.100s\" here", name);
    } else if (found.loaded == NULL) {
        (void)openai_refuse(error, 409, "name", "\"%s\" was named when the server was started, and stays", name);
    } else {
        (void)openai_refuse(error, 409, "name", "adapter %s: a request still uses it", name);
    }
    return NULL;
}

bool models_drop(models *m, const char *name, openai_error *error) {
    qrun_adapter **loaded = take_out(m, name, error);
    if (loaded == NULL) { return false; }
    close_all(m, loaded);
    return true;
}
