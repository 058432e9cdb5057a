/* The options: wrong values, two values, defaults of the environment, and the rules between them. */
#include "check.h"
#include "options.h"

#include "labels.h"
#include "text.h"

static const char *environment[8][2];

static const char *variable(const char *name)
{
	for (size_t i = 0; i < 8 && environment[i][0] != NULL; i++) {
		if (strcmp(environment[i][0], name) == 0)
			return environment[i][1];
	}
	return NULL;
}

static char error[OPTIONS_ERROR_SIZE];

/* One option alone; NULL when it is taken, else the error. */
static const char *refused(enum option option, const char *text)
{
	struct options options = {0};
	bool good = options_give(&options, option, text, error);

	options_clear(&options);
	return good ? NULL : error;
}

static void check_values(void)
{
	static char name[257], wide[255 * 2 + 1];

	memset(name, 'n', 255);
	CHECK(refused(OPTION_POOL, name) == NULL, "%s", error);
	name[255] = 'n';
	CHECK(strstr(refused(OPTION_POOL, name), "is too long") != NULL, "%s", error);
	CHECK(strstr(error, "(256 bytes)") != NULL && strlen(error) < 300, "%s", error);
	for (size_t i = 0; i < 255; i++)
		memcpy(wide + 2 * i, "\303\251", 2);
	CHECK(refused(OPTION_POOL, wide) == NULL, "255 characters of two bytes: %s", error);
	CHECK(strcmp(refused(OPTION_POOL, ""), "--juice-pool: \"\" is empty; accepted: the name or id of a pool, 1 to 255 "
					       "characters of UTF-8, none of them a control character") == 0,
	      "%s", error);
	CHECK(strstr(refused(OPTION_POOL, "  "), "is empty") != NULL, "%s", error);
	CHECK(refused(OPTION_POOL, "a b#,;'\"$(id)`x`") == NULL, "%s", error);
	CHECK(refused(OPTION_POOL, "d\303\251d\303\251 \346\261\240") == NULL, "%s", error);
	CHECK(strstr(refused(OPTION_POOL, "a\nb"), "\"a\\x0ab\"") != NULL, "%s", error);
	CHECK(strchr(error, '\n') == NULL, "a message is one line");
	CHECK(refused(OPTION_POOL, "a\033[2Jb") != NULL, "an escape sequence");
	CHECK(refused(OPTION_POOL, "a\302\205b") != NULL, "C1 control");
	CHECK(refused(OPTION_POOL, "a\342\200\250b") != NULL, "line separator");
	CHECK(strstr(refused(OPTION_POOL, "\377x"), "\\xff") != NULL, "not UTF-8: %s", error);
	CHECK(refused(OPTION_POOL, "\300\200") != NULL && refused(OPTION_POOL, "\355\240\200") != NULL, "overlong, surrogate");

	for (int count = 1; count <= 64; count++) {
		char text[16];

		snprintf(text, sizeof text, "%d", count);
		CHECK(refused(OPTION_GPU_COUNT, text) == NULL, "%s", error);
	}
	CHECK(refused(OPTION_GPU_COUNT, "007") == NULL, "%s", error);
	const char *const wrong[] = {"", "0", "65", "-1", "+1", "1.0", "1e1", " 1", "1 ", "one", "4294967297", "0x1",
				     "18446744073709551617", "\331\244", "1\n"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		CHECK(refused(OPTION_GPU_COUNT, wrong[i]) && strstr(error, "accepted: a whole number from 1 to 64"), "'%s'",
		      wrong[i]);
	CHECK(strcmp(refused(OPTION_VRAM, "16Gi"),
		     "--juice-vram: \"16Gi\" has the unknown suffix 'Gi'; accepted: a number with an optional suffix B, KB, "
		     "MB, GB, TB, KiB, MiB, GiB or TiB, e.g. 2.5, 2560MiB; bare: GiB") == 0,
	      "%s", error);
}

static void check_labels(void)
{
	const char *const good[] = {"a=b",	  "a==b",     "a!=b",	    "a in (b)",	      "a in (b,c)", "a notin ( b , c )",
				    "a",	  "!a",	      "a=b,c!=d",   "a = b , c in (d)", "a=",	      "x.y/z:1=v-1",
				    "model=A10,zone in (eu-1,eu-2)"};
	const char *const bad[] = {"",	    " ",     ",",    "a=b,", ",a=b",   "a=b;c=d", "a in b",  "a in ()", "a in (b",
				   "a in (b,)", "=b", "a=b c", "-a=b", "a-=b", "a=\"b\"", "a=b\n", "a=$(id)", "a<b",
				   "ain (b)", "d\303\251=b"};
	char longest[LABELS_MAX_LENGTH + 2];

	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		CHECK(labels_is_selector(good[i]), "'%s'", good[i]);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(!labels_is_selector(bad[i]), "'%s'", bad[i]);
	memset(longest, 'a', sizeof longest);
	longest[LABELS_MAX_LENGTH] = '\0';
	CHECK(labels_is_selector(longest), "1024 bytes");
	longest[LABELS_MAX_LENGTH] = 'a';
	longest[LABELS_MAX_LENGTH + 1] = '\0';
	CHECK(!labels_is_selector(longest), "1025 bytes");
	CHECK(labels_is_pairs("a=b,c=") && !labels_is_pairs("a") && !labels_is_pairs("a!=b") && !labels_is_pairs("a=b, c=d") &&
		      !labels_is_pairs(""),
	      "tolerations");
}

static void check_rules(void)
{
	struct options options = {0};

	CHECK(options_settle(&options, variable, error), "nothing asked for: %s", error);
	CHECK(options.value[OPTION_POOL] == NULL && options.value[OPTION_GPU_COUNT] == NULL, "nothing is made up");

	CHECK(options_give(&options, OPTION_POOL, "a", error) && options_give(&options, OPTION_POOL, "a", error), "%s", error);
	CHECK(!options_give(&options, OPTION_POOL, "b", error) &&
		      strcmp(error, "--juice-pool: given as \"a\" and as \"b\"; accepted: one value") == 0,
	      "%s", error);
	CHECK(options_give(&options, OPTION_VRAM, "1", error) && options_give(&options, OPTION_VRAM, "1024MiB", error),
	      "one size in two forms: %s", error);
	CHECK(!options_give(&options, OPTION_VRAM, "2", error), "two sizes");
	CHECK(options_settle(&options, variable, error), "%s", error);
	CHECK(strcmp(options.value[OPTION_VRAM], "1073741824") == 0 && strcmp(options.value[OPTION_GPU_COUNT], "1") == 0,
	      "bytes; one GPU");
	options_clear(&options);

	CHECK(options_give(&options, OPTION_VRAM, "2.5", error) && !options_settle(&options, variable, error) &&
		      strcmp(error, "--juice-vram: \"2.5\" needs a pool; add --juice-pool=NAME") == 0,
	      "%s", error);
	options_clear(&options);
	CHECK(options_give(&options, OPTION_VRAM_STRICT, NULL, error) && !options_settle(&options, variable, error) &&
		      strstr(error, "--juice-vram-strict needs a pool"),
	      "%s", error);
	options_clear(&options);
	CHECK(options_give(&options, OPTION_POOL, "a", error) && options_give(&options, OPTION_VRAM_STRICT, NULL, error) &&
		      !options_settle(&options, variable, error) && strstr(error, "add --juice-vram=SIZE"),
	      "%s", error);
	options_clear(&options);
	CHECK(options_give(&options, OPTION_POOL, "a", error) && options_give(&options, OPTION_GPU_COUNT, "2", error) &&
		      options_give(&options, OPTION_VRAM, "1", error) && !options_settle(&options, variable, error) &&
		      strstr(error, "--juice-vram: \"1\" with --juice-gpu-count=2: a slice of VRAM is for one GPU only"),
	      "%s", error);
	options_clear(&options);
}

static void check_environment(void)
{
	struct options options = {0};

	environment[0][0] = "JUICE_GPU_COUNT";
	environment[0][1] = "2";
	CHECK(options_settle(&options, variable, error) && options.value[OPTION_GPU_COUNT] == NULL,
	      "without a pool the other defaults are idle");
	environment[0][1] = "nonsense";
	CHECK(options_settle(&options, variable, error), "not even looked at");
	environment[0][1] = "2";
	environment[1][0] = "JUICE_POOL";
	environment[1][1] = "a";
	CHECK(options_settle(&options, variable, error) && strcmp(options.value[OPTION_POOL], "a") == 0 &&
		      strcmp(options.value[OPTION_GPU_COUNT], "2") == 0,
	      "%s", error);
	options_clear(&options);
	CHECK(options_give(&options, OPTION_POOL, "b", error) && options_give(&options, OPTION_GPU_COUNT, "3", error) &&
		      options_settle(&options, variable, error) && strcmp(options.value[OPTION_POOL], "b") == 0 &&
		      strcmp(options.value[OPTION_GPU_COUNT], "3") == 0,
	      "the command line wins");
	options_clear(&options);
	environment[1][1] = "";
	CHECK(options_settle(&options, variable, error) && options.value[OPTION_POOL] == NULL, "empty is unset");
	environment[1][1] = "a";
	environment[0][1] = "x";
	CHECK(!options_settle(&options, variable, error) &&
		      strstr(error, "JUICE_GPU_COUNT in the environment: \"x\" is not a whole number") == error,
	      "%s", error);
	options_clear(&options);
	environment[0][0] = "JUICE_VRAM_STRICT";
	environment[0][1] = "yes";
	CHECK(options_settle(&options, variable, error) && options.value[OPTION_VRAM_STRICT] == NULL, "idle without a size");
	options_clear(&options);
	CHECK(options_give(&options, OPTION_VRAM, "1", error) && options_settle(&options, variable, error) &&
		      strcmp(options.value[OPTION_VRAM_STRICT], "1") == 0,
	      "%s", error);
	options_clear(&options);
	environment[0][1] = "off";
	CHECK(options_give(&options, OPTION_VRAM, "1", error) && options_settle(&options, variable, error) &&
		      options.value[OPTION_VRAM_STRICT] == NULL,
	      "%s", error);
	options_clear(&options);
}

static void check_text(void)
{
	char quoted[TEXT_QUOTED_SIZE], long_text[200], flat[] = "a\nb\033c\302\205d\303\251";

	memset(long_text, '\001', sizeof long_text);
	long_text[199] = '\0';
	CHECK(strlen(text_quote(long_text, quoted)) < TEXT_QUOTED_SIZE && strstr(quoted, "... (199 bytes)"), "%s", quoted);
	CHECK(strcmp(text_quote("\"\\\303\251", quoted), "\"\\\"\\\\\303\251\"") == 0, "%s", quoted);
	text_flatten(flat);
	CHECK(strcmp(flat, "a?b?c??d\303\251") == 0, "%s", flat);
	CHECK(text_same("GiB", "gIb") && !text_same("GiB", "GiBs") && !text_same("GiBs", "GiB") && text_same("", ""), "case");
}

int main(void)
{
	check_values();
	check_labels();
	check_rules();
	check_environment();
	check_text();
	return summary("options");
}
