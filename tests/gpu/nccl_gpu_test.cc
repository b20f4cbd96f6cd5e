// NCCL itself, with several ranks on one device. NCCL's maintainers call that unsupported, and it
// is only ever a test: each rank says that it is another host, so that rows go over loopback
// sockets.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "cuda/nccl_library.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/nccl_rank.h"
#include "tests/gpu/rank_processes.h"

namespace eplb::cuda {
namespace {

using testing::RankTask;

// Connecting may take a minute, and so may each of the waits of a rank.
constexpr absl::Duration kRankDeadline = absl::Seconds(200);

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

  void Start(RankTask task, int32_t num_ranks, const std::vector<std::string>& hosts) {
    const std::string id_file = absl::StrCat(::testing::TempDir(), "nccl_id_", getpid());
    std::filesystem::remove(id_file);
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      ASSERT_TRUE(ranks_.Start(
          testing::ToArguments(
              {.task = task, .rank = rank, .num_ranks = num_ranks, .id_file = id_file}),
          eplb::NcclVariables(hosts[static_cast<size_t>(rank)])));
    }
  }

  std::vector<int> Ends() { return ranks_.Ends(kRankDeadline); }

  eplb::RankProcesses ranks_;
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
