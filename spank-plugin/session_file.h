/*
 * The session file that the prolog seals and the compute node opens. Knows nothing of SPANK.
 *
 *   bytes 0-7    "JUICESF" and the version, 1
 *   bytes 8-31   nonce
 *   bytes 32-    XChaCha20-Poly1305-IETF ciphertext with its tag
 *
 * Associated data: bytes 0-7, the length of the cluster's name in one byte, the name, job id and user id (64 bits each,
 * big endian). So a file opens for its own job, user and cluster only.
 * Plaintext: records name=value, each ended by NUL. tests/vectors/session_file.json holds every reader to the same.
 */
#ifndef JUICE_SESSION_FILE_H
#define JUICE_SESSION_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SESSION_FILE_MAX 65536
#define SESSION_KEY_SIZE 32
/* The longest text that says what is wrong with a file. */
#define SESSION_ERROR_SIZE 512

enum session_fault {
	SESSION_FINE,
	SESSION_MISSING,
	SESSION_LINK,
	SESSION_TYPE,
	SESSION_OWNER,
	SESSION_UNREADABLE,
	SESSION_EMPTY,
	SESSION_NULL,
	SESSION_OVERSIZE,
	SESSION_MAGIC,
	SESSION_VERSION,
	SESSION_TRUNCATED,
	SESSION_SEALED,
	SESSION_MALFORMED,
};

/* What a file must have been sealed for. */
struct session_owner {
	const char *cluster; /* at most 255 bytes */
	uint64_t job_id;
	uint64_t user_id;
};

/* An opened file. The texts point into `plain` and end with session_clear(). */
struct session {
	bool granted;
	uint64_t restart_count;
	uint64_t sealed_at;       /* Unix seconds */
	const char *reason;       /* of a denial; NULL when granted, and then the rest is set */
	const char *id;
	const char *pool;         /* as the user named it */
	const char *pool_id;
	const char *address;      /* of the agent, host:port */
	const char *gpu_indexes;  /* on the agent, comma-separated */
	const char *gpu_names;    /* comma-separated */
	const char *vram_bytes;   /* per GPU, comma-separated */
	const char *config;       /* JSON for JUICE_CFG_OVERRIDE */
	unsigned gpus;            /* how many */
	char *plain;
	size_t plain_size;
};

/* libsodium must have been started. `data` is the whole file; on SESSION_FINE `session` needs session_clear(). */
enum session_fault session_unseal(const uint8_t *data, size_t size, const uint8_t key[SESSION_KEY_SIZE],
				  const struct session_owner *owner, struct session *session);

/*
 * Opens `<state_dir>/sessions/<job id>.session` without following a link and without waiting on a FIFO; it must be a
 * regular file of root or of one of `users`.
 */
enum session_fault session_open(const char *state_dir, const uid_t *users, size_t user_count,
				const uint8_t key[SESSION_KEY_SIZE], const struct session_owner *owner,
				struct session *session);

/* True when `<state_dir>/sessions/<job id>.session` exists, whatever it is. */
bool session_exists(const char *state_dir, uint64_t job_id);

/* What a fault means, for people; ends a sentence that starts with the file's name. */
const char *session_fault_text(enum session_fault fault);

/* True when waiting may mend it: shared file systems show new files late and in pieces. */
bool session_fault_passes(enum session_fault fault);

/* Overwrites and frees what `session` holds. */
void session_clear(struct session *session);

/*
 * Reads the key: a regular file of exactly 32 bytes, of root or one of `users`, that nobody else can read.
 * False, with what is wrong and how to mend it, when it cannot be used.
 */
bool session_read_key(const char *path, const uid_t *users, size_t user_count, uint8_t key[SESSION_KEY_SIZE],
		      char error[SESSION_ERROR_SIZE]);

#endif
