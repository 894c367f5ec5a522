/* Tells, before anything else, on which CPUs it may run, and then its arguments: fields that end
 * with a 0, namely the CPUs by commas, how many arguments there are, and those. It says nothing
 * where the kernel would tell others of other arguments. It is static, so that it runs in an empty
 * root. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CPUS = 8192, MOST_BYTES = 4 << 20 };

static char record[MOST_BYTES], cmdline[MOST_BYTES];

static int is_cmdline(const char *arguments, size_t length)
{
    int file = open("/proc/self/cmdline", O_RDONLY);
    size_t used = 0;
    for (ssize_t got = 0; file >= 0 && used < MOST_BYTES; used += (size_t)got)
        if ((got = read(file, cmdline + used, MOST_BYTES - used)) <= 0)
            break;
    return file < 0 || (used == length && memcmp(cmdline, arguments, length) == 0);
}

int main(int argc, char **argv)
{
    cpu_set_t found[CPUS / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof found, found) != 0)
        return 1;
    size_t used = 0;
    for (size_t cpu = 0; cpu < CPUS; cpu++)
        if (CPU_ISSET_S(cpu, sizeof found, found))
            used += (size_t)sprintf(record + used, "%s%zu", used > 0 ? "," : "", cpu);
    used++;
    used += (size_t)sprintf(record + used, "%d", argc) + 1;
    const size_t before = used;
    for (int number = 0; number < argc; number++) {
        size_t length = strlen(argv[number]) + 1;
        memcpy(record + used, argv[number], length);
        used += length;
    }
    /* More than a pipe takes at once must not meet what others write. */
    if (!is_cmdline(record + before, used - before) || lockf(STDOUT_FILENO, F_LOCK, 0) != 0)
        return 1;
    for (size_t told = 0; told < used;) {
        ssize_t more = write(STDOUT_FILENO, record + told, used - told);
        if (more < 0)
            return 1;
        told += (size_t)more;
    }
    return 0;
}
