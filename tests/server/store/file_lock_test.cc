// Stores on file systems that take no locks or no shared maps: seccomp refuses the system calls.
#include "server/store/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "server/store/store.h"
#include "tests/server/store/folder.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// From now on this process' calls of `number` fail with `error`; of mmap, shared maps to write.
void Refuse(uint32_t number, uint32_t error) {
  constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
  constexpr uint32_t kProtection = offsetof(seccomp_data, args) + 2 * sizeof(uint64_t);
  constexpr uint32_t kFlags = offsetof(seccomp_data, args) + 3 * sizeof(uint64_t);
  // In other calls any argument passes both tests.
  const uint32_t protection = number == __NR_mmap ? PROT_WRITE : 0;
  const uint32_t flags = number == __NR_mmap ? MAP_SHARED : 0;
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 7),
                         BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kProtection),
                         BPF_STMT(BPF_ALU | BPF_AND | BPF_K, protection),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, protection, 0, 4),
                         BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
                         BPF_STMT(BPF_ALU | BPF_AND | BPF_K, flags),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, flags, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {.len = std::size(rules), .filter = rules};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(77);
  }
}

// Returns the error of opening a store in a process of its own.
std::string OpenRefused(const std::string& path, uint32_t number, uint32_t error) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    Refuse(number, error);
    const std::string text(MakeSqliteStore(path).status().message());
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], text.data(), text.size()), 0)));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return text;
}

TEST(FileLockTest, AFileSystemWithoutLocksIsNamedAsTheCause) {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    const Folder folder;
    EXPECT_THAT(OpenRefused(folder.File("eplbd.db"), __NR_flock, error),
                AllOf(HasSubstr("eplbd.db: its file system"), HasSubstr("takes no lock: "),
                      HasSubstr("put it on a local disk"), Not(HasSubstr("another eplbd"))));
  }
}

TEST(FileLockTest, AFileSystemWithoutSharedMapsIsNamedAsTheCause) {
  const Folder folder;
  EXPECT_THAT(OpenRefused(folder.File("eplbd.db"), __NR_mmap, ENODEV),
              AllOf(HasSubstr("eplbd.db: "), HasSubstr("put the store on a local disk")));
}

TEST(FileLockTest, ASecondHolderIsRefusedByName) {
  const Folder folder;
  const auto lock = FileLock::Acquire(folder.File("a"), "has it");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(std::string(FileLock::Acquire(folder.File("a"), "has it").status().message()),
              HasSubstr("another eplbd has it (it holds "));
}

}  // namespace
}  // namespace eplb
