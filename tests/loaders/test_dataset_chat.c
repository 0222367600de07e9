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
    const qr_conversation conversation = {.messages.list = qr_json_get(golden, "messages"), .extra = extra};
    qr_marked_text marked = {0};
    qr_message_notes notes = {0};
    qr_tokens tokens = {0};
    qr_buffer mask = {0};
    qr_error err = {0};
    const qr_chat_template *used = own != NULL ? own : model->chat_template;
    CHECK_MSG(qr_conversation_render(&conversation, used, &marked, &notes, &err) == QRUN_OK, "%s: %s", name,
              err.message);
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
    qr_buffer_free(&notes.unknown_members);
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
    qr_message_notes notes = {0};
    qr_buffer shown = {0};
    qr_error err = {0};
    CHECK_MSG(qr_chat_template_parse(template_text, strlen(template_text), "template", &chat_template, &err) == QRUN_OK,
              "%s", err.message);
    const qr_conversation conversation = {.messages.list = list};
    const qrun_status status = qr_conversation_render(&conversation, chat_template, &marked, &notes, &err);
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
    qr_buffer_free(&notes.unknown_members);
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

#define SIMPLE                                                            \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}" \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* The same with the tags that transformers makes its masks from. */
#define TAGGED                                                                                              \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<e>" \
    "{% endgeneration %}{% else %}{{ m.content }}<e>{% endif %}{% endfor %}"                                \
    "{% if add_generation_prompt %}<assistant>{% endif %}"

/* weight of OpenAI's files, train and training of axolotl's. */
static void test_messages_that_do_not_count(void) {
    static const char first_out[] = "<user>a<e><assistant>b<e><user>c<e><assistant>[d<e>]";
    static const char *const controls[] = {"'weight':0", "'weight':0.0", "'train':false", "'training':false",
                                           "'train':false,'weight':0,'training':null"};
    for (size_t i = 0; i < QR_COUNT_OF(controls); i++) {
        char messages[512];
        snprintf(messages, sizeof messages,
                 "[{'role':'user','content':'a'},{%s,'role':'assistant','content':'b'},"
                 "{'role':'user','content':'c','train':null,'weight':0},"
                 "{'role':'assistant','content':'d','weight':1,'train':true}]",
                 controls[i]);
        expect(SIMPLE, messages, first_out);
        expect(TAGGED, messages, first_out);
    }
    /* A turn that could not be found need not be, where it does not count. */
    expect("{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content | length }}<e>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}",
           "[{'role':'assistant','content':'abc','weight':0},{'role':'assistant','content':'d'}]",
           "<assistant>3<e><assistant>[d<e>]");
}

/* train makes messages of every role count: the text and the end of the turn, not its opening. */
static void test_other_roles_that_count(void) {
    expect(SIMPLE, "[{'role':'user','content':'a','train':true},{'role':'assistant','content':'b'}]",
           "<user>[a<e>]<assistant>[b<e>]");
    expect(SIMPLE, "[{'role':'user','content':'a','training':true},{'role':'assistant','content':'b','train':false}]",
           "<user>[a<e>]<assistant>b<e>");
    expect("{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}<e>{% endfor %}",
           "[{'role':'user','content':'a','train':true}]",
           "what the user wrote in message 1 cannot be found in what the chat template makes of the conversation; give "
           "this example as prompt and completion");
}

static void test_controls_are_checked(void) {
    expect(SIMPLE, "[{'role':'assistant','content':'a','weight':0.5}]", "message 1: \"weight\" should be 0 or 1");
    expect(SIMPLE, "[{'role':'assistant','content':'a','weight':-1}]", "message 1: \"weight\" should be 0 or 1");
    expect(SIMPLE, "[{'role':'assistant','content':'a','weight':'0'}]", "message 1: \"weight\" should be 0 or 1");
    expect(SIMPLE, "[{'role':'assistant','content':'a','weight':true}]", "message 1: \"weight\" should be 0 or 1");
    expect(SIMPLE, "[{'role':'assistant','content':'a'},{'role':'user','content':'a','weight':1}]",
           "message 2: \"weight\" is for what the assistant says; \"train\": true makes another role's message count");
    expect(SIMPLE, "[{'role':'assistant','content':'a','train':0}]",
           "message 1: \"train\" should be true or false, not a number");
    expect(SIMPLE, "[{'role':'assistant','content':'a','weight':0,'train':true}]",
           "message 1: \"train\" contradicts another member of the message");
    expect(SIMPLE,
           "[{'role':'assistant','content':'a','train_detail':[{'begin_offset':0,'end_offset':1,'train':true}]}]",
           "message 1 has \"train_detail\", and a message counts as a whole or not at all; split it, and give each its "
           "own \"train\"");
}

/* The template sees neither weight nor train. */
static void test_controls_are_not_rendered(void) {
    expect("{{ messages | tojson }}", "[{'role':'user','weight':0,'content':'a','train':false,'name':'b'}]",
           "[{\"role\": \"user\", \"content\": \"a\", \"name\": \"b\"}]");
}

/* Lists of parts are their texts, as templates that know parts write them; nothing else becomes a text. */
static void test_contents(void) {
    expect(SIMPLE,
           "[{'role':'user','content':[{'type':'text','text':'a '},{'type':'text','text':'b','image_url':null}]},"
           "{'role':'assistant','content':[{'type':'text','text':'c'}]}]",
           "<user>a b<e><assistant>[c<e>]");
    expect(SIMPLE, "[{'role':'user','content':[]},{'role':'assistant','content':'c'}]", "<user><e><assistant>[c<e>]");
    expect(SIMPLE, "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image_url','image_url':{}}]}]",
           "message 1: \"content\": part 2 is of the type \"image_url\", and only text is trained on");
    expect(SIMPLE, "[{'role':'user','content':['a']}]",
           "message 1: \"content\": part 1 should be {\"type\": \"text\", \"text\": …}");
    expect(SIMPLE, "[{'role':'user','content':[{'type':'text','text':null}]}]",
           "message 1: \"content\": part 1 should be {\"type\": \"text\", \"text\": …}");
    expect(SIMPLE, "[{'role':'user','content':true}]", "message 1: \"content\" should be a text, not true");
    expect(SIMPLE, "[{'role':'user','content':false}]", "message 1: \"content\" should be a text, not false");
    expect(SIMPLE, "[{'role':'user','content':7}]", "message 1: \"content\" should be a text, not a number");
    expect(SIMPLE, "[{'role':'user','content':{'a':'b'}}]", "message 1: \"content\" should be a text, not an object");
    expect(SIMPLE, "[{'role':'user','content':'a'},{'role':'assistant','content':null}]",
           "message 2: \"content\" should be a text, not null");
    expect(SIMPLE, "[{'role':'user'}]", "message 1: \"content\" is missing");
}

#define CALL "'tool_calls':[{'type':'function','function':{'name':'f','arguments':{}}}]"

/* A call needs no content. The template sees an empty one, or null where it wants that; the word None is never learned.
 */
static void test_null_content(void) {
    static const char called[] = "[{'role':'user','content':'a'},{'role':'assistant','content':null," CALL "}]";
    static const char missing[] = "[{'role':'user','content':'a'},{'role':'assistant'," CALL "}]";
    static const char knows[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.content is defined %}!{% endif %}{{ m.content or '' }}"
        "{% for c in m.tool_calls %}{{ c.function.name }}(){% endfor %}<e>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}";
    expect(knows, called, "<user>!a<e><assistant>[!f()<e>]");
    expect(knows, missing, "<user>!a<e><assistant>[!f()<e>]");
    expect(
        "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}"
        "{{ m.content }}{% endif %}<e>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        called, "<user>a<e><assistant>[f<e>]");
    expect(SIMPLE, called, "message 2 is a call of a tool, and the chat template has no place for calls");
    expect(SIMPLE, "[{'role':'user','content':'None','tool_calls':null},{'role':'assistant','content':'None.'}]",
           "<user>None<e><assistant>[None.<e>]");
    expect(knows, "[{'role':'user','content':null," CALL "}]", "message 1: \"content\" should be a text, not null");
    expect(knows, "[{'role':'assistant','content':null,'tool_calls':[]}]",
           "message 1: \"content\" should be a text, not null");
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

/* A template that tells the last message from others, and parts a content from a call. */
static void test_calls_without_a_content(void) {
    static const char calls[] =
        "[{'role':'user','content':'a'},{'role':'assistant',%s'tool_calls':[{'type':'function','function':"
        "{'name':'f','arguments':{}}}]},{'role':'tool','name':'f','content':'x'},{'role':'assistant','content':'b'}]";
    static const char *const contents[] = {"'content':'',", "'content':null,", ""};
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        char messages[512];
        snprintf(messages, sizeof messages, calls, contents[i]);
        expect(
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}!{% endif %}"
            "{% if '</t>' in m.content %}{% endif %}{{ m.content }}{% if m.tool_calls %}{% if m.content %}|{% endif %}"
            "({{ m.tool_calls[0].function.name }}){% endif %}<e>{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            messages, "<user>a<e><assistant>[(f)<e>]<tool>x<e><assistant>[!b<e>]");
    }
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
    qr_message_notes notes = {0};
    qr_buffer whole = {0};
    qr_error err = {0}, own_err = {0};
    CHECK_MSG(qr_chat_template_parse(text, strlen(text), name, &chat_template, &err) == QRUN_OK, "%s", err.message);
    const qr_conversation conversation = {.messages.list = messages, .extra = qr_json_get(item, "context")};
    const bool takes = qr_chat_template_render(chat_template, messages, NULL, conversation.extra, false, 0, &whole,
                                               &own_err) == QRUN_OK &&
                       strstr(whole.data, "ANSWER_2") != NULL;
    const qrun_status status = qr_conversation_render(&conversation, chat_template, &marked, &notes, &err);
    if (takes) {
        CHECK_MSG(status == QRUN_OK, "%s: %s", name, err.message);
        CHECK_MSG(marked.n_spans == 2, "%s: %zu spans", name, marked.n_spans);
    }
    for (size_t i = 0; i < marked.n_spans && takes; i++) {
        CHECK_MSG(!holds(&marked, marked.spans[i], "QUESTION"), "%s: a question is a target", name);
        CHECK_MSG(holds(&marked, marked.spans[i], i == 0 ? "ANSWER_1" : "ANSWER_2"), "%s: no answer", name);
    }
    qr_buffer_free(&notes.unknown_members);
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
    CHECK_RUN(test_messages_that_do_not_count);
    CHECK_RUN(test_other_roles_that_count);
    CHECK_RUN(test_controls_are_checked);
    CHECK_RUN(test_controls_are_not_rendered);
    CHECK_RUN(test_contents);
    CHECK_RUN(test_null_content);
    CHECK_RUN(test_refused);
    CHECK_RUN(test_calls_without_a_content);
    CHECK_RUN(test_user_text_like_a_template);
    CHECK_RUN(test_real_templates);
    return check_end();
}
