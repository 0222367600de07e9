/* The preconditions of every op, checked in one place for all backends: sizes, types, strides, descriptions. Data
 * pointers are not read, so that a plan can ask before memory exists; the descriptions that `weight` and `table` point
 * to are read. A backend's `supports` is this and whatever it adds. */
#ifndef QR_KERNELS_OP_CHECK_H
#define QR_KERNELS_OP_CHECK_H

#include "base/status.h"
#include "kernels/backend.h"

/* bool qr_check_<op>(args, err): whether the arguments fit ops.h; else err names the op and the precondition that
 * fails. `args` is a `const qr_<op>_args *`, untyped so that the functions fit in a table. qr_op_supports_<op> is the
 * same as a `supports` of a backend that adds nothing. */
#define QR_X(name)                                         \
    bool qr_check_##name(const void *args, qr_error *err); \
    bool qr_op_supports_##name(const qr_backend *backend, const void *args, qr_error *err);
QR_OPS(QR_X)
#undef QR_X

/* Rows [row, row + n_rows) of put_rows and get_rows: inside the matrix, at group boundaries. */
qrun_status qr_check_weight_rows(const qr_weight_desc *desc, int64_t row, int64_t n_rows, qr_error *err);

/* Whether every part that the format needs is present. */
qrun_status qr_check_weight_scales(const qr_weight_desc *desc, const qr_weight_scales *scales, qr_error *err);

#endif
