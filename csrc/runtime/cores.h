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

// Where a thread that was moved might run before, and may run now.
struct Moved {
  CoreSet before, now;
};

// The core and the system's number of the calling thread; -1 if the system does not say.
int current_core();
int current_thread();
// Lets another thread run on every core that it may use except this one. False if nothing changed: it has no
// other core, or the system has no such call.
bool keep_off_core(int thread, int core, Moved& moved);
// Lets the calling thread run where it could before, unless something else has moved it since.
void move_back(const Moved& moved);

}  // namespace zstate
