#include "serve/endpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/metrics.h"
#include "serve/page.h"
#include "serve/text.h"

/* What an endpoint gets: the parsed body of a POST, and what follows its path. */
typedef struct request {
    const endpoints *e;
    http_exchange *exchange;
    const cJSON *body; /* NULL for other methods */
    const char *rest;
} request;

static void refuse(const request *r, int status, const char *member, const char *message) {
    openai_error error = {0};
    (void)openai_refuse(&error, status, member, "%s", message);
    completions_refuse(r->exchange, &error);
}

/* ---- The page ---------------------------------------------------------------------------------------------------- */

static void answer_page(const request *r) {
    http_add_header(
        r->exchange, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    http_reply(r->exchange, 200, "text/html; charset=utf-8", (const char *)page_bytes, page_n_bytes);
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

static void add_model(cJSON *list, const char *name, const char *parent) {
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "id", name);
    cJSON_AddStringToObject(model, "object", "model");
    cJSON_AddNumberToObject(model, "created", 0);
    cJSON_AddStringToObject(model, "owned_by", "qrun");
    if (parent != NULL) { cJSON_AddStringToObject(model, "parent", parent); }
    cJSON_AddItemToArray(list, model);
}

static void answer_models(const request *r) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "object", "list");
    cJSON *list = cJSON_AddArrayToObject(root, "data");
    add_model(list, r->e->params->model_name, NULL);
    for (int i = 0; i < r->e->models->n_adapters; i++) {
        add_model(list, r->e->models->adapters[i].name, r->e->params->model_name);
    }
    completions_reply_json(r->exchange, 200, root);
}

/* ---- Adapters ---------------------------------------------------------------------------------------------------- */

static void answer_adapters(const request *r) {
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "adapters");
    for (int i = 0; i < r->e->models->n_adapters; i++) {
        const served_adapter *adapter = &r->e->models->adapters[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", adapter->name);
        cJSON_AddBoolToObject(item, "loaded_here", adapter->adapter != NULL);
        cJSON_AddItemToArray(list, item);
    }
    completions_reply_json(r->exchange, 200, root);
}

static void load_adapter(const request *r) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(r->body, "name");
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(r->body, "path"), *item;
    openai_error error = {0};
    cJSON_ArrayForEach(item, r->body) {
        if (item == name || item == path) { continue; }
        refuse(r, 400, item->string, "an adapter has \"name\" and \"path\", and nothing else");
        return;
    }
    if (!cJSON_IsString(name) || !cJSON_IsString(path)) {
        refuse(r, 400, cJSON_IsString(name) ? "path" : "name", "\"name\" and \"path\" must be texts");
    } else if (!models_load(r->e->models, name->valuestring, path->valuestring, &error)) {
        completions_refuse(r->exchange, &error);
    } else {
        answer_adapters(r);
    }
}

static void drop_adapter(const request *r) {
    openai_error error = {0};
    if (models_drop(r->e->models, r->rest, &error)) {
        answer_adapters(r);
    } else {
        completions_refuse(r->exchange, &error);
    }
}

/* ---- Health ------------------------------------------------------------------------------------------------------ */

static void answer_health(const request *r) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "status", r->e->completions->is_closing ? "shutting down" : "ok");
    completions_reply_json(r->exchange, r->e->completions->is_closing ? 503 : 200, root);
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

static void answer_metrics(const request *r) {
    serve_text out = {0};
    metrics_write(r->e, &out);
    http_reply(r->exchange, 200, "text/plain; version=0.0.4", out.data != NULL ? out.data : "", out.size);
    serve_text_free(&out);
}

static void answer_live(const request *r) { completions_reply_json(r->exchange, 200, metrics_live(r->e)); }

/* ---- The tokenizer ----------------------------------------------------------------------------------------------- */

static void answer_tokenize(const request *r) {
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(r->body, "prompt");
    const cJSON *add_special = cJSON_GetObjectItemCaseSensitive(r->body, "add_special_tokens");
    const qrun_tokenizer *tokenizer = qrun_model_tokenizer(r->e->params->model);
    qrun_error error = QRUN_ERROR_INIT;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    if (tokenizer == NULL) {
        refuse(r, 400, NULL, "this model has no tokenizer");
        return;
    }
    if (!cJSON_IsString(prompt)) {
        refuse(r, 400, "prompt", "\"prompt\" must be a text");
        return;
    }
    if (qrun_tokenize(tokenizer, prompt->valuestring, strlen(prompt->valuestring), !cJSON_IsFalse(add_special), false,
                      &ids, &n_ids, &error) != QRUN_OK) {
        refuse(r, 400, "prompt", error.message);
        return;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "count", (double)n_ids);
    cJSON_AddItemToObject(root, "tokens", cJSON_CreateIntArray(ids, (int)n_ids));
    qrun_free(ids);
    completions_reply_json(r->exchange, 200, root);
}

static int32_t *read_ids(const cJSON *array, int64_t *n_ids) {
    int32_t *ids = malloc(((size_t)cJSON_GetArraySize(array) + 1) * sizeof *ids);
    *n_ids = 0;
    for (const cJSON *item = array->child; ids != NULL && item != NULL; item = item->next) {
        const bool is_id =
            cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble == (double)item->valueint;
        ids[(*n_ids)++] = is_id ? item->valueint : -1;
    }
    return ids;
}

static void answer_detokenize(const request *r) {
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(r->body, "tokens");
    const qrun_tokenizer *tokenizer = qrun_model_tokenizer(r->e->params->model);
    qrun_error error = QRUN_ERROR_INIT;
    char *decoded = NULL;
    size_t n_bytes = 0;
    int64_t n_ids;
    if (tokenizer == NULL || !cJSON_IsArray(tokens)) {
        refuse(r, 400, "tokens",
               tokenizer == NULL ? "this model has no tokenizer" : "\"tokens\" must be a list of ids");
        return;
    }
    int32_t *ids = read_ids(tokens, &n_ids);
    const qrun_status status =
        ids != NULL ? qrun_detokenize(tokenizer, ids, n_ids, false, &decoded, &n_bytes, &error) : QRUN_ERROR_MEMORY;
    free(ids);
    if (status != QRUN_OK) {
        refuse(r, 400, "tokens", ids != NULL ? error.message : "the server is out of memory");
        return;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON_AddItemToObject(root, "prompt", serve_text_to_json(decoded, n_bytes));
    qrun_free(decoded);
    completions_reply_json(r->exchange, 200, root);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *path; /* one that ends with "/" is followed by something */
    http_method method;
    void (*answer)(const request *r);
} table[] = {
    {"/", HTTP_GET, answer_page},
    {"/v1/models", HTTP_GET, answer_models},
    {"/v1/adapters", HTTP_GET, answer_adapters},
    {"/v1/adapters", HTTP_POST, load_adapter},
    {"/v1/adapters/", HTTP_DELETE, drop_adapter},
    {"/health", HTTP_GET, answer_health},
    {"/metrics", HTTP_GET, answer_metrics},
    {"/live", HTTP_GET, answer_live},
    {"/tokenize", HTTP_POST, answer_tokenize},
    {"/detokenize", HTTP_POST, answer_detokenize},
    {"/v1/chat/completions", HTTP_POST, NULL}, /* answered before; here for their method */
    {"/v1/completions", HTTP_POST, NULL},
    {"/v1/embeddings", HTTP_POST, NULL},
};

/* What follows the path of an endpoint; NULL: it is another path. */
static const char *rest_of(const char *path, const char *endpoint) {
    const size_t n = strlen(endpoint);
    if (n < 2 || endpoint[n - 1] != '/') { return strcmp(path, endpoint) == 0 ? "" : NULL; }
    return strncmp(path, endpoint, n) == 0 && path[n] != '\0' ? path + n : NULL;
}

static void answer_post(request *r, void (*answer)(const request *r)) {
    size_t n_bytes;
    const char *bytes = http_body(r->exchange, &n_bytes), *why;
    cJSON *body = serve_text_parse_json(bytes != NULL ? bytes : "", n_bytes, &why);
    r->body = body;
    if (cJSON_IsObject(body)) {
        answer(r);
    } else {
        refuse(r, 400, NULL, body != NULL ? "the body is not a JSON object" : why);
    }
    cJSON_Delete(body);
}

void endpoints_answer(const endpoints *e, http_exchange *exchange, const char *path) {
    static const char *const takes[] = {"this endpoint takes GET", "this endpoint takes POST",
                                        "this endpoint takes DELETE"};
    request r = {.e = e, .exchange = exchange};
    int other = -1;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        r.rest = rest_of(path, table[i].path);
        if (r.rest == NULL) { continue; }
        if (http_method_of(exchange) != table[i].method) {
            other = (int)table[i].method;
        } else if (table[i].method == HTTP_POST) {
            answer_post(&r, table[i].answer);
            return;
        } else {
            table[i].answer(&r);
            return;
        }
    }
    if (other >= 0) {
        refuse(&r, 405, NULL, takes[other]);
    } else {
        refuse(&r, 404, NULL, "there is no such endpoint; see docs/serve.md");
    }
}
