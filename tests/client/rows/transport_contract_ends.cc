// Posts that end before their rows have come: deadlines, aborts, ranks that leave or die.
#include <gmock/gmock.h>

#include <algorithm>

#include "absl/time/clock.h"

#include "client/rows/paths/transport_choice.h"
#include "tests/client/rows/random_traffic.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

TEST_P(TransportContractTest, RankThatLeavesEndsEveryPostThatNeedsIt) {
  Transports transports = Make(2, 128);
  const std::span<std::byte> row = memory().Put(std::vector<std::byte>(64));
  const Ticket open = MustPost(*transports[1], SendOne(RankId{0}, 1, row));
  transports[0]->Leave();
  for (uint64_t post_id = 1; post_id <= 2; ++post_id) {
    const Ticket ticket =
        post_id == 1 ? open : MustPost(*transports[1], ReceiveOne(RankId{0}, post_id, 64));
    absl::StatusOr<Progress> result = Progress{};
    for (int i = 0; i < 20 && result.ok(); ++i) {
      result = transports[1]->Poll(ticket, absl::Seconds(1));
    }
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 0 ended it"));
    EXPECT_TRUE(transports[1]->Abort().ok());
  }
}

TEST_P(TransportContractTest, DeadlineNamesThePeersThatOweRows) {
  std::mt19937 random(2);
  Transports transports = Make(4, 4096);
  const std::span<std::byte> row = memory().Put(RandomBytes(random, 100));
  RowMoves moves = ReceiveOne(RankId{1}, 1, 100);
  moves.receives.push_back(
      {.from = RankId{2}, .row = 1, .round = 1, .staging_offset = 128, .num_bytes = 100});
  moves.sends.push_back({.to = RankId{3}, .row = 0, .round = 1, .bytes = row, .staging_offset = 0});
  moves.deadline = absl::Now() + absl::Seconds(2);  // rank 1 sends within it
  const Ticket receive = MustPost(*transports[0], moves);
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, row));
  absl::StatusOr<Progress> sent = Progress{};
  absl::StatusOr<Progress> result = Progress{};
  while (sent.ok() && !sent->done) {
    sent = transports[1]->Poll(send, absl::Milliseconds(10));
    result = transports[0]->Poll(receive, absl::Milliseconds(10));
    ASSERT_TRUE(result.ok()) << result.status();
  }
  ASSERT_TRUE(sent.ok()) << sent.status();
  while (result.ok()) result = transports[0]->Poll(receive, absl::Seconds(10));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  const std::string text(result.status().message());
  EXPECT_THAT(text, HasSubstr("rank 2 owes 1 row"));
  EXPECT_THAT(text, HasSubstr("rank 3 has not taken 1 row"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("rank 1")));
  EXPECT_EQ(transports[0]->Poll(receive, absl::ZeroDuration()).status(), result.status());
}

TEST_P(TransportContractTest, PeerThatDiesIsNamedAndLaterPostsWithItAreRefused) {
  Transports transports = Make(3, 4096);
  RowMoves moves = ReceiveOne(RankId{2}, 1, 64);
  const Ticket ticket = MustPost(*transports[0], moves);
  EXPECT_TRUE(transports[0]->Poll(ticket, absl::ZeroDuration()).ok());
  transports[2].reset();
  absl::StatusOr<Progress> result = Progress{};
  while (result.ok()) result = transports[0]->Poll(ticket, absl::Seconds(1));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 2 is gone"));
  EXPECT_TRUE(transports[0]->Abort().ok());
  const absl::Status again = transports[0]->Post(ReceiveOne(RankId{2}, 2, 64)).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("rank 2 is gone"));

  if (UsesNccl(transports[0]->name())) {
    GTEST_SKIP() << "a communicator is of all ranks of the EP group: without one there is none";
  }
  // The others go on.
  const std::span<std::byte> row = memory().Put(std::vector<std::byte>(64, std::byte{7}));
  const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 3, 64));
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 3, row));
  const auto results = Drive(transports, {receive, send, 0});
  EXPECT_TRUE(results[0].ok() && results[1].ok()) << results[0].status();
}

TEST_P(TransportContractTest, PeersOfARefusedPostAreToldAtOnce) {
  Transports transports = Make(3, 128);
  transports[2].reset();
  RowMoves moves = ReceiveOne(RankId{2}, 1, 64);
  moves.receives.push_back(
      {.from = RankId{1}, .row = 1, .round = 1, .staging_offset = 64, .num_bytes = 64});
  absl::Status refused;
  while (refused.ok()) {  // until rank 0 has seen that rank 2 is gone
    absl::StatusOr<Ticket> ticket = transports[0]->Post(moves);
    refused = ticket.status();
    EXPECT_TRUE(!ticket.ok() || transports[0]->Abort().ok());
    ++moves.post_id;
  }
  const uint64_t post_id = moves.post_id - 1;
  const std::span<std::byte> row = memory().Put(std::vector<std::byte>(64, std::byte{7}));
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, post_id, row));
  absl::StatusOr<Progress> result = Progress{};
  for (int i = 0; i < 20 && result.ok(); ++i) result = transports[1]->Poll(send, absl::Seconds(1));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 0 ended it"));
}

TEST_P(TransportContractTest, PeerThatFinishedAndLeftIsNoError) {
  std::mt19937 random(3);
  Transports transports = Make(3, 1 << 20);
  if (UsesNccl(transports[0]->name())) {
    GTEST_SKIP() << "a communicator ends with the first rank that leaves it";
  }
  const std::vector<std::byte> row = RandomBytes(random, 600'000);
  const std::span<std::byte> live = memory().Put(row);
  RowMoves moves = ReceiveOne(RankId{1}, 1, 600'000);
  moves.receives.push_back(
      {.from = RankId{2}, .row = 0, .round = 1, .staging_offset = 600'064, .num_bytes = 64});
  const Ticket receive = MustPost(*transports[0], moves);
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, live));
  const auto drive_pair = [&] {
    const auto sent = transports[1]->Poll(send, absl::ZeroDuration());
    const auto received = transports[0]->Poll(receive, absl::ZeroDuration());
    EXPECT_TRUE(received.ok()) << received.status();
    return sent.ok() && sent->done;
  };
  while (!drive_pair()) {
  }
  transports[1].reset();
  RowMoves second = SendOne(RankId{0}, 1, live.first(64), 600'064);
  second.sends[0].round = 1;
  const Ticket last = MustPost(*transports[2], second);
  const auto results = Drive(transports, {receive, 0, last});
  EXPECT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_TRUE(memory().Holds(transports[0]->staging().first(row.size()), row));
}

TEST_P(TransportContractTest, AbortIsToldToThePeersThatStillMatter) {
  std::mt19937 random(4);
  Transports transports = Make(2, 4096);
  const std::span<std::byte> row = memory().Put(RandomBytes(random, 64));
  for (const bool sender_aborts : {true, false}) {
    const uint64_t post_id = sender_aborts ? 1 : 2;
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, post_id, 64));
    const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, post_id, row));
    EXPECT_TRUE(transports[sender_aborts ? 1 : 0]->Abort().ok());
    const int32_t other = sender_aborts ? 0 : 1;
    absl::StatusOr<Progress> result = Progress{};
    while (result.ok() && !result->done) {
      result = transports[other]->Poll(other == 0 ? receive : send, absl::Seconds(1));
    }
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr(sender_aborts ? "rank 1 ended it" : "rank 0 ended it"));
    EXPECT_TRUE(transports[other]->Abort().ok());
  }
}

TEST_P(TransportContractTest, StagingReusedAfterAnAbortSeesNoOldRow) {
  std::mt19937 random(5);
  constexpr size_t kBytes = 2'000'000;  // many pieces, more than any socket holds
  Transports transports = Make(2, kBytes);
  uint64_t post_id = 0;
  for (const int32_t turns : {0, 1, 2, 3, 5}) {
    const std::span<std::byte> old_row = memory().Put(RandomBytes(random, kBytes));
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, ++post_id, kBytes));
    const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, post_id, old_row));
    for (int32_t turn = 0; turn < turns; ++turn) {
      ASSERT_TRUE(transports[1]->Poll(send, absl::ZeroDuration()).ok());
      if (turn % 2 == 0) {
        ASSERT_TRUE(transports[0]->Poll(receive, absl::ZeroDuration()).ok());
      }
    }
    EXPECT_TRUE(transports[turns % 2]->Abort().ok());
    EXPECT_TRUE(transports[1 - turns % 2]->Abort().ok());
    memory().Fill(old_row, std::byte{0x11});  // ours again once Abort returned
    memory().Fill(transports[0]->staging(), kOld);

    const std::vector<std::byte> row = RandomBytes(random, 300'000);
    const Ticket receive_again =
        MustPost(*transports[0], ReceiveOne(RankId{1}, ++post_id, 300'000, 64));
    const Ticket send_again =
        MustPost(*transports[1], SendOne(RankId{0}, post_id, memory().Put(row), 64));
    MustDrive(transports, {receive_again, send_again});
    std::vector<std::byte> expected(kBytes, kOld);
    std::copy(row.begin(), row.end(), expected.begin() + 64);
    EXPECT_TRUE(memory().Holds(transports[0]->staging(), expected)) << turns << " turns";
  }
}

}  // namespace
}  // namespace eplb
