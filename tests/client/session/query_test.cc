#include "client/session/query.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "tests/client/session/scripted_daemon.h"

namespace eplb {
namespace {

using testing::ScriptedDaemon;

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

}  // namespace
}  // namespace eplb
