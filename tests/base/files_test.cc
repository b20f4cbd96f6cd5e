#include "base/files.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/client/cli/formats/test_files.h"

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

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using AtomicWriteTest = FilesTest;

TEST_F(AtomicWriteTest, WritesANewFileAndNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(Path("out"), "content").ok());
  EXPECT_EQ(Read(Path("out")), "content");
  EXPECT_THAT(Names(), ElementsAre("out"));
}

TEST_F(AtomicWriteTest, ReplacesAFileAndKeepsItsMode) {
  const std::string path = Write("out", "old");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(WriteFileAtomically(path, "new").ok());
  EXPECT_EQ(Read(path), "new");
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640U);
}

TEST_F(AtomicWriteTest, ANewFileFollowsTheUmask) {
  const mode_t old_mask = umask(027);
  ASSERT_TRUE(WriteFileAtomically(Path("out"), "x").ok());
  umask(old_mask);
  struct stat info = {};
  ASSERT_EQ(stat(Path("out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640U);
}

TEST_F(AtomicWriteTest, ALinkStaysAndItsTargetIsReplaced) {
  const std::string target = Write("target", "old");
  ASSERT_EQ(symlink("target", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new").ok());
  EXPECT_EQ(Read(target), "new");
  struct stat info = {};
  ASSERT_EQ(lstat(Path("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
}

TEST_F(AtomicWriteTest, DirectoriesAndDevicesAreNotReplaced) {
  EXPECT_THAT(std::string(WriteFileAtomically(Path(""), "x").message()),
              HasSubstr("is a directory"));
  EXPECT_THAT(std::string(WriteFileAtomically("/dev/null", "x").message()),
              HasSubstr("not a regular file"));
  struct stat info = {};
  ASSERT_EQ(stat("/dev/null", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
}

TEST_F(AtomicWriteTest, AMissingDirectoryIsNamed) {
  const absl::Status status = WriteFileAtomically(Path("no/out"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), StartsWith(Path("no/out") + ": cannot create"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(AtomicWriteTest, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const std::string path = Write("out", "old");
  // A file size limit makes write() fail as a full disk does.
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {.rlim_cur = 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFileAtomically(path, std::string(64, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write"));
  EXPECT_EQ(Read(path), "old");
  EXPECT_THAT(Names(), ElementsAre("out"));
}

}  // namespace

}  // namespace eplb
