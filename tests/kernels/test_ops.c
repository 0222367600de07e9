/* Every op on every backend against the reference. An op of QR_OPS without a test does not link. */
#include "op_harness.h"

#include "check.h"

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    if (!op_world_create()) { return 1; }
    CHECK_RUN(test_memory_is_counted_and_zeroed);
    CHECK_RUN(test_weight_round_trip);
    CHECK_RUN(test_weight_rows_are_checked);
#define QR_X(name) CHECK_RUN(test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
    op_world_destroy();
    return check_end();
}
