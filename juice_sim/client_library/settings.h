/* What JUICE_CFG_OVERRIDE says: which session, and where its agent is. */
#ifndef JUICE_SETTINGS_H
#define JUICE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define SETTINGS_VARIABLE "JUICE_CFG_OVERRIDE"

struct settings {
	const char *text;      /* the variable's value */
	char session_id[129];
	char address[320];     /* host:port or [host]:port, as given */
	struct sockaddr_storage agent;
	socklen_t agent_size;
};

enum settings_verdict {
	SETTINGS_NONE,    /* the variable is not set, or names no session: there is nothing to do */
	SETTINGS_FINE,
	SETTINGS_INVALID, /* and `error` says why */
};

/* `error` has room for 256 bytes. May ask the resolver when the agent's address is a name. */
enum settings_verdict settings_read(const char *text, struct settings *settings, char error[256]);

#endif
