#include "serve/endpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/page.h"

/* What an endpoint gets, and what it answers: `reply`, or `error` where that has a status. One that a job is at is
 * among those of its endpoints, and counts as an answer on its way. */
typedef struct request {
    endpoints *e;
    http_exchange *exchange; /* NULL: nobody waits any more */
    const struct row *row;
    char name[256]; /* what follows the path of the endpoint */
    http_body *body;
    const cJSON *json; /* of the body of a POST */
    cJSON *reply;
    openai_error error;
    job job;
    jobs *jobs;
    struct request **link, *next;
} request;

static void refuse(request *r, int status, const char *member, const char *message) {
    (void)openai_refuse(&r->error, status, member, "%s", message);
}

/* ---- The page ---------------------------------------------------------------------------------------------------- */

static void answer_page(request *r) {
    http_add_header(
        r->exchange, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    http_reply(r->exchange, 200, "text/html; charset=utf-8", (const char *)page_bytes, page_n_bytes);
    r->exchange = NULL;
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

/* In the forms of both APIs at once. When it was made is not known. */
static void add_model(cJSON *list, const char *name, const char *parent) {
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "id", name);
    cJSON_AddStringToObject(model, "object", "model");
    cJSON_AddNumberToObject(model, "created", 0);
    cJSON_AddStringToObject(model, "owned_by", "qrun");
    cJSON_AddStringToObject(model, "type", "model");
    cJSON_AddStringToObject(model, "display_name", name);
    cJSON_AddStringToObject(model, "created_at", "1970-01-01T00:00:00Z");
    if (parent != NULL) { cJSON_AddStringToObject(model, "parent", parent); }
    cJSON_AddItemToArray(list, model);
}

static void answer_models(request *r) {
    served_adapter adapters[MODELS_MAX_ADAPTERS];
    const int n_adapters = models_list(r->e->models, adapters);
    r->reply = cJSON_CreateObject();
    cJSON_AddStringToObject(r->reply, "object", "list");
    cJSON_AddFalseToObject(r->reply, "has_more");
    cJSON *list = cJSON_AddArrayToObject(r->reply, "data");
    add_model(list, r->e->params->model_name, NULL);
    for (int i = 0; i < n_adapters; i++) { add_model(list, adapters[i].name, r->e->params->model_name); }
}

static void answer_model(request *r) {
    served_adapter adapters[MODELS_MAX_ADAPTERS];
    const int n_adapters = models_list(r->e->models, adapters);
    const char *base = r->e->params->model_name;
    cJSON *list = cJSON_CreateArray();
    if (strcmp(r->name, base) == 0) { add_model(list, base, NULL); }
    for (int i = 0; i < n_adapters && list != NULL && list->child == NULL; i++) {
        if (strcmp(r->name, adapters[i].name) == 0) { add_model(list, adapters[i].name, base); }
    }
    r->reply = cJSON_DetachItemFromArray(list, 0);
    cJSON_Delete(list);
    if (r->reply == NULL) {
        (void)openai_refuse(&r->error, 404, "model",
                            "there is no model \"%.100s\" here; /v1/models lists those there are", r->name);
    }
}

/* ---- Adapters ---------------------------------------------------------------------------------------------------- */

static void answer_adapters(request *r) {
    served_adapter adapters[MODELS_MAX_ADAPTERS];
    const int n_adapters = models_list(r->e->models, adapters);
    r->reply = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(r->reply, "adapters");
    for (int i = 0; i < n_adapters; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", adapters[i].name);
        cJSON_AddBoolToObject(item, "loaded_here", adapters[i].loaded != NULL);
        cJSON_AddItemToArray(list, item);
    }
}

static void load_adapter(request *r) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(r->json, "name");
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(r->json, "path"), *item;
    cJSON_ArrayForEach(item, r->json) {
        if (item == name || item == path) { continue; }
        refuse(r, 400, item->string, "an adapter has \"name\" and \"path\", and nothing else");
        return;
    }
    if (!cJSON_IsString(name) || !cJSON_IsString(path)) {
        refuse(r, 400, cJSON_IsString(name) ? "path" : "name", "\"name\" and \"path\" must be texts");
    } else if (models_load(r->e->models, name->valuestring, path->valuestring, &r->error)) {
        answer_adapters(r);
    }
}

static void drop_adapter(request *r) {
    if (models_drop(r->e->models, r->name, &r->error)) { answer_adapters(r); }
}

/* ---- Health ------------------------------------------------------------------------------------------------------ */

static void answer_health(request *r) {
    const bool is_closing = r->e->completions->is_closing;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "status", is_closing ? "shutting down" : "ok");
    completions_reply_json(r->exchange, is_closing ? 503 : 200, root);
    r->exchange = NULL;
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

static void answer_metrics(request *r) {
    serve_text out = {0};
    metrics_write(r->e, &out);
    http_reply(r->exchange, 200, "text/plain; version=0.0.4", out.data != NULL ? out.data : "", out.size);
    r->exchange = NULL;
    serve_text_free(&out);
}

static void answer_live(request *r) { r->reply = metrics_live(r->e); }

/* ---- The tokenizer ----------------------------------------------------------------------------------------------- */

static void answer_tokenize(request *r) {
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(r->json, "prompt");
    const cJSON *add_special = cJSON_GetObjectItemCaseSensitive(r->json, "add_special_tokens");
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
    if (qrun_tokenize(tokenizer, prompt->valuestring, strlen(prompt->valuestring), !cJSON_IsFalse(add_special), true,
                      &ids, &n_ids, &error) != QRUN_OK) {
        refuse(r, 400, "prompt", error.message);
        return;
    }
    r->reply = cJSON_CreateObject();
    cJSON_AddNumberToObject(r->reply, "count", (double)n_ids);
    cJSON_AddItemToObject(r->reply, "tokens", n_ids > 0 ? cJSON_CreateIntArray(ids, (int)n_ids) : cJSON_CreateArray());
    qrun_free(ids);
}

static bool is_list_of_ids(const cJSON *array) {
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble != (double)item->valueint) {
            return false;
        }
    }
    return cJSON_IsArray(array);
}

static int32_t *read_ids(const cJSON *array, int64_t *n_ids) {
    int32_t *ids = malloc(((size_t)cJSON_GetArraySize(array) + 1) * sizeof *ids);
    const cJSON *item;
    *n_ids = 0;
    cJSON_ArrayForEach(item, array) {
        if (ids != NULL) { ids[(*n_ids)++] = item->valueint; }
    }
    return ids;
}

static void answer_detokenize(request *r) {
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(r->json, "tokens");
    const qrun_tokenizer *tokenizer = qrun_model_tokenizer(r->e->params->model);
    qrun_error error = QRUN_ERROR_INIT;
    char *decoded = NULL;
    size_t n_bytes = 0;
    int64_t n_ids;
    if (tokenizer == NULL || !is_list_of_ids(tokens)) {
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
    r->reply = cJSON_CreateObject();
    cJSON_AddItemToObject(r->reply, "prompt", serve_text_to_json(decoded, n_bytes));
    qrun_free(decoded);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* Where the work of an endpoint is done. */
typedef enum place { AT_ONCE, BY_SIZE, WITH_ADAPTERS } place;

typedef struct row {
    const char *path; /* one that ends with "/" is followed by something */
    http_method method;
    void (*answer)(request *r);
    place place;
} row;

static const row table[] = {
    {"/", HTTP_GET, answer_page, AT_ONCE},
    {"/v1/models", HTTP_GET, answer_models, AT_ONCE},
    {"/v1/models/", HTTP_GET, answer_model, AT_ONCE},
    {"/v1/adapters", HTTP_GET, answer_adapters, AT_ONCE},
    {"/v1/adapters", HTTP_POST, load_adapter, WITH_ADAPTERS},
    {"/v1/adapters/", HTTP_DELETE, drop_adapter, WITH_ADAPTERS},
    {"/health", HTTP_GET, answer_health, AT_ONCE},
    {"/metrics", HTTP_GET, answer_metrics, AT_ONCE},
    {"/live", HTTP_GET, answer_live, AT_ONCE},
    {"/tokenize", HTTP_POST, answer_tokenize, BY_SIZE},
    {"/detokenize", HTTP_POST, answer_detokenize, BY_SIZE},
    {"/v1/chat/completions", HTTP_POST, NULL, AT_ONCE}, /* answered before; here for their method */
    {"/v1/completions", HTTP_POST, NULL, AT_ONCE},
    {"/v1/embeddings", HTTP_POST, NULL, AT_ONCE},
    {"/v1/messages", HTTP_POST, NULL, AT_ONCE},
    {"/v1/messages/count_tokens", HTTP_POST, NULL, AT_ONCE},
    {"/v1/responses", HTTP_POST, NULL, AT_ONCE},
};

/* What follows the path of an endpoint; NULL: it is another path. */
static const char *rest_of(const char *path, const char *endpoint) {
    const size_t n = strlen(endpoint);
    if (n < 2 || endpoint[n - 1] != '/') { return strcmp(path, endpoint) == 0 ? "" : NULL; }
    return strncmp(path, endpoint, n) == 0 && path[n] != '\0' ? path + n : NULL;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

/* Sends what was found, unless that is done, or nobody waits. */
static void reply(request *r) {
    if (r->exchange == NULL) {
        cJSON_Delete(r->reply);
    } else if (r->error.status != 0) {
        completions_refuse(r->exchange, &r->error);
        cJSON_Delete(r->reply);
    } else {
        completions_reply_json(r->exchange, 200, r->reply);
    }
}

static void forget(request *r) {
    completions *c = r->e->completions;
    *r->link = r->next;
    if (r->next != NULL) { r->next->link = r->link; }
    http_body_free(r->body);
    free(r);
    completions_close(c);
}

static void on_work(void *user) {
    request *r = user;
    size_t n_bytes;
    char why[SERVE_WHY_BYTES];
    const char *bytes = http_body_bytes(r->body, &n_bytes);
    if (r->row->method != HTTP_POST) {
        r->row->answer(r);
        return;
    }
    cJSON *json = bytes != NULL ? serve_text_parse_json(bytes, n_bytes, why) : NULL;
    r->json = json;
    if (bytes == NULL) {
        refuse(r, 503, NULL, "the server is out of memory");
    } else if (cJSON_IsObject(json)) {
        r->row->answer(r);
    } else {
        refuse(r, 400, NULL, json != NULL ? "the body is not a JSON object" : why);
    }
    cJSON_Delete(json);
}

static void on_done(void *user) {
    request *r = user;
    reply(r);
    forget(r);
}

static void on_left(void *user) {
    request *r = user;
    r->exchange = NULL;
    if (jobs_drop(r->jobs, &r->job)) { forget(r); }
}

/* r becomes the job's, with its exchange. */
static bool begin_job(const request *begun) {
    endpoints *e = begun->e;
    http_body *body = http_take_body(begun->exchange);
    request *r = body != NULL ? malloc(sizeof *r) : NULL;
    if (r == NULL) {
        http_body_free(body);
        return false;
    }
    *r = *begun;
    r->body = body;
    r->jobs = r->row->place == WITH_ADAPTERS ? e->adapters : completions_jobs(e->completions, body);
    r->job = (job){.work = on_work, .done = on_done, .user = r};
    r->link = &e->requests;
    r->next = e->requests;
    if (r->next != NULL) { r->next->link = &r->next; }
    e->requests = r;
    completions_open(e->completions);
    http_on_left(r->exchange, on_left, r);
    jobs_add(r->jobs, &r->job);
    return true;
}

static void answer_row(request *r) {
    if (r->row->place == AT_ONCE) {
        r->row->answer(r);
    } else if (begin_job(r)) {
        return;
    } else {
        refuse(r, 503, NULL, "the server is out of memory");
    }
    reply(r);
}

static int hexadecimal(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *digit = c != '\0' ? strchr(digits, c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c) : NULL;
    return digit != NULL ? (int)(digit - digits) : -1;
}

/* A name in a path, where "%2F" is a slash. One that is longer than names are is cut, and one that would not be text
 * stays as it was sent. */
static void read_name(const char *rest, char *name, size_t capacity) {
    size_t n = 0;
    for (const char *c = rest; *c != '\0' && n + 1 < capacity; c++) {
        const int high = *c == '%' ? hexadecimal(c[1]) : -1, low = high >= 0 ? hexadecimal(c[2]) : -1;
        const int value = low >= 0 ? 16 * high + low : 0;
        name[n++] = (char)(value >= 0x20 ? value : *c);
        c += value >= 0x20 ? 2 : 0;
    }
    name[n] = '\0';
    if (!serve_text_is_utf8(name, n)) { (void)snprintf(name, capacity, "%s", rest); }
}

/* The path is known, and the method is not one of its. */
static void answer_other_method(request *r, const char *methods) {
    http_add_header(r->exchange, "Allow", methods);
    if (http_method_of(r->exchange) == HTTP_OPTIONS) {
        http_reply(r->exchange, 200, "text/plain", "", 0);
        r->exchange = NULL;
        return;
    }
    (void)openai_refuse(&r->error, 405, NULL, "this endpoint takes %s", methods);
}

void endpoints_answer(endpoints *e, http_exchange *exchange, const char *path) {
    static const char *const names[] = {"GET, HEAD", "POST", "DELETE"};
    request r = {.e = e, .exchange = exchange};
    serve_text methods = {0};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *rest = rest_of(path, table[i].path);
        if (rest == NULL) { continue; }
        serve_text_add_format(&methods, "%s%s", methods.size > 0 ? ", " : "", names[table[i].method]);
        if (http_method_of(exchange) == table[i].method) {
            r.row = &table[i];
            read_name(rest, r.name, sizeof r.name);
        }
    }
    if (r.row != NULL) {
        answer_row(&r);
    } else {
        if (methods.size > 0) {
            answer_other_method(&r, methods.data);
        } else {
            refuse(&r, 404, NULL, "there is no such endpoint; see docs/serve.md");
        }
        reply(&r);
    }
    serve_text_free(&methods);
}

void endpoints_drop(endpoints *e) {
    while (e->requests != NULL) {
        request *r = e->requests;
        if (r->exchange != NULL) { http_on_left(r->exchange, NULL, NULL); }
        cJSON_Delete(r->reply);
        forget(r);
    }
}
