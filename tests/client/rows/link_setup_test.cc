#include "client/rows/link_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/monotonic_clock.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"

namespace eplb {

namespace {

constexpr int32_t kPeers = 3;

// Connections to ranks 1..3; the test holds their other ends.
class LinkSetTest : public ::testing::Test {
 protected:
  LinkSetTest() : links_(Connect()) {}

  std::vector<PeerLink> Connect() {
    std::vector<PeerLink> links;
    for (int32_t i = 0; i < kPeers; ++i) {
      std::array<int, 2> ends{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
      links.emplace_back(PeerLink::Parts{.rank = RankId{i + 1}, .fd = Fd(ends[0])});
      others_.emplace_back(PeerLink::Parts{.rank = RankId{0}, .fd = Fd(ends[1])});
    }
    return links;
  }

  // The post that this peer was told to have ended.
  std::optional<uint64_t> HeardOf(int32_t rank) {
    const auto frame = others_[static_cast<size_t>(rank - 1)].ReadHeader();
    if (!frame.has_value()) return std::nullopt;
    EXPECT_EQ(frame->type, RowMessageType::kEnded);
    return frame->post_id;
  }

  std::vector<PeerLink> others_;
  LinkSet links_;
};

TEST_F(LinkSetTest, PeersAreFoundByTheirRank) {
  EXPECT_EQ(links_.all().size(), 3U);
  EXPECT_EQ(links_.Of(RankId{2}).rank(), RankId{2});
  EXPECT_EQ(links_.Find(RankId{0}), nullptr);
  EXPECT_EQ(links_.Find(RankId{4}), nullptr);
}

TEST_F(LinkSetTest, AFrameGoesToThosePeersThatAreNamedAndThere) {
  links_.Of(RankId{3}).Close("it left");
  links_.Tell(std::vector<RankId>{RankId{1}, RankId{3}, RankId{9}},
              {.type = RowMessageType::kEnded, .post_id = 5});
  EXPECT_EQ(HeardOf(1), 5U);
  EXPECT_EQ(HeardOf(2), std::nullopt);
  links_.TellAll({.type = RowMessageType::kEnded, .post_id = 6});
  EXPECT_EQ(HeardOf(1), 6U);
  EXPECT_EQ(HeardOf(2), 6U);
  EXPECT_EQ(HeardOf(3), std::nullopt);
}

TEST_F(LinkSetTest, ThoseWhoAreGoneAreNamedWithTheFirstReason) {
  const std::vector<RankId> all = {RankId{1}, RankId{2}, RankId{3}};
  EXPECT_EQ(links_.DescribeGone(all), "");
  links_.Of(RankId{2}).Close("it left");
  EXPECT_EQ(links_.DescribeGone(all), "rank 2 is gone (it left)");
  links_.Of(RankId{3}).Close("it hung up");
  EXPECT_EQ(links_.DescribeGone(all), "ranks 2, 3 are gone (it left)");
  EXPECT_EQ(links_.DescribeGone(std::vector<RankId>{RankId{1}}), "");
}

TEST_F(LinkSetTest, WaitEndsWithAFrameOrItsTime) {
  const absl::Time soon = MonotonicNow() + absl::Milliseconds(20);
  EXPECT_TRUE(links_.Wait(soon).ok());
  EXPECT_GE(MonotonicNow(), soon);
  others_[1].Queue({.type = RowMessageType::kPosted, .post_id = 1});
  others_[1].Flush();
  EXPECT_TRUE(links_.Wait(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(links_.Of(RankId{2}).ReadHeader().has_value());
}

TEST_F(LinkSetTest, HangUpLetsWhatWasSentArrive) {
  links_.TellAll({.type = RowMessageType::kEnded, .post_id = 7});
  links_.HangUp();
  EXPECT_EQ(HeardOf(2), 7U);
  EXPECT_FALSE(others_[1].ReadHeader().has_value());
  EXPECT_TRUE(others_[1].gone());
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LinkAddressTest, TextSurvivesAndOtherTextIsRefused) {
  const LinkAddress address{.tcp = "[::1]:77", .boot_id = "abc", .staging_bytes = 12};
  const auto again = LinkAddress::Decode(address.Encode());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Encode(), address.Encode());
  for (const char* text : {"", "eplb-rows-1", "eplb-rows-2\na\nb\nc\n1", "eplb-rows-1\na\nb\nc\n-1",
                           "eplb-rows-1\n\nb\nc\n1", "eplb-rows-1\na\nb\nc\n1\n2"}) {
    EXPECT_FALSE(LinkAddress::Decode(text).ok()) << text;
  }
}

// Error of a rank of two with these options, and the number of its all-gathers.
struct Refusal {
  absl::Status status;
  std::vector<std::string> told;
};
Refusal RefusalOf(const TransportOptions& options) {
  Refusal refusal;
  const AllGather all_gather =
      [&](std::string_view text) -> absl::StatusOr<std::vector<std::string>> {
    refusal.told.emplace_back(text);
    return absl::UnavailableError("nobody is there");
  };
  refusal.status = SetUpLinks(options, SharedStaging{}, all_gather).status();
  return refusal;
}

TEST(LinkSetupTest, OptionsThatCannotWorkAreRefusedByNameAndTold) {
  const auto refused = [&](const TransportOptions& options, const char* name) {
    const Refusal refusal = RefusalOf(options);
    EXPECT_EQ(refusal.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refusal.status.message()), HasSubstr(name));
    EXPECT_THAT(refusal.told, ElementsAre(HasSubstr(name)));
  };
  TransportOptions options = HostOptions(0, 1, 64);
  options.max_row_bytes = 0;
  refused(options, "max_row_bytes");
  options = HostOptions(1, 1, 64);
  refused(options, "rank 1");
  options = HostOptions(0, 1, 64);
  options.secret.clear();
  refused(options, "secret");
  options = HostOptions(0, 1, 64);
  options.peers = {RankId{4}};
  refused(options, "peer 4");
  options = HostOptions(0, 1, 64);
  options.bind_address = "203.0.113.7";  // an address for documentation, which no host has
  const Refusal refusal = RefusalOf(options);
  EXPECT_TRUE(absl::IsUnavailable(refusal.status)) << refusal.status;
  EXPECT_THAT(refusal.told, ElementsAre(HasSubstr("203.0.113.7")));
}

TEST(LinkSetupTest, RankThatCannotTakePartFailsOnAllAndTheNextAllGatherIsInStep) {
  ThreadAllGather all_gather(3);
  RunRanks(3, [&](int32_t rank) {
    absl::StatusOr<SharedStaging> staging = SharedStaging{};
    if (rank == 1) staging = absl::ResourceExhaustedError("no room for staging");
    const absl::Status status =
        SetUpLinks(HostOptions(rank, 3, 64), staging, all_gather.ForRank(rank)).status();
    if (rank == 1) {
      EXPECT_EQ(status, staging.status());
    } else {
      EXPECT_EQ(status, absl::FailedPreconditionError("rank 1: no room for staging"));
    }
    const auto next = all_gather.ForRank(rank)(std::to_string(rank));
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_THAT(*next, ElementsAre("0", "1", "2"));
  });
}

}  // namespace

}  // namespace eplb
