/* qrun serve: the engine behind the OpenAI API and Anthropic's. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/sampling.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/text.h"
#include "serve/server.h"

typedef struct serve_options {
    engine_options engine;
    sampling_options sampling;
    const char *host, *model_name, *api_key_file, *tls_cert, *tls_key, *allow_origin, *adapter_folder;
    int32_t port, max_waiting, max_connections, drain_seconds, request_seconds, idle_seconds;
    int64_t max_body_bytes;
    int32_t data_parallel;
    bool quiet;
} serve_options;

#define AT(field) INTO(serve_options, field)

/* clang-format off */
static const option server_table[] = {
    {.name = "host", .kind = OPTION_TEXT, .value_name = "ADDRESS", AT(host),
     .help = "The address to listen on. Default: 127.0.0.1, this machine alone; 0.0.0.0: every address."},
    {.name = "port", .kind = OPTION_INT, .value_name = "N", AT(port), .low = 0, .high = 65535,
     .help = "The port to listen on; 0 takes a free one. Default: 8080."},
    {.name = "model-name", .kind = OPTION_TEXT, .value_name = "NAME", AT(model_name),
     .help = "What clients call the model. Default: the last part of its path."},
    {.name = "api-key-file", .kind = OPTION_TEXT, .value_name = "FILE", AT(api_key_file), .completion = COMPLETE_FILE,
     .help = "Clients must send the key in FILE (\"Authorization: Bearer KEY\", or \"x-api-key: KEY\"). "
             "Default: anyone who reaches the port may ask."},
    {.name = "tls-cert", .kind = OPTION_TEXT, .value_name = "FILE", AT(tls_cert), .completion = COMPLETE_FILE,
     .help = "Speak HTTPS: a certificate in PEM, its chain after it. Needs --tls-key. Default: plain HTTP."},
    {.name = "tls-key", .kind = OPTION_TEXT, .value_name = "FILE", AT(tls_key), .completion = COMPLETE_FILE,
     .help = "The certificate's key in PEM."},
    {.name = "allow-origin", .kind = OPTION_TEXT, .value_name = "ORIGIN", AT(allow_origin),
     .help = "Pages of this origin (https://example.org), or of any (\"*\"), may ask from a browser. Default: the "
             "server's own page alone."},
    {.name = "adapter-folder", .kind = OPTION_TEXT, .value_name = "DIR", AT(adapter_folder),
     .completion = COMPLETE_FILE,
     .help = "Clients may load adapters from below DIR while the server runs (POST /v1/adapters), and drop them. These "
             "take memory beyond --memory. Default: they may not."},
    {.name = "max-connections", .kind = OPTION_INT, .value_name = "N", AT(max_connections), .low = 1, .high = 1e6,
     .help = "Open connections. Beyond it, the one that has been without a whole request for longest is closed. "
             "Default: 4096, or as many as the process may have descriptors."},
    {.name = "max-waiting", .kind = OPTION_INT, .value_name = "N", AT(max_waiting), .low = 1, .high = 1e6,
     .help = "With so many sequences waiting, further requests get status 429. Default: 1024."},
    {.name = "max-body", .kind = OPTION_BYTES, .value_name = "SIZE", AT(max_body_bytes),
     .help = "The largest request. Default: 16MiB."},
    {.name = "request-seconds", .kind = OPTION_INT, .value_name = "N", AT(request_seconds), .low = 1, .high = 86400,
     .help = "A request has N seconds to arrive, from its first byte to its last; then it gets status 408. "
             "Default: 60."},
    {.name = "idle-seconds", .kind = OPTION_INT, .value_name = "N", AT(idle_seconds), .low = 1, .high = 86400,
     .help = "A connection is closed after N seconds without a request, or without the client reading any of its "
             "answer. Default: 60."},
    {.name = "drain-seconds", .kind = OPTION_INT, .value_name = "N", AT(drain_seconds), .low = 0, .high = 86400,
     .help = "After SIGTERM or Ctrl-C no request is accepted, and what runs has N seconds to finish. Default: 30."},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, AT(quiet),
     .help = "No line for each request on stderr. The lines never have text of prompts or answers."},
};

static const option replica_table[] = {
    {.name = "data-parallel", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1,
     .high = SERVE_REPLICAS_MAX, AT(data_parallel),
     .help = "Answer with N copies of the model behind one queue, each with its own memory and its share of the CPUs. "
             "A request goes to the copy that has read the beginning of its prompt, or to the one with the fewest. "
             "Answers are those of one. Sizes, such as --memory, and --threads are each copy's. Default: 1."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Adapters", adapter_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Server", server_table, 0),
    OPTION_GROUP("Sampling, where a request does not say", sampling_option_table, offsetof(serve_options, sampling)),
    OPTION_GROUP("Machine", machine_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Speed", speed_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Several devices", devices_option_table, offsetof(serve_options, engine)),
    OPTION_GROUP("Copies of the model", replica_table, 0),
};

/* The last part of a path that may end in slashes. */
static void name_of_path(const char *path, char *name, size_t capacity) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') { end--; }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') { begin--; }
    (void)snprintf(name, capacity, "%.*s", (int)(end - begin), path + begin);
}

/* The first line of the file. */
static int read_key(const char *path, text_buffer *key) {
    RETURN_IF_FAILED(file_read(key, path));
    const size_t length = key->data != NULL ? strcspn(key->data, "\r\n") : 0;
    if (length == 0) { return complain(EXIT_FILE, "'%s' has no key in its first line", path); }
    key->data[length] = '\0';
    return EXIT_OK;
}

static void say_address(void *user, int port) {
    const serve_params *params = user;
    const bool is_ipv6 = strchr(params->host, ':') != NULL;
    char address[300];
    (void)snprintf(address, sizeof address, "%s://%s%s%s:%d", params->tls_cert != NULL ? "https" : "http",
                   is_ipv6 ? "[" : "", params->host, is_ipv6 ? "]" : "", port);
    printf("%s\n", address);
    (void)fflush(stdout);
    if (params->log != NULL) { notify("serving '%s' on %s; SIGTERM or Ctrl-C ends it", params->model_name, address); }
}

static int serve(const serve_options *o, const command_line *line, engine *const *engines, const char *key) {
    char name[256];
    engine *e = engines[0];
    serve_replica replicas[SERVE_REPLICAS_MAX];
    const char *adapters[OPTION_LIST_MAX];
    char folder[PATH_MAX]; /* from the root: "DIR/NAME" may be an id in the Hugging Face cache */
    qrun_error error = QRUN_ERROR_INIT;
    if (o->adapter_folder != NULL && realpath(o->adapter_folder, folder) == NULL) {
        return complain(EXIT_FILE, "--adapter-folder '%s': %s", o->adapter_folder, strerror(errno));
    }
    name_of_path(o->engine.model.path, name, sizeof name);
    for (int i = 0; i < e->n_adapters; i++) { adapters[i] = qrun_adapter_name(e->adapters[i]); }
    for (int i = 0; i < o->data_parallel; i++) {
        qrun_request_params own = QRUN_REQUEST_PARAMS_INIT;
        RETURN_IF_FAILED(complain_unless_ok(qrun_request_params_from_model(engines[i]->model, &own, &error), &error));
        replicas[i] = (serve_replica){
            .model = engines[i]->model, .session = engines[i]->session, .generation_json = own.generation_json};
    }
    serve_params params = {.replicas = replicas,
                           .n_replicas = o->data_parallel,
                           .model = e->model,
                           .model_name = o->model_name != NULL ? o->model_name : name,
                           .adapters = adapters,
                           .n_adapters = e->n_adapters,
                           .adapter_folder = o->adapter_folder != NULL ? folder : NULL,
                           .host = o->host,
                           .port = o->port,
                           .tls_cert = o->tls_cert,
                           .tls_key = o->tls_key,
                           .api_key = key,
                           .allow_origin = o->allow_origin,
                           .max_waiting = o->max_waiting,
                           .max_body_bytes = o->max_body_bytes,
                           .max_connections = o->max_connections,
                           .drain_seconds = o->drain_seconds,
                           .request_seconds = o->request_seconds,
                           .idle_seconds = o->idle_seconds,
                           .log = o->quiet ? NULL : stderr,
                           .on_listening = say_address,
                           .user = &params};
    RETURN_IF_FAILED(sampling_apply(&o->sampling, line, e->model, &params.defaults));
    const int code = serve_run(&params, &error) ? EXIT_OK : complain_error(&error);
    for (int i = 0; i < o->data_parallel; i++) { engine_keep_prefixes(engines[i]); }
    return code;
}

/* ---- Copies of the model ----------------------------------------------------------------------------------------- */

/* One after the other, all with what the first one gets. */
static int open_copies(const serve_options *o, engine *const *engines) {
    engine_options each = o->engine;
    qrun_device_info device = QRUN_DEVICE_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    if (o->data_parallel > 1 && each.context.n_threads == 0) {
        each.context.n_threads = local_threads(o->data_parallel);
    }
    for (int i = 0; i < o->data_parallel; i++) {
        RETURN_IF_FAILED(engine_open_ranks(engines[i], &each));
        if (o->data_parallel > 1 && each.model.memory_bytes == 0) {
            RETURN_IF_FAILED(
                complain_unless_ok(qrun_context_device_info(engines[i]->context, &device, &error), &error));
            each.model.memory_bytes = device.memory_available_bytes / 10 * 9 / o->data_parallel;
        }
        const qrun_session_params session = engine_session_params(&each);
        RETURN_IF_FAILED(engine_open_model(engines[i], &each));
        RETURN_IF_FAILED(engine_open_session(engines[i], &session));
    }
    return EXIT_OK;
}

/* e is the first one. */
static int serve_copies(const serve_options *o, const command_line *line, engine *e, const char *key) {
    engine *engines[SERVE_REPLICAS_MAX] = {e};
    engine *others = allocate((size_t)o->data_parallel * sizeof *others);
    for (int i = 1; i < o->data_parallel; i++) {
        others[i] = (engine){.is_copy = true};
        engines[i] = &others[i];
    }
    int code = open_copies(o, engines);
    if (code == EXIT_OK) { code = serve(o, line, engines, key); }
    for (int i = o->data_parallel; i-- > 1;) { engine_close(&others[i]); }
    free(others);
    return code;
}

/* As browsers write it: no path, and no slash at the end. */
static bool is_origin(const char *text) {
    const char *authority = strstr(text, "://");
    return authority != NULL && authority > text && authority[3] != '\0' && strpbrk(authority + 3, "/?# ") == NULL;
}

/* What would be found after the model is read, or never. */
static int check_server(const serve_options *o) {
    struct stat info;
    if ((o->tls_cert == NULL) != (o->tls_key == NULL)) {
        return complain(EXIT_USAGE, "--tls-cert and --tls-key go together");
    }
    if (o->allow_origin != NULL && strcmp(o->allow_origin, "*") != 0 && !is_origin(o->allow_origin)) {
        return complain(EXIT_USAGE, "--allow-origin takes an origin such as https://example.org, or *, not '%s'",
                        o->allow_origin);
    }
    if (o->adapter_folder != NULL && (stat(o->adapter_folder, &info) != 0 || !S_ISDIR(info.st_mode))) {
        return complain(EXIT_FILE, "--adapter-folder '%s': there is no such folder", o->adapter_folder);
    }
    return EXIT_OK;
}

static int run(const void *options, const command_line *line, engine *e) {
    const serve_options *o = options;
    text_buffer key = {0};
    int code = engine_require_model(&o->engine);
    if (code == EXIT_OK && o->data_parallel > 1 && o->engine.model.tensor_parallel > 1) {
        code = complain(EXIT_USAGE, "--data-parallel and --tensor-parallel exclude each other");
    }
    if (code == EXIT_OK) { code = check_server(o); }
    if (code == EXIT_OK) { code = engine_meet(e, &o->engine); }
    if (code == EXIT_OK && e->rank > 0) { return engine_follow(e, &o->engine); }
    if (code == EXIT_OK && o->api_key_file != NULL) { code = read_key(o->api_key_file, &key); }
    if (code == EXIT_OK) { code = serve_copies(o, line, e, key.data); }
    text_free(&key);
    return code;
}

static const serve_options defaults = {.engine = ENGINE_OPTIONS_INIT,
                                       .sampling = SAMPLING_OPTIONS_INIT(0),
                                       .data_parallel = 1,
                                       .host = "127.0.0.1",
                                       .port = 8080,
                                       .max_waiting = 1024,
                                       .max_body_bytes = 16 << 20,
                                       .max_connections = 4096,
                                       .drain_seconds = 30,
                                       .request_seconds = 60,
                                       .idle_seconds = 60};

const command command_serve = {
    .name = "serve",
    .summary = "answer requests over HTTP, as the APIs of OpenAI and Anthropic do",
    .usage = "--model DIR [--adapter NAME=DIR …] [OPTIONS]",
    .description =
        "Serves a model and its adapters to clients of the OpenAI API (chat and text completions, responses) and of "
        "Anthropic's (messages), whole or streamed. An answer has the tokens that 'qrun generate' gives for "
        "the same request, whatever else "
        "the server does. The address is printed on stdout when it accepts connections.\n\n"
        "docs/serve.md lists the endpoints and what of a request is understood.",
    .examples = "  qrun serve --model path/to/model\n"
                "  qrun serve --model path/to/model --adapter pirate=my-adapter --port 9000\n"
                "  # from another terminal:\n"
                "  curl http://localhost:9000/v1/completions -d '{\"prompt\": \"The sea is\"}'",
    .first_options = "model adapter host port model-name api-key-file memory context max-sequences quiet",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};
