#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "client/run_log/run_directory.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

using EventsFileTest = FilesTest;

TEST_F(EventsFileTest, EventsAreReadOldestFirstWhateverTheirOrder) {
  const std::string path = Write("events.json", R"json({"job":"demo","events":[
    {"sequence":9,"unix_micros":200,"time":"x","job":"demo","name":"resume","version":3,"reason":"on",
     "actor":"uid 0 (root)","before":"paused: tea","after":"not paused"},
    {"sequence":8,"unix_micros":100,"time":"x","job":"demo","name":"pause","version":3,"reason":"tea",
     "actor":"uid 0 (root)","before":"not paused","after":"paused: tea"}]
})json");
  const auto events = ReadEventsFile(path);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->job, "demo");
  ASSERT_EQ(events->events.size(), 2u);
  EXPECT_EQ(events->events[0].name, "pause");
  EXPECT_EQ(events->events[0].unix_micros, 100);
  EXPECT_EQ(events->events[1].before, "paused: tea");
  EXPECT_EQ(events->events[1].actor, "uid 0 (root)");
}

TEST_F(EventsFileTest, AJobWithoutEventsHasNone) {
  EXPECT_TRUE(ReadEventsFile(Write("e", R"({"job":"demo","events":[]})"))->events.empty());
}

TEST_F(EventsFileTest, WhatIsMissingIsNamedWithTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "events.json: "},
      {R"({"events":[]})", "job is missing"},
      {R"({"job":"a"})", "events is missing or not an array"},
      {R"({"job":"a","events":[1]})", "events is no array of objects"},
      {R"({"job":"a","events":[{"sequence":1}]})", "events[0]: unix_micros is missing"}};
  for (const auto& [text, expected] : cases) {
    const std::string path = Write("events.json", text);
    const std::string message(ReadEventsFile(path).status().message());
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_EQ(message.find(path), 0u) << message;
  }
  EXPECT_EQ(ReadEventsFile(Path("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace eplb
