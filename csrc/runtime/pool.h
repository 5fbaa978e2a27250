// The threads that this library starts: they spin for a while after a job, then sleep until the next one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/cores.h"
#include "runtime/float_mode.h"
#include "runtime/threads.h"

namespace zstate {

constexpr int kMaxThreads = 256;

// For one caller at a time. Never destroyed, because the workers sleep in it until the process ends.
class Pool {
 public:
  // Whether all workers of such a team are running now, each on its own core: a job of a few microseconds
  // cannot wait for one that sleeps, or that shares the caller's core.
  bool ready(int threads) const;
  // Starts and wakes the workers of such a team; the caller goes on by itself.
  void call(int threads);
  // Runs a job on a team of this size, or a smaller one where the system has no more threads.
  void run(int threads, TeamFunction function, void* context, Watch* watch);

 private:
  struct alignas(64) Worker {
    std::atomic<std::int64_t> beat{0};  // when it last looked for a job
    std::atomic<bool> sleeps{false};
    std::atomic<int> thread{-1};  // the system's number of it
    std::atomic<bool> is_moved{false};
    Moved moved{};
  };

  // A job is its number and its team's size in one word: a worker that wakes late must not mix two jobs.
  static constexpr std::uint32_t kSizes = 512;

  int start_workers(int wanted);
  void post(int size, int woken);
  void wait_for_job(Worker& self, std::uint32_t seen);
  void note_core();
  [[noreturn]] void work(int rank, std::uint32_t seen);
  Team member(int rank, int size) { return {rank, size, &meeting_, watch_}; }

  alignas(64) std::atomic<std::uint32_t> job_{0};
  Barrier meeting_, end_;  // of the members in a job, and when they leave it
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<int> core_{-1};         // of the caller
  std::atomic<bool> crowded_{false};  // a worker was woken on the core of its caller
  TeamFunction function_ = nullptr;
  void* context_ = nullptr;
  Watch* watch_ = nullptr;
  FloatMode mode_ = 0;
  std::atomic<int> workers_{0};
  std::array<Worker, kMaxThreads> worker_;  // by rank
};

}  // namespace zstate
