#include "json.h"

#include <string.h>

static const char *skip_blanks(const char *at, const char *end)
{
	while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
		at++;
	return at;
}

/* Behind the string that begins at `at`; NULL when it does not end. */
static const char *skip_string(const char *at, const char *end)
{
	for (at++; at < end; at++) {
		if (*at == '\\')
			at++;
		else if (*at == '"')
			return at + 1;
	}
	return NULL;
}

/* Behind the value that begins at `at`; NULL when it does not end. Brackets are counted, not matched by kind. */
static const char *skip_value(const char *at, const char *end)
{
	size_t depth = 0;

	if (at < end && *at != '{' && *at != '[' && *at != '"') {
		const char *begin = at;

		while (at < end && strchr(",:]} \t\r\n", *at) == NULL)
			at++;
		return at > begin ? at : NULL;
	}
	while (at < end) {
		if (*at == '"') {
			at = skip_string(at, end);
			if (at == NULL)
				return NULL;
		} else {
			if (*at == '{' || *at == '[')
				depth++;
			else if (*at == '}' || *at == ']')
				depth--;
			at++;
		}
		if (depth == 0)
			return at;
	}
	return NULL;
}

bool json_value(const char *text, size_t length, struct json *value)
{
	const char *end = text + length;

	value->at = skip_blanks(text, end);
	value->end = skip_value(value->at, end);
	return value->end != NULL;
}

/* Whether the string at `at` is `name`, which has no character that needs an escape. */
static bool is_name(const char *at, const char *end, const char *name)
{
	size_t length = strlen(name);

	return (size_t)(end - at) == length + 2 && memcmp(at + 1, name, length) == 0;
}

bool json_member(struct json object, const char *name, struct json *value)
{
	const char *at = object.at, *end = object.end;

	if (at >= end || *at != '{')
		return false;
	at = skip_blanks(at + 1, end);
	while (at < end && *at == '"') {
		const char *behind = skip_string(at, end);
		bool found;

		if (behind == NULL)
			return false;
		found = is_name(at, behind, name);
		at = skip_blanks(behind, end);
		if (at >= end || *at != ':')
			return false;
		if (!json_value(at + 1, (size_t)(end - at - 1), value))
			return false;
		if (found)
			return true;
		at = skip_blanks(value->end, end);
		if (at >= end || *at != ',')
			return false;
		at = skip_blanks(at + 1, end);
	}
	return false;
}

bool json_element(struct json array, size_t index, struct json *value)
{
	const char *at = array.at, *end = array.end;

	if (at >= end || *at != '[')
		return false;
	for (;;) {
		if (!json_value(at + 1, (size_t)(end - at - 1), value))
			return false;
		if (index-- == 0)
			return true;
		at = skip_blanks(value->end, end);
		if (at >= end || *at != ',')
			return false;
	}
}

bool json_string(struct json value, char *text, size_t size)
{
	size_t used = 0;

	if (value.end - value.at < 2 || *value.at != '"')
		return false;
	for (const char *at = value.at + 1; at < value.end - 1; at++) {
		char c = *at;

		if (c == '\\') {
			at++;
			switch (*at) {
			case 'n':
				c = '\n';
				break;
			case 't':
				c = '\t';
				break;
			case 'r':
			case 'b':
			case 'f':
				c = ' ';
				break;
			case 'u':
				at += value.end - 1 - at > 4 ? 4 : 0;
				c = '?';
				break;
			default:
				c = *at;
			}
		}
		if (used + 1 >= size)
			return false;
		text[used++] = c;
	}
	if (size == 0)
		return false;
	text[used] = '\0';
	return true;
}

bool json_integer(struct json value, int64_t *number)
{
	const char *at = value.at;
	bool negative = at < value.end && *at == '-';
	int64_t result = 0;

	at += negative;
	if (at >= value.end)
		return false;
	for (; at < value.end; at++) {
		if (*at < '0' || *at > '9' || result > (INT64_MAX - 9) / 10)
			return false;
		result = result * 10 + (*at - '0');
	}
	*number = negative ? -result : result;
	return true;
}

bool json_is_true(struct json value)
{
	return value.end - value.at == 4 && memcmp(value.at, "true", 4) == 0;
}

void json_escape(const char *text, char *escaped, size_t size)
{
	size_t used = 0;

	for (; *text != '\0' && used + 1 < size; text++) {
		unsigned char c = (unsigned char)*text;

		escaped[used++] = (char)(c >= 0x20 && c < 0x7f && c != '"' && c != '\\' ? c : '?');
	}
	escaped[used] = '\0';
}
