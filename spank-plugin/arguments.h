/*
 * What plugstack.conf says behind the plugin's name:
 *
 *   required juice.so JUICE STATE_DIR [key=FILE] [wait=SECONDS] [owner=USER]
 *
 * JUICE is the path of the juice command, beside which libjuicejuda.so lies; STATE_DIR is shared by all nodes.
 */
#ifndef JUICE_ARGUMENTS_H
#define JUICE_ARGUMENTS_H

#include <stdbool.h>

#define ARGUMENTS_DEFAULT_KEY "/etc/juice/session.key"
#define ARGUMENTS_DEFAULT_WAIT 60
#define ARGUMENTS_MAX_WAIT 3600
#define ARGUMENTS_ERROR_SIZE 512

struct arguments {
	const char *juice;     /* NULL when missing or wrong */
	const char *state_dir; /* likewise */
	const char *key;
	const char *owner;     /* NULL when not given */
	unsigned wait;         /* seconds */
};

/*
 * The texts stay those of `argv`. Each thing that is wrong goes to `complain` as one line; the rest is taken, so that
 * a typing error in one argument does not take the whole cluster down.
 */
void arguments_parse(struct arguments *arguments, int argc, char *const argv[], void (*complain)(const char *line));

/* True when jobs can use the plugin: both paths are known. */
bool arguments_are_complete(const struct arguments *arguments);

#endif
