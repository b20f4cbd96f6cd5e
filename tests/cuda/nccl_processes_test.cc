// Ranks as processes over the stand-in for libnccl, and what the others see when one goes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "cuda/nccl_communicator.h"
#include "tests/cuda/nccl_world.h"

namespace eplb::cuda {
namespace {

// The body runs in a child of fork(), connected, and returns whether all went as it should.
using Body = std::function<bool(int32_t rank, NcclCommunicator& communicator)>;

class NcclProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto id = MakeNcclId(testing::FakeNccl());
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }

  void Start(int32_t num_ranks, const Body& body) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        auto communicator = NcclCommunicator::Begin(testing::FakeNccl(), id_,
                                                    {.rank = rank, .num_ranks = num_ranks});
        _exit(communicator.ok() && testing::WaitUntilReady(**communicator).ok() &&
                      body(rank, **communicator)
                  ? 0
                  : 1);
      }
      children_.push_back(child);
    }
  }

  // Returns the status of waitpid for a rank; kills it if it does not end before the deadline.
  int EndOf(size_t rank) {
    const absl::Time deadline = absl::Now() + testing::kPatience;
    int result = 0;
    while (waitpid(children_[rank], &result, WNOHANG) == 0) {
      if (absl::Now() > deadline) kill(children_[rank], SIGKILL);
      absl::SleepFor(absl::Milliseconds(1));
    }
    return result;
  }

  NcclId id_;
  std::vector<pid_t> children_;
};

// A rank that lost a peer: the error comes in time, and the abort too.
bool SeesThatAPeerIsGone(int32_t rank, int32_t num_ranks, NcclCommunicator& communicator) {
  const absl::Status result = testing::GoRoundTheRing(communicator, rank, num_ranks, 100);
  const absl::Time begin = absl::Now();
  (void)communicator.Abort();
  if (!absl::IsUnavailable(result)) std::fprintf(stderr, "%s\n", result.ToString().c_str());
  return absl::IsUnavailable(result) && absl::Now() - begin < testing::kPrompt;
}

class NumProcessesTest : public NcclProcessesTest, public ::testing::WithParamInterface<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NumProcessesTest, ::testing::Values(2, 3, 4));

TEST_P(NumProcessesTest, RowsGoRoundARing) {
  Start(GetParam(), [](int32_t rank, NcclCommunicator& communicator) {
    return testing::GoRoundTheRing(communicator, rank, GetParam(), 10).ok();
  });
  for (size_t rank = 0; rank < children_.size(); ++rank) EXPECT_EQ(EndOf(rank), 0) << rank;
}

TEST_P(NumProcessesTest, KilledInAGroupItIsGoneForTheOthers) {
  setenv("EPLB_FAKE_NCCL_FAULTS", "rank=1,group=3,kind=die", 1);
  Start(GetParam(), [](int32_t rank, NcclCommunicator& communicator) {
    return SeesThatAPeerIsGone(rank, GetParam(), communicator);
  });
  unsetenv("EPLB_FAKE_NCCL_FAULTS");
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    const int end = EndOf(rank);
    if (rank == 1) {
      EXPECT_TRUE(WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL);
    } else {
      EXPECT_EQ(end, 0) << rank << " saw it, or one that had aborted for it";
    }
  }
}

TEST_F(NcclProcessesTest, FrozenPeerIsSeenByTheDeadlineOnlyAndTheAbortReturns) {
  Start(2, [](int32_t rank, NcclCommunicator& communicator) {
    testing::Bytes row(10);
    if (rank == 1) return raise(SIGSTOP) == 0;
    if (!communicator.SendReceive(std::nullopt, NcclReceive{1, row}, nullptr).ok()) return false;
    const absl::Status result = testing::WaitUntilReady(communicator, absl::Milliseconds(100));
    const absl::Time begin = absl::Now();
    (void)communicator.Abort();
    return absl::IsDeadlineExceeded(result) && absl::Now() - begin < testing::kPrompt;
  });
  EXPECT_EQ(EndOf(0), 0);
  EXPECT_EQ(kill(children_[1], SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(EndOf(1)));
}

TEST_F(NcclProcessesTest, EachRankKeepsItsOwnLog) {
  const std::string folder = ::testing::TempDir() + "/nccl_logs";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  setenv("EPLB_FAKE_NCCL_LOG", folder.c_str(), 1);
  Start(2, [](int32_t rank, NcclCommunicator& communicator) {
    return testing::GoRoundTheRing(communicator, rank, 2, 1).ok();
  });
  unsetenv("EPLB_FAKE_NCCL_LOG");
  for (const size_t rank : {0U, 1U}) {
    EXPECT_EQ(EndOf(rank), 0);
    std::ifstream file(absl::StrCat(folder, "/rank-", rank, ".log"));
    std::string line;
    std::getline(file, line);
    std::getline(file, line);
    EXPECT_EQ(line, absl::StrCat("rank=", rank, " group=0 plans=1 send=", 1 - rank,
                                 ":1 receive=", 1 - rank, ":1"));
  }
}

}  // namespace
}  // namespace eplb::cuda
