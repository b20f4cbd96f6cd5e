#include "server/http/outlet.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace eplb {
namespace {

constexpr int kPatienceMs = 20000;  // far more than any answer here takes

// Far above what the kernel keeps for a socket.
std::string LargeAnswer() { return std::string(4 << 20, 'a'); }

// An outlet at work, and peers whose answers it writes.
class OutletTest : public ::testing::Test {
 protected:
  ~OutletTest() override {
    if (outlet_ == nullptr) return;
    outlet_->Stop();
    thread_.join();
  }
  void Start(Outlet::Limits limits) {
    outlet_ = std::make_unique<Outlet>(limits);
    thread_ = std::thread([this] { outlet_->Run(); });
  }
  // The end of a peer that is sent this answer.
  static Descriptor Post(Outlet& outlet, std::string answer) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    outlet.Post(Descriptor(ends[0]), std::move(answer));
    return Descriptor(ends[1]);
  }
  static bool WaitUntilClosed(const Descriptor& peer) {
    pollfd one{.fd = peer.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&one, 1, kPatienceMs) == 1;
  }
  static std::string ReadAll(const Descriptor& peer) {
    std::string text;
    std::array<char, 4096> bytes{};
    ssize_t got = 0;
    while ((got = recv(peer.get(), bytes.data(), bytes.size(), 0)) > 0) {
      text.append(bytes.data(), static_cast<size_t>(got));
    }
    return text;
  }

  std::unique_ptr<Outlet> outlet_;
  std::thread thread_;
};

TEST_F(OutletTest, AnAnswerThatTheSocketTakesAtOnceNeedsNoThread) {
  Outlet idle({});
  EXPECT_EQ(ReadAll(Post(idle, "ok\n")), "ok\n");
}

TEST_F(OutletTest, APeerThatReadsGetsALargeAnswerWhole) {
  Start({});
  EXPECT_EQ(ReadAll(Post(*outlet_, LargeAnswer())), LargeAnswer());
  EXPECT_EQ(outlet_->drops().slow, 0);
}

TEST_F(OutletTest, APeerThatTakesNothingIsDroppedAndCounted) {
  Start({.stall = absl::Milliseconds(20)});
  const Descriptor peer = Post(*outlet_, LargeAnswer());
  EXPECT_TRUE(WaitUntilClosed(peer));
  EXPECT_EQ(outlet_->drops().slow, 1);
  EXPECT_EQ(outlet_->drops().crowded, 0);
  EXPECT_LT(ReadAll(peer).size(), LargeAnswer().size());
}

TEST_F(OutletTest, AnAnswerThatIsNotTakenBeforeItsDeadlineIsDropped) {
  Start({.stall = absl::Hours(1), .deadline = absl::Milliseconds(20)});
  EXPECT_TRUE(WaitUntilClosed(Post(*outlet_, LargeAnswer())));
  EXPECT_EQ(outlet_->drops().slow, 1);
}

TEST_F(OutletTest, AboveTheBoundOfBytesTheAnswerThatWaitsLongestIsDropped) {
  Start(
      {.max_bytes = 2 * LargeAnswer().size(), .stall = absl::Hours(1), .deadline = absl::Hours(1)});
  const Descriptor first = Post(*outlet_, LargeAnswer());
  const Descriptor second = Post(*outlet_, LargeAnswer());
  const Descriptor third = Post(*outlet_, LargeAnswer());
  EXPECT_TRUE(WaitUntilClosed(first));
  EXPECT_EQ(outlet_->drops().crowded, 1);
  EXPECT_EQ(ReadAll(second), LargeAnswer());
  EXPECT_EQ(ReadAll(third), LargeAnswer());
}

TEST_F(OutletTest, AboveTheBoundOfAnswersTheOneThatWaitsLongestIsDropped) {
  Start({.max_answers = 1, .stall = absl::Hours(1), .deadline = absl::Hours(1)});
  const Descriptor first = Post(*outlet_, LargeAnswer());
  const Descriptor second = Post(*outlet_, LargeAnswer());
  EXPECT_TRUE(WaitUntilClosed(first));
  EXPECT_EQ(ReadAll(second), LargeAnswer());
}

}  // namespace
}  // namespace eplb
