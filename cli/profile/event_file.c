#include "cli/profile/event_file.h"

#include <string.h>

/* ---- Little endian ----------------------------------------------------------------------------------------------- */

static void put_bytes(text_buffer *out, uint64_t value, int n_bytes) {
    char bytes[8];
    for (int i = 0; i < n_bytes; i++) { bytes[i] = (char)(unsigned char)(value >> (8 * i)); }
    text_append(out, bytes, (size_t)n_bytes);
}

static void put_double(text_buffer *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_bytes(out, bits, 8);
}

static void put_float(text_buffer *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_bytes(out, bits, 4);
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli), bit by bit: a record is short. */
static uint32_t crc32c(const char *bytes, size_t n_bytes) {
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < n_bytes; i++) {
        crc ^= (unsigned char)bytes[i];
        for (int bit = 0; bit < 8; bit++) { crc = crc >> 1 ^ (0x82f63b78U & (0U - (crc & 1U))); }
    }
    return ~crc;
}

/* As TFRecord stores it, so that the sum of data which has sums in it stays one. */
static uint32_t masked_crc32c(const char *bytes, size_t n_bytes) {
    const uint32_t crc = crc32c(bytes, n_bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

static void put_record(text_buffer *out, const text_buffer *record) {
    text_buffer length = {0};
    put_bytes(&length, record->size, 8);
    text_append(out, length.data, length.size);
    put_bytes(out, masked_crc32c(length.data, length.size), 4);
    text_append(out, record->data, record->size);
    put_bytes(out, masked_crc32c(record->data, record->size), 4);
    text_free(&length);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

enum wire_type { WIRE_VARINT = 0, WIRE_64_BITS = 1, WIRE_BYTES = 2, WIRE_32_BITS = 5 };

enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2
};

static void put_varint(text_buffer *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) { put_bytes(out, (value & 0x7f) | 0x80, 1); }
    put_bytes(out, value, 1);
}

static void put_key(text_buffer *out, unsigned field, enum wire_type type) {
    put_varint(out, field << 3 | (unsigned)type);
}

static void put_field_bytes(text_buffer *out, unsigned field, const char *bytes, size_t n_bytes) {
    put_key(out, field, WIRE_BYTES);
    put_varint(out, n_bytes);
    text_append(out, bytes, n_bytes);
}

static text_buffer begin_event(double seconds) {
    text_buffer event = {0};
    put_key(&event, EVENT_WALL_TIME, WIRE_64_BITS);
    put_double(&event, seconds);
    return event;
}

static void put_event(text_buffer *out, text_buffer *event) {
    put_record(out, event);
    text_free(event);
}

void event_file_begin(text_buffer *out, double seconds) {
    static const char version[] = "brain.Event:2";
    text_buffer event = begin_event(seconds);
    put_field_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    put_event(out, &event);
}

static void put_scalar(text_buffer *summary, const event_scalar *scalar) {
    text_buffer value = {0};
    put_field_bytes(&value, VALUE_TAG, scalar->tag, strlen(scalar->tag));
    put_key(&value, VALUE_SIMPLE, WIRE_32_BITS);
    put_float(&value, (float)scalar->value);
    put_field_bytes(summary, SUMMARY_VALUE, value.data, value.size);
    text_free(&value);
}

void event_file_scalars(text_buffer *out, double seconds, int64_t step, const event_scalar *scalars, int n_scalars) {
    text_buffer event = begin_event(seconds), summary = {0};
    put_key(&event, EVENT_STEP, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    for (int i = 0; i < n_scalars; i++) { put_scalar(&summary, &scalars[i]); }
    put_field_bytes(&event, EVENT_SUMMARY, summary.data != NULL ? summary.data : "", summary.size);
    text_free(&summary);
    put_event(out, &event);
}
