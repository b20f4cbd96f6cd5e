#include "client/cli/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

TEST(FitFrameTest, WhatFitsStaysAsItIs) {
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 10, .height = 2}), "a\nb");
  EXPECT_EQ(FitFrame("", "", {.width = 10, .height = 2}), "");
}

TEST(FitFrameTest, TheFirstLinesStayAndTheOthersAreCounted) {
  EXPECT_EQ(FitFrame("a\nb\nc\nd\n", "", {.width = 20, .height = 3}), "a\nb\n... 2 more lines");
  EXPECT_EQ(FitFrame("a\nb\nc\nd\n", "", {.width = 20, .height = 4}), "a\nb\nc\nd");
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 20, .height = 1}), "... 2 more lines");
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 20, .height = 0}), "... 2 more lines");
}

TEST(FitFrameTest, NoLineIsWiderThanTheWindow) {
  EXPECT_EQ(FitFrame("abcdef\n", "", {.width = 4, .height = 3}), "abcd");
  EXPECT_EQ(FitFrame("\xC3\xA9\xC3\xA9\xC3\xA9\n", "", {.width = 2, .height = 3}),
            "\xC3\xA9\xC3\xA9");
}

TEST(FitFrameTest, ACutLineLeavesNoColourBehind) {
  EXPECT_EQ(FitFrame("\x1b[32mabcdef\x1b[0m\n", "", {.width = 4, .height = 3}),
            "\x1b[32mabcd\x1b[0m");
}

TEST(FitFrameTest, AProblemStandsAboveTheOldFrame) {
  EXPECT_EQ(FitFrame("a\nb\n", "no answer", {.width = 20, .height = 4}),
            "\x1b[31mno answer\x1b[0m\na\nb");
  EXPECT_EQ(FitFrame("a\nb\nc\n", "no answer", {.width = 20, .height = 3}),
            "\x1b[31mno answer\x1b[0m\na\n... 2 more lines");
  // Of a long one the beginning.
  const std::string frame = FitFrame("a\n", "one two three four five", {.width = 5, .height = 5});
  EXPECT_EQ(frame, "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m\n\x1b[31mthree\x1b[0m\na");
}

constexpr Terminal kPlainWatch{.width = 80, .colour = false, .unicode = false};

TEST(WatchTest, WithoutTheFlagACommandRunsOnce) {
  const Command command = Watched(
      {}, [](const Terminal&) { return Output{.exit_code = kOk, .out = "x", .message = {}}; });
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
      return ++runs > good ? Output{.exit_code = kUnreachable, .out = {}, .message = "away"}
                           : Output();
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

// The command that the words ask for.
Command Parsed(void (*add)(CLI::App&, Command&, Command), const std::string& words) {
  CLI::App app;
  Command command;
  add(app, command, [](const Terminal&) { return Output(); });
  app.parse(words);
  return command;
}

TEST(WatchTest, HowOftenNeedsTheFlag) {
  EXPECT_FALSE(Parsed(&AddWatched, "")(kPlainWatch).again.has_value());
  EXPECT_THROW(Parsed(&AddWatched, "--interval 1s"), CLI::RequiresError);
  EXPECT_THROW(Parsed(&AddWatched, "--count 3"), CLI::RequiresError);
  EXPECT_EQ(Parsed(&AddWatched, "--watch --interval 1s --count 3")(kPlainWatch).again,
            absl::Seconds(1));
}

// Standard output of a test is no terminal where tests run unattended.
TEST(WatchTest, ALiveCommandRunsOnceIntoAPipeUnlessItIsToldHowOften) {
  if (isatty(STDOUT_FILENO) == 1) GTEST_SKIP() << "stdout is a terminal";
  EXPECT_FALSE(Parsed(&AddLive, "")(kPlainWatch).again.has_value());
  EXPECT_FALSE(Parsed(&AddLive, "--count 1")(kPlainWatch).again.has_value());
  EXPECT_EQ(Parsed(&AddLive, "--count 0")(kPlainWatch).again, absl::Seconds(2));
  EXPECT_EQ(Parsed(&AddLive, "--interval 1s")(kPlainWatch).again, absl::Seconds(1));
  EXPECT_EQ(Parsed(&AddLive, "--interval 1ms")(kPlainWatch).exit_code, kUsage);
}

}  // namespace

}  // namespace eplb::cli
