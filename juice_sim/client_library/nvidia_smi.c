/*
 * nvidia-smi of a session: prints the session's GPUs as NVIDIA's tool prints a machine's.
 *
 * Known: no argument (the table), -L, --query-gpu=FIELDS or --query-compute-apps=FIELDS with --format=csv[,noheader]
 * [,nounits], -i ID, -h. Outside a session it makes room for the real nvidia-smi, when PATH has one.
 */
#include "json.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB ((int64_t)1024 * 1024)
#define CUDA "12.4"

/* NVIDIA's exit codes. */
enum { FINE = 0, BAD_ARGUMENT = 2, NOT_FOUND = 6, NO_DRIVER = 9 };

#define MAX_GPUS 64
#define MAX_PROCESSES 256

struct gpu {
	char name[96], uuid[64], bus[32], driver[32];
	int64_t total, used, utilization, temperature, power, power_limit; /* bytes, percent, degrees, milliwatts */
};

struct process {
	char name[256];
	int64_t pid, gpu, used;
};

static struct gpu gpus[MAX_GPUS];
static struct process processes[MAX_PROCESSES];
static int gpu_count, process_count;

static struct {
	bool list, csv, header, units;
	const char *gpu_fields, *process_fields, *id;
} options = {.header = true, .units = true};

/* --- the session ------------------------------------------------------------------------------------------------- */

static int64_t number(struct json object, const char *name)
{
	struct json value;
	int64_t result = 0;

	return json_member(object, name, &value) && json_integer(value, &result) ? result : 0;
}

static void text(struct json object, const char *name, char *to, size_t size)
{
	struct json value;

	if (!json_member(object, name, &value) || !json_string(value, to, size))
		snprintf(to, size, "[N/A]");
}

static void read_answer(const char *answer)
{
	struct json object, list, item;

	if (!json_value(answer, strlen(answer), &object))
		return;
	if (json_member(object, "gpus", &list)) {
		for (; gpu_count < MAX_GPUS && json_element(list, (size_t)gpu_count, &item); gpu_count++) {
			struct gpu *gpu = &gpus[gpu_count];

			text(item, "name", gpu->name, sizeof gpu->name);
			text(item, "uuid", gpu->uuid, sizeof gpu->uuid);
			text(item, "pciBus", gpu->bus, sizeof gpu->bus);
			text(item, "driver", gpu->driver, sizeof gpu->driver);
			gpu->total = number(item, "vram");
			gpu->used = number(item, "used");
			gpu->utilization = number(item, "utilizationGpu");
			gpu->temperature = number(item, "temperatureGpu");
			gpu->power = number(item, "powerDraw");
			gpu->power_limit = number(item, "powerLimit");
		}
	}
	if (json_member(object, "processes", &list)) {
		for (; process_count < MAX_PROCESSES && json_element(list, (size_t)process_count, &item); process_count++) {
			struct process *process = &processes[process_count];

			text(item, "processName", process->name, sizeof process->name);
			process->pid = number(item, "pid");
			process->gpu = number(item, "gpu");
			process->used = number(item, "used");
		}
	}
}

/* The folder of this program, where the library lies as well. */
static bool own_path(char path[PATH_MAX])
{
	ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);

	if (length <= 0)
		return false;
	path[length] = '\0';
	return true;
}

typedef char *ask_function(const char *line);

/* In a job the library is preloaded; elsewhere, in the environment of a session, it is loaded here. */
static ask_function *find_ask(void)
{
	char path[PATH_MAX], library[PATH_MAX + 32];
	void *handle = RTLD_DEFAULT;
	ask_function *ask;

	*(void **)&ask = dlsym(handle, "juice_client_ask");
	if (ask == NULL && own_path(path)) {
		snprintf(library, sizeof library, "%s/libjuicejuda.so", dirname(path));
		handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
		if (handle != NULL)
			*(void **)&ask = dlsym(handle, "juice_client_ask");
	}
	return ask;
}

static bool read_session(void)
{
	ask_function *ask = find_ask();
	char *answer = ask != NULL ? ask("{\"gpus\":true}\n") : NULL;

	if (answer == NULL)
		return false;
	read_answer(answer);
	free(answer);
	return true;
}

/* Runs the next nvidia-smi on PATH, if there is one that is another program than this. */
static void make_room(char *const arguments[])
{
	const char *path = getenv("PATH");
	struct stat own, other;
	char program[PATH_MAX];

	if (path == NULL || stat("/proc/self/exe", &own) != 0)
		return;
	while (*path != '\0') {
		int length = (int)strcspn(path, ":");

		snprintf(program, sizeof program, "%.*s/nvidia-smi", length, path);
		if (length > 0 && access(program, X_OK) == 0 && stat(program, &other) == 0 &&
		    (other.st_dev != own.st_dev || other.st_ino != own.st_ino))
			execv(program, arguments);
		path += length;
		path += *path == ':';
	}
}

/* --- the table --------------------------------------------------------------------------------------------------- */

static void cut(char *to, size_t size, const char *from)
{
	if (strlen(from) < size)
		snprintf(to, size, "%s", from);
	else
		snprintf(to, size, "%.*s...", (int)size - 4, from);
}

static bool chosen(int index)
{
	char *end;
	long wanted;

	if (options.id == NULL)
		return true;
	wanted = strtol(options.id, &end, 10);
	if (*options.id != '\0' && *end == '\0')
		return wanted == index;
	return strcasecmp(options.id, gpus[index].uuid) == 0 || strcasecmp(options.id, gpus[index].bus) == 0;
}

static void print_table(void)
{
	static const char *const full = "+-----------------------------------------------------------------------------"
					"------------+";
	char now[64], name[28];
	time_t seconds = time(NULL);
	bool any = false;

	strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&seconds));
	printf("%s\n%s\n", now, full);
	printf("| NVIDIA-SMI %-22.22s Driver Version: %-14.14s CUDA Version: " CUDA "     |\n", gpus[0].driver,
	       gpus[0].driver);
	puts("|-----------------------------------------+------------------------+----------------------+");
	puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
	puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
	puts("|                                         |                        |               MIG M. |");
	puts("|=========================================+========================+======================|");
	for (int i = 0; i < gpu_count; i++) {
		const struct gpu *gpu = &gpus[i];

		if (!chosen(i))
			continue;
		cut(name, sizeof name, gpu->name);
		printf("|%4d  %-27s    On  |   %-16.16s Off |                    0 |\n", i, name, gpu->bus);
		printf("| N/A  %3ldC    %s           %4ldW / %4ldW | %6ldMiB / %7ldMiB |    %3ld%%      Default |\n",
		       (long)gpu->temperature, gpu->utilization > 0 ? "P0" : "P8", (long)(gpu->power / 1000),
		       (long)(gpu->power_limit / 1000), (long)(gpu->used / MIB), (long)(gpu->total / MIB),
		       (long)gpu->utilization);
		puts("|                                         |                        |                  N/A |");
		puts("+-----------------------------------------+------------------------+----------------------+");
	}
	printf("\n%s\n", full);
	puts("| Processes:                                                                              |");
	puts("|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |");
	puts("|        ID   ID                                                               Usage      |");
	puts("|=========================================================================================|");
	for (int i = 0; i < process_count; i++) {
		const struct process *process = &processes[i];
		char shown[40];

		if (process->gpu >= gpu_count || !chosen((int)process->gpu))
			continue;
		any = true;
		cut(shown, sizeof shown, process->name);
		printf("|%5ld   N/A  N/A%11ld      C   %-39s%9ldMiB |\n", (long)process->gpu, (long)process->pid, shown,
		       (long)(process->used / MIB));
	}
	if (!any)
		puts("|  No running processes found                                                             |");
	puts(full);
}

static void print_list(void)
{
	for (int i = 0; i < gpu_count; i++) {
		if (chosen(i))
			printf("GPU %d: %s (UUID: %s)\n", i, gpus[i].name, gpus[i].uuid);
	}
}

/* --- queries ----------------------------------------------------------------------------------------------------- */

/* Writes a number with its unit, as the format asks for it. */
static void with_unit(char value[256], const char *unit, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void with_unit(char value[256], const char *unit, const char *format, ...)
{
	va_list arguments;
	size_t used;

	va_start(arguments, format);
	vsnprintf(value, 256, format, arguments);
	va_end(arguments);
	used = strlen(value);
	if (options.units)
		snprintf(value + used, 256 - used, " %s", unit);
}

/* False for an unknown field. `unit` is what the header shows behind the name. */
static bool gpu_field(const char *field, int index, char value[256], const char **unit)
{
	const struct gpu *gpu = &gpus[index];

	*unit = "";
	if (strcmp(field, "index") == 0)
		snprintf(value, 256, "%d", index);
	else if (strcmp(field, "name") == 0 || strcmp(field, "gpu_name") == 0)
		snprintf(value, 256, "%s", gpu->name);
	else if (strcmp(field, "uuid") == 0 || strcmp(field, "gpu_uuid") == 0)
		snprintf(value, 256, "%s", gpu->uuid);
	else if (strcmp(field, "pci.bus_id") == 0 || strcmp(field, "gpu_bus_id") == 0)
		snprintf(value, 256, "%s", gpu->bus);
	else if (strcmp(field, "driver_version") == 0)
		snprintf(value, 256, "%s", gpu->driver);
	else if (strcmp(field, "count") == 0)
		snprintf(value, 256, "%d", gpu_count);
	else if (strcmp(field, "pstate") == 0)
		snprintf(value, 256, "%s", gpu->utilization > 0 ? "P0" : "P8");
	else if (strcmp(field, "temperature.gpu") == 0)
		snprintf(value, 256, "%ld", (long)gpu->temperature);
	else if (strcmp(field, "memory.total") == 0)
		with_unit(value, *unit = "MiB", "%ld", (long)(gpu->total / MIB));
	else if (strcmp(field, "memory.used") == 0)
		with_unit(value, *unit = "MiB", "%ld", (long)(gpu->used / MIB));
	else if (strcmp(field, "memory.free") == 0)
		with_unit(value, *unit = "MiB", "%ld", (long)((gpu->total - gpu->used) / MIB));
	else if (strcmp(field, "utilization.gpu") == 0)
		with_unit(value, *unit = "%", "%ld", (long)gpu->utilization);
	else if (strcmp(field, "utilization.memory") == 0)
		with_unit(value, *unit = "%", "%ld", gpu->total > 0 ? (long)(100 * gpu->used / gpu->total) : 0L);
	else if (strcmp(field, "power.draw") == 0)
		with_unit(value, *unit = "W", "%ld.%02ld", (long)(gpu->power / 1000), (long)(gpu->power % 1000 / 10));
	else if (strcmp(field, "power.limit") == 0)
		with_unit(value, *unit = "W", "%ld.%02ld", (long)(gpu->power_limit / 1000),
			  (long)(gpu->power_limit % 1000 / 10));
	else if (strcmp(field, "timestamp") == 0) {
		time_t seconds = time(NULL);

		strftime(value, 256, "%Y/%m/%d %H:%M:%S.000", localtime(&seconds));
	} else
		return false;
	return true;
}

static bool process_field(const char *field, int index, char value[256], const char **unit)
{
	const struct process *process = &processes[index];

	*unit = "";
	if (strcmp(field, "pid") == 0)
		snprintf(value, 256, "%ld", (long)process->pid);
	else if (strcmp(field, "process_name") == 0 || strcmp(field, "name") == 0)
		snprintf(value, 256, "%s", process->name);
	else if (strcmp(field, "used_memory") == 0 || strcmp(field, "used_gpu_memory") == 0)
		with_unit(value, *unit = "MiB", "%ld", (long)(process->used / MIB));
	else if (strcmp(field, "gpu_uuid") == 0)
		snprintf(value, 256, "%s", process->gpu < gpu_count ? gpus[process->gpu].uuid : "[N/A]");
	else if (strcmp(field, "gpu_name") == 0)
		snprintf(value, 256, "%s", process->gpu < gpu_count ? gpus[process->gpu].name : "[N/A]");
	else
		return false;
	return true;
}

typedef bool field_function(const char *field, int index, char value[256], const char **unit);

/* One line; `index` -1 for the header. False, with a message, for a field that is not known. */
static bool print_row(const char *fields, int index, field_function *read_field)
{
	char field[64], value[256];
	const char *unit, *separator = "";

	while (*fields != '\0') {
		size_t length = strcspn(fields, ",");

		while (length > 0 && *fields == ' ') {
			fields++;
			length--;
		}
		snprintf(field, sizeof field, "%.*s", (int)(length < sizeof field ? length : sizeof field - 1), fields);
		if (!read_field(field, index < 0 ? 0 : index, value, &unit)) {
			fprintf(stdout, "Field \"%s\" is not a valid field to query.\n\n", field);
			return false;
		}
		if (index >= 0)
			printf("%s%s", separator, value);
		else if (options.units && *unit != '\0')
			printf("%s%s [%s]", separator, field, unit);
		else
			printf("%s%s", separator, field);
		separator = ", ";
		fields += length;
		fields += *fields == ',';
	}
	putchar('\n');
	return true;
}

static int print_query(void)
{
	const bool by_gpu = options.gpu_fields != NULL;
	const char *fields = by_gpu ? options.gpu_fields : options.process_fields;
	field_function *read_field = by_gpu ? gpu_field : process_field;
	int count = by_gpu ? gpu_count : process_count;

	if (options.header && !print_row(fields, -1, read_field))
		return BAD_ARGUMENT;
	for (int i = 0; i < count; i++) {
		if (!chosen(by_gpu ? i : (int)processes[i].gpu))
			continue;
		if (!print_row(fields, i, read_field))
			return BAD_ARGUMENT;
	}
	return FINE;
}

/* --- arguments --------------------------------------------------------------------------------------------------- */

static const char *const usage =
	"nvidia-smi [-L | --query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i ID]\n"
	"  no option                    the session's GPUs and their processes, as a table\n"
	"  -L, --list-gpus              one line for each GPU\n"
	"  -i, --id=ID                  only this GPU: index, UUID or bus id\n"
	"  --query-gpu=FIELDS           index, name, uuid, pci.bus_id, driver_version, count, pstate, timestamp,\n"
	"                               temperature.gpu, memory.total, memory.used, memory.free, utilization.gpu,\n"
	"                               utilization.memory, power.draw, power.limit\n"
	"  --query-compute-apps=FIELDS  pid, process_name, used_memory, gpu_uuid, gpu_name\n"
	"  --format=csv[,noheader][,nounits]\n"
	"A stand-in of juice-sim: it shows what the session has, from the session's agent.\n";

static bool read_format(const char *format)
{
	while (*format != '\0') {
		size_t length = strcspn(format, ",");

		while (*format == ' ' && length > 0) {
			format++;
			length--;
		}
		if (length == 3 && strncmp(format, "csv", 3) == 0)
			options.csv = true;
		else if (length == 8 && strncmp(format, "noheader", 8) == 0)
			options.header = false;
		else if (length == 7 && strncmp(format, "nounits", 7) == 0)
			options.units = false;
		else
			return false;
		format += length;
		format += *format == ',';
	}
	return true;
}

/* The value of `--name=value` or `--name value`; NULL when the argument is another. */
static const char *option(char *const arguments[], int *at, const char *name)
{
	size_t length = strlen(name);

	if (strncmp(arguments[*at], name, length) != 0)
		return NULL;
	if (arguments[*at][length] == '=')
		return arguments[*at] + length + 1;
	if (arguments[*at][length] == '\0' && arguments[*at + 1] != NULL)
		return arguments[++*at];
	return NULL;
}

static int bad_argument(const char *argument)
{
	printf("Invalid combination of input arguments (%s). Please run 'nvidia-smi -h' for help.\n", argument);
	return BAD_ARGUMENT;
}

static int read_arguments(char *const arguments[])
{
	for (int at = 1; arguments[at] != NULL; at++) {
		const char *argument = arguments[at], *value;

		if (strcmp(argument, "-L") == 0 || strcmp(argument, "--list-gpus") == 0)
			options.list = true;
		else if ((value = option(arguments, &at, "--query-gpu")) != NULL)
			options.gpu_fields = value;
		else if ((value = option(arguments, &at, "--query-compute-apps")) != NULL)
			options.process_fields = value;
		else if ((value = option(arguments, &at, "--format")) != NULL) {
			if (!read_format(value))
				return bad_argument(argument);
		} else if ((value = option(arguments, &at, "--id")) != NULL || (value = option(arguments, &at, "-i")) != NULL)
			options.id = value;
		else
			return bad_argument(argument);
	}
	if ((options.gpu_fields != NULL || options.process_fields != NULL) && !options.csv) {
		puts("\"--format=\" is needed with a query: --format=csv[,noheader][,nounits]");
		return BAD_ARGUMENT;
	}
	return FINE;
}

int main(int count, char *arguments[])
{
	int rc;

	for (int i = 1; i < count; i++) {
		if (strcmp(arguments[i], "-h") == 0 || strcmp(arguments[i], "--help") == 0) {
			fputs(usage, stdout);
			return FINE;
		}
	}
	if (getenv("JUICE_CFG_OVERRIDE") == NULL)
		make_room(arguments);
	rc = read_arguments(arguments);
	if (rc != FINE)
		return rc;
	if (!read_session()) {
		puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
		     "NVIDIA driver is installed and running.\n\nThis is the stand-in of juice-sim: it needs a Juice session "
		     "(JUICE_CFG_OVERRIDE) whose agent can be reached.");
		return NO_DRIVER;
	}
	rc = NOT_FOUND;
	for (int i = 0; i < gpu_count; i++) {
		if (chosen(i))
			rc = FINE;
	}
	if (rc != FINE) {
		puts(options.id == NULL ? "No devices were found" : "No devices were found with that id");
		return rc;
	}
	if (options.list)
		print_list();
	else if (options.gpu_fields != NULL || options.process_fields != NULL)
		return print_query();
	else
		print_table();
	return FINE;
}
