/* The loop that the peak of products is measured with, for kernel files that define what linear_microkernel.h asks for.
 * 12 accumulators hide a latency of 6 cycles on two pipes, and fit 16 registers; on large Arm cores, which have four
 * pipes, 16 hide 4. */
enum { EXERCISE_SUMS = QR_VEC > 4 || QR_TILE_MAX_COLS < 6 ? 12 : 16, EXERCISE_FLOPS = EXERCISE_SUMS * TILE_STEP * 2 };

/* Each number is read anew from memory that may change, so that the compiler cannot merge two accumulators. */
static void exercise(int64_t n_rounds) {
    volatile tile_element source = (tile_element)0;
    tile_element operands[2 * TILE_STEP];
    for (size_t i = 0; i < QR_COUNT_OF(operands); i++) { operands[i] = source; }
    const tile_vector w = tile_load(operands), x = tile_load(operands + TILE_STEP);
    qr_vec acc[EXERCISE_SUMS];
    QR_UNROLL for (int i = 0; i < EXERCISE_SUMS; i++) { acc[i] = qr_vec_set1((float)source); }
    for (int64_t round = 0; round < n_rounds; round++) {
        QR_UNROLL for (int i = 0; i < EXERCISE_SUMS; i++) { acc[i] = tile_dot(acc[i], w, x); }
    }
    volatile float sink;
    for (int i = 0; i < EXERCISE_SUMS; i++) {
        float stored[QR_VEC];
        qr_vec_store(stored, acc[i]);
        sink = stored[0];
    }
    (void)sink;
}
