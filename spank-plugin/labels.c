#include "labels.h"

#include <string.h>

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_inner(char c)
{
	return is_word(c) || (c != '\0' && strchr("-./:", c) != NULL);
}

static void skip_blanks(const char **at)
{
	*at += strspn(*at, " \t");
}

/* Moves `at` behind a name; false when there is none. */
static bool take_name(const char **at)
{
	const char *end = *at;

	if (!is_word(*end))
		return false;
	while (is_inner(*end))
		end++;
	if (!is_word(end[-1]))
		return false;
	*at = end;
	return true;
}

static bool take_optional_name(const char **at)
{
	return is_inner(**at) ? take_name(at) : true;
}

static bool take(const char **at, const char *word)
{
	size_t length = strlen(word);

	if (strncmp(*at, word, length) != 0)
		return false;
	*at += length;
	return true;
}

/* "(a, b)": at least one name, no empty ones. */
static bool take_set(const char **at)
{
	skip_blanks(at);
	if (!take(at, "("))
		return false;
	do {
		skip_blanks(at);
		if (!take_name(at))
			return false;
		skip_blanks(at);
	} while (take(at, ","));
	return take(at, ")");
}

static bool take_term(const char **at)
{
	const char *behind_key;

	if (take(at, "!")) {
		skip_blanks(at);
		return take_name(at);
	}
	if (!take_name(at))
		return false;
	behind_key = *at;
	skip_blanks(at);
	if (take(at, "==") || take(at, "!=") || take(at, "=")) {
		skip_blanks(at);
		return take_optional_name(at);
	}
	if (*at > behind_key && (take(at, "notin") || take(at, "in")))
		return take_set(at);
	return true;
}

static bool take_pair(const char **at)
{
	return take_name(at) && take(at, "=") && take_optional_name(at);
}

/* Items that `take_item` takes, separated by commas, with blanks around them. */
static bool is_list(const char *text, bool (*take_item)(const char **))
{
	const char *at = text;

	if (strlen(text) > LABELS_MAX_LENGTH)
		return false;
	do {
		skip_blanks(&at);
		if (!take_item(&at))
			return false;
		skip_blanks(&at);
	} while (take(&at, ","));
	return *at == '\0';
}

bool labels_is_selector(const char *text)
{
	return is_list(text, take_term);
}

bool labels_is_pairs(const char *text)
{
	return strpbrk(text, " \t") == NULL && is_list(text, take_pair);
}
