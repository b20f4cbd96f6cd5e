// A job of kTestRanks ranks that a daemon asks to switch placements, and the logs of its ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/run_log/history.h"
#include "client/run_log/run_directory.h"
#include "placement/digest.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {

class SwitchTest : public FilesTest {
 protected:
  void LogTo(ClientOptions& options) const {
    options.history_path = Path(absl::StrCat("rank-", options.rank, ".jsonl"));
    options.placements_path = Path("placements.jsonl");
  }
  void RemoveLogs() const {
    for (const std::string& name : Names()) std::filesystem::remove(Path(name));
  }

  // Returns when every rank is PREPARED for the proposal. count: number of proposals so far.
  static void Propose(ScriptedDaemon& daemon, const wire::Propose& propose, int count = 1) {
    daemon.WaitForRanks(kTestRanks);
    daemon.SendAll(propose);
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      ASSERT_TRUE(daemon.WaitFor<wire::Prepared>(rank, count).has_value());
    }
  }

  // Steps first..last; the result of the last one.
  static absl::StatusOr<BoundaryResult> Steps(TestRank& rank, int64_t first, int64_t last) {
    absl::StatusOr<BoundaryResult> result;
    for (int64_t step = first; step <= last; ++step) {
      result = rank.Step(step);
      if (!result.ok()) return result;
      EXPECT_TRUE(step == last || !result->switched) << "at step " << step;
    }
    return result;
  }

  // Returns the violations that the validator finds in the logs of all ranks.
  std::vector<std::string> Violations() const {
    std::vector<RankHistory> ranks;
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      ranks.push_back(ReadHistoryFile(Path(absl::StrCat("rank-", rank, ".jsonl"))).value());
    }
    std::vector<PlacementRecord> placements;
    const std::vector<LoggedPlacement> log = ReadPlacementsLog(Path("placements.jsonl")).value();
    for (const LoggedPlacement& entry : log) {
      placements.push_back({entry.step, entry.version, entry.digest, entry.placement});
    }
    return FindViolations(ranks, placements);
  }

  ScriptedDaemon daemon_{{}};
  const Placement first_ = Placement::Static(SmallTopology());
  const Placement second_ = Swapped(Swapped(first_, 0, 0, 2), 2, 1, 3);
  const wire::Propose propose_ = ProposeTo(Running(0, first_), second_, 7, 1);
};

}  // namespace eplb
