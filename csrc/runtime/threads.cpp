// Teams of the pool's threads or of an OpenMP runtime's.
#include "runtime/threads.h"

#include <atomic>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "runtime/cores.h"
#include "runtime/float_mode.h"
#include "runtime/paths.h"
#include "runtime/pool.h"
#include "runtime/spin.h"

namespace zstate {
namespace {

constexpr double kLong = 1e9;  // multiplications: some hundredths of a second on one thread

std::atomic<bool (*)()> g_stop_check{nullptr};

}  // namespace

void set_stop_check(bool (*stop)()) { g_stop_check.store(stop); }

bool Watch::look() {
  const std::int64_t now = nanoseconds();
  if (now < next_) return false;
  const bool first = next_ == 0;
  next_ = now + 100'000'000;
  bool (*const stop)() = g_stop_check.load(std::memory_order_relaxed);
  if (first || !stop || !stop()) return false;
  stopped_.store(true, std::memory_order_release);
  return true;
}

void Barrier::wait(int size, bool caller, Watch* watch) {
  if (watch && watch->stopped(caller)) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_while(
      [&] { return phase_.load(std::memory_order_acquire) == phase && !(watch && watch->stopped(caller)); });
}

namespace {

std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};
std::atomic<bool> g_busy{false};  // one team at a time

Pool* pool() {
  Pool* existing = g_pool.load(std::memory_order_acquire);
  if (existing) return existing;
  Pool* fresh = new Pool;
  if (!g_pool.compare_exchange_strong(existing, fresh)) {
    delete fresh;
    return existing;
  }
  return fresh;
}

OpenMp g_openmp;
std::atomic<bool> g_uses_openmp{false};
std::atomic<std::int64_t> g_last_region{0};  // the end of the last one whose threads were there in time

struct Region {
  TeamFunction function;
  void* context;
  Watch* watch;
  FloatMode mode;
  Barrier barrier;
  std::int64_t begin = nanoseconds();
  std::atomic<bool> late{false};
};
constexpr std::int64_t kLate = 20'000;         // nanoseconds: a thread of the region slept, or had no core
constexpr std::int64_t kStaysAwake = 400'000;  // how long its threads spin for the next region, or longer

// What every thread of an OpenMP team runs; the runtime may give fewer than `threads`.
void run_member_of_region(void* data) {
  Region& region = *static_cast<Region*>(data);
  if (nanoseconds() - region.begin > kLate) region.late.store(true, std::memory_order_relaxed);
  const FloatMode own = float_mode();
  set_float_mode(region.mode);
  region.function(region.context,
                  {g_openmp.thread_number(), g_openmp.team_size(), &region.barrier, region.watch});
  set_float_mode(own);
}

void run_region(int threads, TeamFunction function, void* context, Watch* watch) {
  Region region{function, context, watch, float_mode(), {}};
  g_openmp.parallel(run_member_of_region, &region, static_cast<unsigned>(threads), 0);
  g_last_region.store(region.late.load() ? 0 : nanoseconds(), std::memory_order_relaxed);
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
  if (watch.stopped(false)) throw Interrupted();
}

bool threads_ready(int threads) {
  if (!g_uses_openmp.load(std::memory_order_acquire)) return pool()->ready(threads);
  return nanoseconds() - g_last_region.load(std::memory_order_relaxed) < kStaysAwake;
}

bool call_threads(int threads) {
  if (g_uses_openmp.load(std::memory_order_acquire)) return true;
  if (const Hold hold; hold) pool()->call(threads);
  return false;
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
[[maybe_unused]] const int g_pool_registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
#endif

}  // namespace

}  // namespace zstate
