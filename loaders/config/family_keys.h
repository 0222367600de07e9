/* The keys of config.json that one family has, or reads otherwise than others do. What is a number, a key's name or a
 * choice between rules is in family_defaults.h; here is what takes code. */
#ifndef QR_LOADERS_CONFIG_FAMILY_KEYS_H
#define QR_LOADERS_CONFIG_FAMILY_KEYS_H

#include "loaders/config/config_source.h"
#include "loaders/config/model_config.h"

typedef qrun_status qr_family_keys_fn(const qr_config_source *source, qr_model_config *config);

/* In the order in which they are called; NULL: there are none. */
typedef struct qr_family_keys {
    qr_family_keys_fn *sizes;          /* after the sizes that all have, before those that follow from them */
    qr_family_keys_fn *layers;         /* what a layer is; n_layers may change */
    qr_family_keys_fn *factors;        /* of embeddings, branches, scores and logits */
    qr_family_keys_fn *attention;      /* and norms; flags that are not supported */
    qr_family_keys_fn *biases;         /* in place of the keys that others have */
    qr_family_keys_fn *rotated_layers; /* fills in layer_rotates, which is zeroed; NULL: all rotate */
    qr_family_keys_fn *windows;        /* after layer_types, or after the family's rule, where the model has windows */
    qr_family_keys_fn *heads;          /* that differ between layers; attention is of layers alike before */
    qr_family_keys_fn *rope;           /* after the rotary parameters */
} qr_family_keys;

const qr_family_keys *qr_family_keys_of(qr_model_family family);

#endif
