// The default number of threads, from the environment, the scheduler's mask and a container's quota; and the
// scheduler's calls about one thread.
#include "runtime/cores.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace zstate {
namespace {

int read_positive(const char* text, int most) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && value > 0 && value < most ? static_cast<int>(value) : 0;
}

#if defined(__linux__)
// The quota of a container, in whole cores rounded up; 0 when there is none.
int quota_from(const char* quota_file, const char* period_file) {
  double quota = -1, period = 100000;
  if (std::FILE* f = std::fopen(quota_file, "r")) {
    const int fields = std::fscanf(f, "%lf %lf", &quota, &period);
    std::fclose(f);
    if (fields < 1) return 0;
  }
  if (period_file)
    if (std::FILE* f = std::fopen(period_file, "r")) {
      if (std::fscanf(f, "%lf", &period) != 1) period = 0;
      std::fclose(f);
    }
  if (quota <= 0 || period <= 0) return 0;
  const int cores = static_cast<int>((quota + period - 1) / period);
  return cores < 1 ? 1 : cores;
}

// The file of this process's own control group, or of the root that a container sees as its own.
int cgroup_quota() {
  int cores = quota_from("/sys/fs/cgroup/cpu.max", nullptr);
  if (!cores)
    cores = quota_from("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (std::FILE* f = std::fopen("/proc/self/cgroup", "r")) {
    char line[512], path[640];
    while (std::fgets(line, sizeof line, f)) {
      char group[400];
      if (std::sscanf(line, "0::%399s", group) != 1) continue;
      std::snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
      const int own = quota_from(path, nullptr);
      if (own && (!cores || own < cores)) cores = own;
    }
    std::fclose(f);
  }
  return cores;
}
#endif

int available_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  const int quota = cgroup_quota();
  if (quota && quota < cores) cores = quota;
#endif
  return cores < 1 ? 1 : cores;
}

}  // namespace

int default_threads(int most) {
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    if (const int value = read_positive(text, most)) return value;
  return std::min(available_cores(), most);
}

#if defined(__linux__)

int current_core() { return sched_getcpu(); }
int current_thread() { return static_cast<int>(syscall(SYS_gettid)); }

bool keep_off_core(int thread, int core, Moved& moved) {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  if (sched_getaffinity(thread, sizeof moved.before, &moved.before) != 0) return false;
  moved.now = moved.before;
  CPU_CLR(static_cast<std::size_t>(core), &moved.now);
  return CPU_COUNT(&moved.now) > 0 && sched_setaffinity(thread, sizeof moved.now, &moved.now) == 0;
}
void move_back(const Moved& moved) {
  CoreSet now;
  if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &moved.now))
    sched_setaffinity(0, sizeof moved.before, &moved.before);
}

#else

int current_core() { return -1; }
int current_thread() { return -1; }
bool keep_off_core(int, int, Moved&) { return false; }
void move_back(const Moved&) {}

#endif

}  // namespace zstate
