#include "submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	struct options options; /* of the component that is being read */
	unsigned component;     /* its offset */
	char hint[1024];        /* of the components before it */
} submit;

static const char *variable(const char *name)
{
	return getenv(name);
}

int submit_option(enum option option, const char *text)
{
	char error[OPTIONS_ERROR_SIZE];

	if (options_give(&submit.options, option, text, error))
		return 0;
	slurm_error("juice: %s", error);
	return -1;
}

/*
 * Slurm would also pass on the options as the user wrote them: to the job's environment, from where an sbatch inside
 * the job would silently take them as its own, and where the second component of a heterogeneous job would find those
 * of the first. Nothing of ours reads them there, so they are taken back.
 */
static void take_back_raw_option(spank_t spank, enum option option)
{
	char name[128];

	snprintf(name, sizeof name, "SLURM_SPANK__SLURM_SPANK_OPTION_juice_%s", option_texts[option].name);
	for (char *c = name; *c != '\0'; c++) {
		if (*c == '-')
			*c = '_';
	}
	unsetenv(name);
	unsetenv(name + strlen("SLURM_SPANK_"));
	spank_job_control_unsetenv(spank, name + strlen("SLURM_SPANK_"));
}

/* What the hooks will see as SPANK_JUICE_POOL and so on. False when Slurm takes it not. */
static bool hand_over(spank_t spank, enum option option, const char *value)
{
	const char *name = option_texts[option].variable;
	char exported[64];
	spank_err_t rc;

	/* sbatch and salloc export these to the job as SLURM_SPANK_JUICE_*; those of an enclosing job are not ours. */
	snprintf(exported, sizeof exported, "SLURM_SPANK_%s", name);
	unsetenv(exported);
	if (value == NULL) {
		spank_job_control_unsetenv(spank, name);
		return true;
	}
	rc = spank_job_control_setenv(spank, name, value, 1);
	if (rc == ESPANK_SUCCESS)
		return true;
	slurm_error("juice: --%s cannot be handed to the prolog: %s", option_texts[option].name, spank_strerror(rc));
	return false;
}

static void leave_hint(bool wanted)
{
	size_t used = strlen(submit.hint);

	if (wanted)
		snprintf(submit.hint + used, sizeof submit.hint - used, "%s%u", used ? "," : "", submit.component);
	if (submit.hint[0] != '\0')
		setenv(SUBMIT_HINT, submit.hint, 1);
	else
		unsetenv(SUBMIT_HINT); /* that of an enclosing job, or a forged one */
}

int submit_component(spank_t spank, bool nested)
{
	struct options *options = &submit.options;
	char error[OPTIONS_ERROR_SIZE];
	bool good = options_settle(options, variable, error);
	bool wanted = good && options->value[OPTION_POOL] != NULL;

	if (!good)
		slurm_error("juice: %s", error);
	if (wanted && nested && !options->preset[OPTION_POOL] && getenv(SUBMIT_HINT) == NULL) {
		slurm_error("juice: --juice-pool: srun inside a job only adds a step to it, and this job has no Juice "
			    "session; give the option to sbatch or salloc");
		good = false;
	}
	for (enum option option = 0; option < OPTION_COUNT; option++) {
		take_back_raw_option(spank, option);
		good = good && hand_over(spank, option, options->value[option]);
	}
	if (!nested) {
		leave_hint(wanted);
		unsetenv("SLURM_RESTART_COUNT"); /* of an enclosing job, which the new one would take for its own */
	}
	submit.component++;
	options_clear(options);
	return good ? 0 : -1;
}

void submit_end(void)
{
	options_clear(&submit.options);
}
