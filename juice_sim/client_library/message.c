#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
	bool open;
	dev_t device;
	ino_t inode;
} standard_error;

void message_begin(void)
{
	struct stat status;

	standard_error.open = fstat(STDERR_FILENO, &status) == 0;
	if (standard_error.open) {
		standard_error.device = status.st_dev;
		standard_error.inode = status.st_ino;
	}
}

void message_say(const char *part, ...)
{
	const int error = errno;
	char line[1024] = "juice: ";
	size_t used = strlen(line);
	struct stat status;
	va_list parts;

	if (!standard_error.open || fstat(STDERR_FILENO, &status) != 0 || status.st_dev != standard_error.device ||
	    status.st_ino != standard_error.inode)
		return;
	va_start(parts, part);
	for (; part != NULL; part = va_arg(parts, const char *)) {
		for (; *part != '\0' && used < sizeof line - 1; part++)
			line[used++] = (char)(*part == '\n' || *part == '\r' ? ' ' : *part);
	}
	va_end(parts);
	line[used++] = '\n';
	/* Nobody can be told that it could not be written. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = error;
	errno = error;
}
