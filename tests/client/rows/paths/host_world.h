// Host transports whose ranks are threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "client/rows/transport.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {

inline constexpr char kHostSecret[] = "host secret";

inline TransportOptions HostOptions(int32_t rank, int32_t world_size, int64_t staging_bytes) {
  return {.rank = RankId{rank},
          .world_size = world_size,
          .staging_bytes = staging_bytes,
          .secret = kHostSecret,
          .connect_timeout = absl::Seconds(30)};
}

// A note, e.g. that memory is not shared after all, fails the test.
inline Transports MakeHostWorld(int32_t world_size, int64_t staging_bytes, bool use_shared_memory) {
  ThreadAllGather all_gather(world_size);
  Transports transports(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, world_size, staging_bytes);
    options.use_shared_memory = use_shared_memory;
    options.on_note = [&](std::string_view line) {
      ADD_FAILURE() << "rank " << rank << ": " << line;
    };
    auto transport = MakeHostTransport(options, all_gather.ForRank(rank));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
  });
  return transports;
}

inline Transports MakeSharedMemoryWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeHostWorld(world_size, staging_bytes, true);
}
inline Transports MakeTcpWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeHostWorld(world_size, staging_bytes, false);
}

}  // namespace eplb
