/* The session file: the vectors that Python and C share, and what may lie at its path instead of one. */
#include "check.h"
#include "session_file.h"

#include "cases.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
	enum session_fault fault;
	const char *word;
} words[] = {
	{SESSION_EMPTY, "empty"},	  {SESSION_NULL, "null"},	{SESSION_OVERSIZE, "oversize"},
	{SESSION_MAGIC, "magic"},	  {SESSION_VERSION, "version"}, {SESSION_TRUNCATED, "truncated"},
	{SESSION_SEALED, "sealed"},	  {SESSION_MALFORMED, "malformed"},
};

static const char *word_of(enum session_fault fault)
{
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		if (words[i].fault == fault)
			return words[i].word;
	}
	return fault == SESSION_FINE ? "fine" : "another";
}

static const char *value_in(const struct session *session, const char *name)
{
	static char number[32];
	const struct {
		const char *name, *value;
	} known[] = {
		{"verdict", session->granted ? "granted" : "denied"},
		{"reason", session->reason},
		{"session_id", session->id},
		{"pool", session->pool},
		{"pool_id", session->pool_id},
		{"address", session->address},
		{"gpu_indexes", session->gpu_indexes},
		{"gpu_names", session->gpu_names},
		{"vram_bytes", session->vram_bytes},
		{"config", session->config},
	};

	if (strcmp(name, "restart_count") == 0 || strcmp(name, "sealed_at") == 0) {
		snprintf(number, sizeof number, "%llu",
			 (unsigned long long)(*name == 'r' ? session->restart_count : session->sealed_at));
		return number;
	}
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (strcmp(known[i].name, name) == 0)
			return known[i].value;
	}
	return NULL;
}

static void check_vectors(void)
{
	(void)vram_cases;
	for (size_t i = 0; i < sizeof session_cases / sizeof *session_cases; i++) {
		const struct session_owner owner = {session_cases[i].cluster, session_cases[i].job_id, session_cases[i].uid};
		const size_t size = session_cases[i].size * session_cases[i].repeat;
		/* Exactly as large as the file, so that AddressSanitizer sees each byte too far. */
		unsigned char *file = malloc(size ? size : 1);
		struct session session;
		enum session_fault fault;

		for (size_t part = 0; part < session_cases[i].repeat; part++)
			memcpy(file + part * session_cases[i].size, session_cases[i].file, session_cases[i].size);
		fault = session_unseal(file, size, (const uint8_t *)session_cases[i].key, &owner, &session);
		free(file);
		CHECK(strcmp(word_of(fault), session_cases[i].error ? session_cases[i].error : "fine") == 0, "%s: %s",
		      session_cases[i].name, word_of(fault));
		for (const struct field *field = session_cases[i].fields; fault == SESSION_FINE && field->name; field++) {
			const char *value = value_in(&session, field->name);

			if (value != NULL)
				CHECK(strcmp(value, field->value) == 0, "%s: %s is '%s'", session_cases[i].name,
				      field->name, value);
		}
		session_clear(&session);
	}
}

static char directory[64], path[128], target[128];
static uint8_t key[SESSION_KEY_SIZE];
static const struct session_owner me = {"c", 7, 1000};

static void write_file(const char *name, const void *data, size_t size, mode_t mode)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size || fchmod(fd, mode) != 0 || close(fd) != 0) {
		perror(name);
		exit(2);
	}
}

static size_t seal(const char *plain, size_t plain_size, uint8_t *file)
{
	const uint8_t bound[] = {'J', 'U', 'I', 'C', 'E', 'S', 'F', 1, 1, 'c', 0, 0, 0,	  0,
				 0,   0,   0,	7,   0,	  0,   0,   0, 0, 0,   3, 0xe8};
	unsigned long long size;

	memcpy(file, "JUICESF\1", 8);
	randombytes_buf(file + 8, 24);
	crypto_aead_xchacha20poly1305_ietf_encrypt(file + 32, &size, (const uint8_t *)plain, plain_size, bound,
						   sizeof bound, NULL, file + 8, key);
	return (size_t)size + 32;
}

static enum session_fault opened(const uid_t *users, size_t count)
{
	struct session session;
	enum session_fault fault = session_open(directory, users, count, key, &me, &session);

	session_clear(&session);
	return fault;
}

static void check_opening(void)
{
	static const char plain[] = "verdict=denied\0restart_count=0\0sealed_at=1\0reason=no";
	uint8_t file[512];
	const uid_t own = geteuid(), other = 12345;
	const size_t size = seal(plain, sizeof plain, file);
	char sessions[128];

	CHECK(opened(&own, 1) == SESSION_MISSING, "no directory");
	CHECK(!session_exists(directory, 7), "no directory");
	snprintf(sessions, sizeof sessions, "%s/sessions", directory);
	mkdir(sessions, 0755);
	CHECK(opened(&own, 1) == SESSION_MISSING, "no file");
	CHECK(!session_exists(directory, 7), "no file");

	write_file(target, file, size, 0644);
	symlink(target, path);
	CHECK(opened(&own, 1) == SESSION_LINK, "a link to a good file");
	CHECK(session_exists(directory, 7), "a link is something");
	unlink(path);
	mkfifo(path, 0644);
	CHECK(opened(&own, 1) == SESSION_TYPE, "a FIFO must not block");
	unlink(path);
	mkdir(path, 0755);
	CHECK(opened(&own, 1) == SESSION_TYPE, "a directory");
	rmdir(path);
	write_file(path, "", 0, 0644);
	CHECK(opened(&own, 1) == SESSION_EMPTY, "an empty file");
	CHECK(truncate(path, 1 << 20) == 0 && opened(&own, 1) == SESSION_OVERSIZE, "a large file");
	write_file(path, file, size, 0644);
	CHECK(opened(&own, 1) == SESSION_FINE, "a good file");
	if (geteuid() == 0) {
		CHECK(chown(path, other, other) == 0 && opened(&own, 1) == SESSION_OWNER, "a file of another user");
		CHECK(opened(&other, 1) == SESSION_FINE, "a file of a user who is trusted");
		CHECK(chown(path, 0, 0) == 0 && opened(&other, 1) == SESSION_FINE, "root is always trusted");
	}
	unlink(path);
	unlink(target);
	rmdir(sessions);
}

static void check_key(void)
{
	uint8_t data[SESSION_KEY_SIZE + 1] = {1, 2, 3}, read_key[SESSION_KEY_SIZE];
	const uid_t own = geteuid();
	char error[SESSION_ERROR_SIZE];

	CHECK(!session_read_key(target, &own, 1, read_key, error) && strstr(error, "cannot be opened"), "%s", error);
	write_file(target, data, SESSION_KEY_SIZE, 0400);
	CHECK(session_read_key(target, &own, 1, read_key, error) && memcmp(read_key, data, SESSION_KEY_SIZE) == 0, "mode 0400");
	write_file(target, data, SESSION_KEY_SIZE, 0600);
	CHECK(session_read_key(target, &own, 1, read_key, error), "mode 0600");
	for (mode_t bit = 1; bit <= 040; bit <<= 1) {
		CHECK(chmod(target, 0600 | bit) == 0 && !session_read_key(target, &own, 1, read_key, error) &&
			      strstr(error, "chmod 0400") != NULL,
		      "mode %o", 0600U | bit);
	}
	unlink(target);
	write_file(target, data, SESSION_KEY_SIZE - 1, 0400);
	CHECK(!session_read_key(target, &own, 1, read_key, error) && strstr(error, "32 bytes"), "31 bytes");
	unlink(target);
	write_file(target, data, SESSION_KEY_SIZE + 1, 0400);
	CHECK(!session_read_key(target, &own, 1, read_key, error) && strstr(error, "32 bytes"), "33 bytes");
	if (geteuid() == 0)
		CHECK(chown(target, 12345, 12345) == 0 && !session_read_key(target, &own, 1, read_key, error) &&
			      strstr(error, "chown root"),
		      "a key of another user");
	unlink(target);
	mkfifo(target, 0600);
	CHECK(!session_read_key(target, &own, 1, read_key, error) && strstr(error, "regular"), "a FIFO must not block");
	unlink(target);
}

int main(void)
{
	if (sodium_init() < 0)
		return 2;
	strcpy(directory, new_directory());
	snprintf(path, sizeof path, "%s/sessions/7.session", directory);
	snprintf(target, sizeof target, "%s/target", directory);
	check_vectors();
	check_opening();
	check_key();
	rmdir(directory);
	return summary("session file");
}
