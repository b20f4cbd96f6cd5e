#include "client/migration/link_set.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "client/control/monotonic_clock.h"

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
    EXPECT_EQ(frame->type, RowFrameType::kEnded);
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
              {.type = RowFrameType::kEnded, .post_id = 5});
  EXPECT_EQ(HeardOf(1), 5U);
  EXPECT_EQ(HeardOf(2), std::nullopt);
  links_.TellAll({.type = RowFrameType::kEnded, .post_id = 6});
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
  others_[1].Queue({.type = RowFrameType::kPosted, .post_id = 1});
  others_[1].Flush();
  EXPECT_TRUE(links_.Wait(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(links_.Of(RankId{2}).ReadHeader().has_value());
}

TEST_F(LinkSetTest, HangUpLetsWhatWasSentArrive) {
  links_.TellAll({.type = RowFrameType::kEnded, .post_id = 7});
  links_.HangUp();
  EXPECT_EQ(HeardOf(2), 7U);
  EXPECT_FALSE(others_[1].ReadHeader().has_value());
  EXPECT_TRUE(others_[1].gone());
}

}  // namespace
}  // namespace eplb
