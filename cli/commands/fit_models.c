#include "cli/commands/fit_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal/api_names.h"

/* ---- Which ones -------------------------------------------------------------------------------------------------- */

/* name[0, n_bytes), unless it is among them already. */
static void add(fit_models *found, const char *name, size_t n_bytes) {
    for (int i = 0; i < found->n; i++) {
        if (strlen(found->models[i].path) == n_bytes && memcmp(found->models[i].path, name, n_bytes) == 0) { return; }
    }
    found->models = reallocate(found->models, (size_t)(found->n + 1) * sizeof *found->models);
    fit_model *model = &found->models[found->n++];
    *model = (fit_model){.path = allocate(n_bytes + 1), .info = QRUN_PLAN_INFO_INIT};
    memcpy(model->path, name, n_bytes);
    model->path[n_bytes] = '\0';
}

static int complain_unknown(const char *name) {
    text_buffer known = {0};
    const char *next;
    for (int32_t i = 0; (next = qrun_known_model(i)) != NULL; i++) {
        text_format(&known, "%s%s", i > 0 ? ", " : "", next);
    }
    const int code = complain(EXIT_USAGE, "--shape: there is no file '%s', and no known model begins so; these are: %s",
                              name, known.data);
    text_free(&known);
    return code;
}

static int add_shape(fit_models *found, const char *shape, size_t n_bytes) {
    text_buffer name = {0};
    const int n_before = found->n;
    const char *known;
    text_append(&name, shape, n_bytes);
    text_puts(&name, "");
    if (access(name.data, F_OK) == 0) { add(found, shape, n_bytes); }
    bool is_whole = found->n > n_before;
    for (int32_t i = 0; !is_whole && (known = qrun_known_model(i)) != NULL; i++) {
        is_whole = strcmp(known, name.data) == 0;
        if (is_whole) { add(found, known, strlen(known)); }
    }
    bool is_known = is_whole;
    for (int32_t i = 0; !is_whole && (known = qrun_known_model(i)) != NULL; i++) {
        if (n_bytes == 0 || strncmp(known, name.data, n_bytes) != 0) { continue; }
        add(found, known, strlen(known));
        is_known = true;
    }
    const int code = is_known ? EXIT_OK : complain_unknown(name.data);
    text_free(&name);
    return code;
}

static int list(const char *shapes, fit_models *found) {
    const char *known;
    for (int32_t i = 0; shapes == NULL && (known = qrun_known_model(i)) != NULL; i++) {
        add(found, known, strlen(known));
    }
    for (const char *at = shapes; at != NULL;) {
        const size_t n_bytes = strcspn(at, ",");
        RETURN_IF_FAILED(add_shape(found, at, n_bytes));
        at = at[n_bytes] == ',' ? at + n_bytes + 1 : NULL;
    }
    return EXIT_OK;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static int by_parameters(const void *a, const void *b) {
    const fit_model *left = a, *right = b;
    if ((left->refused == NULL) != (right->refused == NULL)) { return left->refused != NULL ? 1 : -1; }
    if (left->info.n_parameters != right->info.n_parameters) {
        return left->info.n_parameters < right->info.n_parameters ? -1 : 1;
    }
    return strcmp(left->path, right->path);
}

/* A model may be one that these options do not go with, such as a --context that is longer than its own. */
static void plan_one(fit_model *model, fit_models_plan plan, const void *arg, const qrun_model_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    qrun_model_params candidate = *params;
    candidate.path = model->path, candidate.random_weights = true;
    const qrun_status status = plan(arg, &candidate, &entries, &n_entries, &model->info, &error);
    qrun_free(entries);
    const bool planned = status == QRUN_OK || (status == QRUN_ERROR_MEMORY && model->info.total_bytes > 0);
    if (!planned) { model->refused = api_names_copy(error.message); }
}

int fit_models_find(const char *shapes, fit_models_plan plan, const void *arg, qrun_model_params *model,
                    fit_models *found) {
    RETURN_IF_FAILED(list(shapes, found));
    int n_planned = 0;
    for (int i = 0; i < found->n; i++) {
        plan_one(&found->models[i], plan, arg, model);
        n_planned += found->models[i].refused == NULL;
    }
    if (n_planned == 0) { return complain(EXIT_USAGE, "%s", found->models[0].refused); }
    qsort(found->models, (size_t)found->n, sizeof *found->models, by_parameters);
    found->largest = -1;
    for (int i = 0; i < n_planned; i++) {
        if (found->models[i].info.fits) { found->largest = i; }
    }
    found->smallest = 0;
    model->path = found->models[found->largest >= 0 ? found->largest : found->smallest].path;
    model->random_weights = true;
    return EXIT_OK;
}

void fit_models_free(fit_models *found) {
    for (int i = 0; i < found->n; i++) {
        free(found->models[i].path);
        free(found->models[i].refused);
    }
    free(found->models);
    *found = (fit_models){0};
}

/* ---- For people and programs ------------------------------------------------------------------------------------- */

void fit_models_print(const fit_models *found) {
    if (found->largest < 0) {
        printf("largest model: none of %d fits; the smallest one takes what is below\n", found->n);
    } else {
        printf("largest model: %s\n", found->models[found->largest].path);
    }
    for (int i = 0; i < found->n; i++) {
        const fit_model *model = &found->models[i];
        if (model->refused != NULL) {
            printf("  %-16s %s\n", model->path, model->refused);
            continue;
        }
        printf("  %-16s %14s %12s%s\n", model->path, large_text(model->info.n_parameters).text,
               size_text(model->info.total_bytes).text, model->info.fits ? "" : "   does not fit");
    }
    printf("\n");
}

void fit_models_print_json(const fit_models *found) {
    text_buffer out = {0};
    text_puts(&out, "\"fit\":\"model\",\"largest\":");
    if (found->largest < 0) {
        text_puts(&out, "null");
    } else {
        const char *path = found->models[found->largest].path;
        text_json_string(&out, path, strlen(path));
    }
    text_puts(&out, ",\"models\":[");
    for (int i = 0; i < found->n; i++) {
        const fit_model *model = &found->models[i];
        text_puts(&out, i > 0 ? ",{\"model\":" : "{\"model\":");
        text_json_string(&out, model->path, strlen(model->path));
        if (model->refused != NULL) {
            text_puts(&out, ",\"refused\":");
            text_json_string(&out, model->refused, strlen(model->refused));
            text_puts(&out, "}");
            continue;
        }
        text_format(&out, ",\"parameters\":%lld,\"total_bytes\":%lld,\"fits\":%s}", (long long)model->info.n_parameters,
                    (long long)model->info.total_bytes, model->info.fits ? "true" : "false");
    }
    printf("%s],", out.data);
    text_free(&out);
}
