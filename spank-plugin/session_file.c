#include "session_file.h"

#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "JUICESF"
#define VERSION 1
#define MAGIC_SIZE 8
#define NONCE_SIZE crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define TAG_SIZE crypto_aead_xchacha20poly1305_ietf_ABYTES
#define HEAD_SIZE (MAGIC_SIZE + NONCE_SIZE)
#define CLUSTER_MAX 255

_Static_assert(HEAD_SIZE == 32 && TAG_SIZE == 16 && SESSION_KEY_SIZE == crypto_aead_xchacha20poly1305_ietf_KEYBYTES,
	       "the format is fixed, whatever libsodium calls its sizes");

static void put_number(uint8_t *at, uint64_t number)
{
	for (int shift = 56; shift >= 0; shift -= 8)
		*at++ = (uint8_t)(number >> shift);
}

/* Writes the associated data; returns its length, 0 when the cluster's name is too long. */
static size_t associated_data(const struct session_owner *owner, uint8_t data[MAGIC_SIZE + 1 + CLUSTER_MAX + 16])
{
	const size_t name = strlen(owner->cluster);

	if (name > CLUSTER_MAX)
		return 0;
	memcpy(data, MAGIC, MAGIC_SIZE - 1);
	data[MAGIC_SIZE - 1] = VERSION;
	data[MAGIC_SIZE] = (uint8_t)name;
	memcpy(data + MAGIC_SIZE + 1, owner->cluster, name);
	put_number(data + MAGIC_SIZE + 1 + name, owner->job_id);
	put_number(data + MAGIC_SIZE + 1 + name + 8, owner->user_id);
	return MAGIC_SIZE + 1 + name + 16;
}

static bool is_null(const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (data[i] != 0)
			return false;
	}
	return true;
}

static enum session_fault check_head(const uint8_t *data, size_t size)
{
	const size_t magic = size < MAGIC_SIZE - 1 ? size : MAGIC_SIZE - 1;

	if (size == 0)
		return SESSION_EMPTY;
	if (size > SESSION_FILE_MAX)
		return SESSION_OVERSIZE;
	if (is_null(data, size))
		return SESSION_NULL;
	if (memcmp(data, MAGIC, magic) != 0)
		return SESSION_MAGIC;
	if (size >= MAGIC_SIZE && data[MAGIC_SIZE - 1] != VERSION)
		return SESSION_VERSION;
	if (size < HEAD_SIZE + TAG_SIZE)
		return SESSION_TRUNCATED;
	return SESSION_FINE;
}

static bool parse_number(const char *text, uint64_t *number)
{
	*number = 0;
	if (*text == '\0')
		return false;
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9' || *number > (UINT64_MAX - 9) / 10)
			return false;
		*number = *number * 10 + (uint64_t)(*text - '0');
	}
	return true;
}

/* How many items a list of whole numbers has ("0,3"); 0 when it is none. */
static unsigned count_numbers(const char *list)
{
	unsigned count = 0;

	for (;;) {
		size_t digits = strspn(list, "0123456789");

		if (digits == 0)
			return 0;
		count++;
		list += digits;
		if (*list == '\0')
			return count;
		if (*list++ != ',')
			return 0;
	}
}

struct records {
	const char *verdict, *restart_count, *sealed_at;
};

static const char **slot_of(struct session *session, struct records *records, const char *name, size_t length)
{
	const struct {
		const char *name;
		const char **slot;
	} known[] = {
		{"verdict", &records->verdict},
		{"restart_count", &records->restart_count},
		{"sealed_at", &records->sealed_at},
		{"reason", &session->reason},
		{"session_id", &session->id},
		{"pool", &session->pool},
		{"pool_id", &session->pool_id},
		{"address", &session->address},
		{"gpu_indexes", &session->gpu_indexes},
		{"gpu_names", &session->gpu_names},
		{"vram_bytes", &session->vram_bytes},
		{"config", &session->config},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0)
			return known[i].slot;
	}
	return NULL;
}

/* Splits session->plain into records and points at their values. False when it breaks the form. */
static bool parse_records(struct session *session, struct records *records)
{
	const char *at = session->plain, *end = session->plain + session->plain_size;

	if (at == end || end[-1] != '\0')
		return false;
	while (at < end) {
		const char *mark = strchr(at, '=');
		const char **slot;

		if (mark == NULL || !text_is_utf8(at))
			return false;
		slot = slot_of(session, records, at, (size_t)(mark - at));
		if (slot != NULL) {
			if (*slot != NULL) /* a name given twice: which of them would count? */
				return false;
			*slot = mark + 1;
		} /* names of later versions are passed over */
		at += strlen(at) + 1;
	}
	return true;
}

static bool is_complete(struct session *session, const struct records *records)
{
	if (records->verdict == NULL || records->restart_count == NULL || records->sealed_at == NULL)
		return false;
	if (!parse_number(records->restart_count, &session->restart_count) ||
	    !parse_number(records->sealed_at, &session->sealed_at))
		return false;
	if (strcmp(records->verdict, "denied") == 0)
		return session->reason != NULL;
	if (strcmp(records->verdict, "granted") != 0)
		return false;
	session->granted = true;
	session->reason = NULL;
	if (session->id == NULL || session->pool == NULL || session->pool_id == NULL || session->address == NULL ||
	    session->gpu_indexes == NULL || session->gpu_names == NULL || session->vram_bytes == NULL ||
	    session->config == NULL)
		return false;
	session->gpus = count_numbers(session->gpu_indexes);
	return session->gpus > 0;
}

enum session_fault session_unseal(const uint8_t *data, size_t size, const uint8_t key[SESSION_KEY_SIZE],
				  const struct session_owner *owner, struct session *session)
{
	uint8_t bound[MAGIC_SIZE + 1 + CLUSTER_MAX + 16];
	struct records records = {NULL, NULL, NULL};
	enum session_fault fault = check_head(data, size);
	unsigned long long plain_size = 0;
	size_t bound_size;

	memset(session, 0, sizeof *session);
	if (fault != SESSION_FINE)
		return fault;
	bound_size = associated_data(owner, bound);
	if (bound_size == 0)
		return SESSION_SEALED;

	session->plain_size = size - HEAD_SIZE - TAG_SIZE;
	session->plain = malloc(session->plain_size + 1);
	if (session->plain == NULL)
		return SESSION_UNREADABLE;
	if (crypto_aead_xchacha20poly1305_ietf_decrypt((unsigned char *)session->plain, &plain_size, NULL,
						       data + HEAD_SIZE, size - HEAD_SIZE, bound, bound_size,
						       data + MAGIC_SIZE, key) != 0)
		fault = SESSION_SEALED;
	else if (!parse_records(session, &records) || !is_complete(session, &records))
		fault = SESSION_MALFORMED;
	if (fault != SESSION_FINE)
		session_clear(session);
	return fault;
}

static bool is_one_of(uid_t uid, const uid_t *users, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (users[i] == uid)
			return true;
	}
	return uid == 0;
}

/* Reads at most `limit` bytes; the number read, or -1. */
static ssize_t read_up_to(int fd, uint8_t *data, size_t limit)
{
	size_t size = 0;

	while (size < limit) {
		ssize_t got = read(fd, data + size, limit - size);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		size += (size_t)got;
	}
	return (ssize_t)size;
}

/*
 * Opens the directory anew each time: opening is what makes an NFS client ask the server whether its cached entries,
 * the missing ones included, still hold.
 */
static int open_directory(const char *state_dir)
{
	char path[4096];

	if (snprintf(path, sizeof path, "%s/sessions", state_dir) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static enum session_fault open_file(const char *state_dir, uint64_t job_id, int *fd)
{
	char name[40];
	int directory = open_directory(state_dir);

	if (directory < 0)
		return errno == ENOENT || errno == ESTALE ? SESSION_MISSING : SESSION_UNREADABLE;
	snprintf(name, sizeof name, "%" PRIu64 ".session", job_id);
	*fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (*fd < 0) {
		int reason = errno;

		close(directory);
		errno = reason;
		if (reason == ENOENT || reason == ESTALE)
			return SESSION_MISSING;
		return reason == ELOOP ? SESSION_LINK : reason == ENXIO ? SESSION_TYPE : SESSION_UNREADABLE;
	}
	close(directory);
	return SESSION_FINE;
}

enum session_fault session_open(const char *state_dir, const uid_t *users, size_t user_count,
				const uint8_t key[SESSION_KEY_SIZE], const struct session_owner *owner,
				struct session *session)
{
	enum session_fault fault;
	struct stat found;
	uint8_t *data = NULL;
	ssize_t size;
	int fd = -1;

	memset(session, 0, sizeof *session);
	fault = open_file(state_dir, owner->job_id, &fd);
	if (fault != SESSION_FINE)
		return fault;

	fault = SESSION_UNREADABLE;
	if (fstat(fd, &found) != 0)
		goto out;
	fault = SESSION_TYPE;
	if (!S_ISREG(found.st_mode))
		goto out;
	fault = SESSION_OWNER;
	if (!is_one_of(found.st_uid, users, user_count))
		goto out;
	fault = SESSION_OVERSIZE;
	if (found.st_size > SESSION_FILE_MAX)
		goto out;

	fault = SESSION_UNREADABLE;
	data = malloc(SESSION_FILE_MAX + 1); /* one more: a file that grew meanwhile is seen to be too long */
	if (data == NULL)
		goto out;
	size = read_up_to(fd, data, SESSION_FILE_MAX + 1);
	if (size < 0)
		goto out;
	fault = session_unseal(data, (size_t)size, key, owner, session);
out:
	free(data);
	close(fd);
	return fault;
}

bool session_exists(const char *state_dir, uint64_t job_id)
{
	char name[40];
	struct stat found;
	int directory = open_directory(state_dir);
	bool exists;

	if (directory < 0)
		return false;
	snprintf(name, sizeof name, "%" PRIu64 ".session", job_id);
	exists = fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) == 0;
	close(directory);
	return exists;
}

const char *session_fault_text(enum session_fault fault)
{
	switch (fault) {
	case SESSION_FINE:
		return "is fine";
	case SESSION_MISSING:
		return "does not exist";
	case SESSION_LINK:
		return "is a symbolic link, which is never followed";
	case SESSION_TYPE:
		return "is not a regular file";
	case SESSION_OWNER:
		return "belongs to a user who may not write session files; accepted: root, SlurmUser, and owner= of plugstack.conf";
	case SESSION_UNREADABLE:
		return "cannot be read";
	case SESSION_EMPTY:
		return "is empty (was there a power cut?)";
	case SESSION_NULL:
		return "holds NUL bytes only (was there a power cut?)";
	case SESSION_OVERSIZE:
		return "is longer than 65536 bytes";
	case SESSION_MAGIC:
		return "is not a session file";
	case SESSION_VERSION:
		return "has a format version that this plugin does not know; update the plugin or the hooks";
	case SESSION_TRUNCATED:
		return "is cut off";
	case SESSION_SEALED:
		return "does not open: it was sealed with another key, or for another job, user or cluster, or it is damaged";
	case SESSION_MALFORMED:
		return "opens, but its records are malformed";
	}
	return "has an unknown fault";
}

bool session_fault_passes(enum session_fault fault)
{
	return fault == SESSION_MISSING || fault == SESSION_EMPTY || fault == SESSION_NULL || fault == SESSION_TRUNCATED;
}

void session_clear(struct session *session)
{
	if (session->plain != NULL) {
		sodium_memzero(session->plain, session->plain_size);
		free(session->plain);
	}
	memset(session, 0, sizeof *session);
}

bool session_read_key(const char *path, const uid_t *users, size_t user_count, uint8_t key[SESSION_KEY_SIZE],
		      char error[SESSION_ERROR_SIZE])
{
	uint8_t data[SESSION_KEY_SIZE + 1];
	struct stat found;
	ssize_t size;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	bool good = false;

	if (fd < 0) {
		snprintf(error, SESSION_ERROR_SIZE, "key file %s cannot be opened: %s; copy it from the slurmctld host", path,
			 strerror(errno));
		return false;
	}
	if (fstat(fd, &found) != 0)
		snprintf(error, SESSION_ERROR_SIZE, "key file %s: %s", path, strerror(errno));
	else if (!S_ISREG(found.st_mode))
		snprintf(error, SESSION_ERROR_SIZE, "key file %s is not a regular file", path);
	else if (!is_one_of(found.st_uid, users, user_count))
		snprintf(error, SESSION_ERROR_SIZE, "key file %s belongs to user %lu; mend it with: chown root %s", path,
			 (unsigned long)found.st_uid, path);
	else if ((found.st_mode & 077) != 0)
		snprintf(error, SESSION_ERROR_SIZE, "key file %s has mode %04o; mend it with: chmod 0400 %s", path,
			 (unsigned)found.st_mode & 07777, path);
	else {
		size = read_up_to(fd, data, sizeof data);
		if (size < 0)
			snprintf(error, SESSION_ERROR_SIZE, "key file %s cannot be read: %s", path, strerror(errno));
		else if (size != SESSION_KEY_SIZE)
			snprintf(error, SESSION_ERROR_SIZE,
				 "key file %s has not exactly 32 bytes; copy it from the slurmctld host", path);
		else {
			memcpy(key, data, SESSION_KEY_SIZE);
			good = true;
		}
		sodium_memzero(data, sizeof data);
	}
	close(fd);
	return good;
}
