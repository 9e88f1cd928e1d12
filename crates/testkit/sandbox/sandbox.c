/* The time of day, the names and the network of a single process, as files say. Loaded into a program with LD_PRELOAD: see `testkit::sandbox`.
 *
 * RIALTO_TEST_CLOCK names a file with the seconds by which the wall clock is wrong; every other clock is left alone.
 * RIALTO_TEST_NAMES names a file with a line `NAME ADDRESS` for each name that is answered here; the address `-` is a resolver
 * that is down. All other names go to the system.
 * RIALTO_TEST_CONNECTIONS names a file to which every address is added that the process connects to. Nothing beyond loopback is
 * reached. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static ssize_t contents(const char *variable, char *text, size_t size)
{
	const char *path = getenv(variable);
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return -1;
	ssize_t length = read(file, text, size - 1);
	close(file);
	if (length >= 0)
		text[length] = 0;
	return length;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	char text[32];
	int failed = (int)syscall(SYS_clock_gettime, clock, now);
	if (!failed && clock == CLOCK_REALTIME && contents("RIALTO_TEST_CLOCK", text, sizeof text) > 0)
		now->tv_sec += atoll(text);
	return failed;
}

int connect(int socket, const struct sockaddr *peer, socklen_t length)
{
	char text[INET6_ADDRSTRLEN + 1] = "";
	int loopback = 1;
	if (peer->sa_family == AF_INET) {
		const struct in_addr *address = &((const struct sockaddr_in *)peer)->sin_addr;
		inet_ntop(AF_INET, address, text, INET6_ADDRSTRLEN);
		loopback = ntohl(address->s_addr) >> 24 == 127;
	} else if (peer->sa_family == AF_INET6) {
		const struct in6_addr *address = &((const struct sockaddr_in6 *)peer)->sin6_addr;
		inet_ntop(AF_INET6, address, text, INET6_ADDRSTRLEN);
		loopback = IN6_IS_ADDR_LOOPBACK(address);
	}
	const char *path = getenv("RIALTO_TEST_CONNECTIONS");
	int file = path && *text ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
	if (file >= 0) {
		size_t end = strlen(text);
		text[end] = '\n';
		if (write(file, text, end + 1) < 0)
			loopback = 0;
		close(file);
	}
	if (!loopback) {
		errno = ENETUNREACH;
		return -1;
	}
	return (int)syscall(SYS_connect, socket, peer, length);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
	int (*system)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
	char text[4096], known[256], address[64];
	if (name && contents("RIALTO_TEST_NAMES", text, sizeof text) > 0)
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
			if (sscanf(line, "%255s %63s", known, address) == 2 && !strcasecmp(known, name))
				return strcmp(address, "-") ? system(address, service, hints, found) : EAI_AGAIN;
	return system(name, service, hints, found);
}
