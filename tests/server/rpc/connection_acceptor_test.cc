#include "server/rpc/connection_acceptor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/runner/tcp_listeners.h"
#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// An acceptor at work that keeps what it hands over.
class ConnectionAcceptorTest : public ::testing::Test {
 protected:
  ~ConnectionAcceptorTest() override { acceptor_.reset(); }
  void Start(ConnectionAcceptor::Options options) {
    absl::StatusOr<TcpListeners> bound = ListenTcp({.host = "127.0.0.1"}, 128, 1);
    ASSERT_TRUE(bound.ok()) << bound.status();
    port_ = bound->address.port;
    options.serve = [this](Descriptor connection) {
      const std::lock_guard lock(mutex_);
      served_.push_back(std::move(connection));
      changed_.notify_all();
    };
    acceptor_ = std::make_unique<ConnectionAcceptor>(std::move(bound->sockets.front()), options);
    acceptor_->Start();
  }
  bool WaitUntilServed(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(kPatience),
                             [this, count] { return served_.size() >= count; });
  }
  size_t served() {
    const std::lock_guard lock(mutex_);
    return served_.size();
  }
  // The number that the next descriptor of this process gets.
  static int NextNumber() {
    const Descriptor one(dup(0));
    return one.get();
  }

  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Descriptor> served_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(ConnectionAcceptorTest, AConnectionIsHandedOverOnceItSpeaks) {
  Start({});
  const RawConnection silent(port_);
  RawConnection speaker(port_);
  speaker.Send("x");
  ASSERT_TRUE(WaitUntilServed(1));
  EXPECT_EQ(served(), 1U);
  char byte = 0;
  EXPECT_EQ(recv(served_[0].get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x') << "its first byte is still there to read";
}

TEST_F(ConnectionAcceptorTest, ASilentConnectionIsClosedAndCounted) {
  Start({.silence = absl::Milliseconds(20)});
  EXPECT_TRUE(RawConnection(port_).ReadToTheEnd());
  EXPECT_EQ(acceptor_->silent(), 1);
  EXPECT_EQ(acceptor_->crowded(), 0);
}

// A connection takes two numbers here: one of each end.
TEST_F(ConnectionAcceptorTest, WhenDescriptorsAreShortTheOldestSilentConnectionMakesRoom) {
  const int free = NextNumber();
  Start({.descriptors_below = free + 30, .silence = absl::Hours(1)});
  std::vector<RawConnection> silent;
  for (int i = 0; i < 40; ++i) silent.emplace_back(port_);
  EXPECT_TRUE(silent.front().ReadToTheEnd());
  silent.back().Send("x");
  ASSERT_TRUE(WaitUntilServed(1));
  EXPECT_LT(served_[0].get(), free + 30);
  EXPECT_GE(acceptor_->crowded(), 1);
  EXPECT_EQ(acceptor_->silent(), 0);
}

TEST_F(ConnectionAcceptorTest, WhenAllSpokeTheNewcomerIsClosed) {
  const int free = NextNumber();
  Start({.descriptors_below = free + 12, .silence = absl::Hours(1)});
  std::vector<RawConnection> speakers;
  size_t count = 0;
  while (acceptor_->crowded() == 0) {
    ASSERT_LT(count, 12U);
    speakers.emplace_back(port_);
    speakers.back().Send("x");
    if (NextNumber() > free + 12) break;
    ASSERT_TRUE(WaitUntilServed(++count));
  }
  RawConnection newcomer(port_);
  EXPECT_TRUE(newcomer.ReadToTheEnd());
  EXPECT_EQ(served(), count);
}

}  // namespace
}  // namespace eplb
