/* The packets that sender.c sends and poller.c counts. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#define QUEUES 4
#define PHASES 2
#define FIRST_PORT 9000

struct packet {
    uint32_t phase, number; /* the number counts the packets of a queue in a phase, from 0 */
};

static struct sockaddr_in address(in_addr_t host, int queue) {
    return (struct sockaddr_in){
        .sin_family = AF_INET,
        .sin_addr.s_addr = host,
        .sin_port = htons((uint16_t)(FIRST_PORT + queue)),
    };
}
