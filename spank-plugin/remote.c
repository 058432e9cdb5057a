#include "remote.h"

#include "session_file.h"
#include "slurm_conf.h"
#include "submit.h"
#include "text.h"

#include <inttypes.h>
#include <pwd.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LIBRARY "libjuicejuda.so"

/* What spank.h gives no names for: the step ids of a batch script and of the step that only holds processes. */
#define STEP_BATCH 0xfffffffbU
#define STEP_EXTERN 0xfffffffcU

enum outcome {
	NO_SESSION, /* not a Juice job: nothing is done */
	AWAITED,    /* a Juice job whose file is not there, or not whole, yet */
	GRANTED,
	FAILED, /* and `failure` says why */
};

/* Made in slurmstepd, inherited by the processes of its tasks. */
static struct {
	enum outcome outcome;
	uint64_t restart_count; /* of the file, when GRANTED */
	char failure[2048];
} remote;

static void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void failed(const char *format, ...)
{
	va_list arguments;

	remote.outcome = FAILED;
	va_start(arguments, format);
	vsnprintf(remote.failure, sizeof remote.failure, format, arguments);
	va_end(arguments);
	text_flatten(remote.failure);
}

struct step {
	uint32_t job_id, step_id;
	uid_t user_id;
};

static bool describe_step(spank_t spank, struct step *step)
{
	return spank_get_item(spank, S_JOB_ID, &step->job_id) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_JOB_STEPID, &step->step_id) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_JOB_UID, &step->user_id) == ESPANK_SUCCESS;
}

/* The value in the job's environment; NULL when it has none. spank_getenv() would cut long ones off. */
static const char *job_variable(spank_t spank, const char *name)
{
	const size_t length = strlen(name);
	char **environment = NULL;

	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == NULL)
		return NULL;
	for (; *environment != NULL; environment++) {
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return *environment + length + 1;
	}
	return NULL;
}

/*
 * Whether the job asked for a session, as the submitting side noted it. A user can forge the note; it decides only
 * whether to wait for a file that is not there, never what is in it.
 */
static bool asked_for_session(spank_t spank, uint32_t job_id)
{
	const char *at = job_variable(spank, SUBMIT_HINT), *leader = job_variable(spank, "SLURM_JOB_ID");
	unsigned long first = leader != NULL ? strtoul(leader, NULL, 10) : job_id;
	/* The components of a heterogeneous job have consecutive ids, and SLURM_JOB_ID is the first one's in all. */
	unsigned long offset = first > 0 && first <= job_id && job_id - first < 1024 ? job_id - first : 0;

	while (at != NULL && *at >= '0' && *at <= '9') {
		char *end;

		if (strtoul(at, &end, 10) == offset)
			return true;
		at = *end == ',' ? end + 1 : end;
	}
	return false;
}

static bool user_id_of(const char *name, uid_t *uid)
{
	struct passwd entry, *found = NULL;
	char buffer[16384];
	char *end;

	if (getpwnam_r(name, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL) {
		*uid = found->pw_uid;
		return true;
	}
	*uid = (uid_t)strtoul(name, &end, 10);
	return *name != '\0' && *end == '\0';
}

static bool read_slurm_conf(struct slurm_conf *conf)
{
	/* slurmd sets SLURM_CONF for slurmstepd, also when the file came from slurmctld ("configless"). */
	const char *const paths[] = {getenv("SLURM_CONF"), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"};

	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		if (paths[i] != NULL && slurm_conf_read(paths[i], conf))
			return true;
	}
	return false;
}

/* Whose files are believed, besides root's: this process's user (a Slurm that runs as a plain one), SlurmUser, owner=. */
static size_t trusted_users(const struct arguments *arguments, const struct slurm_conf *conf, uid_t users[3])
{
	size_t count = 0;

	users[count++] = geteuid();
	if (user_id_of(conf->user, &users[count]))
		count++;
	if (arguments->owner != NULL) {
		if (user_id_of(arguments->owner, &users[count]))
			count++;
		else
			slurm_error("juice: plugstack.conf: owner=%s: there is no such user on this node", arguments->owner);
	}
	return count;
}

static double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pause_seconds(double seconds)
{
	struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	nanosleep(&pause, NULL);
}

static bool set(spank_t spank, const char *name, const char *value)
{
	spank_err_t rc = spank_setenv(spank, name, value, 1);

	if (rc != ESPANK_SUCCESS)
		failed("%s cannot be set: %s", name, spank_strerror(rc));
	return rc == ESPANK_SUCCESS;
}

/* The library of the client, beside the juice command. False when there is no room for the path. */
static bool library_path(const struct arguments *arguments, char *path, size_t size)
{
	const char *slash = strrchr(arguments->juice, '/');

	return snprintf(path, size, "%.*s/" LIBRARY, (int)(slash - arguments->juice), arguments->juice) < (int)size;
}

/* Writes `list` (LD_PRELOAD, separated by ':' or blanks) without `library` to `rest`, which has room for it. */
static void without(const char *list, const char *library, char *rest)
{
	const size_t length = strlen(library);
	char *to = rest;

	*to = '\0';
	while (*list != '\0') {
		size_t item = strcspn(list, ": ");

		if (item > 0 && !(item == length && memcmp(list, library, length) == 0)) {
			if (to != rest)
				*to++ = ':';
			memcpy(to, list, item);
			to += item;
			*to = '\0';
		}
		list += item;
		list += strspn(list, ": ");
	}
}

/* Puts the library in front of what the user preloads; once, also in a step of a batch script that has it already. */
static bool preload(spank_t spank, const struct arguments *arguments)
{
	const char *before = job_variable(spank, "LD_PRELOAD");
	const size_t size = 4096 + (before != NULL ? strlen(before) : 0) + 2;
	char *value = malloc(size), *rest = malloc(size);
	bool good = value != NULL && rest != NULL && library_path(arguments, value, 4096);

	if (good) {
		without(before != NULL ? before : "", value, rest);
		if (*rest != '\0') {
			strcat(value, ":"); /* NOLINT: `size` counts both and the ':' */
			strcat(value, rest); /* NOLINT */
		}
		good = set(spank, "LD_PRELOAD", value);
	} else {
		failed("LD_PRELOAD cannot be set: no memory, or a path that is too long");
	}
	free(value);
	free(rest);
	return good;
}

/* "0,1,..": the client's library numbers the session's GPUs from 0, whatever their indexes on the agent are. */
static bool set_visible_devices(spank_t spank, unsigned gpus)
{
	const size_t size = (size_t)gpus * 11 + 1;
	char *list = malloc(size);
	size_t used = 0;
	bool good;

	if (list == NULL)
		return false;
	for (unsigned i = 0; i < gpus; i++)
		used += (size_t)snprintf(list + used, size - used, "%s%u", i ? "," : "", i);
	good = set(spank, "CUDA_VISIBLE_DEVICES", list);
	free(list);
	return good;
}

static void give(spank_t spank, const struct arguments *arguments, const struct session *session)
{
	char gpus[16];

	snprintf(gpus, sizeof gpus, "%u", session->gpus);
	if (set(spank, "JUICE_CFG_OVERRIDE", session->config) && set(spank, "JUICE_SESSION_ID", session->id) &&
	    set(spank, "JUICE_SESSION_POOL", session->pool) && set(spank, "JUICE_SESSION_ADDRESS", session->address) &&
	    set(spank, "JUICE_SESSION_GPUS", gpus) && set(spank, "JUICE_SESSION_VRAM", session->vram_bytes) &&
	    set_visible_devices(spank, session->gpus) && preload(spank, arguments)) {
		remote.outcome = GRANTED;
		remote.restart_count = session->restart_count;
	}
}

/*
 * A job that was submitted from inside a Juice job inherits that one's variables, but not its session. Only a set of
 * variables that this plugin made is taken away: it always holds JUICE_SESSION_ID.
 */
static void drop_inherited_session(spank_t spank, const struct arguments *arguments)
{
	static const char *const names[] = {
		"JUICE_CFG_OVERRIDE",    "JUICE_SESSION_ID",   "JUICE_SESSION_POOL",   "JUICE_SESSION_ADDRESS",
		"JUICE_SESSION_GPUS",    "JUICE_SESSION_VRAM", "CUDA_VISIBLE_DEVICES",
	};
	const char *before;
	char library[4096], *rest;

	if (job_variable(spank, "JUICE_SESSION_ID") == NULL)
		return;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		spank_unsetenv(spank, names[i]);
	before = job_variable(spank, "LD_PRELOAD");
	if (before == NULL || !library_path(arguments, library, sizeof library))
		return;
	rest = malloc(strlen(before) + 1);
	if (rest == NULL)
		return;
	without(before, library, rest);
	if (*rest != '\0')
		spank_setenv(spank, "LD_PRELOAD", rest, 1);
	else
		spank_unsetenv(spank, "LD_PRELOAD");
	free(rest);
}

/* Opens the session file, again and again for up to `wait` seconds while what is wrong with it may pass. */
static enum session_fault open_in_time(const struct arguments *arguments, double wait, const uid_t *users,
				       size_t user_count, const uint8_t key[SESSION_KEY_SIZE],
				       const struct session_owner *owner, struct session *session)
{
	const double deadline = seconds_now() + wait;
	double pause = 0.05;

	for (;;) {
		enum session_fault fault = session_open(arguments->state_dir, users, user_count, key, owner, session);
		double left = deadline - seconds_now();

		if (!session_fault_passes(fault) || left <= 0)
			return fault;
		pause_seconds(pause < left ? pause : left);
		pause = pause * 1.5 < 1.0 ? pause * 1.5 : 1.0;
	}
}

/* Carries out what the session file says, or notes why it cannot. */
static void take_session(spank_t spank, const struct arguments *arguments, const struct step *step, double wait)
{
	struct session_owner owner = {.job_id = step->job_id, .user_id = step->user_id};
	uint8_t key[SESSION_KEY_SIZE];
	char error[SESSION_ERROR_SIZE];
	const char *host = getenv("SLURMD_NODENAME");
	struct slurm_conf conf;
	struct session session;
	enum session_fault fault;
	uid_t users[3];
	size_t user_count;

	if (host == NULL)
		host = "this node";
	if (!read_slurm_conf(&conf)) {
		failed("slurm.conf cannot be read on %s, or it names no cluster", host);
		return;
	}
	if (sodium_init() < 0) {
		failed("libsodium does not start on %s", host);
		return;
	}
	owner.cluster = conf.cluster;
	user_count = trusted_users(arguments, &conf, users);
	if (!session_read_key(arguments->key, users, user_count, key, error)) {
		failed("on %s: %s", host, error);
		return;
	}
	fault = open_in_time(arguments, wait, users, user_count, key, &owner, &session);
	sodium_memzero(key, sizeof key);

	if (session_fault_passes(fault) && wait < arguments->wait)
		remote.outcome = AWAITED;
	else if (fault == SESSION_MISSING)
		failed("%s/sessions/%" PRIu32 ".session did not appear on %s within %u s; is the directory shared with the "
		       "slurmctld host?",
		       arguments->state_dir, step->job_id, host, arguments->wait);
	else if (fault != SESSION_FINE)
		failed("on %s: %s/sessions/%" PRIu32 ".session %s", host, arguments->state_dir, step->job_id,
		       session_fault_text(fault));
	else if (!session.granted)
		failed("denied: %s", session.reason);
	else
		give(spank, arguments, &session);
	session_clear(&session);
}

void remote_init(spank_t spank, const struct arguments *arguments)
{
	struct step step;
	bool asked;

	if (!describe_step(spank, &step)) {
		slurm_error("juice: Slurm does not say which job this is");
		return;
	}
	if (step.step_id == STEP_EXTERN)
		return; /* it runs no program of the user's */
	asked = asked_for_session(spank, step.job_id);
	if (!arguments_are_complete(arguments)) {
		if (asked)
			failed("plugstack.conf does not name the juice command and the state directory");
	} else if (asked || session_exists(arguments->state_dir, step.job_id)) {
		take_session(spank, arguments, &step, 0);
	} else {
		drop_inherited_session(spank, arguments);
	}
}

void remote_task_init_privileged(spank_t spank, const struct arguments *arguments)
{
	char name[16] = "slurmstepd";
	struct step step;

	if (remote.outcome != AWAITED || !describe_step(spank, &step))
		return;
	/*
	 * proctrack/linuxproc, asked to kill a step, spares every process that is called slurmstepd, as this one is until
	 * it starts the user's program. The step would be unkillable while it waits, and Slurm would drain the node.
	 */
	prctl(PR_GET_NAME, name);
	prctl(PR_SET_NAME, "juice-wait");
	take_session(spank, arguments, &step, arguments->wait);
	prctl(PR_SET_NAME, name);
}

/*
 * A file of an earlier start of the job, when Slurm says which start this is: it does so in the batch script's
 * environment only, only after a requeue, and S_SLURM_RESTART_COUNT is 0 all the same. (The prolog removes such a file
 * first of all; this is for a file system that still shows it.)
 */
static bool is_of_another_start(spank_t spank, uint64_t *start)
{
	uint32_t step_id = 0;
	const char *text = job_variable(spank, "SLURM_RESTART_COUNT");
	char *end;

	if (text == NULL || spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS || step_id != STEP_BATCH)
		return false;
	*start = strtoull(text, &end, 10);
	return *text != '\0' && *end == '\0' && *start != remote.restart_count;
}

int remote_task_init(spank_t spank)
{
	uint32_t job_id = 0;
	uint64_t start;
	int task = 0;

	if (remote.outcome == GRANTED && is_of_another_start(spank, &start))
		failed("its session file is of start %" PRIu64 " of the job, and this is start %" PRIu64 "; submit it again",
		       remote.restart_count, start);
	if (remote.outcome != FAILED)
		return 0;
	spank_get_item(spank, S_JOB_ID, &job_id);
	spank_get_item(spank, S_TASK_ID, &task);
	if (task == 0) /* once per node is enough */
		slurm_error("juice: job %" PRIu32 " gets no GPU session: %s", job_id, remote.failure);
	return -1;
}

void remote_end(void)
{
	memset(&remote, 0, sizeof remote);
}
