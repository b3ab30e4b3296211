/*
 * Frames of a hostile guest, for tests.
 *
 *     frames LINK SENDER TARGET KIND FROM TO [SECONDS]
 *
 * Sends frames of a kind from the MAC address SENDER to the MAC address TARGET, and prints how many. FROM and TO are IP addresses:
 *
 *     udp        a datagram without content, with either version of IP
 *     arp        a reply: FROM is at SENDER
 *     neighbour  the same for IPv6
 *     router     the router FROM is at SENDER, and hosts give themselves addresses of 2001:db8:bad::/64
 *     offer      a DHCP server's offer: the address TO, with the router FROM
 *     options    requests of DHCP, or of DHCPv6, one for each of several ways in which options are wrong
 *     routers    router solicitations: one as hosts send it, and one for each of several ways in which options are wrong
 *
 * They are sent once, or as often as possible for so many seconds.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { ETHERNET = 14, ICMP6 = 58, UDP = 17, DISCARD = 9, DHCP_SERVER = 67, DHCP_CLIENT = 68 };
enum { DHCP6_CLIENT = 546, DHCP6_SERVER = 547 };
/* Parts of a message of DHCP: hardware address, name of the server and of a file; all before the options. */
enum { HARDWARE = 16, NAMES = 64 + 128 };

struct address {
    int is_ipv6;
    unsigned char bytes[16];
};

static struct ether_addr sender, target;
static struct address from, to;

/* The frame, and how much of it there is. */
static unsigned char frame[1514];
static size_t length;

static void put(const void *bytes, size_t count)
{
    if (count > sizeof frame - length) exit(3);
    memcpy(frame + length, bytes, count);
    length += count;
}

static void fill(unsigned char byte, size_t count)
{
    while (count--) put(&byte, 1);
}

static void store(unsigned char *at, unsigned value)
{
    at[0] = value >> 8;
    at[1] = value;
}

static void put16(unsigned value)
{
    unsigned char bytes[2];
    store(bytes, value);
    put(bytes, sizeof bytes);
}

static void put_address(const struct address *address)
{
    put(address->bytes, address->is_ipv6 ? 16 : 4);
}

static void ethernet(unsigned type)
{
    length = 0;
    put(&target, sizeof target);
    put(&sender, sizeof sender);
    put16(type);
}

/* A header of IP. Lengths and checksums come once the packet is complete. */
static void ip(unsigned char protocol, const struct address *destination)
{
    if (from.is_ipv6) {
        ethernet(0x86dd);
        put("\x60\0\0\0\0\0", 6);
        put(&protocol, 1);
        fill(255, 1); /* hops: neighbour discovery requires as many */
    } else {
        ethernet(0x0800);
        put("\x45\0\0\0\0\0\0\0\x40", 9);
        put(&protocol, 1);
        put16(0);
    }
    put_address(&from);
    put_address(destination);
}

static void udp(unsigned source, unsigned destination)
{
    put16(source);
    put16(destination);
    fill(0, 4);
}

static unsigned checksum(const unsigned char *at, size_t count, unsigned sum)
{
    for (size_t i = 0; i < count; i++) sum += i % 2 ? at[i] : at[i] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

/* Completes a packet. In IPv4, datagrams need no checksum. */
static void complete(unsigned char protocol)
{
    unsigned char *packet = frame + ETHERNET, *content = packet + (from.is_ipv6 ? 40 : 20);
    size_t count = frame + length - content;
    if (protocol == UDP) store(content + 4, count);
    if (from.is_ipv6) {
        store(packet + 4, count);
        /* Both addresses are before the content. */
        store(content + (protocol == UDP ? 6 : 2), checksum(packet + 8, 32 + count, protocol + count));
    } else {
        store(packet + 2, 20 + count);
        store(packet + 10, checksum(packet, 20, 0));
    }
}

static void datagram(void)
{
    ip(UDP, &to);
    udp(DISCARD, DISCARD);
    complete(UDP);
}

static void arp(void)
{
    ethernet(0x0806);
    put("\0\1\x08\0\6\4\0\2", 8);
    put(&sender, sizeof sender);
    put_address(&from);
    put(&target, sizeof target);
    put_address(&to);
}

static void neighbour(void)
{
    ip(ICMP6, &to);
    put("\x88\0\0\0\x20\0\0\0", 8); /* what is known is replaced */
    put_address(&from);
    put("\2\1", 2);
    put(&sender, sizeof sender);
    complete(ICMP6);
}

static void router(void)
{
    ip(ICMP6, &to);
    put("\x86\0\0\0\x40\0", 6);
    put16(1800); /* seconds as the default router */
    fill(0, 8);
    put("\3\4\x40\xc0\0\0\x0e\x10\0\0\x0e\x10\0\0\0\0\x20\x01\x0d\xb8\x0b\xad", 22);
    fill(0, 10);
    put("\1\1", 2);
    put(&sender, sizeof sender);
    complete(ICMP6);
}

/* What comes before the address of a client in a message of DHCP, that address, and what comes before the options. */
static void dhcp(unsigned char operation, const struct ether_addr *client, const struct address *offered)
{
    put(&operation, 1);
    put("\1\6\0\xba\xdb\xad\1\0\0\x80\0\0\0\0\0", 15);
    put(offered->bytes, 4);
    fill(0, 8);
    put(client, sizeof *client);
    fill(0, HARDWARE - sizeof *client);
}

static void offer(void)
{
    static const struct address everybody = { .bytes = { 255, 255, 255, 255 } };
    ip(UDP, &everybody);
    udp(DHCP_SERVER, DHCP_CLIENT);
    dhcp(2, &target, &to);
    fill(0, NAMES);
    put("\x63\x82\x53\x63\x35\1\2\x33\4\0\0\x0e\x10\1\4\xff\xff\xff\0", 19);
    put("\x36\4", 2);
    put_address(&from);
    put("\3\4", 2);
    put_address(&from);
    fill(255, 1);
    complete(UDP);
}

/* A request with options of that number; whether there is one. */
static int options(int number)
{
    static const struct address none;
    ip(UDP, &to);
    udp(DHCP_CLIENT, DHCP_SERVER);
    dhcp(1, &sender, &none);
    /* Number 5 says that there are options in the names, too. Each would be longer than its place. */
    fill(250, NAMES);
    put("\x63\x82\x53\x63\x35\1\1", 7);
    switch (number) {
    case 0: /* as long as a frame can be, all unknown */
        while (sizeof frame - length >= 2 + 255 + 1) {
            put("\xfa\xff", 2);
            fill(7, 255);
        }
        fill(255, 1);
        break;
    case 1: /* longer than what follows */
        put("\x3d\xff\1", 3);
        break;
    case 2: /* without a length, and without an end */
        put("\x32", 1);
        break;
    case 3: /* too short and too long for what they say, the type of the message twice */
        put("\x35\0\x32\3\1\2\3\x36\5\1\2\3\4\5\x39\1\xff\x3d\0\x37\0\xff", 22);
        break;
    case 4: /* every other option is asked for, again and again, in the shortest answer */
        put("\x39\2\0\1", 4);
        for (int times = 0; times < 3; times++) {
            put("\x37\xff", 2);
            for (int code = 0; code < 255; code++) fill(code, 1);
        }
        fill(255, 1);
        break;
    case 5: /* continued in both names */
        put("\x34\1\3\xff", 4);
        break;
    case 6: /* cut off before the options */
        length = ETHERNET + 20 + 8 + 100;
        break;
    default:
        return 0;
    }
    complete(UDP);
    return 1;
}

/* The same for DHCPv6. All ask for an address. */
static int options6(int number)
{
    ip(UDP, &to);
    udp(DHCP6_CLIENT, DHCP6_SERVER);
    put("\1\xba\xdb\xad\0\1\0\x0a\0\3\0\1", 12);
    put(&sender, sizeof sender);
    put("\0\3\0\x0c\0\0\0\1", 8);
    fill(0, 8);
    switch (number) {
    case 0: /* as long as a frame can be, all unknown */
        while (sizeof frame - length >= 4 + 255) {
            put("\xfd\xe8\0\xff", 4);
            fill(7, 255);
        }
        break;
    case 1: /* longer than what follows */
        put("\xfd\xe8\xff\xff\1", 5);
        break;
    case 2: /* without a length */
        put("\xfd\xe8", 2);
        break;
    case 3: /* too short and too long for what they say, the client's name twice */
        put("\0\1\0\0\0\3\0\3\1\2\3\0\x0e\0\1\1\0\1\0\xff", 20);
        fill(7, 255);
        break;
    case 4: /* every option is asked for, again and again */
        put16(6);
        put16(2 * 600);
        for (int code = 0; code < 600; code++) put16(code % 200);
        break;
    case 5: /* as many addresses and prefixes as fit */
        while (sizeof frame - length >= 44 + 16) {
            put("\0\3\0\x28", 4);
            fill(1, 12);
            put("\0\5\0\x18", 4);
            put_address(&from);
            fill(255, 8);
            put("\0\x19\0\x0c", 4);
            fill(2, 12);
        }
        break;
    case 6: /* an option within an option that is longer than that one */
        put("\0\3\0\x10", 4);
        fill(1, 12);
        put("\0\5\xff\xff", 4);
        break;
    case 7: /* cut off before the options */
        length = ETHERNET + 40 + 8 + 3;
        break;
    default:
        return 0;
    }
    complete(UDP);
    return 1;
}

/* A router solicitation with options of that number; whether there is one. */
static int routers(int number)
{
    ip(ICMP6, &to);
    put("\x85\0\0\0\0\0\0\0", 8);
    switch (number) {
    case 0: /* the sender's MAC address: as hosts send it */
        put("\1\1", 2);
        put(&sender, sizeof sender);
        break;
    case 1: /* as long as a frame can be, all unknown */
        while (sizeof frame - length >= 2 + 254) {
            put("\xfd\x20", 2);
            fill(7, 254);
        }
        break;
    case 2: /* longer than what follows */
        put("\1\xff", 2);
        put(&sender, sizeof sender);
        break;
    case 3: /* of no length, so that nothing leads to the next one */
        put("\1\0", 2);
        put(&sender, sizeof sender);
        break;
    case 4: /* cut off before the options */
        length -= 4;
        break;
    default:
        return 0;
    }
    complete(ICMP6);
    return 1;
}

/* Makes the frame of that number of a kind; whether there is one. */
static int make(const char *kind, int number)
{
    if (!strcmp(kind, "options")) return from.is_ipv6 ? options6(number) : options(number);
    if (from.is_ipv6 && !strcmp(kind, "routers")) return routers(number);
    if (number > 0) return 0;
    if (!strcmp(kind, "udp")) datagram();
    else if (!from.is_ipv6 && !strcmp(kind, "arp")) arp();
    else if (!from.is_ipv6 && !strcmp(kind, "offer")) offer();
    else if (from.is_ipv6 && !strcmp(kind, "neighbour")) neighbour();
    else if (from.is_ipv6 && !strcmp(kind, "router")) router();
    else exit(2);
    return 1;
}

static int read_address(const char *text, struct address *address)
{
    address->is_ipv6 = strchr(text, ':') != NULL;
    return inet_pton(address->is_ipv6 ? AF_INET6 : AF_INET, text, address->bytes) == 1;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words)
{
    struct sockaddr_ll link = { .sll_family = AF_PACKET };
    int s = socket(AF_PACKET, SOCK_RAW, 0);
    unsigned long sent = 0;
    double end;
    if (count < 7 || count > 8 || !ether_aton_r(words[2], &sender) || !ether_aton_r(words[3], &target)) return 2;
    if (!read_address(words[5], &from) || !read_address(words[6], &to) || from.is_ipv6 != to.is_ipv6) return 2;
    link.sll_ifindex = if_nametoindex(words[1]);
    if (!link.sll_ifindex || s < 0 || bind(s, (struct sockaddr *)&link, sizeof link)) return 1;
    end = now() + (count == 8 ? atoi(words[7]) : 0);
    do {
        /* A frame that finds no room is not sent. */
        for (int number = 0; make(words[4], number); number++) sent += send(s, frame, length, 0) == (ssize_t)length;
    } while (now() < end);
    printf("%lu\n", sent);
    return sent == 0;
}
