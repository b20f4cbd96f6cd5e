// The bounce path between threads, over any kind of queue.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "client/rows/paths/bounce_path.h"
#include "cuda/row_queue.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/stubborn_queue.h"

namespace eplb {

// Which way rows take between the ranks.
enum class BounceWay {
  kPinned,   // the copy engine writes into the peer's arena
  kCopied,   // the peer's arena cannot be pinned
  kSockets,  // same path as between hosts
};
inline constexpr BounceWay kBounceWays[] = {BounceWay::kPinned, BounceWay::kCopied,
                                            BounceWay::kSockets};

inline std::string NameBounceWay(const ::testing::TestParamInfo<BounceWay>& info) {
  constexpr const char* kNames[] = {"Pinned", "Copied", "Sockets"};
  return kNames[static_cast<int>(info.param)];
}

// The queues of one rank.
struct BounceQueues {
  std::unique_ptr<cuda::RowQueue> down;
  std::unique_ptr<cuda::RowQueue> up;
};
using MakeBounceQueues = std::function<BounceQueues(int32_t rank)>;

inline Transports MakeBounceWorldOf(int32_t world_size, int64_t staging_bytes, BounceWay way,
                                    const MakeBounceQueues& make,
                                    absl::Duration settle_timeout = kSettleTimeout) {
  ThreadAllGather all_gather(world_size);
  Transports transports(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, world_size, staging_bytes);
    options.use_shared_memory = way != BounceWay::kSockets;
    std::string notes;
    options.on_note = [&](std::string_view line) { notes.append(line).append("\n"); };
    BounceQueues queues = make(rank);
    if (way == BounceWay::kCopied) {
      queues.down = std::make_unique<StubbornQueue>(Stubbornness{.pins_before_failure = 0},
                                                    std::move(queues.down));
    }
    auto parts = ReserveBounce(staging_bytes, std::move(queues.down), std::move(queues.up));
    ASSERT_TRUE(parts.ok()) << parts.status();
    parts->settle_timeout = settle_timeout;
    auto transport = MakeBounceTransport(options, *std::move(parts), all_gather.ForRank(rank));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
    const bool is_copied = way == BounceWay::kCopied && world_size > 1;
    EXPECT_EQ(notes.find("are copied by the CPU: the memory cannot be pinned") != notes.npos,
              is_copied)
        << notes;
  });
  return transports;
}

template <BounceWay kWay>
Transports MakeBounceWorldOver(int32_t world_size, int64_t staging_bytes, MakeQueue make) {
  return MakeBounceWorldOf(world_size, staging_bytes, kWay,
                           [make](int32_t) { return BounceQueues{.down = make(), .up = make()}; });
}

// The queue's memory stands for the device's.
template <BounceWay kWay>
Transports MakeBounceWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOver<kWay>(world_size, staging_bytes, &cuda::MakeHostRowQueue);
}

}  // namespace eplb
