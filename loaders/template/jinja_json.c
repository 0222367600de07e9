/* tojson, as json.dumps writes it, and the way in for JSON values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "loaders/template/jinja_json.h"

/* --- out --- */

static void append_escape(qr_jinja_builder *builder, uint32_t c) {
    char text[16];
    if (c >= 0x10000U) {
        c -= 0x10000U;
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800U + (c >> 10)),
                 (unsigned)(0xDC00U + (c & 0x3FFU)));
    } else {
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    }
    qr_jinja_append_text(builder, text);
}

static void append_json_string(qr_jinja_builder *builder, const qr_jinja_string *string, bool ensure_ascii) {
    static const char special[] = "\"\\\n\r\t\f\b";
    static const char *const escapes[] = {"\\\"", "\\\\", "\\n", "\\r", "\\t", "\\f", "\\b"};
    qr_jinja_append_text(builder, "\"");
    for (size_t i = 0; i < string->size && !qr_jinja_failed(builder->run);) {
        uint32_t c;
        size_t length = qr_utf8_decode(string->data + i, string->size - i, &c);
        if (length == 0) { length = 1; }
        const char *found = c > 0 && c < 0x80U ? strchr(special, (int)c) : NULL;
        if (found != NULL) {
            qr_jinja_append_text(builder, escapes[found - special]);
        } else if (c < 0x20U || (ensure_ascii && c >= 0x7FU)) {
            append_escape(builder, c);
        } else {
            qr_jinja_append(builder, string->data + i, length);
        }
        i += length;
    }
    qr_jinja_append_text(builder, "\"");
}

static void append_line(qr_jinja_builder *builder, const qr_jinja_json_style *style, int level) {
    if (style->indent == NULL) { return; }
    qr_jinja_append_text(builder, "\n");
    for (int i = 0; i < level && !qr_jinja_failed(builder->run); i++) {
        qr_jinja_append(builder, style->indent->data, style->indent->size);
    }
}

static void append_any(qr_jinja_builder *builder, qr_jinja_value value, const qr_jinja_json_style *style, int level);

static void append_array(qr_jinja_builder *builder, const qr_jinja_list *list, const qr_jinja_json_style *style,
                         int level) {
    if (list->n_items == 0) {
        qr_jinja_append_text(builder, "[]");
        return;
    }
    qr_jinja_append_text(builder, "[");
    for (size_t i = 0; i < list->n_items && qr_jinja_step(builder->run, 1); i++) {
        if (i > 0) { qr_jinja_append(builder, style->item_separator->data, style->item_separator->size); }
        append_line(builder, style, level + 1);
        append_any(builder, list->items[i], style, level + 1);
    }
    append_line(builder, style, level);
    qr_jinja_append_text(builder, "]");
}

static void append_number(qr_jinja_builder *builder, qr_jinja_value value) {
    if (value.type == QR_JINJA_FLOAT && !isfinite(value.number)) {
        qr_jinja_append_text(builder, isnan(value.number) ? "NaN" : value.number > 0 ? "Infinity" : "-Infinity");
    } else if (value.type == QR_JINJA_BOOL) {
        qr_jinja_append_text(builder, value.boolean ? "true" : "false");
    } else {
        qr_jinja_append_repr(builder, value);
    }
}

/* Keys of other types become strings. */
static void append_key(qr_jinja_builder *builder, qr_jinja_value key, bool ensure_ascii) {
    if (key.type == QR_JINJA_STRING) {
        append_json_string(builder, key.string, ensure_ascii);
    } else if (key.type == QR_JINJA_NONE || qr_jinja_is_number(key)) {
        qr_jinja_append_text(builder, "\"");
        if (key.type == QR_JINJA_NONE) {
            qr_jinja_append_text(builder, "null");
        } else {
            append_number(builder, key);
        }
        qr_jinja_append_text(builder, "\"");
    } else {
        (void)qr_jinja_error(builder->run, "tojson: keys must be str, int, float, bool or None, not %s",
                             qr_jinja_type_name(key));
    }
}

/* The indices of the entries in the order of their keys. */
static qr_jinja_list *key_order(qr_jinja_run *run, const qr_jinja_dict *dict, bool sorted) {
    qr_jinja_list *order = qr_jinja_list_create(run, dict->n_entries),
                  *keys = qr_jinja_list_create(run, dict->n_entries);
    for (size_t i = 0; i < dict->n_entries; i++) {
        qr_jinja_list_append(run, order, qr_jinja_int((int64_t)i));
        qr_jinja_list_append(run, keys, dict->entries[i].key);
    }
    return sorted && !qr_jinja_failed(run) ? qr_jinja_sorted(run, order, keys, false).list : order;
}

static void append_object(qr_jinja_builder *builder, const qr_jinja_dict *dict, const qr_jinja_json_style *style,
                          int level) {
    if (dict->n_entries == 0) {
        qr_jinja_append_text(builder, "{}");
        return;
    }
    const qr_jinja_list *order = key_order(builder->run, dict, style->sort_keys);
    qr_jinja_append_text(builder, "{");
    for (size_t i = 0; i < dict->n_entries && qr_jinja_step(builder->run, 1); i++) {
        const qr_jinja_entry *entry = &dict->entries[order->items[i].integer];
        if (i > 0) { qr_jinja_append(builder, style->item_separator->data, style->item_separator->size); }
        append_line(builder, style, level + 1);
        append_key(builder, entry->key, style->ensure_ascii);
        qr_jinja_append(builder, style->key_separator->data, style->key_separator->size);
        append_any(builder, entry->value, style, level + 1);
    }
    append_line(builder, style, level);
    qr_jinja_append_text(builder, "}");
}

static void append_any(qr_jinja_builder *builder, qr_jinja_value value, const qr_jinja_json_style *style, int level) {
    if (qr_jinja_enter(builder->run)) {
        switch (value.type) {
            case QR_JINJA_NONE: qr_jinja_append_text(builder, "null"); break;
            case QR_JINJA_BOOL:
            case QR_JINJA_INT:
            case QR_JINJA_BIG:
            case QR_JINJA_FLOAT: append_number(builder, value); break;
            case QR_JINJA_STRING: append_json_string(builder, value.string, style->ensure_ascii); break;
            case QR_JINJA_LIST:
            case QR_JINJA_TUPLE: append_array(builder, value.list, style, level); break;
            case QR_JINJA_DICT: append_object(builder, value.dict, style, level); break;
            default:
                (void)qr_jinja_error(builder->run, "Object of type %s is not JSON serializable",
                                     qr_jinja_type_name(value));
                break;
        }
    }
    qr_jinja_leave(builder->run);
}

void qr_jinja_append_json(qr_jinja_builder *builder, qr_jinja_value value, const qr_jinja_json_style *style) {
    append_any(builder, value, style, 0);
}

/* --- in --- */

/* 1 is an int, 1.0 a float. The reader of JSON refuses integers that a double would round. */
static qr_jinja_value from_number(qr_jinja_run *run, const qr_json *json) {
    const bool is_float = (json->type & QR_JSON_FLOAT) != 0;
    return is_float ? qr_jinja_float(json->valuedouble) : qr_jinja_integer_from_double(run, json->valuedouble);
}

static qr_jinja_value convert(qr_jinja_run *run, const qr_json *json) {
    if (cJSON_IsBool(json)) { return qr_jinja_bool(cJSON_IsTrue(json)); }
    if (cJSON_IsNumber(json)) { return from_number(run, json); }
    if (cJSON_IsString(json)) { return qr_jinja_copy(run, json->valuestring, strlen(json->valuestring)); }
    if (cJSON_IsArray(json)) {
        qr_jinja_list *list = qr_jinja_list_create(run, 0);
        for (const qr_json *item = qr_json_first(json); item != NULL && qr_jinja_step(run, 1); item = item->next) {
            qr_jinja_list_append(run, list, qr_jinja_from_json(run, item));
        }
        return qr_jinja_from_list(QR_JINJA_LIST, list);
    }
    if (cJSON_IsObject(json)) {
        qr_jinja_dict *dict = qr_jinja_dict_create(run);
        for (const qr_json *item = qr_json_first(json); item != NULL && qr_jinja_step(run, 1); item = item->next) {
            const qr_jinja_value key = qr_jinja_copy(run, item->string, strlen(item->string));
            const qr_jinja_value value = qr_jinja_from_json(run, item);
            if (!qr_jinja_failed(run)) { (void)qr_jinja_dict_set(run, dict, key, value); }
        }
        return qr_jinja_from_dict(dict);
    }
    return qr_jinja_none();
}

qr_jinja_value qr_jinja_from_json(qr_jinja_run *run, const qr_json *json) {
    const qr_jinja_value value = qr_jinja_enter(run) ? convert(run, json) : qr_jinja_undefined();
    qr_jinja_leave(run);
    return value;
}
