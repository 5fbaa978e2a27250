// The thread pool and its default size.
#include "runtime/threads.h"

#include "runtime/cores.h"
#include "runtime/paths.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zstate {
namespace {

constexpr int kMaxThreads = 256;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Some microseconds: longer than members differ when each has a core, shorter than losing a time slice to a
// stranger.
constexpr int kPauses = 200;

// Spins while `waiting()` holds; after a while it offers the core to others, so that more threads than cores
// still progress.
template <class Waiting>
void spin_while(Waiting waiting) {
  for (int i = 0; waiting(); ++i) {
    if (i < kPauses)
      relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace

void Barrier::wait(int size) {
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_while([&] { return phase_.load(std::memory_order_acquire) == phase; });
}

class Pool {
 public:
  bool awake() const { return sleeping_.load(std::memory_order_relaxed) == 0 && !workers_.empty(); }

  // For one caller at a time.
  void run(int threads, TeamFunction function, void* context) {
    start_workers(threads - 1);
    function_ = function;
    context_ = context;
    const std::uint32_t number = job_.load(std::memory_order_relaxed) / kSizes + 1;
    job_.store(number * kSizes + static_cast<std::uint32_t>(threads), std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) job_.notify_all();
    function(context, member(0, threads));
    barrier_.wait(threads);
  }

 private:
  static constexpr int kSpinRounds = 6000;  // a few hundred microseconds until a worker goes to sleep

  // A job is its number and its team's size in one word: a worker that wakes late must not mix two jobs.
  static constexpr std::uint32_t kSizes = 512;

  Team member(int rank, int size) {
    Team team;
    team.rank = rank;
    team.size = size;
    team.meeting = &barrier_;
    return team;
  }

  void start_workers(int wanted) {
    while (static_cast<int>(workers_.size()) < wanted) {
      const int rank = static_cast<int>(workers_.size()) + 1;
      const std::uint32_t seen = job_.load();
      workers_.emplace_back([this, rank, seen] { work(rank, seen); });
      workers_.back().detach();
    }
  }

  [[noreturn]] void work(int rank, std::uint32_t seen) {
    for (;;) {
      for (int i = 0; i < kSpinRounds && job_.load(std::memory_order_acquire) == seen; ++i) relax();
      if (job_.load(std::memory_order_acquire) == seen) {
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        while (job_.load(std::memory_order_seq_cst) == seen) job_.wait(seen);
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
      }
      // A member cannot miss a job: the next one starts only after this one's last barrier. Others may, and
      // skip it.
      seen = job_.load(std::memory_order_acquire);
      const Team team = member(rank, static_cast<int>(seen % kSizes));
      if (rank >= team.size) continue;
      function_(context_, team);
      barrier_.wait(team.size);
    }
  }

  alignas(64) std::atomic<std::uint32_t> job_{0};
  Barrier barrier_;
  alignas(64) std::atomic<int> sleeping_{0};
  TeamFunction function_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

namespace {

// Never destroyed: the workers sleep in it until the process ends.
Pool* new_pool() { return new Pool; }
std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};
std::atomic<bool> g_busy{false};  // one team at a time

void forget_pool_in_child();
void watch_for_forks() {
#if !defined(_WIN32)
  static std::once_flag registered;
  std::call_once(registered, [] { pthread_atfork(nullptr, nullptr, forget_pool_in_child); });
#endif
}

Pool* pool() {
  Pool* existing = g_pool.load(std::memory_order_acquire);
  if (existing) return existing;
  Pool* fresh = new_pool();
  if (!g_pool.compare_exchange_strong(existing, fresh)) {
    delete fresh;
    return existing;
  }
  watch_for_forks();
  return fresh;
}

OpenMp g_openmp;
std::atomic<bool> g_uses_openmp{false};
using Clock = std::chrono::steady_clock;
std::atomic<Clock::rep> g_last_region{0};

struct Region {
  TeamFunction function;
  void* context;
  Barrier barrier;
};

// What every thread of an OpenMP team runs; the runtime may give fewer than `threads`.
void run_member_of_region(void* data) {
  Region& region = *static_cast<Region*>(data);
  Team team;
  team.rank = g_openmp.thread_number();
  team.size = g_openmp.team_size();
  team.meeting = &region.barrier;
  region.function(region.context, team);
}

void run_region(int threads, TeamFunction function, void* context) {
  Region region{function, context, {}};
  g_openmp.parallel(run_member_of_region, &region, static_cast<unsigned>(threads), 0);
  g_last_region.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace

void use_openmp(const OpenMp& runtime) {
  if (g_uses_openmp.load()) return;
  g_openmp = runtime;
  watch_for_forks();
  g_uses_openmp.store(true);
}

void run_team(int threads, TeamFunction function, void* context) {
  const bool alone = threads == 1, busy = !alone && g_busy.exchange(true, std::memory_order_acquire);
  if (alone || busy) {
    mark(alone ? Path::one_thread : Path::team_is_busy);
    function(context, Team{});
    return;
  }
  const bool openmp = g_uses_openmp.load(std::memory_order_acquire);
  mark(openmp ? Path::team_of_openmp : Path::team_of_pool);
  if (openmp)
    run_region(threads, function, context);
  else
    pool()->run(threads, function, context);
  g_busy.store(false, std::memory_order_release);
}

bool workers_awake() {
  if (g_uses_openmp.load(std::memory_order_relaxed)) {
    const Clock::duration last{g_last_region.load(std::memory_order_relaxed)};
    return Clock::now().time_since_epoch() - last < std::chrono::microseconds(500);
  }
  Pool* p = g_pool.load(std::memory_order_acquire);
  return p && p->awake();
}

void set_num_threads(int threads) {
  g_threads.store(threads < 1 ? 1 : threads > kMaxThreads ? kMaxThreads : threads);
}

int get_num_threads() {
  int threads = g_threads.load(std::memory_order_relaxed);
  if (threads == 0) {
    threads = default_threads(kMaxThreads);
    g_threads.store(threads);
  }
  return threads;
}

// ---- fork ----

namespace {

void forget_pool_in_child() {
  g_pool.store(nullptr);       // the parent's threads do not exist here; its pool object is left alone
  g_uses_openmp.store(false);  // nor do the runtime's, which would wait for them
  g_busy.store(false);
}

}  // namespace

}  // namespace zstate
