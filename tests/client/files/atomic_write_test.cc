#include "client/files/atomic_write.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/client/files/test_files.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

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
