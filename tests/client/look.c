/* What a program that is linked against CUDA's driver library sees: one line for each thing. */
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDeviceGet(int *, int);
int cuDeviceGetName(char *, int, int);
int cuDeviceTotalMem_v2(size_t *, int);
int cuCtxCreate_v2(CUcontext *, unsigned, int);
int cuCtxDestroy_v2(CUcontext);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);
int cuGetErrorName(int, const char **);

static const char *name_of(int error)
{
	const char *name = "?";

	cuGetErrorName(error, &name);
	return name;
}

static void memory(const char *when)
{
	size_t free_bytes = 0, total = 0;
	int rc = cuMemGetInfo_v2(&free_bytes, &total);

	printf("%s: %s free %zu total %zu\n", when, name_of(rc), free_bytes, total);
}

int main(void)
{
	int rc = cuInit(0), count = 0, device = -1;
	char name[100] = "";
	size_t total = 0;
	CUcontext context = NULL;
	CUdeviceptr half = 0, rest = 0, more = 0;

	printf("cuInit: %s\n", name_of(rc));
	if (rc != 0)
		return 1;
	cuDeviceGetCount(&count);
	cuDeviceGet(&device, 0);
	cuDeviceGetName(name, sizeof name, device);
	cuDeviceTotalMem_v2(&total, device);
	printf("%d device, %s, %zu bytes\n", count, name, total);
	printf("without a context: %s\n", name_of(cuMemAlloc_v2(&half, 1)));
	printf("cuCtxCreate: %s\n", name_of(cuCtxCreate_v2(&context, 0, device)));
	memory("at first");
	printf("half: %s\n", name_of(cuMemAlloc_v2(&half, total / 2)));
	printf("half and a byte: %s\n", name_of(cuMemAlloc_v2(&more, total / 2 + 1)));
	printf("the other half: %s\n", name_of(cuMemAlloc_v2(&rest, total / 2)));
	printf("one byte: %s\n", name_of(cuMemAlloc_v2(&more, 1)));
	memory("full");
	printf("apart: %d\n", half != 0 && rest >= half + total / 2);
	printf("free: %s\n", name_of(cuMemFree_v2(half)));
	printf("free twice: %s\n", name_of(cuMemFree_v2(half)));
	printf("free what never was: %s\n", name_of(cuMemFree_v2(rest + 1)));
	memory("after");
	printf("cuCtxDestroy: %s\n", name_of(cuCtxDestroy_v2(context)));
	printf("end: %s\n", name_of(cuCtxCreate_v2(&context, 0, device)));
	memory("a new context");
	return 0;
}
