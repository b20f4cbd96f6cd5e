#include "client/rows/paths/nccl_abort.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/nccl_library.h"
#include "tests/cuda/nccl_wait.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using Communicators = std::vector<std::unique_ptr<cuda::NcclCommunicator>>;

// Two connected ranks with these faults.
Communicators ConnectTwo(const char* faults) {
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  EXPECT_TRUE(library.ok()) << library.status();
  const auto id = cuda::MakeNcclId(**library);
  setenv("EPLB_FAKE_NCCL_FAULTS", faults, 1);
  Communicators ranks;
  for (int32_t rank = 0; rank < 2; ++rank) {
    auto begun = cuda::NcclCommunicator::Begin(**library, *id, {.rank = rank, .num_ranks = 2});
    EXPECT_TRUE(begun.ok()) << begun.status();
    ranks.push_back(*std::move(begun));
  }
  unsetenv("EPLB_FAKE_NCCL_FAULTS");
  for (const auto& rank : ranks) EXPECT_TRUE(cuda::testing::WaitUntilReady(*rank).ok());
  return ranks;
}

absl::Status Abort(Communicators& ranks, size_t rank, absl::Duration timeout) {
  return AbortWithin(std::move(ranks[rank]), std::nullopt, timeout);
}

TEST(NcclAbortTest, AnAbortThatEndsInTimeIsAllRight) {
  Communicators ranks = ConnectTwo("kind=slow_abort,ms=20");
  EXPECT_TRUE(Abort(ranks, 0, absl::Seconds(60)).ok());
}

// In a process of its own, which ends without waiting for it.
TEST(NcclAbortTest, AnAbortThatTakesLongerIsLeftToItself) {
  const auto abort = [] {
    Communicators ranks = ConnectTwo("rank=0,kind=slow_abort,ms=600000");
    return Abort(ranks, 0, absl::Milliseconds(10));
  };
  EXPECT_EXIT(
      {
        const bool is_left =
            abort() == absl::InternalError("ncclCommAbort has not returned in 10ms");
        std::_Exit(is_left ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(NcclAbortTest, AnAbortThatFailsMayHaveLeftWritesOnlyWhereAGroupWasBegun) {
  Communicators ranks = ConnectTwo("kind=abort_error,code=1");
  std::byte row[8] = {};
  ASSERT_TRUE(
      ranks[0]->SendReceive(cuda::NcclSend{.to = 1, .bytes = row}, std::nullopt, nullptr).ok());
  const absl::Status status = Abort(ranks, 0, absl::Seconds(60));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ncclCommAbort: unhandled cuda error (1)"));
  EXPECT_TRUE(Abort(ranks, 1, absl::Seconds(60)).ok());
}

// Memory that it would touch after that is freed.
TEST(NcclAbortTest, AProcessThatExitsWaitsForAnAbortThatIsLeftToItself) {
  const std::string folder = ::testing::TempDir() + "nccl_abort_test";
  std::filesystem::create_directories(folder);
  const std::string log = folder + "/rank-0.log";
  std::filesystem::remove(log);
  EXPECT_EXIT(
      {
        setenv("EPLB_FAKE_NCCL_LOG", folder.c_str(), 1);
        Communicators ranks;
        // Once more where the abort was faster than this thread.
        do {
          std::filesystem::remove(log);
          ranks = ConnectTwo("rank=0,kind=slow_abort,ms=50");
        } while (Abort(ranks, 0, absl::ZeroDuration()).ok());
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  std::ifstream file(log);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("rank=0 aborted\n"));
}

}  // namespace
}  // namespace eplb
