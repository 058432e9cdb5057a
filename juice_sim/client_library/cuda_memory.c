/*
 * Memory of the GPUs: only accounted for, never there.
 *
 * The agent keeps the account, because all processes of a session share its slice: each tells it how much it has now,
 * and is granted that or not. What a process has goes back when its connection ends, however it ends.
 */
#include "cuda.h"

#include "connection.h"
#include "json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 512
#define FIRST_ADDRESS 0x700000000000ULL /* no address of the host's memory is there, so that a mix-up faults */

struct allocation {
	CUdeviceptr address;
	uint64_t size; /* as asked for; `taken` counts whole ALIGNMENTs */
	CUcontext context;
	struct gpu *gpu;
};

static struct {
	struct allocation *list; /* by ascending address, since addresses are given out ascending and never again */
	size_t count, room;
	CUdeviceptr next;
} memory = {.next = FIRST_ADDRESS};

static uint64_t rounded(uint64_t size)
{
	return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

CUresult cuda_take(struct gpu *gpu, uint64_t bytes, uint64_t *unused)
{
	char line[96];
	char *answer;
	struct json object, value;
	bool granted;
	int64_t rest = 0;

	snprintf(line, sizeof line, "{\"vramUsed\":%llu,\"gpu\":%d}\n", (unsigned long long)bytes, gpu->position);
	answer = connection_ask(line);
	if (answer == NULL)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	granted = json_value(answer, strlen(answer), &object) && json_member(object, "granted", &value) &&
		  json_is_true(value);
	if (granted) {
		gpu->taken = bytes;
		if (unused != NULL && json_member(object, "vramFree", &value) && json_integer(value, &rest))
			*unused = rest > 0 ? (uint64_t)rest : 0;
	}
	free(answer);
	return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The allocation that holds the address; NULL when none does. */
static struct allocation *holding(CUdeviceptr address)
{
	size_t low = 0, high = memory.count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (memory.list[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0 || address - memory.list[low - 1].address >= memory.list[low - 1].size)
		return NULL;
	return &memory.list[low - 1];
}

static bool make_room(void)
{
	size_t room = memory.room == 0 ? 64 : memory.room * 2;
	struct allocation *list;

	if (memory.count < memory.room)
		return true;
	list = realloc(memory.list, room * sizeof *list);
	if (list == NULL)
		return false;
	memory.list = list;
	memory.room = room;
	return true;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes)
{
	CUcontext context;
	struct gpu *gpu;
	CUresult result = cuda_current(&context, &gpu);

	if (result != CUDA_SUCCESS)
		return result;
	if (pointer == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > gpu->vram || !make_room())
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuda_take(gpu, gpu->taken + rounded(bytes), NULL);
	if (result != CUDA_SUCCESS)
		return result;
	memory.list[memory.count++] =
		(struct allocation){.address = memory.next, .size = bytes, .context = context, .gpu = gpu};
	*pointer = memory.next;
	memory.next += rounded(bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CUresult result;

	cuda_lock();
	result = allocate(pointer, bytes);
	cuda_unlock();
	return result;
}
CUDA_ALSO(CUresult, cuMemAlloc, (CUdeviceptr * pointer, size_t bytes), cuMemAlloc_v2);

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct allocation *found;
	CUresult result;

	cuda_lock();
	result = cuda_ready();
	if (result == CUDA_SUCCESS && pointer != 0) {
		found = holding(pointer);
		if (found == NULL || found->address != pointer) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else {
			result = cuda_take(found->gpu, found->gpu->taken - rounded(found->size), NULL);
			memmove(found, found + 1, (size_t)(memory.list + memory.count - (found + 1)) * sizeof *found);
			memory.count--;
		}
	}
	cuda_unlock();
	return result;
}
CUDA_ALSO(CUresult, cuMemFree, (CUdeviceptr pointer), cuMemFree_v2);

void cuda_free_all(CUcontext context, struct gpu *gpu)
{
	uint64_t freed = 0;
	size_t kept = 0;

	for (size_t i = 0; i < memory.count; i++) {
		if (memory.list[i].context == context)
			freed += rounded(memory.list[i].size);
		else
			memory.list[kept++] = memory.list[i];
	}
	memory.count = kept;
	if (freed > 0)
		cuda_take(gpu, gpu->taken - freed, NULL);
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total)
{
	CUcontext context;
	struct gpu *gpu;
	uint64_t rest = 0;
	CUresult result;

	cuda_lock();
	result = cuda_current(&context, &gpu);
	if (result == CUDA_SUCCESS && (unused == NULL || total == NULL))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = cuda_take(gpu, gpu->taken, &rest); /* nothing new; the answer tells what is left */
	if (result == CUDA_SUCCESS) {
		*unused = rest;
		*total = gpu->vram;
	}
	cuda_unlock();
	return result;
}
CUDA_ALSO(CUresult, cuMemGetInfo, (size_t * unused, size_t *total), cuMemGetInfo_v2);

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
	struct allocation *found;
	CUresult result;

	cuda_lock();
	result = cuda_ready();
	if (result == CUDA_SUCCESS) {
		found = holding(pointer);
		if (found == NULL) {
			result = CUDA_ERROR_NOT_FOUND;
		} else {
			if (base != NULL)
				*base = found->address;
			if (size != NULL)
				*size = found->size;
		}
	}
	cuda_unlock();
	return result;
}
CUDA_ALSO(CUresult, cuMemGetAddressRange, (CUdeviceptr * base, size_t *size, CUdeviceptr pointer),
	  cuMemGetAddressRange_v2);
