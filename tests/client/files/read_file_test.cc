#include "client/files/read_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <string>

#include "tests/client/files/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using ReadFileTest = FilesTest;

TEST_F(ReadFileTest, AllBytesComeBack) {
  const std::string content("a\0b\r\n\xff", 6);
  EXPECT_EQ(*ReadRegularFile(Write("f", content)), content);
  EXPECT_EQ(*ReadRegularFile(Write("empty", "")), "");
}

TEST_F(ReadFileTest, WhatIsNoFileIsRefusedByName) {
  const absl::Status missing = ReadRegularFile(Path("missing")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), StartsWith(Path("missing") + ": "));
  EXPECT_THAT(std::string(ReadRegularFile(Path("")).status().message()),
              HasSubstr("is a directory"));
  EXPECT_THAT(std::string(ReadRegularFile("/dev/zero").status().message()),
              HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadRegularFile(Path("pipe")).status().message()),
              HasSubstr("not a regular file"));
}

TEST_F(ReadFileTest, TheBoundIsCheckedBeforeReading) {
  EXPECT_TRUE(ReadRegularFile(Write("f", "12345"), 5).ok());
  EXPECT_THAT(std::string(ReadRegularFile(Path("f"), 4).status().message()),
              HasSubstr("has 5 bytes, at most 4 are read"));
}

TEST_F(ReadFileTest, LinesKeepTheirNumbersAndSayWhetherTheyEnded) {
  const std::vector<TextLine> lines = SplitLines("a\r\n\n  \nb\nc");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, "a");
  EXPECT_EQ(lines[1].number, 4);
  EXPECT_TRUE(lines[1].has_newline);
  EXPECT_EQ(lines[2].number, 5);
  EXPECT_FALSE(lines[2].has_newline);
  EXPECT_TRUE(SplitLines("").empty());
}

TEST_F(ReadFileTest, AColumnInALineIsNotCalledLineOne) {
  const absl::Status status = absl::InvalidArgumentError("line 1, column 5: bad");
  EXPECT_EQ(InLine("f", 3, status).message(), "f: line 3: column 5: bad");
  EXPECT_EQ(InFile("f", status).message(), "f: line 1, column 5: bad");
}

}  // namespace
}  // namespace eplb
