#include "fibers.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <link.h>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "stack.h"

namespace stand_in {

namespace {

enum State : uint8_t { READY, AT_BLOCK, AT_WARP, AT_NUMBER, AT_PHASE, DONE };

constexpr unsigned MOST_THREADS = 1024, BARRIERS = 16, LANES = 32;
// The number of times that a warp continues before others run: some warps poll for each other.
constexpr unsigned ROUNDS = 16;

struct Copy {
    void* to;
    unsigned char bytes[16];
    size_t count;
    unsigned group;
};

struct Machine;

// A thread of a block: the data after its stack.
struct Fiber {
    Running running;  // first: what `now` gives
    Machine* machine;
    Words brought = {};
    std::vector<Copy> copies;  // started and not waited for
    unsigned groups = 0;       // of copies, complete
    unsigned barrier = 0;      // where it waits in state AT_NUMBER
    const void* phases = nullptr;  // where it waits in state AT_PHASE
    Stopped at;
    bool started = false;
};
static_assert(sizeof(Fiber) <= DATA);

struct Warp {
    Words brought[LANES];
};

// A tile in transfer, as rows of 128 bytes.
struct Tile {
    unsigned char* to;
    std::vector<unsigned char> bytes;
};

// A barrier that counts arrivals and the bytes of tiles, in phases.
struct Phases {
    unsigned arrivals, missing;
    long long bytes = 0;  // announced and not yet copied
    unsigned over = 0;    // number of complete phases, modulo 2
    std::vector<Tile> tiles;
};

Kernel* kernels = nullptr;

// Runs a grid. Several machines run at the same time, each for one of the caller's threads.
struct Machine {
    std::vector<Fiber*> fibers;  // of whole warps
    // One element for each fiber; contiguous, since they are scanned often.
    State states[MOST_THREADS] = {};
    const char* files[MOST_THREADS];
    int lines[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    unsigned arrived[BARRIERS] = {};  // at each numbered barrier
    std::map<const void*, Phases> phases;
    Stopped scheduler;
    void (*body)(const void*);
    const void* arguments;
    const void* owner = nullptr;  // the shared memory of the last thread that ran this machine
};

// The machines that are not in use.
std::mutex idle_lock;
std::vector<std::unique_ptr<Machine>> idle;

Fiber& self() { return reinterpret_cast<Fiber&>(now()); }

// Stops this fiber where it waits, or at the end of its kernel.
void stop(State state, const char* file, int line) {
    Fiber& me = self();
    Machine& machine = *me.machine;
    unsigned i = me.running.thread.x;
    machine.states[i] = state;
    machine.files[i] = file;
    machine.lines[i] = line;
    Stopped::go(me.at, machine.scheduler);
}

// A fiber continues after its kernel with the next block.
void live() {
    for (;;) {
        const Machine& machine = *self().machine;
        machine.body(machine.arguments);
        stop(DONE, nullptr, 0);
    }
}

// Makes a warp's fibers, whose slots are contiguous.
void add_warp(Machine& machine) {
    char* mapped = (char*)mmap(nullptr, (LANES + 1) * PLACE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) abort();
    // Only the end of each slot is used.
    madvise(mapped, (LANES + 1) * PLACE, MADV_NOHUGEPAGE);
    uintptr_t first = ((uintptr_t)mapped + PLACE - 1) / PLACE * PLACE;
    for (unsigned lane = 0; lane < LANES; lane++) {
        Fiber* made = new ((void*)data_of(first + lane * PLACE)) Fiber;
        made->machine = &machine;
        machine.fibers.push_back(made);
    }
}

// Runs `f` until it waits or ends.
void resume(Machine& machine, Fiber& f) {
    if (!f.started) {
        f.started = true;
        uintptr_t place = (uintptr_t)&f / PLACE * PLACE;
        f.at.start((void*)place, (uintptr_t)&f - place, live);
    }
    Stopped::go(machine.scheduler, f.at);
}

bool all_at(const Machine& machine, unsigned first, unsigned count, State state) {
    for (unsigned i = first; i < first + count; i++)
        if (machine.states[i] != state) return false;
    for (unsigned i = first; i < first + count; i++)
        if (machine.lines[i] != machine.lines[first] || machine.files[i] != machine.files[first]) return false;
    return true;
}

// Runs a warp until all its fibers wait for other warps; returns whether any of them made progress.
bool run_warp(Machine& machine, unsigned first, bool backwards) {
    for (unsigned round = 0; round < ROUNDS; round++, backwards = !backwards) {
        bool moved = false;
        for (unsigned lane = 0; lane < LANES; lane++) {
            unsigned i = first + (backwards ? LANES - 1 - lane : lane);
            if (machine.states[i] != READY) continue;
            moved = true;
            resume(machine, *machine.fibers[i]);
        }
        if (!moved) return round > 0;
        if (!all_at(machine, first, LANES, AT_WARP)) continue;
        for (unsigned lane = 0; lane < LANES; lane++)
            machine.warps[first / LANES].brought[lane] = machine.fibers[first + lane]->brought;
        std::fill_n(machine.states + first, LANES, READY);
    }
    return true;
}

// The shared memory of all kernels: this library's thread-local storage.
struct Shared {
    char* start = nullptr;
    size_t bytes = 0;
};

Shared shared() {
    static thread_local char inside;
    struct Search {
        char* inside;
        Shared found;
    } search = {&inside, {}};
    auto visit = [](dl_phdr_info* info, size_t, void* given) {
        auto& [inside, found] = *(Search*)given;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            char* start = (char*)info->dlpi_tls_data;
            size_t bytes = info->dlpi_phdr[i].p_memsz;
            if (info->dlpi_phdr[i].p_type == PT_TLS && start <= inside && inside < start + bytes) found = {start, bytes};
        }
        return 0;
    };
    dl_iterate_phdr(visit, &search);
    return search.found;
}

// A file full of NaN.
int poison(size_t bytes) {
    static std::mutex lock;
    static int file = -1;
    static size_t filled = 0;
    std::lock_guard guard(lock);
    if (file < 0) file = memfd_create("poison", MFD_CLOEXEC);
    std::vector<char> more(bytes > filled ? bytes - filled : 0, (char)0xff);
    if (file < 0 || pwrite(file, more.data(), more.size(), (off_t)filled) != (ssize_t)more.size()) abort();
    filled += more.size();
    return file;
}

// This thread's shared memory while blocks run: megabytes for all kernels, of which a block writes a few kilobytes. Its
// pages map the file privately, so that written pages are copies; they are dropped before the next block.
class Poisoned {
    Shared all = shared();
    char* begin;  // of whole pages
    char* end;

    void map(int flags, int file) {
        if (mmap(begin, (size_t)(end - begin), PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | flags, file, 0) == MAP_FAILED)
            abort();
    }

  public:
    Poisoned() {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)all.start;
        begin = (char*)((start + page - 1) / page * page), end = (char*)((start + all.bytes) / page * page);
        if (begin < end) map(0, poison((size_t)(end - begin)));
        else begin = end = all.start + all.bytes;
    }
    Poisoned(const Poisoned&) = delete;
    // The allocator needs the pages in their original state.
    ~Poisoned() {
        if (begin < end) map(MAP_ANONYMOUS, -1);
    }
    const void* start() const { return all.start; }
    void again() {
        if (begin < end && madvise(begin, (size_t)(end - begin), MADV_DONTNEED) != 0) abort();
        memset(all.start, 0xff, (size_t)(begin - all.start));
        memset(end, 0xff, (size_t)(all.start + all.bytes - end));
    }
};

std::string run_block(Machine& machine, unsigned threads, bool backwards) {
    for (;; backwards = !backwards) {
        bool moved = false;
        for (unsigned first = 0; first < threads; first += LANES)
            moved |= run_warp(machine, backwards ? threads - LANES - first : first, backwards);
        if (moved) continue;
        if (all_at(machine, 0, threads, AT_BLOCK)) {
            std::fill_n(machine.states, threads, READY);
            continue;
        }
        for (unsigned i = 0; i < threads; i++) {
            if (machine.states[i] == DONE) continue;
            // The fibers are stuck: they are replaced with new ones.
            std::string where = std::string(machine.files[i]) + ":" + std::to_string(machine.lines[i]);
            machine.fibers.clear();
            std::fill_n(machine.arrived, BARRIERS, 0);
            return "not all threads reach the barrier at " + where;
        }
        for (unsigned& arrived : machine.arrived) {
            if (!arrived) continue;
            arrived = 0;
            return "some threads arrive at a barrier and none waits";
        }
        for (auto& [barrier, phases] : machine.phases)
            if (!phases.tiles.empty()) return "a tile is copied and its barrier's phase does not end";
        return {};
    }
}

}  // namespace

Registration::Registration(Kernel* kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

const Kernel* find(const char* name) {
    for (const Kernel* k = kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    return nullptr;
}

void block_barrier(const char* file, int line) { stop(AT_BLOCK, file, line); }

const Words* warp_exchange(Words brought, const char* file, int line) {
    Fiber& me = self();
    me.brought = brought;
    stop(AT_WARP, file, line);
    return me.machine->warps[me.running.thread.x / LANES].brought;
}

void copy_later(void* to, const void* from, size_t bytes) {
    Copy copy = {to, {}, bytes, self().groups};
    if (from) memcpy(copy.bytes, from, bytes);
    self().copies.push_back(copy);
}

void end_copies() { self().groups++; }

void copy_now(unsigned left) {
    auto& copies = self().copies;
    // Waiting for everything includes the copies that are in no group yet.
    auto due = std::find_if(copies.begin(), copies.end(),
                            [&](const Copy& copy) { return left && copy.group + left >= self().groups; });
    std::for_each(copies.begin(), due, [](const Copy& copy) { memcpy(copy.to, copy.bytes, copy.count); });
    copies.erase(copies.begin(), due);
}

namespace {

// Resumes the fibers that wait for this event.
template <class At>
void wake(Machine& machine, State state, At at) {
    for (unsigned i = 0; i < machine.fibers.size(); i++)
        if (machine.states[i] == state && at(*machine.fibers[i])) machine.states[i] = READY;
}

}  // namespace

void arrive_at(unsigned id, unsigned threads) {
    Machine& machine = *self().machine;
    if (++machine.arrived[id] < threads) return;
    machine.arrived[id] = 0;
    wake(machine, AT_NUMBER, [&](const Fiber& f) { return f.barrier == id; });
}

namespace {

// Ends a phase once all arrivals and bytes have come: only now are its tiles visible.
void end_phase(Machine& machine, const void* barrier, Phases& phases) {
    if (phases.missing || phases.bytes) return;
    for (const Tile& tile : phases.tiles) memcpy(tile.to, tile.bytes.data(), tile.bytes.size());
    phases.tiles.clear();
    phases.missing = phases.arrivals;
    phases.over ^= 1;
    wake(machine, AT_PHASE, [&](const Fiber& f) { return f.phases == barrier; });
}

}  // namespace

void start_phases(const void* barrier, unsigned arrivals) { self().machine->phases[barrier] = {arrivals, arrivals}; }

void arrive_in_phase(const void* barrier, unsigned bytes) {
    Machine& machine = *self().machine;
    Phases& phases = machine.phases.at(barrier);
    phases.missing--;
    phases.bytes += bytes;
    end_phase(machine, barrier, phases);
}

bool phase_over(const void* barrier, unsigned parity) { return self().machine->phases.at(barrier).over != parity; }

void wait_for_phase(const void* barrier, unsigned parity, const char* file, int line) {
    while (!phase_over(barrier, parity)) {
        self().phases = barrier;
        stop(AT_PHASE, file, line);
    }
}

void copy_tile(void* to, const TileMap& map, const void* barrier, unsigned column, unsigned row, unsigned head,
               unsigned sequence) {
    constexpr unsigned PIECES = 8, PIECE = 16;
    Tile tile = {(unsigned char*)to, std::vector<unsigned char>(map.tile_rows * PIECES * PIECE)};
    const auto& [columns, rows, heads, sequences] = map.sizes;
    const char* matrix = (const char*)map.address + head * map.pitches[1] + sequence * map.pitches[2];
    for (unsigned r = 0; r < map.tile_rows && head < heads && sequence < sequences; r++)
        for (unsigned p = 0; p < PIECES; p++) {
            unsigned first = column + p * PIECE / 2;
            if (row + r >= rows || first >= columns) continue;
            const char* from = matrix + (row + r) * map.pitches[0] + 2 * first;
            size_t bytes = std::min<size_t>(PIECE, 2 * (columns - first));
            memcpy(&tile.bytes[(r * PIECES + (p ^ r % 8)) * PIECE], from, bytes);
        }
    Machine& machine = *self().machine;
    Phases& phases = machine.phases.at(barrier);
    phases.bytes -= tile.bytes.size();
    phases.tiles.push_back(std::move(tile));
    end_phase(machine, barrier, phases);
}

void wait_at(unsigned id, unsigned threads, const char* file, int line) {
    bool last = self().machine->arrived[id] + 1 == threads;
    arrive_at(id, threads);
    if (last) return;
    self().barrier = id;
    stop(AT_NUMBER, file, line);
}

namespace {

// Runs the blocks of columns [begin, end) of the grid.
std::string run_blocks(Machine& machine, Poisoned& poisoned, const Kernel& kernel, const void* arguments, Index grid,
                       Index block, unsigned begin, unsigned end) {
    unsigned threads = block.x;
    if (block.y != 1 || block.z != 1 || threads % 32 != 0 || threads == 0 || threads > kernel.threads)
        return std::string(kernel.name) + ": blocks of " + std::to_string(threads) + " threads";
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) return std::string(kernel.name) + ": the grid";
    machine.body = kernel.run;
    machine.arguments = arguments;
    while (machine.fibers.size() < threads) add_warp(machine);
    bool backwards = false;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = begin; x < end; x++, backwards = !backwards) {
                for (unsigned i = 0; i < threads; i++) {
                    Fiber& f = *machine.fibers[i];
                    f.running = {{i, 0, 0}, {x, y, z}, block, grid};
                    f.copies.clear();
                    f.groups = 0;
                }
                std::fill_n(machine.states, threads, READY);
                machine.phases.clear();
                poisoned.again();
                std::string wrong = run_block(machine, threads, backwards);
                if (!wrong.empty()) return std::string(kernel.name) + ": " + wrong;
            }
    return {};
}

std::string run_on_machine(const Kernel& kernel, const void* arguments, Index grid, Index block, unsigned begin,
                           unsigned end) {
    std::unique_ptr<Machine> machine;
    Poisoned poisoned;
    {
        std::lock_guard guard(idle_lock);
        // Preferably the machine that this thread used before.
        auto mine = std::find_if(idle.begin(), idle.end(), [&](auto& m) { return m->owner == poisoned.start(); });
        if (mine == idle.end() && mine != idle.begin()) mine--;
        if (mine != idle.end()) machine = std::move(*mine), idle.erase(mine);
    }
    if (!machine) machine = std::make_unique<Machine>();
    if (machine->owner != poisoned.start()) {
        // Fibers restart: their cached thread-local addresses belong to another thread.
        for (Fiber* fiber : machine->fibers) fiber->started = false;
        machine->owner = poisoned.start();
    }
    std::string wrong = run_blocks(*machine, poisoned, kernel, arguments, grid, block, begin, end);
    std::lock_guard guard(idle_lock);
    idle.push_back(std::move(machine));
    return wrong;
}

}  // namespace

std::string run_grid(const Kernel& kernel, const void* arguments, Index grid, Index block) {
    return run_on_machine(kernel, arguments, grid, block, 0, grid.x);
}

namespace {

// A thread that runs one block after the other. Setting up its shared memory, of all kernels, takes longer than running
// a block.
class Worker {
    std::mutex lock;
    std::condition_variable changed;
    std::function<void()> work;

    void run() {
        for (std::unique_lock guard(lock);;) {
            changed.wait(guard, [this] { return bool(work); });
            work();
            work = nullptr;
            changed.notify_all();
        }
    }

  public:
    Worker() { std::thread(&Worker::run, this).detach(); }
    void start(std::function<void()> what) {
        std::lock_guard guard(lock);
        work = std::move(what);
        changed.notify_all();
    }
    void wait() {
        std::unique_lock guard(lock);
        changed.wait(guard, [this] { return !work; });
    }
};

std::vector<Worker*> idle_workers;

Worker* worker() {
    std::lock_guard guard(idle_lock);
    if (idle_workers.empty()) return new Worker;
    Worker* last = idle_workers.back();
    idle_workers.pop_back();
    return last;
}

}  // namespace

std::string run_grid_together(const Kernel& kernel, const void* arguments, Index grid, Index block) {
    std::vector<Worker*> workers;
    for (unsigned x = 0; x < grid.x; x++) {
        workers.push_back(worker());
        workers.back()->start([=, &kernel] {
            std::string wrong = run_on_machine(kernel, arguments, grid, block, x, x + 1);
            if (wrong.empty()) return;
            // The other blocks would wait for this one forever.
            fprintf(stderr, "stand-in: %s\n", wrong.c_str());
            abort();
        });
    }
    for (Worker* each : workers) each->wait();
    std::lock_guard guard(idle_lock);
    idle_workers.insert(idle_workers.end(), workers.begin(), workers.end());
    return {};
}

void let_others_run() { std::this_thread::yield(); }

}  // namespace stand_in
