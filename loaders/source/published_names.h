/* Names of published folders that transformers changes as it reads them, where most of them change, or one of its
 * tensors is a part of one of the folder's. */
#ifndef QR_LOADERS_SOURCE_PUBLISHED_NAMES_H
#define QR_LOADERS_SOURCE_PUBLISHED_NAMES_H

#include "loaders/files/safetensors.h"

/* Gives the tensors of Sarvam 30B and EXAONE 3 the names that transformers has in memory; q, k and v are rows of one
 * tensor of Sarvam's. Those of other folders stay as they are. */
qrun_status qr_published_names_translate(qr_safetensors *file, qr_error *err);

#endif
