#include "server/rpc/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/process/socket.h"
#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

constexpr int kOwn = 2;  // descriptors of an acceptor: its listener and what ends its thread

// A peer whose descriptor is far above those that the acceptor gives out.
class FarPeer {
 public:
  FarPeer() {
    const Descriptor low(socket(AF_INET, SOCK_STREAM, 0));
    descriptor_ = Descriptor(fcntl(low.get(), F_DUPFD_CLOEXEC, 600));
    EXPECT_GE(descriptor_.get(), 600);
  }
  void Connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(descriptor_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
  }
  void Send() { EXPECT_EQ(send(descriptor_.get(), "x", 1, MSG_NOSIGNAL), 1); }
  // Waits until the other end has closed.
  bool IsClosed() {
    pollfd one{.fd = descriptor_.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1;
  }

 private:
  Descriptor descriptor_;
};

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
  // Above the numbers that the next `count` descriptors of this process get.
  static int NumberAfter(int count) {
    std::vector<Descriptor> taken(static_cast<size_t>(count));
    for (Descriptor& one : taken) one = Descriptor(eventfd(0, EFD_CLOEXEC));
    return taken.back().get() + 1;
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

TEST_F(ConnectionAcceptorTest, WhenDescriptorsAreShortTheOldestSilentConnectionMakesRoom) {
  const int below = NumberAfter(kOwn + 8);
  Start({.descriptors_below = below, .silence = absl::Hours(1)});
  std::vector<FarPeer> silent(12);
  for (FarPeer& one : silent) one.Connect(port_);
  EXPECT_TRUE(silent.front().IsClosed());
  silent.back().Send();
  ASSERT_TRUE(WaitUntilServed(1));
  EXPECT_LT(served_[0].get(), below);
  EXPECT_EQ(acceptor_->crowded(), 4);
  EXPECT_EQ(acceptor_->silent(), 0);
}

TEST_F(ConnectionAcceptorTest, WhenAllSpokeTheNewcomerIsClosed) {
  Start({.descriptors_below = NumberAfter(kOwn + 8), .silence = absl::Hours(1)});
  std::vector<FarPeer> speakers(8);
  for (size_t i = 0; i < speakers.size(); ++i) {
    speakers[i].Connect(port_);
    speakers[i].Send();
    ASSERT_TRUE(WaitUntilServed(i + 1));
  }
  FarPeer newcomer;
  newcomer.Connect(port_);
  EXPECT_TRUE(newcomer.IsClosed());
  EXPECT_EQ(served(), 8U);
  EXPECT_EQ(acceptor_->crowded(), 1);
}

}  // namespace
}  // namespace eplb
