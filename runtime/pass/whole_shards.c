#include "runtime/pass/whole_shards.h"

#include "base/sizes.h"
#include "runtime/layers/shards.h"
#include "runtime/model/layer_stream.h"
#include "runtime/pass/whole_codes.h"

enum { PIECE_FLOATS = 4096 }; /* rounded at a time */

/* Floats [first, first + n) of the arena, which this rank has, as codes of the tensor that they are of. */
static qrun_status read_codes(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t first, int64_t n,
                              unsigned char *codes, qr_error *err) {
    const float *held = qr_parameters_at(p, first);
    float values[PIECE_FLOATS];
    for (int64_t done = 0; done < n; done += PIECE_FLOATS) {
        const int64_t n_here = qr_min(n - done, PIECE_FLOATS);
        QR_RETURN_IF_ERROR(p->backend->copy_out(p->backend, values, held + done, (size_t)n_here * sizeof *values, err));
        qr_whole_encode(p, tensor, values, n_here, codes + (size_t)done * qr_whole_code_bytes(p, tensor));
    }
    return QRUN_OK;
}

static bool is_of_layer(const qr_parameters *p, const qr_whole_tensor *tensor) {
    return qr_parameter_layer(&p->list[tensor->parameter]) >= 0;
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

/* A layer is gathered as the codes of its tensors, one after the other in the order of the table, which is that of the
 * arena: so what a rank has of it lies together. */

static int64_t padded_floats(const qr_parameter *parameter) {
    return qr_round_up(parameter->rows * parameter->cols, QR_PARAMETER_ALIGNMENT);
}

/* Bytes of layer l that lie before a float of the arena. */
static size_t bytes_before(const qr_parameters *p, int64_t l, int64_t position) {
    size_t n_bytes = 0;
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_parameter *parameter = &p->list[p->whole.tensors[i].parameter];
        if (qr_parameter_layer(parameter) != l) { continue; }
        const int64_t n = qr_min(qr_max(position - parameter->offset, 0), padded_floats(parameter));
        n_bytes += (size_t)n * qr_whole_code_bytes(p, &p->whole.tensors[i]);
    }
    return n_bytes;
}

static size_t find_part(const void *user, int64_t l, int32_t rank) {
    const qr_parameters *p = user;
    size_t n_bytes = 0;
    for (int64_t s = 0; s < p->n_sections; s++) {
        if (p->sections[s].layer != l) { continue; }
        const int64_t begin = qr_shards_begin(p->shards, s, rank);
        if (begin > p->sections[s].begin) { n_bytes = bytes_before(p, l, begin); }
    }
    return n_bytes;
}

/* What this rank has of layer l, into the bytes of the whole layer. */
static qrun_status read_part(const void *user, int64_t l, unsigned char *layer, qr_error *err) {
    const qr_parameters *p = user;
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        if (qr_parameter_layer(parameter) != l) { continue; }
        int64_t first;
        const int64_t n = qr_shards_common(p->shards, p->shards->rank, parameter->offset,
                                           parameter->offset + padded_floats(parameter), &first);
        if (n == 0) { continue; }
        QR_RETURN_IF_ERROR(read_codes(p, tensor, first, n, layer + bytes_before(p, l, first), err));
    }
    return QRUN_OK;
}

static qrun_status deliver(const void *user, int64_t l, const unsigned char *layer, qr_error *err) {
    const qr_parameters *p = user;
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        if (qr_parameter_layer(parameter) != l) { continue; }
        QR_RETURN_IF_ERROR(qr_whole_write_codes(p, tensor, 0, parameter->rows, layer, err));
        layer += (size_t)padded_floats(parameter) * qr_whole_code_bytes(p, tensor);
    }
    return QRUN_OK;
}

void qr_whole_shards_attach(const qr_parameters *p) {
    const qr_layer_source source = {.user = p, .find_part = find_part, .read_part = read_part, .deliver = deliver};
    qr_layer_stream_set_source(p->model, p->backend, &source);
}

/* ---- What belongs to no layer ------------------------------------------------------------------------------------ */

/* Rows [row, row + n), through host memory with room for their codes. */
static qrun_status share_rows(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t row, int64_t n,
                              unsigned char *codes, qr_error *err) {
    qr_collectives *ranks = p->model->context->ranks;
    const qr_parameter *parameter = &p->list[tensor->parameter];
    const int64_t begin = parameter->offset + row * parameter->cols, end = begin + n * parameter->cols;
    const size_t n_code_bytes = qr_whole_code_bytes(p, tensor);
    qr_parcel parts[QR_MAX_RANKS] = {{0}}, sent[QR_MAX_RANKS];
    for (int32_t r = 0; r < p->shards->n_ranks; r++) {
        int64_t first;
        const int64_t n_part = qr_shards_common(p->shards, r, begin, end, &first);
        if (n_part == 0) { continue; }
        parts[r] = (qr_parcel){codes + (size_t)(first - begin) * n_code_bytes, (size_t)n_part * n_code_bytes};
        if (r == ranks->rank) { QR_RETURN_IF_ERROR(read_codes(p, tensor, first, n_part, parts[r].memory, err)); }
    }
    for (int32_t r = 0; r < p->shards->n_ranks; r++) { sent[r] = parts[ranks->rank]; }
    QR_RETURN_IF_ERROR(qr_all_to_all(ranks, sent, parts, err));
    return qr_whole_write_codes(p, tensor, row, n, codes, err);
}

qrun_status qr_whole_shards_share(const qr_parameters *p, qr_error *err) {
    size_t n_bytes;
    unsigned char *room = qr_layer_stream_room(p->model, &n_bytes);
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        const int64_t n_rows = p->list[tensor->parameter].rows, most = qr_whole_code_rows(p, tensor, n_bytes);
        for (int64_t row = 0; row < n_rows && !is_of_layer(p, tensor); row += most) {
            QR_RETURN_IF_ERROR(share_rows(p, tensor, row, qr_min(most, n_rows - row), room, err));
        }
    }
    return QRUN_OK;
}

int64_t qr_whole_shards_share_bytes(const qr_parameters *p, int32_t rank) {
    int64_t n_bytes = 0;
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        int64_t first;
        const int64_t n = qr_shards_common(p->shards, rank, parameter->offset,
                                           parameter->offset + parameter->rows * parameter->cols, &first);
        if (is_of_layer(p, tensor)) { continue; }
        n_bytes += n * (int64_t)qr_whole_code_bytes(p, tensor) * (p->shards->n_ranks - 1);
    }
    return n_bytes;
}

/* ---- Values from elsewhere --------------------------------------------------------------------------------------- */

/* Values [first, first + n) of the arena, of one section, where this rank has them. */
static qrun_status put_values(const qr_parameters *p, int64_t first, int64_t n, const float *values, qr_error *err) {
    int64_t begin;
    const int64_t n_own = qr_shards_common(p->shards, p->shards->rank, first, first + n, &begin);
    if (n_own == 0) { return QRUN_OK; }
    return p->backend->copy_in(p->backend, qr_parameters_at(p, begin), values + (begin - first),
                               (size_t)n_own * sizeof *values, err);
}

/* As many rows as there is room for, which is no less than a group of them. */
static qrun_status put_rows(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t row, int64_t n,
                            const float *values, qr_error *err) {
    size_t n_bytes;
    unsigned char *room = qr_layer_stream_room(p->model, &n_bytes);
    const int64_t cols = p->list[tensor->parameter].cols, most = qr_whole_code_rows(p, tensor, n_bytes);
    for (int64_t done = 0; done < n; done += most) {
        const int64_t n_here = qr_min(most, n - done);
        qr_whole_encode(p, tensor, values + done * cols, n_here * cols, room);
        QR_RETURN_IF_ERROR(qr_whole_write_codes(p, tensor, row + done, n_here, room, err));
    }
    return QRUN_OK;
}

qrun_status qr_whole_shards_put(const qr_parameters *p, int64_t tensor, int64_t row, int64_t n, const float *values,
                                qr_error *err) {
    const qr_whole_tensor *whole = &p->whole.tensors[tensor];
    const qr_parameter *parameter = &p->list[whole->parameter];
    QR_RETURN_IF_ERROR(put_values(p, parameter->offset + row * parameter->cols, n * parameter->cols, values, err));
    return is_of_layer(p, whole) ? QRUN_OK : put_rows(p, whole, row, n, values, err);
}

qrun_status qr_whole_shards_put_all(const qr_parameters *p, const float *values, qr_error *err) {
    for (int64_t s = 0; s < p->n_sections; s++) {
        const int64_t begin = p->sections[s].begin, n = qr_parameters_section_end(p, s) - begin;
        QR_RETURN_IF_ERROR(put_values(p, begin, n, values + begin, err));
    }
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        if (is_of_layer(p, tensor)) { continue; }
        QR_RETURN_IF_ERROR(put_rows(p, tensor, 0, parameter->rows, values + parameter->offset, err));
    }
    return QRUN_OK;
}
