#include "client/cli/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace eplb::cli {

namespace {

constexpr Terminal kPlainWatch{.width = 80};

TEST(WatchTest, WithoutTheFlagACommandRunsOnce) {
  const Command command = Watched({}, [](const Terminal&) { return Output("x"); });
  EXPECT_FALSE(command(kPlainWatch).again.has_value());
}

TEST(WatchTest, ItAsksForTheNextRunUntilCount) {
  const Command command = Watched({.watch = true, .interval = "250ms", .count = 2},
                                  [](const Terminal&) { return Output(); });
  EXPECT_EQ(command(kPlainWatch).again, absl::Milliseconds(250));
  EXPECT_FALSE(command(kPlainWatch).again.has_value());
}

TEST(WatchTest, AFirstFailureEndsItALaterOneDoesNot) {
  int runs = 0;
  const auto fails_after = [&runs](int good) {
    return [&runs, good](const Terminal&) {
      return ++runs > good ? Output(kUnreachable, "", "away") : Output();
    };
  };
  EXPECT_FALSE(Watched({.watch = true}, fails_after(0))(kPlainWatch).again.has_value());
  runs = 0;
  const Command command = Watched({.watch = true}, fails_after(1));
  EXPECT_TRUE(command(kPlainWatch).again.has_value());
  const Output away = command(kPlainWatch);
  EXPECT_TRUE(away.again.has_value());
  EXPECT_EQ(away.message, "away");
}

TEST(WatchTest, AnIntervalThatCannotBeMeantIsWrongUsage) {
  for (const char* bad : {"soon", "0", "1ms", "99ms"}) {
    const Command command =
        Watched({.watch = true, .interval = bad}, [](const Terminal&) { return Output(); });
    EXPECT_EQ(command(kPlainWatch).exit_code, kUsage) << bad;
  }
}

// A tree with one command, which `add` makes watched, and the output for a command line.
struct WatchedTree {
  CommandTree tree{"tool", "Does things."};

  explicit WatchedTree(void (*add)(Flags&)) {
    Flags flags = tree.root().AddCommand("run", "", [](const Terminal&) { return Output(); });
    add(flags);
  }
  Output Run(std::vector<const char*> words) {
    words.insert(words.begin(), {"tool", "run"});
    return tree.Parse(static_cast<int>(words.size()), words.data())(kPlainWatch);
  }
};

TEST(WatchTest, HowOftenNeedsTheFlag) {
  EXPECT_FALSE(WatchedTree(&AddWatched).Run({}).again.has_value());
  for (const char* flag : {"--interval", "--count"}) {
    EXPECT_EQ(WatchedTree(&AddWatched).Run({flag, "1"}).message,
              std::string(flag) + " requires --watch (see tool run --help)");
  }
  EXPECT_EQ(WatchedTree(&AddWatched).Run({"--watch", "--interval", "1s", "--count", "3"}).again,
            absl::Seconds(1));
}

// Standard output of a test is no terminal where tests run unattended.
TEST(WatchTest, ALiveCommandRunsOnceIntoAPipeUnlessItIsToldHowOften) {
  if (isatty(STDOUT_FILENO) == 1) GTEST_SKIP() << "stdout is a terminal";
  EXPECT_FALSE(WatchedTree(&AddLive).Run({}).again.has_value());
  EXPECT_FALSE(WatchedTree(&AddLive).Run({"--count", "1"}).again.has_value());
  EXPECT_EQ(WatchedTree(&AddLive).Run({"--count", "0"}).again, absl::Seconds(2));
  EXPECT_EQ(WatchedTree(&AddLive).Run({"--interval", "1s"}).again, absl::Seconds(1));
  EXPECT_EQ(WatchedTree(&AddLive).Run({"--interval", "1ms"}).exit_code, kUsage);
}

}  // namespace

}  // namespace eplb::cli
