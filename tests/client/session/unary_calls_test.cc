#include "client/session/unary_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "client/client.h"
#include "proto/wire/status.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/session/scripted_daemon.h"

namespace eplb {

namespace {

int PortThatNobodyListensOn() { return ScriptedDaemon({}).port(); }

// A daemon that begins to listen while it is asked.
class LateDaemon {
 public:
  LateDaemon(const ScriptedDaemon::Options& options, absl::Duration after)
      : starts_([this, options, after] {
          absl::SleepFor(after);
          daemon_.emplace(options);
        }) {}
  ~LateDaemon() { starts_.join(); }

 private:
  std::optional<ScriptedDaemon> daemon_;
  std::thread starts_;
};

// Takes connections and never answers, as a daemon that was stopped.
class SilentListener {
 public:
  SilentListener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket_, any, size) != 0 || listen(socket_, 16) != 0 ||
        getsockname(socket_, any, &size) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { close(socket_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int socket_;
  int port_ = 0;
};

TEST(QueryTest, ADaemonThatStartsWhileItIsAskedAnswers) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const int port = PortThatNobodyListensOn();
    const LateDaemon daemon({.port = port, .reserved = 41}, absl::Milliseconds(400));
    const absl::StatusOr<int64_t> version =
        ReserveVersion({absl::StrCat("127.0.0.1:", port)}, {}, "job", absl::Seconds(10));
    ASSERT_TRUE(version.ok()) << version.status();
    EXPECT_EQ(*version, 41);
  }
}

TEST(QueryTest, AStandbyIsPassedOverWhereverItStandsInTheList) {
  const ScriptedDaemon standby({.standby_for = "elsewhere:1"});
  const ScriptedDaemon leader({.reserved = 41});
  for (const auto& list : {std::vector{standby.endpoint(), leader.endpoint()},
                           std::vector{leader.endpoint(), standby.endpoint()}}) {
    const absl::StatusOr<int64_t> version = ReserveVersion(list, {}, "job", absl::Minutes(5));
    ASSERT_TRUE(version.ok()) << version.status();
    EXPECT_EQ(*version, 41);
    // The leader does not know the job, which is an answer: the call does not wait for another one.
    const absl::Status unknown = FetchPlacement(list, {}, "job", absl::Minutes(5)).status();
    EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  }
}

TEST(QueryTest, WhileAllStandByOneIsAboutToLead) {
  const ScriptedDaemon standby({.standby_for = wire::kNoLeader});
  const int port = PortThatNobodyListensOn();
  const LateDaemon leader({.port = port, .reserved = 7}, absl::Seconds(2));
  const absl::StatusOr<int64_t> version = ReserveVersion(
      {standby.endpoint(), absl::StrCat("127.0.0.1:", port)}, {}, "job", absl::Seconds(30));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 7);
}

TEST(QueryTest, AFrozenLeaderBesideStandbysLeavesTimeForTheNextOne) {
  const ScriptedDaemon standby({.standby_for = wire::kNoLeader});
  const SilentListener frozen;
  const int port = PortThatNobodyListensOn();
  const LateDaemon next({.port = port, .reserved = 7}, absl::Seconds(2));
  const absl::StatusOr<int64_t> version =
      ReserveVersion({standby.endpoint(), absl::StrCat("127.0.0.1:", port), frozen.endpoint()}, {},
                     "job", absl::Seconds(3));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 7);
}

TEST(QueryTest, OneThatIsNotThereIsToldByItsCauseBeforeTheDeadline) {
  const int port = PortThatNobodyListensOn();
  const absl::Time begin = absl::Now();
  const absl::Status status =
      FetchPlacement({absl::StrCat("127.0.0.1:", port)}, {}, "job", absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("connection refused"), absl::string_view::npos) << status;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

TEST(QueryTest, OfSeveralDaemonsTheHighestReservationCounts) {
  const ScriptedDaemon first({.reserved = 7});
  const ScriptedDaemon second({.reserved = 9});
  const ScriptedDaemon old({});  // reserves none
  const absl::StatusOr<int64_t> version = ReserveVersion(
      {old.endpoint(), first.endpoint(), second.endpoint()}, {}, "job", absl::Seconds(10));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 9);
  EXPECT_TRUE(absl::IsUnimplemented(
      ReserveVersion({old.endpoint()}, {}, "job", absl::Seconds(10)).status()));
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ClientOptions OptionsOf(const std::string& endpoint, int32_t rank, int32_t world_size,
                        absl::Duration timeout) {
  ClientOptions options;
  options.job = "job";
  options.run_id = "run";
  options.endpoint = endpoint;
  options.rank = rank;
  options.world_size = world_size;
  options.start_deadline = timeout;
  return options;
}

TEST(DaemonAllGatherTest, DaemonCarriesTheAllGather) {
  ScriptedDaemon daemon({});
  RunRanks(2, [&](int32_t rank) {
    const AllGather all_gather =
        MakeDaemonAllGather(OptionsOf(daemon.endpoint(), rank, 2, absl::Seconds(20)));
    EXPECT_THAT(all_gather(absl::StrCat("first ", rank)).value(),
                ElementsAre("first 0", "first 1"));
    EXPECT_THAT(all_gather(absl::StrCat("second ", rank)).value(),
                ElementsAre("second 0", "second 1"));
  });
}

TEST(DaemonAllGatherTest, AllGatherOfAMissingRankEndsAtItsDeadline) {
  ScriptedDaemon daemon({});
  const AllGather all_gather =
      MakeDaemonAllGather(OptionsOf(daemon.endpoint(), 0, 2, absl::Milliseconds(300)));
  const absl::Status status = all_gather("alone").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not come"));
}

// Rank 0 waits in the second all-gather when the daemon dies; rank 1 comes when the next one is
// there.
TEST(DaemonAllGatherTest, ADaemonThatRestartsInTheMiddleLosesNothing) {
  auto daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
  const int port = daemon->port();
  const std::string endpoint = daemon->endpoint();
  absl::Notification restarted;
  RunRanks(3, [&](int32_t rank) {
    if (rank == 2) {  // the machine
      daemon->WaitForAllGathers(3);
      daemon.reset();
      daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{.port = port});
      restarted.Notify();
      return;
    }
    const AllGather all_gather =
        MakeDaemonAllGather(OptionsOf(endpoint, rank, 2, absl::Seconds(20)));
    EXPECT_THAT(all_gather(absl::StrCat("first ", rank)).value(),
                ElementsAre("first 0", "first 1"));
    if (rank == 1) restarted.WaitForNotification();
    EXPECT_THAT(all_gather(absl::StrCat("second ", rank)).value(),
                ElementsAre("second 0", "second 1"));
  });
}

TEST(DaemonAllGatherTest, WithoutANameOfTheRunNobodyIsAsked) {
  ClientOptions options = OptionsOf("127.0.0.1:1", 0, 2, absl::Seconds(60));
  options.run_id = "";
  unsetenv("EPLB_LAUNCH_ID");
  const absl::Status status = MakeDaemonAllGather(options)("alone").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("set EPLB_LAUNCH_ID"));
}

TEST(DaemonAllGatherTest, TheNextDaemonOfTheListCarriesTheAllGather) {
  const std::string gone = ScriptedDaemon({}).endpoint();  // port without a listener
  ScriptedDaemon daemon({});
  const AllGather all_gather = MakeDaemonAllGather(
      OptionsOf(absl::StrCat(gone, ",", daemon.endpoint()), 0, 1, absl::Seconds(20)));
  EXPECT_THAT(all_gather("here").value(), ElementsAre("here"));
}

// No daemon listens: that is known at once, and is no deadline that passed.
TEST(DaemonAllGatherTest, ARefusedConnectionIsCalledSoAtOnce) {
  const std::string endpoint = ScriptedDaemon({}).endpoint();  // port without a listener
  const AllGather all_gather = MakeDaemonAllGather(OptionsOf(endpoint, 0, 2, absl::Seconds(60)));
  const absl::Time begin = absl::Now();
  const absl::Status status = all_gather("alone").status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("all_gather 0 through eplbd at ", endpoint, ": connection refused"));
}

}  // namespace

}  // namespace eplb
