#include "client/cli/health_checks.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/run_log/history.h"
#include "client/run_log/run_directory.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

using Result = Check::Result;

constexpr double kLeastCoverage = 0.95;
constexpr double kRefusalMatters = 600;  // seconds

Verdict CheckState(const v1::JobStatus& job) {
  std::string detail =
      absl::StrCat(wire::EnumText(job.state()), " for ", Seconds(job.state_seconds()));
  if (!job.waiting_for().empty()) absl::StrAppend(&detail, ", waits for ", job.waiting_for());
  if (job.state() == v1::JOB_STATE_QUARANTINE) {
    absl::StrAppend(&detail, "; eplbctl resume ends it");
    return Failed(detail);
  }
  if (job.ending() == v1::RUN_ENDING_LOST) return Passed(detail);  // CheckRun has the advice
  // The job was restored from the store, and no rank has come back.
  if (const std::string advice = StuckAdvice(job); !advice.empty()) {
    return Failed(advice, "it is ", detail);
  }
  // The daemon reports when one of its configured deadlines is long past.
  if (job.stuck_seconds() > 0) {
    absl::StrAppend(&detail, "; that is more than three times its deadline");
    return Warning(detail);
  }
  return IsAbsent(job) ? Warning(detail) : Passed(detail);
}

template <class Predicate>
std::string RanksWhere(const v1::JobStatus& job, Predicate predicate) {
  std::vector<uint32_t> ranks;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (predicate(rank)) ranks.push_back(rank.rank());
  }
  return NameRanks(ranks, static_cast<size_t>(job.ranks_size()));
}

// True if the daemon stepped down and another one balances the run.
bool MovedAway(const v1::JobStatus& job) {
  return job.ending() == v1::RUN_ENDING_LOST && job.led_elsewhere();
}

// A run that failed or was lost is a finding, however recent.
Verdict CheckRun(const v1::JobStatus& job) {
  const std::string name = absl::StrCat("run ", job.run_id());
  if (MovedAway(job)) return Passed(name, " is not led here: ", job.end_reason());
  if (job.ending() == v1::RUN_ENDING_LOST) {
    return Failed(name, " was lost: ", job.end_reason(),
                  "; start it again, or end it with eplbctl forget");
  }
  if (job.ending() != v1::RUN_ENDING_UNSPECIFIED) {
    const bool failed = job.ending() == v1::RUN_ENDING_FAILED;
    return Verdict{failed ? Result::kFailed : Result::kOk,
                   absl::StrCat(name, " ", wire::EnumText(job.ending()), ": ", job.end_reason())};
  }
  if (!job.took_over().empty()) {
    return Warning(name, " took over from ", job.took_over(),
                   ", whose ranks were still connected: a restart, or two jobs of one name");
  }
  return Passed(job.run_id().empty() ? "none has registered yet" : absl::StrCat(name, " lives"));
}

// "lost: rank 2; failed: ranks 0, 1", of a run that has ended.
std::string EndsOfRanks(const v1::JobStatus& job) {
  std::string text;
  for (const v1::RankState state : {v1::RANK_STATE_LOST, v1::RANK_STATE_FAILED, v1::RANK_STATE_AWAY,
                                    v1::RANK_STATE_EXPECTED, v1::RANK_STATE_CONNECTED}) {
    const std::string ranks =
        RanksWhere(job, [state](const auto& rank) { return rank.state() == state; });
    if (ranks.empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", wire::EnumText(state), ": ", ranks);
  }
  return text;
}

Verdict CheckRanks(const v1::JobStatus& job) {
  if (job.ending() == v1::RUN_ENDING_FINISHED) {
    return Passed("none is connected: the job has finished");
  }
  if (HasEnded(job)) {
    const std::string ends = EndsOfRanks(job);
    return Passed(ends.empty() ? "none is expected: the run has ended" : ends);
  }
  if (!job.engine().empty() && job.connected_ranks() == 1) {
    return Passed(job.engine(), " asks for ", job.shape().num_gpus(), " GPUs, at question ",
                  job.step());
  }
  const std::string away = RanksWhere(job, [](const auto& rank) { return !rank.connected(); });
  std::string detail =
      absl::StrCat(job.connected_ranks(), " of ", job.world_size(), " ranks are connected");
  if (!away.empty()) absl::StrAppend(&detail, "; away: ", away);
  const bool whole = job.world_size() > 0 && job.connected_ranks() == job.world_size();
  return Verdict{whole ? Result::kOk : Result::kWarning, detail};
}

Verdict CheckAgreement(const v1::JobStatus& job) {
  if (job.connected_ranks() == 0 && HasEnded(job)) {
    return Passed("the run ended in version ", job.version());
  }
  if (job.connected_ranks() == 0) return Warning("not checked: no rank is connected");
  const std::string others = RanksWhere(job, [&job](const auto& rank) {
    return rank.connected() && rank.running_version() != job.version();
  });
  if (others.empty()) return Passed("every connected rank runs version ", job.version());
  // A switch reaches the daemon rank by rank.
  const bool switching = job.state() == v1::JOB_STATE_VOTING ||
                         job.state() == v1::JOB_STATE_CANCELLING ||
                         job.state() == v1::JOB_STATE_RECOVERING;
  return Verdict{
      switching ? Result::kWarning : Result::kFailed,
      absl::StrCat("version ", job.version(), " is current, ", others, " run another one")};
}

Verdict CheckActivePlacement(const v1::JobStatus& job,
                             const absl::StatusOr<wire::PlacementBody>& placement) {
  if (absl::IsNotFound(placement.status())) {
    return Warning(std::string(placement.status().message()));
  }
  if (!placement.ok()) return Failed(std::string(placement.status().message()));
  const Digest digest = DigestOf(placement->placement);
  const std::string told(digest.bytes.begin(), digest.bytes.end());
  // The daemon was asked twice, and a switch may have happened in between.
  const bool same_version = static_cast<int64_t>(job.version()) == placement->version;
  if (same_version && told != job.digest()) {
    return Failed("the maps of version ", job.version(), " have the digest ", digest.Hex(),
                  ", which is not the digest of that version");
  }
  return Passed("version ", placement->version, " is valid, its digest ",
                digest.Hex().substr(0, 12), " is that of its maps");
}

Verdict CheckReports(const v1::JobStatus& job) {
  if (!job.has_coverage()) return Warning("no load window is complete yet");
  std::string detail =
      absl::StrFormat("%.1f %% of the reporters sent steps %d..%d", 100 * job.coverage(),
                      job.last_window_first_step(), job.last_window_last_step());
  const std::string dropped =
      RanksWhere(job, [](const auto& rank) { return rank.dropped_steps() > 0; });
  if (!dropped.empty())
    absl::StrAppend(&detail, "; counts of some steps were dropped by ", dropped);
  const bool whole = job.coverage() >= kLeastCoverage && dropped.empty();
  return Verdict{whole ? Result::kOk : Result::kWarning, detail};
}

// Checks that all reporting ranks count tokens in all layers: without them no figure exists.
Verdict CheckTokens(const v1::JobStatus& job) {
  if (!job.not_counting_reason().empty()) return Failed(NotCountingText(job));
  if (!job.not_measured_reason().empty()) {
    return Warning("no balancedness: ", job.not_measured_reason());
  }
  return Passed("every reporting rank counts them in every layer");
}

Verdict CheckLibraries(const v1::JobStatus& job) {
  std::set<std::string> versions;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.library_version().empty()) versions.insert(rank.library_version());
  }
  return Verdict{versions.size() == 1 ? Result::kOk : Result::kWarning,
                 versions.empty() ? "no rank has reported its version"
                                  : absl::StrCat("libeplb ", absl::StrJoin(versions, ", "))};
}

// Checks that windows follow steps, decisions follow windows and switches follow decisions.
Verdict CheckBalancing(const v1::JobStatus& job) {
  if (!job.stalled().empty()) {
    return Failed("stalled (", job.stalled(), "): ", job.stalled_reason());
  }
  if (!job.has_step_seconds()) return Passed("not stalled; how long a step takes is not known");
  std::string detail = absl::StrCat("not stalled, ", Seconds(job.step_seconds()), " a step");
  if (!job.has_coverage_now()) return Passed(detail);
  absl::StrAppendFormat(&detail, "; %.1f %% of the reporters sent the newest window",
                        100 * job.coverage_now());
  return Passed(detail);
}

// Compares the job with what it would be with one slot per expert.
Verdict CheckGain(const v1::JobStatus& job) {
  if (!job.worse_reason().empty()) {
    return Failed(
        job.worse_reason(),
        "; eplbctl explain shows the decision, eplbctl rollback returns to an earlier placement");
  }
  const bool known = job.has_balancedness() && job.has_balancedness_without_eplb();
  return Verdict{known ? Result::kOk : Result::kWarning,
                 absl::StrCat(known ? "" : "not known, ", "balancedness ", BalancednessText(job))};
}

// Time lost is a finding while the job runs.
Verdict CheckSaved(const v1::JobStatus& job) {
  const bool warns = LostTime(job) && !HasEnded(job) && !IsAbsent(job);
  return Verdict{warns ? Result::kWarning : Result::kOk, SavedText(job)};
}

// A run may gather its ranks until the daemon's limits.start_deadline.
Verdict CheckCandidate(const v1::JobStatus& job) {
  std::string detail = CandidateText(job);
  const bool late = job.candidate().seconds() > CandidateDeadline(job.candidate());
  if (job.take_over_refused()) {
    absl::StrAppend(&detail, "; end the other run, or start this one with EPLB_TAKE_OVER=1");
  }
  return Verdict{late || job.take_over_refused() ? Result::kFailed : Result::kWarning, detail};
}

bool CameToNothing(const v1::Plan& plan) {
  if (plan.replaced_by() != 0) return false;
  return plan.result() == v1::PLAN_RESULT_WITHDRAWN || plan.result() == v1::PLAN_RESULT_PARTIAL ||
         plan.result() == v1::PLAN_RESULT_FAILED;
}

Verdict CheckPlans(const v1::JobStatus& job, const v1::ListPlansResponse& plans) {
  if (HasEnded(job)) {
    return Passed(
        job.paused() ? absl::StrCat("none is due; a new run is paused, too, until eplbctl resume: ",
                                    job.pause_reason())
                     : "none is due: the run has ended");
  }
  if (job.paused()) {
    std::string detail = absl::StrCat("paused: ", job.pause_reason(), "; eplbctl resume ends it");
    if (!plans.plans().empty() && CameToNothing(plans.plans(0))) {
      absl::StrAppend(&detail, "; the newest decision is ", wire::EnumText(plans.plans(0).result()),
                      ": ", plans.plans(0).reason());
    }
    // A pause by the daemon itself is a finding; a pause by an operator is a choice.
    return Verdict{job.paused_by_lost_store() ? Result::kFailed : Result::kWarning, detail};
  }
  if (!plans.plans().empty() && CameToNothing(plans.plans(0))) {
    return Warning("the newest is ", wire::EnumText(plans.plans(0).result()), ": ",
                   plans.plans(0).reason());
  }
  return Passed(plans.plans().empty() ? "nothing was decided yet" : plans.plans(0).reason());
}

// The mode is a choice, not a fault, but it explains why a job never switches.
Verdict CheckMode(const v1::JobStatus& job) {
  const bool observes = job.policy().mode() == "observe";
  return Passed(observes ? "observe: decisions are made and explained, none is applied; eplbctl "
                           "set policy mode=apply ends it"
                         : "apply: decisions that pay are carried out");
}

Verdict CheckReadiness(const v1::GetStatusResponse& status) {
  if (!status.ready()) return Failed("no proposals can be made: ", status.not_ready_reason());
  return Passed("version ", status.server_version(), ", term ", status.term(), ", up ",
                Seconds(status.uptime_seconds()));
}

Verdict CheckEndpoint(const EndpointAnswer& answer) {
  if (answer.status.ok()) return Passed(answer.endpoint, " serves");
  if (!answer.standby_for) return Warning(answer.status.message());
  const std::string detail =
      absl::StrCat(answer.endpoint, " stands by for ",
                   answer.standby_for->empty() ? "none" : *answer.standby_for);
  return answer.trouble.empty() ? Passed(detail) : Failed(detail, "; ", answer.trouble);
}

// A log that was cut off could hide a broken promise. Those of a run that died have no stop.
Verdict CheckStops(const RunLogs& run) {
  std::vector<std::string> cut;
  for (const RankHistory& history : run.histories) {
    const HistoryRecord& last = history.records.back();
    if (last.kind == HistoryRecord::Kind::kStop) continue;
    cut.push_back(absl::StrCat("rank ", history.rank.value, "'s log ends at step ",
                               std::max(last.step, last.last_step), " without a stop"));
  }
  if (cut.empty()) return Passed("every log ends with a stop");
  return Warning(cut.front(),
                 cut.size() == 1 ? "" : absl::StrCat("; so do ", cut.size() - 1, " more logs"));
}

Check Named(const std::string& scope, const char* name, Verdict verdict) {
  return {scope, name, verdict.result, std::move(verdict.detail)};
}

}  // namespace

std::vector<Check> CheckEndpoints(const std::vector<EndpointAnswer>& answers) {
  const auto stands_by = [](const EndpointAnswer& answer) {
    return answer.standby_for.has_value();
  };
  if (answers.size() < 2 && std::ranges::none_of(answers, stands_by)) return {};
  std::vector<Check> checks;
  checks.reserve(answers.size());
  for (const EndpointAnswer& answer : answers) {
    checks.push_back(Named(kDaemonScope, "endpoint", CheckEndpoint(answer)));
  }
  return checks;
}

std::vector<Check> CheckDaemon(const v1::GetStatusResponse& status, const std::string& job) {
  std::vector<Check> checks = {Named(kDaemonScope, "ready", CheckReadiness(status))};
  if (!status.leader().empty()) {
    checks.push_back(Named(kDaemonScope, "leader",
                           Passed(status.leader(), " leads with term ", status.term(),
                                  ", elected by ", status.store())));
  }
  for (const std::string& warning : status.warnings()) {
    checks.push_back(Named(kDaemonScope, "warning", Failed(warning)));
  }
  for (const v1::Refusal& refusal : status.refusals()) {
    const bool asked = job.empty() || refusal.job() == job;
    if (!asked || refusal.seconds_ago() > kRefusalMatters) continue;
    const std::string count = Counted(refusal.count(), "refusal");
    checks.push_back(
        Named(refusal.job(), "refused",
              Failed("the daemon does not serve this job: ", refusal.reason(), " (", count,
                     ", the newest ", Seconds(refusal.seconds_ago()), " ago)")));
  }
  return checks;
}

std::vector<Check> CheckJob(const v1::JobStatus& job,
                            const absl::StatusOr<wire::PlacementBody>& placement,
                            const v1::ListPlansResponse& plans) {
  std::vector<Check> checks;
  const auto add = [&](const char* name, Verdict verdict) {
    checks.push_back(Named(job.job(), name, std::move(verdict)));
  };
  add("state", CheckState(job));
  add("run", CheckRun(job));
  // Without a rank, `state` is the one finding: the other checks would all repeat it.
  const bool is_lost = job.ending() == v1::RUN_ENDING_LOST && job.ranks().empty();
  const bool is_absent = IsAbsent(job) || is_lost;  // `run` names a lost one
  if (!is_absent) {
    add("ranks", CheckRanks(job));
    add("agreement", CheckAgreement(job));
  }
  add("placement", CheckActivePlacement(job, placement));
  const bool has_ranks = !HasEnded(job) && !is_absent;
  if (has_ranks) {
    add("reports", CheckReports(job));
    if (job.has_coverage()) add("tokens", CheckTokens(job));
    if (job.engine().empty()) {
      add("library", CheckLibraries(job));
      for (Check& check : CheckTransport(job)) checks.push_back(std::move(check));
    }
  }
  if (!HasEnded(job)) add("mode", CheckMode(job));
  add("decisions", CheckPlans(job, plans));
  if (has_ranks || !job.stalled().empty()) add("balancing", CheckBalancing(job));
  if (has_ranks) add("gain", CheckGain(job));
  add("saved", CheckSaved(job));
  if (job.has_candidate()) add("candidate", CheckCandidate(job));
  // A refusal that lasts stalls the job; other refused ranks came back later.
  if (!job.refusal().empty()) add("refused", Warning(RefusedText(job)));
  return checks;
}

absl::StatusOr<std::vector<Check>> CheckRun(const std::string& directory) {
  EPLB_ASSIGN_OR_RETURN(const RunLogs run, ReadRunLogs(directory));
  const std::vector<std::string> broken = FindViolations(run.histories, RecordsOf(run.placements));
  return std::vector<Check>{
      Named(directory, "invariants",
            broken.empty() ? Passed("no promise is broken in the logs of ",
                                    Counted(std::ssize(run.histories), "rank"),
                                    run.has_report ? ""
                                                   : "; without run.json a missing log of a higher "
                                                     "rank is not noticed")
                           : Failed(Counted(std::ssize(broken), "violation"),
                                    ", the first: ", broken.front())),
      Named(directory, "stops", CheckStops(run))};
}

}  // namespace eplb::cli
