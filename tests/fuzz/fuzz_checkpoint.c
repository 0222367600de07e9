/* The input is a state.json, a zero byte, a run.json, a zero byte, and a state.safetensors. In an accepted checkpoint
 * the place is one that a run can stand at, the tensors are vectors of the types promised, and its run is equal to
 * itself and to no other. */
#include "base/alloc.h"
#include "fuzz.h"
#include "loaders/files/checkpoint.h"

static void check_checkpoint(const qr_checkpoint *c) {
    FUZZ_CHECK(c->step >= 0 && c->epoch >= 0 && c->batch >= 0);
    FUZZ_CHECK(c->parameters->n_dims == 1 && c->parameters->n_bytes == (size_t)c->parameters->dims[0] * sizeof(float));
    FUZZ_CHECK(c->optimizer->n_dims == 1 && c->optimizer->n_bytes == (size_t)c->optimizer->dims[0]);
    unsigned sum = 0;
    for (size_t i = 0; i < c->parameters->n_bytes; i++) { sum += c->parameters->data[i]; }
    for (size_t i = 0; i < c->optimizer->n_bytes; i++) { sum += c->optimizer->data[i]; }
    FUZZ_CHECK(sum <= 255 * (c->parameters->n_bytes + c->optimizer->n_bytes)); /* all of it can be read */
}

static void check_difference(const qr_json *run) {
    qr_json *other;
    static const char text[] = "{\"rank\": 1e300, \"no such option\": null}";
    char *same = qr_checkpoint_difference(run, run);
    FUZZ_CHECK(same != NULL && same[0] == '\0');
    qr_free(same);
    FUZZ_CHECK(qr_json_parse(text, sizeof text - 1, "fuzz", &other, NULL) == QRUN_OK);
    char *difference = qr_checkpoint_difference(run, other);
    FUZZ_CHECK(difference != NULL && strlen(difference) < 4096);
    qr_free(difference);
    qr_json_free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"state.json", "run.json", "state.safetensors"};
    const uint8_t *at = data, *end = data + size;
    for (int i = 0; i < 3; i++) {
        const uint8_t *stop = i < 2 && at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (stop == NULL) { stop = end; }
        fuzz_file(names[i], at, (size_t)(stop - at));
        at = stop < end ? stop + 1 : end;
    }
    qr_checkpoint checkpoint;
    qr_error err = {0};
    const qrun_status status = qr_checkpoint_open(fuzz_folder(), &checkpoint, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    if (status == QRUN_OK) { check_checkpoint(&checkpoint); }
    if (checkpoint.run != NULL && cJSON_IsObject(checkpoint.run)) { check_difference(checkpoint.run); }
    qr_checkpoint_close(&checkpoint);
    for (int i = 0; i < 3; i++) { fuzz_file_remove(names[i]); }
    return 0;
}
