/*
 * The option parser under libFuzzer. An input is a list of texts that end with NUL; the first byte of each says which
 * option it is for, and whether it comes from the command line or the environment.
 */
#include "arguments.h"
#include "options.h"
#include "text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *environment[OPTION_COUNT];

static const char *variable(const char *name)
{
	for (int option = 0; option < OPTION_COUNT; option++) {
		if (strcmp(option_texts[option].variable, name) == 0)
			return environment[option];
	}
	abort(); /* a variable that is not documented */
}

/* Messages are one line of readable text, whatever the value. */
static void check_error(const char *error)
{
	if (*error == '\0' || !text_is_printable(error) || strlen(error) >= OPTIONS_ERROR_SIZE - 1)
		abort();
}

/* What the hooks would read; 0 when they would not. */
static long long number(const char *text)
{
	char *end;
	long long value = strtoll(text, &end, 10);

	return *end == '\0' ? value : 0;
}

static void check_settled(const struct options *options)
{
	if (options->value[OPTION_POOL] == NULL) {
		for (int option = 0; option < OPTION_COUNT; option++) {
			if (options->value[option] != NULL)
				abort();
		}
		return;
	}
	if (!text_is_printable(options->value[OPTION_POOL]) || text_length(options->value[OPTION_POOL]) > OPTIONS_MAX_POOL)
		abort();
	if (number(options->value[OPTION_GPU_COUNT]) < 1 || number(options->value[OPTION_GPU_COUNT]) > OPTIONS_MAX_GPUS)
		abort();
	if (options->value[OPTION_VRAM] != NULL && number(options->value[OPTION_VRAM]) < 1)
		abort();
}

static void ignore(const char *line)
{
	check_error(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *texts = malloc(size + 1), *argv[8];
	struct options options = {0};
	struct arguments arguments;
	char error[OPTIONS_ERROR_SIZE];
	bool good = true;
	int argc = 0;

	memcpy(texts, data, size);
	texts[size] = '\0';
	memset(environment, 0, sizeof environment);
	for (char *at = texts; at < texts + size; at += strlen(at) + 1) {
		unsigned which = (unsigned char)*at;

		if (which == 0)
			continue;
		if (argc < 8)
			argv[argc++] = at + 1;
		if (which & 0x80)
			environment[which % OPTION_COUNT] = at + 1;
		else
			good = good && options_give(&options, which % OPTION_COUNT, at + 1, error);
	}
	good = good && options_settle(&options, variable, error);
	if (good)
		check_settled(&options);
	else
		check_error(error);
	options_clear(&options);
	arguments_parse(&arguments, argc, argv, ignore);
	free(texts);
	return 0;
}
