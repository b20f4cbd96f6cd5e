// Vector clocks of emulated threads: which moments of other threads precede the present of one.
//
// Barriers, __syncwarp, fences, and loads that acquire what a store released order memory, as in
// CUDA's memory model. Shuffles, ballots and relaxed atomics order none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "tests/support/cuda_emulator/launch_order.h"

namespace eplb::cuda_emulator {

// Part of a thread's run between two synchronisations.
struct Moment {
  uint32_t block = 0;  // serial number of the block over all launches
  uint32_t time = 0;
  uint16_t thread = 0;  // number in the block
};

inline constexpr uint32_t kClockLanes = 32;
using LaneTimes = std::array<uint32_t, kClockLanes>;  // latest past time of each lane of a warp

// Past moments of any threads, as a release hands them on.
struct Past {
  std::map<std::pair<uint32_t, uint32_t>, LaneTimes> warps;  // key: block and warp
  std::map<uint32_t, uint32_t> barriers;                     // key: block; earlier times are past
  bool predecessors = false;  // true after Clock::WaitForPredecessors

  bool Has(const Moment& moment) const;
  void Add(const Past& other);
};
using SharedPast = std::shared_ptr<const Past>;

enum class Order : uint8_t { kRelaxed, kAcquire, kRelease, kAcquireRelease };

class Clock {
 public:
  const Moment& now() const { return now_; }
  // True if `moment` precedes the present or belongs to this thread.
  bool Knows(const Moment& moment) const;

  void Start(uint32_t block, uint16_t thread);
  // Launches that a programmatic dependent launch overlaps are past from now on.
  void WaitForPredecessors() { waited_ = true; }
  void Fence();
  // An atomic access to the word at `address`, or one of a volatile.
  void Load(const void* address, Order order);
  void Store(const void* address, Order order);
  void Update(const void* address, Order order);  // a load and a store in one

  // Orders all that the clocks' threads did before all that they do next. The threads are those
  // lanes of one warp that call __syncwarp, or all threads of a block at a barrier.
  static void JoinLanes(std::span<Clock* const> clocks);
  static void JoinBlock(std::span<Clock* const> clocks);

 private:
  static void JoinOthers(std::span<Clock* const> clocks);

  uint32_t warp() const { return now_.thread / kClockLanes; }
  uint32_t lane() const { return now_.thread % kClockLanes; }
  SharedPast Release();
  void Acquire(const SharedPast& past);

  Moment now_;
  uint32_t barrier_ = 0;  // earlier times of the block are past
  LaneTimes lanes_{};
  bool waited_ = false;
  SharedPast others_;  // other warps and blocks; null: nothing
  SharedPast fenced_;  // past of the latest fence, which later stores release
  SharedPast loaded_;  // past that loads have found and the next fence acquires
};

// Forgets what words of memory have released.
void ForgetReleases();

}  // namespace eplb::cuda_emulator
