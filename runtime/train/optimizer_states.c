#include "runtime/train/optimizer_states.h"

#include "base/sizes.h"

enum { SMALLEST_8BIT = 4096 };

qr_tensor_states qr_tensor_states_make(qrun_optimizer kind, const qr_parameter *parameter) {
    const int64_t n = parameter->rows * parameter->cols;
    return (qr_tensor_states){.parameter = parameter,
                              .rows = parameter->rows,
                              .cols = parameter->cols,
                              .in_8bit = kind == QRUN_OPTIMIZER_ADAMW8BIT && n >= SMALLEST_8BIT};
}

/* Elements of an array of the states; 0: they have none. */
static int64_t array_elements(qrun_optimizer kind, const qr_tensor_states *s, qr_state_array array) {
    const int64_t n = s->rows * s->cols;
    if (s->in_8bit) {
        return array == QR_STATE_M || array == QR_STATE_V               ? 0
               : array == QR_STATE_M_CODES || array == QR_STATE_V_CODES ? n
                                                                        : qr_ceil_div(n, QR_STATE_BLOCK);
    }
    if (array != QR_STATE_M && array != QR_STATE_V) { return 0; }
    if (kind == QRUN_OPTIMIZER_ADAFACTOR) { return array == QR_STATE_M && s->rows > 1 ? s->rows : s->cols; }
    return kind == QRUN_OPTIMIZER_SGD && array == QR_STATE_V ? 0 : n;
}

static size_t element_bytes(qr_state_array array) {
    return array == QR_STATE_M_CODES || array == QR_STATE_V_CODES ? 1 : sizeof(float);
}

size_t qr_tensor_states_bytes(qrun_optimizer kind, const qr_tensor_states *states, qr_state_array array) {
    return (size_t)array_elements(kind, states, array) * element_bytes(array);
}

void qr_tensor_states_place(qrun_optimizer kind, qr_tensor_states *states, qr_layout *layout) {
    for (int a = 0; a < QR_STATE_ARRAYS; a++) {
        const int64_t n = array_elements(kind, states, (qr_state_array)a);
        states->arrays[a] = n > 0 ? qr_layout_take(layout, n, element_bytes((qr_state_array)a)) : NULL;
    }
}

qr_tensor_states qr_tensor_states_piece(qrun_optimizer kind, const qr_tensor_states *whole, int64_t first,
                                        int64_t most) {
    const int64_t n = qr_min(qr_tensor_states_elements(whole) - first, most);
    if (kind == QRUN_OPTIMIZER_ADAFACTOR || n == qr_tensor_states_elements(whole)) { return *whole; }
    qr_tensor_states piece = *whole;
    piece.first = first;
    piece.rows = 1;
    piece.cols = n;
    for (int a = 0; a < QR_STATE_ARRAYS; a++) {
        const bool by_block = a == QR_STATE_M_ABSMAX || a == QR_STATE_V_ABSMAX;
        const size_t offset = (size_t)(by_block ? first / QR_STATE_BLOCK : first) * element_bytes((qr_state_array)a);
        if (piece.arrays[a] != NULL) { piece.arrays[a] = (unsigned char *)piece.arrays[a] + offset; }
    }
    return piece;
}
