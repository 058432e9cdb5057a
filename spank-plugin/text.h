/* Text that comes from users: checked before use, and shown in messages that stay one line. */
#ifndef JUICE_TEXT_H
#define JUICE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Enough for TEXT_SHOWN bytes of which each is escaped, quotes, and the note about the length. */
#define TEXT_QUOTED_SIZE 320
#define TEXT_SHOWN 60

/* True when `text` is UTF-8 (shortest forms, no surrogates). */
bool text_is_utf8(const char *text);

/* How many characters `text` has, which must be UTF-8. */
size_t text_length(const char *text);

/* True when `text` is UTF-8 without control characters and line separators. */
bool text_is_printable(const char *text);

/*
 * Writes `text` in double quotes; control characters and bytes that are no UTF-8 as \xNN; only the first TEXT_SHOWN
 * bytes, followed by the whole length. Returns `buffer`.
 */
const char *text_quote(const char *text, char buffer[TEXT_QUOTED_SIZE]);

/* A-Z in lower case, whatever the locale. */
char text_lower(char c);

/* True when both are the same but for the case of A-Z. strcasecmp() follows the locale, and in a Turkish one I is not i. */
bool text_same(const char *a, const char *b);

/* Replaces what would break a line or move a terminal's cursor by '?'. `text` must be UTF-8. */
void text_flatten(char *text);

#endif
