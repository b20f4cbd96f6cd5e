// Reports of a rank's process, in memory that it shares with the test and that outlives it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "client/rows/control/control_channel.h"

namespace eplb {

inline constexpr int32_t kMaxWorld = 32;
inline constexpr int32_t kMaxSteps = 64;

// One forward: under which placement, and how many of this rank's bytes are not its experts'.
struct StepRecord {
  int64_t step = 0;
  int64_t version = 0;
  std::array<char, 65> digest = {};
  int64_t wrong_bytes = 0;
};

// One call of the client that may wait.
struct CallRecord {
  int64_t step = 0;
  double seconds = 0;
  int32_t code = 0;  // an absl::StatusCode
  bool switched = false;
  std::array<char, 400> text = {};  // the error, or why a chunk was dropped
};

template <size_t N>
void SetText(std::array<char, N>& to, std::string_view text) {
  const size_t size = text.size() < N ? text.size() : N - 1;
  text.copy(to.data(), size);
  to[size] = '\0';
}

struct Journal {
  std::atomic<int32_t> num_steps = 0;
  std::array<StepRecord, kMaxSteps> steps;
  std::atomic<int32_t> num_calls = 0;
  std::array<CallRecord, kMaxSteps> calls;
  std::atomic<bool> struck = false;      // the fault has met this rank
  std::atomic<uint64_t> posts_over = 0;  // migrations whose rows are staged or given up here
  std::atomic<bool> ended = false;       // a boundary returned an error
  std::atomic<bool> finished = false;    // the rank's body has returned
  std::array<char, 400> failure = {};    // why the job did not even start here
};

// For processes that were forked after it was made.
struct SharedWorld {
  struct Desk {
    std::atomic<int32_t> num_said = 0;
    std::atomic<int32_t> num_heard = 0;
    int32_t size = 0;
    std::array<char, 65536> blob;
  };
  std::array<Journal, kMaxWorld> journals;
  std::array<Desk, kMaxWorld> desks;
};

using SharedWorldPtr = std::unique_ptr<SharedWorld, void (*)(SharedWorld*)>;
SharedWorldPtr MakeSharedWorld();

// Fails with DeadlineExceeded when the others do not come within 30 s. The world outlives it.
AllGather MakeSharedAllGather(SharedWorld& world, int32_t rank, int32_t world_size);

}  // namespace eplb
