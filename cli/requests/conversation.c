#include "cli/requests/conversation.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"

/* clang-format off */
static const option_choice truths[] = {{"true", 0}, {"false", 0}, {NULL, 0}};

const option template_option_table[N_TEMPLATE_OPTIONS] = {
    {.name = "tools", .kind = OPTION_TEXT, .value_name = "FILE.json", INTO(template_options, tools),
     .completion = COMPLETE_FILE,
     .help = "Tools for the chat template: a JSON array of function descriptions."},
    {.name = "template-arg", .kind = OPTION_TEXTS, .value_name = "KEY=VALUE", INTO(template_options, arguments),
     .help = "A further variable for the chat template. VALUE is JSON; anything else is taken as text. May be given "
             "several times."},
    {.name = "enable-thinking", .kind = OPTION_CHOICE, .choices = truths, INTO(template_options, enable_thinking),
     .help = "The same as --template-arg enable_thinking=…: whether a model such as Qwen3 thinks before it answers. "
             "Default: the template's own."},
};
/* clang-format on */

int template_require_chat(const template_options *options, const char *system) {
    if (system != NULL) { return complain(EXIT_USAGE, "--system needs --chat"); }
    const char *given = options->tools != NULL             ? "tools"
                        : options->arguments.count > 0     ? "template-arg"
                        : options->enable_thinking != NULL ? "enable-thinking"
                                                           : NULL;
    return given == NULL ? EXIT_OK : complain(EXIT_USAGE, "--%s is for the chat template, and needs --chat", given);
}

static bool is_json(const char *value) {
    cJSON *parsed = cJSON_ParseWithOpts(value, NULL, true);
    cJSON_Delete(parsed);
    return parsed != NULL;
}

static void add_member(text_buffer *object, const char *key, size_t key_bytes, const char *value) {
    text_puts(object, object->size == 0 ? "{" : ",");
    text_json_string(object, key, key_bytes);
    text_puts(object, ":");
    if (is_json(value)) {
        text_puts(object, value);
    } else {
        text_json_string(object, value, strlen(value));
    }
}

int template_read(const template_options *options, conversation *c) {
    text_buffer *arguments = &c->template_arguments;
    if (options->tools != NULL) { RETURN_IF_FAILED(file_read(&c->tools, options->tools)); }
    for (int i = 0; i < options->arguments.count; i++) {
        const char *argument = options->arguments.values[i];
        const char *equals = strchr(argument, '=');
        if (equals == NULL || equals == argument) {
            return complain(EXIT_USAGE, "--template-arg takes KEY=VALUE, not '%s'", argument);
        }
        add_member(arguments, argument, (size_t)(equals - argument), equals + 1);
    }
    if (options->enable_thinking != NULL) {
        static const char key[] = "enable_thinking";
        add_member(arguments, key, sizeof key - 1, options->enable_thinking);
    }
    if (arguments->size > 0) { text_puts(arguments, "}"); }
    return EXIT_OK;
}

void conversation_start(conversation *c, const char *system) {
    text_clear(&c->messages);
    if (system != NULL) { conversation_add(c, "system", system, strlen(system)); }
}

void conversation_add(conversation *c, const char *role, const char *content, size_t n_bytes) {
    text_buffer *json = &c->messages;
    if (json->size > 0) { json->size--; } /* the ']' */
    text_format(json, "%s{\"role\":\"%s\",\"content\":", json->size > 0 ? "," : "[", role);
    text_json_string(json, content, n_bytes);
    text_puts(json, "}]");
}

void conversation_cut(conversation *c, size_t messages_size) {
    c->messages.size = messages_size > 0 ? messages_size - 1 : 0;
    text_puts(&c->messages, messages_size > 0 ? "]" : "");
}

int conversation_save(const conversation *c, const char *path) {
    text_buffer line = {0};
    text_format(&line, "{\"messages\":%s}\n", c->messages.size > 0 ? c->messages.data : "[]");
    const int code = replace_file(path, &line);
    text_free(&line);
    return code;
}

static bool is_message(const cJSON *message) {
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    return cJSON_IsString(role) && cJSON_GetObjectItemCaseSensitive(message, "content") != NULL;
}

/* Whether a string has the escape of U+0000, at which a text of cJSON would end. Of two backslashes the second begins
 * no escape. */
static bool has_escaped_zero(const char *text) {
    const char *at = strchr(text, '\\');
    while (at != NULL && at[1] != '\0' && strncmp(at, "\\u0000", 6) != 0) { at = strchr(at + 2, '\\'); }
    return at != NULL && at[1] != '\0';
}

/* The messages of a text, which has one conversation; NULL: it has none. */
static cJSON *parse_messages(const char *text, cJSON **whole) {
    *whole = has_escaped_zero(text) ? NULL : cJSON_ParseWithOpts(text, NULL, true);
    cJSON *messages = cJSON_IsArray(*whole) ? *whole : cJSON_GetObjectItemCaseSensitive(*whole, "messages");
    const cJSON *message;
    if (!cJSON_IsArray(messages)) { return NULL; }
    cJSON_ArrayForEach(message, messages) {
        if (!is_message(message)) { return NULL; }
    }
    return messages;
}

int conversation_load(conversation *c, const char *path) {
    text_buffer content = {0};
    int code = file_read_text(&content, path);
    if (code == EXIT_OK) { code = text_require_utf8("the conversation", content.data, content.size); }
    if (code == EXIT_OK) {
        cJSON *whole;
        cJSON *messages = parse_messages(content.data, &whole);
        char *json = messages != NULL ? cJSON_PrintUnformatted(messages) : NULL;
        if (json != NULL) {
            text_clear(&c->messages);
            text_puts(&c->messages, cJSON_GetArraySize(messages) > 0 ? json : "");
        } else {
            code = complain(EXIT_FILE,
                            "'%s' is no conversation: it has to be {\"messages\": [{\"role\": …, "
                            "\"content\": …}, …]}, as /save writes it",
                            path);
        }
        cJSON_free(json);
        cJSON_Delete(whole);
    }
    text_free(&content);
    return code;
}

int conversation_may_replace(const char *path) {
    struct stat info;
    text_buffer content = {0};
    cJSON *whole = NULL;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) { return EXIT_OK; }
    int code = file_read(&content, path);
    if (code == EXIT_OK && parse_messages(content.data, &whole) == NULL) {
        code = complain(EXIT_FILE, "'%s' is there already, and is no conversation; choose another name", path);
    }
    cJSON_Delete(whole);
    text_free(&content);
    return code;
}

int64_t conversation_count(const conversation *c, const char *role, char **first) {
    cJSON *messages = cJSON_Parse(c->messages.size > 0 ? c->messages.data : "[]");
    const cJSON *message;
    int64_t n = 0;
    *first = NULL;
    cJSON_ArrayForEach(message, messages) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
        const char *its = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "role"));
        if (its == NULL || strcmp(its, role) != 0) { continue; }
        if (n++ == 0 && cJSON_IsString(content)) {
            const size_t size = strlen(content->valuestring) + 1;
            *first = memcpy(allocate(size), content->valuestring, size);
        }
    }
    cJSON_Delete(messages);
    return n;
}

void conversation_free(conversation *c) {
    text_free(&c->messages);
    text_free(&c->tools);
    text_free(&c->template_arguments);
}
