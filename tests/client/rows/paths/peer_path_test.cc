#include "client/rows/paths/peer_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/client/rows/paths/peer_world.h"
#include "tests/client/rows/stubborn_queue.h"
#include "tests/client/rows/stuffed_link.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Peer, TransportContractTest, ::testing::Values(&MakePeerWorld));

// Ranks 0 and 1, rank 0 with queues of the test's.
class PeerPathTest : public ::testing::Test {
 protected:
  struct Queues {
    std::unique_ptr<cuda::RowQueue> queue = cuda::MakeHostRowQueue();
    std::unique_ptr<cuda::RowQueue> check_queue = nullptr;
  };

  void Connect(Queues queues, bool map_staging = true, bool is_the_peers = true) {
    transports_ = MakeLinkedWorld(2, staging_bytes_, [&](int32_t rank) {
      Queues own;
      if (rank == 0) own = std::move(queues);
      PeerPathParts path{.owner = nullptr,
                         .staging = staging_[rank],
                         .queue = std::move(own.queue),
                         .check_queue = std::move(own.check_queue)};
      if (map_staging) {
        path.mapped[RankId{1 - rank}] =
            is_the_peers ? std::span(staging_[1 - rank]) : std::span(elsewhere_[rank]);
      }
      return MakePeerPath(std::move(path));
    });
  }

  // Memory for rows of this size, side by side in staging.
  void MakeRows(size_t num_rows, size_t row_bytes) {
    row_ = std::vector<std::byte>(row_bytes, std::byte{5});
    num_rows_ = num_rows;
    staging_bytes_ = static_cast<int64_t>(num_rows * row_bytes);
    for (auto* memory : {&staging_, &elsewhere_}) {
      memory->fill(std::vector<std::byte>(num_rows * row_bytes));
    }
  }

  // Posts rows that a rank sends to the other, or receives, or both; each row in a round of its
  // own.
  absl::StatusOr<Ticket> Post(int32_t rank, bool sends, bool receives) {
    RowMoves moves{.post_id = 1, .deadline = absl::Now() + absl::Seconds(30)};
    const RankId peer{1 - rank};
    for (size_t i = 0; i < num_rows_; ++i) {
      const auto row = static_cast<int32_t>(i);
      const auto offset = static_cast<int64_t>(i * row_.size());
      if (sends) {
        moves.sends.push_back(
            {.to = peer, .row = row, .round = row, .bytes = row_, .staging_offset = offset});
      }
      if (receives) {
        moves.receives.push_back({.from = peer,
                                  .row = row,
                                  .round = row,
                                  .staging_offset = offset,
                                  .num_bytes = std::ssize(row_)});
      }
    }
    return transports_[rank]->Post(std::move(moves));
  }

  // Rank 0 sends all rows; rank 1 polls on a thread of its own. Rank 0's end.
  absl::Status SendAll() {
    std::array<absl::Status, 2> ends;
    RunRanks(2, [&](int32_t rank) {
      const auto ticket = Post(rank, /*sends=*/rank == 0, /*receives=*/rank == 1);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      const absl::StatusOr<Progress> progress = Finish(*transports_[rank], *ticket);
      ends[rank] = progress.status();
      if (!progress.ok()) {
        EXPECT_TRUE(transports_[rank]->Abort().ok());
      }
    });
    return ends[0];
  }

  std::vector<std::byte> row_ = std::vector<std::byte>(8);
  size_t num_rows_ = 1;
  int64_t staging_bytes_ = 64;
  std::array<std::vector<std::byte>, 2> staging_ = {std::vector<std::byte>(64),
                                                    std::vector<std::byte>(64)};
  std::array<std::vector<std::byte>, 2> elsewhere_ = staging_;
  Transports transports_ = Transports(2);
};

TEST_F(PeerPathTest, RowToARankWhoseStagingIsNotMappedIsRefused) {
  Connect({}, /*map_staging=*/false);
  EXPECT_THAT(std::string(Post(0, /*sends=*/true, /*receives=*/false).status().message()),
              HasSubstr("row 0 to rank 1: its staging is not mapped"));
}

TEST_F(PeerPathTest, TheTrialFindsStagingThatIsNotThePeers) {
  for (const bool is_the_peers : {false, true}) {
    Connect({}, /*map_staging=*/true, is_the_peers);
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

TEST_F(PeerPathTest, RowsGoInBatchesAlsoFromRoundToRound) {
  MakeRows(/*num_rows=*/100, /*row_bytes=*/64);
  auto made = std::make_unique<StubbornQueue>(Stubbornness{.looks_per_copy = 2});
  const StubbornQueue& queue = *made;
  Connect({.queue = std::move(made)});
  ASSERT_EQ(SendAll(), absl::OkStatus());
  EXPECT_THAT(queue.copies(), ElementsAre(64, 36));
  EXPECT_THAT(staging_[1], Each(std::byte{5}));
}

TEST_F(PeerPathTest, ABatchOfLargeRowsIsShort) {
  MakeRows(/*num_rows=*/5, /*row_bytes=*/size_t{12} << 20);
  auto made = std::make_unique<StubbornQueue>(Stubbornness{.looks_per_copy = 2});
  const StubbornQueue& queue = *made;
  Connect({.queue = std::move(made)});
  ASSERT_EQ(SendAll(), absl::OkStatus());
  EXPECT_THAT(queue.copies(), ElementsAre(2, 2, 1)) << "at most 32 MiB";
}

TEST_F(PeerPathTest, SumsOfWhatLandedWaitForNoSend) {
  constexpr int32_t kForEver = 1 << 30;
  Connect({.queue = std::make_unique<StubbornQueue>(Stubbornness{.looks_per_copy = kForEver}),
           .check_queue = cuda::MakeHostRowQueue()});
  std::array<absl::StatusOr<Ticket>, 2> tickets;
  for (const int32_t rank : {0, 1}) {
    tickets[rank] = Post(rank, /*sends=*/true, /*receives=*/true);
    ASSERT_TRUE(tickets[rank].ok()) << tickets[rank].status();
  }
  Progress progress;
  while (progress.received_bytes < std::ssize(row_)) {
    for (const int32_t rank : {0, 1}) {
      const auto polled = transports_[rank]->Poll(*tickets[rank], absl::Milliseconds(1));
      ASSERT_TRUE(polled.ok()) << polled.status();
      if (rank == 0) progress = *polled;
    }
  }
  EXPECT_EQ(progress.sent_bytes, 0);
  EXPECT_FALSE(progress.done);
  for (const int32_t rank : {0, 1}) EXPECT_TRUE(transports_[rank]->Abort().ok());
}

TEST_F(PeerPathTest, AnErrorOfACopyEndsThePost) {
  Connect({.queue = std::make_unique<StubbornQueue>(Stubbornness{.fail_copies = true})});
  EXPECT_EQ(SendAll(), absl::InternalError("the copy kernel failed"));
}

// A path of rank 0 with rank 1's staging.
std::unique_ptr<RowPath> MakePathTo(std::span<std::byte> theirs,
                                    std::unique_ptr<cuda::RowQueue> queue) {
  return MakePeerPath(
      {.owner = nullptr, .mapped = {{RankId{1}, theirs}}, .queue = std::move(queue)});
}

TEST(PeerPathLinkTest, ARowIsSentOnceItsAnnouncementHasLeft) {
  const std::vector<std::byte> row(8, std::byte{5});
  std::vector<std::byte> theirs(8);
  StuffedLink stuffed;
  const auto path = MakePathTo(theirs, cuda::MakeHostRowQueue());
  const RowMoves moves = SendOne(RankId{1}, 1, row);
  TransferLedger ledger(moves);
  ASSERT_TRUE(path->Open(moves, ledger, stuffed.links()).ok());
  for (int turn = 0; turn < 5; ++turn) ASSERT_TRUE(path->Advance().ok());
  EXPECT_EQ(theirs, row);
  EXPECT_TRUE(stuffed.link().has_output());
  EXPECT_FALSE(ledger.complete()) << "after the post nobody would send what is left";
  stuffed.Read();
  stuffed.link().Flush();
  ASSERT_TRUE(path->Advance().ok());
  EXPECT_FALSE(stuffed.link().has_output());
  EXPECT_TRUE(ledger.complete());
  EXPECT_TRUE(path->Close(/*done=*/true).ok());
}

// In a child, since what a device that is lost may still touch is never freed.
TEST(PeerPathDeathTest, AnAbortThatFailsForgetsItsRowsToo) {
  EXPECT_EXIT(
      {
        const std::vector<std::byte> row(8);
        std::vector<std::byte> theirs(8);
        StuffedLink stuffed;
        const auto path = MakePathTo(theirs, std::make_unique<StubbornQueue>(Stubbornness{
                                                 .looks_per_copy = 1 << 30, .fail_drain = true}));
        const RowMoves moves = SendOne(RankId{1}, 1, row);
        TransferLedger ledger(moves);
        const bool begun =
            path->Open(moves, ledger, stuffed.links()).ok() && path->Advance().ok() && path->busy();
        const bool failed = !path->Close(/*done=*/false).ok();
        std::_Exit(begun && failed && !path->busy() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(PeerPathTest, ADeviceThatHangsInEitherQueueIsWaitedForOnce) {
  HangingDevice device;
  Connect({.queue = std::make_unique<StubbornQueue>(device.Failing()),
           .check_queue = std::make_unique<StubbornQueue>(device.Silent())});
  device.ExpectOneWait(*transports_[0], kSettleTimeout);
  device.Recover();
  transports_.clear();
}

TEST_F(PeerPathTest, AbortWaitsForSendsAndSums) {
  constexpr int32_t kForEver = 1 << 30;
  std::array<std::unique_ptr<StubbornQueue>, 2> made;
  for (auto& queue : made) {
    queue = std::make_unique<StubbornQueue>(Stubbornness{.looks_per_copy = kForEver});
  }
  const std::array<const StubbornQueue*, 2> queues = {made[0].get(), made[1].get()};
  Connect({.queue = std::move(made[0]), .check_queue = std::move(made[1])});
  std::array<absl::StatusOr<Ticket>, 2> tickets;
  for (const int32_t rank : {0, 1}) {
    tickets[rank] = Post(rank, /*sends=*/true, /*receives=*/true);
    ASSERT_TRUE(tickets[rank].ok()) << tickets[rank].status();
  }
  while (queues[0]->num_under_way() == 0 || queues[1]->num_under_way() == 0) {
    for (const int32_t rank : {0, 1}) {
      const auto polled = transports_[rank]->Poll(*tickets[rank], absl::Milliseconds(1));
      ASSERT_TRUE(polled.ok()) << polled.status();
    }
  }
  EXPECT_TRUE(transports_[0]->Abort().ok());
  for (const StubbornQueue* const queue : queues) EXPECT_EQ(queue->num_under_way(), 0U);
  EXPECT_TRUE(transports_[1]->Abort().ok());
}

}  // namespace
}  // namespace eplb
