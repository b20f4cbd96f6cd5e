// 32 threads of the CPU as the lanes of a warp: a machine of cuda::LaneTeam and of routing by
// quota. The lanes run apart between their exchanges, in whatever order the machine likes.
#ifndef EPLB_TESTS_SUPPORT_EMULATED_WARP_H_
#define EPLB_TESTS_SUPPORT_EMULATED_WARP_H_

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "cuda/kernels/lane_team.h"

namespace eplb::testing {

// State that the lanes share.
class EmulatedWarp {
 public:
  class Lane {
   public:
    static constexpr int32_t kWidth = cuda::kLanes;

    Lane(EmulatedWarp& warp, int32_t lane) : warp_(&warp), lane_(lane) {}

    int32_t lane() const { return lane_; }
    void Sync() const { warp_->barrier_.arrive_and_wait(); }
    uint64_t ShuffleXor(uint64_t value, int32_t distance) const {
      return Publish(value)[static_cast<size_t>(lane_ ^ distance)];
    }
    uint32_t Match(int32_t value) const {
      const auto& values = Publish(static_cast<uint64_t>(static_cast<uint32_t>(value)));
      uint32_t same = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        same |= (values[i] == static_cast<uint32_t>(value) ? 1U : 0U) << i;
      }
      return same;
    }
    static void AddTo(int64_t& sum, int64_t value) {
      std::atomic_ref(sum).fetch_add(value, std::memory_order_relaxed);
    }

   private:
    using Values = std::array<uint64_t, cuda::kLanes>;

    // Two boards in turn: a lane that is ahead writes to the other one, and cannot be two ahead.
    Values Publish(uint64_t value) const {
      size_t& turn = warp_->turns_[static_cast<size_t>(lane_)];
      Values& board = warp_->boards_[turn];
      turn = 1 - turn;
      board[static_cast<size_t>(lane_)] = value;
      Sync();
      return board;
    }

    EmulatedWarp* warp_;
    int32_t lane_;
  };

  // Runs work(lane) for every lane and waits for all.
  template <class Work>
  void Run(const Work& work) {
    std::vector<std::thread> threads;
    for (int32_t lane = 0; lane < cuda::kLanes; ++lane) {
      threads.emplace_back([this, &work, lane] { work(Lane(*this, lane)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::barrier<> barrier_{cuda::kLanes};
  std::array<std::array<uint64_t, cuda::kLanes>, 2> boards_{};
  std::array<size_t, cuda::kLanes> turns_{};  // board of each lane's next value
};

}  // namespace eplb::testing

#endif  // EPLB_TESTS_SUPPORT_EMULATED_WARP_H_
