/*
 * The connection of this process to its session's agent.
 *
 * One per process: made when the library is loaded, held until the process is gone. A child made by fork() makes its
 * own; a program that the process turns into by exec() is handed the open connection, because for the agent, too, it is
 * the same process. Nothing waits for the agent but the GPU's calls: the request to connect is sent and never answered.
 *
 * No thread watches it. The kernel sends SIGURG when the agent says something or closes (F_SETSIG): a signal that is
 * ignored where nobody handles it, so that a program that resets its handlers is not harmed.
 */
#ifndef JUICE_CONNECTION_H
#define JUICE_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>

#include "settings.h"

/* The variable by which a program is told that this session's agent was found gone, so that it is said once. */
#define GONE_VARIABLE "JUICE_AGENT_GONE"

/* Takes over the connection that was open before exec(), or makes one. `known_gone`: say nothing, and do not wait. */
void connection_begin(const struct settings *settings, const char *program, bool known_gone);

/* In the child, after fork(). */
void connection_forked(void);

/* Before exec() of `path`. `same_session`: the new program gets this library and this session, and so the connection. */
void connection_before_exec(const char *path, bool same_session);

/* exec() has failed. */
void connection_exec_failed(void);

/* The process ends with this exit code. May be said again; the last one counts. */
void connection_exit(int code);

/* The agent has said something, or closed. For signal handlers. */
void connection_listen(void);

/* Whether `fd` is the connection. */
bool connection_is(int fd);

/* Whether the agent can be asked. */
bool connection_open(void);

/* Whether there was an agent, and it is gone or has refused. */
bool connection_lost(void);

/*
 * Asks the agent: sends `line` (with its newline) and returns its answer, one line without the newline, in memory that
 * the caller frees. NULL when the agent is gone or silent. Safe in several threads.
 */
char *connection_ask(const char *line);

#endif
