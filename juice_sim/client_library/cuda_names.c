/* Errors in words, and functions by name. */
#include "cuda.h"

#include "connection.h"

#include <stdio.h>
#include <string.h>

static const struct {
	CUresult error;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
	 "cannot set while device is active in this process"},
	{CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static const char *words(CUresult error, int wants_name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].error == error)
			return wants_name ? errors[i].name : errors[i].text;
	}
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*name = words(error, 1);
	return *name != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	if (text == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*text = words(error, 0);
	return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define ENTRY(type, name, arguments) {#name, (void (*)(void))name},
static const struct {
	const char *name;
	void (*function)(void);
} functions[] = {CUDA_FUNCTIONS(ENTRY)};

static void *function_named(const char *name)
{
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		if (strcmp(functions[i].name, name) == 0)
			return (void *)functions[i].function;
	}
	return NULL;
}

/* `symbol` has no suffix; the newest version of the function is meant. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	char versioned[128];

	(void)version;
	(void)flags;
	if (symbol == NULL || function == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(versioned, sizeof versioned, "%s_v2", symbol);
	*function = function_named(versioned);
	if (*function == NULL)
		*function = function_named(symbol);
	if (status != NULL)
		*status = *function != NULL ? 0 : 1; /* SUCCESS, SYMBOL_NOT_FOUND */
	return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

char *juice_client_ask(const char *line)
{
	return connection_ask(line);
}
