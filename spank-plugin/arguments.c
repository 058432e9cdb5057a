#include "arguments.h"

#include "text.h"

#include <stdio.h>
#include <string.h>

#define FORM "JUICE STATE_DIR [key=FILE] [wait=SECONDS] [owner=USER]"

static void complain_of(void (*complain)(const char *line), const char *argument, const char *what)
{
	char line[ARGUMENTS_ERROR_SIZE], shown[TEXT_QUOTED_SIZE];

	snprintf(line, sizeof line, "plugstack.conf: argument %s %s", text_quote(argument, shown), what);
	complain(line);
}

/* The value of `argument` when it starts with `key`, which ends in '='. */
static const char *value_of(const char *argument, const char *key)
{
	size_t length = strlen(key);

	return strncmp(argument, key, length) == 0 ? argument + length : NULL;
}

static bool parse_wait(const char *text, unsigned *seconds)
{
	unsigned number = 0;

	if (*text == '\0' || strlen(text) > 4 || text[strspn(text, "0123456789")] != '\0')
		return false;
	for (; *text != '\0'; text++)
		number = number * 10 + (unsigned)(*text - '0');
	if (number > ARGUMENTS_MAX_WAIT)
		return false;
	*seconds = number;
	return true;
}

/* LD_PRELOAD separates its libraries by ':' and blanks, so they cannot be part of the path. */
static bool is_usable_path(const char *path)
{
	return *path == '/' && strpbrk(path, ": \t") == NULL;
}

static void take_path(struct arguments *arguments, int position, const char *argument,
		      void (*complain)(const char *line))
{
	if (position == 0 && is_usable_path(argument))
		arguments->juice = argument;
	else if (position == 1 && *argument == '/')
		arguments->state_dir = argument;
	else if (position == 0)
		complain_of(complain, argument,
			    "is not the path of the juice command; accepted: an absolute path without ':' and blanks");
	else if (position == 1)
		complain_of(complain, argument, "is not the state directory; accepted: an absolute path");
	else
		complain_of(complain, argument, "is unknown; accepted: " FORM);
}

void arguments_parse(struct arguments *arguments, int argc, char *const argv[], void (*complain)(const char *line))
{
	int paths = 0;

	*arguments = (struct arguments){.key = ARGUMENTS_DEFAULT_KEY, .wait = ARGUMENTS_DEFAULT_WAIT};
	for (int i = 0; i < argc; i++) {
		const char *value;

		if ((value = value_of(argv[i], "key=")) != NULL) {
			if (*value == '/')
				arguments->key = value;
			else
				complain_of(complain, argv[i], "is not accepted; accepted: key= and an absolute path");
		} else if ((value = value_of(argv[i], "wait=")) != NULL) {
			if (!parse_wait(value, &arguments->wait))
				complain_of(complain, argv[i], "is not accepted; accepted: wait= and 0 to 3600 seconds");
		} else if ((value = value_of(argv[i], "owner=")) != NULL) {
			if (*value != '\0')
				arguments->owner = value;
			else
				complain_of(complain, argv[i], "is not accepted; accepted: owner= and a user's name or id");
		} else if (*argv[i] != '/' && strchr(argv[i], '=') != NULL) {
			complain_of(complain, argv[i], "is unknown; accepted: " FORM);
		} else {
			take_path(arguments, paths++, argv[i], complain);
		}
	}
	if (paths < 2)
		complain("plugstack.conf: an argument is missing; accepted: " FORM);
}

bool arguments_are_complete(const struct arguments *arguments)
{
	return arguments->juice != NULL && arguments->state_dir != NULL;
}
