// Ranks that are threads of the test, linked as processes are, each with a path of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/link_setup.h"
#include "client/rows/link_transport.h"
#include "client/rows/transport_trial.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"

namespace eplb {

// make_path: called on the rank's thread.
inline Transports MakeLinkedWorld(
    int32_t world_size, int64_t staging_bytes,
    const std::function<std::unique_ptr<RowPath>(int32_t rank)>& make_path) {
  ThreadAllGather all_gather(world_size);
  Transports transports(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](int32_t rank) {
    const TransportOptions options = HostOptions(rank, world_size, staging_bytes);
    auto parts = SetUpLinks(options, SharedStaging{}, all_gather.ForRank(rank));
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::vector<PeerLink> links;
    for (LinkParts::Peer& peer : parts->peers) links.push_back(std::move(peer.link));
    transports[rank] =
        MakeLinkTransport(RankId{rank}, options.max_row_bytes, std::move(links), make_path(rank));
  });
  return transports;
}

// A rank that does not come up fails the test.
inline Transports BroughtUp(Transports transports) {
  RunRanks(static_cast<int32_t>(transports.size()), [&](int32_t rank) {
    const absl::Status up = BringUp(*transports[rank], MonotonicNow() + absl::Seconds(30));
    ASSERT_TRUE(up.ok()) << up;
  });
  return transports;
}

}  // namespace eplb
