/* Contexts: those that programs make, and each device's primary one. */
#include "cuda.h"

#include <stdbool.h>
#include <stdlib.h>

#define DEEPEST 32

struct CUctx_st {
	CUdevice device;
	bool primary;
	struct CUctx_st *next;
};

static struct CUctx_st *contexts; /* all that live */
static _Thread_local CUcontext stack[DEEPEST];
static _Thread_local int depth; /* the top, stack[depth - 1], is current */

static bool lives(CUcontext context)
{
	for (CUcontext one = contexts; one != NULL; one = one->next) {
		if (one == context)
			return true;
	}
	return false;
}

static CUcontext make(CUdevice device, bool primary)
{
	CUcontext context = calloc(1, sizeof *context);

	if (context != NULL) {
		context->device = device;
		context->primary = primary;
		context->next = contexts;
		contexts = context;
	}
	return context;
}

static void destroy(CUcontext context)
{
	struct CUctx_st **at = &contexts;

	cuda_free_all(context, cuda_gpu(context->device));
	while (*at != context)
		at = &(*at)->next;
	*at = context->next;
	free(context);
}

CUresult cuda_current(CUcontext *context, struct gpu **gpu)
{
	CUresult ready = cuda_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (depth == 0 || stack[depth - 1] == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!lives(stack[depth - 1]))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*context = stack[depth - 1];
	*gpu = cuda_gpu((*context)->device);
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	if (depth == DEEPEST)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

/* Runs the rest of a function with the lock held, once the API is ready. */
#define GUARDED(result, ...)                 \
	do {                                 \
		CUresult result;             \
		cuda_lock();                 \
		result = cuda_ready();       \
		if (result == CUDA_SUCCESS)  \
			__VA_ARGS__          \
		cuda_unlock();               \
		return result;               \
	} while (0)

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	(void)flags;
	GUARDED(result, {
		if (context == NULL)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (cuda_gpu(device) == NULL)
			result = CUDA_ERROR_INVALID_DEVICE;
		else if ((*context = make(device, false)) == NULL)
			result = CUDA_ERROR_OUT_OF_MEMORY;
		else
			result = push(*context);
	});
}
CUDA_ALSO(CUresult, cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device), cuCtxCreate_v2);

CUresult cuCtxDestroy_v2(CUcontext context)
{
	GUARDED(result, {
		if (!lives(context) || context->primary) {
			result = CUDA_ERROR_INVALID_CONTEXT;
		} else {
			if (depth > 0 && stack[depth - 1] == context)
				depth--;
			destroy(context);
		}
	});
}
CUDA_ALSO(CUresult, cuCtxDestroy, (CUcontext context), cuCtxDestroy_v2);

CUresult cuCtxGetCurrent(CUcontext *context)
{
	GUARDED(result, {
		if (context == NULL)
			result = CUDA_ERROR_INVALID_VALUE;
		else
			*context = depth > 0 ? stack[depth - 1] : NULL;
	});
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	GUARDED(result, {
		if (context != NULL && !lives(context)) {
			result = CUDA_ERROR_INVALID_CONTEXT;
		} else {
			if (depth > 0)
				depth--;
			if (context != NULL)
				result = push(context);
		}
	});
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	GUARDED(result, { result = lives(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT; });
}
CUDA_ALSO(CUresult, cuCtxPushCurrent, (CUcontext context), cuCtxPushCurrent_v2);

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	GUARDED(result, {
		if (depth == 0) {
			result = CUDA_ERROR_INVALID_CONTEXT;
		} else {
			depth--;
			if (context != NULL)
				*context = stack[depth];
		}
	});
}
CUDA_ALSO(CUresult, cuCtxPopCurrent, (CUcontext * context), cuCtxPopCurrent_v2);

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUcontext context;
	struct gpu *gpu;

	GUARDED(result, {
		result = device != NULL ? cuda_current(&context, &gpu) : CUDA_ERROR_INVALID_VALUE;
		if (result == CUDA_SUCCESS)
			*device = context->device;
	});
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	GUARDED(result, {
		if (version == NULL)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (context != NULL && !lives(context))
			result = CUDA_ERROR_INVALID_CONTEXT;
		else
			*version = CUDA_VERSION;
	});
}

CUresult cuCtxSynchronize(void)
{
	CUcontext context;
	struct gpu *gpu;

	GUARDED(result, { result = cuda_current(&context, &gpu); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct gpu *gpu;

	GUARDED(result, {
		gpu = cuda_gpu(device);
		if (context == NULL) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else if (gpu == NULL) {
			result = CUDA_ERROR_INVALID_DEVICE;
		} else {
			if (gpu->primary == NULL)
				gpu->primary = make(device, true);
			if (gpu->primary == NULL) {
				result = CUDA_ERROR_OUT_OF_MEMORY;
			} else {
				gpu->primary_users++;
				*context = gpu->primary;
			}
		}
	});
}

static void reset_primary(struct gpu *gpu)
{
	if (gpu->primary != NULL)
		destroy(gpu->primary);
	gpu->primary = NULL;
	gpu->primary_users = 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	struct gpu *gpu;

	GUARDED(result, {
		gpu = cuda_gpu(device);
		if (gpu == NULL)
			result = CUDA_ERROR_INVALID_DEVICE;
		else if (gpu->primary_users == 0)
			result = CUDA_ERROR_INVALID_CONTEXT;
		else if (--gpu->primary_users == 0)
			reset_primary(gpu);
	});
}
CUDA_ALSO(CUresult, cuDevicePrimaryCtxRelease, (CUdevice device), cuDevicePrimaryCtxRelease_v2);

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	struct gpu *gpu;

	GUARDED(result, {
		gpu = cuda_gpu(device);
		if (gpu == NULL)
			result = CUDA_ERROR_INVALID_DEVICE;
		else
			reset_primary(gpu);
	});
}
CUDA_ALSO(CUresult, cuDevicePrimaryCtxReset, (CUdevice device), cuDevicePrimaryCtxReset_v2);

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	struct gpu *gpu;

	GUARDED(result, {
		gpu = cuda_gpu(device);
		if (gpu == NULL)
			result = CUDA_ERROR_INVALID_DEVICE;
		else
			gpu->primary_flags = flags;
	});
}
CUDA_ALSO(CUresult, cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags), cuDevicePrimaryCtxSetFlags_v2);

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	struct gpu *gpu;

	GUARDED(result, {
		gpu = cuda_gpu(device);
		if (flags == NULL || active == NULL) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else if (gpu == NULL) {
			result = CUDA_ERROR_INVALID_DEVICE;
		} else {
			*flags = gpu->primary_flags;
			*active = gpu->primary != NULL;
		}
	});
}
