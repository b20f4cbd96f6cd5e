#include "client/migration/peer_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/client/migration/peer_world.h"
#include "tests/client/migration/stubborn_queue.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Peer, TransportContractTest, ::testing::Values(&MakePeerWorld));

// Ranks 0 and 1 with 64 bytes of staging each, rank 0 with a queue of the test's.
class PeerPathTest : public ::testing::Test {
 protected:
  void Connect(std::unique_ptr<cuda::RowQueue> queue, bool map_staging, bool is_the_peers = true) {
    ThreadAllGather all_gather(2);
    RunRanks(2, [&](int32_t rank) {
      auto parts = SetUpLinks(HostOptions(rank, 2, 64), SharedStaging{}, all_gather.ForRank(rank));
      ASSERT_TRUE(parts.ok()) << parts.status();
      std::vector<PeerLink> links;
      links.push_back(std::move(parts->peers[0].link));
      PeerPathParts path{.owner = nullptr,
                         .staging = StagingOf(rank),
                         .mapped = {},
                         .queue = rank == 0 ? std::move(queue) : cuda::MakeHostRowQueue()};
      if (map_staging) {
        path.mapped[RankId{1 - rank}] =
            is_the_peers ? StagingOf(1 - rank) : std::span(elsewhere_[rank]);
      }
      transports_[rank] =
          MakeLinkTransport(RankId{rank}, 64, std::move(links), MakePeerPath(std::move(path)));
    });
  }

  std::span<std::byte> StagingOf(int32_t rank) {
    return std::span(staging_).subspan(static_cast<size_t>(rank) * 64, 64);
  }

  absl::StatusOr<Ticket> PostSend() {
    return transports_[0]->Post(
        {.post_id = 1,
         .sends = {{.to = RankId{1}, .row = 3, .round = 0, .bytes = row_, .staging_offset = 0}},
         .receives = {},
         .deadline = absl::Now() + absl::Seconds(30)});
  }

  const std::vector<std::byte> row_ = std::vector<std::byte>(8);
  std::vector<std::byte> staging_ = std::vector<std::byte>(2 * 64);
  std::array<std::array<std::byte, 64>, 2> elsewhere_ = {};
  Transports transports_ = Transports(2);
};

TEST_F(PeerPathTest, RowToARankWhoseStagingIsNotMappedIsRefused) {
  Connect(cuda::MakeHostRowQueue(), /*map_staging=*/false);
  EXPECT_THAT(std::string(PostSend().status().message()),
              HasSubstr("row 3 to rank 1: its staging is not mapped"));
}

TEST_F(PeerPathTest, TheTrialFindsStagingThatIsNotThePeers) {
  for (const bool is_the_peers : {false, true}) {
    Connect(cuda::MakeHostRowQueue(), /*map_staging=*/true, is_the_peers);
    RunRanks(2, [&](int32_t rank) {
      const auto queue = cuda::MakeHostRowQueue();
      const absl::Status tried = TryPairs(*transports_[rank], *queue,
                                          {.self = RankId{rank},
                                           .ranks = {RankId{0}, RankId{1}},
                                           .deadline = MonotonicNow() + absl::Seconds(20)});
      EXPECT_EQ(tried.ok(), is_the_peers) << tried;
    });
  }
}

TEST_F(PeerPathTest, AbortWaitsForATransferWhoseChecksumCouldNotBeBegun) {
  auto made =
      std::make_unique<StubbornQueue>(Stubbornness{.looks_per_transfer = 5, .fail_copies = true});
  StubbornQueue& queue = *made;
  Connect(std::move(made), /*map_staging=*/true);
  MustPost(
      *transports_[1],
      {.post_id = 1,
       .sends = {},
       .receives = {{.from = RankId{0}, .row = 3, .round = 0, .staging_offset = 0, .num_bytes = 8}},
       .deadline = absl::Now() + absl::Seconds(30)});
  const auto ticket = PostSend();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  absl::StatusOr<Progress> sent = Progress{};
  while (sent.ok() && !sent->done) sent = transports_[0]->Poll(*ticket, absl::Seconds(1));
  EXPECT_EQ(sent.status(), absl::InternalError("the copy kernel failed"));
  EXPECT_EQ(queue.num_under_way(), 1U);
  EXPECT_TRUE(transports_[0]->Abort().ok());
  EXPECT_EQ(queue.num_under_way(), 0U);
}

}  // namespace
}  // namespace eplb
