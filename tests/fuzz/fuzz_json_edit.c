/* The input is a JSON object whose members are set, removed and found in its text. What comes out is an object again,
 * with that member changed, and every other one as it was and in its place. */
#include "fuzz.h"
#include "loaders/files/json_edit.h"

enum { MAX_KEYS = 6 };

static qr_json *parse(const char *text, size_t n_bytes) {
    qr_json *root = NULL;
    FUZZ_CHECK(qr_json_parse_python(text, n_bytes, "edited", &root, NULL) == QRUN_OK && cJSON_IsObject(root));
    return root;
}

static bool same(const qr_json *a, const qr_json *b) {
    return strcmp(a->string, b->string) == 0 && (a->type & 0xFF) == (b->type & 0xFF) &&
           (!cJSON_IsNumber(a) || a->valuedouble == b->valuedouble) &&
           (!cJSON_IsString(a) || strcmp(a->valuestring, b->valuestring) == 0) && qr_json_count(a) == qr_json_count(b);
}

/* The members of both but for `key`, in their order. */
static void check_others(const qr_json *before, const qr_json *after, const char *key) {
    const qr_json *a = qr_json_first(before), *b = qr_json_first(after);
    for (; a != NULL || b != NULL; a = a->next, b = b->next) {
        while (a != NULL && strcmp(a->string, key) == 0) { a = a->next; }
        while (b != NULL && strcmp(b->string, key) == 0) { b = b->next; }
        if (a == NULL || b == NULL) { break; }
        FUZZ_CHECK(same(a, b));
    }
    FUZZ_CHECK(a == NULL && b == NULL);
}

static void check_key(const char *text, size_t n_bytes, const qr_json *root, const char *key, const char *value) {
    qr_buffer out = {0};
    qr_error err = {0};
    FUZZ_CHECK(qr_json_edit_set(text, n_bytes, "fuzz", key, value, &out, &err) == QRUN_OK);
    qr_json *edited = parse(out.data, out.size);
    const qr_json *member = qr_json_get(edited, key);
    FUZZ_CHECK(value == NULL ? member == NULL : cJSON_IsArray(member) && qr_json_count(member) == 2);
    check_others(root, edited, key);
    size_t begin, end;
    FUZZ_CHECK(qr_json_edit_find(out.data, out.size, "fuzz", key, &begin, &end, &err) == QRUN_OK);
    FUZZ_CHECK((begin < end) == (value != NULL) && end < out.size);
    if (value != NULL) {
        FUZZ_CHECK(strncmp(out.data + begin + strspn(out.data + begin, " "), value, strlen(value)) == 0);
    }
    qr_json_free(edited);
    qr_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    qr_json *root = NULL;
    qr_buffer out = {0};
    size_t begin, end;
    if (qr_json_parse_python(text, size, "fuzz", &root, NULL) != QRUN_OK || !cJSON_IsObject(root)) {
        FUZZ_CHECK(qr_json_edit_set(text, size, "fuzz", "key", "1", &out, NULL) != QRUN_OK && out.size == 0);
        (void)qr_json_edit_find(text, size, "fuzz", "key", &begin, &end, NULL);
        FUZZ_CHECK(begin == 0 && end == 0);
        qr_json_free(root);
        return 0;
    }
    int n_keys = 0;
    for (const qr_json *item = qr_json_first(root); item != NULL && n_keys < MAX_KEYS; item = item->next, n_keys++) {
        check_key(text, size, root, item->string, "[\"\",{}]");
        check_key(text, size, root, item->string, NULL);
    }
    check_key(text, size, root, "no such key", "[\"\",{}]");
    check_key(text, size, root, "no such key", NULL);
    qr_json_free(root);
    return 0;
}
