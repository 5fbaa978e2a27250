// The cores of this machine: how many threads to use by default, and which core a thread runs on.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

namespace zstate {

// OMP_NUM_THREADS, or the cores that this process may use; at most `most`.
int default_threads(int most);

#if defined(__linux__)
using CoreSet = cpu_set_t;
#else
struct CoreSet {};
#endif

// The core and the system's number of the thread that asks; -1 where the system does not say.
int current_core();
int current_thread();
// Lets another thread run on every core that it may use but this one, and keeps what it might in `before`.
// False where nothing was changed: it has no other core, or the system has no such call.
bool keep_off_core(int thread, int core, CoreSet& before);
// Lets the thread that asks run on these again.
void allow_cores(const CoreSet& cores);

}  // namespace zstate
