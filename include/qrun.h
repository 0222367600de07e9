#ifndef QRUN_H
#define QRUN_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, message): the codes are pinned for good. */
#define QRUN_STATUS_LIST(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(ERROR_ARGUMENT, -1, "an argument is out of range or does not fit the others")                \
    X(ERROR_NOT_FOUND, -2, "a file, folder or object does not exist")                              \
    X(ERROR_IO, -3, "reading or writing failed")                                                   \
    X(ERROR_INPUT, -4, "a file or text is malformed")                                              \
    X(ERROR_UNSUPPORTED, -5, "well-formed, but not something this build can handle")               \
    X(ERROR_MEMORY, -6, "out of memory, or over the memory budget")                                \
    X(ERROR_CANCELLED, -7, "cancelled by the caller")                                              \
    X(ERROR_DEVICE, -8, "the device or its driver failed")                                         \
    X(ERROR_BUSY, -9, "the object is in use")                                                      \
    X(ERROR_INTERNAL, -10, "a mistake in qrun itself; please report it")

typedef enum qrun_status {
#define QRUN_X(name, value, message) QRUN_##name = value,
    QRUN_STATUS_LIST(QRUN_X)
#undef QRUN_X
} qrun_status;

#ifdef __cplusplus
}
#endif

#endif
