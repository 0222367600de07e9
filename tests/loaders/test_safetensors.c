/* safetensors: what is refused and why, shards, the writer's exact bytes, round trips, failing allocations. */
#include "check.h"

#include "base/sizes.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "loaders/files/safetensors_writer.h"
#include "loaders/source/model_source.h"
#include "temporary.h"

static void test_reads_tensors_out_of_order(void) {
    const temporary_folder folder = temporary_create();
    const float values[3] = {1.5F, -2, 8};
    const char *path = temporary_safetensors(
        &folder, "a.safetensors",
        "{\"late\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},\"__metadata__\":{\"format\":\"pt\"},"
        "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
        "\"early\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ",
        values, sizeof values);
    qr_safetensors *file;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_open(path, &file, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(file != NULL);
    CHECK_INT(qr_safetensors_count(file), 3);
    CHECK_STR(qr_safetensors_get(file, 0)->name, "early");
    CHECK_STR(qr_safetensors_get(file, 1)->name, "empty");
    CHECK_STR(qr_safetensors_get(file, 2)->name, "late");
    CHECK(qr_safetensors_get(file, 3) == NULL && qr_safetensors_find(file, "lat") == NULL);
    const qr_safetensors_tensor *late = qr_safetensors_find(file, "late");
    REQUIRE(late != NULL);
    CHECK(late->n_dims == 2 && late->dims[0] == 2 && late->dims[1] == 1 && late->n_bytes == 8);
    CHECK(memcmp(late->data, values + 1, 8) == 0);
    CHECK_INT(qr_safetensors_find(file, "early")->n_dims, 0);
    CHECK_INT(qr_safetensors_finish(file, late, NULL), QRUN_OK);
    CHECK(memcmp(late->data, values + 1, 8) == 0);
    CHECK_STR(qr_safetensors_metadata(file, "format"), "pt");
    CHECK(qr_safetensors_metadata(file, "other") == NULL);
    CHECK_STR(qr_safetensors_shard_path(file, late->shard), temporary_path(&folder, "a.safetensors"));
    qr_safetensors_close(file);
    temporary_remove(&folder);
}

static void test_require(void) {
    const temporary_folder folder = temporary_create();
    temporary_safetensors(&folder, "model.safetensors",
                          "{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}", NULL, 12);
    qr_safetensors *file;
    REQUIRE(qr_safetensors_open(folder.path, &file, NULL) == QRUN_OK);
    const qr_safetensors_tensor *tensor;
    const int64_t fits[] = {2, 3}, any[] = {-1, 3}, other[] = {3, -1};
    CHECK(qr_safetensors_require(file, "w", QR_DTYPES_FLOAT, 2, fits, &tensor, NULL) == QRUN_OK &&
          tensor->n_bytes == 12);
    CHECK_INT(qr_safetensors_require(file, "w", QR_DTYPES_FLOAT, 2, any, &tensor, NULL), QRUN_OK);
    const struct {
        const char *name;
        qr_dtype_set dtypes;
        int n_dims;
        const int64_t *dims;
        const char *message;
    } cases[] = {
        {"v", QR_DTYPES_FLOAT, 2, fits, "tensor \"v\" is missing"},
        {"w", QR_DTYPES_FLOAT, 2, other, "tensor \"w\" has shape [2, 3] and should have [3, any]"},
        {"w", QR_DTYPES_FLOAT, 1, fits, "tensor \"w\" has shape [2, 3] and should have [2]"},
        {"w", QR_DTYPE_BIT(QR_DTYPE_F32) | QR_DTYPE_BIT(QR_DTYPE_I8), 2, fits,
         "tensor \"w\" is BF16 and should be F32 or I8"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_error err = {0};
        CHECK_INT(
            qr_safetensors_require(file, cases[i].name, cases[i].dtypes, cases[i].n_dims, cases[i].dims, &tensor, &err),
            QRUN_ERROR_INPUT);
        CHECK(tensor == NULL);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        CHECK_MSG(strstr(err.message, "model.safetensors: ") != NULL, "%s", err.message);
    }
    qr_safetensors_close(file);
    temporary_remove(&folder);
}

static void test_refusals(void) {
    static const struct {
        const char *header;
        size_t n_bytes;
        const char *message;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "outside the 3 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, "no tensor covers the last 1 byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "\"b\" overlaps another tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
         4, "\"b\" begins after bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, "key \"a\" occurs twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,0]}}", 2, "data_offsets [2, 0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "needs 8 bytes by its shape and has 4"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "does not fill whole bytes"},
        {"{\"a\":{\"dtype\":\"Q8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown dtype \"Q8\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "not a non-negative integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]}}", 1, "not a non-negative integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "more than 8 dimensions"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "two non-negative integers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1e300,1e300]}}", 1, "two non-negative integers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "no list \"shape\""},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no string \"dtype\""},
        {"{\"a\":7}", 0, "not described by an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "not an object of strings"},
        {"{\"__metadata__\":[]}", 0, "not an object of strings"},
        {"[]", 0, "not a JSON object"},
        {"{\"a\"", 0, "header:1:5: the text ends where ':' should be"},
    };
    const temporary_folder folder = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        const char *path = temporary_safetensors(&folder, "a.safetensors", cases[i].header, NULL, cases[i].n_bytes);
        qr_safetensors *file;
        qr_error err = {0};
        const qrun_status status = qr_safetensors_open(path, &file, &err);
        CHECK_MSG(status == QRUN_ERROR_INPUT || status == QRUN_ERROR_UNSUPPORTED, "%s accepted", cases[i].header);
        CHECK(file == NULL);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        CHECK_MSG(strstr(err.message, "a.safetensors: ") != NULL, "%s", err.message);
        qr_safetensors_close(file);
    }
    qr_safetensors *file;
    CHECK_INT(qr_safetensors_open(temporary_path(&folder, "absent"), &file, NULL), QRUN_ERROR_NOT_FOUND);
    CHECK_INT(qr_safetensors_open(folder.path, &file, NULL), QRUN_ERROR_NOT_FOUND);
    temporary_remove(&folder);
}

/* Python writes 1.0 and 1e3 for floats, and a count is none. */
static void test_integers_are_written_as_such(void) {
    static const char *const wrong[] = {"1.0",
                                        "1e0",
                                        "10e-1",
                                        "1E0",
                                        "-0",
                                        "-0.0",
                                        "true",
                                        "\"1\"",
                                        "null",
                                        "1e3",
                                        "9007199254740992.0",
                                        "9223372036854775808",
                                        "1e300"};
    static const char *const headers[] = {"{\"a\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,1]}}",
                                          "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,%s]}}",
                                          "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[%s,0]}}"};
    const temporary_folder folder = temporary_create();
    for (size_t i = 0; i < QR_COUNT_OF(wrong) * QR_COUNT_OF(headers); i++) {
        char header[256];
        snprintf(header, sizeof header, headers[i / QR_COUNT_OF(wrong)], wrong[i % QR_COUNT_OF(wrong)]);
        qr_safetensors *file;
        qr_error err = {0};
        const char *path = temporary_safetensors(&folder, "a.safetensors", header, NULL, 1);
        CHECK_MSG(qr_safetensors_open(path, &file, &err) == QRUN_ERROR_INPUT, "%s is accepted", header);
        CHECK_MSG(strstr(err.message, "non-negative integer") != NULL, "%s: %s", header, err.message);
        qr_safetensors_close(file);
    }
    temporary_remove(&folder);
}

static void test_a_file_cut_short_while_it_is_open(void) {
    const temporary_folder folder = temporary_create();
    unsigned char values[20000];
    memset(values, 9, sizeof values);
    const char *path = temporary_safetensors(&folder, "a.safetensors",
                                             "{\"a\":{\"dtype\":\"U8\",\"shape\":[20000],\"data_offsets\":[0,20000]}}",
                                             values, sizeof values);
    qr_safetensors *file;
    qr_error err = {0};
    REQUIRE(qr_safetensors_open(path, &file, NULL) == QRUN_OK);
    const qr_safetensors_tensor *tensor = qr_safetensors_find(file, "a");
    CHECK_INT(qr_safetensors_check(file, &err), QRUN_OK);
    CHECK(truncate(path, 100) == 0);
    CHECK(tensor->data[0] == 9 && tensor->data[19999] == 0);
    CHECK_INT(qr_safetensors_check(file, NULL), QRUN_ERROR_IO);
    CHECK_INT(qr_safetensors_finish(file, tensor, &err), QRUN_ERROR_IO);
    CHECK_MSG(strncmp(err.message, path, strlen(path)) == 0, "%s", err.message);
    qr_safetensors_close(file);
    temporary_remove(&folder);
}

static void test_short_files(void) {
    const temporary_folder folder = temporary_create();
    static const unsigned char huge_header[16] = {1, 0, 0, 0, 0, 1, 0, 0, '{', '}'};
    for (size_t n = 0; n <= 9; n++) {
        const char *path = temporary_write(&folder, "a", "\x02\0\0\0\0\0\0\0{}", n);
        qr_safetensors *file;
        CHECK_INT(qr_safetensors_open(path, &file, NULL), QRUN_ERROR_INPUT);
    }
    qr_safetensors *file;
    qr_error err = {0};
    const char *path = temporary_write(&folder, "a", huge_header, sizeof huge_header);
    CHECK_INT(qr_safetensors_open(path, &file, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "more than the 100000000 allowed") != NULL, "%s", err.message);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n";
    err = (qr_error){0};
    path = temporary_write(&folder, "a", pointer, sizeof pointer - 1);
    CHECK_INT(qr_safetensors_open(path, &file, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "a: is a pointer of Git LFS") != NULL, "%s", err.message);
    temporary_remove(&folder);
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

#define ONE_BYTE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"

static void write_two_shards(const temporary_folder *folder, const char *index) {
    temporary_safetensors(folder, "m-1.safetensors", ONE_BYTE("a"), "A", 1);
    temporary_safetensors(folder, "m-2.safetensors", ONE_BYTE("b"), "B", 1);
    temporary_text(folder, "model.safetensors.index.json", index);
}

static void test_shards(void) {
    const temporary_folder folder = temporary_create();
    write_two_shards(&folder, "{\"metadata\":{\"total_size\":2},"
                              "\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}");
    qr_safetensors *file;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_open(folder.path, &file, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(file != NULL);
    CHECK_INT(qr_safetensors_count(file), 2);
    CHECK_INT(qr_safetensors_find(file, "a")->data[0], 'A');
    CHECK_INT(qr_safetensors_find(file, "b")->data[0], 'B');
    qr_safetensors_close(file);

    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", "says that m-2.safetensors holds"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}", "holds tensor \"c\""},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", "\"../m-1.safetensors\" is not the name"},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":3}}", "gives no file name for \"a\""},
        {"{\"weight_map\":{}}", "has no \"weight_map\""},
        {"{}", "has no \"weight_map\""},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"z\":\"m-3.safetensors\"}}",
         "1 of its 2 files of weights is missing: m-3.safetensors"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(bad); i++) {
        write_two_shards(&folder, bad[i][0]);
        qr_error_clear(&err);
        CHECK(qr_safetensors_open(folder.path, &file, &err) != QRUN_OK && file == NULL);
        CHECK_MSG(strstr(err.message, bad[i][1]) != NULL, "%s", err.message);
    }
    write_two_shards(&folder, "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    temporary_safetensors(&folder, "m-2.safetensors", ONE_BYTE("a"), "B", 1);
    qr_error_clear(&err);
    CHECK_INT(qr_safetensors_open(folder.path, &file, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "tensor \"a\" occurs twice") != NULL, "%s", err.message);
    temporary_remove(&folder);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static const qr_safetensors_spec specs[] = {
    {"b.half", QR_DTYPE_BF16, 1, {3}}, {"z.float", QR_DTYPE_F32, 2, {2, 2}},    {"nothing", QR_DTYPE_F32, 2, {0, 4}},
    {"a.half", QR_DTYPE_BF16, 0, {0}}, {"codes \"q\"", QR_DTYPE_U8, 2, {5, 1}}, {"a.long", QR_DTYPE_I64, 1, {1}},
};

/* Byte i of a tensor, told by its name. */
static unsigned char byte_of(const char *name, size_t i) { return (unsigned char)(name[0] * 3 + name[2] + (int)i * 7); }

static qrun_status write_all(qr_safetensors_writer *writer, size_t piece, qr_error *err) {
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        size_t n_bytes;
        CHECK(qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &n_bytes));
        for (size_t i = 0; i < n_bytes; i += piece) {
            unsigned char block[64];
            const size_t n = n_bytes - i < piece ? n_bytes - i : piece;
            for (size_t k = 0; k < n; k++) { block[k] = byte_of(spec->name, i + k); }
            const qrun_status status = qr_safetensors_writer_write(writer, block, n, err);
            if (status != QRUN_OK) { return status; }
        }
    }
    return QRUN_OK;
}

static void check_written(const char *folder, int n_shards) {
    qr_safetensors *file;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_open(folder, &file, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(file != NULL);
    CHECK_INT(qr_safetensors_count(file), QR_COUNT_OF(specs));
    int last_shard = 0;
    for (size_t t = 0; t < QR_COUNT_OF(specs); t++) {
        const qr_safetensors_tensor *tensor;
        CHECK_MSG(qr_safetensors_require(file, specs[t].name, QR_DTYPE_BIT(specs[t].dtype), specs[t].n_dims,
                                         specs[t].dims, &tensor, &err) == QRUN_OK,
                  "%s", err.message);
        REQUIRE(tensor != NULL);
        for (size_t i = 0; i < tensor->n_bytes; i++) { CHECK_INT(tensor->data[i], byte_of(tensor->name, i)); }
        if (tensor->shard > last_shard) { last_shard = tensor->shard; }
    }
    CHECK_INT(last_shard + 1, n_shards);
    qr_safetensors_close(file);
}

static void test_writer_bytes(void) {
    const temporary_folder folder = temporary_create();
    qr_safetensors_writer *writer;
    qr_error err = {0};
    REQUIRE(qr_safetensors_writer_create(folder.path, "model", specs, QR_COUNT_OF(specs), 0, &writer, &err) == QRUN_OK);
    CHECK_STR(qr_safetensors_writer_next(writer)->name, "a.long");
    CHECK_INT(qr_safetensors_writer_write(writer, "123456789", 9, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(write_all(writer, 3, &err) == QRUN_OK, "%s", err.message);
    CHECK_INT(qr_safetensors_writer_write(writer, "1", 1, NULL), QRUN_ERROR_ARGUMENT);
    CHECK(!qr_file_exists(temporary_path(&folder, "model.safetensors")));
    CHECK_MSG(qr_safetensors_writer_commit(writer, &err) == QRUN_OK, "%s", err.message);
    check_written(folder.path, 1);
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a.long\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                                 "\"nothing\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[8,8]},"
                                 "\"z.float\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
                                 "\"a.half\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
                                 "\"b.half\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[26,32]},"
                                 "\"codes \\\"q\\\"\":{\"dtype\":\"U8\",\"shape\":[5,1],\"data_offsets\":[32,37]}}";
    char *bytes;
    size_t n_bytes;
    REQUIRE(qr_file_read(temporary_path(&folder, "model.safetensors"), 10000, &bytes, &n_bytes, NULL) == QRUN_OK);
    const size_t padded = (sizeof header - 1 + 7) / 8 * 8;
    CHECK_INT(n_bytes, 8 + padded + 37);
    CHECK_INT((unsigned char)bytes[0] | (unsigned)(unsigned char)bytes[1] << 8, padded);
    CHECK(memcmp(bytes + 8, header, sizeof header - 1) == 0);
    for (size_t i = sizeof header - 1; i < padded; i++) { CHECK_INT(bytes[8 + i], ' '); }
    qr_free(bytes);
    temporary_remove(&folder);
}

/* The data begins at a multiple of 8 whatever the length of the header. */
static void test_writer_alignment(void) {
    const temporary_folder folder = temporary_create();
    for (int length = 1; length <= 9; length++) {
        const qr_safetensors_spec spec = {&"xxxxxxxxx" [9 - length], QR_DTYPE_U8, 1, { 1 }};
        qr_safetensors_writer *writer;
        REQUIRE(qr_safetensors_writer_create(folder.path, "a", &spec, 1, 0, &writer, NULL) == QRUN_OK);
        CHECK_INT(qr_safetensors_writer_write(writer, "d", 1, NULL), QRUN_OK);
        CHECK_INT(qr_safetensors_writer_commit(writer, NULL), QRUN_OK);
        char *bytes;
        size_t n_bytes;
        REQUIRE(qr_file_read(temporary_path(&folder, "a.safetensors"), 1000, &bytes, &n_bytes, NULL) == QRUN_OK);
        CHECK_INT((unsigned char)bytes[0] % 8, 0);
        CHECK_INT(n_bytes, 8 + (size_t)(unsigned char)bytes[0] + 1);
        qr_free(bytes);
    }
    temporary_remove(&folder);
}

/* Sizes in the order given: 6, 16, 0, 2, 5, 8; at most 8 bytes per shard. */
static void test_writer_shards(void) {
    const temporary_folder folder = temporary_create();
    qr_safetensors_writer *writer;
    qr_error err = {0};
    REQUIRE(qr_safetensors_writer_create(folder.path, "model", specs, QR_COUNT_OF(specs), 8, &writer, &err) == QRUN_OK);
    CHECK_MSG(write_all(writer, 64, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_safetensors_writer_commit(writer, &err) == QRUN_OK, "%s", err.message);
    check_written(folder.path, 4);
    char *bytes;
    size_t n_bytes;
    REQUIRE(qr_file_read(temporary_path(&folder, "model.safetensors.index.json"), 10000, &bytes, &n_bytes, NULL) ==
            QRUN_OK);
    CHECK_STR(bytes, "{\n  \"metadata\": {\n    \"total_size\": 37\n  },\n  \"weight_map\": {\n"
                     "    \"a.half\": \"model-00003-of-00004.safetensors\",\n"
                     "    \"a.long\": \"model-00004-of-00004.safetensors\",\n"
                     "    \"b.half\": \"model-00001-of-00004.safetensors\",\n"
                     "    \"codes \\\"q\\\"\": \"model-00003-of-00004.safetensors\",\n"
                     "    \"nothing\": \"model-00003-of-00004.safetensors\",\n"
                     "    \"z.float\": \"model-00002-of-00004.safetensors\"\n  }\n}\n");
    qr_free(bytes);
    temporary_remove(&folder);
}

static int count_files(const char *folder) {
    char command[256];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *pipe = popen(command, "r");
    int n = -1;
    if (pipe == NULL || fscanf(pipe, "%d", &n) != 1) { n = -1; }
    if (pipe != NULL) { pclose(pipe); }
    return n;
}

static void test_writer_leaves_nothing_behind(void) {
    const temporary_folder folder = temporary_create();
    qr_safetensors_writer *writer;
    qr_error err = {0};
    for (size_t n_tensors = 0; n_tensors < 4; n_tensors++) {
        REQUIRE(qr_safetensors_writer_create(folder.path, "model", specs, QR_COUNT_OF(specs), 8, &writer, NULL) ==
                QRUN_OK);
        for (size_t i = 0; i < n_tensors; i++) {
            const unsigned char zeros[16] = {0};
            const qr_safetensors_spec *spec = qr_safetensors_writer_next(writer);
            size_t n_bytes;
            CHECK(qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &n_bytes));
            CHECK_INT(qr_safetensors_writer_write(writer, zeros, n_bytes, NULL), QRUN_OK);
        }
        if (n_tensors % 2 == 0) {
            qr_safetensors_writer_abort(writer);
        } else {
            CHECK_INT(qr_safetensors_writer_commit(writer, &err), QRUN_ERROR_ARGUMENT);
            CHECK_MSG(strstr(err.message, "is not complete") != NULL, "%s", err.message);
        }
        CHECK_INT(count_files(folder.path), 0);
    }
    const qr_safetensors_spec twice[] = {{"a", QR_DTYPE_U8, 0, {0}}, {"a", QR_DTYPE_F32, 0, {0}}};
    const qr_safetensors_spec reserved[] = {{"__metadata__", QR_DTYPE_U8, 0, {0}}};
    const qr_safetensors_spec negative[] = {{"a", QR_DTYPE_U8, 1, {-1}}};
    CHECK_INT(qr_safetensors_writer_create(folder.path, "model", twice, 2, 0, &writer, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_INT(qr_safetensors_writer_create(folder.path, "model", reserved, 1, 0, &writer, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_INT(qr_safetensors_writer_create(folder.path, "model", negative, 1, 0, &writer, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_INT(qr_safetensors_writer_create(temporary_path(&folder, "absent"), "model", specs, 6, 0, &writer, NULL),
              QRUN_ERROR_NOT_FOUND);
    CHECK(writer == NULL);
    temporary_text(&folder, "model.safetensors", "old");
    CHECK_INT(qr_safetensors_writer_create(folder.path, "model", specs, 6, 8, &writer, NULL), QRUN_ERROR_ARGUMENT);
    REQUIRE(qr_safetensors_writer_create(folder.path, "model", NULL, 0, 8, &writer, NULL) == QRUN_OK);
    CHECK_INT(qr_safetensors_writer_commit(writer, NULL), QRUN_OK);
    qr_safetensors *file;
    REQUIRE(qr_safetensors_open(folder.path, &file, NULL) == QRUN_OK);
    CHECK_INT(qr_safetensors_count(file), 0);
    qr_safetensors_close(file);
    temporary_remove(&folder);
}

/* ---- failing allocations ----------------------------------------------------------------------------------------- */

/* Sarvam 30B: two heads of queries of one element, and one of keys and of values, in one tensor. */
static const char *sarvam_header(const char *fused_shape, const char *out_shape, const char *more) {
    static char header[512];
    (void)snprintf(header, sizeof header,
                   "{\"model.layers.0.attention.query_key_value.weight\":{\"dtype\":\"F32\",\"shape\":%s,"
                   "\"data_offsets\":[0,32]},\"model.layers.0.attention.dense.weight\":{\"dtype\":\"F32\","
                   "\"shape\":%s,\"data_offsets\":[32,48]},\"model.word_embeddings.weight\":{\"dtype\":\"F32\","
                   "\"shape\":[2,1],\"data_offsets\":[48,56]}%s}",
                   fused_shape, out_shape, more);
    return header;
}

static void test_published_names(void) {
    const temporary_folder folder = temporary_create();
    const float values[14] = {1, 2, 3, 4, 5, 6, 7, 8};
    temporary_safetensors(&folder, "model.safetensors", sarvam_header("[4,2]", "[2,2]", ""), values, sizeof values);
    qr_safetensors *file;
    qr_error err = {0};
    CHECK_MSG(qr_source_open_tensors(folder.path, &file, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(file != NULL);
    CHECK_INT(qr_safetensors_count(file), 5);
    CHECK_STR(qr_safetensors_get(file, 1)->name, "model.layers.0.self_attn.k_proj.weight");
    const qr_safetensors_tensor *q = qr_safetensors_find(file, "model.layers.0.self_attn.q_proj.weight");
    const qr_safetensors_tensor *v = qr_safetensors_find(file, "model.layers.0.self_attn.v_proj.weight");
    REQUIRE(q != NULL && v != NULL);
    CHECK(q->dims[0] == 2 && q->dims[1] == 2 && q->n_bytes == 16 && memcmp(q->data, values, 16) == 0);
    CHECK(v->dims[0] == 1 && v->dims[1] == 2 && v->n_bytes == 8 && memcmp(v->data, values + 6, 8) == 0);
    CHECK(qr_safetensors_find(file, "model.layers.0.self_attn.o_proj.weight") != NULL);
    CHECK(qr_safetensors_find(file, "model.embed_tokens.weight") != NULL);
    qr_safetensors_close(file);
    const struct {
        const char *fused, *out, *more, *message;
    } cases[] = {
        {"[4,2]", "[4,1]", "", "is not the rows of queries, keys and values"},
        {"[8,1]", "[1,4]", ",\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[56,56]}",
         "\"model.embed_tokens.weight\" occurs twice"},
        {"[8,1]", "[4]", "", "is not the rows of queries, keys and values"},
        {"[2,4]", "[2,2]", "", "is not the rows of queries, keys and values"}, /* none are left for keys */
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        temporary_safetensors(&folder, "model.safetensors", sarvam_header(cases[i].fused, cases[i].out, cases[i].more),
                              values, sizeof values);
        CHECK_INT(qr_source_open_tensors(folder.path, &file, &err), QRUN_ERROR_INPUT);
        CHECK_MSG(file == NULL && strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        err = (qr_error){0};
    }
    temporary_remove(&folder);
}

static qrun_status attempt_published(void *context, qr_error *err) {
    qr_safetensors *file;
    const qrun_status status = qr_source_open_tensors(context, &file, err);
    qr_safetensors_close(file);
    return status;
}

static qrun_status attempt_open(void *context, qr_error *err) {
    qr_safetensors *file;
    const qrun_status status = qr_safetensors_open(context, &file, err);
    qr_safetensors_close(file);
    return status;
}

static qrun_status attempt_write(void *context, qr_error *err) {
    qr_safetensors_writer *writer;
    qrun_status status = qr_safetensors_writer_create(context, "model", specs, QR_COUNT_OF(specs), 20, &writer, err);
    if (status != QRUN_OK) { return status; }
    status = write_all(writer, 64, err);
    if (status == QRUN_OK) { return qr_safetensors_writer_commit(writer, err); }
    qr_safetensors_writer_abort(writer);
    return status;
}

static void test_any_allocation_may_fail(void) {
    temporary_folder folder = temporary_create();
    check_failing_allocations(attempt_write, folder.path, true);
    check_failing_allocations(attempt_open, folder.path, false);
    check_written(folder.path, 3);
    temporary_remove(&folder);
    folder = temporary_create();
    temporary_safetensors(&folder, "model.safetensors", sarvam_header("[4,2]", "[2,2]", ""), NULL, 56);
    check_failing_allocations(attempt_published, folder.path, false);
    temporary_remove(&folder);
}

/* ---- real files -------------------------------------------------------------------------------------------------- */

static void test_public_malformed_files(void) {
    const char *found = check_shared_data("malformed/safetensors/expected.json");
    if (found == NULL) {
        check_skip("the malformed files are not there");
        return;
    }
    qr_json *list;
    REQUIRE(qr_json_read(found, 1 << 20, &list, NULL) == QRUN_OK);
    int n_files = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n_files++) {
        char name[256];
        snprintf(name, sizeof name, "malformed/safetensors/%s", qr_json_get(item, "file")->valuestring);
        const bool acceptable = strcmp(qr_json_get(item, "expect")->valuestring, "accept") == 0;
        qr_safetensors *file;
        qr_error err = {0};
        const char *path = check_shared_data(name);
        REQUIRE(path != NULL);
        const qrun_status status = qr_safetensors_open(path, &file, &err);
        CHECK_MSG((status == QRUN_OK) == acceptable, "%s: %s", name, status == QRUN_OK ? "accepted" : err.message);
        CHECK_MSG(acceptable || (status == QRUN_ERROR_INPUT && err.message[0] != '\0'), "%s: status %d", name, status);
        qr_safetensors_close(file);
    }
    CHECK_INT(n_files, 24);
    qr_json_free(list);
}

static void test_real_models(void) {
    static const struct {
        const char *folder, *tensor;
        qr_dtype dtype;
        int64_t dims[2];
    } models[] = {
        {"models/stories260K-hf", "model.layers.4.mlp.down_proj.weight", QR_DTYPE_F32, {64, 172}},
        {"models/tiny_llama3", "model.layers.1.self_attn.o_proj.weight", QR_DTYPE_BF16, {-1, -1}},
        {"models/tiny_mistral", "model.embed_tokens.weight", QR_DTYPE_BF16, {-1, -1}},
    };
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        const char *path = check_shared_data(models[i].folder);
        if (path == NULL) {
            check_skip("the models are not there");
            return;
        }
        qr_safetensors *file;
        qr_error err = {0};
        CHECK_MSG(qr_safetensors_open(path, &file, &err) == QRUN_OK, "%s", err.message);
        REQUIRE(file != NULL);
        const qr_safetensors_tensor *tensor;
        CHECK_MSG(qr_safetensors_require(file, models[i].tensor, QR_DTYPE_BIT(models[i].dtype), 2, models[i].dims,
                                         &tensor, &err) == QRUN_OK,
                  "%s", err.message);
        qr_safetensors_close(file);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_reads_tensors_out_of_order);
    CHECK_RUN(test_require);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_integers_are_written_as_such);
    CHECK_RUN(test_a_file_cut_short_while_it_is_open);
    CHECK_RUN(test_short_files);
    CHECK_RUN(test_shards);
    CHECK_RUN(test_writer_bytes);
    CHECK_RUN(test_writer_alignment);
    CHECK_RUN(test_writer_shards);
    CHECK_RUN(test_writer_leaves_nothing_behind);
    CHECK_RUN(test_published_names);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_public_malformed_files);
    CHECK_RUN(test_real_models);
    return check_end();
}
