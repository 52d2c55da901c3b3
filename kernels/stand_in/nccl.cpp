// A stand-in for NCCL between processes of one machine: messages over Unix sockets, one connection for each pair of
// ranks. A rank that waits for a terminated rank waits until the group is aborted, as with NCCL.
#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "driver.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
// Milliseconds between two checks whether a group is aborted.
static const int LOOK = 20;
// The number of aborted groups.
static std::atomic<uint64_t> aborted = 0;

struct Id {
    char bytes[128];
};
struct Comm {
    int rank, count;
    std::vector<int> to;  // a socket for each rank, -1 for the rank itself and for a terminated rank
    std::atomic<bool> ended = false;
    std::atomic<int> running = 0;
};
struct Message {
    Comm* comm;
    int rank;
    bool sends;
    char* at;
    size_t left;
    void* stream;
};

// The messages that a thread has begun. Not thread_local, since that is kernels' shared memory, which is overwritten
// with NaN.
struct Group {
    int depth = 0;
    std::vector<Message> messages;
};
static Group& mine() {
    static std::mutex lock;
    static std::map<std::thread::id, Group> groups;
    std::lock_guard guard(lock);
    return groups[std::this_thread::get_id()];
}

// An abstract address: it disappears with the last process that uses it.
static socklen_t name(sockaddr_un& address, const Id& id, int rank) {
    address = {};
    address.sun_family = AF_UNIX;
    int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "capful-%.40s-%d", id.bytes, rank);
    return (socklen_t)(sizeof(sa_family_t) + 1 + n);
}

static int failed(const char* why) {
    fprintf(stderr, "stand-in: NCCL: %s\n", why);
    return 719;
}

// The messages that a rank sends to itself are matched, in order, with those that it receives from itself.
static bool to_itself(std::vector<Message>& messages) {
    for (auto& from : messages) {
        if (!from.sends || from.rank != from.comm->rank) continue;
        auto to = std::find_if(messages.begin(), messages.end(), [&](const Message& m) {
            return !m.sends && m.comm == from.comm && m.rank == from.rank && m.left;
        });
        if (to == messages.end() || to->left != from.left) return false;
        memmove(to->at, from.at, from.left);
        to->left = from.left = 0;
    }
    return true;
}

// Transfers all of the group's messages at once, as far as the sockets allow; the messages of a pair of ranks in order.
// On a GPU an aborted kernel ends without an error.
static int run(std::vector<Message> messages) {
    if (!to_itself(messages)) return failed("a message to itself has no other end");
    Comm& comm = *messages[0].comm;
    while (!comm.ended) {
        std::vector<pollfd> waits;
        std::vector<Message*> whose;
        for (auto& message : messages) {
            if (!message.left) continue;
            bool first = true;
            for (auto* other : whose)
                first &= other->comm != message.comm || other->rank != message.rank || other->sends != message.sends;
            if (!first) continue;
            waits.push_back({message.comm->to[message.rank], (short)(message.sends ? POLLOUT : POLLIN), 0});
            whose.push_back(&message);
        }
        if (waits.empty()) return 0;
        // poll ignores a socket of -1.
        if (poll(waits.data(), waits.size(), LOOK) <= 0) continue;
        for (size_t i = 0; i < waits.size(); i++) {
            if (!waits[i].revents) continue;
            Message& m = *whose[i];
            ssize_t n = m.sends ? send(waits[i].fd, m.at, m.left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(waits[i].fd, m.at, m.left, MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (n <= 0) {
                close(waits[i].fd);
                comm.to[m.rank] = -1;
                break;
            }
            m.at += n;
            m.left -= n;
        }
    }
    return 0;
}

static int add(const void* at, size_t bytes, int type, int rank, Comm* comm, void* stream, bool sends) {
    bool good = type == 1 && rank >= 0 && rank < comm->count;
    good = good && stand_in::inside((uint64_t)at, bytes);
    // A message outside a group might wait forever for its counterpart.
    if (!good || !mine().depth) return INVALID_ARGUMENT;
    mine().messages.push_back({comm, rank, sends, (char*)at, bytes, stream});
    return SUCCESS;
}

API ncclGetUniqueId(Id* id) {
    std::random_device random;
    *id = {};
    snprintf(id->bytes, sizeof(id->bytes), "%08x%08x%08x", random(), random(), random());
    return SUCCESS;
}
API ncclCommInitRank(Comm** made, int count, Id id, int rank) {
    auto comm = new Comm{.rank = rank, .count = count, .to = std::vector<int>(count, -1)};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address;
    socklen_t length = name(address, id, rank);
    if (bind(listener, (sockaddr*)&address, length) || listen(listener, count)) return SYSTEM_ERROR;
    // Every rank connects to the ranks before it and accepts connections from those after it.
    for (int other = 0; other < rank; other++) {
        int peer = socket(AF_UNIX, SOCK_STREAM, 0);
        length = name(address, id, other);
        while (connect(peer, (sockaddr*)&address, length)) usleep(10000);
        if (send(peer, &rank, sizeof(rank), MSG_NOSIGNAL) != sizeof(rank)) return SYSTEM_ERROR;
        comm->to[other] = peer;
    }
    for (int others = rank + 1; others < count; others++) {
        int who = -1;
        int peer = accept(listener, nullptr, nullptr);
        bool said = recv(peer, &who, sizeof(who), MSG_WAITALL) == sizeof(who);
        if (!said || who <= rank || who >= count) return SYSTEM_ERROR;
        comm->to[who] = peer;
    }
    close(listener);
    return *made = comm, SUCCESS;
}
API ncclCommDestroy(Comm* comm) {
    for (int peer : comm->to)
        if (peer >= 0) close(peer);
    return delete comm, SUCCESS;
}
API ncclCommAbort(Comm* comm) {
    while (stand_in::setting("CAPFUL_STAND_IN_ABORT_HANGS", 0)) pause();
    comm->ended = true;
    while (comm->running) usleep(1000);
    aborted++;
    return ncclCommDestroy(comm);
}
API ncclGroupStart() { return mine().depth++, SUCCESS; }
API ncclGroupEnd() {
    Group& group = mine();
    if (group.depth == 0) return INVALID_ARGUMENT;
    if (--group.depth) return SUCCESS;
    auto messages = std::move(group.messages);
    group.messages.clear();
    if (messages.empty()) return SUCCESS;
    void* stream = messages[0].stream;
    Comm* comm = messages[0].comm;
    return stand_in::queue(stream, [=] {
        comm->running++;
        int code = run(messages);
        comm->running--;
        return code;
    }) ? SYSTEM_ERROR : SUCCESS;
}
API ncclSend(const void* from, size_t count, int type, int rank, Comm* comm, void* stream) {
    return add(from, count, type, rank, comm, stream, true);
}
API ncclRecv(void* to, size_t count, int type, int rank, Comm* comm, void* stream) {
    return add(to, count, type, rank, comm, stream, false);
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int status) {
    return status == SYSTEM_ERROR ? "the stand-in's sockets failed" : status == SUCCESS ? "no error" : "invalid argument";
}
// The number of aborted groups.
extern "C" __attribute__((visibility("default"))) uint64_t capful_stand_in_aborts() { return aborted; }
