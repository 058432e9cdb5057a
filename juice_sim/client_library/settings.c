#include "settings.h"

#include "json.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numeric addresses, which agents give, need no resolver: loading it would cost more than all the rest. */
static bool numeric_address(const char *host, unsigned short port, struct settings *settings)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&settings->agent;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&settings->agent;

	memset(&settings->agent, 0, sizeof settings->agent);
	if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		settings->agent_size = sizeof *four;
		return true;
	}
	if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(port);
		settings->agent_size = sizeof *six;
		return true;
	}
	return false;
}

static bool resolve(const char *host, const char *port, struct settings *settings, char error[256])
{
	struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
	int rc = getaddrinfo(host, port, &wanted, &found);

	if (rc != 0) {
		snprintf(error, 256, "the agent's host %.128s cannot be resolved: %s", host, gai_strerror(rc));
		return false;
	}
	memcpy(&settings->agent, found->ai_addr, found->ai_addrlen);
	settings->agent_size = found->ai_addrlen;
	freeaddrinfo(found);
	return true;
}

static bool split_address(struct settings *settings, char error[256])
{
	char host[320];
	const char *colon = strrchr(settings->address, ':');
	char *end;
	unsigned long port = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;
	size_t length;

	if (colon == NULL || colon == settings->address || colon[1] < '0' || colon[1] > '9' || *end != '\0' || port == 0 ||
	    port > 65535) {
		snprintf(error, 256, SETTINGS_VARIABLE ": the agent's address \"%.128s\" is not host:port", settings->address);
		return false;
	}
	length = (size_t)(colon - settings->address);
	memcpy(host, settings->address, length);
	host[length] = '\0';
	if (host[0] == '[' && host[length - 1] == ']') {
		memmove(host, host + 1, length - 2);
		host[length - 2] = '\0';
	}
	return numeric_address(host, (unsigned short)port, settings) || resolve(host, colon + 1, settings, error);
}

/* A session's id goes into the path of a request as it stands. */
static bool plain(const char *id)
{
	return *id != '\0' && id[strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")] == '\0';
}

enum settings_verdict settings_read(const char *text, struct settings *settings, char error[256])
{
	struct json object, value, server;

	if (text == NULL || *text == '\0')
		return SETTINGS_NONE;
	settings->text = text;
	if (!json_value(text, strlen(text), &object) || *object.at != '{') {
		snprintf(error, 256, SETTINGS_VARIABLE " is not a JSON object");
		return SETTINGS_INVALID;
	}
	if (!json_member(object, "id", &value))
		return SETTINGS_NONE;
	if (!json_string(value, settings->session_id, sizeof settings->session_id) || !plain(settings->session_id)) {
		snprintf(error, 256, SETTINGS_VARIABLE ": \"id\" is not the id of a session");
		return SETTINGS_INVALID;
	}
	if (!json_member(object, "servers", &value) || !json_element(value, 0, &server) ||
	    !json_string(server, settings->address, sizeof settings->address)) {
		snprintf(error, 256, SETTINGS_VARIABLE ": \"servers\" names no agent");
		return SETTINGS_INVALID;
	}
	return split_address(settings, error) ? SETTINGS_FINE : SETTINGS_INVALID;
}
