// The bounce path between threads, over any kind of queue.
#ifndef EPLB_TESTS_CLIENT_MIGRATION_BOUNCE_WORLD_H_
#define EPLB_TESTS_CLIENT_MIGRATION_BOUNCE_WORLD_H_

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "client/migration/bounce_path.h"
#include "client/migration/host_path.h"
#include "client/migration/link_setup.h"
#include "client/migration/link_transport.h"
#include "tests/client/control/world.h"
#include "tests/client/migration/host_world.h"

namespace eplb {

inline Transports MakeBounceWorldOver(int32_t world_size, int64_t staging_bytes, MakeQueue make) {
  ThreadAllGather all_gather(world_size);
  Transports transports(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    const TransportOptions options = HostOptions(rank, world_size, staging_bytes);
    auto arena = StagingArena::Make(staging_bytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    auto parts = SetUpLinks(options, SharedStaging{}, all_gather.ForRank(rank));
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::vector<PeerLink> links;
    for (LinkParts::Peer& peer : parts->peers) links.push_back(std::move(peer.link));
    auto path = MakeBouncePath(MakeHostPath(*std::move(arena), {}), make());
    ASSERT_TRUE(path.ok()) << path.status();
    transports[rank] =
        MakeLinkTransport(RankId{rank}, options.max_row_bytes, std::move(links), *std::move(path));
  });
  return transports;
}

// The queue's memory stands for the device's.
inline Transports MakeBounceWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOver(world_size, staging_bytes, &cuda::MakeHostRowQueue);
}

}  // namespace eplb

#endif  // EPLB_TESTS_CLIENT_MIGRATION_BOUNCE_WORLD_H_
