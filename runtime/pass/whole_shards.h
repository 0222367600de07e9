/* Trained weights in shards (ZeRO 3): of the values of all parameters a rank has its shard alone, and of the matrices
 * and vectors of layers that the model computes with nothing at all. Each layer is gathered when it is due
 * (layer_stream.h): every rank rounds what its shard has of it to the type that the model holds it in and sends that.
 * What belongs to no layer, such as the tables, every rank holds in that type, and gets anew after an update. */
#ifndef QR_RUNTIME_PASS_WHOLE_SHARDS_H
#define QR_RUNTIME_PASS_WHOLE_SHARDS_H

#include "runtime/layers/parameters.h"

/* Layers come from these parameters from now on, whose values are in shards; for the plans of a backend, or for the
 * passes of the model's. */
void qr_whole_shards_attach(const qr_parameters *parameters);

/* Of a whole tensor: rows [row, row + n), whose values are at `values` (host), where this rank has them and where it
 * computes with them. `row` is a multiple of QR_WEIGHT_ROW_GROUP, and n too unless the tensor ends there. */
qrun_status qr_whole_shards_put(const qr_parameters *parameters, int64_t tensor, int64_t row, int64_t n,
                                const float *values, qr_error *err);
/* All tensors from the values of the whole arena (host). */
qrun_status qr_whole_shards_put_all(const qr_parameters *parameters, const float *values, qr_error *err);

/* After an update: what belongs to no layer, from the ranks that have changed it. */
qrun_status qr_whole_shards_share(const qr_parameters *parameters, qr_error *err);
/* Bytes that a rank sends for that. */
int64_t qr_whole_shards_share_bytes(const qr_parameters *parameters, int32_t rank);

#endif
