/* slurm.conf and the arguments in plugstack.conf. */
#include "arguments.h"
#include "check.h"
#include "slurm_conf.h"

#include <unistd.h>

static char complaints[2048];

static void note(const char *line)
{
	strncat(complaints, line, sizeof complaints - strlen(complaints) - 2);
	strcat(complaints, "\n");
}

static struct arguments parsed(int argc, const char *argv[])
{
	struct arguments arguments;

	complaints[0] = '\0';
	arguments_parse(&arguments, argc, (char *const *)argv, note);
	return arguments;
}

static void check_arguments(void)
{
	const char *documented[] = {"/opt/juice/juice", "/opt/juice/.data"};
	const char *full[] = {"/opt/juice/juice", "/opt/juice/.data", "key=/k", "wait=5", "owner=nobody"};
	struct arguments arguments = parsed(2, documented);

	CHECK(complaints[0] == '\0', "%s", complaints);
	CHECK(strcmp(arguments.juice, "/opt/juice/juice") == 0 && strcmp(arguments.state_dir, "/opt/juice/.data") == 0,
	      "paths");
	CHECK(strcmp(arguments.key, "/etc/juice/session.key") == 0 && arguments.wait == 60 && arguments.owner == NULL,
	      "defaults");
	arguments = parsed(5, full);
	CHECK(complaints[0] == '\0' && strcmp(arguments.key, "/k") == 0 && arguments.wait == 5 &&
		      strcmp(arguments.owner, "nobody") == 0,
	      "%s", complaints);

	const struct {
		const char *argument, *complaint;
	} wrong[] = {
		{"kee=/k", "\"kee=/k\" is unknown"},	  {"/third", "\"/third\" is unknown"},
		{"third", "\"third\" is unknown"},	  {"key=k", "absolute path"},
		{"wait=", "0 to 3600"},			  {"wait=-1", "0 to 3600"},
		{"wait=3601", "0 to 3600"},		  {"wait=99999999999999999999", "0 to 3600"},
		{"owner=", "user's name"},		  {"", "is unknown"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		const char *argv[] = {"/opt/juice/juice", "/opt/juice/.data", wrong[i].argument};

		arguments = parsed(3, argv);
		CHECK(strstr(complaints, wrong[i].complaint) && strchr(complaints, '\n')[1] == '\0', "'%s': %s",
		      wrong[i].argument, complaints);
		CHECK(arguments_are_complete(&arguments) && arguments.wait == 60, "the rest is taken: '%s'", wrong[i].argument);
	}
	arguments = parsed(0, NULL);
	CHECK(!arguments_are_complete(&arguments) && strstr(complaints, "missing"), "no arguments: %s", complaints);
	const char *relative[] = {"juice", "data"}, *colon[] = {"/opt:/juice", "/data"};
	arguments = parsed(2, relative);
	CHECK(!arguments_are_complete(&arguments), "relative paths");
	arguments = parsed(2, colon);
	CHECK(!arguments_are_complete(&arguments), "LD_PRELOAD splits at ':'");
}

static char conf_path[128], other_path[128];

static bool read_conf(const char *text, struct slurm_conf *conf)
{
	FILE *file = fopen(conf_path, "w");

	fputs(text, file);
	fclose(file);
	return slurm_conf_read(conf_path, conf);
}

static void check_slurm_conf(void)
{
	struct slurm_conf conf;
	char directory[64], long_line[2000];

	strcpy(directory, new_directory());
	snprintf(conf_path, sizeof conf_path, "%s/slurm.conf", directory);
	snprintf(other_path, sizeof other_path, "%s/more.conf", directory);
	CHECK(!slurm_conf_read(conf_path, &conf), "no file");
	CHECK(read_conf("ClusterName=Big\nSlurmUser=slurm\n", &conf) && strcmp(conf.cluster, "big") == 0 &&
		      strcmp(conf.user, "slurm") == 0,
	      "%s %s", conf.cluster, conf.user);
	CHECK(read_conf("# ClusterName=no\n  clustername = \"a b\" # x\nNodeName=n1 SlurmUser=u Port=1", &conf) &&
		      strcmp(conf.cluster, "a b") == 0 && strcmp(conf.user, "u") == 0,
	      "%s %s", conf.cluster, conf.user);
	CHECK(read_conf("ClusterName=c\n", &conf) && strcmp(conf.user, "root") == 0, "SlurmUser is root by default");
	CHECK(!read_conf("SlurmUser=slurm\nMyClusterName=x\nClusterNameX=y\n", &conf), "no cluster");
	rename(conf_path, other_path);
	CHECK(read_conf("Include more.conf\nClusterName=c\n", &conf) && strcmp(conf.user, "slurm") == 0, "an included file");
	CHECK(read_conf("include slurm.conf\nClusterName=c\n", &conf), "a file that includes itself");
	memset(long_line, 'x', sizeof long_line);
	memcpy(long_line, "ClusterName=", 12);
	long_line[sizeof long_line - 1] = '\0';
	CHECK(read_conf(long_line, &conf) && strlen(conf.cluster) == 255, "a long name");
	unlink(conf_path);
	unlink(other_path);
	rmdir(directory);
}

int main(void)
{
	check_arguments();
	check_slurm_conf();
	return summary("configuration");
}
