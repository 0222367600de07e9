/* --fit model: of several models, the one with the most parameters that fits. */
#ifndef QRUN_CLI_COMMANDS_FIT_MODELS_H
#define QRUN_CLI_COMMANDS_FIT_MODELS_H

#include "cli/terminal/text.h"
#include "qrun.h"

/* The plan of a model, as qrun_plan_session and qrun_plan_training make it; `arg` holds the rest of it. */
typedef qrun_status (*fit_models_plan)(const void *arg, const qrun_model_params *model, qrun_plan_entry **entries,
                                       int32_t *n_entries, qrun_plan_info *info, qrun_error *error);

typedef struct fit_model {
    char *path; /* a config.json, or the name of a known model */
    qrun_plan_info info;
    char *refused; /* why there is no plan of it, in the words of the library; NULL: there is one */
} fit_model;

/* Zero-initialise. By parameters, ascending; those without a plan at the end. */
typedef struct fit_models {
    fit_model *models;
    int n;
    int largest;  /* that fits; -1: none does */
    int smallest; /* of those with a plan */
} fit_models;

/* shapes: with commas between them, each a config.json, a known model, or the beginning of the names of several; NULL:
 * all known models. Each is planned with `model`, which names the one to be shown afterwards: the largest that fits or,
 * where none does, the smallest. 0 or an exit code, after telling the user; `found` is to be freed in either case, and
 * not before `model` has been used. */
int fit_models_find(const char *shapes, fit_models_plan plan, const void *arg, qrun_model_params *model,
                    fit_models *found);
void fit_models_free(fit_models *found);

/* The answer and a table, or the first members of an object. */
void fit_models_print(const fit_models *found);
void fit_models_print_json(const fit_models *found);

#endif
