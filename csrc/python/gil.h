// Computing without the interpreter's lock.
#pragma once

#include <Python.h>

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace zstate {

// Runs what takes the interpreter's lock. When the interpreter is shutting down, Python ends the thread that
// tries (up to 3.13) by unwinding its stack, which C++ code cannot take part in: such a thread waits here for
// the process to end, as it does from Python 3.14 on.
template <class Take>
void take_gil(const Take& take) noexcept {
  try {
    take();
  } catch (...) {
#if !defined(_WIN32)
    for (;;) pause();
#endif
  }
}

// The lock is released as long as this lives.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    take_gil([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace zstate
