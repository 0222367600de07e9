/* Python's pickle, protocol 2, as far as dictionaries, lists, texts, integers and truth values go. */
#ifndef QRUN_CLI_PROFILE_PICKLE_H
#define QRUN_CLI_PROFILE_PICKLE_H

#include "cli/terminal/text.h"

void pickle_begin(text_buffer *out);
void pickle_end(text_buffer *out);

/* Between them: of a dictionary a key, which is a text, and its value, in turn; of a list its items. */
void pickle_dict_begin(text_buffer *out);
void pickle_dict_end(text_buffer *out);
void pickle_list_begin(text_buffer *out);
void pickle_list_end(text_buffer *out);

void pickle_text(text_buffer *out, const char *text); /* UTF-8 */
void pickle_int(text_buffer *out, int64_t value);
void pickle_bool(text_buffer *out, bool value);

/* A key with its value. */
void pickle_text_member(text_buffer *out, const char *key, const char *value);
void pickle_int_member(text_buffer *out, const char *key, int64_t value);

#endif
