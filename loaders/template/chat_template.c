#include "loaders/template/chat_template.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"
#include "loaders/source/model_source.h"
#include "loaders/template/jinja.h"
#include "loaders/template/messages.h"

enum { MAX_TEMPLATE_BYTES = 4 << 20, MAX_CONFIG_BYTES = 64 << 20 };

#define FILE_TEMPLATE "chat_template.jinja"
#define FILE_CONFIG "tokenizer_config.json"
#define FILE_TOKENS "special_tokens_map.json"
#define FILE_PROCESSOR "chat_template.json"
#define SUFFIX ".jinja"

const char *const qr_chat_template_files[] = {FILE_TEMPLATE,
                                              FILE_CONFIG,
                                              FILE_TOKENS,
                                              FILE_PROCESSOR,
                                              QR_MORE_TEMPLATES "/default" SUFFIX,
                                              QR_MORE_TEMPLATES "/tool_use" SUFFIX,
                                              NULL};

/* A variable of the template. */
typedef struct special_token {
    char *name, *text;
} special_token;

struct qr_chat_template {
    qr_jinja_template *standard;
    qr_jinja_template *tool_use; /* NULL: the standard one serves tools too */
    bool has_other;              /* while reading: a template of another name, which is not kept */
    special_token *tokens;
    size_t n_tokens, tokens_capacity;
    atomic_int bare[2]; /* 1 + qr_bare_content, of the standard template and the other; 0: not known yet */
};

void qr_chat_template_free(qr_chat_template *chat_template) {
    if (chat_template == NULL) { return; }
    qr_jinja_free(chat_template->standard);
    qr_jinja_free(chat_template->tool_use);
    for (size_t i = 0; i < chat_template->n_tokens; i++) {
        qr_free(chat_template->tokens[i].name);
        qr_free(chat_template->tokens[i].text);
    }
    qr_free(chat_template->tokens);
    qr_free(chat_template);
}

static qrun_status create(qr_chat_template **made, qr_error *err) {
    *made = qr_alloc_zeroed(sizeof **made);
    return *made != NULL ? QRUN_OK : qr_fail_memory(err, "a chat template", sizeof **made);
}

/* --- special tokens --- */

/* Sets or replaces one; NULL removes it. */
static qrun_status set_token(qr_chat_template *made, const char *name, const char *text, qr_error *err) {
    size_t i = 0;
    while (i < made->n_tokens && strcmp(made->tokens[i].name, name) != 0) { i++; }
    if (i == made->n_tokens) {
        if (text == NULL) { return QRUN_OK; }
        if (!qr_array_reserve(&made->tokens, &made->tokens_capacity, i + 1, sizeof *made->tokens)) {
            return qr_fail_memory(err, name, sizeof *made->tokens);
        }
        made->tokens[i] = (special_token){.name = qr_strdup(name)};
        if (made->tokens[i].name == NULL) { return qr_fail_memory(err, name, strlen(name)); }
        made->n_tokens++;
    }
    char *copy = text != NULL ? qr_strdup(text) : NULL;
    if (text != NULL && copy == NULL) { return qr_fail_memory(err, name, strlen(text)); }
    qr_free(made->tokens[i].text);
    made->tokens[i].text = copy;
    return QRUN_OK;
}

/* A token is written as a text or as {"content": text, …}; null means that there is none. */
static qrun_status read_token(qr_chat_template *made, const qr_json *object, const qr_json *member, const char *what,
                              qr_error *err) {
    const char *text = NULL;
    QR_RETURN_IF_ERROR(cJSON_IsObject(member) ? qr_json_get_string(member, "content", &text, what, err)
                                              : qr_json_get_string(object, member->string, &text, what, err));
    return set_token(made, member->string, text, err);
}

static bool is_standard_token(const char *name) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return false;
}

/* The tokens of tokenizer_config.json or special_tokens_map.json. A model's own are told by their names, and only where
 * the member can be a token: "add_bos_token" is true or false. */
static qrun_status read_tokens(qr_chat_template *made, const qr_json *config, const char *what, qr_error *err) {
    for (const qr_json *member = qr_json_first(config); member != NULL; member = member->next) {
        const bool is_own = qr_ends_with(member->string, "_token") &&
                            (cJSON_IsString(member) || cJSON_IsString(qr_json_get(member, "content")));
        if (is_own || is_standard_token(member->string)) {
            QR_RETURN_IF_ERROR(read_token(made, config, member, what, err));
        }
    }
    const qr_json *extra = qr_json_get(config, "extra_special_tokens"); /* a list of them has no names */
    for (const qr_json *member = cJSON_IsObject(extra) ? extra->child : NULL; member != NULL; member = member->next) {
        QR_RETURN_IF_ERROR(read_token(made, extra, member, what, err));
    }
    return QRUN_OK;
}

/* --- templates --- */

/* Where a template of that name is kept; NULL: nowhere, because nothing uses it. */
static qr_jinja_template **find_slot(qr_chat_template *made, const char *name) {
    if (strcmp(name, "default") == 0) { return &made->standard; }
    if (strcmp(name, "tool_use") == 0) { return &made->tool_use; }
    made->has_other = true;
    return NULL;
}

static qrun_status add_template(qr_chat_template *made, const char *name, const char *text, size_t n_bytes,
                                const char *what, qr_error *err) {
    qr_jinja_template **slot = find_slot(made, name);
    if (slot == NULL) { return QRUN_OK; }
    if (*slot != NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: two chat templates have the same name", what); }
    return qr_jinja_parse(text, n_bytes, what, slot, err);
}

static qrun_status read_file(qr_chat_template *made, const char *folder, const char *file, const char *name,
                             qr_error *err) {
    if (find_slot(made, name) == NULL) { return QRUN_OK; }
    qr_source_file read;
    QR_RETURN_IF_ERROR(qr_source_read(folder, file, MAX_TEMPLATE_BYTES, &read, err));
    const qrun_status status =
        read.text != NULL ? add_template(made, name, read.text, read.n_bytes, read.name, err) : QRUN_OK;
    qr_source_file_free(&read);
    return status;
}

/* additional_chat_templates/<name>.jinja. One of the name "default" would replace chat_template.jinja. */
static qrun_status read_additional(qr_chat_template *made, const char *folder, qr_error *err) {
    qrun_status status = QRUN_OK;
    char *path = qr_path_join(folder, QR_MORE_TEMPLATES);
    if (path == NULL) { return qr_fail_memory(err, "a file name", strlen(folder)); }
    DIR *listed = opendir(path);
    for (const struct dirent *entry; listed != NULL && (entry = readdir(listed)) != NULL;) {
        if (!qr_ends_with(entry->d_name, SUFFIX)) { continue; }
        char name[sizeof entry->d_name];
        const size_t n = strlen(entry->d_name) - strlen(SUFFIX);
        memcpy(name, entry->d_name, n);
        name[n] = '\0';
        QR_TRY(read_file(made, path, entry->d_name, name, err));
    }
out:
    if (listed != NULL) { closedir(listed); }
    qr_free(path);
    return status;
}

/* A list of {"name", "template"}, or an object of names and texts. */
static qrun_status read_named(qr_chat_template *made, const qr_json *named, const char *what, qr_error *err) {
    const bool is_list = cJSON_IsArray(named);
    for (const qr_json *item = qr_json_first(named); item != NULL; item = item->next) {
        const char *name = is_list ? NULL : item->string, *text = NULL;
        if (is_list) { QR_RETURN_IF_ERROR(qr_json_get_string(item, "name", &name, what, err)); }
        QR_RETURN_IF_ERROR(is_list ? qr_json_get_string(item, "template", &text, what, err)
                                   : qr_json_get_string(named, name, &text, what, err));
        if (name == NULL || text == NULL) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: a chat template in the list has no name or no text", what);
        }
        QR_RETURN_IF_ERROR(add_template(made, name, text, strlen(text), what, err));
    }
    return QRUN_OK;
}

static bool has_templates(const qr_chat_template *made) {
    return made->standard != NULL || made->tool_use != NULL || made->has_other;
}

/* The member "chat_template" of tokenizer_config.json or chat_template.json, where there is none yet. */
static qrun_status read_member(qr_chat_template *made, const qr_json *config, const char *what, qr_error *err) {
    const qr_json *member = qr_json_get(config, "chat_template");
    if (has_templates(made) || qr_json_is_null(member)) { return QRUN_OK; }
    if (cJSON_IsArray(member) || cJSON_IsObject(member)) { return read_named(made, member, what, err); }
    if (!cJSON_IsString(member)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"chat_template\" is neither a text nor a list of templates", what);
    }
    return add_template(made, "default", member->valuestring, strlen(member->valuestring), what, err);
}

/* A JSON object of the folder, to be freed with qr_json_free, and its path; both NULL where there is no such file. */
static qrun_status read_object(const char *folder, const char *file, qr_json **object, char **path, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_source_read_json(folder, file, MAX_CONFIG_BYTES, object, path, err));
    if (*object == NULL || cJSON_IsObject(*object)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: should hold a JSON object", *path);
}

/* special_tokens_map.json replaces tokens of a tokenizer_config.json that does not list the added tokens: these two are
 * from the same time. */
static qrun_status read_config(qr_chat_template *made, const char *folder, qr_error *err) {
    qr_json *config = NULL, *map = NULL;
    char *path = NULL, *map_path = NULL;
    qrun_status status;
    QR_TRY(read_object(folder, FILE_CONFIG, &config, &path, err));
    QR_TRY(read_tokens(made, config, path, err));
    QR_TRY(read_member(made, config, path, err));
    if (qr_json_get(config, "added_tokens_decoder") == NULL) {
        QR_TRY(read_object(folder, FILE_TOKENS, &map, &map_path, err));
        QR_TRY(read_tokens(made, map, map_path, err));
    }
out:
    qr_json_free(config);
    qr_json_free(map);
    qr_free(path);
    qr_free(map_path);
    return status;
}

static qrun_status read_processor(qr_chat_template *made, const char *folder, qr_error *err) {
    if (has_templates(made)) { return QRUN_OK; }
    qr_json *object = NULL;
    char *path = NULL;
    qrun_status status = read_object(folder, FILE_PROCESSOR, &object, &path, err);
    if (status == QRUN_OK) { status = read_member(made, object, path, err); }
    qr_json_free(object);
    qr_free(path);
    return status;
}

qrun_status qr_chat_template_open(const char *folder, qr_chat_template **chat_template, qr_error *err) {
    *chat_template = NULL;
    qr_chat_template *made = NULL;
    qrun_status status;
    QR_TRY(create(&made, err));
    QR_TRY(read_additional(made, folder, err));
    if (made->standard == NULL) { QR_TRY(read_file(made, folder, FILE_TEMPLATE, "default", err)); }
    QR_TRY(read_config(made, folder, err));
    QR_TRY(read_processor(made, folder, err));
    if (made->standard != NULL) {
        *chat_template = made;
        made = NULL;
    } else if (has_templates(made)) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: none of the chat templates is named \"default\"; " FILE_TEMPLATE " would be that", folder));
    }
out:
    qr_chat_template_free(made);
    return status;
}

qrun_status qr_chat_template_parse(const char *text, size_t n_bytes, const char *what, qr_chat_template **chat_template,
                                   qr_error *err) {
    *chat_template = NULL;
    qr_chat_template *made;
    QR_RETURN_IF_ERROR(create(&made, err));
    const qrun_status status = qr_jinja_parse(text, n_bytes, what, &made->standard, err);
    if (status == QRUN_OK) {
        *chat_template = made;
    } else {
        qr_chat_template_free(made);
    }
    return status;
}

/* --- rendering --- */

static qr_jinja_variable give_json(const char *name, const qr_json *json) {
    return (qr_jinja_variable){
        .name = name, .kind = qr_json_is_null(json) ? QR_JINJA_GIVE_NONE : QR_JINJA_GIVE_JSON, .json = json};
}

/* Fills variables, which have room for all: of two with one name the later wins. */
static size_t list_variables(const qr_chat_template *chat_template, const qr_json *messages, const qr_json *tools,
                             const qr_json *extra, bool add_generation_prompt, qr_jinja_variable *variables) {
    size_t n = 0;
    variables[n++] = give_json("documents", NULL);
    for (size_t i = 0; i < chat_template->n_tokens; i++) {
        const special_token *token = &chat_template->tokens[i];
        if (token->text == NULL) { continue; }
        variables[n++] = (qr_jinja_variable){.name = token->name, .kind = QR_JINJA_GIVE_TEXT, .text = token->text};
    }
    for (const qr_json *item = qr_json_first(extra); item != NULL; item = item->next) {
        variables[n++] = give_json(item->string, item);
    }
    variables[n++] = give_json("messages", messages);
    variables[n++] = give_json("tools", tools);
    variables[n++] = (qr_jinja_variable){
        .name = "add_generation_prompt", .kind = QR_JINJA_GIVE_BOOL, .boolean = add_generation_prompt};
    return n;
}

/* What to render, but for the messages. */
typedef struct setting {
    const qr_chat_template *chat_template;
    bool uses_tools; /* the template for them */
    const qr_json *tools, *extra;
    bool add_generation_prompt;
    int64_t now;
} setting;

static setting setting_of(const qr_chat_template *chat_template, const qr_json *tools, const qr_json *extra,
                          int64_t now) {
    const bool uses_tools = !qr_json_is_null(tools) && chat_template->tool_use != NULL;
    return (setting){
        .chat_template = chat_template, .uses_tools = uses_tools, .tools = tools, .extra = extra, .now = now};
}

static qrun_status render(const setting *s, const qr_json *messages, qr_bare_content bare, qr_buffer *out,
                          qr_error *err) {
    const qr_chat_template *of = s->chat_template;
    qr_template_messages prepared = {0};
    qr_jinja_variable *variables = NULL;
    qrun_status status;
    QR_TRY(qr_template_messages_prepare(messages, bare, &prepared, err));
    const size_t n_most = of->n_tokens + qr_json_count(s->extra) + 4;
    variables = qr_alloc_array(n_most, sizeof *variables);
    if (variables == NULL) { QR_TRY(qr_fail_memory(err, "the template's arguments", n_most * sizeof *variables)); }
    const size_t n = list_variables(of, &prepared.list, s->tools, s->extra, s->add_generation_prompt, variables);
    QR_TRY(qr_jinja_render(s->uses_tools ? of->tool_use : of->standard, variables, n, s->now, out, err));
out:
    qr_free(variables);
    qr_template_messages_free(&prepared);
    return status;
}

/* ---- What a template writes -------------------------------------------------------------------------------------- */

/* Renders a short conversation, which the message ends where there is one. */
static bool render_short(const setting *s, const qr_json *message, qr_bare_content bare, qr_buffer *out) {
    qr_json content = {.type = cJSON_String, .string = (char[]){"content"}, .valuestring = (char[]){"a"}};
    qr_json role = {
        .type = cJSON_String, .string = (char[]){"role"}, .valuestring = (char[]){"user"}, .next = &content};
    qr_json answer = {0};
    qr_json user = {.type = cJSON_Object, .child = &role, .next = message != NULL ? &answer : NULL};
    const qr_json list = {.type = cJSON_Array, .child = &user};
    if (message != NULL) { answer = *message; }
    answer.next = NULL;
    return render(s, &list, bare, out, NULL) == QRUN_OK && qr_buffer_ok(out);
}

/* Whether two renderings of one setting are there, and how they compare. */
typedef enum comparison { NOT_RENDERED, SAME, DIFFERENT } comparison;

static comparison compare(const setting *s, const qr_json *message, const setting *other_s, const qr_json *other,
                          qr_bare_content bare) {
    qr_buffer text = {0}, other_text = {0};
    comparison found = NOT_RENDERED;
    if (render_short(s, message, bare, &text) && render_short(other_s, other, bare, &other_text)) {
        const bool is_same =
            text.size == other_text.size && (text.size == 0 || memcmp(text.data, other_text.data, text.size) == 0);
        found = is_same ? SAME : DIFFERENT;
    }
    qr_buffer_free(&text);
    qr_buffer_free(&other_text);
    return found;
}

/* The message with another name in its first call; NULL: there is none, or no memory. */
static qr_json *rename_call(const qr_json *message) {
    qr_json *renamed = cJSON_Duplicate(message, true);
    const qr_json *call = qr_json_first(qr_json_get(renamed, "tool_calls")), *function = qr_json_get(call, "function");
    qr_json *name = cJSON_GetObjectItemCaseSensitive(function != NULL ? function : call, "name");
    if (cJSON_IsString(name) && cJSON_SetValuestring(name, "qrun_probe") != NULL) { return renamed; }
    cJSON_Delete(renamed);
    return NULL;
}

/* The first content with which a message's calls are written, as another name in them shows; the number of contents
 * where they are with none. */
static int find_content(const setting *s, const qr_json *message, const qr_json *renamed) {
    int bare = QR_BARE_EMPTY;
    while (bare <= QR_BARE_LEFT_OUT && compare(s, message, s, renamed, (qr_bare_content)bare) != DIFFERENT) { bare++; }
    return bare;
}

/* A message that calls a tool of this name. Some templates take arguments as a text alone. */
static qr_json *make_call(const char *name, bool has_text_arguments) {
    char text[256];
    qr_json *made = NULL;
    const int n = snprintf(text, sizeof text,
                           "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"abcdefghi\", \"type\": \"function\", "
                           "\"function\": {\"name\": \"%s\", \"arguments\": %s}}]}",
                           name, has_text_arguments ? "\"{\\\"b\\\": 1}\"" : "{\"b\": 1}");
    return qr_json_parse(text, (size_t)n, "a call", &made, NULL) == QRUN_OK ? made : NULL;
}

static int find_content_of_template(const setting *s) {
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"other\", \"description\": \"d\", "
                                "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";
    setting probe = {.chat_template = s->chat_template, .uses_tools = s->uses_tools};
    qr_json *list = NULL;
    int found = QR_BARE_LEFT_OUT + 1;
    if (s->uses_tools && qr_json_parse(tools, sizeof tools - 1, "tools", &list, NULL) != QRUN_OK) { return found; }
    probe.tools = list;
    for (int as_text = 0; as_text < 2 && found > QR_BARE_LEFT_OUT; as_text++) {
        qr_json *call = make_call("first_name", as_text == 1), *renamed = make_call("second_name", as_text == 1);
        if (call != NULL && renamed != NULL) { found = find_content(&probe, call, renamed); }
        qr_json_free(call);
        qr_json_free(renamed);
    }
    qr_json_free(list);
    return found;
}

/* What a template takes as the content of a message that calls tools and has none: the same for all of them, found out
 * once. */
static qr_bare_content choose_bare_content(const setting *s, const qr_json *messages) {
    atomic_int *known = (atomic_int *)(uintptr_t)&s->chat_template->bare[s->uses_tools ? 1 : 0];
    const qr_json *message = qr_json_first(messages);
    while (message != NULL && !qr_message_is_bare_call(message)) { message = message->next; }
    if (message == NULL) { return QR_BARE_LEFT_OUT; }
    int kept = atomic_load_explicit(known, memory_order_relaxed);
    if (kept == 0) {
        const int found = find_content_of_template(s);
        kept = 1 + (int)qr_min(found, QR_BARE_LEFT_OUT);
        atomic_store_explicit(known, kept, memory_order_relaxed);
    }
    return (qr_bare_content)(kept - 1);
}

bool qr_chat_template_writes_calls(const qr_chat_template *chat_template, const qr_json *message, const qr_json *tools,
                                   const qr_json *extra, int64_t now) {
    const setting s = setting_of(chat_template, tools, extra, now);
    if (qr_json_count(qr_json_get(message, "tool_calls")) == 0) { return true; }
    qr_json *renamed = rename_call(message);
    const bool is_written = renamed == NULL || find_content(&s, message, renamed) <= QR_BARE_LEFT_OUT;
    cJSON_Delete(renamed);
    return is_written;
}

bool qr_chat_template_writes_thoughts(const qr_chat_template *chat_template, const qr_json *message,
                                      const qr_json *extra, int64_t now) {
    const setting s = setting_of(chat_template, NULL, extra, now);
    qr_json *without = qr_message_without_thoughts(message);
    const bool is_lost = without != NULL && compare(&s, message, &s, without, QR_BARE_EMPTY) == SAME;
    cJSON_Delete(without);
    return !is_lost;
}

bool qr_chat_template_writes_tools(const qr_chat_template *chat_template, const qr_json *tools, const qr_json *extra,
                                   int64_t now) {
    const setting with = setting_of(chat_template, tools, extra, now);
    const setting without = setting_of(chat_template, NULL, extra, now);
    return qr_json_count(tools) == 0 || compare(&with, NULL, &without, NULL, QR_BARE_LEFT_OUT) != SAME;
}

qrun_status qr_chat_template_render(const qr_chat_template *chat_template, const qr_json *messages,
                                    const qr_json *tools, const qr_json *extra, bool add_generation_prompt, int64_t now,
                                    qr_buffer *out, qr_error *err) {
    setting s = setting_of(chat_template, tools, extra, now);
    s.add_generation_prompt = add_generation_prompt;
    const bool has_tools = !qr_json_is_null(tools);
    if (has_tools && !cJSON_IsArray(tools)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"tools\" should be a list of tools");
    }
    if (!qr_json_is_null(extra) && !cJSON_IsObject(extra)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "the template's arguments should be an object");
    }
    return render(&s, messages, choose_bare_content(&s, messages), out, err);
}
