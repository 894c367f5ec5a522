/*
 * Two loads on the caches of a CPU. Each begins when it can read a line.
 *
 *   memory_load chase BYTES BATCHES ACCESSES   follow a chain of pointers through all cache lines of
 *                                              BYTES in random order; write the nanoseconds of each
 *                                              batch of so many accesses, as 32-bit words
 *   memory_load stream BYTES                   copy BYTES to another place, again and again; write a
 *                                              line after the first copy
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES = 64 };

struct line {
    struct line *next;
    char rest[LINE_BYTES - sizeof(struct line *)];
};

static void *zeroed(size_t bytes) {
    void *memory = aligned_alloc(LINE_BYTES, (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    if (memory == NULL) {
        perror("memory_load");
        exit(1);
    }
    return memset(memory, 0, bytes);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* Link all lines to one cycle in random order (Sattolo's algorithm), so that no prefetcher helps. */
static struct line *linked(size_t bytes) {
    size_t count = bytes / LINE_BYTES;
    struct line *lines = zeroed(bytes);
    size_t *order = zeroed(count * sizeof *order);
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    srandom(1);
    for (size_t i = count - 1; i > 0; i--) {
        size_t other = (size_t)random() % i, kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (size_t i = 0; i < count; i++)
        lines[i].next = &lines[order[i]];
    free(order);
    return lines;
}

static int chase(size_t bytes, size_t batches, size_t accesses) {
    uint32_t *taken_ns = zeroed(batches * sizeof *taken_ns);
    struct line *at = linked(bytes);
    uint64_t before_ns = now_ns();
    for (size_t batch = 0; batch < batches; batch++) {
        for (size_t i = 0; i < accesses; i++)
            at = *(struct line *volatile *)&at->next;
        uint64_t after_ns = now_ns();
        taken_ns[batch] = (uint32_t)(after_ns - before_ns);
        before_ns = after_ns;
    }
    return fwrite(taken_ns, sizeof *taken_ns, batches, stdout) == batches ? 0 : 1;
}

static _Noreturn void stream(size_t bytes) {
    char *from = zeroed(bytes), *to = zeroed(bytes);
    for (bool begun = false;; begun = true) {
        memcpy(to, from, bytes);
        /* Otherwise the compiler leaves the copy out, because no code reads it. */
        __asm__ volatile("" : : "r"(to) : "memory");
        if (!begun) {
            puts("begun");
            fflush(stdout);
        }
    }
}

int main(int count, char **words) {
    size_t numbers[3] = {0};
    for (int i = 2; i < count && i < 5; i++)
        numbers[i - 2] = strtoull(words[i], NULL, 10);
    while (getchar() != '\n') {
        if (feof(stdin))
            return 1;
    }
    if (count == 5 && strcmp(words[1], "chase") == 0)
        return chase(numbers[0], numbers[1], numbers[2]);
    if (count == 3 && strcmp(words[1], "stream") == 0)
        stream(numbers[0]);
    fprintf(stderr, "memory_load: chase BYTES BATCHES ACCESSES, or stream BYTES\n");
    return 2;
}
