/* The process starter: starts a container's processes once the container is on its CPUs.
 *
 *   process-starter [OPTION VALUE]... -- COMMAND ARG...
 *   process-starter [OPTION VALUE]... --process N:WHERE:CPUS:WORDS COMMAND ARG... [--process ...]
 *
 *   --exclusive VARIABLE   a variable that lists exclusive CPUs; EXCLUSIVE_CPUS where none is named
 *   --shared POOL          a shared pool, listed in /run/cpupool/POOL/cpus; SHARED_CPUS where there
 *                          is no such file, or no pool is named
 *   --supervise any|last   stay, forward signals, reap, end with any process or with the last one
 *
 * WHERE says on which CPUs process number N runs: on the next CPUS of those that a variable of
 * exclusive CPUs lists (its name), on all of the shared ones (shared) or on all that there are (all;
 * CPUS is 0 for these two). WORDS counts the words of its command. All but the last are children,
 * the last takes the starter's place.
 *
 * One file of some length: it is one static program, whose parts share what the arguments said.
 *
 * CPUPOOL_START_TIMEOUT says how many seconds the CPUs are waited for, 30 where it is not set.
 *
 * Exit status: 125 where the starter itself fails, 126 where a command cannot be run, 127 where it
 * is not found; otherwise that of the last process, or of the one that ended supervision.
 *
 * It is linked statically, because it runs in other people's images, and leaves no trace in what it
 * starts: environment, descriptors, signals, working directory and umask are as they came.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpus.h"

#define POOL_FILE "/run/cpupool/%s/cpus"
#define ONLINE_FILE "/sys/devices/system/cpu/online"

enum {
    MAX_TIMEOUT_S = 1000000,
    LONGEST_PAUSE_MS = 32,
    STARTER_FAILED = 125,
    CANNOT_RUN = 126,
    NOT_FOUND = 127,
    SIGNALLED = 128
};

struct process {
    enum kind { EXCLUSIVE, SHARED, ALL } kind;
    const char *variable; /* lists the exclusive CPUs; it gets the next ones */
    long taken;           /* how many of them */
    char **words;
    char **words_end;
    pid_t pid; /* 0 while it does not run */
};

struct starter {
    char **options; /* pairs of words */
    char **options_end;
    char **words_end;
    enum ending { REPLACED, ANY, LAST } ending;
    long timeout_s;
    struct process *processes;
    long count;
    struct cpus exclusive;
    struct cpus shared_variable;
    bool has_exclusive;
    bool has_shared;
    bool has_shared_variable;
    struct cpus shared;   /* at the latest look, as the next two */
    struct cpus expected; /* where the starter should be */
    struct cpus found;    /* where it is */
    bool unmasked;        /* the runtime's affinity has been dropped */
    sigset_t mask;        /* what is started gets this and the next back as they came */
    struct sigaction child_action;
};

/* Messages: one line each */

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    char line[PIPE_BUF] = "process-starter: "; /* this much is written at once */
    size_t length = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    /* A command's name may hold anything. */
    for (length = 0; line[length] != '\0'; length++)
        if ((unsigned char)line[length] < ' ')
            line[length] = '?';
    line[length] = '\n';
    (void)!write(STDERR_FILENO, line, length + 1);
}

#define FAIL(...) (complain(__VA_ARGS__), _exit(STARTER_FAILED))

/* Arguments and environment: whatever can be known to fail does so before anything is waited for */

static bool is(const char *word, const char *name)
{
    return word != NULL && strcmp(word, name) == 0;
}

static void add_variable(const char *name, struct cpus *cpus)
{
    const char *text = getenv(name);
    if (text == NULL)
        FAIL("%s is not set: the device plugin sets it where its pool is requested", name);
    if (!add_list(text, cpus))
        FAIL("%s is no list of CPUs, as 0-3,8: %s", name, text);
}

static void parse_environment(struct starter *starter)
{
    const char *timeout = getenv("CPUPOOL_START_TIMEOUT"), *text = timeout;
    starter->timeout_s = 30;
    if (timeout != NULL && !(take_number(&text, MAX_TIMEOUT_S, &starter->timeout_s) && !*text))
        FAIL("CPUPOOL_START_TIMEOUT: expected seconds from 0 to %d: %s", MAX_TIMEOUT_S, timeout);
    if (!starter->has_exclusive && getenv("EXCLUSIVE_CPUS") != NULL) {
        starter->has_exclusive = true;
        add_variable("EXCLUSIVE_CPUS", &starter->exclusive);
    }
    if (getenv("SHARED_CPUS") != NULL) {
        starter->has_shared = starter->has_shared_variable = true;
        add_variable("SHARED_CPUS", &starter->shared_variable);
    }
    if (!starter->has_exclusive && !starter->has_shared)
        FAIL("EXCLUSIVE_CPUS and SHARED_CPUS are not set: does the container request a pool?");
}

/* Gives the word after the options. */
static char **parse_options(struct starter *starter, char **word)
{
    starter->options = word;
    for (; word[0] != NULL && word[1] != NULL; word += 2) {
        const char *value = word[1];
        if (is(word[0], "--exclusive")) {
            starter->has_exclusive = true;
            add_variable(value, &starter->exclusive);
        } else if (is(word[0], "--shared")) {
            starter->has_shared = true;
            if (*value == '\0' || strlen(value) > NAME_MAX || strchr(value, '/') != NULL)
                FAIL("--shared %s: expected the name of a pool", value);
        } else if (is(word[0], "--supervise")) {
            if (!is(value, "any") && !is(value, "last"))
                FAIL("--supervise %s: expected any or last", value);
            starter->ending = is(value, "any") ? ANY : LAST;
        } else {
            break;
        }
    }
    starter->options_end = word;
    return word;
}

static bool take_field(const char **text, const char *expected)
{
    const char *rest = *text;
    if (!take(&rest, expected) || !take(&rest, ":"))
        return false;
    *text = rest;
    return true;
}

/* Reads WHERE; it may name only the variables that the starter waits for. */
static bool take_where(const struct starter *starter, const char **text, struct process *process)
{
    process->kind = EXCLUSIVE;
    if (take_field(text, "shared"))
        process->kind = SHARED;
    else if (take_field(text, "all"))
        process->kind = ALL;
    else if (!starter->has_exclusive && take_field(text, "EXCLUSIVE_CPUS"))
        process->variable = "EXCLUSIVE_CPUS";
    for (char **word = starter->options; word != starter->options_end; word += 2)
        if (process->kind == EXCLUSIVE && process->variable == NULL &&
            is(word[0], "--exclusive") && take_field(text, word[1]))
            process->variable = word[1];
    return process->kind != EXCLUSIVE || process->variable != NULL;
}

/* Reads N:WHERE:CPUS:WORDS and that many words; gives the word after them. */
static char **parse_process(struct starter *starter, char **word)
{
    struct process *process = &starter->processes[starter->count];
    const char *given = *word != NULL ? *word : "", *text = given;
    long number, count, most = *word != NULL ? starter->words_end - word - 1 : 0;
    if (!(take_number(&text, starter->count, &number) && number == starter->count &&
          take(&text, ":") && take_where(starter, &text, process) &&
          take_number(&text, CPUS, &process->taken) && take(&text, ":") &&
          take_number(&text, most, &count) && *text == '\0' && count > 0 &&
          (process->kind == EXCLUSIVE) == (process->taken > 0)))
        FAIL("--process %s: expected %ld:WHERE:CPUS:WORDS with WHERE a variable of --exclusive"
             " (EXCLUSIVE_CPUS without one), shared or all, CPUS 0 for the latter two, and WORDS"
             " from 1 to the %ld that follow",
             given, starter->count, most);
    starter->count++;
    process->words = word + 1;
    process->words_end = process->words + count;
    return process->words_end;
}

static void parse_processes(struct starter *starter, char **word)
{
    if (is(*word, "--") && word[1] != NULL) {
        starter->count = 1;
        *starter->processes =
            (struct process){.kind = ALL, .words = word + 1, .words_end = starter->words_end};
        return;
    }
    while (is(*word, "--process"))
        word = parse_process(starter, word + 1);
    if (*word != NULL || starter->count == 0)
        FAIL("%s: expected options with their values, then -- COMMAND or --process",
             *word != NULL ? *word : "too few arguments");
}

/* Gives the CPUs from which a process gets some or all. */
static struct cpus choice(const struct starter *starter, const struct process *process)
{
    struct cpus cpus = process->kind == SHARED ? starter->shared : starter->expected;
    if (process->kind == EXCLUSIVE) {
        CPU_ZERO_S(SET_BYTES, cpus.set);
        add_variable(process->variable, &cpus);
    }
    return cpus;
}

/* Gives so many unused CPUs of the choice, in ascending order; fewer if they run out. */
static struct cpus take_next(const struct cpus *choice, long count, struct cpus *dealt)
{
    struct cpus taken = {0};
    for (long cpu = 0; cpu < CPUS && count > 0; cpu++) {
        if (has(choice, cpu) && !has(dealt, cpu)) {
            CPU_SET_S((size_t)cpu, SET_BYTES, taken.set);
            count--;
        }
    }
    add_all(dealt, &taken);
    return taken;
}

static void check_processes(const struct starter *starter)
{
    struct cpus dealt = {0};
    for (long number = 0; number < starter->count; number++) {
        const struct process *process = &starter->processes[number];
        const struct cpus all = choice(starter, process);
        const struct cpus taken = take_next(&all, process->taken, &dealt);
        if (size_of(&taken) < process->taken)
            FAIL("process %ld needs %ld CPUs of %s, and %ld are left of %s: lower cpus in the "
                 "annotation, or request more",
                 number, process->taken, process->variable, size_of(&taken),
                 getenv(process->variable));
        if (process->kind == SHARED && !starter->has_shared)
            FAIL("process %ld needs shared CPUs, and the container has none", number);
    }
}

/* Waiting */

/* Tells whether there is such a file. */
static bool read_text(const char *path, char text[LIST_BYTES])
{
    size_t used = 0;
    ssize_t got = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    do {
        used += (size_t)got;
        got = read(file, text + used, LIST_BYTES - 1 - used);
    } while (got > 0);
    close(file);
    text[used] = '\0';
    /* A list that was cut, here or by a NUL, would be another list. */
    if (got != 0 || used == LIST_BYTES - 1 || strlen(text) != used)
        strcpy(text, "unreadable");
    return true;
}

/* The pools' files follow every change of a pool, which the environment cannot. */
static bool read_shared(struct starter *starter)
{
    char path[sizeof POOL_FILE + NAME_MAX], text[LIST_BYTES];
    bool named = false;
    CPU_ZERO_S(SET_BYTES, starter->shared.set);
    for (char **word = starter->options; word != starter->options_end; word += 2) {
        if (!is(word[0], "--shared"))
            continue;
        named = true;
        snprintf(path, sizeof path, POOL_FILE, word[1]);
        if (read_text(path, text)) {
            if (!add_list(text, &starter->shared))
                return false;
        } else {
            if (!starter->has_shared_variable)
                return false;
            add_all(&starter->shared, &starter->shared_variable);
        }
    }
    if (!named)
        add_all(&starter->shared, &starter->shared_variable);
    return true;
}

/* Drops an affinity that the runtime had and handed down: from Linux 6.2 on the kernel keeps it beside
 * the cpuset, cuts the container's CPUs to it, and does so again after each change of the cpuset. With
 * every CPU in the affinity only the cpuset counts, for the starter and for all that it starts.
 * Where just the affinity keeps the starter on the expected CPUs, it stays: the cpuset is wider. */
static void drop_mask(struct starter *starter)
{
    struct cpus all, common = starter->found;
    keep_common(&common, &starter->expected);
    if (starter->unmasked || !CPU_EQUAL_S(SET_BYTES, common.set, starter->found.set))
        return;
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, SET_BYTES, all.set) != 0)
        return;
    starter->unmasked = true;
    const struct cpus before = starter->found;
    sched_getaffinity(0, SET_BYTES, starter->found.set);
    if (CPU_EQUAL_S(SET_BYTES, before.set, starter->expected.set) &&
        !CPU_EQUAL_S(SET_BYTES, before.set, starter->found.set) &&
        sched_setaffinity(0, SET_BYTES, before.set) == 0)
        starter->found = before;
}

/* Compares the starter's CPUs, which are those of the container's cpuset on cgroup v1 and v2, with
 * the expected ones. Gives NULL if they are the same, else the likely cause. */
static const char *look(struct starter *starter)
{
    struct cpus online = {0}, usable;
    char text[LIST_BYTES];
    bool shared_known = read_shared(starter);
    bool online_known = read_text(ONLINE_FILE, text) && add_list(text, &online);
    starter->expected = starter->exclusive;
    add_all(&starter->expected, &starter->shared);
    /* Without /sys an offline CPU looks like a CPU that is yet to come: wait for all of them,
     * because late is better than on the CPUs of others. */
    usable = starter->expected;
    if (online_known)
        keep_common(&usable, &online);
    if (size_of(&usable) > 0)
        starter->expected = usable;
    if (sched_getaffinity(0, SET_BYTES, starter->found.set) != 0)
        return "the kernel refuses sched_getaffinity";
    if (!shared_known)
        return "a shared pool's file holds no CPU list, or is missing and SHARED_CPUS is not set";
    if (size_of(&starter->expected) == 0)
        return "the container's list of CPUs is empty, because its pool is gone";
    if (size_of(&usable) == 0)
        return "none of the expected CPUs is online";
    drop_mask(starter);
    if (CPU_EQUAL_S(SET_BYTES, starter->expected.set, starter->found.set)) {
        /* The kernel first changes what is allowed, and then moves who runs elsewhere. */
        int running_on = sched_getcpu();
        return running_on < 0 || has(&starter->expected, running_on)
                   ? NULL
                   : "the kernel has not moved the starter to its CPUs yet";
    }
    struct cpus right = starter->found;
    keep_common(&right, &starter->expected);
    if (!CPU_EQUAL_S(SET_BYTES, right.set, starter->found.set))
        return "the node's cpupool agent does not run or has not seen the container: see its log";
    if (!online_known)
        return "a CPU is offline, which cannot be seen without " ONLINE_FILE;
    if (!starter->unmasked)
        return "a CPU affinity of the runtime, which the kernel does not let the starter drop";
    return "the cpuset of a cgroup above, or a CPU that another cgroup has taken";
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* The signals that end the starter while it waits. The kernel keeps them from a container's first
 * process, so that a pod deleted meanwhile would wait to be killed. */
static sigset_t ending_signals(const struct starter *starter)
{
    static const int usual[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    sigset_t ending;
    sigemptyset(&ending);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        struct sigaction action;
        sigaction(usual[i], NULL, &action);
        if (action.sa_handler == SIG_DFL && sigismember(&starter->mask, usual[i]) == 0)
            sigaddset(&ending, usual[i]);
    }
    return ending;
}

/* Gives 0 once the CPUs are right, else the exit status. */
static int await_cpus(struct starter *starter)
{
    const long long deadline_ms = now_ms() + starter->timeout_s * 1000LL;
    const sigset_t ending = ending_signals(starter);
    const char *cause;
    int signal = -1;
    sigprocmask(SIG_BLOCK, &ending, NULL);
    for (long pause_ms = 1; signal < 0 && (cause = look(starter)) != NULL; pause_ms *= 2) {
        if (now_ms() >= deadline_ms) {
            char expected[LIST_BYTES], found[LIST_BYTES];
            FAIL("not on the container's CPUs after %ld s: expected %s, found %s; likely cause: %s",
                 starter->timeout_s, format_list(&starter->expected, expected),
                 format_list(&starter->found, found), cause);
        }
        if (pause_ms > LONGEST_PAUSE_MS)
            pause_ms = LONGEST_PAUSE_MS;
        const struct timespec pause = {.tv_nsec = pause_ms * 1000000};
        signal = sigtimedwait(&ending, NULL, &pause);
    }
    sigprocmask(SIG_SETMASK, &starter->mask, NULL);
    if (signal < 0)
        return 0;
    raise(signal);
    return SIGNALLED + signal;
}

/* Starting */

/* Gives the CPUs of the next process. They are dealt before the offline ones are taken away, so
 * that every other process has its own; one that is left with none gets all that it chose from. */
static struct cpus deal(const struct starter *starter, const struct process *process,
                        struct cpus *dealt)
{
    struct cpus all = choice(starter, process), own = all;
    if (process->kind == EXCLUSIVE)
        own = take_next(&all, process->taken, dealt);
    keep_common(&own, &starter->expected);
    keep_common(&all, &starter->expected);
    if (size_of(&own) > 0)
        return own;
    return size_of(&all) > 0 ? all : starter->expected;
}

/* Turns into the process; comes back with an exit status only where that fails. */
static int become(const struct starter *starter, const struct process *process,
                  const struct cpus *cpus)
{
    /* An affinity once set outlives a change of the cpuset (from Linux 6.2 on): a process that has
     * all of its container's CPUs would not follow a pool that grows. */
    if (!CPU_EQUAL_S(SET_BYTES, cpus->set, starter->expected.set) &&
        sched_setaffinity(0, SET_BYTES, cpus->set) != 0) {
        complain("cannot pin %s to its CPUs: %s", process->words[0], strerror(errno));
        return STARTER_FAILED;
    }
    /* The next process begins here; it has been read. */
    *process->words_end = NULL;
    execvp(process->words[0], process->words);
    int status = errno == ENOENT ? NOT_FOUND : CANNOT_RUN;
    complain("cannot run %s: %s", process->words[0], strerror(errno));
    return status;
}

/* Gives 0 once the process runs, else the exit status. The child of vfork() has its parent's memory
 * until its exec, so it says how that went without a descriptor between them. */
static int start(const struct starter *starter, struct process *process, const struct cpus *cpus)
{
    volatile int status = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        sigaction(SIGCHLD, &starter->child_action, NULL);
        sigprocmask(SIG_SETMASK, &starter->mask, NULL);
        status = become(starter, process, cpus);
        _exit(status);
    }
    if (pid < 0) {
        complain("cannot start %s: %s", process->words[0], strerror(errno));
        return STARTER_FAILED;
    }
    process->pid = pid;
    return status;
}

/* Supervising */

static void signal_all(const struct starter *starter, int signal)
{
    for (long number = 0; number < starter->count; number++)
        if (starter->processes[number].pid != 0)
            kill(starter->processes[number].pid, signal);
}

/* Reaps what has ended, orphans included. Gives the exit status if supervision ends, else -1. */
static int reap(struct starter *starter)
{
    int status, ended = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (long number = 0; number < starter->count; number++) {
            if (starter->processes[number].pid != pid)
                continue;
            starter->processes[number].pid = 0;
            if (ended < 0 && (starter->ending == ANY || number == starter->count - 1))
                ended = WIFSIGNALED(status) ? SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
        }
    }
    return ended;
}

static int supervise(struct starter *starter, const sigset_t *signals)
{
    int status = -1;
    while (status < 0) {
        siginfo_t info;
        int signal = sigwaitinfo(signals, &info);
        if (signal == SIGCHLD)
            status = reap(starter);
        else if (signal > 0 && info.si_code != SI_KERNEL)
            /* The kernel itself sends what a terminal asks for to the whole foreground group. */
            signal_all(starter, signal);
    }
    return status;
}

/* Gives the exit status, once there is one. */
static int run(struct starter *starter)
{
    const bool supervised = starter->ending != REPLACED;
    sigset_t signals;
    struct cpus dealt = {0};
    int status = 0;
    sigfillset(&signals);
    if (supervised) {
        /* The kernel keeps a blocked signal for sigwaitinfo() even from a container's first
         * process, and the status of a child only where SIGCHLD is not ignored. */
        sigprocmask(SIG_BLOCK, &signals, NULL);
        sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    }
    for (long number = 0; number < starter->count && status == 0; number++) {
        struct process *process = &starter->processes[number];
        const struct cpus cpus = deal(starter, process, &dealt);
        if (supervised || number < starter->count - 1)
            status = start(starter, process, &cpus);
        else
            status = become(starter, process, &cpus);
    }
    if (status == 0)
        status = supervise(starter, &signals);
    /* As the kernel does when a container's first process ends. */
    signal_all(starter, SIGKILL);
    return status;
}

int main(int argc, char **argv)
{
    struct starter starter = {.ending = REPLACED, .words_end = argv + argc};
    if (argc < 1)
        FAIL("there is no argument, not even a name");
    /* There are fewer processes than words. */
    starter.processes = calloc((size_t)argc, sizeof *starter.processes);
    if (starter.processes == NULL)
        FAIL("no memory for %d arguments", argc);
    parse_processes(&starter, parse_options(&starter, argv + 1));
    parse_environment(&starter);
    check_processes(&starter);
    sigprocmask(SIG_BLOCK, NULL, &starter.mask);
    sigaction(SIGCHLD, NULL, &starter.child_action);
    int status = await_cpus(&starter);
    _exit(status != 0 ? status : run(&starter));
}
