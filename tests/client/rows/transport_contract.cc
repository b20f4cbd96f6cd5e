#include "tests/client/rows/transport_contract.h"

#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <utility>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/random_traffic.h"

namespace eplb {

using ::testing::HasSubstr;

std::vector<absl::StatusOr<Progress>> Drive(const Transports& transports,
                                            const std::vector<Ticket>& tickets) {
  std::vector<absl::StatusOr<Progress>> results(transports.size(), Progress{});
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  bool open = true;
  while (open && absl::Now() < limit) {
    open = false;
    for (size_t r = 0; r < transports.size(); ++r) {
      if (transports[r] == nullptr || !results[r].ok() || results[r]->done) continue;
      results[r] = transports[r]->Poll(tickets[r], absl::ZeroDuration());
      open = open || (results[r].ok() && !results[r]->done);
    }
  }
  EXPECT_FALSE(open) << "no end in 30 s";
  return results;
}

absl::StatusOr<Progress> Finish(Transport& transport, Ticket ticket) {
  absl::StatusOr<Progress> result = Progress{};
  while (result.ok() && !result->done) result = transport.Poll(ticket, absl::Milliseconds(100));
  return result;
}

void MustDrive(const Transports& transports, const std::vector<Ticket>& tickets) {
  for (const auto& result : Drive(transports, tickets)) EXPECT_TRUE(result.ok()) << result.status();
}

Ticket MustPost(Transport& transport, RowMoves moves) {
  const absl::StatusOr<Ticket> ticket = transport.Post(std::move(moves));
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  return ticket.value_or(0);
}

RowMoves SendOne(RankId to, uint64_t post_id, std::span<const std::byte> bytes, int64_t offset) {
  return {.post_id = post_id,
          .sends = {{.to = to, .row = 0, .round = 0, .bytes = bytes, .staging_offset = offset}},
          .deadline = absl::Now() + absl::Seconds(30)};
}

RowMoves ReceiveOne(RankId from, uint64_t post_id, int64_t bytes, int64_t offset) {
  return {.post_id = post_id,
          .receives =
              {{.from = from, .row = 0, .round = 0, .staging_offset = offset, .num_bytes = bytes}},
          .deadline = absl::Now() + absl::Seconds(30)};
}

RowMoves Nothing(uint64_t post_id) {
  return {.post_id = post_id, .deadline = absl::InfiniteFuture()};
}

namespace {

TEST_P(TransportContractTest, RandomTrafficArrivesByteForByteAndNothingElseChanges) {
  const uint32_t seed = 4711;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr int64_t kStaging = 1'500'000;
  for (const int32_t world_size : {2, 3, 5}) {
    Transports transports = Make(world_size, kStaging);
    for (uint64_t post_id = 1; post_id <= 3; ++post_id) {
      const Traffic traffic = RandomTraffic(random, memory(), world_size, post_id, kStaging);
      for (auto& transport : transports) memory().Fill(transport->staging(), kOld);
      std::vector<Progress> results(world_size);
      RunRanks(world_size, [&](int32_t rank) {
        Transport& transport = *transports[rank];
        const auto progress = Finish(transport, MustPost(transport, traffic.moves[rank]));
        ASSERT_TRUE(progress.ok()) << progress.status();
        results[rank] = *progress;
      });
      int64_t sent = 0;
      int64_t received = 0;
      for (const Progress& result : results) EXPECT_TRUE(result.rounds.empty()) << "not timed";
      for (int32_t rank = 0; rank < world_size; ++rank) {
        const std::span<std::byte> staging = transports[rank]->staging();
        for (const auto& [offset, bytes] : traffic.padding[rank]) {
          memory().Fill(staging.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)),
                        kOld);
        }
        EXPECT_TRUE(memory().Holds(staging, traffic.staging[rank]));
        sent += results[rank].sent_bytes;
        received += results[rank].received_bytes;
      }
      EXPECT_EQ(sent, traffic.total_bytes);
      EXPECT_EQ(received, traffic.total_bytes);
    }
  }
}

TEST_P(TransportContractTest, ATimedPostSaysWhenItsRoundsWereMovedAndWithHowManyBytes) {
  std::mt19937 random(4712);
  constexpr int32_t kWorld = 3;
  constexpr int64_t kStaging = 1'500'000;
  Transports transports = Make(kWorld, kStaging);
  Traffic traffic = RandomTraffic(random, memory(), kWorld, 1, kStaging);
  const absl::Time began = MonotonicNow();
  std::vector<Progress> results(kWorld);
  RunRanks(kWorld, [&](int32_t rank) {
    traffic.moves[rank].time_rounds = true;
    Transport& transport = *transports[rank];
    const auto progress = Finish(transport, MustPost(transport, traffic.moves[rank]));
    ASSERT_TRUE(progress.ok()) << progress.status();
    results[rank] = *progress;
  });
  const absl::Time ended = MonotonicNow();
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    std::map<int32_t, std::pair<int64_t, int64_t>> expected;  // sent, received
    for (const RowSend& row : traffic.moves[rank].sends) {
      expected[row.round].first += static_cast<int64_t>(row.bytes.size());
    }
    for (const RowReceive& row : traffic.moves[rank].receives) {
      expected[row.round].second += row.num_bytes;
    }
    ASSERT_EQ(results[rank].rounds.size(), expected.size());
    auto round = expected.begin();
    for (const RoundTimes& times : results[rank].rounds) {
      EXPECT_EQ(times.round, round->first);
      EXPECT_EQ(times.sent_bytes, round->second.first);
      EXPECT_EQ(times.received_bytes, round->second.second);
      EXPECT_LE(began, times.began);
      EXPECT_LE(times.began, times.ended);
      EXPECT_LE(times.ended, ended);
      EXPECT_LE(times.checksum, times.ended - times.began);
      ++round;
    }
  }
}

TEST_P(TransportContractTest, PostsFollowEachOtherWhileOthersAreStillInTheOneBefore) {
  constexpr int32_t kContractRanks = 4;
  constexpr int32_t kPosts = 60;
  constexpr size_t kBytes = 5000;
  Transports transports = Make(kContractRanks, kBytes);
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::span<std::byte>> live;
  std::mt19937 random(5);
  for (int32_t rank = 0; rank < kContractRanks; ++rank) {
    rows.push_back(RandomBytes(random, kBytes + kPosts));
    live.push_back(memory().Put(rows.back()));
  }
  std::mutex memory_mutex;
  RunRanks(kContractRanks, [&](int32_t rank) {
    for (int32_t post = 1; post <= kPosts; ++post) {
      // To the neighbour at a distance that changes; some ranks have no part in every third post.
      const int32_t distance = 1 + post % (kContractRanks - 1);
      const int32_t to = (rank + distance) % kContractRanks;
      const int32_t from = (rank + kContractRanks - distance) % kContractRanks;
      const auto takes_part = [&](int32_t sender) { return post % 3 != 0 || sender == post % 4; };
      const auto at = static_cast<size_t>(post);
      const auto id = static_cast<uint64_t>(post);
      RowMoves moves = Nothing(id);
      if (takes_part(rank)) {
        moves.sends =
            SendOne(RankId{to}, id, live[static_cast<size_t>(rank)].subspan(at, kBytes)).sends;
      }
      if (takes_part(from)) moves.receives = ReceiveOne(RankId{from}, id, kBytes).receives;
      moves.deadline = absl::Now() + absl::Seconds(30);
      Transport& transport = *transports[rank];
      const auto progress = Finish(transport, MustPost(transport, std::move(moves)));
      ASSERT_TRUE(progress.ok()) << "rank " << rank << ": " << progress.status();
      if (!takes_part(from)) continue;
      const std::lock_guard<std::mutex> lock(memory_mutex);
      ASSERT_TRUE(memory().Holds(
          transports[rank]->staging(),
          std::span<const std::byte>(rows[static_cast<size_t>(from)]).subspan(at, kBytes)));
    }
  });
}

TEST_P(TransportContractTest, MoreRowsThanALinkQueuesWaitForAReceiverThatReadsLate) {
  constexpr int32_t kRows = 12'000;
  Transports transports = Make(2, int64_t{64} * kRows);
  const std::span<std::byte> row = memory().Put({std::byte{1}, std::byte{2}, std::byte{3}});
  memory().Fill(transports[1]->staging(), kOld);
  RowMoves sends = Nothing(1);
  RowMoves receives = Nothing(1);
  for (int32_t i = 0; i < kRows; ++i) {
    const int64_t offset = int64_t{64} * i;
    sends.sends.push_back(
        {.to = RankId{1}, .row = i, .round = 0, .bytes = row, .staging_offset = offset});
    receives.receives.push_back(
        {.from = RankId{0}, .row = i, .round = 0, .staging_offset = offset, .num_bytes = 3});
  }
  const Ticket receive = MustPost(*transports[1], receives);
  const Ticket send = MustPost(*transports[0], sends);
  for (int32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(transports[0]->Poll(send, absl::ZeroDuration()).ok());
  }
  MustDrive(transports, {send, receive});
  const std::vector<std::byte> staged = memory().Read(transports[1]->staging());
  for (size_t i = 0; i < kRows; ++i) {
    ASSERT_THAT(std::span(staged).subspan(64 * i, 3),
                ::testing::ElementsAre(std::byte{1}, std::byte{2}, std::byte{3}));
  }
}

TEST_P(TransportContractTest, PostWithoutRowsIsDoneAndSoIsAWorldOfOne) {
  Transports transports = Make(1, 0);
  EXPECT_TRUE(transports[0]->staging().empty());
  const Ticket ticket = MustPost(*transports[0], Nothing(1));
  const auto progress = transports[0]->Poll(ticket, absl::ZeroDuration());
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_TRUE(progress->done);
  EXPECT_TRUE(transports[0]->Poll(ticket, absl::ZeroDuration())->done) << "done stays done";
  EXPECT_EQ(transports[0]->Poll(ticket + 1, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportContractTest, StagingIsAlignedAndOfTheSizeAsked) {
  Transports transports = Make(2, 1000);
  for (auto& transport : transports) {
    EXPECT_EQ(transport->staging().size(), 1000U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(transport->staging().data()) % 64, 0U);
  }
}

TEST_P(TransportContractTest, NothingIsWrittenBeforeTheReceiverPosts) {
  std::mt19937 random(1);
  constexpr size_t kRowBytes = 4096;
  Transports transports = Make(2, kRowBytes);
  const std::vector<std::byte> row = RandomBytes(random, kRowBytes);
  memory().Fill(transports[0]->staging(), kOld);
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, memory().Put(row)));
  for (int32_t turn = 0; turn < 20; ++turn) {
    const auto progress = transports[1]->Poll(send, absl::ZeroDuration());
    ASSERT_TRUE(progress.ok()) << progress.status();
    EXPECT_FALSE(progress->done);
  }
  EXPECT_TRUE(memory().Holds(transports[0]->staging(), std::vector<std::byte>(kRowBytes, kOld)));
  const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 1, 4096));
  MustDrive(transports, {receive, send});
  EXPECT_TRUE(memory().Holds(transports[0]->staging(), row));
}

TEST_P(TransportContractTest, SecondPostIsRefusedWhileOneIsOpen) {
  Transports transports = Make(2, 64);
  (void)MustPost(*transports[0], ReceiveOne(RankId{1}, 1, 64));
  EXPECT_EQ(transports[0]->Post(Nothing(2)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(transports[0]->Abort().ok());
  EXPECT_TRUE(transports[0]->Post(Nothing(2)).ok());
}

TEST_P(TransportContractTest, MovesThatCannotBeAreRefusedByRow) {
  Transports transports = Make(2, 128);
  const std::span<std::byte> row = memory().Put(std::vector<std::byte>(100));
  const auto refused = [&](RowMoves moves, const char* why) {
    const absl::Status status = transports[0]->Post(std::move(moves)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(SendOne(RankId{1}, 1, row, 29), "outside the arena");
  refused(SendOne(RankId{1}, 1, row, -1), "outside the arena");
  refused(ReceiveOne(RankId{1}, 1, 100, 29), "outside the arena");
  refused(ReceiveOne(RankId{1}, 1, 129), "row 0 from rank 1");
  refused(ReceiveOne(RankId{1}, 1, -1), "row 0 from rank 1");
  refused(SendOne(RankId{0}, 1, row), "not a peer");
  refused(SendOne(RankId{2}, 1, row), "not a peer");
  refused(ReceiveOne(RankId{-1}, 1, 1), "not a peer");
  RowMoves twice = ReceiveOne(RankId{1}, 1, 10);
  twice.receives.push_back(twice.receives[0]);
  refused(twice, "given twice");
  twice.receives[1].row = 1;
  refused(twice, "overlap");
  twice.receives[1].staging_offset = 64;
  twice.receives[0].round = 1;
  refused(twice, "follows round");
  const Ticket ticket = MustPost(*transports[0], Nothing(5));
  EXPECT_TRUE(transports[0]->Poll(ticket, absl::ZeroDuration())->done);
  refused(Nothing(5), "does not rise");
}

TEST_P(TransportContractTest, SizesThatDifferBetweenTheEndsAreFoundByTheReceiver) {
  const std::span<std::byte> row = memory().Put(std::vector<std::byte>(100, std::byte{1}));
  for (const int64_t expected : {99, 101}) {
    Transports transports = Make(2, 4096);
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 1, expected));
    const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, row));
    const auto results = Drive(transports, {receive, send});
    EXPECT_EQ(results[0].status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(results[0].status().message()), HasSubstr("rank 1"));
    EXPECT_THAT(std::string(results[0].status().message()), HasSubstr("row 0"));
  }
}

}  // namespace
}  // namespace eplb
