// One persistent pool of threads for the whole process, with a barrier that spins.
//
// A call runs one function on all members of a team (the caller is member 0). Nothing here knows about
// recurrent layers, and no result may depend on how many members a team has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zstate {

class Pool;

// What one member of a running team sees.
struct Team {
  int rank = 0;
  int size = 1;
  Pool* pool = nullptr;

  void barrier() const {
    if (size > 1) wait_for_all();
  }

 private:
  void wait_for_all() const;
};

using TeamFunction = void (*)(void* context, const Team& team);

// Runs `function` on up to `threads` threads. If another call holds the pool, the caller does all the work
// itself.
void run_team(int threads, TeamFunction function, void* context);

// True while the workers still spin after a call: then even a short job gains from them.
bool workers_awake();

void set_num_threads(int threads);
int get_num_threads();

// Scratch memory of one call; a moderate amount is kept for the next one, so that calls do not pay page
// faults.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace zstate
