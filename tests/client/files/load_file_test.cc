#include "client/files/load_file.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/client/files/npy_bytes.h"
#include "tests/client/files/test_files.h"

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

}  // namespace
}  // namespace eplb
