/*
 * What a user asks for: the options of srun, sbatch and salloc, their defaults in the environment, and the rules
 * between them. Knows nothing of SPANK.
 */
#ifndef JUICE_OPTIONS_H
#define JUICE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum option {
	OPTION_POOL,
	OPTION_GPU_COUNT,
	OPTION_VRAM,
	OPTION_VRAM_STRICT,
	OPTION_MATCH_LABELS,
	OPTION_TOLERATES,
	OPTION_COUNT /* how many there are */
};

/* The largest number of GPUs of one session (they are all on one machine). */
#define OPTIONS_MAX_GPUS 64
/* The longest name of a pool, in characters, as at the controller. */
#define OPTIONS_MAX_POOL 255
/* The longest line that says what is wrong. */
#define OPTIONS_ERROR_SIZE 1024

struct option_text {
	const char *name;     /* on the command line, without -- */
	const char *variable; /* default in the environment, and name in the environment of the hooks (behind SPANK_) */
	const char *argument; /* NULL: a flag */
	const char *help;
};

extern const struct option_text option_texts[OPTION_COUNT];

/* All zero is "nothing asked for". */
struct options {
	char *given[OPTION_COUNT];  /* as the user wrote it */
	char *value[OPTION_COUNT];  /* in the one form that the hooks get; NULL: not asked for */
	bool preset[OPTION_COUNT];  /* comes from the environment */
};

/*
 * Takes one option from the command line (`text` is ignored for a flag). The same value twice is fine: Slurm may call
 * back more than once. False, with one line in `error`, for a wrong value and for a second, different one.
 */
bool options_give(struct options *options, enum option option, const char *text, char error[OPTIONS_ERROR_SIZE]);

/*
 * When all options have been given: takes the environment's defaults for those that were not, and checks the rules
 * between them. Without a pool the other defaults count for nothing, so that they may be set for good.
 * False, with one line in `error`, when the job must not be submitted.
 */
bool options_settle(struct options *options, const char *(*variable)(const char *name),
		    char error[OPTIONS_ERROR_SIZE]);

/* Forgets everything. */
void options_clear(struct options *options);

#endif
