/* cuInit, the devices and what they are. */
#include "cuda.h"

#include "connection.h"
#include "json.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static struct {
	pthread_mutex_t lock;
	pid_t process; /* in which cuInit succeeded; 0: in none */
	int count;
	struct gpu gpus[MAX_GPUS];
} devices = {.lock = PTHREAD_MUTEX_INITIALIZER};

void cuda_lock(void)
{
	pthread_mutex_lock(&devices.lock);
}

void cuda_unlock(void)
{
	pthread_mutex_unlock(&devices.lock);
}

int cuda_gpu_count(void)
{
	return devices.count;
}

struct gpu *cuda_gpu(CUdevice device)
{
	return device >= 0 && device < devices.count ? &devices.gpus[device] : NULL;
}

/* As with the real driver, a child made by fork() cannot use what its parent has initialised. */
CUresult cuda_ready(void)
{
	return devices.process == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static void text_member(struct json object, const char *name, char *text, size_t size)
{
	struct json value;

	text[0] = '\0';
	if (json_member(object, name, &value))
		json_string(value, text, size);
}

static int read_gpus(const char *answer, struct gpu gpus[MAX_GPUS])
{
	struct json object, list, item, value;
	int count = 0;

	if (!json_value(answer, strlen(answer), &object) || !json_member(object, "gpus", &list))
		return 0;
	while (count < MAX_GPUS && json_element(list, (size_t)count, &item)) {
		struct gpu *gpu = &gpus[count];
		int64_t vram = 0;

		memset(gpu, 0, sizeof *gpu);
		gpu->position = count++;
		text_member(item, "name", gpu->name, sizeof gpu->name);
		text_member(item, "uuid", gpu->uuid, sizeof gpu->uuid);
		text_member(item, "pciBus", gpu->pci_bus, sizeof gpu->pci_bus);
		if (json_member(item, "vram", &value) && json_integer(value, &vram) && vram > 0)
			gpu->vram = (uint64_t)vram;
	}
	return count;
}

/* The GPU that an item of CUDA_VISIBLE_DEVICES means: a number, or the beginning of a UUID. -1: none. */
static int named_gpu(const char *item, size_t length, const struct gpu *gpus, int count)
{
	char *end;
	long number = strtol(item, &end, 10);
	int found = -1;

	if (end == item + length && length > 0)
		return number >= 0 && number < count ? (int)number : -1;
	for (int i = 0; i < count && length > 4; i++) {
		if (strncasecmp(gpus[i].uuid, item, length) == 0) {
			if (found >= 0)
				return -1;
			found = i;
		}
	}
	return found;
}

/* CUDA_VISIBLE_DEVICES chooses and orders; the first item that means nothing, or that was there, ends the list. */
static int choose_visible(const struct gpu *gpus, int count, struct gpu visible[MAX_GPUS])
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	bool used[MAX_GPUS] = {false};
	int number = 0;

	if (list == NULL) {
		memcpy(visible, gpus, (size_t)count * sizeof *gpus);
		return count;
	}
	while (*list != '\0') {
		size_t blanks = strspn(list, " "), length = strcspn(list + blanks, ", ");
		int found = named_gpu(list + blanks, length, gpus, count);

		if (found < 0 || used[found])
			break;
		used[found] = true;
		visible[number++] = gpus[found];
		list += blanks + length;
		list += strspn(list, " ");
		if (*list != ',')
			break;
		list++;
	}
	return number;
}

CUresult cuInit(unsigned flags)
{
	struct gpu gpus[MAX_GPUS];
	CUresult result = CUDA_ERROR_NO_DEVICE;
	char *answer;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cuda_lock();
	if (devices.process == getpid()) {
		cuda_unlock();
		return CUDA_SUCCESS;
	}
	if (devices.process != 0) {
		cuda_unlock();
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	answer = connection_ask("{\"gpus\":true}\n");
	if (answer != NULL) {
		devices.count = choose_visible(gpus, read_gpus(answer, gpus), devices.gpus);
		if (devices.count > 0) {
			devices.process = getpid();
			result = CUDA_SUCCESS;
		}
		free(answer);
	}
	cuda_unlock();
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *number)
{
	CUresult ready = cuda_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (number == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*number = devices.count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult ready = cuda_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (cuda_gpu(ordinal) == NULL)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

/* The GPU of a device that may be asked about, with somewhere to put the answer. */
static CUresult asked(CUdevice device, const void *answer, const struct gpu **gpu)
{
	CUresult ready = cuda_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (answer == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*gpu = cuda_gpu(device);
	return *gpu != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult give_text(const char *from, char *text, int size)
{
	if (size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(text, (size_t)size, "%s", from);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, name, &gpu);

	return result == CUDA_SUCCESS ? give_text(gpu->name, name, size) : result;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, id, &gpu);

	return result == CUDA_SUCCESS ? give_text(gpu->pci_bus, id, size) : result;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, uuid, &gpu);
	size_t digits = 0;

	if (result != CUDA_SUCCESS)
		return result;
	memset(uuid, 0, sizeof *uuid);
	for (const char *at = gpu->uuid + (strncmp(gpu->uuid, "GPU-", 4) == 0 ? 4 : 0); *at != '\0' && digits < 32; at++) {
		int digit = hex_digit(*at);

		if (digit >= 0) {
			uuid->bytes[digits / 2] = (char)((uuid->bytes[digits / 2] << 4) | digit);
			digits++;
		}
	}
	return CUDA_SUCCESS;
}
CUDA_ALSO(CUresult, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), cuDeviceGetUuid_v2);

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, bytes, &gpu);

	if (result == CUDA_SUCCESS)
		*bytes = gpu->vram;
	return result;
}
CUDA_ALSO(CUresult, cuDeviceTotalMem, (size_t * bytes, CUdevice device), cuDeviceTotalMem_v2);

/* Compute capability and multiprocessors, by a part of the name; the first that fits. */
static const struct {
	const char *part;
	int major, minor, processors;
} models[] = {
	{"B200", 10, 0, 148},    {"H200", 9, 0, 132},     {"H100", 9, 0, 132},     {"GH200", 9, 0, 132},
	{"L40", 8, 9, 142},      {"L4", 8, 9, 58},        {"RTX 6000 Ada", 8, 9, 142}, {"4090", 8, 9, 128},
	{"A100", 8, 0, 108},     {"A30", 8, 0, 56},       {"A10", 8, 6, 72},       {"A40", 8, 6, 84},
	{"A6000", 8, 6, 84},     {"3090", 8, 6, 82},      {"A2", 8, 6, 10},        {"T4", 7, 5, 40},
	{"2080", 7, 5, 68},      {"V100", 7, 0, 80},      {"P100", 6, 0, 56},      {"P40", 6, 1, 30},
	{"", 8, 6, 72},
};

static size_t model_of(const struct gpu *gpu)
{
	size_t i = 0;

	while (strstr(gpu->name, models[i].part) == NULL)
		i++;
	return i;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, minor == NULL ? NULL : major, &gpu);

	if (result == CUDA_SUCCESS) {
		*major = models[model_of(gpu)].major;
		*minor = models[model_of(gpu)].minor;
	}
	return result;
}

/* One field of a PCI address `domain:bus:device.function`. */
static int pci_field(const struct gpu *gpu, int field)
{
	const char *at = gpu->pci_bus;
	char *end;

	for (;;) {
		unsigned long number = strtoul(at, &end, 16);

		if (end == at)
			return 0;
		if (field-- == 0)
			return (int)number;
		if (*end != ':')
			return 0;
		at = end + 1;
	}
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	const struct gpu *gpu;
	CUresult result = asked(device, value, &gpu);

	if (result != CUDA_SUCCESS)
		return result;
	switch (attribute) {
	case 1: /* MAX_THREADS_PER_BLOCK */
	case 2: /* MAX_BLOCK_DIM_X */
	case 3: /* MAX_BLOCK_DIM_Y */
		*value = 1024;
		break;
	case 4: /* MAX_BLOCK_DIM_Z */
		*value = 64;
		break;
	case 5: /* MAX_GRID_DIM_X */
		*value = 2147483647;
		break;
	case 6: /* MAX_GRID_DIM_Y */
	case 7: /* MAX_GRID_DIM_Z */
		*value = 65535;
		break;
	case 8: /* MAX_SHARED_MEMORY_PER_BLOCK */
		*value = 49152;
		break;
	case 9: /* TOTAL_CONSTANT_MEMORY */
		*value = 65536;
		break;
	case 10: /* WARP_SIZE */
		*value = 32;
		break;
	case 12: /* MAX_REGISTERS_PER_BLOCK */
		*value = 65536;
		break;
	case 13: /* CLOCK_RATE, kHz */
		*value = 1500000;
		break;
	case 14: /* TEXTURE_ALIGNMENT */
		*value = 512;
		break;
	case 16: /* MULTIPROCESSOR_COUNT */
		*value = models[model_of(gpu)].processors;
		break;
	case 33: /* PCI_BUS_ID */
		*value = pci_field(gpu, 1);
		break;
	case 34: /* PCI_DEVICE_ID */
		*value = pci_field(gpu, 2);
		break;
	case 39: /* MAX_THREADS_PER_MULTIPROCESSOR */
		*value = 1536;
		break;
	case 50: /* PCI_DOMAIN_ID */
		*value = pci_field(gpu, 0);
		break;
	case 75: /* COMPUTE_CAPABILITY_MAJOR */
		*value = models[model_of(gpu)].major;
		break;
	case 76: /* COMPUTE_CAPABILITY_MINOR */
		*value = models[model_of(gpu)].minor;
		break;
	case 41: /* UNIFIED_ADDRESSING */
		*value = 1;
		break;
	default: /* a feature that is not simulated: the device does not have it */
		if (attribute <= 0)
			return CUDA_ERROR_INVALID_VALUE;
		*value = 0;
	}
	return CUDA_SUCCESS;
}
