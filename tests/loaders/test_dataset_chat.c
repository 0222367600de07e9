/* Which tokens of a conversation count: against masks made with transformers, and where templates make it hard. */
#include "dataset_check.h"

#include "loaders/data/chat.h"

static const char FIXTURES[] = QRUN_SOURCE_DIR "/tests/fixtures/";

static qr_json *read_json(const char *name) {
    char path[1024];
    qr_json *root = NULL;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s%s", FIXTURES, name);
    CHECK_MSG(qr_json_read(path, 64 << 20, &root, &err) == QRUN_OK, "%s", err.message);
    return root;
}

static qr_json *parse_json(const char *text) {
    qr_json *root = NULL;
    qr_error err = {0};
    char json[4096];
    snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c != '\0'; c++) {
        if (*c == '\'') { *c = '"'; }
    }
    CHECK_MSG(qr_json_parse(json, strlen(json), "json", &root, &err) == QRUN_OK, "%s", err.message);
    return root;
}

static qr_chat_template *read_template(const char *name) {
    char path[1024];
    char *text = NULL;
    size_t n_bytes = 0;
    qr_chat_template *made = NULL;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s%s", FIXTURES, name);
    CHECK_MSG(qr_file_read(path, 1 << 20, &text, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_chat_template_parse(text, n_bytes, name, &made, &err) == QRUN_OK, "%s", err.message);
    qr_free(text);
    return made;
}

/* A turn that has no span in the golden is one that renderings of prefixes do not find; here it has to be found all the
 * same. Returns whether there is one. */
static bool check_spans(const char *name, const qr_json *golden, const qr_marked_text *marked) {
    size_t i = 0;
    bool any_unfound = false;
    for (const qr_json *span = qr_json_first(golden); span != NULL; span = span->next) {
        if (qr_json_is_null(span)) {
            any_unfound = true;
            i++;
            continue;
        }
        const double start = span->child->valuedouble, end = span->child->next->valuedouble;
        if (start == end) { continue; }
        CHECK_MSG(i < marked->n_spans && (double)marked->spans[i].start == start && (double)marked->spans[i].end == end,
                  "%s: span %zu", name, i);
        i++;
    }
    CHECK_INT(marked->n_spans, i);
    return any_unfound;
}

static void check_golden(const qr_json *golden, const example_model *model, const qr_json *extra) {
    const char *name = qr_json_get(golden, "name")->valuestring;
    const qr_json *template_name = qr_json_get(golden, "template");
    qr_chat_template *own = cJSON_IsString(template_name) ? read_template(template_name->valuestring) : NULL;
    const qr_conversation conversation = {.messages = qr_json_get(golden, "messages"), .extra = extra};
    qr_marked_text marked = {0};
    qr_tokens tokens = {0};
    qr_buffer mask = {0};
    qr_error err = {0};
    CHECK_MSG(qr_conversation_render(&conversation, own != NULL ? own : model->chat_template, &marked, &err) == QRUN_OK,
              "%s: %s", name, err.message);
    CHECK_STR(marked.text.data, qr_json_get(golden, "text")->valuestring);
    const bool any_unfound = check_spans(name, qr_json_get(golden, "byte_spans"), &marked);
    CHECK_MSG(qr_marked_text_encode(&marked, model->tokenizer, &tokens, &mask, &err) == QRUN_OK, "%s: %s", name,
              err.message);
    size_t n = 0;
    for (const qr_json *id = qr_json_first(qr_json_get(golden, "ids")); id != NULL; id = id->next, n++) {
        CHECK_MSG(n < tokens.n && tokens.ids[n] == id->valueint, "%s: token %zu", name, n);
    }
    CHECK_INT(tokens.n, n);
    CHECK_INT(mask.size, n);
    size_t t = 0;
    for (const qr_json *bit = qr_json_first(qr_json_get(golden, "mask")); bit != NULL && t < n; bit = bit->next, t++) {
        CHECK_MSG(mask.data[t] == bit->valueint || (any_unfound && mask.data[t] == 1), "%s: mask of token %zu is %d",
                  name, t, mask.data[t]);
    }
    CHECK_INT(t, n);
    qr_marked_text_free(&marked);
    qr_tokens_free(&tokens);
    qr_buffer_free(&mask);
    qr_chat_template_free(own);
}

static void test_goldens(void) {
    const example_model model = example_model_open();
    qr_json *index = read_json("training/index.json");
    qr_json *extra = parse_json("{'bos_token': '<|bos|>', 'eos_token': '<|eos|>'}");
    int n = 0;
    for (const qr_json *golden = qr_json_first(qr_json_get(index, "masks")); golden != NULL; golden = golden->next) {
        check_golden(golden, &model, extra);
        n++;
    }
    CHECK(n >= 50);
    qr_json_free(index);
    qr_json_free(extra);
    example_model_close(&model);
}

/* Renders with a template of its own; the result is the text with the assistant's part in brackets, or the message. */
static void expect(const char *template_text, const char *messages, const char *expected) {
    qr_chat_template *chat_template = NULL;
    qr_json *list = parse_json(messages);
    qr_marked_text marked = {0};
    qr_buffer shown = {0};
    qr_error err = {0};
    CHECK_MSG(qr_chat_template_parse(template_text, strlen(template_text), "template", &chat_template, &err) == QRUN_OK,
              "%s", err.message);
    const qr_conversation conversation = {.messages = list};
    const qrun_status status = qr_conversation_render(&conversation, chat_template, &marked, &err);
    size_t at = 0;
    for (size_t i = 0; i < marked.n_spans && status == QRUN_OK; i++) {
        qr_buffer_append(&shown, marked.text.data + at, marked.spans[i].start - at);
        qr_buffer_append_char(&shown, '[');
        qr_buffer_append(&shown, marked.text.data + marked.spans[i].start, marked.spans[i].end - marked.spans[i].start);
        qr_buffer_append_char(&shown, ']');
        at = marked.spans[i].end;
    }
    if (status == QRUN_OK) { qr_buffer_append(&shown, marked.text.data + at, marked.text.size - at); }
    CHECK_STR(status == QRUN_OK ? shown.data : err.message, expected);
    qr_buffer_free(&shown);
    qr_marked_text_free(&marked);
    qr_chat_template_free(chat_template);
    qr_json_free(list);
}

#define TURNS                                                                       \
    "[{'role':'user','content':'2+2'},{'role':'assistant','content':'<t>ab</t>4'}," \
    "{'role':'user','content':'3+3'},{'role':'assistant','content':'<t>cd</t>6'}]"

/* Thoughts stay in the last turn only. */
static void test_dropped_thoughts(void) {
    expect("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}"
           "{{ m.content.split('</t>')[-1] }}{% else %}{{ m.content }}{% endif %}<e>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}",
           TURNS, "<user>2+2<e><assistant>[4<e>]<user>3+3<e><assistant>[<t>cd</t>6<e>]");
}

/* The prompt for an answer opens a thought, and the answer that follows has none. */
static void test_prompt_with_more(void) {
    expect("{% for m in messages %}<{{ m.role }}>{{ m.content.split('</t>')[-1] }}<e>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{{ '<think>\n' }}{% endif %}",
           TURNS, "<user>2+2<e><assistant>[4<e>]<user>3+3<e><assistant>[6<e>]");
}

/* The same where the template takes the content apart, so that no word can stand for it. */
static void test_content_taken_apart(void) {
    expect("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{{ '<think>\n' }}"
           "{% if '</t>' in m.content %}{{ m.content.split('</t>')[0].split('<t>')[-1] }}{% endif %}</think>"
           "{{ m.content.split('</t>')[-1] }}{% else %}{{ m.content }}{% endif %}<e>{% endfor %}"
           "{% if add_generation_prompt %}{{ '<assistant><think>\n\n' }}{% endif %}",
           TURNS, "<user>2+2<e><assistant><think>\n[ab</think>4<e>]<user>3+3<e><assistant><think>\n[cd</think>6<e>]");
}

/* A template that takes nothing but whole conversations: no prefix of one can be rendered. */
static void test_whole_conversations_only(void) {
    expect("{% if messages[-1].role != 'assistant' %}{{ raise_exception('unfinished') }}{% endif %}"
           "{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}",
           TURNS, "<user>2+2<e><assistant>[<t>ab</t>4<e>]<user>3+3<e><assistant>[<t>cd</t>6<e>]");
}

/* No prompt for an answer: the opening of the turn counts too. */
static void test_no_generation_prompt(void) {
    expect("{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}", TURNS,
           "<user>2+2<e>[<assistant><t>ab</t>4<e>]<user>3+3<e>[<assistant><t>cd</t>6<e>]");
}

/* What is said twice, reversed or changed by what follows cannot be located, and is not guessed. */
static void test_refused(void) {
    static const char refusal[] =
        "what the assistant wrote in message 2 cannot be found in what the chat template makes of the "
        "conversation; give this example as prompt and completion";
    expect("{% for m in messages | reverse %}{{ m.content }}{{ m.content }};{% endfor %}", TURNS, refusal);
    expect("{{ messages | length }}{% for m in messages %}{{ m.content | length }};{% endfor %}", TURNS, refusal);
    expect("{{ messages | tojson }}", "[]", "it has no messages");
    expect("x", "[{'content':'a'}]", "message 1 has no \"role\" that is a text");
    expect("{{ raise_exception('no') }}", TURNS, "no");
}

/* The user's text is never a target, whatever it holds. */
static void test_user_text_like_a_template(void) {
    expect("{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}",
           "[{'role':'user','content':'a<e><assistant>b<e>'},{'role':'assistant','content':'qrunanswer'},"
           "{'role':'user','content':'c<e><assistant>'}]",
           "<user>a<e><assistant>b<e><e><assistant>[qrunanswer<e>]<user>c<e><assistant><e>");
}

/* ---- real templates ---------------------------------------------------------------------------------------------- */

static bool holds(const qr_marked_text *marked, qr_text_span span, const char *word) {
    const size_t n = strlen(word);
    for (size_t i = span.start; i + n <= span.end; i++) {
        if (memcmp(marked->text.data + i, word, n) == 0) { return true; }
    }
    return false;
}

/* Each answer in a span of its own, together with the end of its turn, and nothing of a question. Returns whether the
 * template takes such a conversation at all. */
static bool check_real_template(const qr_json *item, const qr_json *messages) {
    const char *text = qr_json_get(item, "template")->valuestring, *name = qr_json_get(item, "name")->valuestring;
    qr_chat_template *chat_template = NULL;
    qr_marked_text marked = {0};
    qr_buffer whole = {0};
    qr_error err = {0}, own_err = {0};
    CHECK_MSG(qr_chat_template_parse(text, strlen(text), name, &chat_template, &err) == QRUN_OK, "%s", err.message);
    const qr_conversation conversation = {.messages = messages, .extra = qr_json_get(item, "context")};
    const bool takes = qr_chat_template_render(chat_template, messages, NULL, conversation.extra, false, 0, &whole,
                                               &own_err) == QRUN_OK &&
                       strstr(whole.data, "ANSWER_2") != NULL;
    const qrun_status status = qr_conversation_render(&conversation, chat_template, &marked, &err);
    if (takes) {
        CHECK_MSG(status == QRUN_OK, "%s: %s", name, err.message);
        CHECK_MSG(marked.n_spans == 2, "%s: %zu spans", name, marked.n_spans);
    }
    for (size_t i = 0; i < marked.n_spans && takes; i++) {
        CHECK_MSG(!holds(&marked, marked.spans[i], "QUESTION"), "%s: a question is a target", name);
        CHECK_MSG(holds(&marked, marked.spans[i], i == 0 ? "ANSWER_1" : "ANSWER_2"), "%s: no answer", name);
    }
    qr_marked_text_free(&marked);
    qr_buffer_free(&whole);
    qr_chat_template_free(chat_template);
    return takes;
}

static void test_real_templates(void) {
    const char *path = check_shared_data("chat-templates/real-templates.json");
    if (path == NULL) {
        check_skip("no shared data");
        return;
    }
    qr_json *root = NULL;
    qr_error err = {0};
    REQUIRE(qr_json_read(path, 64 << 20, &root, &err) == QRUN_OK);
    qr_json *plain = parse_json("[{'role':'user','content':'QUESTION_1'},{'role':'assistant','content':'ANSWER_1'},"
                                "{'role':'user','content':'QUESTION_2'},{'role':'assistant','content':'ANSWER_2'}]");
    qr_json *thinking = parse_json(
        "[{'role':'user','content':'QUESTION_1'},{'role':'assistant','content':'<think>\\nA\\n</think>\\n\\nANSWER_1'},"
        "{'role':'user','content':'QUESTION_2'},"
        "{'role':'assistant','content':'<think>\\nB\\n</think>\\n\\nANSWER_2'}]");
    int n = 0;
    for (const qr_json *item = qr_json_first(qr_json_get(root, "cases")); item != NULL; item = item->next) {
        if (!cJSON_IsTrue(qr_json_get(item, "jinja2_agrees"))) { continue; }
        n += check_real_template(item, plain) && check_real_template(item, thinking);
    }
    CHECK_MSG(n >= 40, "only %d templates took the conversation", n);
    qr_json_free(plain);
    qr_json_free(thinking);
    qr_json_free(root);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_goldens);
    CHECK_RUN(test_dropped_thoughts);
    CHECK_RUN(test_prompt_with_more);
    CHECK_RUN(test_content_taken_apart);
    CHECK_RUN(test_whole_conversations_only);
    CHECK_RUN(test_no_generation_prompt);
    CHECK_RUN(test_refused);
    CHECK_RUN(test_user_text_like_a_template);
    CHECK_RUN(test_real_templates);
    return check_end();
}
