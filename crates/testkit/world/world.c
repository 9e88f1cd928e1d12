/* The time of day and the names of a single process, as a file says. Loaded into a program with LD_PRELOAD: see `testkit::world`.
 *
 * RIALTO_TEST_CLOCK names a file with the seconds by which the wall clock is wrong; every other clock is left alone.
 * RIALTO_TEST_NAMES names a file with a line `NAME ADDRESS` for each name that is answered here; the address `-` is a resolver
 * that is down. All other names go to the system. */
#define _GNU_SOURCE
#include <dlfcn.h>
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
