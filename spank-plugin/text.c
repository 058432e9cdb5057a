#include "text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Decodes one character of UTF-8 at `text` (shortest form, no surrogates). Returns its length, 0 when it is none. */
static size_t decode(const char *text, uint32_t *point)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *bytes = (const unsigned char *)text;
	size_t length;

	if (bytes[0] < 0x80) {
		*point = bytes[0];
		return 1;
	}
	if ((bytes[0] & 0xe0) == 0xc0)
		length = 2;
	else if ((bytes[0] & 0xf0) == 0xe0)
		length = 3;
	else if ((bytes[0] & 0xf8) == 0xf0)
		length = 4;
	else
		return 0;

	*point = bytes[0] & (0x7fU >> length);
	for (size_t i = 1; i < length; i++) {
		if ((bytes[i] & 0xc0) != 0x80) /* also stops at the NUL that ends the text */
			return 0;
		*point = (*point << 6) | (bytes[i] & 0x3fU);
	}
	if (*point < least[length] || *point > 0x10ffff || (*point >= 0xd800 && *point <= 0xdfff))
		return 0;
	return length;
}

static bool is_control(uint32_t point)
{
	return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 || point == 0x2029;
}

bool text_is_utf8(const char *text)
{
	while (*text != '\0') {
		uint32_t point;
		size_t length = decode(text, &point);

		if (length == 0)
			return false;
		text += length;
	}
	return true;
}

size_t text_length(const char *text)
{
	size_t length = 0;

	for (; *text != '\0'; text++)
		length += ((unsigned char)*text & 0xc0) != 0x80; /* all but the first byte of a character look like this */
	return length;
}

bool text_is_printable(const char *text)
{
	while (*text != '\0') {
		uint32_t point;
		size_t length = decode(text, &point);

		if (length == 0 || is_control(point))
			return false;
		text += length;
	}
	return true;
}

const char *text_quote(const char *text, char buffer[TEXT_QUOTED_SIZE])
{
	const size_t whole = strlen(text);
	size_t shown = 0, used = 0;

	buffer[used++] = '"';
	while (shown < whole) {
		uint32_t point;
		size_t length = decode(text + shown, &point);

		if (shown + (length ? length : 1) > TEXT_SHOWN)
			break;
		if (length == 0 || is_control(point)) {
			size_t escaped = length ? length : 1;

			for (size_t i = 0; i < escaped; i++)
				used += (size_t)snprintf(buffer + used, TEXT_QUOTED_SIZE - used, "\\x%02x",
							 (unsigned char)text[shown + i]);
			shown += escaped;
			continue;
		}
		if (point == '"' || point == '\\')
			buffer[used++] = '\\';
		memcpy(buffer + used, text + shown, length);
		used += length;
		shown += length;
	}
	buffer[used++] = '"';
	buffer[used] = '\0';
	if (shown < whole)
		snprintf(buffer + used, TEXT_QUOTED_SIZE - used, "... (%zu bytes)", whole);
	return buffer;
}

void text_flatten(char *text)
{
	while (*text != '\0') {
		uint32_t point;
		size_t length = decode(text, &point);

		if (length == 0 || is_control(point))
			memset(text, '?', length ? length : 1);
		text += length ? length : 1;
	}
}

char text_lower(char c)
{
	static const char upper[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", lower[] = "abcdefghijklmnopqrstuvwxyz";
	const char *at = c != '\0' ? strchr(upper, c) : NULL;

	if (at != NULL)
		c = lower[at - upper];
	return c;
}

bool text_same(const char *a, const char *b)
{
	while (*a != '\0' && text_lower(*a) == text_lower(*b)) {
		a++;
		b++;
	}
	return text_lower(*a) == text_lower(*b);
}
