/* What runs in the containers of these tests: it tells on which CPUs its first instruction runs.
 *
 *   probe            waits for its end: a pod's sandbox
 *   probe MICROS     looks at its affinity again and again, with so much time between two looks
 *   probe MICROS stays     the same, and SIGTERM does not end it
 *
 * It is linked with no C library: whatever runs before main() there may come after the container
 * was moved, so `_start` asks for the affinity with its first system call. Each line on stdout is
 * one write(2), so that it is one line of the CRI log, and times are those of CLOCK_MONOTONIC:
 *
 *   first NANOS MASK          at the first instruction; MASK is hexadecimal, CPU 0 the lowest bit
 *   env NAME=VALUE            every variable
 *   now NANOS MASK            the affinity is another one since less than MICROS ago
 *   end NANOS MASK LOOKS      SIGTERM came
 *
 * It ends by itself after a quarter of an hour, should everybody have forgotten it. */

#include <asm/unistd.h>
#include <linux/signal.h>
#include <linux/time.h>

#define LONGEST_NANOS (900 * 1000000000ull)
#define MASK_BYTES 1024 /* 8192 CPUs, the most that the kernel can be built for */
#define SIGNAL_BYTES 8

typedef unsigned long long u64;

static long call(long number, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

struct mask {
    unsigned char bytes[MASK_BYTES];
    long length;
};

struct line {
    char text[4096];
    long length;
};

static void put(struct line *line, const char *text)
{
    while (*text && line->length < (long)sizeof line->text - 1)
        line->text[line->length++] = *text++;
}

static void put_number(struct line *line, u64 number)
{
    char digits[21], *first = digits + sizeof digits - 1;
    *first = 0;
    do
        *--first = '0' + number % 10;
    while (number /= 10);
    put(line, first);
}

static void put_mask(struct line *line, const struct mask *mask)
{
    for (long place = mask->length - 1; place >= 0; place--) {
        char digits[3] = {"0123456789abcdef"[mask->bytes[place] >> 4],
                          "0123456789abcdef"[mask->bytes[place] & 15], 0};
        put(line, digits);
    }
}

static void write_out(struct line *line)
{
    line->text[line->length++] = '\n';
    call(__NR_write, 1, (long)line->text, line->length, 0);
    line->length = 0;
}

static void look(struct mask *mask)
{
    mask->length = call(__NR_sched_getaffinity, 0, MASK_BYTES, (long)mask->bytes, 0);
}

static u64 now(void)
{
    struct timespec time;
    call(__NR_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void put_sighting(struct line *line, const char *what, u64 nanos, const struct mask *mask)
{
    put(line, what);
    put_number(line, nanos);
    put(line, " ");
    put_mask(line, mask);
}

static int same(const struct mask *one, const struct mask *other)
{
    for (long place = 0; place < one->length; place++)
        if (one->bytes[place] != other->bytes[place])
            return 0;
    return 1;
}

static long run(long argc, char **argv)
{
    static struct mask seen, before;
    static struct line line;
    look(&before);
    u64 began = now(), nanos = began, looks = 1, pause = 0;
    put_sighting(&line, "first ", began, &before);
    write_out(&line);
    for (char **variable = argv + argc + 1; *variable; variable++) {
        put(&line, "env ");
        put(&line, *variable);
        write_out(&line);
    }

    for (const char *digit = argc > 1 ? argv[1] : ""; *digit; digit++)
        pause = pause * 10 + (*digit - '0');
    u64 wait = pause ? pause * 1000 : LONGEST_NANOS;
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    u64 terminate = 1ull << (SIGTERM - 1);
    call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&terminate, 0, SIGNAL_BYTES);
    long signal;
    do {
        signal = call(__NR_rt_sigtimedwait, (long)&terminate, 0, (long)&timeout, SIGNAL_BYTES);
        look(&seen);
        nanos = now();
        looks++;
        if (!same(&before, &seen)) {
            before = seen;
            put_sighting(&line, "now ", nanos, &seen);
            write_out(&line);
        }
    } while ((signal != SIGTERM || argc > 2) && nanos - began < LONGEST_NANOS);
    put_sighting(&line, "end ", nanos, &seen);
    put(&line, " ");
    put_number(&line, looks);
    write_out(&line);
    return 0;
}

__attribute__((used)) static void begin(long *stack)
{
    call(__NR_exit_group, run(stack[0], (char **)(stack + 1)), 0, 0, 0);
}

__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
