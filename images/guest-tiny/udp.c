/*
 * Datagrams for tests, which busybox as Debian builds it can neither send nor answer.
 *
 *     udp PORT                 answers each datagram at that port with itself, in both IP families
 *     udp ADDRESS PORT TEXT    sends one, and succeeds if the same comes back within three seconds
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

/* The longest datagram. */
static char bytes[65536];

/* The address of a text; one of IPv4 as IPv6 writes it. */
static int address(const char *text, struct in6_addr *found)
{
    char mapped[64] = "::ffff:";
    if (strlen(text) >= sizeof mapped - strlen(mapped)) return 0;
    if (!strchr(text, ':')) text = strcat(mapped, text);
    return inet_pton(AF_INET6, text, found) == 1;
}

static int ask(int s, struct sockaddr_in6 *to, const char *text)
{
    struct timeval wait = { .tv_sec = 3 };
    ssize_t length = strlen(text);
    if (setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait)) return 1;
    if (connect(s, (struct sockaddr *)to, sizeof *to)) return 1;
    if (send(s, text, length, 0) != length) return 1;
    return recv(s, bytes, sizeof bytes, 0) != length || memcmp(bytes, text, length) != 0;
}

static int answer(int s, struct sockaddr_in6 *own)
{
    int on = 1;
    /* What comes with a datagram says to which address it was sent, and sends the answer from there. */
    if (setsockopt(s, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on)) return 1;
    if (bind(s, (struct sockaddr *)own, sizeof *own)) return 1;
    for (;;) {
        static _Alignas(struct cmsghdr) char control[256];
        struct sockaddr_in6 peer;
        struct iovec data = { .iov_base = bytes, .iov_len = sizeof bytes };
        struct msghdr message = {
            .msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &data, .msg_iovlen = 1,
            .msg_control = control, .msg_controllen = sizeof control,
        };
        ssize_t length = recvmsg(s, &message, 0);
        if (length < 0) continue;
        data.iov_len = length;
        sendmsg(s, &message, 0);
    }
}

int main(int count, char **words)
{
    struct sockaddr_in6 place = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    int off = 0, s = socket(AF_INET6, SOCK_DGRAM, 0);
    if (s < 0 || setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off)) return 1;
    if (count == 2) {
        place.sin6_port = htons(atoi(words[1]));
        return answer(s, &place);
    }
    if (count != 4 || !address(words[1], &place.sin6_addr)) return 2;
    place.sin6_port = htons(atoi(words[2]));
    return ask(s, &place, words[3]);
}
