// One persistent pool of threads for the whole process, with a barrier that spins; or the threads of an
// OpenMP runtime that is there already.
//
// A call runs one function on all members of a team (the caller is member 0). Nothing here knows about
// recurrent layers, and no result may depend on how many members a team has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace zstate {

// Where the members of one team wait for each other.
class Barrier {
 public:
  void wait(int size);

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
};

// What one member of a running team sees.
struct Team {
  int rank = 0;
  int size = 1;
  Barrier* meeting = nullptr;

  void barrier() const {
    if (size > 1) meeting->wait(size);
  }
};

struct Range {
  std::int64_t begin, end;
};
// The part of [0, n) that belongs to one member.
inline Range share(const Team& team, std::int64_t n) {
  return {n * team.rank / team.size, n * (team.rank + 1) / team.size};
}

using TeamFunction = void (*)(void* context, const Team& team);

// Runs `function` on up to `threads` threads. If another call holds the pool, the caller does all the work
// itself.
void run_team(int threads, TeamFunction function, void* context);

// True while the workers still spin after a call: then even a short job gains from them.
bool workers_awake();

// The functions of an OpenMP runtime in this process, as GCC's code calls them.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread_number)();
  int (*team_size)();
};
// From now on teams are that runtime's. Two pools whose threads spin take the cores from each other: a
// library that computes with OpenMP between our calls is then several times slower, and so are we.
void use_openmp(const OpenMp& runtime);

void set_num_threads(int threads);
int get_num_threads();

}  // namespace zstate
