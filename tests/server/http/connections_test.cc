#include "server/http/connections.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "server/process/socket.h"
#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);  // far more than any answer here takes

// Far above what the kernel keeps for a socket.
std::string LargeAnswer() { return std::string(16 << 20, 'a'); }

class ConnectionsTest : public ::testing::Test {
 protected:
  void Start(Connections::Limits limits, Connections::Handler handler) {
    absl::StatusOr<TcpListeners> bound =
        ListenTcp({.host = "127.0.0.1"}, /*backlog=*/8, /*most=*/1);
    ASSERT_TRUE(bound.ok()) << bound.status();
    port_ = bound->address.port;
    connections_ = std::make_unique<Connections>(std::move(bound->sockets.front()), limits,
                                                 std::move(handler));
  }
  void StartLarge(Connections::Limits limits) {
    Start(limits, [](std::string_view, bool) { return Connections::Answer{.make = &LargeAnswer}; });
  }
  RawConnection Ask() const {
    RawConnection peer(port_);
    peer.Send("GET /\r\n\r\n");
    return peer;
  }
  // True once the drops are as `are`.
  bool WaitForDrops(const std::function<bool(const HttpDrops&)>& are) const {
    for (const absl::Time end = MonotonicNow() + kPatience; MonotonicNow() < end;) {
      if (are(connections_->drops())) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  int port_ = 0;
  std::unique_ptr<Connections> connections_;
};

TEST_F(ConnectionsTest, AHeadThatDoesNotEndBeforeItsDeadlineIsDroppedHoweverBusyItsPeerIs) {
  Start({.head_deadline = absl::Milliseconds(100)},
        [](std::string_view, bool) { return Connections::Answer{.bytes = "never"}; });
  RawConnection silent(port_);
  RawConnection busy(port_);
  busy.Send("GET /livez HTTP/1.1\r\n");
  EXPECT_TRUE(WaitForDrops([&busy](const HttpDrops& drops) {
    busy.Send("a");
    return drops.late == 2;
  }));
  EXPECT_TRUE(silent.ReadToTheEnd());
  EXPECT_EQ(busy.ReadAll(), "");
  EXPECT_EQ(connections_->drops().crowded, 0);
}

TEST_F(ConnectionsTest, APeerThatReadsGetsALargeAnswerWhole) {
  StartLarge({});
  EXPECT_EQ(Ask().ReadAll(), LargeAnswer());
  EXPECT_EQ(connections_->drops().slow, 0);
}

TEST_F(ConnectionsTest, APeerThatTakesNothingIsDroppedAndCounted) {
  StartLarge({.stall = absl::Milliseconds(20)});
  RawConnection peer = Ask();
  EXPECT_TRUE(WaitForDrops([](const HttpDrops& drops) { return drops.slow == 1; }));
  EXPECT_LT(peer.ReadAll().size(), LargeAnswer().size());
  EXPECT_EQ(connections_->drops().crowded, 0);
}

TEST_F(ConnectionsTest, AnAnswerThatIsNotTakenBeforeItsDeadlineIsDropped) {
  StartLarge({.stall = absl::Hours(1), .answer_deadline = absl::Milliseconds(20)});
  const RawConnection peer = Ask();
  EXPECT_TRUE(WaitForDrops([](const HttpDrops& drops) { return drops.slow == 1; }));
}

// The bound is of bytes, or of connections.
TEST_F(ConnectionsTest, AboveABoundTheAnswerThatWaitsLongestIsDropped) {
  for (Connections::Limits limits :
       {Connections::Limits{.max_answer_bytes = 2 * LargeAnswer().size()},
        Connections::Limits{.max_connections = 2}}) {
    limits.stall = limits.answer_deadline = absl::Hours(1);
    StartLarge(limits);
    std::vector<RawConnection> peers;
    // The second takes far more than the kernel keeps for the first, and so takes bytes last.
    constexpr size_t kTaken[] = {1, 4 << 20, 1};
    for (const size_t taken : kTaken) {
      peers.push_back(Ask());
      EXPECT_EQ(peers.back().Read(taken).size(), taken);
      peers.back().WaitUntilFull();
    }
    EXPECT_TRUE(WaitForDrops([](const HttpDrops& drops) { return drops.crowded == 1; }));
    for (size_t i = 0; i < peers.size(); ++i) {
      EXPECT_EQ(kTaken[i] + peers[i].ReadAll().size() < LargeAnswer().size(), i == 0) << i;
    }
  }
}

TEST_F(ConnectionsTest, AboveTheBoundTheOldestThatWaitsForAnAnswerIsDropped) {
  std::mutex held_up;
  Start({.max_connections = 4}, [&held_up](std::string_view, bool) {
    return Connections::Answer{.make = [&held_up] {
      const std::lock_guard lock(held_up);
      return std::string("made");
    }};
  });
  std::vector<RawConnection> peers;
  {
    const std::lock_guard lock(held_up);
    // Four are answered by the threads, four wait.
    for (int i = 0; i < 12; ++i) {
      peers.push_back(Ask());
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_TRUE(WaitForDrops([](const HttpDrops& drops) { return drops.crowded == 4; }));
  }
  int answered = 0;
  for (RawConnection& peer : peers) answered += peer.ReadAll() == "made" ? 1 : 0;
  EXPECT_EQ(answered, 8);
}

}  // namespace
}  // namespace eplb
