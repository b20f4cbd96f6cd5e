#include "client/rows/control/tcp_all_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "client/rows/control/socket.h"
#include "tests/client/rows/control/world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// A port that was free a moment ago.
uint16_t FreePort() {
  auto listener = ListenTcp("127.0.0.1", 0);
  EXPECT_TRUE(listener.ok());
  uint32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port));
  return static_cast<uint16_t>(port);
}

TcpAllGatherOptions Options(int32_t rank, int32_t world_size, uint16_t port) {
  return {
      .rank = RankId{rank}, .world_size = world_size, .port = port, .timeout = absl::Seconds(30)};
}

TEST(TcpAllGatherTest, EveryRankGetsEverybodysBytesInRankOrderAgainAndAgain) {
  for (const int32_t world_size : {1, 2, 7}) {
    const uint16_t port = FreePort();
    RunRanks(world_size, [&](int32_t rank) {
      auto all_gather = MakeTcpAllGather(Options(rank, world_size, port));
      ASSERT_TRUE(all_gather.ok()) << all_gather.status();
      for (int32_t call = 0; call < 5; ++call) {
        // Rank 2 sends nothing, rank 1 half a mebibyte.
        const std::string own =
            rank == 2 ? ""
                      : std::string(rank == 1 ? 500'000 : 1, 'a') + absl::StrCat(rank, "/", call);
        const auto all = (*all_gather)(own);
        ASSERT_TRUE(all.ok()) << all.status();
        ASSERT_EQ(all->size(), static_cast<size_t>(world_size));
        EXPECT_EQ((*all)[rank], own);
        EXPECT_EQ((*all)[0], absl::StrCat("a0/", call));
      }
    });
  }
}

TEST(TcpAllGatherTest, RankThatDoesNotComeIsNamedOnEveryRank) {
  const uint16_t port = FreePort();
  RunRanks(2, [&](int32_t rank) {
    TcpAllGatherOptions options = Options(rank, 4, port);
    options.timeout = absl::Milliseconds(200);
    auto all_gather = MakeTcpAllGather(options);
    ASSERT_TRUE(all_gather.ok());
    const absl::Status status = (*all_gather)("x").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 2, 3 did not connect")) << rank;
  });
}

TEST(TcpAllGatherTest, PortInUseIsAnErrorAtOnce) {
  auto taken = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok());
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(taken->address.substr(taken->address.rfind(':') + 1), &port));
  const absl::Status status = MakeTcpAllGather(Options(0, 2, static_cast<uint16_t>(port))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(taken->address));
}

TEST(TcpAllGatherTest, BlobAboveOneMebibyteIsRefused) {
  auto all_gather = MakeTcpAllGather(Options(0, 1, FreePort()));
  ASSERT_TRUE(all_gather.ok());
  EXPECT_EQ((*all_gather)(std::string((1 << 20) + 1, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*all_gather)(std::string(1 << 20, 'x')).ok());
}

}  // namespace
}  // namespace eplb
