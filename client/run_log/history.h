// Logged events of the ranks, and the one check of the protocol's promises over them. Unit tests,
// simulation, end-to-end tests and `eplbctl doctor` use it. Values only; run_directory.h reads
// files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "placement/digest.h"
#include "placement/ids.h"
#include "placement/placement.h"

namespace eplb {

// One line of a rank's log.
struct HistoryRecord {
  enum class Kind {
    kStart,     // the run begins on this rank; version and digest are those it runs first
    kPrepared,  // this rank can switch to version and digest
    kVote,      // a vote on version and digest had a result: `passed`
    kCommit,    // this rank switched to version and digest
    kDrop,      // this rank gave version and digest up; a later commit needs a new kPrepared
    kStep,      // ran steps step..last_step under version and digest
    kStop,      // the run ended in order on this rank
  };

  Kind kind = Kind::kStep;
  RankId rank;
  std::string run_id;
  // kStart: the first step to run. kStep: the first step of the range. kVote, kCommit, kDrop: the
  // boundary, that is the last step that ran before it. kPrepared: likewise, as far as known; not
  // looked at. kStop: the last step that ran.
  int64_t step = 0;
  int64_t last_step = 0;  // kStep only, >= step
  int64_t version = 0;    // kStart, kStep: running; kPrepared, kVote, kCommit, kDrop: target
  Digest digest;          // digest of that version; not looked at in kStop
  bool passed = false;    // kVote only

  friend bool operator==(const HistoryRecord&, const HistoryRecord&) = default;
};

// A rank's records in log order, over any number of runs.
struct RankHistory {
  RankId rank;
  std::vector<HistoryRecord> records;
};

// One line of placements.jsonl: `placement` is current from `first_step` on.
struct PlacementRecord {
  int64_t first_step = 0;
  int64_t version = 0;
  Digest digest;
  Placement placement;
};

// Every broken promise that these logs show, each as one sentence that names rank, step and
// versions; empty when none is broken. I1, I2, I3, I5 are the numbers of the invariants in
// ARCHITECTURE.md. Checked, and told in this order:
// placements: all have the first one's shape, and each digest is DigestOf(placement) (I3); a
//   version not seen before is above all before it (I2);
// each rank: its records are its own, stand between start and stop and are of that run; an
//   run starts once; steps rise by one from the start to commits and stop, each run once
//   (I1); a range runs under the version and digest of the last start or commit; a commit has a
//   PREPARED of its version and digest before it, not dropped since, and its last vote did not fail
//   (I5); a commit's version is above every earlier one of the log, and a start goes back only to a
//   version that the log has, as a restart from a checkpoint does (I2); a commit's step is the
//   first step of a placement record of its version, where there are any; what ran has a placement
//   record;
// all ranks: a version has one digest in the job and is committed in one run only (I2); the
//   ranks of a run start alike; they commit a version at one step (I5); a step of an
//   run runs under one version and digest (I1).
// placements.jsonl begins anew with each run: what is told of a record that is missing or
// begins elsewhere holds for runs that no other one followed in any log.
// A record at fault is then taken as it stands, so that later ones are not blamed for it.
// cost: O(n log n) for n records.
std::vector<std::string> FindViolations(std::span<const RankHistory> ranks,
                                        std::span<const PlacementRecord> placements);

}  // namespace eplb
