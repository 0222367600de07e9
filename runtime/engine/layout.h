/* Laying buffers out one after the other in one block of memory, or only counting what they would take: the plan and
 * the placement are the same walk. */
#ifndef QR_RUNTIME_ENGINE_LAYOUT_H
#define QR_RUNTIME_ENGINE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/timeline/timeline.h"

typedef struct qr_layout {
    unsigned char *base; /* NULL: only count */
    size_t offset;       /* bytes so far */
    qr_backend *names;   /* whose timeline learns what QR_LAY places; NULL: none does. The rest is for that */
    int32_t category;    /* qr_plan_category */
    int64_t layer;       /* −1: of none */
    qr_part part;
} qr_layout;

/* The next buffer, 64-byte aligned; NULL while counting. */
static inline void *qr_layout_take(qr_layout *layout, int64_t n, size_t element_bytes) {
    void *address = layout->base != NULL ? layout->base + layout->offset : NULL;
    layout->offset += ((size_t)n * element_bytes + 63) / 64 * 64;
    return address;
}

/* The same, of a buffer that has a name: that of the field which will point to it. */
void *qr_layout_take_named(qr_layout *layout, const char *field, int64_t n, size_t element_bytes);
#define QR_LAY(layout, field, n, element_bytes) ((field) = qr_layout_take_named((layout), #field, (n), (element_bytes)))

#endif
