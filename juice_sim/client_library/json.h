/* Reads values out of JSON text where it lies: no allocation, no recursion, nothing that a signal handler may not do. */
#ifndef JUICE_JSON_H
#define JUICE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
	const char *at, *end; /* the text of one value */
};

/* The first value in `text`. False when there is none that is whole. */
bool json_value(const char *text, size_t length, struct json *value);

/* Member `name` of an object; the first one when it is there twice. */
bool json_member(struct json object, const char *name, struct json *value);

/* Element `index` of an array, from 0. */
bool json_element(struct json array, size_t index, struct json *value);

/* The text of a string, NUL-terminated, escapes resolved (those beyond ASCII as `?`). False when it does not fit. */
bool json_string(struct json value, char *text, size_t size);

/* A whole number. */
bool json_integer(struct json value, int64_t *number);

bool json_is_true(struct json value);

/* Writes `text` as the inside of a JSON string: what would need an escape becomes `?`. Cut off at `size` - 1 bytes. */
void json_escape(const char *text, char *escaped, size_t size);

#endif
