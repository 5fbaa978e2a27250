// How many threads a job gets.
//
// Sharing can slow down a short job: its threads may be asleep, on one core, or far from each other (on one
// machine a cache line took 57, 155 or 590 ns from core to core and back, changing from one second to the
// next). So a job never waits for a thread that is not running, and tries both ways from time to time.
#include "runtime/team_choice.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>

#include "runtime/spin.h"
#include "runtime/threads.h"

namespace zstate {

// Jobs of one kind do the same work. Kinds that share a slot mix up each other's times, which costs only
// time.
struct Kind {
  std::atomic<std::uint32_t> jobs{0};
  std::atomic<int> trials{0};                // left of the way that seems slower
  std::atomic<std::uint32_t> taken[2] = {};  // nanoseconds, alone and shared; 0: not tried
};

namespace {

// In multiplications, some ten to thirty of which a thread does in a nanosecond.
constexpr double kShare = 1e5;        // what one more thread has to have
constexpr double kWorthWaking = 5e6;  // what is worth waiting for threads that sleep

// In nanoseconds: of a job that may wait for threads to wake; between jobs that come one after the other;
// between two calls for threads.
constexpr std::uint32_t kWaits = 150'000;
constexpr std::int64_t kSoon = 200'000, kRest = 1'000'000;

// The way that seems slower is tried a few times, at first and then so rarely that it hardly counts. A trial
// waits for its threads during a few jobs, then gives up.
constexpr int kTrials = 3;
constexpr std::uint32_t kBetween = 512, kPatience = 32;

std::array<Kind, 512> g_kinds;
std::atomic<std::int64_t> g_last_end{0}, g_last_call{0};

Kind& kind_of(double work, double shared) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(work) * 3 + std::bit_cast<std::uint64_t>(shared);
  return g_kinds[(bits * 0x9E3779B97F4A7C15ull) >> 55];
}

// Follows faster times quickly and slower ones slowly, because a job can be disturbed but not sped up. A job
// that lost its core for milliseconds counts as taking twice its time.
void note(std::atomic<std::uint32_t>& taken, std::int64_t time) {
  const std::int64_t before = taken.load(std::memory_order_relaxed), change = std::min(time - before, before);
  const std::int64_t after = before == 0 ? time : before + (change < 0 ? change / 2 : change / 16);
  taken.store(static_cast<std::uint32_t>(std::clamp<std::int64_t>(after, 1, 1'000'000'000)),
              std::memory_order_relaxed);
}

// Whether jobs come so fast that threads woken now will still be awake for the next one, and the last trial
// was some time ago.
bool worth_a_call() {
  const std::int64_t now = nanoseconds();
  if (now - g_last_end.load(std::memory_order_relaxed) > kSoon) return false;
  if (now - g_last_call.load(std::memory_order_relaxed) < kRest) return false;
  g_last_call.store(now, std::memory_order_relaxed);
  return true;
}

// For tests: every job has all threads, however little there is to do.
bool always_shares() {
  static const bool always = std::getenv("ZSTATE_ALWAYS_SHARE") != nullptr;
  return always;
}

}  // namespace

TeamChoice::TeamChoice(double work, double shared) {
  const int most = get_num_threads();
  if (most == 1) return;
  threads_ = shared < kShare * most ? 1 + static_cast<int>(shared / kShare) : most;
  if (always_shares()) threads_ = most;
  if (threads_ == 1 || shared >= kWorthWaking || always_shares()) return;
  kind_ = &kind_of(work, shared);
  threads_ = choose(threads_);
  begin_ = nanoseconds();
}

TeamChoice::~TeamChoice() {
  if (!kind_) return;
  const std::int64_t now = nanoseconds();
  note(kind_->taken[threads_ > 1], now - begin_);
  g_last_end.store(now, std::memory_order_relaxed);
}

int TeamChoice::choose(int threads) {
  const std::uint32_t job = kind_->jobs.fetch_add(1, std::memory_order_relaxed) % kBetween;
  if (job == 0) kind_->trials.store(kTrials, std::memory_order_relaxed);
  const bool tries = job < kPatience && kind_->trials.load(std::memory_order_relaxed) > 0;
  const bool shares = wins() != tries;
  if (shares && !available(threads)) return 1;
  if (tries) kind_->trials.fetch_sub(1, std::memory_order_relaxed);
  return shares ? threads : 1;
}

// Whether the job may have its threads. If not, they may be called for the next one.
bool TeamChoice::available(int threads) const {
  if (threads_ready(threads) || kind_->taken[0].load(std::memory_order_relaxed) > kWaits) return true;
  return worth_a_call() && call_threads(threads);
}

// Whether sharing is faster, as far as is known.
bool TeamChoice::wins() const {
  const std::uint32_t alone = kind_->taken[0].load(std::memory_order_relaxed);
  const std::uint32_t shared = kind_->taken[1].load(std::memory_order_relaxed);
  return shared > 0 && shared < alone;
}

}  // namespace zstate
