/*
 * Applies options and environment as srun and sbatch would, for tables of cases: probe_options --juice-pool=x ...
 * Prints NAME=VALUE lines, what the hooks would get; or the one line of an error, and exits with 1.
 */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *variable(const char *name)
{
	return getenv(name);
}

static int find(const char *argument, const char **text)
{
	for (int option = 0; option < OPTION_COUNT; option++) {
		size_t length = strlen(option_texts[option].name);

		if (strncmp(argument, "--", 2) != 0 || strncmp(argument + 2, option_texts[option].name, length) != 0)
			continue;
		*text = argument[2 + length] == '=' ? argument + 3 + length : NULL;
		if (argument[2 + length] == '\0' || argument[2 + length] == '=')
			return option;
	}
	fprintf(stderr, "unknown option %s\n", argument);
	exit(2);
}

int main(int argc, char *argv[])
{
	struct options options = {0};
	char error[OPTIONS_ERROR_SIZE];
	bool good = true;

	for (int i = 1; good && i < argc; i++) {
		const char *text;
		int option = find(argv[i], &text);

		good = options_give(&options, (enum option)option, text, error);
	}
	good = good && options_settle(&options, variable, error);
	if (!good)
		puts(error);
	for (int option = 0; good && option < OPTION_COUNT; option++) {
		if (options.value[option] != NULL)
			printf("%s=%s\n", option_texts[option].variable, options.value[option]);
	}
	options_clear(&options);
	return good ? 0 : 1;
}
