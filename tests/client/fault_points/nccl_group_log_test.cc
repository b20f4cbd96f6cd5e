// The rule of groups in whole migrations, as NCCL was asked: a group of many sends or receives is
// cut in two at places that differ between ranks, which then wait for each other in a circle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tests/client/fault_points/process_job.h"

namespace eplb {
namespace {

using ::testing::IsEmpty;

// (from, to) -> the sizes in their order.
using Sizes = std::map<std::pair<int32_t, int32_t>, std::vector<std::string>>;

// Reads "rank=0 group=3 plans=1 send=1:4096 receive=2:4096"; the two of a group are `rank`'s.
void ReadGroup(const std::string& line, int32_t rank, Sizes& sent, Sizes& received) {
  int32_t sends = 0;
  int32_t receives = 0;
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    const std::pair<std::string, std::string> field = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (field.first == "plans") {
      EXPECT_EQ(field.second, "1") << line;
    }
    if (field.first != "send" && field.first != "receive") continue;
    const std::pair<std::string, std::string> piece = absl::StrSplit(field.second, ':');
    int32_t peer = -1;
    EXPECT_TRUE(absl::SimpleAtoi(piece.first, &peer)) << line;
    if (field.first == "send") {
      sent[{rank, peer}].push_back(piece.second);
      ++sends;
    } else {
      received[{peer, rank}].push_back(piece.second);
      ++receives;
    }
  }
  EXPECT_LE(sends, 1) << line;
  EXPECT_LE(receives, 1) << line;
}

TEST(NcclGroupLogTest, GroupsHaveOneSendAndOneReceiveAndBothEndsHaveThemInOneOrder) {
  for (const int32_t world_size : {2, 3, 8}) {
    SCOPED_TRACE(world_size);
    const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                         absl::StrCat("nccl-groups-", getpid(), "-", world_size);
    std::filesystem::create_directories(folder);
    const std::vector<JobOutcome> outcomes =
        RunJobs({{.world_size = world_size, .rows = Rows::kNccl, .nccl_log = folder.string()}});
    EXPECT_THAT(Violations(outcomes.front()), IsEmpty()) << outcomes.front().Story();
    Sizes sent;
    Sizes received;
    int32_t num_groups = 0;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      std::ifstream log(folder / absl::StrCat("rank-", rank, ".log"));
      for (std::string line; std::getline(log, line);) {
        EXPECT_FALSE(absl::StrContains(line, "refused")) << line;
        num_groups += absl::StrContains(line, " group=") ? 1 : 0;
        ReadGroup(line, rank, sent, received);
      }
    }
    // Groups of each rank: its pairs once, then in each of 3 migrations 4 experts, in pieces of 2
    // KiB.
    EXPECT_GE(num_groups, world_size * (world_size - 1 + 3 * 4 * 2));
    EXPECT_EQ(sent, received);
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace eplb
