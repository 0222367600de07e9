#include "loaders/data/example.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/data/chat.h"

/* The prompts that Stanford Alpaca was trained with. */
static const char ALPACA_WITH_INPUT[] =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n";
static const char ALPACA_WITHOUT_INPUT[] =
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n";
static const char ALPACA_INPUT[] = "\n\n### Input:\n";
static const char ALPACA_RESPONSE[] = "\n\n### Response:\n";

const char *qr_dataset_format_name(qr_dataset_format format) {
    static const char *const names[QR_DATASET_FORMAT_COUNT] = {
        "messages",        "prompt/completion",  "alpaca",       "text",
        "question/answer", "sharegpt",           "input/output", "prompt/completion messages",
        "preference",      "preference messages"};
    return names[format];
}

/* ---- the encoder ------------------------------------------------------------------------------------------------- */

/* tokens[0, n) of the tokenizer around a text: those before it and those after it. */
static qrun_status split_special(const qr_tokens *with, const qr_tokens *without, qr_example_encoder *encoder,
                                 qr_error *err) {
    size_t n_first = 0;
    while (n_first + without->n < with->n &&
           memcmp(with->ids + n_first, without->ids, without->n * sizeof *without->ids) != 0) {
        n_first++;
    }
    for (size_t i = 0; i < with->n; i++) {
        if (i < n_first) { QR_RETURN_IF_ERROR(qr_tokens_push(&encoder->first, with->ids[i], err)); }
        if (i >= n_first + without->n) { QR_RETURN_IF_ERROR(qr_tokens_push(&encoder->last, with->ids[i], err)); }
    }
    return QRUN_OK;
}

static qrun_status find_special(qr_example_encoder *encoder, qr_error *err) {
    qr_tokens with = {0}, without = {0};
    qrun_status status;
    QR_TRY(qr_tokenizer_encode(encoder->tokenizer, "a", 1,
                               &(qr_encode_options){.add_special = true, .parse_special = true}, &with, err));
    QR_TRY(qr_tokenizer_encode(encoder->tokenizer, "a", 1, &(qr_encode_options){.parse_special = true}, &without, err));
    if (with.n > without.n && without.n > 0) { QR_TRY(split_special(&with, &without, encoder, err)); }
out:
    qr_tokens_free(&with);
    qr_tokens_free(&without);
    return status;
}

/* The moment at which the clock on the wall shows this, which templates turn into local time again. */
static int64_t moment_of(int64_t shown) {
    const time_t seconds = (time_t)shown;
    struct tm wall = {0};
    if (gmtime_r(&seconds, &wall) == NULL) { return shown; }
    wall.tm_isdst = -1;
    return (int64_t)mktime(&wall);
}

qrun_status qr_example_encoder_create(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                                      const qr_chat_template *chat_template, qr_example_encoder *encoder,
                                      qr_error *err) {
    *encoder = (qr_example_encoder){.tokenizer = tokenizer,
                                    .chat_template = chat_template,
                                    .now = moment_of(options->now),
                                    .seq_len = options->seq_len,
                                    .preferences = options->preferences};
    const char *arguments = options->template_arguments;
    QR_RETURN_IF_ERROR(qr_columns_parse(options->columns, &encoder->columns, err));
    if (arguments != NULL) {
        QR_RETURN_IF_ERROR(
            qr_json_parse(arguments, strlen(arguments), "the template's arguments", &encoder->template_arguments, err));
    }
    return find_special(encoder, err);
}

void qr_example_encoder_free(qr_example_encoder *encoder) {
    qr_json_free(encoder->template_arguments);
    qr_columns_free(&encoder->columns);
    qr_tokens_free(&encoder->first);
    qr_tokens_free(&encoder->last);
    *encoder = (qr_example_encoder){0};
}

static void free_columns(qr_encoded_example *example) {
    for (size_t i = 0; i < QR_EXAMPLE_COLUMNS; i++) {
        qr_free(example->columns[i]);
        example->columns[i] = NULL;
    }
}

void qr_encoded_example_free(qr_encoded_example *example) {
    free_columns(example);
    qr_buffer_free(&example->notes.unknown_members);
    qr_tokens_free(&example->tokens);
    qr_buffer_free(&example->is_target);
    qr_marked_text_free(&example->marked);
    qr_tokens_free(&example->chosen);
    qr_buffer_free(&example->chosen_is_target);
    *example = (qr_encoded_example){0};
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* Whether a pair's answers are what follows its prompt: as texts, or as messages after messages. Beside a prompt that
 * is a text, messages are whole conversations. */
static bool has_prompt_apart(const qr_json *pair) {
    const qr_json *prompt = qr_json_get(pair, "prompt");
    return prompt != NULL && (cJSON_IsArray(prompt) || cJSON_IsString(qr_json_get(pair, "chosen")));
}

/* What an example is not, and what it could be. */
static qrun_status refuse_format(const qr_json *root, qr_error *err) {
    qr_buffer members = {0};
    if (!cJSON_IsObject(root)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "has no known format: it is no object. A line should be like {\"prompt\": \"Hello!\", "
                       "\"completion\": \" Ahoy!\"}");
    }
    if (qr_json_get(root, "chosen") != NULL && qr_json_get(root, "rejected") != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "has a \"chosen\" and a \"rejected\" answer: `objective=dpo` learns to prefer the one to the "
                       "other. To learn the chosen ones alone: `columns=%s`",
                       has_prompt_apart(root) ? "prompt=prompt,completion=chosen" : "messages=chosen");
    }
    qr_columns_list(root, &members);
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_INPUT,
                "has no known format: its members are %s. A line should be like {\"prompt\": \"Hello!\", "
                "\"completion\": \" Ahoy!\"}, or have \"messages\", \"prompt\" and \"response\", \"instruction\" and "
                "\"output\", \"question\" and \"answer\", \"input\" and \"output\", \"conversations\", or \"text\". "
                "`columns` gives other names to members",
                members.data != NULL ? members.data : "");
    qr_buffer_free(&members);
    return status;
}

/* What an example is not, where it should be a pair. */
static qrun_status refuse_no_pair(const qr_json *root, qr_error *err) {
    qr_buffer members = {0};
    if (cJSON_IsObject(root)) { qr_columns_list(root, &members); }
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_INPUT,
                "is no pair of answers%s%s. A line should be like {\"prompt\": \"Hello!\", \"chosen\": \" Ahoy!\", "
                "\"rejected\": \" Hi.\"}; the three may be lists of messages, and `columns` gives other names to them",
                members.data != NULL ? ": its members are " : "", members.data != NULL ? members.data : "");
    qr_buffer_free(&members);
    return status;
}

/* What is read from an example of two texts. */
typedef struct pair_keys {
    const char *first, *second;
} pair_keys;

static qrun_status find_format(const qr_json *root, qr_dataset_format *format, pair_keys *keys, qr_error *err) {
    static const struct {
        pair_keys keys; /* that an example of the format has; the second may be NULL */
        qr_dataset_format format;
    } formats[] = {
        {{"messages", NULL}, QR_DATASET_MESSAGES},
        {{"prompt", "completion"}, QR_DATASET_PROMPT_COMPLETION},
        {{"prompt", "response"}, QR_DATASET_PROMPT_COMPLETION},
        {{"instruction", "output"}, QR_DATASET_ALPACA},
        {{"conversations", NULL}, QR_DATASET_SHAREGPT},
        {{"question", "answer"}, QR_DATASET_QUESTION_ANSWER},
        {{"input", "output"}, QR_DATASET_INPUT_OUTPUT},
        {{"text", NULL}, QR_DATASET_TEXT},
    };
    /* Rows of tables have every member, and null in those of other rows' formats. A row of nulls alone is told so. */
    for (size_t i = 0; i < 2 * QR_COUNT_OF(formats) && cJSON_IsObject(root); i++) {
        const size_t at = i % QR_COUNT_OF(formats);
        *keys = formats[at].keys;
        const qr_json *first = qr_json_get(root, keys->first);
        const qr_json *second = keys->second != NULL ? qr_json_get(root, keys->second) : first;
        const bool takes_null = i >= QR_COUNT_OF(formats);
        if (takes_null ? first == NULL || second == NULL : qr_json_is_null(first) || qr_json_is_null(second)) {
            continue;
        }
        const bool is_chat = qr_json_get(qr_json_first(qr_json_get(root, keys->first)), "role") != NULL;
        *format = formats[at].format;
        if (*format == QR_DATASET_PROMPT_COMPLETION && is_chat) { *format = QR_DATASET_PROMPT_MESSAGES; }
        return QRUN_OK;
    }
    return refuse_format(root, err);
}

/* A member that has to be a text: the example's `column`-th. */
static qrun_status get_text(qr_encoded_example *example, int column, const qr_json *root, const char *key,
                            const char **text, qr_error *err) {
    char where[32];
    (void)snprintf(where, sizeof where, "\"%s\"", key);
    return qr_content_text(qr_json_get(root, key), where, text, &example->columns[column], err);
}

static qrun_status push_all(qr_tokens *tokens, qr_buffer *is_target, const qr_tokens *more, uint8_t target,
                            qr_error *err) {
    for (size_t i = 0; i < more->n; i++) {
        QR_RETURN_IF_ERROR(qr_tokens_push(tokens, more->ids[i], err));
        qr_buffer_append_char(is_target, (char)target);
    }
    return QRUN_OK;
}

/* Text of which the beginning and the end, or one of them, are where the model's own texts have theirs. */
static qrun_status encode_stretch(const qr_example_encoder *encoder, bool begins, bool ends,
                                  qr_encoded_example *example, qr_error *err) {
    const int32_t eos_id = qr_tokenizer_eos_id(encoder->tokenizer);
    qr_tokens *tokens = &example->tokens;
    if (!qr_buffer_ok(&example->marked.text)) { return qr_fail_memory(err, "an example", example->marked.text.size); }
    if (begins) { QR_RETURN_IF_ERROR(push_all(tokens, &example->is_target, &encoder->first, 0, err)); }
    QR_RETURN_IF_ERROR(qr_marked_text_encode(&example->marked, encoder->tokenizer, tokens, &example->is_target, err));
    if (!ends) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(push_all(tokens, &example->is_target, &encoder->last, 1, err));
    if (eos_id >= 0 && (tokens->n == 0 || tokens->ids[tokens->n - 1] != eos_id)) {
        QR_RETURN_IF_ERROR(push_all(tokens, &example->is_target, &(qr_tokens){(int32_t[]){eos_id}, 1, 1}, 1, err));
    }
    return QRUN_OK;
}

static qrun_status encode_document(const qr_example_encoder *encoder, qr_encoded_example *example, qr_error *err) {
    return encode_stretch(encoder, true, true, example, err);
}

static qrun_status encode_completion(const qr_example_encoder *encoder, const char *completion,
                                     qr_encoded_example *example, qr_error *err) {
    qr_marked_text *marked = &example->marked;
    const size_t n_prompt = marked->text.size;
    qr_buffer_append_text(&marked->text, completion);
    QR_RETURN_IF_ERROR(qr_marked_text_add(marked, n_prompt, marked->text.size, err));
    return encode_document(encoder, example, err);
}

/* A prompt as it is, and its completion. */
static qrun_status encode_pair(const qr_example_encoder *encoder, const char *prompt, const char *completion,
                               qr_encoded_example *example, qr_error *err) {
    qr_buffer_append_text(&example->marked.text, prompt);
    return encode_completion(encoder, completion, example, err);
}

static qrun_status encode_text(const qr_example_encoder *encoder, const qr_json *root, qr_encoded_example *example,
                               qr_error *err) {
    const char *text;
    QR_RETURN_IF_ERROR(get_text(example, 0, root, "text", &text, err));
    if (text[0] == '\0') { return QRUN_OK; }
    return encode_completion(encoder, text, example, err);
}

/* Some templates end a turn only when another one follows, and some only by what that begins with. So an EOS directly
 * after an answer is part of it, and a last answer that ends in no special token is given one. */
static qrun_status end_turns(const qr_example_encoder *encoder, qr_encoded_example *example, qr_error *err) {
    const int32_t eos_id = qr_tokenizer_eos_id(encoder->tokenizer);
    const qr_tokens *tokens = &example->tokens;
    char *is_target = example->is_target.data;
    bool is_ended = false;
    if (eos_id < 0 || tokens->n == 0 || !qr_buffer_ok(&example->is_target)) { return QRUN_OK; }
    for (size_t t = 1; t < tokens->n; t++) {
        if (is_target[t - 1] != 0 && tokens->ids[t] == eos_id) { is_target[t] = 1; }
        is_ended = is_target[t] != 0 && (is_target[t - 1] != 0 ? is_ended : false);
        is_ended |= is_target[t] != 0 && qr_tokenizer_is_special(encoder->tokenizer, tokens->ids[t]);
    }
    if (is_ended || is_target[tokens->n - 1] == 0) { return QRUN_OK; }
    return push_all(&example->tokens, &example->is_target, &(qr_tokens){(int32_t[]){eos_id}, 1, 1}, 1, err);
}

/* A table can have tools only as JSON in a text, as TRL reads it. *parsed: for qr_json_free. */
static qrun_status read_tools(const qr_json **tools, qr_json **parsed, qr_error *err) {
    *parsed = NULL;
    if (!cJSON_IsString(*tools)) { return QRUN_OK; }
    const char *text = (*tools)->valuestring;
    *tools = NULL;
    if (text[strspn(text, " \t\r\n")] == '\0') { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_json_parse_line(text, strlen(text), "the text in \"tools\"", parsed, err));
    *tools = qr_json_is_null(*parsed) ? NULL : *parsed;
    return QRUN_OK;
}

static qrun_status encode_conversation(const qr_example_encoder *encoder, const qr_messages_source *messages,
                                       const qr_json *tools, qr_encoded_example *example, qr_error *err) {
    if (encoder->chat_template == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "the examples are messages, and the model has no chat template; "
                       "give them as prompt and completion, or put a chat_template.jinja into the model's folder");
    }
    qr_json *parsed;
    QR_RETURN_IF_ERROR(read_tools(&tools, &parsed, err));
    const qr_conversation conversation = {*messages, tools, encoder->template_arguments, encoder->now};
    const qrun_status status =
        qr_conversation_render(&conversation, encoder->chat_template, &example->marked, &example->notes, err);
    qr_json_free(parsed);
    QR_RETURN_IF_ERROR(status);
    QR_RETURN_IF_ERROR(
        qr_marked_text_encode(&example->marked, encoder->tokenizer, &example->tokens, &example->is_target, err));
    return end_turns(encoder, example, err);
}

/* The texts of an example that becomes a conversation, and the member "system" beside them (NULL: none). */
typedef struct instruction_texts {
    const char *instruction, *input, *output;
    const qr_json *system;
} instruction_texts;

/* A user's message and the answer to it, as JSON. */
static qrun_status encode_instruction(const qr_example_encoder *encoder, const instruction_texts *texts,
                                      qr_encoded_example *example, qr_error *err) {
    const char *instruction = texts->instruction, *input = texts->input, *output = texts->output;
    qr_buffer question = {0}, text = {0};
    qr_json *messages = NULL;
    qrun_status status;
    qr_buffer_append_format(&question, "%s%s%s", instruction, input[0] != '\0' ? "\n\n" : "", input);
    qr_buffer_append_text(&text, "[{\"role\": \"user\", \"content\": ");
    qr_buffer_append_json_string(&text, question.data != NULL ? question.data : "", question.size);
    qr_buffer_append_text(&text, "}, {\"role\": \"assistant\", \"content\": ");
    qr_buffer_append_json_string(&text, output, strlen(output));
    qr_buffer_append_text(&text, "}]");
    if (!qr_buffer_ok(&question) || !qr_buffer_ok(&text)) { QR_TRY(qr_fail_memory(err, "an example", text.size)); }
    QR_TRY(qr_json_parse(text.data, text.size, "an example", &messages, err));
    const qr_messages_source source = {.list = messages, .system = texts->system};
    QR_TRY(encode_conversation(encoder, &source, NULL, example, err));
out:
    qr_json_free(messages);
    qr_buffer_free(&question);
    qr_buffer_free(&text);
    return status;
}

/* Where there are no messages, a system's words would be lost. */
static qrun_status refuse_system(const qr_json *root, const pair_keys *keys, qr_error *err) {
    const qr_json *system = qr_json_get(root, "system");
    if (qr_json_is_null(system) || (cJSON_IsString(system) && system->valuestring[0] == '\0')) { return QRUN_OK; }
    if (strcmp(keys->second, "chosen") == 0 || strcmp(keys->second, "rejected") == 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "has a \"system\", which pairs of texts have no place for; give lists of messages, or leave it "
                       "out with `columns=prompt=prompt,chosen=chosen,rejected=rejected`");
    }
    return qr_fail(
        err, QRUN_ERROR_INPUT,
        "has a \"system\", which texts without a chat template have no place for; give \"messages\", or leave "
        "it out with `columns=%s=%s,%s=%s`",
        keys->first, keys->first, keys->second, keys->second);
}

static qrun_status encode_alpaca(const qr_example_encoder *encoder, const qr_json *root, qr_encoded_example *example,
                                 qr_error *err) {
    const char *instruction, *input = "", *output;
    QR_RETURN_IF_ERROR(get_text(example, 0, root, "instruction", &instruction, err));
    if (!qr_json_is_null(qr_json_get(root, "input"))) {
        QR_RETURN_IF_ERROR(get_text(example, 1, root, "input", &input, err));
    }
    QR_RETURN_IF_ERROR(get_text(example, 2, root, "output", &output, err));
    if (qr_json_first(qr_json_get(root, "history")) != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "has a \"history\"; give conversations as \"messages\"");
    }
    if (encoder->chat_template != NULL) {
        const instruction_texts texts = {instruction, input, output, qr_json_get(root, "system")};
        return encode_instruction(encoder, &texts, example, err);
    }
    QR_RETURN_IF_ERROR(refuse_system(root, &(pair_keys){"instruction", "output"}, err));
    qr_buffer *text = &example->marked.text;
    qr_buffer_append_text(text, input[0] != '\0' ? ALPACA_WITH_INPUT : ALPACA_WITHOUT_INPUT);
    qr_buffer_append_text(text, instruction);
    if (input[0] != '\0') {
        qr_buffer_append_text(text, ALPACA_INPUT);
        qr_buffer_append_text(text, input);
    }
    qr_buffer_append_text(text, ALPACA_RESPONSE);
    return encode_completion(encoder, output, example, err);
}

/* The formats of two texts. */
static qrun_status encode_two(const qr_example_encoder *encoder, const qr_json *root, const pair_keys *keys,
                              qr_encoded_example *example, qr_error *err) {
    const char *first, *second;
    QR_RETURN_IF_ERROR(get_text(example, 0, root, keys->first, &first, err));
    QR_RETURN_IF_ERROR(get_text(example, 1, root, keys->second, &second, err));
    const bool is_plain = example->format == QR_DATASET_PROMPT_COMPLETION || example->format == QR_DATASET_PREFERENCE;
    if (!is_plain && encoder->chat_template != NULL) {
        const instruction_texts texts = {first, "", second, qr_json_get(root, "system")};
        return encode_instruction(encoder, &texts, example, err);
    }
    QR_RETURN_IF_ERROR(refuse_system(root, keys, err));
    if (is_plain) { return encode_pair(encoder, first, second, example, err); }
    if (example->format == QR_DATASET_INPUT_OUTPUT) { return encode_pair(encoder, first, second, example, err); }
    qr_buffer *text = &example->marked.text;
    qr_buffer_append_format(text, "Question: %s\nAnswer:", first);
    const size_t n_question = text->size;
    qr_buffer_append_format(text, " %s", second);
    QR_RETURN_IF_ERROR(qr_marked_text_add(&example->marked, n_question, text->size, err));
    return encode_document(encoder, example, err);
}

static qrun_status encode_messages(const qr_example_encoder *encoder, const qr_json *root, const pair_keys *keys,
                                   qr_encoded_example *example, qr_error *err) {
    qr_messages_source messages = {.list = qr_json_get(root, keys->first), .system = qr_json_get(root, "system")};
    if (example->format == QR_DATASET_PROMPT_MESSAGES) { messages.answer = qr_json_get(root, keys->second); }
    if (example->format == QR_DATASET_SHAREGPT) {
        messages.is_sharegpt = qr_json_get(qr_json_first(messages.list), "role") == NULL;
    }
    return encode_conversation(encoder, &messages, qr_json_get(root, "tools"), example, err);
}

/* Keeps the first `most` tokens, and adds what there is of targets to *n_targets. */
static void cut_sequence(size_t most, qr_tokens *tokens, const qr_buffer *mask, int64_t *n_targets,
                         qr_encoded_example *example) {
    const size_t n = tokens->n, n_kept = n > most ? most : n;
    uint8_t *is_target = (uint8_t *)mask->data;
    if (n > 0) { is_target[0] = 0; } /* nothing predicts it */
    for (size_t i = 0; i < n; i++) { *(i < n_kept ? n_targets : &example->n_cut_targets) += is_target[i]; }
    example->n_cut_tokens += (int64_t)(n - n_kept);
    tokens->n = n_kept;
}

static void cut_and_count(const qr_example_encoder *encoder, qr_encoded_example *example) {
    cut_sequence((size_t)encoder->seq_len, &example->tokens, &example->is_target, &example->n_targets, example);
}

static void clear(qr_encoded_example *example) {
    example->tokens.n = 0;
    qr_buffer_clear(&example->is_target);
    qr_marked_text_clear(&example->marked);
    qr_buffer_clear(&example->notes.unknown_members);
    example->notes.sets_aside = false;
    example->n_targets = example->n_chosen = example->n_cut_tokens = example->n_cut_targets = 0;
    free_columns(example);
}

static qrun_status require_mask(const qr_encoded_example *example, qr_error *err) {
    if (qr_buffer_ok(&example->is_target)) { return QRUN_OK; }
    return qr_fail_memory(err, "the mask of an example", example->tokens.n);
}

/* ---- members that are not read ----------------------------------------------------------------------------------- */

static bool is_empty(const qr_json *value) {
    return qr_json_is_null(value) || (cJSON_IsString(value) && value->valuestring[0] == '\0') ||
           ((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

static bool is_one_of(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (names[i] != NULL && strcmp(name, names[i]) == 0) { return true; }
    }
    return false;
}

/* Notes the members that are none of these three, nor what any format has beside them. Without its images, a text would
 * speak of what is not there. */
static qrun_status note_members(const qr_json *root, const pair_keys *keys, const char *third,
                                qr_encoded_example *example, qr_error *err) {
    static const char *const media[] = {"images", "image", "videos", "video", "audios", "audio"};
    const char *const read[] = {keys->first, keys->second, third, "system", "tools"};
    for (const qr_json *member = qr_json_first(root); member != NULL; member = member->next) {
        if (is_empty(member) || is_one_of(member->string, read, QR_COUNT_OF(read))) { continue; }
        if (is_one_of(member->string, media, QR_COUNT_OF(media))) {
            return qr_fail(err, QRUN_ERROR_INPUT, "has \"%s\", and only text is trained on", member->string);
        }
        qr_buffer_append(&example->notes.unknown_members, member->string, strlen(member->string) + 1);
    }
    return QRUN_OK;
}

/* ---- pairs of answers -------------------------------------------------------------------------------------------- */

static bool is_messages(const qr_json *value) { return qr_json_get(qr_json_first(value), "role") != NULL; }

/* Of two conversations, how many messages they begin with in common; never all of either. */
static size_t count_common(const qr_json *chosen, const qr_json *rejected) {
    const qr_json *a = qr_json_first(chosen), *b = qr_json_first(rejected);
    size_t n = 0;
    while (a != NULL && b != NULL && a->next != NULL && b->next != NULL && qr_json_equal(a, b)) {
        n++, a = a->next, b = b->next;
    }
    return n;
}

/* How the answers of a pair follow its prompt. */
typedef struct pair_form {
    bool has_prompt_messages;
    size_t n_common;
} pair_form;

static qrun_status find_pair_form(const qr_json *root, qr_dataset_format *format, pair_form *form, qr_error *err) {
    const qr_json *chosen = qr_json_get(root, "chosen"), *rejected = qr_json_get(root, "rejected");
    const qr_json *prompt = qr_json_get(root, "prompt");
    const qr_json *role = qr_json_get(qr_json_first(chosen), "role");
    *form = (pair_form){0};
    if (chosen == NULL || rejected == NULL || (prompt == NULL && !is_messages(chosen))) {
        return refuse_no_pair(root, err);
    }
    *format = is_messages(chosen) ? QR_DATASET_PREFERENCE_MESSAGES : QR_DATASET_PREFERENCE;
    if (*format == QR_DATASET_PREFERENCE) { return QRUN_OK; }
    if (!is_messages(rejected)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"chosen\" is a list of messages, and \"rejected\" is not");
    }
    form->has_prompt_messages = is_messages(prompt);
    if (form->has_prompt_messages) { return QRUN_OK; }
    if (!qr_json_is_null(prompt) && cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0) {
        return qr_fail(
            err, QRUN_ERROR_INPUT,
            "\"chosen\" is a list of messages that begins with the answer, so \"prompt\" should be a list of "
            "messages too");
    }
    form->n_common = count_common(chosen, rejected);
    return QRUN_OK;
}

/* The prompt and one of its answers: the member `key`. */
static qrun_status encode_answer(const qr_example_encoder *encoder, const qr_json *root, const pair_form *form,
                                 const char *key, qr_encoded_example *example, qr_error *err) {
    if (example->format == QR_DATASET_PREFERENCE) {
        return encode_two(encoder, root, &(pair_keys){"prompt", key}, example, err);
    }
    qr_messages_source messages = {.list = qr_json_get(root, key), .system = qr_json_get(root, "system")};
    messages.n_prompt = form->n_common;
    if (form->has_prompt_messages) {
        messages.answer = messages.list;
        messages.list = qr_json_get(root, "prompt");
    }
    return encode_conversation(encoder, &messages, qr_json_get(root, "tools"), example, err);
}

static void swap_chosen(qr_encoded_example *example) {
    const qr_tokens tokens = example->chosen;
    const qr_buffer is_target = example->chosen_is_target;
    example->chosen = example->tokens;
    example->chosen_is_target = example->is_target;
    example->tokens = tokens;
    example->is_target = is_target;
}

/* What the example has so far is the chosen answer: makes room for the rejected one. */
static void set_chosen_aside(qr_encoded_example *example) {
    swap_chosen(example);
    example->tokens.n = 0;
    qr_buffer_clear(&example->is_target);
    qr_marked_text_clear(&example->marked);
    free_columns(example);
}

/* Both answers in one, cut so that they have seq_len tokens together. */
static qrun_status join_answers(const qr_example_encoder *encoder, qr_encoded_example *example, qr_error *err) {
    const size_t room = (size_t)encoder->seq_len, half = room / 2, n_rejected = example->tokens.n;
    const size_t most_chosen = n_rejected < room - half ? room - n_rejected : half;
    int64_t n_chosen_targets = 0, n_rejected_targets = 0;
    cut_sequence(most_chosen, &example->chosen, &example->chosen_is_target, &n_chosen_targets, example);
    const size_t n_chosen = example->chosen.n;
    cut_sequence(room - n_chosen, &example->tokens, &example->is_target, &n_rejected_targets, example);
    for (size_t i = 0; i < example->tokens.n; i++) {
        QR_RETURN_IF_ERROR(qr_tokens_push(&example->chosen, example->tokens.ids[i], err));
    }
    example->chosen_is_target.size = n_chosen;
    qr_buffer_append(&example->chosen_is_target, example->is_target.data, example->tokens.n);
    swap_chosen(example);
    example->n_chosen = (int64_t)n_chosen;
    if (n_chosen_targets > 0 && n_rejected_targets > 0) { example->n_targets = n_chosen_targets + n_rejected_targets; }
    return require_mask(example, err);
}

static qrun_status encode_preference(const qr_example_encoder *encoder, const qr_json *root,
                                     qr_encoded_example *example, qr_error *err) {
    pair_form form;
    QR_RETURN_IF_ERROR(find_pair_form(root, &example->format, &form, err));
    QR_RETURN_IF_ERROR(note_members(root, &(pair_keys){"chosen", "rejected"}, "prompt", example, err));
    QR_RETURN_IF_ERROR(encode_answer(encoder, root, &form, "chosen", example, err));
    QR_RETURN_IF_ERROR(require_mask(example, err));
    set_chosen_aside(example);
    QR_RETURN_IF_ERROR(encode_answer(encoder, root, &form, "rejected", example, err));
    QR_RETURN_IF_ERROR(require_mask(example, err));
    return join_answers(encoder, example, err);
}

/* ---- examples ---------------------------------------------------------------------------------------------------- */

static qrun_status encode_members(const qr_example_encoder *encoder, const qr_json *root, qr_encoded_example *example,
                                  qr_error *err) {
    pair_keys keys = {NULL, NULL};
    QR_RETURN_IF_ERROR(find_format(root, &example->format, &keys, err));
    const char *third = example->format == QR_DATASET_ALPACA ? "input" : NULL;
    QR_RETURN_IF_ERROR(note_members(root, &keys, third, example, err));
    switch (example->format) {
        case QR_DATASET_MESSAGES:
        case QR_DATASET_PROMPT_MESSAGES:
        case QR_DATASET_SHAREGPT: return encode_messages(encoder, root, &keys, example, err);
        case QR_DATASET_PROMPT_COMPLETION:
        case QR_DATASET_INPUT_OUTPUT:
        case QR_DATASET_QUESTION_ANSWER: return encode_two(encoder, root, &keys, example, err);
        case QR_DATASET_ALPACA: return encode_alpaca(encoder, root, example, err);
        case QR_DATASET_TEXT:
        case QR_DATASET_PREFERENCE:
        case QR_DATASET_PREFERENCE_MESSAGES:
        case QR_DATASET_FORMAT_COUNT: break;
    }
    return encode_text(encoder, root, example, err);
}

qrun_status qr_example_encode(const qr_example_encoder *encoder, const qr_json *root, qr_encoded_example *example,
                              qr_error *err) {
    qr_json nodes[QR_COLUMNS_MAX], view;
    clear(example);
    QR_RETURN_IF_ERROR(qr_columns_apply(&encoder->columns, root, nodes, &view, err));
    if (encoder->preferences) { return encode_preference(encoder, &view, example, err); }
    QR_RETURN_IF_ERROR(encode_members(encoder, &view, example, err));
    QR_RETURN_IF_ERROR(require_mask(example, err));
    cut_and_count(encoder, example);
    return QRUN_OK;
}

qrun_status qr_example_encode_text(const qr_example_encoder *encoder, const qr_dataset_source *source,
                                   const qr_dataset_piece *piece, qr_encoded_example *example, qr_error *err) {
    qr_marked_text *marked = &example->marked;
    clear(example);
    example->format = QR_DATASET_TEXT;
    QR_RETURN_IF_ERROR(qr_dataset_piece_text(source, piece, &marked->text, err));
    QR_RETURN_IF_ERROR(qr_marked_text_add(marked, 0, marked->text.size, err));
    QR_RETURN_IF_ERROR(encode_stretch(encoder, piece->begins_text, piece->ends_text, example, err));
    QR_RETURN_IF_ERROR(require_mask(example, err));
    if (source->form == QR_FORM_PARAGRAPHS) { cut_and_count(encoder, example); }
    return QRUN_OK;
}
