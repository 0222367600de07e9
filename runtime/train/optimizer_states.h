/* The states of an optimiser: the arrays of each tensor, their layout in memory, and pieces of them, which a step on
 * states in host memory takes one after the other. */
#ifndef QR_RUNTIME_TRAIN_OPTIMIZER_STATES_H
#define QR_RUNTIME_TRAIN_OPTIMIZER_STATES_H

#include "runtime/engine/layout.h"
#include "runtime/model/parameters.h"

typedef enum qr_state_array {
    QR_STATE_M,       /* F32 [n]: AdamW, SGD's momentum; Adafactor: the row moment [rows], or [cols] of a vector */
    QR_STATE_V,       /* F32 [n]; Adafactor: the column moment [cols] */
    QR_STATE_M_CODES, /* [n] in blocks of QR_STATE_BLOCK: 8-bit AdamW */
    QR_STATE_V_CODES,
    QR_STATE_M_ABSMAX, /* F32, one a block */
    QR_STATE_V_ABSMAX,
    QR_STATE_ARRAYS
} qr_state_array;

enum { QR_STATE_BLOCK = 256 };

/* The states of a tensor, or of a piece of it. */
typedef struct qr_tensor_states {
    const qr_parameter *parameter;
    int64_t first;                 /* element of the tensor */
    int64_t rows, cols;            /* of the piece; rows is 1 unless it is the whole tensor */
    bool in_8bit;                  /* has the codes of 8-bit AdamW, whose small tensors have M and V */
    void *arrays[QR_STATE_ARRAYS]; /* NULL: it has none */
} qr_tensor_states;

/* The states of a whole tensor, without memory. */
qr_tensor_states qr_tensor_states_make(qrun_optimizer kind, const qr_parameter *parameter);

/* Elements [first, first + n) of a whole tensor, n at most `most`. `most` and `first` are multiples of QR_STATE_BLOCK.
 * Adafactor has states of whole rows and columns, so a tensor is one piece. */
qr_tensor_states qr_tensor_states_piece(qrun_optimizer kind, const qr_tensor_states *whole, int64_t first,
                                        int64_t most);
static inline int64_t qr_tensor_states_elements(const qr_tensor_states *states) { return states->rows * states->cols; }

size_t qr_tensor_states_bytes(qrun_optimizer kind, const qr_tensor_states *states, qr_state_array array);

/* Takes the memory of every array from the layout (NULL while that counts). */
void qr_tensor_states_place(qrun_optimizer kind, qr_tensor_states *states, qr_layout *layout);

#endif
