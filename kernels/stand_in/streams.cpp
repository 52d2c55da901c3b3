// Streams, events and captured graphs of the stand-in for the driver. A graph records the dependencies of each node.
// Nodes captured from the stream that began the capture run in the order of their calls; nodes that came from other
// streams by events run as late as the dependencies allow, so that a missing wait is detected, or as early
// (CAPFUL_STAND_IN_EAGER).
#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <vector>

#include "driver.h"

using namespace stand_in;

namespace {

// Nodes by their indices.
using Nodes = std::set<size_t>;

struct Stream;

struct Node {
    Work work;
    Nodes behind;  // its dependencies
    bool first;    // whether it is from the stream that began the capture
};

struct Graph {
    std::vector<Node> nodes;
    const Stream* began;
};

using Clock = std::chrono::steady_clock;

struct Stream {
    Graph* capturing = nullptr;
    Nodes last{};             // the dependencies of its next node
    Clock::duration ahead{};  // the offset of its event clock
};

struct Event {
    Clock::time_point at;
    // If recorded on a stream under capture: a stream that waits for this joins the capture.
    Graph* capturing = nullptr;
    Nodes last{};
};

std::mutex lock;
std::set<Stream*> streams;

}  // namespace

namespace stand_in {

void seem_slow(void* stream, double seconds) {
    auto more = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (stream) ((Stream*)stream)->ahead += more;
}

int queue(void* stream, Work work) {
    Stream* s = (Stream*)stream;
    if (s && s->capturing) {
        auto& nodes = s->capturing->nodes;
        nodes.push_back({std::move(work), s->last, s == s->capturing->began});
        s->last = {nodes.size() - 1};
        return SUCCESS;
    }
    if (broken) return broken;
    return work();
}

}  // namespace stand_in

API cuStreamCreateWithPriority(void** made, unsigned, int) {
    std::lock_guard guard(lock);
    return *made = *streams.insert(new Stream).first, SUCCESS;
}
API cuStreamCreate(void** made, unsigned flags) { return cuStreamCreateWithPriority(made, flags, 0); }
API cuStreamDestroy_v2(void* stream) {
    std::lock_guard guard(lock);
    streams.erase((Stream*)stream);
    return delete (Stream*)stream, SUCCESS;
}
API cuStreamSynchronize(void*) { return broken; }
API cuStreamQuery(void*) { return broken; }
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
    auto& [at, capturing, last] = *(Event*)event;
    auto s = (Stream*)stream;
    if (!capturing) return s->capturing ? INVALID_VALUE : SUCCESS;
    if (!s->capturing) s->last.clear();
    s->capturing = capturing;
    s->last.insert(last.begin(), last.end());
    return SUCCESS;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, SUCCESS; }
API cuEventCreate(void** made, unsigned) { return *made = new Event, SUCCESS; }
API cuEventDestroy_v2(void* event) { return delete (Event*)event, SUCCESS; }
static int note_time(void* event, void* stream) {
    return queue(stream, [=] {
        ((Event*)event)->at = Clock::now() + (stream ? ((Stream*)stream)->ahead : Clock::duration{});
        return SUCCESS;
    });
}
API cuEventRecord(void* event, void* stream) {
    auto s = (Stream*)stream;
    if (!s || !s->capturing) return note_time(event, stream);
    ((Event*)event)->capturing = s->capturing;
    ((Event*)event)->last = s->last;
    return SUCCESS;
}
// An external event record is a node of the graph that is being captured, and is invalid elsewhere.
API cuEventRecordWithFlags(void* event, void* stream, unsigned flags) {
    if (flags == 0) return cuEventRecord(event, stream);
    if (!(stream && ((Stream*)stream)->capturing)) return INVALID_VALUE;
    return note_time(event, stream);
}
API cuEventQuery(void*) { return broken; }
API cuEventSynchronize(void*) { return broken; }
API cuEventElapsedTime(float* ms, void* from, void* to) {
    *ms = std::chrono::duration<float, std::milli>(((Event*)to)->at - ((Event*)from)->at).count();
    return SUCCESS;
}

// Streams that joined a capture leave it.
static void streams_leave(const Graph* graph) {
    std::lock_guard guard(lock);
    for (Stream* s : streams)
        if (s->capturing == graph) s->capturing = nullptr;
}
API cuStreamBeginCapture_v2(void* stream, int) {
    auto s = (Stream*)stream;
    s->last = {};
    return s->capturing = new Graph{.nodes = {}, .began = s}, SUCCESS;
}
API cuStreamEndCapture(void* stream, void** graph) {
    auto s = (Stream*)stream;
    auto ended = s->capturing;
    // The work of other streams must have been joined.
    std::vector<bool> joined(ended->nodes.size());
    for (size_t node : s->last) joined[node] = true;
    for (size_t i = joined.size(); i-- > 0;)
        for (size_t node : ended->nodes[i].behind) joined[node] = joined[node] || joined[i];
    s->capturing = nullptr;
    streams_leave(ended);
    if (std::find(joined.begin(), joined.end(), false) != joined.end()) {
        delete ended;
        return *graph = nullptr, UNJOINED;
    }
    return *graph = ended, SUCCESS;
}
API cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
    return *made = new Graph(*(Graph*)graph), SUCCESS;
}
// Runs a node after all of its dependencies.
static int run(Graph& graph, std::vector<bool>& done, size_t i, void* stream) {
    if (done[i]) return SUCCESS;
    done[i] = true;
    for (size_t before : graph.nodes[i].behind)
        if (int code = run(graph, done, before, stream)) return code;
    return queue(stream, graph.nodes[i].work);
}
API cuGraphLaunch(void* launched, void* stream) {
    if (broken) return broken;
    if (int code = injected("graph")) return broken = code, SUCCESS;
    auto& graph = *(Graph*)launched;
    std::vector<bool> done(graph.nodes.size());
    bool eager = setting("CAPFUL_STAND_IN_EAGER", 0);
    auto ready = [&](const Node& node) {
        return std::all_of(node.behind.begin(), node.behind.end(), [&](size_t before) { return done[before]; });
    };
    auto run_all = [&](auto&& which) {
        for (size_t i = 0; i < done.size(); i++) {
            if (done[i] || !which(graph.nodes[i])) continue;
            if (int code = run(graph, done, i, stream)) return code;
        }
        return (int)SUCCESS;
    };
    int code = SUCCESS;
    for (size_t i = 0; i < done.size() && !code; i++) {
        if (eager) code = run_all([&](const Node& node) { return !node.first && ready(node); });
        if (!code && graph.nodes[i].first) code = run(graph, done, i, stream);
    }
    if (!code) code = run_all([](const Node&) { return true; });
    return broken ? (int)SUCCESS : code;
}
API cuGraphExecDestroy(void* graph) { return delete (Graph*)graph, SUCCESS; }
API cuGraphDestroy(void* graph) { return delete (Graph*)graph, SUCCESS; }
