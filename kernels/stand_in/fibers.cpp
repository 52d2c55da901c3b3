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

__thread Running* now = nullptr;

namespace {

enum State { READY, AT_BLOCK, AT_WARP, AT_NUMBER, AT_PHASE, DONE };

// Stacks that all began at a multiple of a page would be in each other's way in the cache: they begin at different lines.
constexpr size_t STACK = 128 << 10, APART = 33 * 64, BEGINNINGS = 31;
constexpr unsigned MOST_THREADS = 1024, BARRIERS = 16;

struct Copy {
    void* to;
    unsigned char bytes[16];
    size_t count;
    unsigned group;
};

}  // namespace

struct Fiber {
    Running running;  // first: `now` points at it
    State state = DONE;
    const char* file = nullptr;
    int line = 0;
    Words brought = {};
    std::vector<Copy> copies;  // started, not waited for
    unsigned groups = 0;       // of copies, ended
    unsigned barrier = 0;      // where it waits AT_NUMBER
    const void* phases = nullptr;  // where it waits AT_PHASE
    Stopped at;
    void* stack = nullptr;
    bool started = false;
};

namespace {

struct Warp {
    Words brought[32];
};

// A tile on its way, by rows of 128 bytes.
struct Tile {
    unsigned char* to;
    std::vector<unsigned char> bytes;
};

// A barrier that counts arrivals and the bytes of tiles, phase after phase.
struct Phases {
    unsigned arrivals, missing;
    long long bytes = 0;  // said to come and not copied
    unsigned over = 0;    // phases, modulo 2
    std::vector<Tile> tiles;
};

Kernel* kernels = nullptr;

// What runs a grid. Several run at the same time, each for a thread of the caller's.
struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;
    Warp warps[MOST_THREADS / 32];
    unsigned arrived[BARRIERS] = {};  // at each barrier that has a number
    std::map<const void*, Phases> phases;
    Stopped scheduler;
    void (*body)(const void*);
    const void* arguments;
    const void* owner = nullptr;  // where its thread-local storage lies
};

__thread Machine* machine = nullptr;

// Those that nobody uses.
std::mutex idle_lock;
std::vector<std::unique_ptr<Machine>> idle;

Fiber* self() { return reinterpret_cast<Fiber*>(now); }

// A fiber lives on after its kernel, for the next block.
void live() {
    for (;;) {
        machine->body(machine->arguments);
        self()->state = DONE;
        Stopped::go(self()->at, machine->scheduler);
    }
}

Fiber& fiber(unsigned i) {
    auto& fibers = machine->fibers;
    while (fibers.size() <= i) {
        auto made = std::make_unique<Fiber>();
        made->stack = mmap(nullptr, STACK + BEGINNINGS * APART, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        if (made->stack == MAP_FAILED) abort();
        fibers.push_back(std::move(made));
    }
    return *fibers[i];
}

// Runs `f` until it waits or ends.
void resume(Fiber& f) {
    now = &f.running;
    if (!f.started) {
        f.started = true;
        f.at.start(f.stack, STACK + f.running.thread.x % BEGINNINGS * APART, live);
    }
    Stopped::go(machine->scheduler, f.at);
}

void wait(State state, const char* file, int line) {
    Fiber* me = self();
    me->state = state;
    me->file = file;
    me->line = line;
    Stopped::go(me->at, machine->scheduler);
}

bool all_at(unsigned first, unsigned count, State state) {
    const auto& fibers = machine->fibers;
    const Fiber& one = *fibers[first];
    for (unsigned i = first; i < first + count; i++) {
        const Fiber& f = *fibers[i];
        if (f.state != state || f.line != one.line || f.file != one.file) return false;
    }
    return true;
}

// All shared memory of the kernels: this library's thread-local storage.
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

// A file of nothing but NaN.
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

// This thread's shared memory while blocks run: megabytes of all kernels, of which a block writes some kilobytes. Its pages
// are copies of the file's that only exist once they are written, and are dropped before the next block.
class Poisoned {
    Shared all = shared();
    char* begin;  // of whole pages
    char* end;
    Machine* own = machine;

    void map(int flags, int file) {
        if (mmap(begin, (size_t)(end - begin), PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | flags, file, 0) == MAP_FAILED)
            abort();
        machine = own;
    }

  public:
    Poisoned() {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)all.start;
        begin = (char*)((start + page - 1) / page * page), end = (char*)((start + all.bytes) / page * page);
        if (begin < end) map(0, poison((size_t)(end - begin)));
        else begin = end = all.start + all.bytes;
    }
    Poisoned(const Poisoned&) = delete;
    // The allocator takes the pages back as it gave them.
    ~Poisoned() {
        if (begin < end) map(MAP_ANONYMOUS, -1);
    }
    void again() {
        if (begin < end && madvise(begin, (size_t)(end - begin), MADV_DONTNEED) != 0) abort();
        memset(all.start, 0xff, (size_t)(begin - all.start));
        memset(end, 0xff, (size_t)(all.start + all.bytes - end));
        machine = own;
    }
};

std::string run_block(unsigned threads, bool backwards) {
    auto& fibers = machine->fibers;
    for (;; backwards = !backwards) {
        bool moved = false;
        for (unsigned i = 0; i < threads; i++) {
            Fiber& f = *fibers[backwards ? threads - 1 - i : i];
            if (f.state != READY) continue;
            moved = true;
            resume(f);
        }
        for (unsigned first = 0; first < threads; first += 32) {
            if (!all_at(first, 32, AT_WARP)) continue;
            moved = true;
            for (unsigned lane = 0; lane < 32; lane++) {
                machine->warps[first / 32].brought[lane] = fibers[first + lane]->brought;
                fibers[first + lane]->state = READY;
            }
        }
        if (moved) continue;
        if (all_at(0, threads, AT_BLOCK)) {
            for (unsigned i = 0; i < threads; i++) fibers[i]->state = READY;
            continue;
        }
        for (unsigned i = 0; i < threads; i++) {
            const Fiber& f = *fibers[i];
            if (f.state == DONE) continue;
            // The fibers are stuck where they are: new ones take their place.
            std::string where = std::string(f.file) + ":" + std::to_string(f.line);
            fibers.clear();
            std::fill_n(machine->arrived, BARRIERS, 0);
            return "not all threads reach the barrier at " + where;
        }
        for (unsigned& arrived : machine->arrived) {
            if (!arrived) continue;
            arrived = 0;
            return "some threads arrive at a barrier and none waits";
        }
        for (auto& [barrier, phases] : machine->phases)
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

void block_barrier(const char* file, int line) { wait(AT_BLOCK, file, line); }

const Words* warp_exchange(Words brought, const char* file, int line) {
    self()->brought = brought;
    wait(AT_WARP, file, line);
    return machine->warps[now->thread.x / 32].brought;
}

void copy_later(void* to, const void* from, size_t bytes) {
    Copy copy = {to, {}, bytes, self()->groups};
    if (from) memcpy(copy.bytes, from, bytes);
    self()->copies.push_back(copy);
}

void end_copies() { self()->groups++; }

void copy_now(unsigned left) {
    auto& copies = self()->copies;
    // Waiting for all waits also for those that are of no group yet.
    auto due = std::find_if(copies.begin(), copies.end(),
                            [&](const Copy& copy) { return left && copy.group + left >= self()->groups; });
    std::for_each(copies.begin(), due, [](const Copy& copy) { memcpy(copy.to, copy.bytes, copy.count); });
    copies.erase(copies.begin(), due);
}

void arrive_at(unsigned id, unsigned threads) {
    if (++machine->arrived[id] < threads) return;
    machine->arrived[id] = 0;
    for (auto& f : machine->fibers)
        if (f->state == AT_NUMBER && f->barrier == id) f->state = READY;
}

namespace {

// Ends a phase where all has come: only now are its tiles there.
void end_phase(const void* barrier, Phases& phases) {
    if (phases.missing || phases.bytes) return;
    for (const Tile& tile : phases.tiles) memcpy(tile.to, tile.bytes.data(), tile.bytes.size());
    phases.tiles.clear();
    phases.missing = phases.arrivals;
    phases.over ^= 1;
    for (auto& f : machine->fibers)
        if (f->state == AT_PHASE && f->phases == barrier) f->state = READY;
}

}  // namespace

void start_phases(const void* barrier, unsigned arrivals) { machine->phases[barrier] = {arrivals, arrivals}; }

void arrive_in_phase(const void* barrier, unsigned bytes) {
    Phases& phases = machine->phases.at(barrier);
    phases.missing--;
    phases.bytes += bytes;
    end_phase(barrier, phases);
}

bool phase_over(const void* barrier, unsigned parity) { return machine->phases.at(barrier).over != parity; }

void wait_for_phase(const void* barrier, unsigned parity, const char* file, int line) {
    while (!phase_over(barrier, parity)) {
        self()->phases = barrier;
        wait(AT_PHASE, file, line);
    }
}

void copy_tile(void* to, const TileMap& map, const void* barrier, unsigned column, unsigned row) {
    constexpr unsigned PIECES = 8, PIECE = 16;
    Tile tile = {(unsigned char*)to, std::vector<unsigned char>(map.tile_rows * PIECES * PIECE)};
    for (unsigned r = 0; r < map.tile_rows; r++)
        for (unsigned p = 0; p < PIECES; p++) {
            unsigned first = column + p * PIECE / 2;
            if (row + r >= map.rows || first >= map.columns) continue;
            const char* from = (const char*)map.address + (row + r) * map.pitch + 2 * first;
            size_t bytes = std::min<size_t>(PIECE, 2 * (map.columns - first));
            memcpy(&tile.bytes[(r * PIECES + (p ^ r % 8)) * PIECE], from, bytes);
        }
    Phases& phases = machine->phases.at(barrier);
    phases.bytes -= tile.bytes.size();
    phases.tiles.push_back(std::move(tile));
    end_phase(barrier, phases);
}

void wait_at(unsigned id, unsigned threads, const char* file, int line) {
    bool last = machine->arrived[id] + 1 == threads;
    arrive_at(id, threads);
    if (last) return;
    self()->barrier = id;
    wait(AT_NUMBER, file, line);
}

namespace {

// The blocks of columns [begin, end) of the grid.
std::string run_blocks(const Kernel& kernel, const void* arguments, Index grid, Index block, unsigned begin, unsigned end) {
    unsigned threads = block.x;
    if (block.y != 1 || block.z != 1 || threads % 32 != 0 || threads == 0 || threads > kernel.threads)
        return std::string(kernel.name) + ": blocks of " + std::to_string(threads) + " threads";
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) return std::string(kernel.name) + ": the grid";
    machine->body = kernel.run;
    machine->arguments = arguments;
    bool backwards = false;
    Poisoned poisoned;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = begin; x < end; x++, backwards = !backwards) {
                for (unsigned i = 0; i < threads; i++) {
                    Fiber& f = fiber(i);
                    f.running = {{i, 0, 0}, {x, y, z}, block, grid};
                    f.state = READY;
                    f.copies.clear();
                    f.groups = 0;
                }
                machine->phases.clear();
                poisoned.again();
                std::string wrong = run_block(threads, backwards);
                if (!wrong.empty()) return std::string(kernel.name) + ": " + wrong;
            }
    return {};
}

std::string run_on_machine(const Kernel& kernel, const void* arguments, Index grid, Index block, unsigned begin,
                           unsigned end) {
    std::unique_ptr<Machine> own;
    {
        std::lock_guard guard(idle_lock);
        // Rather the one that this thread had before.
        auto mine = std::find_if(idle.begin(), idle.end(), [](auto& m) { return m->owner == &machine; });
        if (mine == idle.end() && mine != idle.begin()) mine--;
        if (mine != idle.end()) own = std::move(*mine), idle.erase(mine);
    }
    if (!own) own = std::make_unique<Machine>();
    if (own->owner != &machine) {
        // Fibers begin anew: what they kept of thread-local storage is another thread's.
        for (auto& fiber : own->fibers) fiber->started = false;
        own->owner = &machine;
    }
    machine = own.get();
    std::string wrong = run_blocks(kernel, arguments, grid, block, begin, end);
    std::lock_guard guard(idle_lock);
    idle.push_back(std::move(own));
    return wrong;
}

}  // namespace

std::string run_grid(const Kernel& kernel, const void* arguments, Index grid, Index block) {
    return run_on_machine(kernel, arguments, grid, block, 0, grid.x);
}

namespace {

// A thread that runs one block after the other. Its shared memory, of all kernels, takes longer to make than a block to run.
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
            // The others would wait for this one for ever.
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
