#include "tests/client/fault_points/process_job.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace eplb {
namespace {

constexpr absl::Duration kJobTimeout = absl::Seconds(100);

// Beyond the deadlines: the names' way through the tree, and a machine that is busy.
absl::Duration Margin() {
  const char* patience = std::getenv("EPLB_TEST_PATIENCE");
  return absl::Seconds(4) * (patience != nullptr ? std::max(1.0, std::atof(patience)) : 1.0);
}

class RunningJob {
 public:
  explicit RunningJob(const JobSpec& spec) : deadline_(absl::Now() + kJobTimeout) {
    outcome_.spec = spec;
    outcome_.world = MakeSharedWorld();
    outcome_.results.assign(static_cast<size_t>(spec.world_size), -1);
    for (int32_t rank = 0; rank < spec.world_size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        RunRank(outcome_.spec, rank, *outcome_.world);
        _exit(0);
      }
      children_.push_back(child);
    }
  }

  // True when all ranks are over.
  bool Look() {
    const absl::Time now = absl::Now();
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank] < 0) continue;
      int result = 0;
      if (waitpid(children_[rank], &result, WNOHANG | WUNTRACED) == children_[rank]) {
        if (WIFSTOPPED(result)) {
          stopped_at_.emplace(rank, now);
        } else {
          outcome_.results[rank] = result;
          children_[rank] = -1;
          continue;
        }
      }
      const auto stopped = stopped_at_.find(rank);
      if (stopped != stopped_at_.end() && GoesOn(rank, now - stopped->second)) {
        kill(children_[rank], SIGCONT);
        outcome_.stopped += now - stopped->second;
        stopped_at_.erase(stopped);
      }
      if (now < deadline_) continue;
      outcome_.timed_out = true;
      kill(children_[rank], SIGKILL);
    }
    return std::ranges::all_of(children_, [](pid_t child) { return child < 0; });
  }

  JobOutcome Take() { return std::move(outcome_); }

 private:
  // True if the victim, which has been stopped for `time`, continues now.
  bool GoesOn(size_t victim, absl::Duration time) const {
    const Fault& fault = outcome_.spec.fault;
    if (fault.resume == Resume::kAfterLasts) return time >= fault.lasts;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const Journal& journal = outcome_.world->journals[rank];
      const bool is_over = fault.resume == Resume::kWhenPeersEnded
                               ? journal.ended.load()
                               : journal.posts_over >= fault.post_id;
      if (rank != victim && children_[rank] >= 0 && !is_over) return false;
    }
    return true;
  }

  JobOutcome outcome_;
  absl::Time deadline_;
  std::vector<pid_t> children_;  // -1: over
  std::map<size_t, absl::Time> stopped_at_;
};

bool IsEnd(int32_t code) {
  return code == static_cast<int32_t>(absl::StatusCode::kAborted) ||
         code == static_cast<int32_t>(absl::StatusCode::kDataLoss);
}

// The boundaries of a rank, without the client's end.
std::span<const CallRecord> Boundaries(const JobOutcome& outcome, int32_t rank) {
  const Journal& journal = outcome.journal(rank);
  const auto all = std::span(journal.calls).first(static_cast<size_t>(journal.num_calls.load()));
  const bool closed = !all.empty() && all.back().step == outcome.spec.max_steps;
  return closed ? all.first(all.size() - 1) : all;
}

void CheckProcess(const JobOutcome& outcome, int32_t rank, std::vector<std::string>& wrong) {
  const Journal& journal = outcome.journal(rank);
  const int result = outcome.results[static_cast<size_t>(rank)];
  if (journal.failure.front() != '\0') {
    wrong.push_back(absl::StrCat("rank ", rank, " did not start: ", journal.failure.data()));
  } else if (outcome.timed_out) {
    wrong.push_back(absl::StrCat("rank ", rank, journal.finished ? " had finished" : " hung"));
  } else if (!outcome.was_killed(rank) && (!journal.finished || result != 0)) {
    const bool wrote = WIFSIGNALED(result) && WTERMSIG(result) == SIGSEGV;
    wrong.push_back(absl::StrCat("rank ", rank, " died, waitpid says ", result,
                                 wrote ? ": a slot was written outside a commit?" : ""));
  }
}

void CheckCalls(const JobOutcome& outcome, int32_t rank, std::vector<std::string>& wrong) {
  const JobSpec& spec = outcome.spec;
  const absl::Duration vote = spec.fault.vote_deadline > absl::ZeroDuration()
                                  ? spec.fault.vote_deadline
                                  : spec.vote_deadline;
  absl::Duration limit = 2 * vote + spec.transfer_deadline + Margin();
  if (rank == spec.fault.victim) limit += outcome.stopped + spec.fault.lasts;
  const Journal& journal = outcome.journal(rank);
  for (const CallRecord& call :
       std::span(journal.calls).first(static_cast<size_t>(journal.num_calls.load()))) {
    if (absl::Seconds(call.seconds) > limit) {
      wrong.push_back(absl::StrCat("rank ", rank, ": the call after step ", call.step, " took ",
                                   call.seconds, " s"));
    }
    if (call.code != 0 && !IsEnd(call.code)) {
      wrong.push_back(absl::StrCat("rank ", rank, ": the end has code ", call.code));
    }
    const std::string victim = absl::StrCat(spec.fault.victim);
    if (IsEnd(call.code) && rank != spec.fault.victim &&
        !absl::StrContains(call.text.data(), absl::StrCat("rank ", victim)) &&
        !absl::StrContains(call.text.data(), absl::StrCat(victim, " are missing"))) {
      wrong.push_back(absl::StrCat("rank ", rank, " does not name rank ", victim));
    }
  }
}

void CheckSteps(const JobOutcome& outcome, std::vector<std::string>& wrong) {
  struct Ran {
    int64_t version = 0;
    std::string digest;
    int32_t rank = 0;
  };
  std::map<int64_t, Ran> steps;
  std::map<int64_t, std::pair<bool, int32_t>> boundaries;  // switched, and who
  for (int32_t rank = 0; rank < outcome.spec.world_size; ++rank) {
    const Journal& journal = outcome.journal(rank);
    for (const StepRecord& step :
         std::span(journal.steps).first(static_cast<size_t>(journal.num_steps.load()))) {
      if (step.wrong_bytes != 0) {
        wrong.push_back(absl::StrCat("rank ", rank, " began step ", step.step, " with ",
                                     step.wrong_bytes, " wrong bytes"));
      }
      const Ran mine{.version = step.version, .digest = step.digest.data(), .rank = rank};
      const Ran& first = steps.try_emplace(step.step, mine).first->second;
      if (mine.version != first.version || mine.digest != first.digest) {
        wrong.push_back(absl::StrCat("step ", step.step, " ran under version ", mine.version,
                                     " on rank ", rank, " and ", first.version, " on rank ",
                                     first.rank));
      }
    }
    for (const CallRecord& call : Boundaries(outcome, rank)) {
      if (call.code != 0) continue;
      const auto [first, is_new] = boundaries.try_emplace(call.step, call.switched, rank);
      if (first->second.first != call.switched) {
        wrong.push_back(absl::StrCat("after step ", call.step, " ranks ", rank, " and ",
                                     first->second.second, " did not do the same"));
      }
    }
  }
}

}  // namespace

bool JobOutcome::was_killed(int32_t rank) const {
  const int result = results[static_cast<size_t>(rank)];
  return rank == spec.fault.victim && WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL;
}

Ending JobOutcome::ending() const {
  int32_t finished = 0;
  int32_t ended = 0;
  int32_t alive = 0;
  for (int32_t rank = 0; rank < spec.world_size; ++rank) {
    if (was_killed(rank)) continue;
    ++alive;
    const std::span<const CallRecord> calls = Boundaries(*this, rank);
    const auto commits = std::ranges::count_if(calls, &CallRecord::switched);
    if (!calls.empty() && IsEnd(calls.back().code)) {
      ++ended;
    } else if (commits == spec.num_commits) {
      ++finished;
    }
  }
  if (timed_out) return Ending::kTorn;
  if (finished == alive && alive == spec.world_size) return Ending::kFinished;
  return ended == alive ? Ending::kEnded : Ending::kTorn;
}

int32_t JobOutcome::num_dropped() const {
  const std::span<const CallRecord> calls = Boundaries(*this, 0);
  return static_cast<int32_t>(std::ranges::count_if(calls, [](const CallRecord& call) {
    return call.code == 0 && !call.switched && call.text.front() != '\0';
  }));
}

bool JobOutcome::switched_at(int64_t step) const {
  for (int32_t rank = 0; rank < spec.world_size; ++rank) {
    if (was_killed(rank)) continue;
    const std::span<const CallRecord> calls = Boundaries(*this, rank);
    if (std::ranges::none_of(
            calls, [step](const CallRecord& call) { return call.step == step && call.switched; })) {
      return false;
    }
  }
  return true;
}

std::string JobOutcome::Story() const {
  std::string story = spec.Name();
  for (int32_t rank = 0; rank < spec.world_size; ++rank) {
    absl::StrAppend(&story, "\n  rank ", rank, was_killed(rank) ? " (killed)" : "", ":");
    for (const CallRecord& call : Boundaries(*this, rank)) {
      absl::StrAppend(&story,
                      call.switched    ? " switched"
                      : call.code != 0 ? " ended"
                                       : " went on",
                      call.text.front() != '\0' ? absl::StrCat("(", call.text.data(), ")") : "");
    }
  }
  return story;
}

std::vector<JobOutcome> RunJobs(const std::vector<JobSpec>& specs, size_t max_at_a_time) {
  std::vector<JobOutcome> outcomes(specs.size());
  std::vector<std::pair<size_t, RunningJob>> running;
  for (size_t next = 0; next < specs.size() || !running.empty();) {
    while (next < specs.size() && running.size() < max_at_a_time) {
      running.emplace_back(next, specs[next]);
      ++next;
    }
    absl::SleepFor(absl::Milliseconds(2));
    for (size_t i = 0; i < running.size();) {
      if (!running[i].second.Look()) {
        ++i;
        continue;
      }
      outcomes[running[i].first] = running[i].second.Take();
      running.erase(running.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return outcomes;
}

std::vector<std::string> Violations(const JobOutcome& outcome) {
  std::vector<std::string> wrong;
  for (int32_t rank = 0; rank < outcome.spec.world_size; ++rank) {
    CheckProcess(outcome, rank, wrong);
    CheckCalls(outcome, rank, wrong);
  }
  CheckSteps(outcome, wrong);
  if (outcome.ending() == Ending::kTorn) wrong.emplace_back("the ranks did not end alike");
  return wrong;
}

}  // namespace eplb
