#include "runtime/generate/answer_form.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/json.h"

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static qr_schema_tags tags_of(const qrun_answer_form *form) {
    return (qr_schema_tags){form->before_name != NULL ? form->before_name : "<parameter=",
                            form->after_name != NULL ? form->after_name : ">\n",
                            form->after_value != NULL ? form->after_value : "\n</parameter>\n"};
}

static qrun_status make_of_forms(const qrun_model *model, const qrun_request_params *params, qr_grammar **grammar,
                                 qr_error *err) {
    const size_t n = (size_t)params->n_answer_forms;
    qr_grammar_form *forms = qr_alloc_array(n, sizeof *forms);
    char(*numbers)[40] = qr_alloc_array(n, sizeof *numbers);
    qrun_status status;
    if (forms == NULL || numbers == NULL) { QR_TRY(qr_fail_memory(err, "a request's forms", n * sizeof *forms)); }
    for (size_t i = 0; i < n; i++) {
        const qrun_answer_form *form = &params->answer_forms[i];
        (void)snprintf(numbers[i], sizeof numbers[i], "`answer_forms[%zu]`", i);
        forms[i] = (qr_grammar_form){.name = form->name != NULL ? form->name : numbers[i],
                                     .before = form->before != NULL ? form->before : "",
                                     .schema = form->schema != NULL ? form->schema : "{}",
                                     .after = form->after != NULL ? form->after : "",
                                     .is_tagged = form->value == QRUN_FORM_TAGGED,
                                     .tags = tags_of(form)};
    }
    QR_TRY(qr_grammar_create_forms(model->tokenizer->tokenizer, forms, n, grammar, err));
out:
    qr_free(forms);
    qr_free(numbers);
    return status;
}

/* All that a grammar is made of, but for names in messages. */
static void write_key(const qrun_request_params *params, qr_buffer *key) {
    if (params->json_schema != NULL) { qr_buffer_append_text(key, params->json_schema); }
    for (int32_t i = 0; i < params->n_answer_forms; i++) {
        const qrun_answer_form *form = &params->answer_forms[i];
        const qr_schema_tags tags = tags_of(form);
        const char *const texts[] = {form->before,    form->schema != NULL ? form->schema : "{}",
                                     form->after,     tags.before_name,
                                     tags.after_name, tags.after_value};
        for (size_t k = 0; k < QR_COUNT_OF(texts); k++) {
            if (texts[k] != NULL) { qr_buffer_append_text(key, texts[k]); }
            qr_buffer_append_char(key, '\0');
        }
        qr_buffer_append_char(key, (char)form->value);
    }
}

static qrun_status check_forms(const qrun_request_params *params, qr_error *err) {
    if (params->n_answer_forms > 0 && params->answer_forms == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_answer_forms=%d`, but `answer_forms` is NULL",
                       params->n_answer_forms);
    }
    for (int32_t i = 0; i < params->n_answer_forms; i++) {
        const int value = (int)params->answer_forms[i].value;
        if (value == QRUN_FORM_JSON || value == QRUN_FORM_TAGGED) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`value=%d` of `answer_forms[%d]` is no way to write a value", value,
                       i);
    }
    return QRUN_OK;
}

static qrun_status find_or_make(const qrun_model *model, qr_grammar_shelf *shelf, const qrun_request_params *params,
                                qr_grammar **grammar, qr_error *err) {
    const char *schema = params->json_schema;
    qr_buffer key = {0};
    write_key(params, &key);
    *grammar = qr_buffer_ok(&key) ? qr_grammar_shelf_find(shelf, &key) : NULL;
    qrun_status status = QRUN_OK;
    if (*grammar == NULL) {
        status = schema != NULL ? qr_grammar_create(schema, strlen(schema), grammar, err)
                                : make_of_forms(model, params, grammar, err);
        if (status == QRUN_OK && qr_buffer_ok(&key)) { qr_grammar_shelf_keep(shelf, &key, *grammar); }
    }
    qr_buffer_free(&key);
    return status;
}

qrun_status qr_form_make(const qrun_model *model, qr_grammar_shelf *shelf, const qrun_request_params *params,
                         const qr_json *line, qr_request *request, qr_error *err) {
    const bool has_forms = params->n_answer_forms > 0;
    const bool in_line = !qr_json_is_null(qr_json_get(line, "response_format"));
    const char *what = has_forms ? "`answer_forms`" : in_line ? "\"response_format\"" : "`json_schema`";
    if (params->json_schema == NULL && !has_forms) { return QRUN_OK; }
    if (params->json_schema != NULL && has_forms) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s does not go with `json_schema`", what);
    }
    QR_RETURN_IF_ERROR(check_forms(params, err));
    if (params->prompt_only || params->ignore_eos) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s does not go with `%s`", what,
                       params->prompt_only ? "prompt_only" : "ignore_eos");
    }
    if (model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s has no tokenizer.json; add the file", what, model->folder);
    }
    const qrun_status status = find_or_make(model, shelf, params, &request->grammar, err);
    if (status != QRUN_OK) {
        if (!has_forms) { qr_error_prefix(err, what); } /* a form's name is there */
        return status;
    }
    request->waiting_bytes += qr_grammar_bytes(request->grammar);
    return QRUN_OK;
}

qrun_status qr_form_start(const qrun_model *model, const qr_grammar_room *grammars, qr_request *request,
                          qr_error *err) {
    if (request->grammar == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_grammar_start(request->grammar, model->shape.vocab, err));
    for (int32_t i = 0; i < request->n_samples; i++) {
        qr_match_place *place = &request->sequences[i].place;
        QR_RETURN_IF_ERROR(qr_match_place_create(place, err));
        if (qr_grammar_begin(request->grammar, &grammars->workers[0], place)) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "the schema has too many ways for an answer to begin");
    }
    return QRUN_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

bool qr_form_mask(const qrun_session *session, qr_next_token *next, int worker, const uint32_t **mask) {
    const qr_sequence *sequence = next->sequence;
    const qr_request *request = sequence->request;
    const qr_token_ids *eos = &session->model->generation.eos;
    *mask = NULL;
    if (request->grammar == NULL) { return true; }
    const qr_grammar_ends ends = {{eos->ids, request->stop_ids}, {eos->n, request->n_stop_ids}};
    const qr_grammar_result result =
        qr_grammar_mask(request->grammar, session->grammars, &session->grammars->workers[worker], &sequence->place,
                        sequence->tokens + sequence->n_tokens, next->n_ahead, &ends, mask);
    next->token = -1;
    next->is_too_much = result == QR_GRAMMAR_TOO_MUCH;
    return result == QR_GRAMMAR_OK;
}

bool qr_form_follow(const qrun_session *session, qr_sequence *sequence, int32_t token, bool *is_over) {
    const qr_grammar *grammar = sequence->request->grammar;
    *is_over = false;
    if (grammar == NULL) { return true; }
    const qr_grammar_room *room = session->grammars; /* made before this request was submitted */
    if (qr_grammar_advance(grammar, room, &room->workers[0], token, &sequence->place) != QR_GRAMMAR_OK) {
        return false;
    }
    *is_over = qr_grammar_is_over(&sequence->place);
    return true;
}

const char QR_FORM_TOO_MUCH[] =
    "the schema has too many ways to read this answer; fewer alternatives that begin alike would help";

const char *qr_form_failure(const qr_next_token *next) {
    if (next->is_too_much) { return QR_FORM_TOO_MUCH; }
    if (next->sequence->request->grammar == NULL) {
        return "the rules of the request and of generation_config.json leave no token to continue with";
    }
    return "no token that the rules of the request and of generation_config.json leave continues an answer that fits "
           "the schema";
}
