// The marks, and their names.
#include "runtime/paths.h"

namespace zstate {

std::atomic<bool> g_taken[static_cast<int>(Path::count)];

std::vector<std::string> path_names(bool taken_only) {
  static constexpr const char* names[] = {
#define ZS_NAME(name) #name,
      ZS_PATHS(ZS_NAME)
#undef ZS_NAME
  };
  std::vector<std::string> list;
  for (int i = 0; i < static_cast<int>(Path::count); ++i)
    if (!taken_only || g_taken[i].load()) list.push_back(names[i]);
  return list;
}

void forget_paths() {
  for (auto& taken : g_taken) taken.store(false);
}

}  // namespace zstate
