/* Families that are not read: what they are called, what they have that is missing here, and what works instead. */
#ifndef QR_LOADERS_CONFIG_UNSUPPORTED_FAMILY_H
#define QR_LOADERS_CONFIG_UNSUPPORTED_FAMILY_H

typedef struct qr_unsupported_family {
    const char *model_type; /* with what a config.json's model_type begins */
    const char *name, *missing, *nearest;
} qr_unsupported_family;

/* NULL: nothing is known about that model_type. */
const qr_unsupported_family *qr_unsupported_family_find(const char *model_type);

#endif
