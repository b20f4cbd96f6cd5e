#include "client/migration/peer_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"

#include "tests/client/migration/peer_world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Peer, TransportContractTest, ::testing::Values(&MakePeerWorld));

TEST(PeerPathTest, RowToARankWhoseStagingIsNotMappedIsRefused) {
  ThreadExchange exchange(2);
  Transports transports(2);
  std::vector<std::byte> staging(2 * 64);
  RunRanks(2, [&](int32_t rank) {
    auto parts = SetUpLinks(HostOptions(rank, 2, 64), SharedStaging{}, exchange.ForRank(rank));
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::vector<PeerLink> links;
    links.push_back(std::move(parts->peers[0].link));
    transports[rank] = MakeLinkTransport(
        RankId{rank}, 64, std::move(links),
        MakePeerPath({.queue = cuda::MakeHostRowQueue(),
                      .staging = std::span(staging).subspan(static_cast<size_t>(rank) * 64, 64),
                      .mapped = {},
                      .owner = nullptr}));
  });
  const std::vector<std::byte> row(8);
  const absl::StatusOr<Ticket> ticket = transports[0]->Post(
      {.post_id = 1,
       .sends = {{.to = RankId{1}, .row = 3, .round = 0, .bytes = row, .staging_offset = 0}},
       .receives = {},
       .deadline = absl::Now() + absl::Seconds(30)});
  EXPECT_THAT(std::string(ticket.status().message()),
              HasSubstr("row 3 to rank 1: its staging is not mapped"));
}

}  // namespace
}  // namespace eplb
