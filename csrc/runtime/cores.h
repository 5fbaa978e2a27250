// The default number of threads.
#pragma once

namespace zstate {

// OMP_NUM_THREADS, or the cores that this process may use; at most `most`.
int default_threads(int most);

}  // namespace zstate
