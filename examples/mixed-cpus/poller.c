/*
 * Polls on each exclusive CPU, as a DPDK application does, and does its light work on the shared
 * ones. Every thread is pinned, and pinned again when the shared pool's folder has news.
 *
 *   poller [FOLDER]    the pool's folder; the only one in /run/cpupool where none is named
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define POOLS "/run/cpupool"
#define WAKE_MS 100

/* Each on a cache line of its own: the counts of other threads do not slow it down. */
struct poller {
    _Alignas(64) atomic_ulong polls;
    pthread_t thread;
    int cpu;
};

struct news {
    long generation;
    char cpus[8192];
};

static struct poller pollers[CPU_SETSIZE];
static int count;
static atomic_bool stopping;

/* The kernel's list format, 0-3,8; an empty list is one, too. */
static cpu_set_t parse(const char *list) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const char *at = list; *at != '\0'; at += *at == ',') {
        char *end;
        long first = strtol(at, &end, 10);
        long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (end == at || (*end != ',' && *end != '\0') || first < 0 || last >= CPU_SETSIZE)
            errx(1, "'%s' is no list of CPUs below %d", list, CPU_SETSIZE);
        for (; first <= last; first++)
            CPU_SET(first, &cpus);
        at = end;
    }
    return cpus;
}

static const char *only_folder(void) {
    static char folder[PATH_MAX];
    DIR *pools = opendir(POOLS);
    int found = 0;
    for (struct dirent *one; pools != NULL && (one = readdir(pools)) != NULL;)
        /* self is no pool: it has the container's own CPUs, where these may change. */
        if (one->d_name[0] != '.' && strcmp(one->d_name, "self") != 0 && ++found)
            snprintf(folder, sizeof folder, "%s/%s", POOLS, one->d_name);
    if (found != 1)
        errx(1, "%s has %d pools; request one shared pool, or name a folder", POOLS, found);
    closedir(pools);
    return folder;
}

/* cpus.json holds CPUs and generation of one moment. A JSON parser does it better. */
static struct news look(const char *folder) {
    struct news news = {0, ""};
    char path[PATH_MAX + 16], text[sizeof news.cpus + 256] = "";
    snprintf(path, sizeof path, "%s/cpus.json", folder);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        err(1, "%s cannot be read", path);
    fclose(file);
    const char *cpus = strstr(text, "\"cpus\": \"");
    const char *generation = strstr(text, "\"generation\": ");
    if (!cpus || !generation || sscanf(generation, "\"generation\": %ld", &news.generation) != 1)
        errx(1, "%s has no CPUs or no generation: %s", path, text);
    sscanf(cpus, "\"cpus\": \"%8191[0-9,-]", news.cpus);
    return news;
}

static void *run(void *argument) {
    struct poller *self = argument;
    /* A real one calls rte_eth_rx_burst() here. */
    while (!atomic_load_explicit(&stopping, memory_order_relaxed))
        atomic_fetch_add_explicit(&self->polls, 1, memory_order_relaxed);
    return NULL;
}

static bool pin(pthread_t thread, const cpu_set_t *cpus) {
    return pthread_setaffinity_np(thread, sizeof *cpus, cpus) == 0;
}

/* Pin the pollers, and this thread to the shared CPUs; a pool that is gone has none. */
static bool pin_all(const char *shared) {
    cpu_set_t cpus = parse(shared);
    bool pinned = CPU_COUNT(&cpus) == 0 || pin(pthread_self(), &cpus);
    for (int i = 0; i < count; i++) {
        CPU_ZERO(&cpus);
        CPU_SET(pollers[i].cpu, &cpus);
        pinned &= pin(pollers[i].thread, &cpus);
    }
    return pinned;
}

static void tell_throttled(const char *path) {
    char line[128];
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "nr_throttled ", 13) == 0)
            printf("throttled: %s", line + 13);
    if (file != NULL)
        fclose(file);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *list = getenv("EXCLUSIVE_CPUS");
    if (list == NULL)
        list = getenv("OPENSHIFT_ISOLATED_CPUS");
    if (list == NULL)
        errx(1, "no EXCLUSIVE_CPUS and no OPENSHIFT_ISOLATED_CPUS; request exclusive CPUs");
    cpu_set_t exclusive = parse(list);
    const char *folder = argc > 1 ? argv[1] : only_folder();

    /* Blocked before there are threads, so that none is interrupted. */
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &exclusive)) {
            pollers[count].cpu = cpu;
            if (pthread_create(&pollers[count].thread, NULL, run, &pollers[count]) != 0)
                errx(1, "no thread can be made for CPU %d", cpu);
            count++;
        }

    /* The folder is watched, as its files are replaced; and that before the first look. */
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (inotify_add_watch(watch, folder, IN_MOVED_TO) < 0)
        err(1, "%s cannot be watched", folder);
    struct news news = look(folder);
    bool pinned = pin_all(news.cpus);
    printf("generation %ld: shared %s, %s\n", news.generation, news.cpus,
           pinned ? "pinned" : "not all can be pinned yet");
    struct pollfd awaited[] = {
        {.fd = signalfd(-1, &ending, SFD_CLOEXEC), .events = POLLIN},
        {.fd = watch, .events = POLLIN},
    };
    unsigned long wakes = 0;
    while (poll(awaited, 2, WAKE_MS) >= 0 && awaited[0].revents == 0) {
        wakes++; /* A real one reads its configuration and writes its log here. */
        char events[4096];
        if (read(watch, events, sizeof events) > 0) {
            struct news found = look(folder);
            pinned &= found.generation == news.generation;
            news = found;
        }
        /* News may be a moment ahead of the container's cpuset. */
        if (!pinned && (pinned = pin_all(news.cpus)))
            printf("generation %ld: shared %s, pinned again\n", news.generation, news.cpus);
    }

    atomic_store(&stopping, true);
    for (int i = 0; i < count; i++) {
        pthread_join(pollers[i].thread, NULL);
        printf("CPU %d: %lu polls\n", pollers[i].cpu, atomic_load(&pollers[i].polls));
    }
    printf("shared CPUs: %lu wakes\n", wakes);
    tell_throttled("/sys/fs/cgroup/cpu.stat");     /* cgroup v2 */
    tell_throttled("/sys/fs/cgroup/cpu/cpu.stat"); /* cgroup v1 */
    return 0;
}
