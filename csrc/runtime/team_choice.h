// How many threads a job gets: by its work, by whether they are awake and, if both ways are close, by how
// long the last jobs of its kind took.
#pragma once

#include <cstdint>

namespace zstate {

// Made before a job and destroyed after it. Never changes a result.
class TeamChoice {
 public:
  // `work` and what members share of it, in multiplications, or in what takes as long.
  TeamChoice(double work, double shared);
  ~TeamChoice();
  TeamChoice(const TeamChoice&) = delete;
  TeamChoice& operator=(const TeamChoice&) = delete;

  int threads() const { return threads_; }

 private:
  int choose(int threads);
  bool available(int threads) const;
  bool wins() const;
  int threads_ = 1;
  struct Kind* kind_ = nullptr;
  std::int64_t begin_ = 0;
};

}  // namespace zstate
