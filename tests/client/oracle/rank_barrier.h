// A barrier among the threads of a job. Who waits sleeps: std::barrier yields in a loop, which
// costs a time slice at each meeting when the machine has more to do than cores.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace eplb {

// Threads: safe. No rank waits for a rank that left.
class RankBarrier {
 public:
  explicit RankBarrier(int32_t num_ranks) : num_ranks_(num_ranks) {}

  void Meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_here_;
    if (LetGo()) return;
    changed_.wait(lock, [this, meeting = num_meetings_] { return num_meetings_ != meeting; });
  }
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_ranks_;
    LetGo();
  }

 private:
  bool LetGo() {
    if (num_here_ < num_ranks_) return false;
    num_here_ = 0;
    ++num_meetings_;
    changed_.notify_all();
    return true;
  }

  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  int32_t num_ranks_;
  int32_t num_here_ = 0;
  int64_t num_meetings_ = 0;
};

}  // namespace eplb
