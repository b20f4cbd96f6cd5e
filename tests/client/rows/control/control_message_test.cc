#include "client/rows/control/control_message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

namespace eplb {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    near = Fd(fds[0]);
    far = Fd(fds[1]);
  }
  Fd near;
  Fd far;
};

ControlMessage Sample() {
  return {.type = ControlMessageType::kReport,
          .op = ControlOp::kAllReduceMin,
          .blame_late = true,
          .call = 77,
          .values = {1, -2},
          .ranks = {RankId{3}, RankId{9}},
          .why = "no answer in 3s"};
}

TEST(ControlMessageTest, FrameSurvivesAnyCutOfTheStream) {
  const std::string bytes = EncodeFrame(Sample()) + EncodeFrame(Sample());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    Pair pair;
    FrameConnection connection(std::move(pair.near));
    int32_t frames = 0;
    for (const std::string& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
      ASSERT_TRUE(
          SendAll(pair.far.get(), std::as_bytes(std::span(part)), absl::InfiniteFuture()).ok());
      while (true) {
        const auto next = connection.Next();
        ASSERT_TRUE(next.ok()) << next.status();
        if (!next->has_value()) break;
        ++frames;
        EXPECT_EQ((*next)->why, "no answer in 3s");
        EXPECT_EQ((*next)->values, (std::vector<int64_t>{1, -2}));
        EXPECT_EQ((*next)->ranks, (std::vector<RankId>{{3}, {9}}));
        EXPECT_TRUE((*next)->blame_late);
        EXPECT_EQ((*next)->call, 77U);
      }
    }
    EXPECT_EQ(frames, 2);
  }
}

TEST(ControlMessageTest, FramesBeforeACloseAreDelivered) {
  Pair pair;
  FrameConnection connection(std::move(pair.near));
  const std::string bytes = EncodeFrame(Sample());
  ASSERT_TRUE(
      SendAll(pair.far.get(), std::as_bytes(std::span(bytes)), absl::InfiniteFuture()).ok());
  pair.far.Reset();
  const auto first = connection.Next();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ(connection.Next().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ControlMessageTest, RandomBytesAreRefusedAndNeverKept) {
  std::mt19937 random(20240611);
  for (int32_t round = 0; round < 200; ++round) {
    Pair pair;
    FrameConnection connection(std::move(pair.near));
    std::string bytes(64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 2 == 0) bytes.replace(0, 4, EncodeFrame(Sample()), 0, 4);  // a right magic number
    ASSERT_TRUE(
        SendAll(pair.far.get(), std::as_bytes(std::span(bytes)), absl::InfiniteFuture()).ok());
    EXPECT_EQ(connection.Next().status().code(), absl::StatusCode::kDataLoss) << "round " << round;
  }
}

TEST(ControlMessageTest, LongTextAndManyRanksAreCutToTheBound) {
  ControlMessage frame = Sample();
  frame.why.assign(5000, 'x');
  frame.ranks.assign(kMaxFrameRanks + 100, RankId{1});
  Pair pair;
  FrameConnection connection(std::move(pair.near));
  const std::string bytes = EncodeFrame(frame);
  ASSERT_TRUE(
      SendAll(pair.far.get(), std::as_bytes(std::span(bytes)), absl::InfiniteFuture()).ok());
  const auto next = connection.Next();
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ((*next)->why.size(), kMaxFrameText);
  EXPECT_EQ((*next)->ranks.size(), kMaxFrameRanks);
}

}  // namespace
}  // namespace eplb
