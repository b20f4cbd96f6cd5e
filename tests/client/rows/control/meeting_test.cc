#include "client/rows/control/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "absl/strings/numbers.h"

#include "tests/client/rows/control/world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);

Handshake::Options Self(int32_t rank, std::string secret = "right",
                        ConnectionRole role = ConnectionRole::kControl) {
  return {.secret = std::move(secret), .role = role, .self = RankId{rank}};
}

Listener Listen() {
  auto listener = ListenTcp("127.0.0.1", 0);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

Fd ConnectRaw(const std::string& address) {
  auto fd = StartConnect(address);
  EXPECT_TRUE(fd.ok()) << fd.status();
  pollfd entry{.fd = fd->get(), .events = POLLOUT, .revents = 0};
  EXPECT_TRUE(PollUntil(std::span(&entry, 1), absl::Now() + kLong).ok());
  EXPECT_TRUE(FinishConnect(fd->get()).ok());
  return *std::move(fd);
}

MeetOptions Expect(const Listener& listener, std::vector<RankId> ranks) {
  return {.handshake = Self(0),
          .expect = std::move(ranks),
          .listeners = {&listener},
          .deadline = absl::Now() + kLong};
}

MeetOptions DialRankZero(Handshake::Options self, const std::string& address,
                         absl::Duration timeout = kLong) {
  return {.handshake = std::move(self),
          .dial = {{.rank = RankId{0}, .addresses = {address}}},
          .deadline = absl::Now() + timeout};
}

TEST(MeetingTest, DiallerAndAnswererShareAUsableConnection) {
  const Listener listener = Listen();
  RunRanks(2, [&](int32_t rank) {
    auto met = MeetPeers("test", rank == 0 ? Expect(listener, {RankId{1}})
                                           : DialRankZero(Self(1), listener.address));
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_EQ(met->strangers, 0);
    const int fd = met->peers.at(RankId{1 - rank}).fd.get();
    std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, static_cast<std::byte>(rank)};
    ASSERT_TRUE(SendAll(fd, bytes, absl::Now() + kLong).ok());
    ASSERT_TRUE(ReceiveAll(fd, bytes, absl::Now() + kLong).ok());
    EXPECT_EQ(bytes[2], static_cast<std::byte>(1 - rank));
  });
}

TEST(MeetingTest, StrangersAndSilentConnectionsDoNotDisturbTheOthers) {
  const Listener listener = Listen();
  std::vector<Fd> silent;
  for (int32_t i = 0; i < 20; ++i) silent.push_back(ConnectRaw(listener.address));
  std::mt19937 random(7);
  for (int32_t i = 0; i < 20; ++i) {
    Fd noisy = ConnectRaw(listener.address);
    std::string bytes(200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    ASSERT_TRUE(SendAll(noisy.get(), std::as_bytes(std::span(bytes)), absl::Now() + kLong).ok());
    silent.push_back(std::move(noisy));
  }
  const absl::Time start = absl::Now();
  RunRanks(2, [&](int32_t rank) {
    auto met = MeetPeers("test", rank == 0 ? Expect(listener, {RankId{1}})
                                           : DialRankZero(Self(1), listener.address));
    ASSERT_TRUE(met.ok()) << met.status();
    if (rank == 0) {
      EXPECT_GE(met->strangers, 20);
    }
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "silent connections were waited for";
}

TEST(MeetingTest, FloodOfSilentConnectionsGivesWayToTheExpectedRank) {
  const Listener listener = Listen();
  std::vector<Fd> silent;
  for (int32_t i = 0; i < 150; ++i) silent.push_back(ConnectRaw(listener.address));
  RunRanks(2, [&](int32_t rank) {
    auto met = MeetPeers("test", rank == 0 ? Expect(listener, {RankId{1}})
                                           : DialRankZero(Self(1), listener.address));
    ASSERT_TRUE(met.ok()) << met.status();
    if (rank == 0) {
      EXPECT_GT(met->strangers, 0);
    }
  });
}

TEST(MeetingTest, WrongSecretRoleOrRankIsAStranger) {
  for (const Handshake::Options& wrong :
       {Self(1, "wrong"), Self(1, "right", ConnectionRole::kRows), Self(7)}) {
    const Listener listener = Listen();
    RunRanks(2, [&](int32_t rank) {
      if (rank == 0) {
        MeetOptions options = Expect(listener, {RankId{1}});
        options.deadline = absl::Now() + absl::Milliseconds(150);
        const auto met = MeetPeers("test", options);
        EXPECT_EQ(met.status().code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(std::string(met.status().message()), HasSubstr("rank 1 did not connect"));
      } else {
        const auto met =
            MeetPeers("test", DialRankZero(wrong, listener.address, absl::Milliseconds(150)));
        EXPECT_THAT(std::string(met.status().message()), HasSubstr("rank 0 did not connect"));
      }
    });
  }
}

TEST(MeetingTest, DiallerFindsAnAnswererThatDoesNotKnowTheSecret) {
  const Listener listener = Listen();
  RunRanks(2, [&](int32_t rank) {
    if (rank == 0) {
      MeetOptions options = Expect(listener, {RankId{1}});
      options.handshake.secret = "stolen";
      options.deadline = absl::Now() + absl::Milliseconds(150);
      EXPECT_FALSE(MeetPeers("test", options).ok());
    } else {
      const auto met =
          MeetPeers("test", DialRankZero(Self(1), listener.address, absl::Milliseconds(100)));
      EXPECT_THAT(std::string(met.status().message()), HasSubstr("does not know the secret"));
    }
  });
}

TEST(MeetingTest, AnotherAddressIsTriedWhenTheFirstIsDead) {
  const Listener listener = Listen();
  RunRanks(2, [&](int32_t rank) {
    MeetOptions options =
        rank == 0 ? Expect(listener, {RankId{1}}) : DialRankZero(Self(1), listener.address);
    if (rank == 1) options.dial[0].addresses = {"@eplb-test-nobody-is-here", listener.address};
    auto met = MeetPeers("test", options);
    ASSERT_TRUE(met.ok()) << met.status();
    if (rank == 1) {
      EXPECT_EQ(met->peers.at(RankId{0}).address, listener.address);
      EXPECT_THAT(met->peers.at(RankId{0}).first_miss, HasSubstr("nobody-is-here"));
    }
  });
}

TEST(MeetingTest, ReplayedProofIsRefused) {
  // A recorded dialler's bytes against a fresh answerer: the nonce differs, so they prove nothing.
  const Listener listener = Listen();
  Fd dialler = ConnectRaw(listener.address);
  auto answerer = Accept(listener.fd.get());
  ASSERT_TRUE(answerer.ok() && answerer->valid());
  Handshake dial = Handshake::Dial(Self(1), RankId{0});
  ASSERT_TRUE(dial.Step(dialler.get()).ok());
  std::array<std::byte, 52> hello;
  ASSERT_TRUE(ReceiveAll(answerer->get(), hello, absl::Now() + kLong).ok());

  std::array<std::byte, 32> proof;
  for (const bool replayed : {false, true}) {
    Fd raw = ConnectRaw(listener.address);
    auto accepted = Accept(listener.fd.get());
    ASSERT_TRUE(accepted.ok() && accepted->valid());
    Handshake answer = Handshake::Answer(Self(0));
    ASSERT_TRUE(SendAll(raw.get(), hello, absl::Now() + kLong).ok());
    ASSERT_TRUE(answer.Step(accepted->get()).ok());
    std::array<std::byte, 64> challenge;
    ASSERT_TRUE(ReceiveAll(raw.get(), challenge, absl::Now() + kLong).ok());
    if (!replayed) {  // the true dialler answers this challenge; its proof is what is replayed
      ASSERT_TRUE(SendAll(answerer->get(), challenge, absl::Now() + kLong).ok());
      ASSERT_TRUE(dial.Step(dialler.get()).ok());
      ASSERT_TRUE(ReceiveAll(answerer->get(), proof, absl::Now() + kLong).ok());
    }
    ASSERT_TRUE(SendAll(raw.get(), proof, absl::Now() + kLong).ok());
    const absl::StatusOr<bool> step = answer.Step(accepted->get());
    if (!replayed) {
      EXPECT_TRUE(step.ok() && *step) << step.status();
    } else {
      EXPECT_EQ(step.status().code(), absl::StatusCode::kUnauthenticated);
    }
  }
}

TEST(NameRanksTest, ManyRanksAreCutShort) {
  EXPECT_EQ(NameRanks({RankId{4}}), "rank 4");
  EXPECT_EQ(NameRanks({RankId{4}, RankId{2}}), "ranks 2, 4");
  std::vector<RankId> many;
  for (int32_t r = 0; r < 20; ++r) many.push_back(RankId{r});
  EXPECT_THAT(NameRanks(many), HasSubstr("15 and 4 more"));
}

TEST(SocketTest, WaitsEndAtTheirDeadline) {
  const Listener listener = Listen();
  const Fd near = ConnectRaw(listener.address);
  std::array<std::byte, 1> byte;
  const absl::Time start = absl::Now();
  EXPECT_EQ(ReceiveAll(near.get(), byte, start + absl::Milliseconds(50)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
}

TEST(SocketTest, AddressesThatPeersCannotReachAreRefused) {
  EXPECT_EQ(ListenTcp("0.0.0.0", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenTcp("::", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenTcp("localhost", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StartConnect("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StartConnect("127.0.0.1:70000").status().code(), absl::StatusCode::kInvalidArgument);
  const Listener taken = Listen();
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(taken.address.substr(taken.address.rfind(':') + 1), &port));
  const absl::Status twice = ListenTcp("127.0.0.1", static_cast<uint16_t>(port)).status();
  EXPECT_EQ(twice.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(twice.message()), HasSubstr(taken.address));
}

}  // namespace
}  // namespace eplb
