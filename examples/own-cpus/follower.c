/*
 * Works on each of its own CPUs, with a thread pinned to each, and follows the container's folder
 * when CPUs come or leave. A thread leaves its CPU as soon as the folder announces that it goes.
 *
 *   follower [FOLDER]    /run/cpupool/self where none is named
 */
#define _GNU_SOURCE
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
#include <time.h>
#include <unistd.h>

#define FOLDER "/run/cpupool/self"
#define AGAIN_MS 100

/* Each on a cache line of its own: the counts of other threads do not slow it down. */
struct worker {
    _Alignas(64) atomic_ulong rounds;
    atomic_bool stopping;
    pthread_t thread;
    bool works;
};

struct news {
    long long generation;
    char cpus[8192], assigned[8192];
    double not_before; /* of CLOCK_MONOTONIC; 0 where no CPU leaves */
};

/* What a thread does in each round. A data plane calls rte_eth_rx_burst() here. */
#ifndef BURST
#define BURST(cpu) ((void)(cpu))
#endif

static struct worker workers[CPU_SETSIZE];

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

/* cpus.json holds everything of one moment. A JSON parser does it better. */
static struct news look(const char *folder) {
    struct news news = {0};
    char path[PATH_MAX + 16], text[4 * sizeof news.cpus] = "";
    snprintf(path, sizeof path, "%s/cpus.json", folder);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        err(1, "%s cannot be read", path);
    fclose(file);
    const char *generation = strstr(text, "\"generation\": ");
    const char *cpus = strstr(text, "\"cpus\": \"");
    const char *assigned = strstr(text, "\"assigned\": \"");
    const char *ends = strstr(text, "\"notBeforeMonotonic\": ");
    if (!generation || !cpus || !assigned ||
        sscanf(generation, "\"generation\": %lld", &news.generation) != 1)
        errx(1, "%s has no CPUs or no generation: %s", path, text);
    sscanf(cpus, "\"cpus\": \"%8191[0-9,-]", news.cpus);
    sscanf(assigned, "\"assigned\": \"%8191[0-9,-]", news.assigned);
    if (ends != NULL)
        sscanf(ends, "\"notBeforeMonotonic\": %lf", &news.not_before);
    return news;
}

static void *run(void *argument) {
    struct worker *self = argument;
    int cpu = (int)(self - workers);
    while (!atomic_load_explicit(&self->stopping, memory_order_relaxed)) {
        BURST(cpu);
        atomic_fetch_add_explicit(&self->rounds, 1, memory_order_relaxed);
    }
    return NULL;
}

static void start(int cpu) {
    struct worker *worker = &workers[cpu];
    atomic_store(&worker->stopping, false);
    if (pthread_create(&worker->thread, NULL, run, worker) != 0)
        errx(1, "no thread can be made for CPU %d", cpu);
    worker->works = true;
}

static void stop(int cpu) {
    struct worker *worker = &workers[cpu];
    atomic_store(&worker->stopping, true);
    pthread_join(worker->thread, NULL);
    worker->works = false;
    printf("CPU %d: %lu rounds\n", cpu, atomic_exchange(&worker->rounds, 0));
}

/* Work on the CPUs that are there and stay; return whether each thread is on its CPU. */
static bool follow(const struct news *news) {
    cpu_set_t cpus = parse(news->cpus), assigned = parse(news->assigned);
    bool pinned = true;
    CPU_AND(&cpus, &cpus, &assigned);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (workers[cpu].works && !CPU_ISSET(cpu, &cpus))
            stop(cpu);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus)) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            if (!workers[cpu].works)
                start(cpu);
            /* Again with each generation: the kernel may have forgotten it. */
            pinned &= pthread_setaffinity_np(workers[cpu].thread, sizeof one, &one) == 0;
        }
    return pinned;
}

static void tell(const struct news *news, bool pinned) {
    struct timespec now;
    printf("generation %lld: cpus %s, assigned %s, %s", news->generation, news->cpus,
           news->assigned, pinned ? "pinned" : "not all can be pinned yet");
    if (news->not_before > 0 && clock_gettime(CLOCK_MONOTONIC, &now) == 0)
        printf(", left %.3f s early", news->not_before - (now.tv_sec + now.tv_nsec / 1e9));
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc > 2)
        errx(2, "'%s' is one word too many; usage: follower [FOLDER]", argv[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *folder = argc > 1 ? argv[1] : FOLDER;

    /* Blocked before there are threads, so that none is interrupted. */
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);

    /* The folder is watched, as its files are replaced; and that before the first look. */
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (inotify_add_watch(watch, folder, IN_MOVED_TO) < 0)
        err(1, "%s cannot be watched", folder);
    struct news news = look(folder);
    bool pinned = follow(&news);
    tell(&news, pinned);
    struct pollfd awaited[] = {
        {.fd = signalfd(-1, &ending, SFD_CLOEXEC), .events = POLLIN},
        {.fd = watch, .events = POLLIN},
    };
    while (poll(awaited, 2, pinned ? -1 : AGAIN_MS) >= 0 && awaited[0].revents == 0) {
        char events[4096];
        struct news found = read(watch, events, sizeof events) > 0 ? look(folder) : news;
        bool fresh = found.generation != news.generation;
        if (!fresh && pinned)
            continue;
        news = found;
        pinned = follow(&news);
        if (fresh || pinned)
            tell(&news, pinned);
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (workers[cpu].works)
            stop(cpu);
    return 0;
}
