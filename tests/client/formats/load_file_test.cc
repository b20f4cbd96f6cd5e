#include "client/formats/load_file.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/client/formats/npy_bytes.h"
#include "tests/client/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using LoadFileTest = FilesTest;

TEST_F(LoadFileTest, TheContentTellsTheFormatNotTheName) {
  const std::string npy = NpyWithDict(NpyDict("|u1", "(1, 2)"), "\1\2");
  for (const std::string& content :
       {npy, std::string(" \n[[1,2]]"), std::string(R"({"format":"eplb.load.v1","load":[[1,2]]})"),
        std::string(R"({"first_step":0,"last_step":0,"load":[[1,2]]})")}) {
    const auto file = ReadLoadFile(Write("load.txt", content));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->windows.front().load.counts()(0, 1), 2);
  }
}

TEST_F(LoadFileTest, ARecordedTraceIsReadWhole) {
  const auto file = ReadLoadFile(EPLB_TEST_DATA "/moe64_aux.jsonl");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_GT(file->windows.size(), 10U);
  EXPECT_EQ(file->windows.front().load.num_layers(), 8);
  EXPECT_EQ(file->windows.front().load.num_experts(), 64);
  EXPECT_GT(file->windows.back().first_step, file->windows.front().last_step);
}

TEST_F(LoadFileTest, WhatIsNoLoadIsRefusedWithItsPath) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {" \n\t", "is empty"},
      {"layer,expert\n", "is no load; tried a JSON matrix"},
      {"\x93NUM", "magic"},
      {std::string("\x93NUMPY\x01", 7), "truncated"},
      {"\xEF\xBB\xBF[[1]]", "byte order mark"},
      {std::string(100, '\0'), "is no load"},
      {"PK\x03\x04", "no whole zip archive"},
  };
  for (const auto& [content, message] : cases) {
    const absl::Status status = ReadLoadFile(Write("bad", content)).status();
    EXPECT_THAT(std::string(status.message()), StartsWith(Path("bad") + ": "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_EQ(ReadLoadFile(Path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadLoadFile(Path("")).status().message()), HasSubstr("is a directory"));
}

// DeepSeek-V3 in sglang: rows of the model's layers, of which the first are dense.
TEST_F(LoadFileTest, RowsOfDenseLayersInALoadOfSglangAreLeftOutOrSaid) {
  const std::string steps = "[[[0,0],[0,0],[1,2],[0,3]],[[0,0],[0,0],[3,4],[5,6]]]";
  const std::string keyed = Write("keyed.json", "{\"logical_count\":" + steps + "}");
  const std::string bare = Write("bare.json", steps);
  for (const LoadReading& reading : {LoadReading{}, LoadReading{.format = "sglang"}}) {
    const auto whole = ReadLoadFile(keyed, reading);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(whole->windows.front().load.num_layers(), 4);
    EXPECT_THAT(NotesOn(keyed, *whole),
                StartsWith("note: " + keyed + ": rows 0..1 look like dense layers (no tokens)"));
    EXPECT_THAT(NotesOn(keyed, *whole), HasSubstr("give --first-layer 2 to leave them out"));
    const auto moe = ReadLoadFile(keyed, {.format = reading.format, .first_layer = 2});
    ASSERT_TRUE(moe.ok()) << moe.status();
    ASSERT_EQ(moe->windows.size(), 2U);
    EXPECT_EQ(moe->windows[1].load.num_layers(), 2);
    EXPECT_EQ(moe->windows[1].load.counts()(1, 1), 6);
    EXPECT_EQ(NotesOn(keyed, *moe), "");
  }
  const auto named = ReadLoadFile(bare, {.format = "sglang", .first_layer = 3});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->windows[0].load.num_layers(), 1);
  EXPECT_THAT(NotesOn(bare, *named), HasSubstr("row 2 left out for --first-layer 3, though"));
  EXPECT_THAT(std::string(ReadLoadFile(keyed, {.first_layer = 4}).status().message()),
              StartsWith(keyed + ": has 4 rows, --first-layer 4 leaves none"));
}

TEST_F(LoadFileTest, FirstLayerIsRefusedForLoadsOfOthers) {
  for (const char* content : {"[[1,2],[3,4]]", "[[[1,2],[3,4]]]", "1,2\n3,4\n",
                              R"({"format":"eplb.load.v1","load":[[1,2],[3,4]]})"}) {
    const absl::Status status =
        ReadLoadFile(Write("load", content), {.format = {}, .first_layer = 1}).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("--first-layer is for loads of sglang"))
        << content;
  }
}

TEST_F(LoadFileTest, StepsOfABareArrayAreWindows) {
  const auto file = ReadLoadFile(Write("steps.json", "[[[1,2]],[[3,4]],[[5,6]]]"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->windows.size(), 3U);
  EXPECT_EQ(file->windows[2].first_step, 2);
  EXPECT_EQ(file->windows[2].load.counts()(0, 1), 6);
}

}  // namespace
}  // namespace eplb
