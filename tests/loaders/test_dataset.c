/* Data files of every format to tokens and mask, what is said about files that cannot be used, and the cache. */
#include "dataset_check.h"

#include <dirent.h>

static bool has_pairs; /* of what is opened next */

/* Opens and gives the examples as shown, one per line; or the message. `model` without a template: chat = false. */
static void show_all(const temporary_folder *folder, const char *path, int64_t seq_len, bool chat, bool skip_bad,
                     qr_buffer *out, qr_dataset_info *info) {
    const example_model model = example_model_open();
    qr_dataset_options options = dataset_options(folder, path, seq_len);
    options.skip_bad = skip_bad;
    options.preferences = has_pairs;
    qr_dataset *dataset = NULL;
    qr_error err = {0};
    const qrun_status status =
        qr_dataset_open(&options, model.tokenizer, chat ? model.chat_template : NULL, &dataset, &err);
    CHECK((status == QRUN_OK) == (dataset != NULL));
    if (status != QRUN_OK) { qr_buffer_append_text(out, err.message); }
    for (int64_t i = 0; status == QRUN_OK && i < qr_dataset_count(dataset); i++) {
        CHECK(qr_dataset_show(dataset, i, "[", "]", out, &err) == QRUN_OK);
        qr_buffer_append_char(out, '\n');
    }
    if (info != NULL && dataset != NULL) { *info = *qr_dataset_get_info(dataset); }
    qr_dataset_close(dataset);
    example_model_close(&model);
}

static void expect_with(const char *text, int64_t seq_len, bool chat, bool skip_bad, const char *expected,
                        qr_dataset_info *info) {
    const temporary_folder folder = temporary_create();
    const char *path = dataset_write(&folder, "d.jsonl", text);
    qr_buffer shown = {0};
    show_all(&folder, path, seq_len, chat, skip_bad, &shown, info);
    const char *found = shown.data != NULL ? shown.data : "";
    const size_t n_path = strlen(path);
    CHECK_STR(strncmp(found, path, n_path) == 0 ? found + n_path : found, expected); /* messages begin with the path */
    qr_buffer_free(&shown);
    temporary_remove(&folder);
}

static void expect(const char *text, bool chat, const char *expected) {
    expect_with(text, 512, chat, false, expected, NULL);
}

static void test_formats(void) {
    expect("{'messages':[{'role':'user','content':'Hi!'},{'role':'assistant','content':' Hello! '}]}\n", true,
           "<|bos|><|user|>Hi!<|end|><|assistant|>[Hello!<|end|>]\n");
    expect("{'prompt':'One two','completion':' three'}\n{'completion':'b','prompt':''}\n", true,
           "<|bos|>One two[ three<|eos|>]\n<|bos|>[b<|eos|>]\n");
    expect("{'prompt':'One','completion':''}", true, "<|bos|>One[<|eos|>]\n");
    expect("{'prompt':'One','completion':' two<|eos|>'}", true, "<|bos|>One[ two<|eos|>]\n");
    expect("{'text':'One two'}\n\n  \n{'text':'Three','extra':[1]}", true,
           "<|bos|>[One two<|eos|>]\n<|bos|>[Three<|eos|>]\n");
    expect("[{'text':'One'},\n {'text':'Two]}'}]\n", true, "<|bos|>[One<|eos|>]\n<|bos|>[Two]}<|eos|>]\n");
}

static void test_alpaca(void) {
    expect("{'instruction':'Add.','input':'1, 2','output':'3'}", true,
           "<|bos|><|user|>Add.\n\n1, 2<|end|><|assistant|>[3<|end|>]\n");
    expect("{'instruction':'Say \\'a\\'.'  ,'input':'','output':'a'}", true,
           "<|bos|><|user|>Say \"a\".<|end|><|assistant|>[a<|end|>]\n");
    expect("{'instruction':'Add.','input':'1, 2','output':'3'}", false,
           "<|bos|>Below is an instruction that describes a task, paired with an input that provides further context. "
           "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1, 2"
           "\n\n### Response:\n[3<|eos|>]\n");
    expect("{'instruction':'Add.','output':'3'}", false,
           "<|bos|>Below is an instruction that describes a task. Write a response that appropriately completes the "
           "request.\n\n### Instruction:\nAdd.\n\n### Response:\n[3<|eos|>]\n");
    expect("{'instruction':'Add.','output':'3','history':[['a','b']]}", true,
           ":1: has a \"history\"; give conversations as \"messages\"; `skip_bad` leaves such examples out");
    expect("{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b'}],'images':['x.png']}", true,
           ":1: has \"images\", and only text is trained on; `skip_bad` leaves such examples out");
    expect("{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'b'}],'images':[],'videos':null}",
           true, "<|bos|><|user|>a<|end|><|assistant|>[b<|end|>]\n");
}

static void test_question_and_answer(void) {
    expect("{'question':'1 + 1?','answer':'#### 2'}", true,
           "<|bos|><|user|>1 + 1?<|end|><|assistant|>[#### 2<|end|>]\n");
    expect("{'question':'1 + 1?','answer':'#### 2'}", false, "<|bos|>Question: 1 + 1?\nAnswer:[ #### 2<|eos|>]\n");
    expect("{'question':'1 + 1?','answer':2}", true,
           ":1: \"answer\" should be a text, not a number; `skip_bad` leaves such examples out");
}

static void test_sharegpt(void) {
    static const char example[] = "<|bos|><|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>[Hello!<|end|>]"
                                  "<|user|>\"1\"<|end|><|assistant|>[2<|end|>]\n";
    expect("{'conversations':[{'from':'system','value':'Be brief.'},{'from':'human','value':'Hi!'},"
           "{'from':'gpt','value':'Hello!'},{'from':'human','value':'\\'1\\''},{'from':'gpt','value':'2'}]}",
           true, example);
    expect("{'system':'Be brief.','conversations':[{'from':'user','value':'Hi!'},"
           "{'from':'chatgpt','value':'Hello!'},{'from':'user','value':'\\'1\\''},{'from':'model','value':'2'}]}",
           true, example);
    expect("{'conversations':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Hello!'}]}", true,
           "<|bos|><|user|>Hi!<|end|><|assistant|>[Hello!<|end|>]\n");
    expect("{'conversations':[{'from':'human','value':'Hi!'},{'from':'observation','value':'Hello!'}]}", true,
           ":1: \"from\" is \"observation\"; human, gpt and system are understood; give other conversations as "
           "\"messages\"; `skip_bad` leaves such examples out");
    expect("{'conversations':[{'from':'human'}]}", true,
           ":1: \"conversations\" should be a list of objects with the texts \"from\" and \"value\"; `skip_bad` leaves "
           "such examples out");
    expect("{'conversations':7}", true, ":1: \"conversations\" should be a list; `skip_bad` leaves such examples out");
    expect("{'conversations':[{'from':'human','value':'Hi!'}]}", true,
           ": no token is a target: no conversation has an answer from \"gpt\"");
}

/* The controls of messages, in both forms of conversations and with the template of the model. */
static void test_messages_that_do_not_count(void) {
    expect("{'messages':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.','weight':0},"
           "{'role':'user','content':'Well?'},{'role':'assistant','content':'Ah.','weight':1}]}",
           true, "<|bos|><|user|>Hi!<|end|><|assistant|>Oh.<|end|><|user|>Well?<|end|><|assistant|>[Ah.<|end|>]\n");
    expect("{'conversations':[{'from':'human','value':'Hi!','train':true},{'from':'gpt','value':'Oh.','train':false},"
           "{'from':'human','value':'Well?','weight':0},{'from':'gpt','value':'Ah.','weight':0}]}",
           true, "<|bos|><|user|>[Hi!<|end|>]<|assistant|>Oh.<|end|><|user|>Well?<|end|><|assistant|>Ah.<|end|>\n");
    expect("{'messages':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.','weight':0}]}", true,
           ": no token is a target: the answers have \"weight\": 0 or \"train\": false");
    expect("{'messages':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.'}]}\n"
           "{'messages':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.','weight':2}]}",
           true, ":2: message 2: \"weight\" should be 0 or 1; `skip_bad` leaves such examples out");
    expect("{'system':'Be brief.','conversations':[{'from':'human','value':'Hi!'},"
           "{'from':'gpt','value':'Oh.','weight':2}]}",
           true, ":1: message 2: \"weight\" should be 0 or 1; `skip_bad` leaves such examples out");
}

static void expect_pairs(const char *text, int64_t seq_len, const char *expected, qr_dataset_info *info) {
    has_pairs = true;
    expect_with(text, seq_len, true, false, expected, info);
    has_pairs = false;
}

#define ASKED "<|bos|><|user|>Hi!<|end|><|assistant|>"

static void test_pairs_of_answers(void) {
    expect_pairs("{'prompt':'One','chosen':' two','rejected':' three'}", 512,
                 "<|bos|>One[ two<|eos|>]\n<|bos|>One[ three<|eos|>]\n", NULL);
    expect_pairs("{'prompt':[{'role':'user','content':'Hi!'}],'chosen':[{'role':'assistant','content':'Ahoy!'}],"
                 "'rejected':[{'role':'assistant','content':'Hello.'}]}",
                 512, ASKED "[Ahoy!<|end|>]\n" ASKED "[Hello.<|end|>]\n", NULL);
    /* Whole conversations: what they have in common is the prompt, the assistant's words in it included. */
    expect_pairs("{'prompt':'Hi!','chosen':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.'},"
                 "{'role':'user','content':'Hm?'},{'role':'assistant','content':'Ah.'}],'rejected':["
                 "{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.'},"
                 "{'role':'user','content':'Hm?'},{'role':'assistant','content':'No.'}]}",
                 512,
                 ASKED "Oh.<|end|><|user|>Hm?<|end|><|assistant|>[Ah.<|end|>]\n" ASKED
                       "Oh.<|end|><|user|>Hm?<|end|><|assistant|>[No.<|end|>]\n",
                 NULL);
    /* The same answer twice is an answer, not a prompt. */
    expect_pairs("{'chosen':[{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.'}],'rejected':["
                 "{'role':'user','content':'Hi!'},{'role':'assistant','content':'Oh.'}]}",
                 512, ASKED "[Oh.<|end|>]\n" ASKED "[Oh.<|end|>]\n", NULL);
}

/* Both keep their beginnings, and one that is short leaves its room to the other. */
static void test_pairs_are_cut(void) {
    static const char long_chosen[] = "{'prompt':'One','chosen':' two two two two two two two','rejected':' three'}";
    static const char both_long[] =
        "{'prompt':'One','chosen':' two two two two two two','rejected':' three three three three three three'}";
    qr_dataset_info whole = {0}, cut = {0};
    expect_pairs(long_chosen, 512, "<|bos|>One[ two two two two two two two<|eos|>]\n<|bos|>One[ three<|eos|>]\n",
                 &whole);
    CHECK_INT(whole.n_truncated, 0);
    expect_pairs(long_chosen, whole.n_tokens - 2, "<|bos|>One[ two two two two two two]\n<|bos|>One[ three<|eos|>]\n",
                 &cut);
    CHECK_INT(cut.n_tokens, whole.n_tokens - 2);
    CHECK_INT(cut.n_cut_tokens, 2);
    CHECK_INT(cut.n_truncated, 1);
    expect_pairs(both_long, 11, "<|bos|>One[ two two two]\n<|bos|>One[ three three three three]\n", &cut);
    CHECK_INT(cut.n_tokens, 11);
    expect_pairs(both_long, 4,
                 ": no token is a target: what should be learned lies beyond the first 4 tokens of every example; take "
                 "a longer `seq_len`",
                 NULL);
}

static void test_pairs_that_are_none(void) {
    static const char skips[] = "; `skip_bad` leaves such examples out";
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{'prompt':'One','completion':' two'}",
         ":1: is no pair of answers: its members are \"prompt\" and \"completion\". A line should be like "
         "{\"prompt\": \"Hello!\", \"chosen\": \" Ahoy!\", \"rejected\": \" Hi.\"}; the three may be lists of "
         "messages, "
         "and `columns` gives other names to them"},
        {"{'chosen':' two','rejected':' three'}",
         ":1: is no pair of answers: its members are \"chosen\" and \"rejected\". A line should be like {\"prompt\": "
         "\"Hello!\", \"chosen\": \" Ahoy!\", \"rejected\": \" Hi.\"}; the three may be lists of messages, and "
         "`columns` gives other names to them"},
        {"7", ":1: is no pair of answers. A line should be like {\"prompt\": \"Hello!\", \"chosen\": \" Ahoy!\", "
              "\"rejected\": \" Hi.\"}; the three may be lists of messages, and `columns` gives other names to them"},
        {"{'prompt':'One','chosen':' two','rejected':7}", ":1: \"rejected\" should be a text, not a number"},
        {"{'prompt':'One','chosen':[{'role':'assistant','content':'a'}],'rejected':[{'role':'assistant',"
         "'content':'b'}]}",
         ":1: \"chosen\" is a list of messages that begins with the answer, so \"prompt\" should be a list of messages "
         "too"},
        {"{'prompt':'One','chosen':[{'role':'user','content':'a'}],'rejected':'b'}",
         ":1: \"chosen\" is a list of messages, and \"rejected\" is not"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char message[QR_ERROR_MESSAGE_BYTES];
        snprintf(message, sizeof message, "%s%s", cases[i].message, skips);
        expect_pairs(cases[i].text, 512, message, NULL);
    }
    expect_pairs("{'chosen':[{'role':'user','content':'Hi!'}],'rejected':[{'role':'user','content':'Ho!'}]}", 512,
                 ": no token is a target: no pair has an answer of the assistant's in both of \"chosen\" and "
                 "\"rejected\"",
                 NULL);
    expect(
        "{'prompt':'One','chosen':' two','rejected':' three'}", true,
        ":1: has a \"chosen\" and a \"rejected\" answer: `objective=dpo` learns to prefer the one to the other. To "
        "learn the chosen ones alone: `columns=prompt=prompt,completion=chosen`; `skip_bad` leaves such examples out");
}

/* Nothing but texts, and lists of their parts, is text: in no column and in no message. */
static void test_what_is_no_text(void) {
    static const struct {
        const char *format, *name; /* the column's value is %s */
    } columns[] = {
        {"{'prompt':%s,'completion':'b'}", "\"prompt\""},
        {"{'prompt':'a','completion':%s}", "\"completion\""},
        {"{'instruction':%s,'output':'b'}", "\"instruction\""},
        {"{'instruction':'a','output':%s}", "\"output\""},
        {"{'question':%s,'answer':'b'}", "\"question\""},
        {"{'question':'a','answer':%s}", "\"answer\""},
        {"{'text':%s}", "\"text\""},
        {"{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':%s}]}", "message 2: \"content\""},
        {"{'conversations':[{'from':'human','value':'a'},{'from':'gpt','value':%s}]}", "message 2: \"value\""},
    };
    static const struct {
        const char *value, *problem;
    } values[] = {
        {"null", "should be a text, not null"},
        {"true", "should be a text, not true"},
        {"1.5", "should be a text, not a number"},
        {"{'a':'b'}", "should be a text, not an object"},
        {"['a']", ": part 1 should be {\"type\": \"text\", \"text\": …}"},
        {"[{'type':'image_url'}]", ": part 1 is of the type \"image_url\", and only text is trained on"},
    };
    for (size_t c = 0; c < QR_COUNT_OF(columns); c++) {
        for (size_t v = 0; v < QR_COUNT_OF(values); v++) {
            char text[256], expected[256];
            snprintf(text, sizeof text, columns[c].format, values[v].value);
            snprintf(expected, sizeof expected, ":1: %s%s%s; `skip_bad` leaves such examples out", columns[c].name,
                     values[v].problem[0] == ':' ? "" : " ", values[v].problem);
            expect(text, true, expected);
        }
    }
}

static void test_parts_of_text(void) {
    expect("{'prompt':[{'role':'user','content':'a'}],'completion':'b'}", true,
           ":1: the prompt is a list of messages, so what completes it should be one too; `skip_bad` leaves such "
           "examples out");
    expect(
        "{'prompt':'a','completion':[{'role':'assistant','content':'b'}]}", true,
        ":1: \"completion\" holds messages; give conversations as \"messages\"; `skip_bad` leaves such examples out");
    expect("{'prompt':[{'type':'text','text':'One'},{'type':'text','text':' two'}],"
           "'completion':[{'type':'text','text':' three'}]}",
           true, "<|bos|>One two[ three<|eos|>]\n");
    expect("{'instruction':[{'type':'text','text':'Add.'}],'input':[{'type':'text','text':'1, 2'}],"
           "'output':[{'type':'text','text':'3'}]}",
           true, "<|bos|><|user|>Add.\n\n1, 2<|end|><|assistant|>[3<|end|>]\n");
    expect("{'conversations':[{'from':'human','value':[{'type':'text','text':'Hi!'}]},"
           "{'from':'gpt','value':[{'type':'text','text':'Hel'},{'type':'text','text':'lo!'}]}]}",
           true, "<|bos|><|user|>Hi!<|end|><|assistant|>[Hello!<|end|>]\n");
}

/* Each name once, in the order of the file, whatever the number of threads; and again out of the cache. */
static void test_unknown_members(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    qr_dataset_options options = dataset_options(
        &folder,
        dataset_write(&folder, "d",
                      "{'messages':[{'role':'user','content':'a','name':'x','tool_calls':null},"
                      "{'role':'assistant','content':'b','weight':1,'reasoning_content':null,'likes':null}]}\n"
                      "{'messages':[{'role':'user','content':'a','mood':'good'},"
                      "{'role':'assistant','content':'b','mood':'bad','\\u001b[1m':1}]}\n"
                      "{'messages':[{'role':'user','content':'a','likes':3},{'role':'assistant','content':'b'}],"
                      "'source':'x','tools':null,'system':'s','note':''}\n"),
        64);
    for (int i = 0; i < 2; i++) {
        qr_dataset *dataset;
        qr_error err = {0};
        REQUIRE(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_OK);
        const qr_dataset_info *info = qr_dataset_get_info(dataset);
        CHECK_INT(info->from_cache, i);
        CHECK_STR(info->unknown_members, "\"mood\", \"\\u001b[1m\", \"source\", \"likes\"");
        CHECK_INT(info->unknown_line, 2);
        qr_dataset_close(dataset);
    }
    qr_buffer text = {0};
    for (int i = 0; i < 100; i++) {
        qr_buffer_append_format(&text,
                                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"member%d\": 1}, "
                                "{\"role\": \"assistant\", \"content\": \"b\"}]}\n",
                                i);
    }
    options.path = temporary_text(&folder, "many", text.data);
    qr_dataset *dataset;
    REQUIRE(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, NULL) == QRUN_OK);
    const char *names = qr_dataset_get_info(dataset)->unknown_members;
    CHECK(strncmp(names, "\"member0\", \"member1\", ", 22) == 0);
    CHECK(strlen(names) > 200 && strcmp(names + strlen(names) - 5, ", …") == 0);
    qr_dataset_close(dataset);
    qr_buffer_free(&text);
    example_model_close(&model);
    temporary_remove(&folder);
}

/* Templates that do not end a turn by themselves: the answers are ended all the same, and nothing else is. */
static void test_ends_of_turns(void) {
    static const struct {
        const char *chat_template, *expected;
    } cases[] = {
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if not loop.last %}<|eos|>{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}<assistant>{% endif %}",
         "<user>a<|eos|><assistant>[b<|eos|>]<user>c<|eos|><assistant>[d<|eos|>]"},
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}<assistant>{% endif %}",
         "<user>a\n<assistant>[b\n]<user>c\n<assistant>[d\n<|eos|>]"},
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eos|>\n{% endfor %}"
         "{% if add_generation_prompt %}<assistant>{% endif %}",
         "<user>a<|eos|>\n<assistant>[b<|eos|>\n]<user>c<|eos|>\n<assistant>[d<|eos|>\n]"},
    };
    const example_model model = example_model_open();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        const temporary_folder folder = temporary_create();
        const qr_dataset_options options =
            dataset_options(&folder,
                            dataset_write(&folder, "d",
                                          "{'messages':[{'role':'user','content':'a'},"
                                          "{'role':'assistant','content':'b'},{'role':'user','content':'c'},"
                                          "{'role':'assistant','content':'d'}]}"),
                            512);
        qr_chat_template *own = NULL;
        qr_dataset *dataset = NULL;
        qr_buffer shown = {0};
        qr_error err = {0};
        CHECK(qr_chat_template_parse(cases[i].chat_template, strlen(cases[i].chat_template), "own", &own, &err) ==
              QRUN_OK);
        CHECK_MSG(qr_dataset_open(&options, model.tokenizer, own, &dataset, &err) == QRUN_OK, "%s", err.message);
        if (dataset != NULL) { CHECK(qr_dataset_show(dataset, 0, "[", "]", &shown, &err) == QRUN_OK); }
        CHECK_STR(shown.data, cases[i].expected);
        qr_buffer_free(&shown);
        qr_dataset_close(dataset);
        qr_chat_template_free(own);
        temporary_remove(&folder);
    }
    example_model_close(&model);
}

static void test_bad_files(void) {
    expect("", true, ": is empty; give one example per line");
    expect(" \n\r\n", true, ": is empty; give one example per line");
    expect("[]", true, ": holds no examples");
    expect("[{'text':'a'} {'text':'b'}]", true, ":1: ',' or ']' should be here, between the examples of the array");
    expect("[{'text':'a'},\n{'text':", true, ":2: the array is not closed; was the file cut off?");
    expect("[{'text':'a'},", true, ":1: the array is not closed; was the file cut off?");
    expect("[{'text':'a'}", true, ":1: the array is not closed; was the file cut off?");
    expect("[{'text':'a'}]\n x", true, ":2: text after the end of the array");
    expect("[{'text':'a'},\n{'text':b}]", true,
           ":2:9: 'b' where a value should be; `skip_bad` leaves such examples out");
    expect("[{'text':'a'},]", true, ":1:1: the text ends where a value should be; `skip_bad` leaves such examples out");
    expect("{'text':'a'}\n{'question':'b'}\n", true,
           ":2: has no known format: its members are \"question\". A line should be like {\"prompt\": \"Hello!\", "
           "\"completion\": \" Ahoy!\"}, or have \"messages\", \"prompt\" and \"response\", \"instruction\" and "
           "\"output\", \"question\" and \"answer\", \"input\" and \"output\", \"conversations\", or \"text\". "
           "`columns` gives other names to members; `skip_bad` leaves such examples out");
    expect(
        "{'text':'a'}\n{'prompt':'b','completion':'c'}\n", true,
        ":2: this example is of the format \"prompt/completion\", and those before it are of \"text\"; put each format "
        "in its own file; `skip_bad` leaves such examples out");
    expect("{'text':7}", true, ":1: \"text\" should be a text, not a number; `skip_bad` leaves such examples out");
    expect("{'text':'a'}\n{'text':'a','text':'b'}", true,
           ":2:13: key \"text\" occurs twice in one object; `skip_bad` leaves such examples out");
    expect("{'text':'\xFF'}", true, ":1:10: byte 0xff is not valid UTF-8 here; `skip_bad` leaves such examples out");
    expect("{'messages':{}}", true,
           ":1: \"messages\" should be a list of messages; `skip_bad` leaves such examples out");
    expect("{'messages':[]}", true, ":1: it has no messages; `skip_bad` leaves such examples out");
    expect("{'messages':[{'role':'user','content':'a'}]}", false,
           ":1: the examples are messages, and the model has no chat template; give them as prompt and completion, or "
           "put a chat_template.jinja into the model's folder");
    expect("{'messages':[{'role':'tool','content':'a'}]}", true,
           ":1: the roles are system, user and assistant, not tool; `skip_bad` leaves such examples out");
}

static void test_binary_and_missing_files(void) {
    const temporary_folder folder = temporary_create();
    qr_buffer shown = {0};
    show_all(&folder, temporary_write(&folder, "b", "ab\0c", 4), 16, true, true, &shown, NULL);
    CHECK(shown.data != NULL && strstr(shown.data, "is not text: it holds zero bytes") != NULL);
    qr_buffer_clear(&shown);
    show_all(&folder, temporary_write(&folder, "p", "PAR1\x15\0\x15", 7), 16, true, true, &shown, NULL);
    CHECK(shown.data != NULL && strstr(shown.data, "is a Parquet file; convert it with: python3 -c") != NULL);
    qr_buffer_clear(&shown);
    show_all(&folder, "/nowhere/d.jsonl", 16, true, true, &shown, NULL);
    CHECK_STR(shown.data, "/nowhere/d.jsonl: cannot open: No such file or directory; check the path");
    qr_buffer_clear(&shown);
    const char *marked = temporary_text(&folder, "bom", "\xEF\xBB\xBF{\"text\":\"a\"}\r\n");
    show_all(&folder, marked, 16, true, false, &shown, NULL);
    CHECK_STR(shown.data, "<|bos|>[a<|eos|>]\n");
    qr_buffer_clear(&shown);
    show_all(&folder, dataset_write(&folder, "bad", "{'text':1}\n2\n"), 16, true, true, &shown, NULL);
    CHECK(shown.data != NULL && strstr(shown.data, "bad: none of its 2 examples can be used; the first: ") != NULL &&
          strstr(shown.data, "bad:1: \"text\" should be a text") != NULL);
    qr_buffer_free(&shown);
    temporary_remove(&folder);
}

static void test_no_target(void) {
    expect("{'messages':[{'role':'user','content':'a'}]}", true,
           ": no token is a target: no conversation has an answer of the role \"assistant\"");
    expect("{'text':''}", true, ": no token is a target: there is no text to learn in any example");
    expect_with("{'prompt':'One two three four five','completion':'x'}", 4, true, false,
                ": no token is a target: what should be learned lies beyond the first 4 tokens of every example; take "
                "a longer `seq_len`",
                NULL);
    expect_with("[{'text':1},2]", 4, true, false,
                ":1: \"text\" should be a text, not a number; `skip_bad` leaves such examples out", NULL);
}

/* Counts of a set with something of everything. */
static void test_counts(void) {
    qr_dataset_info info = {0};
    expect_with("{'text':'a b'}\n{'text':\n{'text':''}\n7\n{'text':'a b a b a b'}\n", 4, true, true,
                "<|bos|>[a b<|eos|>]\n<|bos|>[a b a]\n", &info);
    CHECK_INT(info.n_examples, 2);
    CHECK_INT(info.n_tokens, 8);
    CHECK_INT(info.n_targets, 6);
    CHECK_INT(info.longest_tokens, 4);
    CHECK_INT(info.n_without_target, 1);
    CHECK_INT(info.n_truncated, 1);
    CHECK_INT(info.n_cut_tokens, 4);
    CHECK_INT(info.n_bad, 2);
    CHECK_INT(info.format, QR_DATASET_TEXT);
    CHECK_INT(info.from_cache, 0);
    CHECK(strstr(info.first_bad, ":2:9: ") != NULL);
}

/* One broken line among thousands is named, whatever the number of threads. */
static void test_one_broken_line(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    qr_buffer text = {0};
    for (int i = 1; i <= 3000; i++) {
        qr_buffer_append_format(&text, i == 2500 ? "{\"text\": \"%d\n" : "{\"text\": \"line %d\"}\n", i);
    }
    qr_dataset_options options = dataset_options(&folder, temporary_text(&folder, "d.jsonl", text.data), 64);
    qr_error err = {0};
    CHECK(qr_threads_create(3, &options.threads, &err) == QRUN_OK);
    qr_dataset *dataset;
    CHECK(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "/d.jsonl:2500:10: this string has no closing quote") != NULL, "%s", err.message);
    qr_error_clear(&err);
    options.skip_bad = true;
    CHECK(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_OK);
    CHECK_INT(qr_dataset_count(dataset), 2999);
    CHECK_INT(qr_dataset_get(dataset, 2498).line, 2499);
    CHECK_INT(qr_dataset_get(dataset, 2499).line, 2501);
    qr_dataset_close(dataset);
    /* The same file made by one thread is the same to the byte. */
    qr_dataset_options alone = options;
    char cache[128];
    snprintf(cache, sizeof cache, "%s/alone", folder.path);
    alone.threads = NULL;
    alone.cache_folder = cache;
    CHECK(qr_dataset_open(&alone, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_OK);
    qr_dataset_close(dataset);
    qr_buffer command = {0};
    qr_buffer_append_format(&command, "cmp %s/*.qrdata %s/*.qrdata", options.cache_folder, cache);
    CHECK(system(command.data) == 0);
    /* What left examples out is not taken for what must not. */
    options.skip_bad = false;
    CHECK(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_ERROR_INPUT);
    qr_threads_destroy(options.threads);
    qr_buffer_free(&command);
    qr_buffer_free(&text);
    example_model_close(&model);
    temporary_remove(&folder);
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static int count_files(const char *path) {
    int n = 0;
    DIR *listing = opendir(path);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) { n += entry->d_name[0] != '.'; }
    if (listing != NULL) { closedir(listing); }
    return n;
}

/* Whether the tokens came from a file made earlier; checks that they are the right ones. */
static bool reopens(const qr_dataset_options *options, const example_model *model, const char *expected) {
    qr_dataset *dataset;
    qr_error err = {0};
    CHECK_MSG(qr_dataset_open(options, model->tokenizer, model->chat_template, &dataset, &err) == QRUN_OK, "%s",
              err.message);
    if (dataset == NULL) { return false; }
    qr_buffer shown = {0};
    CHECK(qr_dataset_show(dataset, qr_dataset_count(dataset) - 1, "[", "]", &shown, &err) == QRUN_OK);
    CHECK_STR(shown.data, expected);
    const bool from_cache = qr_dataset_get_info(dataset)->from_cache != 0;
    qr_buffer_free(&shown);
    qr_dataset_close(dataset);
    return from_cache;
}

static void test_cache_key(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    qr_dataset_options options =
        dataset_options(&folder, dataset_write(&folder, "d", "{'text':'a'}\n{'text':'b c'}"), 16);
    CHECK(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    CHECK(reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    options.path = dataset_write(&folder, "copy", "{'text':'a'}\n{'text':'b c'}");
    CHECK(reopens(&options, &model, "<|bos|>[b c<|eos|>]")); /* the content counts, not the name */
    options.seq_len = 3;
    CHECK(!reopens(&options, &model, "<|bos|>[b c]"));
    options.seq_len = 16;
    options.now = 86400;
    CHECK(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    options.template_arguments = "{\"a\": 1}";
    CHECK(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    options.path = dataset_write(&folder, "copy", "{'text':'a'}\n{'text':'b d'}");
    CHECK(!reopens(&options, &model, "<|bos|>[b d<|eos|>]"));
    options.model_folder = folder.path; /* other tokenizer files: none */
    CHECK(!reopens(&options, &model, "<|bos|>[b d<|eos|>]"));
    CHECK_INT(count_files(options.cache_folder), 6);
    example_model_close(&model);
    temporary_remove(&folder);
}

/* The cache file, cut at every length and with every byte changed in turn, is made again. */
static void test_damaged_cache(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    const qr_dataset_options options = dataset_options(&folder, dataset_write(&folder, "d", "{'text':'b c'}"), 16);
    CHECK(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    char path[4096] = "";
    DIR *listing = opendir(options.cache_folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] != '.') { snprintf(path, sizeof path, "%s/%s", options.cache_folder, entry->d_name); }
    }
    if (listing != NULL) { closedir(listing); }
    char *bytes = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    REQUIRE(qr_file_read(path, 1 << 20, &bytes, &n_bytes, &err) == QRUN_OK);
    CHECK(n_bytes > 100);
    for (size_t i = 0; i < n_bytes; i += 29) {
        CHECK(qr_file_write(path, bytes, i, &err) == QRUN_OK);
        CHECK_MSG(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"), "cut at %zu", i);
        bytes[i] = (char)(bytes[i] ^ 0x10);
        CHECK(qr_file_write(path, bytes, n_bytes, &err) == QRUN_OK);
        CHECK_MSG(!reopens(&options, &model, "<|bos|>[b c<|eos|>]"), "byte %zu", i);
        bytes[i] = (char)(bytes[i] ^ 0x10);
        CHECK(reopens(&options, &model, "<|bos|>[b c<|eos|>]"));
    }
    CHECK_INT(count_files(options.cache_folder), 1);
    qr_free(bytes);
    example_model_close(&model);
    temporary_remove(&folder);
}

typedef struct stop_state {
    int n_calls, last_call;
} stop_state;

/* The first call comes before anything is tokenised. */
static bool stop(void *user, int64_t done, int64_t total) {
    stop_state *state = user;
    CHECK((state->n_calls == 0) == (done == 0) && done <= total);
    return ++state->n_calls < state->last_call;
}

static void check_cancel(int last_call) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    qr_buffer text = {0};
    for (int i = 0; i < 2000; i++) { qr_buffer_append_text(&text, "{\"text\": \"a\"}\n"); }
    qr_dataset_options options = dataset_options(&folder, temporary_text(&folder, "d", text.data), 16);
    stop_state state = {0, last_call};
    options.progress = stop;
    options.progress_user = &state;
    qr_dataset *dataset;
    qr_error err = {0};
    CHECK(qr_dataset_open(&options, model.tokenizer, NULL, &dataset, &err) == QRUN_ERROR_CANCELLED);
    CHECK_INT(state.n_calls, last_call);
    CHECK_INT(count_files(options.cache_folder), 0);
    qr_buffer_free(&text);
    example_model_close(&model);
    temporary_remove(&folder);
}

static void test_cancel(void) {
    for (int last_call = 1; last_call <= 3; last_call++) { check_cancel(last_call); }
}

typedef struct sweep {
    const qr_dataset_options *options;
    const example_model *model;
} sweep;

/* Without allocating through the library, whose next allocation is to fail. */
static void remove_caches(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) { return; }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

static qrun_status attempt(void *context, qr_error *err) {
    const sweep *s = context;
    qr_dataset *dataset;
    qr_buffer shown = {0};
    qrun_status status = qr_dataset_open(s->options, s->model->tokenizer, s->model->chat_template, &dataset, err);
    if (status == QRUN_OK) { status = qr_dataset_show(dataset, 0, "[", "]", &shown, err); }
    qr_buffer_free(&shown);
    qr_dataset_close(dataset);
    remove_caches(s->options->cache_folder);
    return status;
}

static void test_failing_allocations(void) {
    static const char *const files[] = {
        "{'messages':[{'role':'user','content':'Hi'},{'role':'assistant','content':'Oh'}]}",
        "{'conversations':[{'from':'human','value':[{'type':'text','text':'a'}],'mood':1,'train':true},"
        "{'from':'gpt','value':'Oh'}]}",
        "{'prompt':'a','completion':[{'type':'text','text':'a'}]}", "{'instruction':'a','input':'b','output':'c'}",
        "[{'text':'b c'}]"};
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        qr_dataset_options options = dataset_options(&folder, dataset_write(&folder, "d", files[i]), 64);
        options.template_arguments = "{\"a\": 1}";
        options.skip_bad = true; /* short memory is no bad example */
        sweep s = {&options, &model};
        check_failing_allocations(attempt, &s, true);
    }
    example_model_close(&model);
    temporary_remove(&folder);
}

/* ---- real data --------------------------------------------------------------------------------------------------- */

static void check_real(const char *name, qr_dataset_format format, int64_t n_examples) {
    const char *found = check_shared_data(name);
    if (found == NULL) {
        check_skip("no shared data");
        return;
    }
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    const qr_dataset_options options = dataset_options(&folder, found, 100000);
    qr_dataset *dataset = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_OK, "%s",
              err.message);
    if (dataset != NULL) {
        const qr_dataset_info *info = qr_dataset_get_info(dataset);
        CHECK_INT(info->format, format);
        CHECK_INT(info->n_examples, n_examples);
        CHECK_INT(info->n_without_target + info->n_truncated + info->n_bad, 0);
        for (int64_t i = 0; i < n_examples; i++) { /* one answer each, at the end */
            const qr_example example = qr_dataset_get(dataset, i);
            const int64_t first = example.n_tokens - example.n_targets;
            for (int64_t t = 0; t < example.n_tokens; t++) { CHECK(example.is_target[t] == (t >= first)); }
        }
    }
    qr_dataset_close(dataset);
    example_model_close(&model);
    temporary_remove(&folder);
}

static void test_alpaca_demo(void) { check_real("datasets/alpaca_en_demo.json", QR_DATASET_ALPACA, 999); }
static void test_identity(void) { check_real("datasets/identity.json", QR_DATASET_ALPACA, 91); }

static void test_gsm8k(void) { check_real("datasets/gsm8k/test.jsonl", QR_DATASET_QUESTION_ANSWER, 1319); }

/* ---- files that end meanwhile ------------------------------------------------------------------------------------ */

static bool cut_file(void *user, int64_t done, int64_t total) {
    (void)done, (void)total;
    CHECK(truncate(user, 10) == 0);
    return true;
}

static void check_cut(qrun_status status, const qr_error *err, const char *path) {
    CHECK_INT(status, QRUN_ERROR_IO);
    CHECK_MSG(strncmp(err->message, path, strlen(path)) == 0 && strstr(err->message, "cut short") != NULL, "%s",
              err->message);
}

static void test_a_file_cut_short_while_it_is_read(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    char path[128];
    snprintf(path, sizeof path, "%s", dataset_write(&folder, "d.jsonl", "{'text':'One'}\n{'text':'Two'}\n"));
    qr_dataset_options options = dataset_options(&folder, path, 512);
    options.progress = cut_file;
    options.progress_user = path;
    qr_dataset *dataset = NULL;
    qr_error err = {0};
    check_cut(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err), &err, path);
    example_model_close(&model);
    temporary_remove(&folder);
}

/* The file of tokens stays mapped for the whole run. */
static void test_a_cache_cut_short_while_it_is_used(void) {
    const temporary_folder folder = temporary_create();
    const example_model model = example_model_open();
    const char *path = dataset_write(&folder, "d.jsonl", "{'text':'One'}\n{'text':'Two'}\n");
    const qr_dataset_options options = dataset_options(&folder, path, 512);
    qr_dataset *dataset = NULL;
    qr_error err = {0};
    REQUIRE(qr_dataset_open(&options, model.tokenizer, model.chat_template, &dataset, &err) == QRUN_OK);
    CHECK_INT(qr_dataset_check(dataset, &err), QRUN_OK);
    DIR *cache = opendir(options.cache_folder);
    REQUIRE(cache != NULL);
    char file[4096] = "";
    for (const struct dirent *entry; (entry = readdir(cache)) != NULL;) {
        if (entry->d_name[0] != '.') { snprintf(file, sizeof file, "%s/%s", options.cache_folder, entry->d_name); }
    }
    closedir(cache);
    CHECK(truncate(file, 0) == 0);
    CHECK_INT(qr_dataset_get(dataset, 0).n_tokens, 0);
    check_cut(qr_dataset_check(dataset, &err), &err, file);
    qr_dataset_close(dataset);
    example_model_close(&model);
    temporary_remove(&folder);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_formats);
    CHECK_RUN(test_alpaca);
    CHECK_RUN(test_question_and_answer);
    CHECK_RUN(test_sharegpt);
    CHECK_RUN(test_pairs_of_answers);
    CHECK_RUN(test_pairs_are_cut);
    CHECK_RUN(test_pairs_that_are_none);
    CHECK_RUN(test_messages_that_do_not_count);
    CHECK_RUN(test_what_is_no_text);
    CHECK_RUN(test_parts_of_text);
    CHECK_RUN(test_unknown_members);
    CHECK_RUN(test_ends_of_turns);
    CHECK_RUN(test_bad_files);
    CHECK_RUN(test_binary_and_missing_files);
    CHECK_RUN(test_no_target);
    CHECK_RUN(test_counts);
    CHECK_RUN(test_one_broken_line);
    CHECK_RUN(test_cache_key);
    CHECK_RUN(test_damaged_cache);
    CHECK_RUN(test_cancel);
    CHECK_RUN(test_failing_allocations);
    CHECK_RUN(test_a_file_cut_short_while_it_is_read);
    CHECK_RUN(test_a_cache_cut_short_while_it_is_used);
    CHECK_RUN(test_alpaca_demo);
    CHECK_RUN(test_identity);
    CHECK_RUN(test_gsm8k);
    return check_end();
}
