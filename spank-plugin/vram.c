#include "vram.h"

#include "text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct unit {
	const char *suffix;
	uint64_t bytes;
} units[] = {
	{"B", 1},
	{"KB", UINT64_C(1000)},
	{"MB", UINT64_C(1000000)},
	{"GB", UINT64_C(1000000000)},
	{"TB", UINT64_C(1000000000000)},
	{"KiB", UINT64_C(1) << 10},
	{"MiB", UINT64_C(1) << 20},
	{"GiB", UINT64_C(1) << 30},
	{"TiB", UINT64_C(1) << 40},
};

/* isdigit() depends on the locale; sizes do not. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static size_t span(const char *text, bool (*belongs)(char))
{
	size_t length = 0;

	while (belongs(text[length]))
		length++;
	return length;
}

static bool is_blank(const char *text)
{
	return text[strspn(text, " \t\n\v\f\r")] == '\0';
}

/* The unit that `suffix` names; 0 when there is none. An empty suffix means GiB. */
static uint64_t unit_of(const char *suffix)
{
	if (*suffix == '\0')
		suffix = "GiB";
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (text_same(suffix, units[i].suffix))
			return units[i].bytes;
	}
	return 0;
}

/* digits * unit, or false when that is more than 2^63-1. */
static bool whole_part(const char *digits, size_t count, uint64_t unit, uint64_t *bytes)
{
	const uint64_t limit = (uint64_t)INT64_MAX / unit;
	uint64_t number = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t digit = (uint64_t)(digits[i] - '0');

		if (number > (limit - digit) / 10)
			return false;
		number = number * 10 + digit;
	}
	*bytes = number * unit;
	return true;
}

/*
 * The whole bytes in 0.digits * unit, exactly: by long multiplication from the last digit, because a double has not
 * the digits for it. floor((d * unit + floor(x)) / 10) is floor((d * unit + x) / 10), as d * unit is whole.
 */
static uint64_t fraction_part(const char *digits, size_t count, uint64_t unit)
{
	uint64_t bytes = 0;

	while (count-- > 0)
		bytes = ((uint64_t)(digits[count] - '0') * unit + bytes) / 10;
	return bytes;
}

static bool refuse(char reason[VRAM_REASON_SIZE], const char *what)
{
	snprintf(reason, VRAM_REASON_SIZE, "%s", what);
	return false;
}

bool vram_parse(const char *text, uint64_t *bytes, char reason[VRAM_REASON_SIZE])
{
	const char *fraction = "", *suffix;
	size_t whole_digits, fraction_digits = 0;
	uint64_t unit, size, rest;

	if (is_blank(text))
		return refuse(reason, "is empty");
	if (strlen(text) > VRAM_MAX_LENGTH)
		return refuse(reason, "is longer than 64 characters");

	whole_digits = span(text, is_digit);
	suffix = text + whole_digits;
	if (*suffix == '.') {
		fraction = suffix + 1;
		fraction_digits = span(fraction, is_digit);
		if (fraction_digits == 0)
			return refuse(reason, "is not a size");
		suffix = fraction + fraction_digits;
	}
	if (*suffix == ' ' && is_letter(suffix[1]))
		suffix++;
	if (whole_digits == 0 || suffix[span(suffix, is_letter)] != '\0')
		return refuse(reason, "is not a size");

	unit = unit_of(suffix);
	if (unit == 0) {
		snprintf(reason, VRAM_REASON_SIZE, "has the unknown suffix '%s'", suffix);
		return false;
	}
	rest = fraction_part(fraction, fraction_digits, unit);
	if (!whole_part(text, whole_digits, unit, &size) || size > (uint64_t)INT64_MAX - rest)
		return refuse(reason, "is more than 2^63-1 bytes");
	if (size + rest == 0)
		return refuse(reason, "is less than one byte");
	*bytes = size + rest;
	return true;
}
