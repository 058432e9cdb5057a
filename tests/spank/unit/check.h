/* The little that the unit tests need: checks that go on and are counted, a summary, temporary directories. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks, failures;

#define CHECK(holds, ...)                                                                                              \
	do {                                                                                                           \
		checks++;                                                                                              \
		if (!(holds)) {                                                                                        \
			failures++;                                                                                    \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #holds);                                    \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
		}                                                                                                      \
	} while (0)

static inline int summary(const char *what)
{
	printf("%s: %d checks, %d failures\n", what, checks, failures);
	return failures != 0;
}

/* A new directory; the caller removes what it puts there, then the directory. */
static inline const char *new_directory(void)
{
	static char path[64];

	strcpy(path, "/tmp/juice-check-XXXXXX");
	if (mkdtemp(path) == NULL) {
		perror(path);
		exit(2);
	}
	return path;
}

#endif
