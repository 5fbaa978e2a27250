// One persistent pool of threads for the whole process, with a barrier that spins; or the threads of an
// OpenMP runtime that is already loaded.
//
// A call runs one function on all members of a team (the caller is member 0). Nothing here knows about
// recurrent layers, and no result may depend on how many members a team has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "runtime/inline.h"

namespace zstate {

// Stops a long job early. The caller checks for a reason every so often; once there is one, barriers no
// longer hold anyone, and the members leave at their next check. Their results are then worthless.
class Watch {
 public:
  ZS_INLINE bool stopped(bool caller) {
    return stopped_.load(std::memory_order_acquire) || (caller && look());
  }

 private:
  bool look();
  std::atomic<bool> stopped_{false};
  std::int64_t next_ = 0;  // when to look, on the steady clock
};

// Where the members of one team wait for each other.
class Barrier {
 public:
  void wait(int size, bool caller = false, Watch* watch = nullptr);
  void reset() { arrived_.store(0, std::memory_order_relaxed); }  // after a job that was stopped

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
};

// What one member of a running team sees.
struct Team {
  int rank = 0;
  int size = 1;
  Barrier* meeting = nullptr;
  Watch* watch = nullptr;  // of a long job
  bool caller = rank == 0;

  // For what this member computes without the others.
  Team alone() const { return {0, 1, nullptr, watch, caller}; }
  ZS_INLINE void barrier() const {
    if (size > 1) meeting->wait(size, caller, watch);
  }
  // Whether to leave. Checked in every loop that may take long, and after a barrier before using anything
  // that another member must have set up.
  ZS_INLINE bool stopped() const { return watch && watch->stopped(caller); }
};

struct Range {
  std::int64_t begin, end;
};
// The part of [0, n) that belongs to one member.
ZS_INLINE Range share(const Team& team, std::int64_t n) {
  return {n * team.rank / team.size, n * (team.rank + 1) / team.size};
}

using TeamFunction = void (*)(void* context, const Team& team);

// Runs `function` on up to `threads` threads: fewer if the system has no more, one if another call holds the
// pool. All compute in the caller's floating-point mode. `work`, in multiplications, tells whether the job is
// so long that it can be stopped, in which case this throws Interrupted.
void run_team(int threads, TeamFunction function, void* context, double work = 0);

struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};
// Called about ten times per second during a long job, in the caller's thread: true stops it.
void set_stop_check(bool (*stop)());

// Whether the threads of such a team are awake and would start at once.
bool threads_ready(int threads);
// Wakes them for a later job. True where only a job does that, as with an OpenMP runtime.
bool call_threads(int threads);

// The functions of an OpenMP runtime in this process, as GCC's code calls them.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread_number)();
  int (*team_size)();
};
// From now on teams use that runtime's threads. Two pools of spinning threads would fight over the cores: a
// library that computes with OpenMP between our calls would be several times slower, and so would we.
void use_openmp(const OpenMp& runtime);

void set_num_threads(int threads);
int get_num_threads();

}  // namespace zstate
