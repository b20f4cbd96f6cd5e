#include "server/rpc/acceptors.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/process/socket.h"
#include "tests/server/rpc/served_test.h"
#include "tests/support/raw_connection.h"

#include "eplb/v1/admin.grpc.pb.h"

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
    std::vector<Descriptor> taken;
    for (int i = 0; i < count; ++i) taken.emplace_back(eventfd(0, EFD_CLOEXEC));
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

TEST(UnixPeersTest, ACallsConnectionIsFoundByItsDescriptorAlone) {
  UnixPeers peers;
  peers.Note(12, 1000);
  EXPECT_EQ(peers.UserOf("fd:12"), 1000u);
  peers.Note(12, 1001);
  EXPECT_EQ(peers.UserOf("fd:12"), 1001u);
  for (const char* other : {"fd:1", "fd:", "fd:12x", "fd:123", "unix:", "ipv4:127.0.0.1:12", ""}) {
    EXPECT_EQ(peers.UserOf(other), std::nullopt) << other;
  }
}

TEST(UnixPeersTest, AUserIsNamedWithItsNumber) {
  EXPECT_EQ(DescribeUser(0), "uid 0 (root)");
  EXPECT_EQ(DescribeUser(4000000001U), "uid 4000000001");
}

// A daemon on a socket, with one job of two ranks.
class UnixAcceptorTest : public ServedTest {
 protected:
  UnixAcceptorTest() {
    std::string folder = ::testing::TempDir() + "/eplb_acceptor_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/eplbd.sock";
  }
  ~UnixAcceptorTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Pauses the job over a connection of its own.
  grpc::Status Pause(const std::string& request_id) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel("unix:" + path_, grpc::InsecureChannelCredentials(), arguments);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::PauseRequest request;
    request.mutable_change()->set_job("job");
    request.mutable_change()->set_request_id(request_id);
    request.mutable_change()->set_expect_version(0);
    request.mutable_change()->set_claimed_by("root@elsewhere");
    v1::AdminResponse response;
    return v1::Admin::NewStub(channel)->Pause(&context, request, &response);
  }
  std::string PausedBy() const { return runner_->Job("job")->pause_reason; }

  std::string folder_;
  std::string path_;
};

TEST_F(UnixAcceptorTest, WhoAsksIsWhomTheKernelNamesWhateverTheCallerClaims) {
  Start({.unix_path = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
  const grpc::Status status = Pause("r1");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
  EXPECT_EQ(runner_->Events("job", 1)->front().event.actor, DescribeUser(getuid()));
}

TEST_F(UnixAcceptorTest, TheSocketBesideAnAddressNamesItsUsersToo) {
  Start({.host = "127.0.0.1"}, {.unix_socket = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
  ASSERT_TRUE(Pause("r1").ok());
  EXPECT_EQ(PausedBy(), "paused by " + DescribeUser(getuid()));
}

// More connections than there are numbers for them, one after the other.
TEST_F(UnixAcceptorTest, ConnectionsComeAndGoWithoutEnd) {
  Start({.unix_path = path_});
  const auto first = Join(0);
  const auto second = Join(1);
  ASSERT_TRUE(store_->WaitForEvent("released"));
  for (int i = 0; i < 600; ++i) {
    const grpc::Status status = Pause(absl::StrCat("r", i));
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

TEST_F(UnixAcceptorTest, AStreamThatIsOpenAtTheEndIsEndedAndTheSocketRemoved) {
  Start({.unix_path = path_});
  const auto rank = Join(0);
  server_->Shutdown(absl::Seconds(5));
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  struct stat info {};
  EXPECT_NE(stat(path_.c_str(), &info), 0);
}

TEST_F(UnixAcceptorTest, AFolderThatTakesNoSocketIsNamedWithTheReason) {
  const std::string path = folder_ + "/none/eplbd.sock";
  RpcOptions options;
  options.listen.unix_path = path;
  EXPECT_EQ(RpcServer::Start(options).status(),
            absl::UnavailableError(
                absl::StrCat("cannot listen on unix:", path, ": No such file or directory")));
}

}  // namespace

}  // namespace eplb
