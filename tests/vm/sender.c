/*
 * Sends packets to poller.c at a steady rate, to each queue in turn, and tells how many.
 *
 *   sender HOST PHASE RATE COUNT    RATE packets a second to each queue, until each has got COUNT
 *                                   or SIGTERM comes
 */
#define _GNU_SOURCE
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "traffic.h"

#define TICK_NS 2000000L

static volatile sig_atomic_t ending;

static void end(int number) {
    (void)number;
    ending = 1;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 5)
        errx(2, "sender HOST PHASE RATE COUNT");
    in_addr_t host = inet_addr(argv[1]);
    struct packet packet = {.phase = (uint32_t)atoi(argv[2])};
    double rate = atof(argv[3]), begun_s = now_s();
    uint32_t count = (uint32_t)atol(argv[4]);
    int out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    signal(SIGTERM, end);
    while (!ending && packet.number < count) {
        double due = (now_s() - begun_s) * rate;
        for (; packet.number < count && packet.number < due; packet.number++)
            for (int queue = 0; queue < QUEUES; queue++) {
                struct sockaddr_in there = address(host, queue);
                if (sendto(out, &packet, sizeof packet, 0, (struct sockaddr *)&there,
                           sizeof there) != sizeof packet)
                    err(1, "packet %u", packet.number);
            }
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    }
    printf("%u sent\n", packet.number);
    return 0;
}
