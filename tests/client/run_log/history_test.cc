#include "client/run_log/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/history_job.h"

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = HistoryRecord::Kind;

TEST(FindViolationsTest, GoodHistoryHasNone) { EXPECT_THAT(GoodJob().Violations(), IsEmpty()); }

TEST(FindViolationsTest, EmptyHistoryHasNone) { EXPECT_THAT(FindViolations({}, {}), IsEmpty()); }

TEST(FindViolationsTest, RanksMayEndAtDifferentSteps) {
  Job job = GoodJob();
  job.Log(1)[kStepA2].last_step = 18;
  EXPECT_THAT(job.Violations(), IsEmpty());
}

TEST(FindViolationsTest, StepsMayBeToldInAnyPieces) {
  Job job = GoodJob();
  job.Log(0)[kStepA1].last_step = 4;
  job.Log(0).insert(job.Log(0).begin() + kPreparedA, job.Log(0)[kStepA1]);
  job.Log(0)[kPreparedA].step = 5;
  job.Log(0)[kPreparedA].last_step = 15;
  EXPECT_THAT(job.Violations(), IsEmpty());
}

TEST(FindViolationsTest, DroppedVersionMayBeReadyAgain) {
  Job job = GoodJob();
  for (size_t rank = 0; rank < 2; ++rank) {
    HistoryRecord failed = job.Log(rank)[kVoteA];
    failed.passed = false;
    HistoryRecord drop = failed;
    drop.kind = Kind::kDrop;
    const HistoryRecord ready = job.Log(rank)[kPreparedA];
    job.Log(rank).insert(job.Log(rank).begin() + kVoteA, {failed, drop, ready});
  }
  EXPECT_THAT(job.Violations(), IsEmpty());
}

TEST(FindViolationsTest, UndoMayBringADigestBackUnderANewVersion) {
  Job job = GoodJob();
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const size_t at : {kPreparedB, kVoteB, kCommitB, kStepB2, kStopB}) {
      job.Log(rank)[at].digest = DigestOfVersion(2);
    }
  }
  job.placements[3].placement = PlacementOf(2);
  job.placements[3].digest = DigestOfVersion(2);
  EXPECT_THAT(job.Violations(), IsEmpty());
}

TEST(FindViolationsTest, PlacementsOfEarlierRunsMayBeGone) {
  Job job = GoodJob();
  job.placements.erase(job.placements.begin(), job.placements.begin() + 2);
  EXPECT_THAT(job.Violations(), IsEmpty());
}

// I1: one digest per step of a run, every step once.

TEST(FindViolationsTest, I1StepUnderTwoDigests) {
  Job job = GoodJob();  // rank 1 misses the switch and goes on
  job.Log(1)[kStepA2] = Range("a", 16, 20, 1);
  job.Log(1)[kStepA2].rank = RankId{1};
  job.Log(1).erase(job.Log(1).begin() + kVoteA, job.Log(1).begin() + kStepA2);
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("run a ran steps 16..20 under ", Name(2),
                                       " on rank 0 and under ", Name(1), " on rank 1")));
}

TEST(FindViolationsTest, I1StepSkipped) {
  Job job = GoodJob();
  job.Log(1)[kStepA2].step = 18;
  EXPECT_THAT(job.Violations(), ElementsAre(absl::StrCat("rank 1 ran steps 18..20 under ", Name(2),
                                                         " in run a, where step 16 was next")));
}

TEST(FindViolationsTest, I1StepRunTwice) {
  Job job = GoodJob();
  job.Log(0)[kStepB2].step = 25;
  HistoryRecord again = job.Log(0)[kStepB2];
  again.step = again.last_step = 24;
  job.Log(0).insert(job.Log(0).begin() + kStepB2, {again, again});
  EXPECT_THAT(job.Violations(), ElementsAre(absl::StrCat("rank 0 ran step 24 under ", Name(5),
                                                         " in run b, where step 25 was next")));
}

TEST(FindViolationsTest, I1StopBeforeTheLastStepWasLogged) {
  Job job = GoodJob();
  job.Log(0)[kStopB].step = 40;
  EXPECT_THAT(job.Violations(),
              ElementsAre("rank 0 stopped after step 40 in run b, where step 32 was next"));
}

TEST(FindViolationsTest, I1RangeThatIsNone) {
  Job job = GoodJob();
  job.Log(0)[kStepB2].last_step = 20;
  job.Log(0).pop_back();
  EXPECT_THAT(job.Violations(), ElementsAre(absl::StrCat("rank 0 ran steps 24..20 under ", Name(5),
                                                         ", which is no range of steps")));
}

TEST(FindViolationsTest, SwitchWithoutACommit) {
  Job job = GoodJob();  // on both ranks, so that they agree with each other
  for (size_t rank = 0; rank < 2; ++rank) {
    job.Log(rank).erase(job.Log(rank).begin() + kCommitA);
  }
  const std::string rest =
      absl::StrCat(" ran steps 16..20 under ", Name(2), " while ", Name(1), " was current");
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 0", rest), absl::StrCat("rank 1", rest)));
}

// I2: versions never repeat or go back.

TEST(FindViolationsTest, I2CommitGoesBack) {
  Job job = GoodJob();  // the second run numbers from its checkpoint and reuses what was lost
  for (size_t rank = 0; rank < 2; ++rank) {
    job.Log(rank)[kStartA].version = job.Log(rank)[kStepA1].version = 7;
    job.Log(rank)[kPreparedA].version = job.Log(rank)[kVoteA].version = 8;
    job.Log(rank)[kCommitA].version = job.Log(rank)[kStepA2].version = 8;
    job.Log(rank)[kStartB].version = job.Log(rank)[kStepB1].version = 7;
  }
  job.placements[0].version = job.placements[2].version = 7;
  job.placements[1].version = 8;
  const std::string rest =
      absl::StrCat(" committed ", Name(5), " after step 23, not above version 8 before it");
  EXPECT_THAT(job.Violations(),
              ElementsAre("placement record 3 (version 5 from step 24) is new, but below version 8 "
                          "before it",
                          absl::StrCat("rank 0", rest), absl::StrCat("rank 1", rest)));
}

TEST(FindViolationsTest, I2StartGoesBackToAVersionThatNeverWas) {
  Job job = GoodJob();
  for (size_t rank = 0; rank < 2; ++rank) {
    job.Log(rank)[kStartB].version = job.Log(rank)[kStepB1].version = 0;
  }
  const std::string rest =
      " starts run b at step 8 under version 0, which it never had, below version 2";
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 0", rest), absl::StrCat("rank 1", rest)));
}

// A run in another shape: its static layout is no version 0 of the shape before, but a new one.
TEST(FindViolationsTest, I2StartOfANewLayoutNeedsANumberAboveAll) {
  Job job = GoodJob();
  job.placements.clear();
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const size_t at : {kStartB, kStepB1}) {
      job.Log(rank)[at].version = 4;
      job.Log(rank)[at].digest = DigestOfVersion(4);
    }
  }
  const auto of_versions = [&job] {
    std::vector<std::string> found;
    for (std::string& one : job.Violations()) {
      if (one.find("no placement record") == std::string::npos) found.push_back(std::move(one));
    }
    return found;
  };
  EXPECT_THAT(of_versions(), IsEmpty());
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const size_t at : {kStartB, kStepB1}) job.Log(rank)[at].version = 1;
  }
  EXPECT_THAT(of_versions(), Contains(HasSubstr(absl::StrCat("version 1 has digest ", Short(1)))));
}

TEST(FindViolationsTest, I2VersionCommittedInTwoRuns) {
  Job job = GoodJob();  // rank 1 is a new machine in the second run, its old log is gone
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const size_t at : {kPreparedB, kVoteB, kCommitB, kStepB2, kStopB}) {
      job.Log(rank)[at].version = 2;
      job.Log(rank)[at].digest = DigestOfVersion(2);
    }
  }
  job.placements[3] = {24, 2, DigestOfVersion(2), PlacementOf(2)};
  job.Log(1).erase(job.Log(1).begin(), job.Log(1).begin() + kStartB);
  job.Log(0).resize(kStartB);
  EXPECT_THAT(job.Violations(),
              ElementsAre("version 2 was committed in run a after step 15 by rank 0 and again "
                          "in run b after step 23 by rank 1"));
}

TEST(FindViolationsTest, I2VersionWithTwoDigests) {
  Job job = GoodJob();
  job.Log(1)[kPreparedB].digest = DigestOfVersion(4);
  job.Log(1).resize(kVoteB);  // it fell before the vote
  EXPECT_THAT(job.Violations(), ElementsAre(absl::StrCat("version 5 has digest ", Short(5),
                                                         " in placement record 3 and digest ",
                                                         Short(4), " on rank 1")));
}

// I3: placements are what they claim to be, and of one shape.

TEST(FindViolationsTest, I3DigestOfAnotherPlacement) {
  Job job = GoodJob();
  job.placements[3].placement = PlacementOf(4);
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("placement record 3 (version 5 from step 24) has digest ",
                                       Short(5), ", but its placement has ", Short(4))));
}

TEST(FindViolationsTest, I3ShapeChanges) {
  Job job = GoodJob();
  const Placement other = Placement::Static(
      *Topology::Make({.num_layers = 1, .num_experts = 6, .num_slots = 8, .num_gpus = 2}));
  job.placements.push_back({40, 9, DigestOf(other), other});
  EXPECT_THAT(
      job.Violations(),
      ElementsAre("placement record 4 (version 9 from step 40) has another shape: the first "
                  "placement has 6 slots, the recorded placement has 8"));
}

TEST(FindViolationsTest, I3WhatRanHasNoRecord) {
  Job job = GoodJob();
  job.placements.pop_back();
  const std::string first =
      absl::StrCat(" ran steps 24..31 under ", Name(5), ", which has no placement record");
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 0", first), absl::StrCat("rank 1", first)));
}

TEST(FindViolationsTest, I3RecordBeginsAtAnotherStep) {
  Job job = GoodJob();
  job.placements[3].first_step = 25;
  const std::string rest = absl::StrCat(
      " committed ", Name(5), " after step 23, but its placement record begins at step 25");
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 0", rest), absl::StrCat("rank 1", rest)));
}

// I5: a commit has a PREPARED before it, and all ranks commit at one step.

TEST(FindViolationsTest, I5CommitWithoutReady) {
  Job job = GoodJob();
  job.Log(1).erase(job.Log(1).begin() + kPreparedA);
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 1 committed ", Name(2),
                                       " after step 15 without PREPARED for it before")));
}

TEST(FindViolationsTest, I5CommitAfterADrop) {
  Job job = GoodJob();
  HistoryRecord drop = job.Log(1)[kVoteA];
  drop.kind = Kind::kDrop;
  job.Log(1).insert(job.Log(1).begin() + kCommitA, drop);
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 1 committed ", Name(2),
                                       " after step 15 without PREPARED for it before")));
}

TEST(FindViolationsTest, I5ReadyOfAnEarlierRunDoesNotCount) {
  Job job = GoodJob();
  HistoryRecord ready = job.Log(0)[kPreparedB];
  job.Log(0).erase(job.Log(0).begin() + kPreparedB);
  ready.run_id = "a";
  job.Log(0).insert(job.Log(0).begin() + kStartB, ready);
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("rank 0 committed ", Name(5),
                                       " after step 23 without PREPARED for it before")));
}

TEST(FindViolationsTest, I5ReadyForAnotherDigest) {
  Job job = GoodJob();
  job.Log(1)[kPreparedA].digest = DigestOfVersion(4);
  EXPECT_THAT(
      job.Violations(),
      ElementsAre(absl::StrCat("rank 1 committed ", Name(2),
                               " after step 15, but was PREPARED for digest ", Short(4)),
                  absl::StrCat("version 2 has digest ", Short(2),
                               " in placement record 1 and digest ", Short(4), " on rank 1")));
}

TEST(FindViolationsTest, I5CommitAgainstTheVote) {
  Job job = GoodJob();
  job.Log(0)[kVoteA].passed = false;
  EXPECT_THAT(job.Violations(), ElementsAre(absl::StrCat("rank 0 committed ", Name(2),
                                                         " after step 15 although the vote on it "
                                                         "failed")));
}

TEST(FindViolationsTest, I5RanksCommitAtDifferentSteps) {
  Job job = GoodJob();  // rank 1 is late by a step, and so runs step 24 under the old digest
  job.Log(1)[kStepB1].last_step = 24;
  job.Log(1)[kCommitB].step = 24;
  job.Log(1)[kStepB2].step = 25;
  EXPECT_THAT(
      job.Violations(),
      ElementsAre(absl::StrCat("rank 1 committed ", Name(5),
                               " after step 24, but its placement record begins at step 24"),
                  absl::StrCat("run b ran step 24 under ", Name(5), " on rank 0 and under ",
                               Name(1), " on rank 1"),
                  "version 5 of run b was committed after step 23 by rank 0, but after "
                  "step 24 by rank 1"));
}

// The frame of a log.

TEST(FindViolationsTest, RanksStartApart) {
  Job job = GoodJob();
  job.Log(1)[kStartB].step = 9;
  job.Log(1)[kStepB1].step = 9;
  EXPECT_THAT(job.Violations(),
              ElementsAre(absl::StrCat("run b starts at step 8 under ", Name(1),
                                       " on rank 0, but at step 9 under ", Name(1), " on rank 1")));
}

TEST(FindViolationsTest, RunStartsTwice) {
  Job job = GoodJob();
  for (HistoryRecord& record : job.Log(1)) record.run_id = "a";
  job.ranks.erase(job.ranks.begin());
  EXPECT_THAT(job.Violations().front(), "rank 1 starts run a twice, again at step 8");
}

TEST(FindViolationsTest, RecordAfterTheStop) {
  Job job = GoodJob();
  HistoryRecord late = Range("b", 32, 33, 5);
  job.Log(0).push_back(late);
  EXPECT_THAT(job.Violations(), ElementsAre("rank 0 has a record of run b at step 32 "
                                            "(record 13), but none is running"));
}

TEST(FindViolationsTest, RecordOfAnotherRun) {
  Job job = GoodJob();
  job.Log(0)[kPreparedA].run_id = "z";
  EXPECT_THAT(job.Violations().front(),
              "rank 0 has a record of run z at step 12 (record 2), but run a is "
              "running");
}

TEST(FindViolationsTest, RecordOfAnotherRank) {
  Job job = GoodJob();
  job.Log(0)[kPreparedA].rank = RankId{1};
  job.Log(0)[kPreparedA].kind = Kind::kDrop;
  job.Log(0).resize(kStepA1 + 2);
  EXPECT_THAT(job.Violations(), ElementsAre("rank 0 has a record of rank 1 in its log (record 2)"));
}

TEST(FindViolationsTest, RankWithTwoLogs) {
  Job job = GoodJob();
  job.ranks.push_back(job.ranks[1]);
  EXPECT_THAT(job.Violations(), ElementsAre("rank 1 has two logs"));
}

}  // namespace
}  // namespace eplb
