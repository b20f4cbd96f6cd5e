// NCCL itself, with several ranks on one device. NCCL's maintainers call that unsupported, and it
// is only ever a test: each rank says that it is another host, so that rows go over loopback
// sockets.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "cuda/nccl_library.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/nccl_rank.h"

namespace eplb::cuda {
namespace {

using testing::RankTask;

// Connecting may take a minute, and so may each of the waits of a rank.
constexpr absl::Duration kRankDeadline = absl::Seconds(200);

std::vector<std::string> Environment(const std::string& host) {
  std::vector<std::string> variables = {
      "CUDA_VISIBLE_DEVICES=0", absl::StrCat("NCCL_HOSTID=", host),
      "NCCL_P2P_DISABLE=1",     "NCCL_SHM_DISABLE=1",
      "NCCL_NET=Socket",        "NCCL_IB_DISABLE=1",
      "NCCL_SOCKET_IFNAME=lo",  "NCCL_SOCKET_FAMILY=AF_INET",
      "NCCL_MNNVL_ENABLE=0",    "NCCL_NVLS_ENABLE=0",
      "NCCL_RAS_ENABLE=0",      "NCCL_PROTO=Simple",
      "NCCL_MAX_CTAS=4",        "NCCL_DEBUG=WARN"};
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    const auto library = NcclLibrary::Load();
    if (library.ok()) {
      std::printf("NCCL %s, %s\n", (*library)->version_text().c_str(), (*library)->path().c_str());
      return;
    }
    if (testing::GpuIsRequired()) FAIL() << "EPLB_REQUIRE_GPU=1: " << library.status();
    GTEST_SKIP() << library.status();
  }

  // A new process for each rank: CUDA cannot be used in a fork of a process that has used it.
  void Start(RankTask task, int32_t num_ranks, const std::vector<std::string>& hosts) {
    const std::string id_file = absl::StrCat(::testing::TempDir(), "nccl_id_", getpid());
    std::filesystem::remove(id_file);
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      std::vector<std::string> words = testing::ToArguments(
          {.task = task, .rank = rank, .num_ranks = num_ranks, .id_file = id_file});
      words.insert(words.begin(), "nccl_gpu_test");
      std::vector<std::string> variables = Environment(hosts[static_cast<size_t>(rank)]);
      pid_t child = -1;
      ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, Pointers(words).data(),
                            Pointers(variables).data()),
                0);
      ranks_.push_back(child);
    }
  }

  // What waitpid says of each; those that do not end in time are killed.
  std::vector<int> Ends() {
    const absl::Time deadline = absl::Now() + kRankDeadline;
    std::vector<int> ends;
    ends.reserve(ranks_.size());
    for (const pid_t rank : ranks_) {
      int end = 0;
      while (waitpid(rank, &end, WNOHANG) == 0) {
        if (absl::Now() > deadline) kill(rank, SIGKILL);
        absl::SleepFor(absl::Milliseconds(5));
      }
      ends.push_back(end);
    }
    return ends;
  }

  std::vector<pid_t> ranks_;
};

TEST_F(NcclGpuTest, RowsGoRoundARingOfTwoProcesses) {
  Start(RankTask::kRing, 2, {"eplb-r0", "eplb-r1"});
  for (const int end : Ends()) EXPECT_EQ(end, 0);
}

TEST_F(NcclGpuTest, RowsGoRoundARingOfThreeProcesses) {
  Start(RankTask::kRing, 3, {"eplb-r0", "eplb-r1", "eplb-r2"});
  for (const int end : Ends()) EXPECT_EQ(end, 0);
}

TEST_F(NcclGpuTest, TwoRanksOfOneHostOnOneDeviceAreRefusedAndDoNotHang) {
  Start(RankTask::kDuplicate, 2, {"eplb-r0", "eplb-r0"});
  for (const int end : Ends()) EXPECT_EQ(end, 0);
}

TEST_F(NcclGpuTest, KilledRankIsSeenOrTheDeadlinePassesAndTheAbortReturns) {
  Start(RankTask::kLosePeer, 3, {"eplb-r0", "eplb-r1", "eplb-r2"});
  const std::vector<int> ends = Ends();
  EXPECT_EQ(ends[0], 0);
  EXPECT_TRUE(WIFSIGNALED(ends[1]) && WTERMSIG(ends[1]) == SIGKILL);
  EXPECT_EQ(ends[2], 0);
}

}  // namespace
}  // namespace eplb::cuda

int main(int argc, char** argv) {
  if (const auto job = eplb::cuda::testing::FromArguments(argc, argv)) {
    return eplb::cuda::testing::RunRank(*job);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
