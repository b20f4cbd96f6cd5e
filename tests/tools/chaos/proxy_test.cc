#include "tests/tools/chaos/proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"

namespace eplb::chaos {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A client and a server with the proxy between them; time is a value, turns are taken by hand.
class ProxyTest : public ::testing::Test {
 protected:
  ProxyTest() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    proxy_ = Proxy::Make("127.0.0.1:0", "127.0.0.1:" + std::to_string(ntohs(address.sin_port)), 7)
                 .value();
    Connect();
  }

  void Connect() {
    int port = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(proxy_->address().substr(proxy_->address().rfind(':') + 1), &port));
    const sockaddr_in address = Loopback(static_cast<uint16_t>(port));
    client_ = Descriptor(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(client_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    server_ = Descriptor();
    for (int turn = 0; turn < kMaxTurns && server_.get() < 0; ++turn) {
      Turn();
      server_ = Descriptor(accept4(listener_.get(), nullptr, nullptr, 0));
    }
    ASSERT_GE(server_.get(), 0);
  }

  void Turn() { proxy_->Turn(now_, faults_, absl::Milliseconds(1)); }

  // Returns the bytes of `socket` after some turns; "EOF" at the end of the stream, "RST" after a
  // reset.
  std::string Receive(const Descriptor& socket) {
    std::string bytes(65536, '\0');
    for (int turn = 0; turn < kMaxTurns; ++turn) {
      Turn();
      const ssize_t size = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (size == 0) return "EOF";
      if (size < 0 && errno == ECONNRESET) return "RST";
      if (size > 0) return bytes.substr(0, static_cast<size_t>(size));
    }
    return "";
  }

  void Say(const Descriptor& socket, const std::string& text) {
    ASSERT_EQ(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  static constexpr int kMaxTurns = 50;
  absl::Time now_ = absl::UnixEpoch();
  Faults faults_;
  Descriptor listener_;
  std::unique_ptr<Proxy> proxy_;
  Descriptor client_;
  Descriptor server_;
};

TEST_F(ProxyTest, PassesBytesBothWaysAndTheEndOfAStream) {
  Say(client_, "ping");
  EXPECT_EQ(Receive(server_), "ping");
  Say(server_, "pong");
  EXPECT_EQ(Receive(client_), "pong");
  shutdown(client_.get(), SHUT_WR);
  EXPECT_EQ(Receive(server_), "EOF");
  Say(server_, "last");
  EXPECT_EQ(Receive(client_), "last");
  shutdown(server_.get(), SHUT_WR);
  EXPECT_EQ(Receive(client_), "EOF");
  EXPECT_EQ(proxy_->num_connections(), 0u);
}

TEST_F(ProxyTest, DelayHoldsBytesUntilTheirTime) {
  faults_.delay = absl::Seconds(5);
  Say(client_, "slow");
  EXPECT_EQ(Receive(server_), "");
  now_ += absl::Seconds(4);
  EXPECT_EQ(Receive(server_), "");
  now_ += absl::Seconds(1);
  EXPECT_EQ(Receive(server_), "slow");
}

TEST_F(ProxyTest, JitterKeepsTheOrder) {
  faults_.jitter = absl::Seconds(10);
  for (const char* text : {"a", "b", "c", "d"}) {
    Say(client_, text);
    EXPECT_EQ(Receive(server_), "");
  }
  now_ += absl::Seconds(10);
  std::string all;
  while (all.size() < 4) {
    const std::string next = Receive(server_);
    ASSERT_FALSE(next.empty());
    all += next;
  }
  EXPECT_EQ(all, "abcd");
}

TEST_F(ProxyTest, DroppedBytesNeverArriveAndLaterOnesDo) {
  faults_.drop = true;
  Say(client_, "lost");
  EXPECT_EQ(Receive(server_), "");
  faults_.drop = false;
  Say(client_, "kept");
  EXPECT_EQ(Receive(server_), "kept");
}

TEST_F(ProxyTest, StalledBytesArriveOnceItEnds) {
  faults_.stall = true;
  Say(client_, "later");
  EXPECT_EQ(Receive(server_), "");
  faults_.stall = false;
  EXPECT_EQ(Receive(server_), "later");
}

TEST_F(ProxyTest, CorruptionFlipsOneBit) {
  faults_.corrupt = 1;
  Say(client_, std::string(8, '\0'));
  const std::string received = Receive(server_);
  ASSERT_EQ(received.size(), 8u);
  int bits = 0;
  for (const char byte : received) bits += __builtin_popcount(static_cast<unsigned char>(byte));
  EXPECT_EQ(bits, 1);
}

TEST_F(ProxyTest, ACutResetsBothSidesOnceAndNewConnectionsWork) {
  ++faults_.cuts;
  EXPECT_EQ(Receive(client_), "RST");
  EXPECT_EQ(Receive(server_), "RST");
  Connect();
  Say(client_, "again");
  EXPECT_EQ(Receive(server_), "again");
}

TEST_F(ProxyTest, TheRateIsNotExceeded) {
  faults_.bytes_per_second = 1000;
  Say(client_, std::string(1000, 'x'));
  EXPECT_EQ(Receive(server_).size(), 1000u);
  Say(client_, "y");
  EXPECT_EQ(Receive(server_), "");
  now_ += absl::Seconds(1);
  EXPECT_EQ(Receive(server_), "y");
}

TEST_F(ProxyTest, WhatIsBufferedIsBounded) {
  faults_.delay = absl::InfiniteDuration();
  const std::string block(1 << 16, 'z');
  size_t sent = 0;
  for (int i = 0; i < 300; ++i) {
    const ssize_t size = send(client_.get(), block.data(), block.size(), MSG_DONTWAIT);
    if (size > 0) sent += static_cast<size_t>(size);
    Turn();
  }
  // Its own buffer and those of the kernel.
  EXPECT_LT(sent, size_t{16} << 20);  // out of 19 MiB
}

TEST(FaultsTest, LinesSetAndClear) {
  Faults faults;
  for (const char* line : {"delay 50ms", "jitter 1s", "drop on", "stall on", "corrupt 0.25",
                           "rate 1000", "cut", "cut"}) {
    EXPECT_TRUE(ApplyLine(line, &faults).ok()) << line;
  }
  EXPECT_EQ(faults.delay, absl::Milliseconds(50));
  EXPECT_EQ(faults.jitter, absl::Seconds(1));
  EXPECT_TRUE(faults.drop && faults.stall);
  EXPECT_EQ(faults.corrupt, 0.25);
  EXPECT_EQ(faults.bytes_per_second, 1000);
  EXPECT_TRUE(ApplyLine("clear", &faults).ok());
  EXPECT_EQ(faults.delay, absl::ZeroDuration());
  EXPECT_FALSE(faults.drop || faults.stall);
  EXPECT_EQ(faults.cuts, 2);
}

TEST(FaultsTest, UnknownLinesChangeNothing) {
  Faults faults;
  for (const char* line :
       {"", "delay", "delay -1s", "drop maybe", "corrupt 2", "rate -1", "cut 1", "explode"}) {
    EXPECT_FALSE(ApplyLine(line, &faults).ok()) << line;
  }
  EXPECT_EQ(faults.delay, absl::ZeroDuration());
}

}  // namespace
}  // namespace eplb::chaos
