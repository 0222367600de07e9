/* The input is model.safetensors.index.json beside two shards. What is accepted names only tensors that are in the
 * shard named, and only files of the folder. */
#include "fuzz.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"

/* A file with one tensor of one byte. */
static void write_shard(const char *name, char tensor) {
    char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", bytes[128] = {0};
    header[2] = tensor;
    const size_t length = strlen(header);
    bytes[0] = (char)length;
    memcpy(bytes + 8, header, length);
    bytes[8 + length] = tensor;
    fuzz_file(name, bytes, 8 + length + 1);
}

static void check_map(const qr_safetensors *file, const uint8_t *data, size_t size) {
    qr_json *index;
    FUZZ_CHECK(qr_json_parse((const char *)data, size, "fuzz", &index, NULL) == QRUN_OK);
    const qr_json *map = qr_json_get(index, "weight_map");
    FUZZ_CHECK(qr_json_first(map) != NULL);
    for (const qr_json *item = qr_json_first(map); item != NULL; item = item->next) {
        const qr_safetensors_tensor *tensor = qr_safetensors_find(file, item->string);
        FUZZ_CHECK(tensor != NULL && tensor->n_bytes == 1 && tensor->data[0] == (unsigned char)item->string[0]);
        const char *path = qr_safetensors_shard_path(file, tensor->shard);
        FUZZ_CHECK(strcmp(strrchr(path, '/') + 1, item->valuestring) == 0);
    }
    qr_json_free(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool is_written;
    if (!is_written) {
        write_shard("1.safetensors", 'a');
        write_shard("2.safetensors", 'b');
        is_written = true;
    }
    fuzz_file("model.safetensors.index.json", data, size);
    qr_safetensors *file;
    qr_error err = {0};
    const qrun_status status = qr_safetensors_open(fuzz_folder(), &file, &err);
    FUZZ_CHECK((status == QRUN_OK) == (file != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (file != NULL) { check_map(file, data, size); }
    qr_safetensors_close(file);
    return 0;
}
