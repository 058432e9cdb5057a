/* Reads every prefix of its standard input as JSON, in memory that ends where the text ends, and prints what the whole says. */
#include "json.h"
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void look(const char *text, size_t length, bool print)
{
	struct json object, value, item;
	char string[64];
	int64_t number;

	if (!json_value(text, length, &object)) {
		if (print)
			puts("invalid");
		return;
	}
	if (json_member(object, "text", &value) && json_string(value, string, sizeof string) && print)
		printf("text=%s\n", string);
	if (json_member(object, "number", &value) && json_integer(value, &number) && print)
		printf("number=%lld\n", (long long)number);
	if (json_member(object, "yes", &value) && print)
		printf("yes=%d\n", json_is_true(value));
	for (size_t i = 0; json_member(object, "list", &value) && json_element(value, i, &item); i++) {
		if (print)
			printf("item=%.*s\n", (int)(item.end - item.at), item.at);
	}
}

int main(void)
{
	char text[65536], error[256];
	struct settings settings;
	size_t length = fread(text, 1, sizeof text, stdin);

	for (size_t part = 0; part <= length; part++) {
		char *copy = malloc(part + 1);

		memcpy(copy, text, part);
		look(copy, part, part == length);
		copy[part] = '\0';
		settings_read(copy, &settings, error);
		free(copy);
	}
	return 0;
}
