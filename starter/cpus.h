/* Sets of CPUs, and lists of them in the kernel's format: 0-3,8. */
#ifndef CPUS_H
#define CPUS_H

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    CPUS = 8192,                 /* the most that a kernel can be built for */
    SET_BYTES = CPUS / CHAR_BIT, /* of a struct cpus, for the macros of sched.h */
    LIST_BYTES = 3 * CPUS        /* the longest list names every second CPU: 20 KiB */
};

struct cpus {
    cpu_set_t set[CPUS / CPU_SETSIZE];
};

static bool has(const struct cpus *cpus, long cpu)
{
    return CPU_ISSET_S((size_t)cpu, SET_BYTES, cpus->set);
}

static long size_of(const struct cpus *cpus)
{
    return CPU_COUNT_S(SET_BYTES, cpus->set);
}

static void add_all(struct cpus *cpus, const struct cpus *other)
{
    CPU_OR_S(SET_BYTES, cpus->set, cpus->set, other->set);
}

static void keep_common(struct cpus *cpus, const struct cpus *other)
{
    CPU_AND_S(SET_BYTES, cpus->set, cpus->set, other->set);
}

static bool take_number(const char **text, long largest, long *number)
{
    const char *digits = *text;
    for (*number = 0; **text >= '0' && **text <= '9'; ++*text) {
        *number = *number * 10 + (**text - '0');
        if (*number > largest)
            return false;
    }
    return *text != digits;
}

static bool take(const char **text, const char *expected)
{
    bool there = strncmp(*text, expected, strlen(expected)) == 0;
    *text += there ? strlen(expected) : 0;
    return there;
}

/* Adds a list, with or without a newline at its end. */
static bool add_list(const char *text, struct cpus *cpus)
{
    bool more = *text != '\0' && *text != '\n';
    while (more) {
        long first, last;
        if (!take_number(&text, CPUS - 1, &first))
            return false;
        last = first;
        if (take(&text, "-") && (!take_number(&text, CPUS - 1, &last) || last < first))
            return false;
        for (; first <= last; first++)
            CPU_SET_S((size_t)first, SET_BYTES, cpus->set);
        more = take(&text, ",");
    }
    take(&text, "\n");
    return *text == '\0';
}

static const char *format_list(const struct cpus *cpus, char text[LIST_BYTES])
{
    int used = 0;
    for (long first = 0, last; first < CPUS; first = last + 1) {
        for (last = first; has(cpus, first) && has(cpus, last + 1);)
            last++;
        if (has(cpus, first))
            used += sprintf(text + used, last > first ? "%s%ld-%ld" : "%s%ld", used ? "," : "",
                            first, last);
    }
    return used > 0 ? text : "none";
}

#endif
