#include "client/cli/doctor.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/transport_checks.h"
#include "client/run_log/history.h"
#include "client/run_log/run_directory.h"
#include "proto/wire/message_json.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

using Result = Check::Result;

constexpr double kLeastCoverage = 0.95;
constexpr double kRefusalMatters = 600;  // seconds

Check MakeCheck(const v1::JobStatus& job, std::string name, Result result, std::string detail) {
  return {
      .scope = job.job(), .name = std::move(name), .result = result, .detail = std::move(detail)};
}

Check CheckState(const v1::JobStatus& job) {
  std::string detail =
      absl::StrCat(wire::EnumText(job.state()), " for ", Seconds(job.state_seconds()));
  if (!job.waiting_for().empty()) absl::StrAppend(&detail, ", waits for ", job.waiting_for());
  if (job.state() == v1::JOB_STATE_QUARANTINE) {
    absl::StrAppend(&detail, "; eplbctl resume ends it");
    return MakeCheck(job, "state", Result::kFailed, std::move(detail));
  }
  // Restored from the store, and none of its ranks has come back.
  if (job.stuck_seconds() > 0 && job.connected_ranks() == 0 &&
      job.ending() == v1::RUN_ENDING_UNSPECIFIED) {
    absl::StrAppend(&detail,
                    "; no rank is connected: start the job again, or end it with "
                    "eplbctl forget");
    return MakeCheck(job, "state", Result::kFailed, std::move(detail));
  }
  // The daemon's own deadlines are configured, and it tells when one is long past.
  if (job.stuck_seconds() > 0) {
    absl::StrAppend(&detail, "; that is more than three times its deadline");
    return MakeCheck(job, "state", Result::kWarning, std::move(detail));
  }
  return MakeCheck(job, "state", Result::kOk, std::move(detail));
}

template <class Predicate>
std::string RanksWhere(const v1::JobStatus& job, Predicate predicate) {
  std::vector<uint32_t> ranks;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (predicate(rank)) ranks.push_back(rank.rank());
  }
  return NameRanks(ranks, static_cast<size_t>(job.ranks_size()));
}

// The daemon stepped down: another one balances the run.
bool MovedAway(const v1::JobStatus& job) {
  return job.ending() == v1::RUN_ENDING_LOST && job.led_elsewhere();
}

// A run that failed or was lost is a finding however short ago: nobody said that it is over.
Check CheckRun(const v1::JobStatus& job) {
  const std::string name = absl::StrCat("run ", job.run_id());
  if (MovedAway(job)) {
    return MakeCheck(job, "run", Result::kOk,
                     absl::StrCat(name, " is not led here: ", job.end_reason()));
  }
  if (job.ending() == v1::RUN_ENDING_LOST) {
    return MakeCheck(job, "run", Result::kFailed,
                     absl::StrCat(name, " was lost: ", job.end_reason(),
                                  "; start it again, or end it with eplbctl forget"));
  }
  if (job.ending() != v1::RUN_ENDING_UNSPECIFIED) {
    const bool failed = job.ending() == v1::RUN_ENDING_FAILED;
    return MakeCheck(job, "run", failed ? Result::kFailed : Result::kOk,
                     absl::StrCat(name, " ", wire::EnumText(job.ending()), ": ", job.end_reason()));
  }
  if (!job.took_over().empty()) {
    return MakeCheck(
        job, "run", Result::kWarning,
        absl::StrCat(name, " took over from ", job.took_over(),
                     ", whose ranks were still connected: a restart, or two jobs of one "
                     "name"));
  }
  return MakeCheck(job, "run", Result::kOk,
                   job.run_id().empty() ? "none has registered yet" : absl::StrCat(name, " lives"));
}

// A run that failed or finished is over; one that is lost may go on.
bool IsOver(const v1::JobStatus& job) {
  return job.ending() == v1::RUN_ENDING_FINISHED || job.ending() == v1::RUN_ENDING_FAILED;
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

Check CheckRanks(const v1::JobStatus& job) {
  if (job.ending() == v1::RUN_ENDING_FINISHED) {
    return MakeCheck(job, "ranks", Result::kOk, "none is connected: the job has finished");
  }
  if (IsOver(job)) {
    const std::string ends = EndsOfRanks(job);
    return MakeCheck(job, "ranks", Result::kOk,
                     ends.empty() ? "none is expected: the run has ended" : ends);
  }
  const std::string away = RanksWhere(job, [](const auto& rank) { return !rank.connected(); });
  std::string detail =
      absl::StrCat(job.connected_ranks(), " of ", job.world_size(), " ranks are connected");
  if (!away.empty()) absl::StrAppend(&detail, "; away: ", away);
  const bool whole = job.world_size() > 0 && job.connected_ranks() == job.world_size();
  return MakeCheck(job, "ranks", whole ? Result::kOk : Result::kWarning, std::move(detail));
}

Check CheckAgreement(const v1::JobStatus& job) {
  if (job.connected_ranks() == 0 && IsOver(job)) {
    return MakeCheck(job, "agreement", Result::kOk,
                     absl::StrCat("the run ended in version ", job.version()));
  }
  if (job.connected_ranks() == 0) {
    return MakeCheck(job, "agreement", Result::kWarning, "not checked: no rank is connected");
  }
  const std::string others = RanksWhere(job, [&job](const auto& rank) {
    return rank.connected() && rank.running_version() != job.version();
  });
  if (others.empty()) {
    return MakeCheck(job, "agreement", Result::kOk,
                     absl::StrCat("every connected rank runs version ", job.version()));
  }
  // A switch reaches the daemon rank by rank.
  const bool switching = job.state() == v1::JOB_STATE_VOTING ||
                         job.state() == v1::JOB_STATE_CANCELLING ||
                         job.state() == v1::JOB_STATE_RECOVERING;
  return MakeCheck(
      job, "agreement", switching ? Result::kWarning : Result::kFailed,
      absl::StrCat("version ", job.version(), " is in force, ", others, " run another one"));
}

Check CheckActivePlacement(const v1::JobStatus& job,
                           const absl::StatusOr<wire::PlacementBody>& placement) {
  if (absl::IsNotFound(placement.status())) {
    return MakeCheck(job, "placement", Result::kWarning, std::string(placement.status().message()));
  }
  if (!placement.ok()) {
    return MakeCheck(job, "placement", Result::kFailed, std::string(placement.status().message()));
  }
  const Digest digest = DigestOf(placement->placement);
  const std::string told(digest.bytes.begin(), digest.bytes.end());
  // Asked one after the other: a switch may lie between the two answers.
  const bool same_version = static_cast<int64_t>(job.version()) == placement->version;
  if (same_version && told != job.digest()) {
    return MakeCheck(job, "placement", Result::kFailed,
                     absl::StrCat("the maps of version ", job.version(), " have the digest ",
                                  digest.Hex(), ", which is not the one in force"));
  }
  return MakeCheck(job, "placement", Result::kOk,
                   absl::StrCat("version ", placement->version, " is valid, its digest ",
                                digest.Hex().substr(0, 12), " is that of its maps"));
}

Check CheckReports(const v1::JobStatus& job) {
  if (!job.has_coverage()) {
    return MakeCheck(job, "reports", Result::kWarning, "no load window is complete yet");
  }
  std::string detail =
      absl::StrFormat("%.1f %% of the reporters sent steps %d..%d", 100 * job.coverage(),
                      job.last_window_first_step(), job.last_window_last_step());
  const std::string dropped =
      RanksWhere(job, [](const auto& rank) { return rank.dropped_steps() > 0; });
  if (!dropped.empty())
    absl::StrAppend(&detail, "; counts of some steps were dropped by ", dropped);
  const bool whole = job.coverage() >= kLeastCoverage && dropped.empty();
  return MakeCheck(job, "reports", whole ? Result::kOk : Result::kWarning, std::move(detail));
}

// Checks that all reporting ranks count tokens in all layers: without them no figure exists.
Check CheckTokens(const v1::JobStatus& job) {
  if (!job.not_counting_reason().empty()) {
    return MakeCheck(job, "tokens", Result::kFailed, NotCountingText(job));
  }
  if (!job.not_measured_reason().empty()) {
    return MakeCheck(job, "tokens", Result::kWarning,
                     absl::StrCat("no balancedness: ", job.not_measured_reason()));
  }
  return MakeCheck(job, "tokens", Result::kOk, "every reporting rank counts them in every layer");
}

Check CheckLibraries(const v1::JobStatus& job) {
  std::set<std::string> versions;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.library_version().empty()) versions.insert(rank.library_version());
  }
  return MakeCheck(job, "library", versions.size() == 1 ? Result::kOk : Result::kWarning,
                   versions.empty() ? "no rank has reported its version"
                                    : absl::StrCat("libeplb ", absl::StrJoin(versions, ", ")));
}

// Checks that windows follow steps, decisions follow windows and switches follow decisions.
Check CheckBalancing(const v1::JobStatus& job) {
  if (!job.stalled().empty()) {
    return MakeCheck(job, "balancing", Result::kFailed,
                     absl::StrCat("stalled (", job.stalled(), "): ", job.stalled_reason()));
  }
  if (!job.has_step_seconds()) {
    return MakeCheck(job, "balancing", Result::kOk,
                     "not stalled; how long a step takes is not known");
  }
  std::string detail = absl::StrCat("not stalled, ", Seconds(job.step_seconds()), " a step");
  if (!job.has_coverage_now()) return MakeCheck(job, "balancing", Result::kOk, std::move(detail));
  absl::StrAppendFormat(&detail, "; %.1f %% of the reporters sent the newest window",
                        100 * job.coverage_now());
  return MakeCheck(job, "balancing", Result::kOk, std::move(detail));
}

// Compares the job with what it would be with one slot per expert.
Check CheckGain(const v1::JobStatus& job) {
  if (!job.worse_reason().empty()) {
    return MakeCheck(job, "gain", Result::kFailed,
                     absl::StrCat(job.worse_reason(),
                                  "; eplbctl explain shows the decision, eplbctl rollback returns "
                                  "to an earlier placement"));
  }
  const bool known = job.has_balancedness() && job.has_balancedness_without_eplb();
  return MakeCheck(
      job, "gain", known ? Result::kOk : Result::kWarning,
      absl::StrCat(known ? "" : "not known, ", "balancedness ", BalancednessText(job)));
}

// A run may gather its ranks until the daemon's limits.start_deadline.
Check CheckCandidate(const v1::JobStatus& job) {
  std::string detail = CandidateText(job);
  const bool late = job.candidate().seconds() > CandidateDeadline(job.candidate());
  if (job.take_over_refused()) {
    absl::StrAppend(&detail, "; end the other run, or start this one with EPLB_TAKE_OVER=1");
  }
  return MakeCheck(job, "candidate",
                   late || job.take_over_refused() ? Result::kFailed : Result::kWarning,
                   std::move(detail));
}

bool CameToNothing(const v1::Plan& plan) {
  return plan.result() == v1::PLAN_RESULT_WITHDRAWN || plan.result() == v1::PLAN_RESULT_PARTIAL ||
         plan.result() == v1::PLAN_RESULT_FAILED;
}

Check CheckPlans(const v1::JobStatus& job, const v1::ListPlansResponse& plans) {
  if (IsOver(job)) {
    return MakeCheck(job, "decisions", Result::kOk,
                     job.paused() ? absl::StrCat("none is due; a new run is paused, too, until "
                                                 "eplbctl resume: ",
                                                 job.pause_reason())
                                  : "none is due: the run has ended");
  }
  if (job.paused()) {
    std::string detail = absl::StrCat("paused: ", job.pause_reason(), "; eplbctl resume ends it");
    if (!plans.plans().empty() && CameToNothing(plans.plans(0))) {
      absl::StrAppend(&detail, "; the newest decision is ", wire::EnumText(plans.plans(0).result()),
                      ": ", plans.plans(0).reason());
    }
    // What the daemon paused by itself is a finding; what an operator paused is a choice.
    return MakeCheck(job, "decisions",
                     job.paused_by_lost_store() ? Result::kFailed : Result::kWarning,
                     std::move(detail));
  }
  if (!plans.plans().empty() && CameToNothing(plans.plans(0))) {
    return MakeCheck(job, "decisions", Result::kWarning,
                     absl::StrCat("the newest is ", wire::EnumText(plans.plans(0).result()), ": ",
                                  plans.plans(0).reason()));
  }
  return MakeCheck(job, "decisions", Result::kOk,
                   plans.plans().empty() ? "nothing was decided yet" : plans.plans(0).reason());
}

// A choice, not a fault; but it is why a job that looks well never switches.
Check CheckMode(const v1::JobStatus& job) {
  const bool observes = job.policy().mode() == "observe";
  return MakeCheck(job, "mode", Result::kOk,
                   observes
                       ? "observe: decisions are made and explained, none is applied; eplbctl set "
                         "policy mode=apply ends it"
                       : "apply: decisions that pay are carried out");
}

Check CheckReadiness(const v1::GetStatusResponse& status) {
  if (status.ready()) {
    return {.scope = "eplbd",
            .name = "ready",
            .detail = absl::StrCat("version ", status.server_version(), ", term ", status.term(),
                                   ", up ", Seconds(status.uptime_seconds()))};
  }
  return {.scope = "eplbd",
          .name = "ready",
          .result = Result::kFailed,
          .detail = absl::StrCat("no proposals can be made: ", status.not_ready_reason())};
}

// Of daemons that were elected.
std::vector<Check> CheckLeader(const v1::GetStatusResponse& status) {
  if (status.leader().empty()) return {};
  return {{.scope = "eplbd",
           .name = "leader",
           .detail = absl::StrCat(status.leader(), " leads with term ", status.term(),
                                  ", elected by ", status.store())}};
}

}  // namespace

std::vector<Check> CheckEndpoints(const std::vector<EndpointAnswer>& answers) {
  const auto stands_by = [](const EndpointAnswer& answer) {
    return answer.standby_for.has_value();
  };
  if (answers.size() < 2 && std::none_of(answers.begin(), answers.end(), stands_by)) return {};
  std::vector<Check> checks;
  for (const EndpointAnswer& answer : answers) {
    Check check{.scope = "eplbd", .name = "endpoint"};
    if (answer.status.ok()) {
      check.detail = absl::StrCat(answer.endpoint, " serves");
    } else if (answer.standby_for) {
      check.detail = absl::StrCat(answer.endpoint, " stands by for ",
                                  answer.standby_for->empty() ? "none" : *answer.standby_for);
      if (!answer.trouble.empty()) {
        check.result = Result::kFailed;
        absl::StrAppend(&check.detail, "; ", answer.trouble);
      }
    } else {
      check.result = Result::kWarning;
      check.detail = std::string(answer.status.message());
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::vector<Check> CheckDaemon(const v1::GetStatusResponse& status, const std::string& job) {
  std::vector<Check> checks = {CheckReadiness(status)};
  for (Check& check : CheckLeader(status)) checks.push_back(std::move(check));
  for (const std::string& warning : status.warnings()) {
    checks.push_back(
        {.scope = "eplbd", .name = "warning", .result = Result::kFailed, .detail = warning});
  }
  for (const v1::Refusal& refusal : status.refusals()) {
    const bool asked = job.empty() || refusal.job() == job;
    if (!asked || refusal.seconds_ago() > kRefusalMatters) continue;
    checks.push_back(
        {.scope = refusal.job(),
         .name = "refused",
         .result = Result::kFailed,
         .detail = absl::StrCat("the daemon does not serve this job: ", refusal.reason(), " (",
                                Counted(static_cast<int64_t>(refusal.count()), "refusal"),
                                ", the newest ", Seconds(refusal.seconds_ago()), " ago)")});
  }
  return checks;
}

std::vector<Check> CheckJob(const v1::JobStatus& job,
                            const absl::StatusOr<wire::PlacementBody>& placement,
                            const v1::ListPlansResponse& plans) {
  std::vector<Check> checks = {CheckState(job), CheckRun(job), CheckRanks(job), CheckAgreement(job),
                               CheckActivePlacement(job, placement)};
  if (!IsOver(job)) {
    checks.push_back(CheckReports(job));
    if (job.has_coverage()) checks.push_back(CheckTokens(job));
    checks.push_back(CheckLibraries(job));
    for (Check& check : CheckTransport(job)) checks.push_back(std::move(check));
    checks.push_back(CheckMode(job));
  }
  checks.push_back(CheckPlans(job, plans));
  if (!IsOver(job) || !job.stalled().empty()) checks.push_back(CheckBalancing(job));
  if (!IsOver(job)) checks.push_back(CheckGain(job));
  if (job.has_candidate()) checks.push_back(CheckCandidate(job));
  // One that is for good stalls the job; others came back later.
  if (!job.refusal().empty()) {
    checks.push_back(MakeCheck(job, "refused", Result::kWarning, RefusedText(job)));
  }
  return checks;
}

absl::StatusOr<Check> CheckRun(const std::string& directory) {
  EPLB_ASSIGN_OR_RETURN(const RunLogs run, ReadRunLogs(directory));
  const std::vector<std::string> broken = FindViolations(run.histories, RecordsOf(run.placements));
  if (broken.empty()) {
    return Check{
        .scope = directory,
        .name = "invariants",
        .detail = absl::StrCat("no promise is broken in the logs of ",
                               Counted(static_cast<int64_t>(run.histories.size()), "rank"))};
  }
  return Check{.scope = directory,
               .name = "invariants",
               .result = Result::kFailed,
               .detail = absl::StrCat(Counted(static_cast<int64_t>(broken.size()), "violation"),
                                      ", the first: ", broken.front())};
}

namespace {

using Json = nlohmann::ordered_json;

constexpr int kPlansLookedAt = 10;

const char* ResultName(Check::Result result) {
  switch (result) {
    case Check::Result::kOk:
      return "ok";
    case Check::Result::kWarning:
      return "warning";
    case Check::Result::kFailed:
      return "failed";
  }
  return "";
}

Colour ColourOf(Check::Result result) {
  if (result == Check::Result::kOk) return Colour::kGreen;
  return result == Check::Result::kWarning ? Colour::kYellow : Colour::kRed;
}

// Returns the findings about daemons that all stand by.
absl::StatusOr<std::vector<Check>> CheckLeaderless(const QueryOptions& query) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<EndpointAnswer> answers, AskEndpoints(query));
  std::vector<Check> checks = {{.scope = "eplbd",
                                .name = "leader",
                                .result = Result::kFailed,
                                .detail = "no daemon that answers leads"}};
  for (Check& check : CheckEndpoints(answers)) checks.push_back(std::move(check));
  return checks;
}

absl::StatusOr<std::vector<Check>> AskAll(const DoctorOptions& options) {
  v1::GetStatusResponse status;
  const absl::Status asked = AskStatus(options.query, &status);
  if (wire::LeaderIn(asked)) return CheckLeaderless(options.query);
  EPLB_RETURN_IF_ERROR(asked);
  std::vector<Check> checks = CheckDaemon(status, options.job);
  EPLB_ASSIGN_OR_RETURN(const std::vector<EndpointAnswer> answers, AskEndpoints(options.query));
  for (Check& check : CheckEndpoints(answers)) checks.push_back(std::move(check));
  bool found = options.job.empty() ||
               std::any_of(checks.begin(), checks.end(), [&options](const Check& check) {
                 return check.scope == options.job;  // refused, and not known
               });
  for (const v1::JobStatus& job : status.jobs()) {
    if (!options.job.empty() && job.job() != options.job) continue;
    found = true;
    const absl::StatusOr<wire::PlacementBody> placement = AskPlacement(options.query, job.job());
    v1::ListPlansRequest request;
    request.set_job(job.job());
    request.set_limit(kPlansLookedAt);
    v1::ListPlansResponse plans;
    const absl::Status listed = Ask(options.query, request, &plans);
    if (absl::IsUnavailable(listed) || absl::IsDeadlineExceeded(listed)) return listed;
    for (Check& check : CheckJob(job, placement, plans)) checks.push_back(std::move(check));
    if (!listed.ok()) {  // a finding about this job, which must not hide the other jobs
      checks.push_back(
          MakeCheck(job, "plans", absl::IsNotFound(listed) ? Result::kWarning : Result::kFailed,
                    absl::StrCat("the decisions cannot be listed: ", listed.message())));
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat("no job ", options.job));
  return checks;
}

std::string ToJson(const std::vector<Check>& checks, bool healthy) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"scope", check.scope},
                    {"check", check.name},
                    {"result", ResultName(check.result)},
                    {"detail", check.detail}});
  }
  const Json json = {{"healthy", healthy}, {"checks", std::move(list)}};
  return wire::DumpJson(json) + "\n";
}

std::string ToText(const std::vector<Check>& checks, const Terminal& terminal) {
  std::string text;
  for (const Check& check : checks) {
    constexpr int kColumn = 9;  // "warning" and two spaces
    const std::string result = Paint(terminal, ColourOf(check.result), ResultName(check.result));
    const std::string body =
        absl::StrCat(Printable(check.scope), " ", check.name, ": ", Printable(check.detail));
    absl::StrAppend(&text, Beside(result, kColumn, body, terminal), "\n");
  }
  return text;
}

}  // namespace

Output RunDoctor(const DoctorOptions& options, const Terminal& terminal) {
  std::vector<Check> checks;
  if (!options.run.empty()) {
    absl::StatusOr<Check> check = CheckRun(options.run);
    if (!check.ok()) return UsageFailure(check.status());
    checks.push_back(*std::move(check));
  } else {
    absl::StatusOr<std::vector<Check>> asked = AskAll(options);
    if (!asked.ok()) return QueryFailure(asked.status());
    checks = *std::move(asked);
  }
  const bool healthy = std::all_of(checks.begin(), checks.end(), [&options](const Check& check) {
    return check.result == Check::Result::kOk ||
           (check.result == Check::Result::kWarning && !options.strict);
  });
  return {.exit_code = healthy ? kOk : kConditionNotMet,
          .out = options.query.format == Format::kJson ? ToJson(checks, healthy)
                                                       : ToText(checks, terminal),
          .message = {}};
}

void AddDoctor(CLI::App& root, Command& command) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App& app = *root.add_subcommand("doctor", "Is everything well? Exit 8 when a check fails");
  AddJobOption(app, options->job, "Only this job [all]");
  app.add_option("--run", options->run, "Check the ranks' logs in this folder, not a daemon")
      ->type_name("DIR");
  app.add_flag("--strict", options->strict, "A warning is exit 8, too");
  AddQueryOptions(app, options->query, {kNotFound, kConditionNotMet});
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunDoctor(*options, terminal); };
  });
}

}  // namespace eplb::cli
