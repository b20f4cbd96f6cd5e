#include "client/cli/change_commands.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/foreign_text.h"
#include "base/invalid_input.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"
#include "client/cli/wait.h"
#include "proto/wire/convert.h"
#include "proto/wire/message_json.h"
#include "proto/wire/settings.h"

#include "eplb/v1/admin.pb.h"
#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {

// A change asked of the daemon: the request's head, and the answer as text.

// Fills a request's head. errors: those of ChooseJob and of asking for the job.
absl::Status FillChange(const ChangeOptions& options, v1::Change* change);

// JSON: {"job","request_id","version","state","outcome","before","after"}, of a preview without
// request_id and with "dry_run":true. A timeout's message says
// that the outcome is not known and how to learn it.
Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response);

// Of a preview.
constexpr char kNothingIsChanged[] = "nothing is changed; it would be so: ";

// Chunks of a rebalance commit within milliseconds, so that a version asked for can be out of date
// before the change arrives.
inline constexpr int kChangeAttempts = 5;

// A daemon that cannot preview refuses the call: it does not do what was asked.
absl::Status AskPreview(const QueryOptions& options, const v1::PreviewRequest& request,
                        v1::AdminResponse* response) {
  absl::Status status = Ask(options, request, response);
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError("this daemon is older than --dry-run; nothing was changed");
}

// `request` with its head filled in. Where the version to expect was asked for and not given, an
// answer that another one is in force by now makes it ask again, kChangeAttempts times in all.
// previewed: where a preview holds such a request.
template <class Request>
Output RunChange(const ChangeOptions& options, Request request,
                 Request* (v1::PreviewRequest::*previewed)()) {
  v1::AdminResponse response;
  absl::Status status;
  const int attempts = options.expect_version >= 0 ? 1 : kChangeAttempts;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (const absl::Status filled = FillChange(options, request.mutable_change()); !filled.ok()) {
      return QueryFailure(filled);
    }
    if (options.dry_run) {
      v1::PreviewRequest preview;
      *(preview.*previewed)() = request;
      status = AskPreview(options.query, preview, &response);
    } else {
      status = Ask(options.query, request, &response);
    }
    if (!absl::IsAborted(status)) break;
  }
  return ChangeOutput(options, request.change(), status, response);
}

namespace {

constexpr size_t kMaxClaim = 128;  // bytes, as the protocol takes
constexpr size_t kUserRecordBytes = 16384;
constexpr size_t kMaxHostName = 256;

// "alice@host". The daemon shows it, marked as claimed, where nothing better names the caller.
std::string CallerName() {
  std::array<char, kUserRecordBytes> buffer;
  passwd entry{};
  passwd* found = nullptr;
  const bool named =
      getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  std::string name = named ? entry.pw_name : absl::StrCat("uid ", getuid());
  std::array<char, kMaxHostName> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) absl::StrAppend(&name, "@", host.data());
  return Clipped(name, kMaxClaim);
}

// 128 bits of the system's random numbers.
std::string DrawRequestId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(), device());
}

// Of `set policy` and of previews: what was in force, and what is or would be.
std::string SettingsLines(const v1::AdminResponse& response, bool dry_run) {
  if (response.after().empty()) return "";
  return absl::StrCat(dry_run ? "  in force  " : "  before    ", Printable(response.before()),
                      dry_run ? "\n  after     " : "\n  in force  ", Printable(response.after()),
                      "\n");
}

}  // namespace

void AddChangeOptions(CLI::App& app, ChangeOptions& options,
                      const std::set<ExitCode>& more_exit_codes) {
  AddJobOption(app, options.job);
  AddInteger(app, "--expect-version", options.expect_version,
             "Change nothing unless this version is in force [the one just asked for]")
      ->check(&CheckNotNegative)
      ->type_name("V");
  AddRequestIdOption(app, options.request_id);
  app.add_option("--comment", options.comment, "Why, for the audit log")->type_name("TEXT");
  app.add_flag("--dry-run", options.dry_run, "Ask the daemon what it would do, and change nothing");
  std::set<ExitCode> codes = {kNotFound, kConflict};
  codes.insert(more_exit_codes.begin(), more_exit_codes.end());
  AddQueryOptions(app, options.query, codes);
}

absl::Status FillChange(const ChangeOptions& options, v1::Change* change) {
  if (!IsUtf8(options.comment)) return InvalidInput("--comment is not UTF-8");
  EPLB_ASSIGN_OR_RETURN(const std::string job, ChooseJob(options.query, options.job));
  change->set_job(job);
  change->set_request_id(options.request_id.empty() ? DrawRequestId() : options.request_id);
  change->set_comment(options.comment);
  change->set_claimed_by(CallerName());
  if (options.expect_version >= 0) {
    change->set_expect_version(static_cast<uint64_t>(options.expect_version));
    return absl::OkStatus();
  }
  v1::GetJobRequest request;
  request.set_job(job);
  v1::JobStatus status;
  EPLB_RETURN_IF_ERROR(Ask(options.query, request, &status));
  change->set_expect_version(status.version());
  return absl::OkStatus();
}

Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response) {
  if (absl::IsDeadlineExceeded(status)) {
    return Failure(kTimeout,
                   absl::DeadlineExceededError(absl::StrCat(
                       status.message(), "; whether request ", change.request_id(),
                       " was executed is not known: see eplbctl get events --job ", change.job())));
  }
  if (!status.ok()) return QueryFailure(status);
  if (options.query.format == Format::kJson) {
    const std::string head =
        options.dry_run ? std::string(",\"dry_run\":true")
                        : absl::StrCat(",\"request_id\":", wire::JsonQuote(change.request_id()));
    return {.exit_code = kOk,
            .out = absl::StrCat("{\"job\":", wire::JsonQuote(change.job()), head,
                                ",\"version\":", response.version(),
                                ",\"state\":", wire::JsonQuote(wire::EnumText(response.state())),
                                ",\"outcome\":", wire::JsonQuote(response.outcome()),
                                ",\"before\":", wire::JsonQuote(response.before()),
                                ",\"after\":", wire::JsonQuote(response.after()), "}\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = absl::StrCat(options.dry_run ? kNothingIsChanged : "", Printable(change.job()),
                              ": ", Printable(response.outcome()), " (",
                              wire::EnumText(response.state()), ", version ", response.version(),
                              ")\n", SettingsLines(response, options.dry_run)),
          .message = {}};
}

Output RunPause(const PauseOptions& options) {
  return RunChange(options.change, v1::PauseRequest(), &v1::PreviewRequest::mutable_pause);
}

void AddPause(CLI::App& root, Command& command) {
  const auto options = std::make_shared<PauseOptions>();
  CLI::App& app = *root.add_subcommand("pause", "No more proposals for a job until it is resumed");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunPause(*options); };
  });
}

Output RunResume(const ResumeOptions& options) {
  return RunChange(options.change, v1::ResumeRequest(), &v1::PreviewRequest::mutable_resume);
}

void AddResume(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ResumeOptions>();
  CLI::App& app = *root.add_subcommand("resume", "Proposals again: ends a pause and a QUARANTINE");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunResume(*options); };
  });
}

namespace {

constexpr absl::Duration kLongestRebalance = absl::Hours(24);

absl::StatusOr<v1::ListPlansResponse> AskPlans(const ChangeOptions& change, uint32_t limit) {
  v1::ListPlansRequest request;
  request.set_job(change.job);
  request.set_limit(limit);
  v1::ListPlansResponse response;
  EPLB_RETURN_IF_ERROR(Ask(change.query, request, &response));
  return response;
}

// The first decision after `number` that an operator asked for, once it has an end: a job decides
// one thing at a time.
absl::StatusOr<v1::Plan> AwaitDecision(const RebalanceOptions& options, uint64_t number,
                                       absl::Duration timeout) {
  constexpr uint32_t kLookedAt = 20;  // decisions between two questions
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const v1::ListPlansResponse plans, AskPlans(options.change, kLookedAt));
    const v1::Plan* next = nullptr;
    for (const v1::Plan& plan : plans.plans()) {  // newest first
      if (plan.plan() > number && !plan.asked_by().empty()) next = &plan;
    }
    if (next != nullptr && next->result() != v1::PLAN_RESULT_PROPOSED) return *next;
    if (absl::Now() + kAskAgain >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat("the decision has no end after ", options.wait_timeout,
                       ": see eplbctl get plans --job ", options.change.job));
    }
    absl::SleepFor(kAskAgain);
  }
}

Output DecisionOutput(const RebalanceOptions& options, const v1::Plan& plan) {
  Output output;
  const v1::PlanResult good =
      options.change.dry_run ? v1::PLAN_RESULT_OBSERVED : v1::PLAN_RESULT_COMMITTED;
  output.exit_code = plan.result() == good ? kOk : kConditionNotMet;
  output.out =
      options.change.query.format == Format::kJson
          ? wire::ToJsonText(plan) + "\n"
          : absl::StrCat(options.change.dry_run ? kNothingIsChanged : "", "plan ", plan.plan(), " ",
                         wire::EnumText(plan.result()), ": ", Printable(plan.reason()), "\n");
  return output;
}

Output RebalanceAndWait(const RebalanceOptions& given, v1::RebalanceRequest request) {
  RebalanceOptions options = given;
  const absl::StatusOr<absl::Duration> timeout =
      ParseDuration("--wait-timeout", options.wait_timeout, kLongestRebalance);
  if (!timeout.ok()) return UsageFailure(timeout.status());
  const absl::StatusOr<std::string> job = ChooseJob(options.change.query, options.change.job);
  if (!job.ok()) return QueryFailure(job.status());
  options.change.job = *job;
  const absl::StatusOr<v1::ListPlansResponse> before = AskPlans(options.change, 1);
  if (!before.ok()) return QueryFailure(before.status());
  const uint64_t number = before->plans().empty() ? 0 : before->plans(0).plan();
  Output asked =
      RunChange(options.change, std::move(request), &v1::PreviewRequest::mutable_rebalance);
  if (asked.exit_code != kOk) return asked;
  const absl::StatusOr<v1::Plan> plan = AwaitDecision(options, number, *timeout);
  return plan.ok() ? DecisionOutput(options, *plan) : QueryFailure(plan.status());
}

}  // namespace

Output RunRebalance(const RebalanceOptions& options) {
  v1::RebalanceRequest request;
  request.set_force(options.force);
  return options.wait || options.change.dry_run ? RebalanceAndWait(options, std::move(request))
                                                : RunChange(options.change, std::move(request),
                                                            &v1::PreviewRequest::mutable_rebalance);
}

void AddRebalance(CLI::App& root, Command& command) {
  const auto options = std::make_shared<RebalanceOptions>();
  CLI::App& app = *root.add_subcommand("rebalance", "Decide now, from the newest windows");
  app.add_flag("--force", options->force,
               "Propose what the policy changes, without asking whether it pays");
  app.add_flag("--wait", options->wait,
               "Until the decision has ended, as --dry-run; exit 8 when nothing is switched");
  app.add_option("--wait-timeout", options->wait_timeout, "How long, at most 24h [10m]")
      ->type_name("DURATION");
  AddChangeOptions(app, options->change, {kConditionNotMet});
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunRebalance(*options); };
  });
}

Output RunRollback(const RollbackOptions& options) {
  v1::RollbackRequest request;
  if (options.to >= 0) request.set_to_version(static_cast<uint64_t>(options.to));
  return RunChange(options.change, std::move(request), &v1::PreviewRequest::mutable_rollback);
}

void AddRollback(CLI::App& root, Command& command) {
  const auto options = std::make_shared<RollbackOptions>();
  CLI::App& app = *root.add_subcommand(
      "rollback", "Back to an earlier placement; pauses the job, so that it stays");
  AddInteger(app, "--to", options->to, "Version to go back to [before the newest rebalance]")
      ->check(&CheckNotNegative)
      ->type_name("V");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunRollback(*options); };
  });
}

Output RunForget(const ForgetOptions& options) {
  if (options.change.job.empty()) {
    return UsageFailure(InvalidInput("no job is named, expected eplbctl forget JOB"));
  }
  return RunChange(options.change, v1::ForgetRequest(), &v1::PreviewRequest::mutable_forget);
}

void AddForget(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ForgetOptions>();
  CLI::App& app = *root.add_subcommand(
      "forget", "Remove a job that has no connected rank; its audit log stays");
  const auto place = std::make_shared<std::string>();
  // Not "job": to newer releases of CLI11 that is the name of --job.
  CLI::Option* named = app.add_option("JOB", *place, "The job to remove")->type_name("JOB");
  AddChangeOptions(app, options->change);
  named->excludes(app.get_option("--job"));
  app.callback([options, place, &command] {
    if (!place->empty()) options->change.job = *place;
    command = [options](const Terminal& /*terminal*/) { return RunForget(*options); };
  });
}

absl::StatusOr<std::string> ApplySetting(const std::string& setting, v1::PolicySettings* settings) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    return InvalidInput("\"", setting, "\": expected KEY=VALUE, e.g. every_steps=100");
  }
  const std::string given = setting.substr(0, equals);
  const std::string value = setting.substr(equals + 1);
  const wire::SettingRow* const row = wire::FindSetting(given);
  if (row == nullptr) {
    std::vector<std::string> known;
    std::vector<std::string> short_names;
    for (const wire::SettingRow& one : wire::SettingRows()) {
      short_names.emplace_back(one.name);
      known.push_back(absl::StrCat(std::string(one.table), ".", short_names.back()));
    }
    std::string nearest = Suggestion(given, known);
    if (nearest.empty()) nearest = Suggestion(given, short_names);
    return InvalidInput("\"", given, "\": unknown setting, expected ",
                        absl::StrJoin(short_names, ", "), nearest);
  }
  const std::string name(row->name);
  const std::optional<Scalar> read = row->Read({.text = value});
  if (!read) {
    return InvalidInput(name, "=", value, ": expected ", row->Expected(),
                        Suggestion(value, row->Choices()));
  }
  wire::SettingsPatch patch;
  row->set_given(*read, &patch);
  wire::ToProto(patch, settings);
  return name;
}

Output RunSetPolicy(const SetPolicyOptions& options) {
  v1::SetPolicyRequest request;
  std::set<std::string> given;
  for (const std::string& setting : options.settings) {
    const absl::StatusOr<std::string> key = ApplySetting(setting, request.mutable_settings());
    if (!key.ok()) return Failure(kUsage, key.status());
    if (!given.insert(*key).second) return Failure(kUsage, InvalidInput(*key, " is given twice"));
  }
  return RunChange(options.change, std::move(request), &v1::PreviewRequest::mutable_set_policy);
}

void AddSet(CLI::App& root, Command& command) {
  CLI::App& set = *root.add_subcommand("set", "Change settings of a job: policy");
  set.require_subcommand(1);
  const auto options = std::make_shared<SetPolicyOptions>();
  CLI::App& app = *set.add_subcommand(
      "policy", "Change settings of one job; the other settings keep their values");
  app.add_option("settings", options->settings,
                 absl::StrJoin(
                     wire::SettingRows(), ", ",
                     [](std::string* out, const wire::SettingRow& row) { out->append(row.name); }))
      ->required()
      ->type_name("KEY=VALUE");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunSetPolicy(*options); };
  });
}

}  // namespace eplb::cli
