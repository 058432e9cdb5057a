#include "options.h"

#include "labels.h"
#include "text.h"
#include "vram.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_text option_texts[OPTION_COUNT] = {
	[OPTION_POOL] = {"juice-pool", "JUICE_POOL", "NAME",
			 "run with remote GPUs from this Juice pool (by default one whole GPU)"},
	[OPTION_GPU_COUNT] = {"juice-gpu-count", "JUICE_GPU_COUNT", "N", "number of GPUs, all from one machine (default 1)"},
	[OPTION_VRAM] = {"juice-vram", "JUICE_VRAM", "SIZE",
			 "share a GPU: take this much of its memory, in GiB or with a suffix (2.5, 2560MiB)"},
	[OPTION_VRAM_STRICT] = {"juice-vram-strict", "JUICE_VRAM_STRICT", NULL,
				"accept no less than --juice-vram (else 93% of it is enough when no GPU has all)"},
	[OPTION_MATCH_LABELS] = {"juice-match-labels", "JUICE_MATCH_LABELS", "SELECTOR",
				 "use only agents with these labels: k=v,k!=v,k in (a,b)"},
	[OPTION_TOLERATES] = {"juice-tolerates", "JUICE_TOLERATES", "K=V,..", "also use agents with these taints"},
};

#define POOL_ACCEPTED "the name or id of a pool, 1 to 255 characters of UTF-8, none of them a control character"
#define COUNT_ACCEPTED "a whole number from 1 to 64"
#define STRICT_ACCEPTED "1, yes, true, on, 0, no, false or off"

static bool fail(char error[OPTIONS_ERROR_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(char error[OPTIONS_ERROR_SIZE], const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error, OPTIONS_ERROR_SIZE, format, arguments);
	va_end(arguments);
	return false;
}

static char *copy(const char *text)
{
	char *copied = strdup(text);

	if (copied == NULL)
		abort(); /* a client command without memory for a name has nothing left to do */
	return copied;
}

/* How the user knows the option: as typed, or as set in the environment. */
static const char *label(enum option option, bool preset, char buffer[64])
{
	if (preset)
		snprintf(buffer, 64, "%s in the environment", option_texts[option].variable);
	else
		snprintf(buffer, 64, "--%s", option_texts[option].name);
	return buffer;
}

/*
 * Each of these writes the form that the hooks get and returns NULL, or returns what is wrong with the value; `accepted`
 * says what is not. `canonical` has room for any value that is accepted as it stands.
 */
static const char *read_pool(const char *text, char *canonical, const char **accepted)
{
	*accepted = POOL_ACCEPTED;
	if (text[strspn(text, " ")] == '\0')
		return "is empty";
	if (!text_is_printable(text))
		return "is not printable text";
	if (text_length(text) > OPTIONS_MAX_POOL)
		return "is too long";
	strcpy(canonical, text); /* NOLINT: room was made for it */
	return NULL;
}

static const char *read_count(const char *text, char *canonical, const char **accepted)
{
	unsigned number = 0;

	*accepted = COUNT_ACCEPTED;
	if (*text == '\0')
		return "is empty";
	for (const char *digit = text; *digit != '\0'; digit++) {
		if (*digit < '0' || *digit > '9')
			return "is not a whole number";
		if (number <= OPTIONS_MAX_GPUS)
			number = number * 10 + (unsigned)(*digit - '0');
	}
	if (number == 0)
		return "is not a number of GPUs";
	if (number > OPTIONS_MAX_GPUS)
		return "is more than one session can have";
	snprintf(canonical, 16, "%u", number);
	return NULL;
}

static const char *read_vram(const char *text, char *canonical, const char **accepted)
{
	static char reason[VRAM_REASON_SIZE];
	uint64_t bytes;

	*accepted = VRAM_ACCEPTED;
	if (!vram_parse(text, &bytes, reason))
		return reason;
	snprintf(canonical, 32, "%" PRIu64, bytes);
	return NULL;
}

static const char *read_strict(const char *text, char *canonical, const char **accepted)
{
	static const char *const yes[] = {"1", "yes", "true", "on"}, *const no[] = {"0", "no", "false", "off"};

	*accepted = STRICT_ACCEPTED;
	for (size_t i = 0; i < 4; i++) {
		if (text_same(text, yes[i]) || text_same(text, no[i])) {
			strcpy(canonical, text_same(text, yes[i]) ? "1" : "0"); /* NOLINT: see above */
			return NULL;
		}
	}
	return "is neither yes nor no";
}

static const char *read_labels(const char *text, char *canonical, const char **accepted)
{
	*accepted = LABELS_SELECTOR_ACCEPTED;
	if (!labels_is_selector(text))
		return *text == '\0' ? "is empty" : "is not a label selector";
	strcpy(canonical, text); /* NOLINT: see above */
	return NULL;
}

static const char *read_tolerates(const char *text, char *canonical, const char **accepted)
{
	*accepted = LABELS_PAIRS_ACCEPTED;
	if (!labels_is_pairs(text))
		return *text == '\0' ? "is empty" : "is not a list of taints";
	strcpy(canonical, text); /* NOLINT: see above */
	return NULL;
}

static const char *(*const readers[OPTION_COUNT])(const char *, char *, const char **) = {
	[OPTION_POOL] = read_pool,
	[OPTION_GPU_COUNT] = read_count,
	[OPTION_VRAM] = read_vram,
	[OPTION_VRAM_STRICT] = read_strict,
	[OPTION_MATCH_LABELS] = read_labels,
	[OPTION_TOLERATES] = read_tolerates,
};

static bool take(struct options *options, enum option option, const char *text, bool preset,
		 char error[OPTIONS_ERROR_SIZE])
{
	char shown[TEXT_QUOTED_SIZE], before[TEXT_QUOTED_SIZE], who[64];
	const char *accepted, *wrong;
	char *canonical = calloc(1, strlen(text) + 32);

	if (canonical == NULL)
		abort();
	wrong = readers[option](text, canonical, &accepted);
	if (wrong != NULL) {
		free(canonical);
		return fail(error, "%s: %s %s; accepted: %s", label(option, preset, who), text_quote(text, shown), wrong,
			    accepted);
	}
	if (options->value[option] != NULL) {
		bool same = strcmp(options->value[option], canonical) == 0;

		free(canonical);
		if (same)
			return true;
		return fail(error, "%s: given as %s and as %s; accepted: one value", label(option, preset, who),
			    text_quote(options->given[option], before), text_quote(text, shown));
	}
	options->given[option] = copy(text);
	options->value[option] = canonical;
	options->preset[option] = preset;
	return true;
}

bool options_give(struct options *options, enum option option, const char *text, char error[OPTIONS_ERROR_SIZE])
{
	if (option_texts[option].argument == NULL)
		text = "1";
	return take(options, option, text != NULL ? text : "", false, error);
}

static void forget(struct options *options, enum option option)
{
	free(options->given[option]);
	free(options->value[option]);
	options->given[option] = NULL;
	options->value[option] = NULL;
	options->preset[option] = false;
}

/* An empty variable is an unset one: that is how a job script takes a default back. */
static bool take_preset(struct options *options, enum option option, const char *(*variable)(const char *name),
			char error[OPTIONS_ERROR_SIZE])
{
	const char *text = options->value[option] == NULL ? variable(option_texts[option].variable) : NULL;

	return text == NULL || *text == '\0' || take(options, option, text, true, error);
}

bool options_settle(struct options *options, const char *(*variable)(const char *name),
		    char error[OPTIONS_ERROR_SIZE])
{
	char shown[TEXT_QUOTED_SIZE], who[64], other[64];

	if (!take_preset(options, OPTION_POOL, variable, error))
		return false;
	if (options->value[OPTION_POOL] == NULL) {
		for (enum option option = 0; option < OPTION_COUNT; option++) {
			if (options->value[option] == NULL)
				continue;
			if (option_texts[option].argument == NULL)
				return fail(error, "--%s needs a pool; add --juice-pool=NAME", option_texts[option].name);
			return fail(error, "--%s: %s needs a pool; add --juice-pool=NAME", option_texts[option].name,
				    text_quote(options->given[option], shown));
		}
		return true;
	}

	for (enum option option = 0; option < OPTION_COUNT; option++) {
		if (!take_preset(options, option, variable, error))
			return false;
	}
	if (options->value[OPTION_GPU_COUNT] == NULL && !take(options, OPTION_GPU_COUNT, "1", true, error))
		return false;
	if (options->value[OPTION_VRAM] != NULL && strcmp(options->value[OPTION_GPU_COUNT], "1") != 0)
		return fail(error, "%s: %s with %s=%s: a slice of VRAM is for one GPU only; leave one out",
			    label(OPTION_VRAM, options->preset[OPTION_VRAM], who),
			    text_quote(options->given[OPTION_VRAM], shown),
			    label(OPTION_GPU_COUNT, options->preset[OPTION_GPU_COUNT], other),
			    options->value[OPTION_GPU_COUNT]);

	if (options->value[OPTION_VRAM_STRICT] != NULL && strcmp(options->value[OPTION_VRAM_STRICT], "0") == 0)
		forget(options, OPTION_VRAM_STRICT);
	if (options->value[OPTION_VRAM_STRICT] != NULL && options->value[OPTION_VRAM] == NULL) {
		if (!options->preset[OPTION_VRAM_STRICT])
			return fail(error, "--%s needs a size; add --juice-vram=SIZE",
				    option_texts[OPTION_VRAM_STRICT].name);
		forget(options, OPTION_VRAM_STRICT);
	}
	return true;
}

void options_clear(struct options *options)
{
	for (enum option option = 0; option < OPTION_COUNT; option++)
		forget(options, option);
}
