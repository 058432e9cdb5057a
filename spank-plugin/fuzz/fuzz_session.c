/*
 * The session-file reader under libFuzzer. The first byte of an input says what the rest is:
 * 0: the bytes of a file, as an attacker could leave them; else: records that get sealed properly first, since nobody
 * guesses a tag, and what lies behind it must stand up to a faulty writer.
 */
#include "session_file.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[SESSION_KEY_SIZE] = {1, 2, 3};
static const struct session_owner owner = {"c", 7, 1000};
static const uint8_t bound[] = {'J', 'U', 'I', 'C', 'E', 'S', 'F', 1, 1, 'c', 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 3, 0xe8};

static enum session_fault open_sealed(const uint8_t *plain, size_t size, struct session *session)
{
	const size_t room = 32 + size + crypto_aead_xchacha20poly1305_ietf_ABYTES;
	uint8_t *file = malloc(room);
	enum session_fault fault;

	memcpy(file, bound, 8); /* the magic bytes */
	memset(file + 8, 9, 24);
	crypto_aead_xchacha20poly1305_ietf_encrypt(file + 32, NULL, plain, size, bound, sizeof bound, NULL, file + 8, key);
	fault = session_unseal(file, room, key, &owner, session);
	free(file);
	if (fault == SESSION_SEALED)
		abort(); /* what was sealed for this job must open */
	return fault;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct session session;
	enum session_fault fault;

	if (sodium_init() < 0 || size == 0)
		return 0;
	if (data[0] == 0)
		fault = session_unseal(data + 1, size - 1, key, &owner, &session);
	else
		fault = open_sealed(data + 1, size - 1, &session);

	if (fault == SESSION_FINE) {
		if (session.granted ? session.gpus == 0 || strlen(session.config) + strlen(session.id) > size
				    : session.reason == NULL || strlen(session.reason) > size)
			abort();
	} else if (session.plain != NULL || session_fault_text(fault) == NULL) {
		abort();
	}
	session_clear(&session);
	return 0;
}
