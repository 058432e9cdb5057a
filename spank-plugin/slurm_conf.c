#include "slurm_conf.h"

#include "text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

#define INCLUDE_DEPTH 4

static void keep(char to[256], const char *from, size_t length)
{
	if (length > 255)
		length = 255;
	memcpy(to, from, length);
	to[length] = '\0';
}

/* A '#' starts a comment unless it is escaped. */
static void cut_comment(char *line)
{
	for (char *at = line; *at != '\0'; at++) {
		if (*at == '#' && (at == line || at[-1] != '\\')) {
			*at = '\0';
			return;
		}
	}
}

/* Takes the key=value pairs of one line; values may be quoted. */
static void take_pairs(const char *line, struct slurm_conf *conf)
{
	while (*line != '\0') {
		const char *value;
		char key[16] = "";
		size_t key_length, length;

		line += strspn(line, " \t\r\n");
		key_length = strcspn(line, "= \t\r\n");
		if (key_length < sizeof key)
			memcpy(key, line, key_length);
		line += key_length;
		line += strspn(line, " \t");
		if (*line != '=')
			continue;
		line++;
		line += strspn(line, " \t");
		if (*line == '"') {
			value = ++line;
			length = strcspn(line, "\"\r\n");
			line += length + (line[length] == '"');
		} else {
			value = line;
			length = strcspn(line, " \t\r\n");
			line += length;
		}
		if (text_same(key, "ClusterName"))
			keep(conf->cluster, value, length);
		else if (text_same(key, "SlurmUser"))
			keep(conf->user, value, length);
	}
}

static bool read_file(const char *path, struct slurm_conf *conf, int depth);

/* "Include FILE": true when `line` was one. Relative names are beside the including file. */
static bool take_include(const char *line, const char *path, struct slurm_conf *conf, int depth)
{
	const char *name = line + strspn(line, " \t"), *slash = strrchr(path, '/');
	char included[4096];
	size_t length;
	int directory;

	if (strncasecmp(name, "include", 7) != 0 || (name[7] != ' ' && name[7] != '\t'))
		return false;
	name += 7;
	name += strspn(name, " \t");
	length = strcspn(name, " \t\r\n");
	directory = *name == '/' || slash == NULL ? 0 : (int)(slash + 1 - path);
	if (depth < INCLUDE_DEPTH && length > 0 &&
	    snprintf(included, sizeof included, "%.*s%.*s", directory, path, (int)length, name) < (int)sizeof included)
		(void)read_file(included, conf, depth + 1); /* what is missing there, Slurm itself complains about */
	return true;
}

static bool read_file(const char *path, struct slurm_conf *conf, int depth)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t room = 0;

	if (file == NULL)
		return false;
	while (getline(&line, &room, file) >= 0) {
		cut_comment(line);
		if (!take_include(line, path, conf, depth))
			take_pairs(line, conf);
	}
	free(line);
	fclose(file);
	return true;
}

bool slurm_conf_read(const char *path, struct slurm_conf *conf)
{
	memset(conf, 0, sizeof *conf);
	strcpy(conf->user, "root"); /* NOLINT: it fits */
	if (!read_file(path, conf, 0))
		return false;
	for (char *c = conf->cluster; *c != '\0'; c++)
		*c = text_lower(*c);
	return conf->cluster[0] != '\0';
}
