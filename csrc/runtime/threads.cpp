// The thread pool, and teams of an OpenMP runtime's threads.
#include "runtime/threads.h"

#include "runtime/cores.h"
#include "runtime/float_mode.h"
#include "runtime/paths.h"

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zstate {
namespace {

constexpr int kMaxThreads = 256;
constexpr double kLong = 1e9;  // multiplications: some hundredths of a second on one thread

using Clock = std::chrono::steady_clock;
std::atomic<bool (*)()> g_stop_check{nullptr};

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // some tens of cycles; the instruction meant for this, yield, takes one
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

void set_stop_check(bool (*stop)()) { g_stop_check.store(stop); }

bool Watch::look() {
  const std::int64_t now = Clock::now().time_since_epoch() / std::chrono::milliseconds(1);
  if (now < next_) return false;
  const bool first = next_ == 0;
  next_ = now + 100;
  bool (*const stop)() = g_stop_check.load(std::memory_order_relaxed);
  if (first || !stop || !stop()) return false;
  stopped_.store(true, std::memory_order_release);
  return true;
}

void Barrier::wait(int size, int rank, Watch* watch) {
  if (watch && watch->stopped(rank)) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_while(
      [&] { return phase_.load(std::memory_order_acquire) == phase && !(watch && watch->stopped(rank)); });
}

class Pool {
 public:
  bool awake() const { return sleeping_.load(std::memory_order_relaxed) == 0 && workers_ > 0; }

  // For one caller at a time.
  void run(int threads, TeamFunction function, void* context, Watch* watch) {
    threads = 1 + start_workers(threads - 1);
    function_ = function;
    context_ = context;
    watch_ = watch;
    mode_ = float_mode();
    meeting_.reset();
    const std::uint32_t number = job_.load(std::memory_order_relaxed) / kSizes + 1;
    job_.store(number * kSizes + static_cast<std::uint32_t>(threads), std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) job_.notify_all();
    function(context, member(0, threads));
    end_.wait(threads);
  }

 private:
  static constexpr int kSpinRounds = 6000;  // a few hundred microseconds until a worker goes to sleep

  // A job is its number and its team's size in one word: a worker that wakes late must not mix two jobs.
  static constexpr std::uint32_t kSizes = 512;

  Team member(int rank, int size) { return {rank, size, &meeting_, watch_}; }

  // How many of the wanted there are: the system may refuse to start more.
  int start_workers(int wanted) {
    try {
      while (workers_ < wanted) {
        const int rank = workers_ + 1;
        const std::uint32_t seen = job_.load();
        std::thread([this, rank, seen] { work(rank, seen); }).detach();
        ++workers_;
      }
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    return workers_ < wanted ? workers_ : wanted;
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
      set_float_mode(mode_);
      function_(context_, team);
      end_.wait(team.size);
    }
  }

  alignas(64) std::atomic<std::uint32_t> job_{0};
  Barrier meeting_, end_;  // of the members in a job, and when they leave it
  alignas(64) std::atomic<int> sleeping_{0};
  TeamFunction function_ = nullptr;
  void* context_ = nullptr;
  Watch* watch_ = nullptr;
  FloatMode mode_ = 0;
  int workers_ = 0;
};

namespace {

// Never destroyed: the workers sleep in it until the process ends.
Pool* new_pool() { return new Pool; }
std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};
std::atomic<bool> g_busy{false};  // one team at a time

Pool* pool() {
  Pool* existing = g_pool.load(std::memory_order_acquire);
  if (existing) return existing;
  Pool* fresh = new_pool();
  if (!g_pool.compare_exchange_strong(existing, fresh)) {
    delete fresh;
    return existing;
  }
  return fresh;
}

OpenMp g_openmp;
std::atomic<bool> g_uses_openmp{false};
std::atomic<Clock::rep> g_last_region{0};

struct Region {
  TeamFunction function;
  void* context;
  Watch* watch;
  FloatMode mode;
  Barrier barrier;
};

// What every thread of an OpenMP team runs; the runtime may give fewer than `threads`.
void run_member_of_region(void* data) {
  Region& region = *static_cast<Region*>(data);
  const FloatMode own = float_mode();
  set_float_mode(region.mode);
  region.function(region.context,
                  {g_openmp.thread_number(), g_openmp.team_size(), &region.barrier, region.watch});
  set_float_mode(own);
}

void run_region(int threads, TeamFunction function, void* context, Watch* watch) {
  Region region{function, context, watch, float_mode(), {}};
  g_openmp.parallel(run_member_of_region, &region, static_cast<unsigned>(threads), 0);
  g_last_region.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace

void use_openmp(const OpenMp& runtime) {
  if (g_uses_openmp.load()) return;
  g_openmp = runtime;
  g_uses_openmp.store(true);
}

namespace {

// Holds the team, if it is free, and gives it back however its job ends.
class Hold {
 public:
  Hold() : held_(!g_busy.exchange(true, std::memory_order_acquire)) {}
  ~Hold() {
    if (held_) g_busy.store(false, std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  explicit operator bool() const { return held_; }

 private:
  const bool held_;
};

void run_alone(TeamFunction function, void* context, Watch* watch) {
  function(context, Team{0, 1, nullptr, watch});
}

void run_watched(int threads, TeamFunction function, void* context, Watch* watch) {
  if (threads == 1) {
    mark(Path::one_thread);
    return run_alone(function, context, watch);
  }
  const Hold hold;
  if (!hold) {
    mark(Path::team_is_busy);
    return run_alone(function, context, watch);
  }
  const bool openmp = g_uses_openmp.load(std::memory_order_acquire);
  mark(openmp ? Path::team_of_openmp : Path::team_of_pool);
  if (openmp)
    run_region(threads, function, context, watch);
  else
    pool()->run(threads, function, context, watch);
}

}  // namespace

void run_team(int threads, TeamFunction function, void* context, double work) {
  if (work < kLong) return run_watched(threads, function, context, nullptr);
  Watch watch;
  run_watched(threads, function, context, &watch);
  if (watch.stopped(1)) throw Interrupted();
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

// In a child of fork() the other threads are gone.
void forget_pool_in_child() {
  g_pool.store(nullptr);       // its threads do not exist here; the object is left alone
  g_uses_openmp.store(false);  // the runtime would wait for its own
  g_busy.store(false);
}
#if !defined(_WIN32)
[[maybe_unused]] const int g_registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
#endif

}  // namespace

}  // namespace zstate
