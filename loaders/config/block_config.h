/* Models whose layers are one block each (Nemotron-H): a norm, and either what mixes tokens or an MLP. */
#ifndef QR_LOADERS_CONFIG_BLOCK_CONFIG_H
#define QR_LOADERS_CONFIG_BLOCK_CONFIG_H

#include "base/status.h"
#include "loaders/files/json.h"

typedef enum qr_block { QR_BLOCK_SPACE, QR_BLOCK_ATTENTION, QR_BLOCK_MLP, QR_BLOCK_EXPERTS } qr_block;

/* The blocks, in order: layers_block_type, or as later files call it layer_types; else hybrid_override_pattern, a
 * letter each; else one of each kind, as transformers has it. num_hidden_layers, where it is given, must be their
 * number. The caller frees *blocks by qr_free, also where this fails. QRUN_ERROR_UNSUPPORTED for a block of another
 * kind and for a model without attention. */
qrun_status qr_blocks_read(const qr_json *json, const char *what, qr_block **blocks, int64_t *n_blocks, qr_error *err);

/* Whether one of them is of the kind. */
bool qr_blocks_have(const qr_block *blocks, int64_t n_blocks, qr_block kind);

#endif
