/*
 * The SPANK plugin of Juice: this file alone knows in which of Slurm's programs it runs.
 *
 *   srun, sbatch, salloc   the options are registered, called back, and settled in init_post_opt   -> submit.c
 *   slurmstepd             the session file is opened in init, awaited in task_init_privileged,
 *                          a job that gets no session is failed in task_init                       -> remote.c
 *   slurmd                 plugstack.conf is checked once, at its start
 *
 * No function here fails for a job that did not ask for Juice.
 */
#include "arguments.h"
#include "options.h"
#include "remote.h"
#include "submit.h"

#include <slurm/spank.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED extern const char plugin_name[];
EXPORTED extern const char plugin_type[];
EXPORTED extern const unsigned int plugin_version;
EXPORTED extern const unsigned int spank_plugin_version;

SPANK_PLUGIN(juice, 1)

/* Slurm runs each plugin stack in one thread, and every process has one stack. */
static struct arguments arguments;

static int option_called_back(int option, const char *text, int remote)
{
	/*
	 * On the node an option can come from the user's environment, where anybody can write anything, and in a
	 * heterogeneous job from another component: only the session file is believed there.
	 */
	return remote ? 0 : submit_option((enum option)option, text);
}

static void register_options(spank_t spank)
{
	for (int option = 0; option < OPTION_COUNT; option++) {
		const struct option_text *text = &option_texts[option];
		/* Slurm copies all of it, and its fields lack a const. */
		struct spank_option registered = {
			.name = (char *)text->name,
			.arginfo = (char *)text->argument,
			.usage = (char *)text->help,
			.has_arg = text->argument != NULL,
			.val = option,
			.cb = option_called_back,
		};

		if (spank_option_register(spank, &registered) != ESPANK_SUCCESS)
			slurm_error("juice: Slurm does not take the option --%s", text->name);
	}
}

static void complain_to_log(const char *line)
{
	slurm_error("juice: %s", line);
}

/* What is wrong with plugstack.conf is for the admin's log, not for each user's terminal. */
static void complain_quietly(const char *line)
{
	slurm_verbose("juice: %s", line);
}

EXPORTED int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	switch (spank_context()) {
	case S_CTX_SLURMD:
		arguments_parse(&arguments, argc, argv, complain_to_log);
		break;
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		arguments_parse(&arguments, argc, argv, complain_quietly);
		register_options(spank);
		break;
	case S_CTX_REMOTE:
		arguments_parse(&arguments, argc, argv, complain_to_log);
		register_options(spank);
		remote_init(spank, &arguments);
		break;
	default:
		break;
	}
	return 0;
}

EXPORTED int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	switch (spank_context()) {
	case S_CTX_LOCAL:
		return submit_component(spank, getenv("SLURM_JOB_ID") != NULL || getenv("SLURM_JOBID") != NULL);
	case S_CTX_ALLOCATOR:
		return submit_component(spank, false);
	default:
		return 0;
	}
}

EXPORTED int slurm_spank_task_init_privileged(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		remote_task_init_privileged(spank, &arguments);
	return 0;
}

EXPORTED int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	return spank_context() == S_CTX_REMOTE ? remote_task_init(spank) : 0;
}

EXPORTED int slurm_spank_exit(spank_t spank, int argc, char *argv[])
{
	(void)spank;
	(void)argc;
	(void)argv;
	submit_end();
	remote_end();
	return 0;
}
