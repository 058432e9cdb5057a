/*
 * The part of the CUDA driver API that the library answers: what programs call to look at their GPU and to take and
 * give back memory. Written from the API's documentation; names, numbers and layouts are CUDA's.
 */
#ifndef JUICE_CUDA_H
#define JUICE_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct {
	char bytes[16];
} CUuuid;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

#define CUDA_VERSION 12040

#define EXPORTED __attribute__((visibility("default")))

/* The API's functions, also for cuGetProcAddress. */
#define CUDA_FUNCTIONS(each)                                                                       \
	each(CUresult, cuInit, (unsigned flags))                                                   \
	each(CUresult, cuDriverGetVersion, (int *version))                                         \
	each(CUresult, cuGetErrorName, (CUresult error, const char **name))                        \
	each(CUresult, cuGetErrorString, (CUresult error, const char **text))                      \
	each(CUresult, cuDeviceGetCount, (int *number))                                            \
	each(CUresult, cuDeviceGet, (CUdevice *device, int ordinal))                               \
	each(CUresult, cuDeviceGetName, (char *name, int size, CUdevice device))                   \
	each(CUresult, cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))                           \
	each(CUresult, cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))                        \
	each(CUresult, cuDeviceTotalMem, (size_t *bytes, CUdevice device))                         \
	each(CUresult, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                      \
	each(CUresult, cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device)) \
	each(CUresult, cuDeviceComputeCapability, (int *major, int *minor, CUdevice device))       \
	each(CUresult, cuDeviceGetPCIBusId, (char *id, int size, CUdevice device))                 \
	each(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))            \
	each(CUresult, cuDevicePrimaryCtxRelease, (CUdevice device))                               \
	each(CUresult, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                            \
	each(CUresult, cuDevicePrimaryCtxReset, (CUdevice device))                                 \
	each(CUresult, cuDevicePrimaryCtxReset_v2, (CUdevice device))                              \
	each(CUresult, cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags))              \
	each(CUresult, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags))           \
	each(CUresult, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active)) \
	each(CUresult, cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device))         \
	each(CUresult, cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device))      \
	each(CUresult, cuCtxDestroy, (CUcontext context))                                          \
	each(CUresult, cuCtxDestroy_v2, (CUcontext context))                                       \
	each(CUresult, cuCtxGetCurrent, (CUcontext *context))                                      \
	each(CUresult, cuCtxSetCurrent, (CUcontext context))                                       \
	each(CUresult, cuCtxPushCurrent, (CUcontext context))                                      \
	each(CUresult, cuCtxPushCurrent_v2, (CUcontext context))                                   \
	each(CUresult, cuCtxPopCurrent, (CUcontext *context))                                      \
	each(CUresult, cuCtxPopCurrent_v2, (CUcontext *context))                                   \
	each(CUresult, cuCtxGetDevice, (CUdevice *device))                                         \
	each(CUresult, cuCtxGetApiVersion, (CUcontext context, unsigned *version))                 \
	each(CUresult, cuCtxSynchronize, (void))                                                   \
	each(CUresult, cuMemGetInfo, (size_t *unused, size_t *total))                              \
	each(CUresult, cuMemGetInfo_v2, (size_t *unused, size_t *total))                           \
	each(CUresult, cuMemAlloc, (CUdeviceptr *pointer, size_t bytes))                           \
	each(CUresult, cuMemAlloc_v2, (CUdeviceptr *pointer, size_t bytes))                        \
	each(CUresult, cuMemFree, (CUdeviceptr pointer))                                           \
	each(CUresult, cuMemFree_v2, (CUdeviceptr pointer))                                        \
	each(CUresult, cuMemGetAddressRange, (CUdeviceptr *base, size_t *size, CUdeviceptr pointer)) \
	each(CUresult, cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *size, CUdeviceptr pointer)) \
	each(CUresult, cuGetProcAddress, (const char *symbol, void **function, int version, uint64_t flags)) \
	each(CUresult, cuGetProcAddress_v2,                                                        \
	     (const char *symbol, void **function, int version, uint64_t flags, int *status))

#define CUDA_DECLARE(type, name, arguments) EXPORTED type name arguments;
CUDA_FUNCTIONS(CUDA_DECLARE)

/* A function under a second name, that of an older version of the API whose sizes have 64 bits here as well. */
#define CUDA_ALSO(type, name, arguments, same) EXPORTED type name arguments __attribute__((alias(#same)))

/* One line from the agent for one from us; see connection_ask(). For nvidia-smi, which has no connection of its own. */
EXPORTED char *juice_client_ask(const char *line);

/* --- between the library's own files ----------------------------------------------------------------------------- */

#define MAX_GPUS 64

struct gpu {
	char name[96], uuid[64], pci_bus[32];
	uint64_t vram;     /* bytes that the session has of it */
	int position;      /* among the session's GPUs, which the agent is told */
	uint64_t taken;    /* bytes that this process has, as the agent was told */
	CUcontext primary; /* NULL until it is retained */
	unsigned primary_users, primary_flags;
};

/* All below is for holders of this lock. */
void cuda_lock(void);
void cuda_unlock(void);

/* CUDA_SUCCESS when cuInit has succeeded in this very process. */
CUresult cuda_ready(void);

/* NULL when there is no such device. */
struct gpu *cuda_gpu(CUdevice device);

int cuda_gpu_count(void);

/* Tells the agent how much memory of the GPU this process has now. OUT_OF_MEMORY, and nothing changes, beyond the rest.
 * `unused` (may be NULL) becomes what the session has left. */
CUresult cuda_take(struct gpu *gpu, uint64_t bytes, uint64_t *unused);

/* The current context of this thread and its device. */
CUresult cuda_current(CUcontext *context, struct gpu **gpu);

/* Gives back what was allocated in a context. */
void cuda_free_all(CUcontext context, struct gpu *gpu);


#endif
