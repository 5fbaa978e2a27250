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
  WithoutGil() : thread_(PyEval_SaveThread()) { released_ = thread_; }
  ~WithoutGil() {
    released_ = nullptr;
    take_gil([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Runs `ask` with the lock, in a thread that may have released it. The thread takes it again by its own
  // state, as at the end: PyGILState_Ensure() reads what a process on its way out has no more.
  template <class Ask>
  static void with_gil(const Ask& ask) noexcept {
    PyThreadState* const thread = released_;
    if (!thread) return ask();
    take_gil([&] { PyEval_RestoreThread(thread); });
    released_ = nullptr;  // a signal's handler may make calls of its own
    ask();
    released_ = PyEval_SaveThread();
  }

 private:
  static inline thread_local PyThreadState* released_ = nullptr;
  PyThreadState* thread_;
};

}  // namespace zstate
