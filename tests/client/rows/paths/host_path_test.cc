#include "client/rows/paths/host_path.h"

#include <gmock/gmock.h>

#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(HostSharedMemory, TransportContractTest,
                         ::testing::Values(&MakeSharedMemoryWorld));
INSTANTIATE_TEST_SUITE_P(HostTcp, TransportContractTest, ::testing::Values(&MakeTcpWorld));

TEST(HostPathTest, FlippedByteInSharedStagingIsFound) {
  Transports transports = MakeSharedMemoryWorld(2, 1000);
  const std::vector<std::byte> row(1000, std::byte{9});
  const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 3, 1000));
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 3, row));
  absl::StatusOr<Progress> sent = Progress{};
  while (sent.ok() && !sent->done) sent = transports[1]->Poll(send, absl::Seconds(1));
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_EQ(transports[0]->staging()[500], std::byte{9}) << "memory is shared";
  transports[0]->staging()[500] = std::byte{8};
  const absl::Status status = transports[0]->Poll(receive, absl::Seconds(30)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "post 3: rank 1: row 0: checksum differs");
}

// The sender knows that rows have left which the receiver has, so it may leave before the sender's
// next turn.
TEST(HostPathTest, ReceiverThatHasAllMayLeaveAtOnce) {
  for (const auto make : {&MakeSharedMemoryWorld, &MakeTcpWorld}) {
    Transports transports = make(2, 1000);
    const std::vector<std::byte> row(1000, std::byte{9});
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 1, 1000));
    const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, row));
    absl::StatusOr<Progress> sent = Progress{};
    absl::StatusOr<Progress> received = Progress{};
    while (received.ok() && !received->done) {
      sent = transports[1]->Poll(send, absl::ZeroDuration());
      ASSERT_TRUE(sent.ok()) << sent.status();
      received = transports[0]->Poll(receive, absl::ZeroDuration());
    }
    ASSERT_TRUE(received.ok()) << received.status();
    transports[0].reset();
    while (sent.ok() && !sent->done) sent = transports[1]->Poll(send, absl::Seconds(1));
    EXPECT_TRUE(sent.ok()) << sent.status();
  }
}

TEST(HostPathTest, OversizeRowIsRefusedAtPost) {
  ThreadAllGather all_gather(2);
  Transports transports(2);
  RunRanks(2, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, 2, 4096);
    options.max_row_bytes = 100;
    transports[rank] = *MakeHostTransport(options, all_gather.ForRank(rank));
  });
  const std::vector<std::byte> row(101);
  const absl::Status status = transports[0]->Post(SendOne(RankId{1}, 1, row)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the largest row is 100"));
}

TEST(HostPathTest, RankWithoutTheSecretIsNotLetIn) {
  ThreadAllGather all_gather(2);
  RunRanks(2, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, 2, 64);
    options.connect_timeout = absl::Milliseconds(150);
    if (rank == 1) options.secret = "guessed";
    const absl::Status status = MakeHostTransport(options, all_gather.ForRank(rank)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr(rank == 0 ? "rank 1" : "rank 0"));
  });
}

TEST(HostPathTest, MissingSharedMemoryIsNotedWithItsReason) {
  ThreadAllGather all_gather(2);
  std::vector<std::string> notes;
  RunRanks(2, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, 2, 64);
    options.use_shared_memory = rank == 0;
    if (rank == 0) options.on_note = [&](std::string_view line) { notes.emplace_back(line); };
    EXPECT_TRUE(MakeHostTransport(options, all_gather.ForRank(rank)).ok());
  });
  EXPECT_THAT(notes,
              ::testing::ElementsAre(
                  "rows to rank 1 go over the socket: one of the two ranks has no unix socket"));
}

TEST(HostPathTest, OnlyTheNamedPeersAreConnected) {
  // Two EP groups of two: no rank of the other EP group is a peer.
  ThreadAllGather all_gather(4);
  Transports transports(4);
  RunRanks(4, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, 4, 64);
    options.peers = {RankId{rank / 2 * 2}, RankId{rank / 2 * 2 + 1}};
    auto transport = MakeHostTransport(options, all_gather.ForRank(rank));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
  });
  const std::vector<std::byte> row(64);
  const auto send_to = [&](int32_t to) {
    return transports[0]->Post(
        {.post_id = 1,
         .sends = {{.to = RankId{to}, .row = 0, .round = 0, .bytes = row, .staging_offset = 0}},
         .deadline = absl::InfiniteFuture()});
  };
  EXPECT_THAT(std::string(send_to(2).status().message()), HasSubstr("not a peer"));
  EXPECT_TRUE(send_to(1).ok());
}

TEST(HostPathTest, StagingThatDoesNotFitOneRankIsAnErrorOnAll) {
  ThreadAllGather all_gather(2);
  RunRanks(2, [&](int32_t rank) {
    const int64_t staging_bytes = rank == 1 ? int64_t{1} << 60 : 64;
    const absl::Status status =
        MakeHostTransport(HostOptions(rank, 2, staging_bytes), all_gather.ForRank(rank)).status();
    EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kResourceExhausted
                                       : absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(rank == 1 ? "staging of" : "rank 1: "));
  });
}

}  // namespace
}  // namespace eplb
