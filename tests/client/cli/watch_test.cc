#include "client/cli/watch.h"

#include <gtest/gtest.h>

namespace eplb::cli {
namespace {

constexpr Terminal kPlain{.width = 80, .colour = false, .unicode = false};

TEST(WatchTest, WithoutTheFlagACommandRunsOnce) {
  const Command command = Watched(
      {}, [](const Terminal&) { return Output{.exit_code = kOk, .out = "x", .message = {}}; });
  EXPECT_FALSE(command(kPlain).again.has_value());
}

TEST(WatchTest, ItAsksForTheNextRunUntilCount) {
  const Command command = Watched({.watch = true, .interval = "250ms", .count = 2},
                                  [](const Terminal&) { return Output(); });
  EXPECT_EQ(command(kPlain).again, absl::Milliseconds(250));
  EXPECT_FALSE(command(kPlain).again.has_value());
}

TEST(WatchTest, AFirstFailureEndsItALaterOneDoesNot) {
  int runs = 0;
  const auto fails_after = [&runs](int good) {
    return [&runs, good](const Terminal&) {
      return ++runs > good ? Output{.exit_code = kUnreachable, .out = {}, .message = "away"}
                           : Output();
    };
  };
  EXPECT_FALSE(Watched({.watch = true}, fails_after(0))(kPlain).again.has_value());
  runs = 0;
  const Command command = Watched({.watch = true}, fails_after(1));
  EXPECT_TRUE(command(kPlain).again.has_value());
  const Output away = command(kPlain);
  EXPECT_TRUE(away.again.has_value());
  EXPECT_EQ(away.message, "away");
}

TEST(WatchTest, AnIntervalThatCannotBeMeantIsWrongUsage) {
  const Command command =
      Watched({.watch = true, .interval = "soon"}, [](const Terminal&) { return Output(); });
  EXPECT_EQ(command(kPlain).exit_code, kUsage);
}

}  // namespace
}  // namespace eplb::cli
