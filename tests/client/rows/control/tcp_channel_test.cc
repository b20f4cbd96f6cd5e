#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "base/wait_check.h"
#include "client/rows/control/control_message.h"
#include "client/rows/control/meeting.h"
#include "tests/client/rows/control/control_channel_contract.h"
#include "tests/client/rows/control/world.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TcpControlOptions Options(int32_t rank, int32_t world_size) {
  return {.rank = RankId{rank},
          .world_size = world_size,
          .secret = "contract secret",
          .connect_timeout = absl::Seconds(30),
          .grace = absl::Milliseconds(100)};
}

Channels MakeTcpChannels(int32_t world_size) {
  ThreadAllGather all_gather(world_size);
  Channels channels(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    auto channel = MakeTcpControlChannel(Options(rank, world_size), all_gather.ForRank(rank));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channels[rank] = *std::move(channel);
  });
  return channels;
}

INSTANTIATE_TEST_SUITE_P(Tcp, ControlChannelContractTest, ::testing::Values(&MakeTcpChannels));

TEST(TcpChannelTest, TreeOfThreeLevelsNamesADeadInnerRankOnEveryRank) {
  const int32_t world_size = 80;  // ranks 73..79 are on the third level
  Channels channels = MakeTcpChannels(world_size);
  std::atomic<int32_t> ok{0};
  RunRanks(world_size,
           [&](int32_t rank) { ok += channels[rank]->Barrier(absl::Seconds(30)).ok() ? 1 : 0; });
  EXPECT_EQ(ok.load(), world_size);
  channels[9].reset();   // parent of 73..79
  channels[70].reset();  // a leaf elsewhere
  RunRanks(world_size, [&](int32_t rank) {
    if (channels[rank] == nullptr) return;
    const absl::Status status = channels[rank]->Barrier(absl::Seconds(30));
    ASSERT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    const std::vector<RankId> orphan = {RankId{9}};
    const std::vector<RankId> all = {RankId{9}, RankId{70}};
    EXPECT_EQ(MissingRanks(status), rank >= 73 ? orphan : all) << "rank " << rank;
  });
}

TEST(TcpChannelTest, ALoopbackAddressInAJobOfSeveralHostsIsRefusedAtOnceOnEveryRank) {
  ThreadAllGather all_gather(3);
  RunRanks(3, [&](int32_t rank) {
    TcpControlOptions options = Options(rank, 3);
    options.host = rank == 2 ? "b" : "a";
    const absl::Status status = MakeTcpControlChannel(options, all_gather.ForRank(rank)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the ranks are on 2 hosts, and rank 0 listens at 127.0.0.1:"),
                      HasSubstr("set the option bind_address")));
  });
}

TEST(TcpChannelTest, RankThatGaveUpInDifferentSecondsIsToldWhoIsLate) {
  // Rank 1 gives up long before the others would; rank 2 never comes. Rank 1 must hear the truth
  // from rank 0 instead of blaming it.
  Channels channels = MakeTcpChannels(3);
  RunRanks(3, [&](int32_t rank) {
    if (rank == 2) return;
    const absl::Duration timeout = rank == 1 ? absl::Milliseconds(100) : absl::Hours(1);
    const absl::Status status = channels[rank]->Barrier(timeout);
    EXPECT_EQ(MissingRanks(status), std::vector<RankId>{RankId{2}}) << status;
  });
}

TEST(TcpChannelTest, InterruptedRankIsNamedByAllLongBeforeTheDeadline) {
  Channels channels = MakeTcpChannels(3);
  const absl::Time began = absl::Now();
  RunRanks(3, [&](int32_t rank) {
    if (rank == 2) absl::SleepFor(2 * kBetweenWaitChecks);  // the rank that the others wait for
    const WaitCheck check(
        [rank] { return rank == 1 ? absl::CancelledError("Ctrl-C") : absl::OkStatus(); });
    const absl::Status status = channels[rank]->Barrier(absl::Hours(1));
    EXPECT_EQ(MissingRanks(status), std::vector<RankId>{RankId{1}}) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("its wait was interrupted: Ctrl-C"));
  });
  EXPECT_LT(absl::Now() - began, absl::Minutes(1));
}

TEST(TcpChannelTest, ForkedCopyIsRefusedAndDoesNotDisturbItsParent) {
  Channels channels = MakeTcpChannels(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused =
        channels[0]->Barrier(absl::Seconds(1)).code() == absl::StatusCode::kFailedPrecondition;
    channels.clear();
    _exit(refused ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  RunRanks(2, [&](int32_t rank) { EXPECT_TRUE(channels[rank]->Barrier(absl::Seconds(30)).ok()); });
}

TEST(TcpChannelTest, RankThatDoesNotConnectIsNamed) {
  auto listener = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const AllGather all_gather =
      [&](std::string_view own) -> absl::StatusOr<std::vector<std::string>> {
    const std::string other = listener->address + std::string(own.substr(own.find('\n')));
    return std::vector<std::string>{std::string(own), other, other};
  };
  TcpControlOptions options = Options(0, 3);
  options.connect_timeout = absl::Milliseconds(100);
  const absl::Status status = MakeTcpControlChannel(options, all_gather).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ranks 1, 2"), HasSubstr("see the option bind_address")));
}

TEST(TcpChannelTest, OptionsThatCannotWorkAreRefusedByName) {
  const AllGather never = [](std::string_view) -> absl::StatusOr<std::vector<std::string>> {
    return absl::InternalError("must not be called");
  };
  TcpControlOptions options = Options(0, 1);
  options.secret.clear();
  EXPECT_THAT(std::string(MakeTcpControlChannel(options, never).status().message()),
              ::testing::HasSubstr("secret"));
  options = Options(2, 2);
  EXPECT_THAT(std::string(MakeTcpControlChannel(options, never).status().message()),
              ::testing::HasSubstr("rank 2"));
  options = Options(0, 2);
  options.bind_address = "0.0.0.0";
  EXPECT_THAT(std::string(MakeTcpControlChannel(options, never).status().message()),
              ::testing::HasSubstr("0.0.0.0"));
}

}  // namespace
}  // namespace eplb
