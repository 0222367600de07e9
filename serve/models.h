/* The models that clients can ask for: the base model, and an adapter each by its name. Adapters of the command line
 * stay; others come and go while the server runs. */
#ifndef QRUN_SERVE_MODELS_H
#define QRUN_SERVE_MODELS_H

#include <pthread.h>

#include "qrun.h"
#include "serve/openai/request.h"
#include "serve/server.h"

enum { MODELS_MAX_ADAPTERS = 256, MODELS_NAME_BYTES = 64 };

typedef struct served_adapter {
    char name[MODELS_NAME_BYTES + 1];
    qrun_adapter **loaded; /* here, one for each replica; NULL: of the command line */
    int n_users;           /* of models_find */
} served_adapter;

typedef struct models {
    const serve_replica *replicas; /* [n_replicas], lent */
    int n_replicas;
    const char *base_name; /* lent */
    const char *folder;    /* clients may load adapters from below it; NULL: they may not. Lent */
    pthread_mutex_t lock;
    served_adapter adapters[MODELS_MAX_ADAPTERS]; /* [n_adapters], both under lock */
    int n_adapters;
} models;

void models_open(models *m, const serve_replica *replicas, int n_replicas, const char *base_name, const char *folder);
void models_close(models *m); /* what was loaded */

/* From any thread: */

/* False: too many adapters, or a name that is too long. loaded: as served_adapter has it; owned from then on. */
bool models_add(models *m, const char *name, qrun_adapter **loaded);
/* What a client's name stands for; "" is the base model, and so is an empty name of a client. An adapter is in use
 * until models_release. */
bool models_find(models *m, const char *name, char adapter[MODELS_NAME_BYTES + 1], openai_error *error);
void models_release(models *m, const char *adapter);
/* The adapters as they are now; how many there are. */
int models_list(models *m, served_adapter list[MODELS_MAX_ADAPTERS]);

/* From one thread at a time, and they may take long: */

/* path: relative to the folder. */
bool models_load(models *m, const char *name, const char *path, openai_error *error);
/* 409 while a request uses it. */
bool models_drop(models *m, const char *name, openai_error *error);

#endif
