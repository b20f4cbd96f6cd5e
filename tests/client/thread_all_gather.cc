#include "tests/client/thread_all_gather.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace eplb::testing {
namespace {

class Meeting {
 public:
  explicit Meeting(int32_t world_size) : world_size_(static_cast<size_t>(world_size)) {}

  absl::StatusOr<std::vector<std::string>> Meet(size_t rank, int64_t round,
                                                std::string_view bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    Round& here = rounds_[round];
    here.blobs.resize(world_size_);
    here.blobs[rank] = std::string(bytes);
    ++here.num_here;
    all_came_.notify_all();
    const auto all_here = [&] { return here.num_here == world_size_; };
    if (!all_came_.wait_for(lock, std::chrono::seconds(30), all_here)) {
      return absl::DeadlineExceededError("not all ranks came");
    }
    return here.blobs;
  }

 private:
  struct Round {
    std::vector<std::string> blobs;
    size_t num_here = 0;
  };
  const size_t world_size_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable all_came_;
  std::map<int64_t, Round> rounds_;
};

}  // namespace

std::vector<AllGather> MakeThreadAllGathers(int32_t world_size) {
  auto meeting = std::make_shared<Meeting>(world_size);
  std::vector<AllGather> all_gathers;
  all_gathers.reserve(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    all_gathers.push_back([meeting, rank, round = int64_t{0}](std::string_view bytes) mutable {
      return meeting->Meet(static_cast<size_t>(rank), round++, bytes);
    });
  }
  return all_gathers;
}

void RunRanks(int32_t world_size, const std::function<void(int32_t rank)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace eplb::testing
