#include "loaders/config/config_dtype.h"

#include <string.h>

#include "base/sizes.h"

qrun_status qr_config_dtype_read(const qr_json *object, const char *key, qr_dtype *dtype, const char *what,
                                 qr_error *err) {
    static const struct {
        const char *name;
        qr_dtype dtype;
    } known[] = {{"float32", QR_DTYPE_F32}, {"float16", QR_DTYPE_F16}, {"bfloat16", QR_DTYPE_BF16}};
    const char *name = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(object, key, &name, what, err));
    if (name == NULL) { return QRUN_OK; }
    if (strncmp(name, "torch.", 6) == 0) { name += 6; }
    for (size_t i = 0; i < QR_COUNT_OF(known); i++) {
        if (strcmp(name, known[i].name) == 0) {
            *dtype = known[i].dtype;
            return QRUN_OK;
        }
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is \"%.60s\"; supported are float32, float16 and bfloat16",
                   what, key, name);
}
