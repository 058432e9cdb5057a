/*
 * What makes the library part of a program that knows nothing of it: loading, fork(), exec(), the end.
 *
 * It must not be noticed: a program that is started with it does what it does without. In particular nothing is
 * printed unless the agent is gone, no descriptor below 3 is taken, no thread is started, and errno is kept.
 */
#include "connection.h"
#include "message.h"
#include "settings.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static struct {
	const char *session; /* "JUICE_CFG_OVERRIDE=..." as it is in the environment */
	char library[4096];  /* our own path */
	char gone[192];      /* "JUICE_AGENT_GONE=session" */
	struct sigaction before;
	int (*execvpe)(const char *, char *const[], char *const[]);
} preload;

/* --- the agent's word -------------------------------------------------------------------------------------------- */

static void on_signal(int number, siginfo_t *info, void *context)
{
	connection_listen();
	if (info->si_code > 0 && connection_is(info->si_fd))
		return;
	/* SIGURG of another socket: for the handler that was there before, if any. */
	if (preload.before.sa_flags & SA_SIGINFO)
		preload.before.sa_sigaction(number, info, context);
	else if (preload.before.sa_handler != SIG_DFL && preload.before.sa_handler != SIG_IGN)
		preload.before.sa_handler(number);
}

static void handle_signal(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};

	sigemptyset(&action.sa_mask);
	sigaction(SIGURG, &action, &preload.before);
}

/* --- the environment --------------------------------------------------------------------------------------------- */

static const char *variable(char *const environment[], const char *name)
{
	const size_t length = strlen(name);

	for (; environment != NULL && *environment != NULL; environment++) {
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return *environment;
	}
	return NULL;
}

/* Where this library lies, as LD_PRELOAD named it. */
static void find_library(void)
{
	Dl_info info;

	if (dladdr((void *)find_library, &info) != 0 && info.dli_fname != NULL &&
	    strlen(info.dli_fname) < sizeof preload.library)
		strcpy(preload.library, info.dli_fname); /* NOLINT: its length was looked at */
}

/* Whether an item of the PATH-like list is `item`. */
static bool lists(const char *list, const char *item, size_t length)
{
	while (*list != '\0') {
		size_t size = strcspn(list, ":");

		if (size == length && memcmp(list, item, length) == 0)
			return true;
		list += size;
		list += *list == ':';
	}
	return false;
}

/* nvidia-smi of the session lies beside the library. It shall be the one that programs in the job find. */
static void find_nvidia_smi(void)
{
	const char *slash = strrchr(preload.library, '/'), *path = getenv("PATH");
	char program[4096 + 16];
	size_t length = slash != NULL ? (size_t)(slash - preload.library) : 0;
	char *changed;

	if (length == 0 || path == NULL || lists(path, preload.library, length))
		return;
	snprintf(program, sizeof program, "%.*s/nvidia-smi", (int)length, preload.library);
	if (access(program, X_OK) != 0)
		return;
	changed = malloc(length + strlen(path) + 2);
	if (changed == NULL)
		return;
	sprintf(changed, "%.*s:%s", (int)length, preload.library, path); /* NOLINT: it fits */
	setenv("PATH", changed, 1);
	free(changed);
}

/* --- loading, fork, end ------------------------------------------------------------------------------------------ */

static void at_exit(int status, void *unused)
{
	(void)unused;
	connection_exit(status);
}

__attribute__((constructor)) static void load(void)
{
	const int error = errno;
	struct settings settings;
	char reason[256];
	const char *gone = getenv(GONE_VARIABLE);

	message_begin();
	switch (settings_read(getenv(SETTINGS_VARIABLE), &settings, reason)) {
	case SETTINGS_NONE:
		break;
	case SETTINGS_INVALID:
		message_say(reason, NULL);
		break;
	case SETTINGS_FINE:
		preload.session = variable(environ, SETTINGS_VARIABLE);
		preload.execvpe = (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execvpe");
		snprintf(preload.gone, sizeof preload.gone, GONE_VARIABLE "=%s", settings.session_id);
		find_library();
		find_nvidia_smi();
		handle_signal();
		pthread_atfork(NULL, NULL, connection_forked);
		on_exit(at_exit, NULL);
		connection_begin(&settings, program_invocation_short_name,
				 gone != NULL && strcmp(gone, settings.session_id) == 0);
		if (connection_lost())
			putenv(preload.gone);
	}
	errno = error;
}

EXPORTED _Noreturn void _exit(int status)
{
	connection_exit(status);
	for (;;)
		syscall(SYS_exit_group, status);
}

EXPORTED _Noreturn void _Exit(int status)
{
	_exit(status);
}

/* --- exec -------------------------------------------------------------------------------------------------------- */

enum how { BY_PATH, BY_SEARCH, BY_DESCRIPTOR };

static size_t count(char *const list[])
{
	size_t number = 0;

	while (list != NULL && list[number] != NULL)
		number++;
	return number;
}

/* The new program will load this library with this session. */
static bool same_session(char *const environment[])
{
	const char *session = variable(environment, SETTINGS_VARIABLE), *list = variable(environment, "LD_PRELOAD");

	return preload.session != NULL && session != NULL && list != NULL && preload.library[0] != '\0' &&
	       (session == preload.session || strcmp(session, preload.session) == 0) &&
	       strstr(list, preload.library) != NULL;
}

static int call_exec(enum how how, int descriptor, const char *path, char *const arguments[], char *const environment[])
{
	switch (how) {
	case BY_SEARCH:
		if (preload.execvpe == NULL)
			preload.execvpe = (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execvpe");
		return preload.execvpe(path, arguments, environment);
	case BY_DESCRIPTOR:
		return (int)syscall(SYS_execveat, descriptor, "", arguments, environment, 0x1000 /* AT_EMPTY_PATH */);
	default:
		return (int)syscall(SYS_execve, path, arguments, environment);
	}
}

static int exec_with_connection(enum how how, int descriptor, const char *path, char *const arguments[],
				char *const environment[])
{
	int rc;

	if (connection_open()) {
		const char *name = path != NULL ? path : arguments != NULL && arguments[0] != NULL ? arguments[0] : "?";

		connection_before_exec(name, same_session(environment));
		rc = call_exec(how, descriptor, path, arguments, environment);
		connection_exec_failed();
		return rc;
	}
	if (connection_lost() && variable(environment, GONE_VARIABLE) == NULL && same_session(environment)) {
		const size_t size = count(environment);
		char *marked[size + 2];

		memcpy(marked, environment, size * sizeof *marked);
		marked[size] = preload.gone;
		marked[size + 1] = NULL;
		return call_exec(how, descriptor, path, arguments, marked);
	}
	return call_exec(how, descriptor, path, arguments, environment);
}

EXPORTED int execve(const char *path, char *const arguments[], char *const environment[])
{
	return exec_with_connection(BY_PATH, -1, path, arguments, environment);
}

EXPORTED int execv(const char *path, char *const arguments[])
{
	return exec_with_connection(BY_PATH, -1, path, arguments, environ);
}

EXPORTED int execvpe(const char *file, char *const arguments[], char *const environment[])
{
	return exec_with_connection(BY_SEARCH, -1, file, arguments, environment);
}

EXPORTED int execvp(const char *file, char *const arguments[])
{
	return exec_with_connection(BY_SEARCH, -1, file, arguments, environ);
}

EXPORTED int fexecve(int descriptor, char *const arguments[], char *const environment[])
{
	return exec_with_connection(BY_DESCRIPTOR, descriptor, NULL, arguments, environment);
}

/* The arguments up to NULL as an array on the caller's stack, because nothing may be allocated after fork(). */
#define COLLECT(first, list, behind)                                    \
	size_t number = 1;                                              \
	va_list counted;                                                \
	va_start(counted, first);                                       \
	while (va_arg(counted, const char *) != NULL)                   \
		number++;                                               \
	va_end(counted);                                                \
	char *list[number + 1];                                         \
	va_list taken;                                                  \
	va_start(taken, first);                                         \
	list[0] = (char *)(first);                           \
	for (size_t i = 1; i <= number; i++)                            \
		list[i] = va_arg(taken, char *);                        \
	behind;                                                         \
	va_end(taken)

EXPORTED int execl(const char *path, const char *argument, ...)
{
	COLLECT(argument, arguments, (void)0);
	return exec_with_connection(BY_PATH, -1, path, arguments, environ);
}

EXPORTED int execlp(const char *file, const char *argument, ...)
{
	COLLECT(argument, arguments, (void)0);
	return exec_with_connection(BY_SEARCH, -1, file, arguments, environ);
}

EXPORTED int execle(const char *path, const char *argument, ...)
{
	COLLECT(argument, arguments, char *const *environment = va_arg(taken, char *const *));
	return exec_with_connection(BY_PATH, -1, path, arguments, environment);
}
