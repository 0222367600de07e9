/* A conversation as the chat template renders it, with what counts marked: what the assistant wrote, unless the
 * messages say otherwise (data/messages.h).
 *
 * No template says where its assistant's text is, so it is found by rendering. Let R(k) be the rendering of the first
 * k messages, R(k, prompt) the same with the prompt for an answer, and W that of all of them.
 *
 *   1. When R(i + 1) begins with R(i, prompt) and W begins with R(i + 1), message i wrote what R(i + 1) adds: its text
 *      and the end of its turn.
 *   2. Otherwise, as where earlier thoughts are dropped once more messages follow: all is rendered again with a word
 *      instead of message i's content that occurs nowhere else. What comes before and after that word in the
 *      rendering comes before and after the content in W; the end of the turn is what comes after the word both
 *      there and in R(i + 1).
 *   3. Where that fails too, because the template takes the content apart, W begins with R(i + 1), and the prompt holds
 *      more than the turn's opening (a tag that begins a thought): the text begins where the prompt and R(i + 1) part,
 *      if that is after R(i).
 *   4. Where the message calls a tool, and the template writes something between a content and the call that it leaves
 *      out where there is none: the second way with the name of the call in place of the content finds the end of the
 *      turn, and the third way's prompt where it begins.
 *
 * Messages of other roles, where they count, are found by the second way alone: the prompt is not for them. Where none
 * finds a message the conversation is refused: what should not count is never marked. */
#ifndef QR_LOADERS_DATA_CHAT_H
#define QR_LOADERS_DATA_CHAT_H

#include "loaders/data/messages.h"
#include "loaders/data/spans.h"
#include "loaders/template/chat_template.h"

typedef struct qr_conversation {
    qr_messages_source messages;
    const qr_json *tools; /* an array, or NULL */
    const qr_json *extra; /* an object of template arguments, or NULL */
    int64_t now;
} qr_conversation;

/* Fills a cleared *marked, and adds to *notes. */
qrun_status qr_conversation_render(const qr_conversation *conversation, const qr_chat_template *chat_template,
                                   qr_marked_text *marked, qr_message_notes *notes, qr_error *err);

#endif
