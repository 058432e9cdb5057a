#include "connection.h"

#include "json.h"
#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/*
 * Where the connection is kept: the new program after exec() finds it there. Well below the usual limit of 1,024, and
 * above what shells use for themselves.
 */
#define PLACE 240

#define CONNECT_MS 2000
#define CONNECT_AGAIN_MS 100 /* to an agent that an earlier program has found gone */
#define ANSWER_MS 10000
#define LONGEST_ANSWER (1 << 20)

#define QUIET O_NONBLOCK
#define SIGNALLED (O_NONBLOCK | O_ASYNC)

static struct {
	struct settings settings;
	char program[128]; /* its name, as it may stand in JSON */
	int fd;
	pid_t owner;
	bool lost;
	atomic_bool reading; /* somebody reads from the agent: one at a time, and a signal may come at any moment */
	char heard[1024]; /* what the agent has said unasked */
	size_t heard_used;
	pthread_mutex_t lock;
} connection = {.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Not so in the child of vfork() or of a bare clone(), which has our memory or a copy of it. */
static bool ours(void)
{
	return connection.fd >= 0 && connection.owner == getpid();
}

/* Programs that close all descriptors close ours too, and may then open something else under its number. */
static bool still_ours(void)
{
	return ours() && fcntl(connection.fd, F_GETSIG) == SIGURG && fcntl(connection.fd, F_GETOWN) == connection.owner;
}

static void lose(void)
{
	if (connection.fd >= 0)
		close(connection.fd);
	connection.fd = -1;
	connection.lost = true;
}

static bool send_line(const char *line, size_t length)
{
	while (length > 0) {
		ssize_t sent = send(connection.fd, line, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EAGAIN) {
			struct pollfd ready = {.fd = connection.fd, .events = POLLOUT};

			if (poll(&ready, 1, ANSWER_MS) <= 0 && errno != EINTR)
				return false;
			continue;
		}
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return false;
		line += sent;
		length -= (size_t)sent;
	}
	return true;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until the connection can be read or written; false when that takes too long. */
static bool await(int fd, short events, long until)
{
	for (;;) {
		struct pollfd ready = {.fd = fd, .events = events};
		long left = until - now_ms();
		int rc = poll(&ready, 1, left > 0 ? (int)left : 0);

		if (rc > 0)
			return true;
		if (rc == 0 || errno != EINTR)
			return false;
	}
}

/* 0 or an errno. */
static int reach(int fd, long wait_ms)
{
	int error = 0;
	socklen_t size = sizeof error;

	if (connect(fd, (const struct sockaddr *)&connection.settings.agent, connection.settings.agent_size) == 0)
		return 0;
	if (errno != EINPROGRESS && errno != EINTR)
		return errno;
	if (!await(fd, POLLOUT, now_ms() + wait_ms))
		return ETIMEDOUT;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/* From now on the kernel tells us by signal. */
static bool arm(void)
{
	return fcntl(connection.fd, F_SETOWN, connection.owner) == 0 && fcntl(connection.fd, F_SETSIG, SIGURG) == 0 &&
	       fcntl(connection.fd, F_SETFL, SIGNALLED) == 0;
}

static bool introduce(void)
{
	char body[384], request[1024];
	unsigned char random[16];
	int length, size;

	if (getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
		memset(random, 0, sizeof random);
	length = snprintf(body, sizeof body,
			  "{\"id\":\"%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%08x%04x\",\"pid\":%ld,\"processName\":\"%s\","
			  "\"tellsEnd\":true}",
			  random[0], random[1], random[2], random[3], random[4], random[5], random[6], random[7], random[8],
			  random[9], (unsigned)connection.owner, (unsigned)(random[10] << 8 | random[11]),
			  (long)connection.owner, connection.program);
	size = snprintf(request, sizeof request,
			"POST /v1/connect/session/%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
			"Content-Length: %d\r\n\r\n%s",
			connection.settings.session_id, connection.settings.address, length, body);
	return size > 0 && (size_t)size < sizeof request && send_line(request, (size_t)size);
}

/* Connects and introduces the process; 0 or an errno. Nothing but system calls: it also runs in a child after fork(). */
static int open_connection(long wait_ms)
{
	const int family = connection.settings.agent.ss_family, on = 1;
	int error, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return errno;
	/* Away from the low numbers: a program that was started with its standard input closed shall find it so. */
	connection.fd = fcntl(fd, F_DUPFD_CLOEXEC, PLACE);
	if (connection.fd < 0)
		connection.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
	if (connection.fd < 0)
		return errno;
	connection.owner = getpid();
	connection.heard_used = 0;
	error = reach(connection.fd, wait_ms);
	if (error == 0) {
		setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		setsockopt(connection.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
		if (!introduce() || !arm())
			error = errno ? errno : ECONNRESET;
	}
	if (error != 0)
		lose();
	else
		connection_listen(); /* what came before the signal was armed */
	return error;
}

/* The connection that this very process had before exec(). */
static bool adopt(void)
{
	struct sockaddr_storage peer;
	socklen_t size = sizeof peer;
	char line[192];
	int length;

	memset(&peer, 0, sizeof peer);
	if (fcntl(PLACE, F_GETOWN) != getpid() || fcntl(PLACE, F_GETSIG) != SIGURG ||
	    getpeername(PLACE, (struct sockaddr *)&peer, &size) != 0 || size != connection.settings.agent_size ||
	    memcmp(&peer, &connection.settings.agent, size) != 0 || fcntl(PLACE, F_SETFD, FD_CLOEXEC) != 0)
		return false;
	connection.fd = PLACE;
	connection.owner = getpid();
	length = snprintf(line, sizeof line, "{\"processName\":\"%s\"}\n", connection.program);
	if (!send_line(line, (size_t)length))
		lose();
	else
		connection_listen();
	return true;
}

void connection_begin(const struct settings *settings, const char *program, bool known_gone)
{
	int error;

	connection.settings = *settings;
	json_escape(program, connection.program, sizeof connection.program);
	if (adopt())
		return;
	error = open_connection(known_gone ? CONNECT_AGAIN_MS : CONNECT_MS);
	if (error != 0 && !known_gone)
		message_say("no connection to the agent at ", settings->address, " (", strerror(error),
			    "): the program runs without the GPUs of session ", settings->session_id, NULL);
}

void connection_forked(void)
{
	const int error = errno;

	atomic_store(&connection.reading, false);
	pthread_mutex_init(&connection.lock, NULL);
	if (connection.fd < 0)
		return;
	if (fcntl(connection.fd, F_GETSIG) == SIGURG && fcntl(connection.fd, F_GETOWN) == connection.owner)
		close(connection.fd);
	connection.fd = -1;
	if (open_connection(CONNECT_MS) != 0)
		message_say("no connection to the agent at ", connection.settings.address,
			    " any more: a process runs without the GPUs of session ", connection.settings.session_id, NULL);
	errno = error;
}

void connection_before_exec(const char *path, bool same_session)
{
	const int error = errno;
	const char *slash = strrchr(path, '/');
	char name[128], line[192];
	int length;

	if (still_ours()) {
		json_escape(slash != NULL ? slash + 1 : path, name, sizeof name);
		length = snprintf(line, sizeof line, "{\"exec\":\"%s\"}\n", name);
		send_line(line, (size_t)length);
		if (same_session && connection.fd == PLACE)
			fcntl(PLACE, F_SETFD, 0);
	}
	errno = error;
}

void connection_exec_failed(void)
{
	const int error = errno;
	char line[192];

	if (still_ours()) {
		int length = snprintf(line, sizeof line, "{\"processName\":\"%s\"}\n", connection.program);

		fcntl(connection.fd, F_SETFD, FD_CLOEXEC);
		send_line(line, (size_t)length);
	}
	errno = error;
}

void connection_exit(int code)
{
	const int error = errno;
	char line[64];

	if (still_ours()) {
		int length = snprintf(line, sizeof line, "{\"exitCode\":%d}\n", code & 0xff);

		send_line(line, (size_t)length);
	}
	errno = error;
}

static bool heard(const char *what)
{
	return memmem(connection.heard, connection.heard_used, what, strlen(what)) != NULL;
}

/* Ends the program as the real client does: at once, without a chance to go on. */
static void end_program(void)
{
	message_say("session ", connection.settings.session_id, " has been cancelled; its programs are ended", NULL);
	kill(connection.owner, SIGKILL);
}

/* The agent's answer is an HTTP one only when it does not take the process. */
static void refused(void)
{
	char reason[256] = "no reason given";
	const char *body = memmem(connection.heard, connection.heard_used, "\r\n\r\n", 4);
	struct json object, value;

	if (body != NULL &&
	    json_value(body + 4, connection.heard_used - (size_t)(body + 4 - connection.heard), &object) &&
	    json_member(object, "message", &value))
		json_string(value, reason, sizeof reason);
	message_say("the agent at ", connection.settings.address, " does not take this program (", reason,
		    "): it runs without GPUs", NULL);
	lose();
}

/* Takes note of `connection.heard`; `ended`: there will be no more of it. */
static void understand(bool ended)
{
	if (heard("\"canceled\":true"))
		end_program();
	else if (connection.heard_used >= 7 && memcmp(connection.heard, "HTTP/1.", 7) == 0) {
		if (ended || heard("}"))
			refused();
	} else if (ended) {
		message_say("the agent at ", connection.settings.address,
			    " is gone: the program goes on without the GPUs of session ", connection.settings.session_id, NULL);
		lose();
	}
}

/* Reads what is there. False when nothing more will come. */
static bool read_some(void)
{
	for (;;) {
		ssize_t got;

		if (connection.heard_used == sizeof connection.heard)
			connection.heard_used = 0; /* nothing that an agent says unasked is that long */
		got = recv(connection.fd, connection.heard + connection.heard_used,
			   sizeof connection.heard - connection.heard_used, MSG_DONTWAIT);
		if (got > 0)
			connection.heard_used += (size_t)got;
		else if (got == 0 || (errno != EAGAIN && errno != EINTR))
			return false;
		else if (errno == EAGAIN)
			return true;
	}
}

static bool readable(void)
{
	struct pollfd ready = {.fd = connection.fd, .events = POLLIN};

	return connection.fd >= 0 && poll(&ready, 1, 0) > 0;
}

void connection_listen(void)
{
	const int error = errno;

	do {
		size_t before = connection.heard_used;
		bool more;

		/* Who reads now will look again when done. */
		if (!still_ours() || atomic_exchange(&connection.reading, true))
			break;
		more = read_some();
		if (!more || connection.heard_used != before)
			understand(!more);
		atomic_store(&connection.reading, false);
	} while (readable());
	errno = error;
}

bool connection_is(int fd)
{
	return fd >= 0 && fd == connection.fd;
}

bool connection_open(void)
{
	return ours();
}

bool connection_lost(void)
{
	return connection.lost;
}

/* One line of the agent's in answer to a request; NULL when it is gone or silent. */
static char *read_answer(void)
{
	const long until = now_ms() + ANSWER_MS;
	size_t used = 0, size = 1024;
	char *answer = malloc(size);

	while (answer != NULL && used < LONGEST_ANSWER) {
		ssize_t got;
		char *newline;

		if (used + 1 == size) {
			char *more = realloc(answer, size * 2);

			if (more == NULL)
				break;
			answer = more;
			size *= 2;
		}
		got = recv(connection.fd, answer + used, size - used - 1, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN && await(connection.fd, POLLIN, until))
			continue;
		if (got <= 0) {
			/* The handler of the signal, too, would want to know what came instead. */
			memcpy(connection.heard, answer, used < sizeof connection.heard ? used : sizeof connection.heard);
			connection.heard_used = used < sizeof connection.heard ? used : sizeof connection.heard;
			understand(true);
			break;
		}
		used += (size_t)got;
		answer[used] = '\0';
		newline = memchr(answer, '\n', used);
		if (newline != NULL && answer[0] == '{' && strncmp(answer, "{\"canceled\":true", 16) != 0) {
			*newline = '\0';
			return answer;
		}
		if (newline != NULL && answer[0] == '{')
			end_program();
	}
	free(answer);
	return NULL;
}

char *connection_ask(const char *line)
{
	char *answer = NULL;

	pthread_mutex_lock(&connection.lock);
	connection_listen();
	while (still_ours() && atomic_exchange(&connection.reading, true))
		sched_yield(); /* another thread handles the signal */
	if (still_ours()) {
		fcntl(connection.fd, F_SETFL, QUIET); /* no signal for an answer: it would interrupt other threads */
		if (send_line(line, strlen(line)))
			answer = read_answer();
		if (connection.fd >= 0)
			fcntl(connection.fd, F_SETFL, SIGNALLED);
		atomic_store(&connection.reading, false);
		connection_listen();
	}
	pthread_mutex_unlock(&connection.lock);
	return answer;
}
