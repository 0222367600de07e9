/* Codes: values of weights that are trained whole, as the model holds them; rounded on the processor, as store_weight
 * does it, where values are not on the device that computes with them: in shards (whole_shards.h) or in host memory. */
#ifndef QR_RUNTIME_PASS_WHOLE_CODES_H
#define QR_RUNTIME_PASS_WHOLE_CODES_H

#include "runtime/layers/parameters.h"

/* Of an element: of a vector those of F32. */
size_t qr_whole_code_bytes(const qr_parameters *parameters, const qr_whole_tensor *tensor);
/* n values of a tensor to codes, rounded to nearest even. */
void qr_whole_encode(const qr_parameters *parameters, const qr_whole_tensor *tensor, const float *values, int64_t n,
                     unsigned char *codes);
/* Rows of a tensor that n_bytes have room for; a group of them at least. */
int64_t qr_whole_code_rows(const qr_parameters *parameters, const qr_whole_tensor *tensor, size_t n_bytes);
/* Rows [row, row + n) of a tensor, from codes one after the other, to where the model has it. */
qrun_status qr_whole_write_codes(const qr_parameters *parameters, const qr_whole_tensor *tensor, int64_t row, int64_t n,
                                 const unsigned char *codes, qr_error *err);

/* Where values are in host memory: layer l of the model from them (−1: what belongs to no layer); where it comes
 * through a stage (layer_stream.h), what is held of it in host memory too. */
qrun_status qr_whole_write_layer(const qr_parameters *parameters, int64_t l, qr_error *err);

#endif
