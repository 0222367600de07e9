#include "runtime/engine/layout.h"

#include <string.h>

/* The last part of "layer->buffers.attn_normed", or of "b->cos_table[k]" without the index. */
static void take_name(const char *field, char name[QR_TIMELINE_NAME_BYTES]) {
    size_t n = 0;
    bool in_index = false;
    for (const char *c = field; *c != '\0'; c++) {
        in_index = *c == '[' || (in_index && *c != ']');
        if (*c == '>' || *c == '.') {
            n = 0;
        } else if (!in_index && *c != ']' && n + 1 < QR_TIMELINE_NAME_BYTES) {
            name[n++] = *c;
        }
    }
    name[n] = '\0';
}

void *qr_layout_take_named(qr_layout *layout, const char *field, int64_t n, size_t element_bytes) {
    void *address = qr_layout_take(layout, n, element_bytes);
    if (address == NULL || layout->names == NULL || layout->names->timeline == NULL) { return address; }
    qr_timeline_tensor tensor = {.address = address,
                                 .n_bytes = (size_t)n * element_bytes,
                                 .category = layout->category,
                                 .layer = (int32_t)layout->layer,
                                 .part = layout->part,
                                 .lives = true};
    take_name(field, tensor.name);
    qr_timeline_put_tensor(layout->names, &tensor);
    return address;
}
