// Jobs whose ranks are processes, and what must hold of every one of them whatever went wrong.
#pragma once

#include <string>
#include <vector>

#include "tests/client/fault_points/journal.h"
#include "tests/client/fault_points/rank_process.h"

namespace eplb {

enum class Ending {
  kFinished,  // every rank made all its commits
  kEnded,     // every rank that lives has got Aborted or DataLoss
  kTorn,      // neither: always wrong
};

struct JobOutcome {
  JobSpec spec;
  SharedWorldPtr world{nullptr, nullptr};
  std::vector<int> results;                       // statuses of waitpid, by rank
  bool timed_out = false;                         // and was killed by the test
  absl::Duration stopped = absl::ZeroDuration();  // time that the victim was stopped

  const Journal& journal(int32_t rank) const { return world->journals[static_cast<size_t>(rank)]; }
  bool struck() const { return journal(spec.fault.victim).struck; }
  bool was_killed(int32_t rank) const;
  Ending ending() const;
  // Chunks that all ranks dropped.
  int32_t num_dropped() const;
  // True if the ranks that live have switched at `step`.
  bool switched_at(int64_t step) const;
  // Returns the events of every rank, for a message.
  std::string Story() const;
};

// Runs a few at a time, since most of a fault is waiting. REQUIRES: this process has one thread.
std::vector<JobOutcome> RunJobs(const std::vector<JobSpec>& specs, size_t max_at_a_time = 4);

// Sentences about what is wrong, none when all is well:
//   no step was run under two placements; every byte of every step was that of its placement, and
//   no slot was written outside a commit; ranks that passed a boundary switched together or not at
//   all; every call returned within its deadlines; who ended names the victim; no rank hangs.
std::vector<std::string> Violations(const JobOutcome& outcome);

}  // namespace eplb
