#include "client/migration/bounce_path.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "client/migration/host_path.h"
#include "client/migration/link_setup.h"
#include "client/migration/link_transport.h"
#include "tests/client/migration/executor_contract.h"
#include "tests/client/migration/host_world.h"

namespace eplb {
namespace {

// The queue's memory stands for the device's.
Transports MakeBounceWorld(int32_t world_size, int64_t staging_bytes) {
  ThreadExchange exchange(world_size);
  Transports transports(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    const TransportOptions options = HostOptions(rank, world_size, staging_bytes);
    auto arena = StagingArena::Make(staging_bytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    auto parts = SetUpLinks(options, {}, exchange.ForRank(rank));
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::vector<PeerLink> links;
    for (LinkParts::Peer& peer : parts->peers) links.push_back(std::move(peer.link));
    auto path = MakeBouncePath(MakeHostPath(*std::move(arena), {}), cuda::MakeHostRowQueue());
    ASSERT_TRUE(path.ok()) << path.status();
    transports[rank] =
        MakeLinkTransport(RankId{rank}, options.max_row_bytes, std::move(links), *std::move(path));
  });
  return transports;
}

INSTANTIATE_TEST_SUITE_P(Bounce, TransportContractTest, ::testing::Values(&MakeBounceWorld));
INSTANTIATE_TEST_SUITE_P(Bounce, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"WithPrimary", MakeBounceWorld,
                                                        StateResidency::kWithPrimary}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace eplb
