// Ranks that are threads: an all-gather among them, and a function that runs a body on each.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "client/rows/control/control_channel.h"

namespace eplb {

// Runs body(rank) on one thread per rank and joins them.
inline void RunRanks(int32_t world_size, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(world_size);
  for (int32_t r = 0; r < world_size; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

// An AllGather among threads; ForRank(r) is that of rank r. This object must outlive them.
class ThreadAllGather {
 public:
  explicit ThreadAllGather(int32_t world_size) : blobs_(world_size) {}

  AllGather ForRank(int32_t rank) {
    return [this, rank](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
      std::unique_lock<std::mutex> lock(mutex_);
      const int64_t call = call_;
      blobs_[rank] = std::string(bytes);
      if (++arrived_ == static_cast<int32_t>(blobs_.size())) {
        result_ = blobs_;
        arrived_ = 0;
        ++call_;
        changed_.notify_all();
      }
      const auto limit = absl::ToChronoTime(absl::Now() + absl::Seconds(30));
      if (!changed_.wait_until(lock, limit, [&] { return call_ != call; })) {
        return absl::DeadlineExceededError("the other threads did not come");
      }
      return result_;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> blobs_;
  std::vector<std::string> result_;
  int32_t arrived_ = 0;
  int64_t call_ = 0;
};

// Returns an AllGather for each rank; together they own what they share.
inline std::vector<AllGather> MakeThreadAllGathers(int32_t world_size) {
  const auto world = std::make_shared<ThreadAllGather>(world_size);
  std::vector<AllGather> all_gathers;
  all_gathers.reserve(world_size);
  for (int32_t r = 0; r < world_size; ++r) {
    all_gathers.emplace_back(
        [world, call = world->ForRank(r)](std::string_view bytes) { return call(bytes); });
  }
  return all_gathers;
}

}  // namespace eplb
