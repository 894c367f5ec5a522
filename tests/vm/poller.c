/*
 * The follower of examples/own-cpus as a data plane in small: its threads poll queues of packets.
 * A queue is a socket, and holds the packets of about a second. A thread empties in each round the
 * queues that no other thread empties at this moment, so any number of threads serves all queues.
 *
 *   poller [FOLDER]    the follower's; sender.c says what a packet is
 */
static void burst(int cpu);
#define BURST burst
#include "../../examples/own-cpus/follower.c"

#include "traffic.h"

static struct queue {
    _Alignas(64) atomic_flag busy;
    int socket;
    uint32_t next[PHASES];
} queues[QUEUES];

static unsigned long received[PHASES][QUEUES], disordered[QUEUES];
static atomic_ulong displaced;

__attribute__((constructor)) static void open_queues(void) {
    for (int number = 0; number < QUEUES; number++) {
        struct sockaddr_in here = address(INADDR_ANY, number);
        queues[number].socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (bind(queues[number].socket, (struct sockaddr *)&here, sizeof here) < 0)
            err(1, "queue %d", number);
    }
}

/* Each number is counted once: what comes again, or late, counts as lost. */
static bool empty(int number) {
    struct queue *queue = &queues[number];
    struct packet packet;
    bool some = false;
    while (recv(queue->socket, &packet, sizeof packet, 0) == sizeof packet) {
        some = true;
        if (packet.number < queue->next[packet.phase]) {
            disordered[number]++;
            continue;
        }
        queue->next[packet.phase] = packet.number + 1;
        received[packet.phase][number]++;
    }
    return some;
}

static void burst(int cpu) {
    static _Thread_local bool arrived;
    bool here = sched_getcpu() == cpu, some = false;
    /* A thread starts elsewhere. Once it is on its CPU, only the loss of this CPU displaces it. */
    if (arrived && !here)
        atomic_fetch_add(&displaced, 1);
    arrived |= here;
    for (int number = 0; number < QUEUES; number++)
        if (!atomic_flag_test_and_set(&queues[number].busy)) {
            some |= empty(number);
            atomic_flag_clear(&queues[number].busy);
        }
    /* An emulated machine runs another CPU then. */
    if (!some)
        __builtin_ia32_pause();
}

__attribute__((destructor)) static void report(void) {
    for (int number = 0; number < QUEUES; number++)
        empty(number);
    for (int phase = 0; phase < PHASES; phase++)
        for (int number = 0; number < QUEUES; number++)
            printf("phase %d, queue %d: %lu received\n", phase, number, received[phase][number]);
    for (int number = 0; number < QUEUES; number++)
        if (disordered[number] > 0)
            printf("queue %d: %lu in another order\n", number, disordered[number]);
    printf("%lu rounds on another CPU\n", atomic_load(&displaced));
}
