// The thread pool.
#include "runtime/pool.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

#include "runtime/spin.h"

namespace zstate {
namespace {

// How long a worker spins before it sleeps: longer than a program takes from one call to the next.
constexpr std::int64_t kSpin = 200'000;  // nanoseconds
// A worker that runs looks for a job far more often than this.
constexpr std::int64_t kFresh = 2'000;
constexpr int kLooks = 16;  // at one that has only just left a job

}  // namespace

bool Pool::ready(int threads) const {
  if (workers_ < threads - 1) return false;
  const std::int64_t now = nanoseconds();
  for (int rank = 1; rank < threads; ++rank) {
    const Worker& worker = worker_[static_cast<std::size_t>(rank)];
    const auto stale = [&] { return now - worker.beat.load(std::memory_order_relaxed) > kFresh; };
    for (int i = 0; i < kLooks && stale(); ++i) relax();
    if (stale()) return false;
  }
  return true;
}

void Pool::call(int threads) { post(1, 1 + start_workers(threads - 1)); }

void Pool::run(int threads, TeamFunction function, void* context, Watch* watch) {
  threads = 1 + start_workers(threads - 1);
  function_ = function;
  context_ = context;
  watch_ = watch;
  mode_ = float_mode();
  meeting_.reset();
  post(threads, threads);
  function(context, member(0, threads));
  end_.wait(threads);
}

// How many of the wanted there are: the system may refuse to start more.
int Pool::start_workers(int wanted) {
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
  return std::min<int>(workers_, wanted);
}

// A job for a team of `size`, after which the workers with ranks below `woken` are awake.
void Pool::post(int size, int woken) {
  const std::uint32_t number = job_.load(std::memory_order_relaxed) / kSizes + 1;
  core_.store(current_core(), std::memory_order_relaxed);
  job_.store(number * kSizes + static_cast<std::uint32_t>(size), std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  for (int rank = 1; rank < woken && crowded_.load(std::memory_order_relaxed); ++rank) {
    Worker& worker = worker_[static_cast<std::size_t>(rank)];
    const bool stays = !worker.sleeps.load() || worker.is_moved.load();
    if (!stays && keep_off_core(worker.thread.load(), core_.load(), worker.moved))
      worker.is_moved.store(true);
  }
  job_.notify_all();
}

void Pool::wait_for_job(Worker& self, std::uint32_t seen) {
  const std::int64_t end = nanoseconds() + kSpin;
  for (;;) {
    const std::int64_t now = nanoseconds();
    self.beat.store(now, std::memory_order_relaxed);
    if (job_.load(std::memory_order_acquire) != seen) return;
    if (now > end) break;
    relax();
  }
  if (self.is_moved.exchange(false)) move_back(self.moved);
  self.sleeps.store(true);
  sleeping_.fetch_add(1, std::memory_order_seq_cst);
  while (job_.load(std::memory_order_seq_cst) == seen) job_.wait(seen);
  sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  self.sleeps.store(false);
  note_core();
}

// Some systems wake a thread on the waker's core even if others are idle, and it runs only when the waker's
// time slice is over, milliseconds later.
void Pool::note_core() {
  const int own = current_core();
  if (own >= 0 && own == core_.load(std::memory_order_relaxed))
    crowded_.store(true, std::memory_order_relaxed);
}

void Pool::work(int rank, std::uint32_t seen) {
  Worker& self = worker_[static_cast<std::size_t>(rank)];
  self.thread.store(current_thread());
  for (;;) {
    wait_for_job(self, seen);
    // A member cannot miss a job: the next one starts only after this one's last barrier. Others may, and
    // skip it.
    seen = job_.load(std::memory_order_acquire);
    const int size = static_cast<int>(seen % kSizes);
    if (rank >= size) continue;
    set_float_mode(mode_);
    function_(context_, member(rank, size));
    end_.wait(size);
  }
}

}  // namespace zstate
