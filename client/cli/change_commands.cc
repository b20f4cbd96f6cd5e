// Commands that change a job at the daemon: pause, resume, rebalance, rollback, forget and set.
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"
#include "client/cli/wait.h"
#include "proto/wire/message_json.h"
#include "proto/wire/settings.h"

#include "eplb/v1/admin.pb.h"
#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

// Introduces the outcome of a preview.
constexpr char kNothingIsChanged[] = "nothing is changed; it would be so: ";

// Chunks of a rebalance commit within milliseconds, so that a version asked for can be out of date
// before the change arrives.
constexpr int kChangeAttempts = 5;

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

// The settings before and after `set policy` or a preview.
std::string SettingsLines(const v1::AdminResponse& response, bool dry_run) {
  if (response.after().empty()) return "";
  return absl::StrCat(dry_run ? "  current   " : "  before    ", Printable(response.before()),
                      dry_run ? "\n  after     " : "\n  current   ", Printable(response.after()),
                      "\n");
}

// Fills in the head of a request. errors: those of ChooseJob and of asking for the job.
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
  v1::JobStatus status;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options.query, job, v1::GetJobRequest(), &status).status());
  change->set_expect_version(status.version());
  return absl::OkStatus();
}

// JSON: {"job","request_id","version","state","outcome","before","after"}; a preview has
// "dry_run":true in place of request_id. The message of a timeout explains how to learn the
// outcome.
Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response) {
  if (absl::IsDeadlineExceeded(status)) {
    return {
        kTimeout, "",
        absl::StrCat(status.message(), "; whether request ", change.request_id(),
                     " was executed is not known: see eplbctl get events --job ", change.job())};
  }
  if (!status.ok()) return status;
  if (options.query.format == Format::kJson) {
    const std::string head =
        options.dry_run ? std::string(",\"dry_run\":true")
                        : absl::StrCat(",\"request_id\":", wire::JsonQuote(change.request_id()));
    return absl::StrCat("{\"job\":", wire::JsonQuote(change.job()), head,
                        ",\"version\":", response.version(),
                        ",\"state\":", wire::JsonQuote(wire::EnumText(response.state())),
                        ",\"outcome\":", wire::JsonQuote(response.outcome()),
                        ",\"before\":", wire::JsonQuote(response.before()),
                        ",\"after\":", wire::JsonQuote(response.after()), "}\n");
  }
  return absl::StrCat(options.dry_run ? kNothingIsChanged : "", Printable(change.job()), ": ",
                      Printable(response.outcome()), " (", wire::EnumText(response.state()),
                      ", version ", response.version(), ")\n",
                      SettingsLines(response, options.dry_run));
}

// Sends `request` with its head filled in. If the version to expect was asked for, not given, and
// is out of date, it is asked for again, up to kChangeAttempts times. previewed: the field of a
// preview that holds such a request.
template <class Request>
Output RunChange(const ChangeOptions& options, Request request,
                 Request* (v1::PreviewRequest::*previewed)()) {
  v1::AdminResponse response;
  absl::Status status;
  const int attempts = options.expect_version >= 0 ? 1 : kChangeAttempts;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    EPLB_RETURN_IF_ERROR(FillChange(options, request.mutable_change()));
    if (options.dry_run) {
      v1::PreviewRequest preview;
      *(preview.*previewed)() = request;
      status = Ask(options.query, preview, &response);
      if (absl::IsUnimplemented(status)) {
        status =
            absl::UnimplementedError("this daemon is older than --dry-run; nothing was changed");
      }
    } else {
      status = Ask(options.query, request, &response);
    }
    if (!absl::IsAborted(status)) break;
  }
  return ChangeOutput(options, request.change(), status, response);
}

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
absl::StatusOr<v1::Plan> AwaitDecision(const ChangeOptions& options, uint64_t number,
                                       absl::Duration timeout) {
  constexpr uint32_t kLookedAt = 20;  // decisions between two questions
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const v1::ListPlansResponse plans, AskPlans(options, kLookedAt));
    const v1::Plan* next = nullptr;
    for (const v1::Plan& plan : plans.plans()) {  // newest first
      if (plan.plan() > number && !plan.asked_by().empty()) next = &plan;
    }
    if (next != nullptr && next->result() != v1::PLAN_RESULT_PROPOSED) return *next;
    if (absl::Now() + kAskAgain >= end) {
      return DeadlineExceeded("the decision has no end after ", options.wait_timeout,
                              ": see eplbctl get plans --job ", options.job);
    }
    absl::SleepFor(kAskAgain);
  }
}

Output DecisionOutput(const ChangeOptions& options, const v1::Plan& plan) {
  const v1::PlanResult good =
      options.dry_run ? v1::PLAN_RESULT_OBSERVED : v1::PLAN_RESULT_COMMITTED;
  return {plan.result() == good ? kOk : kConditionNotMet,
          options.query.format == Format::kJson
              ? wire::ToJsonText(plan) + "\n"
              : absl::StrCat(options.dry_run ? kNothingIsChanged : "", "plan ", plan.plan(), " ",
                             wire::EnumText(plan.result()), ": ", Printable(plan.reason()), "\n"),
          ""};
}

Output RebalanceAndWait(ChangeOptions options, v1::RebalanceRequest request) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration timeout,
                        ParseDuration("--wait-timeout", options.wait_timeout, kLongestRebalance));
  EPLB_ASSIGN_OR_RETURN(options.job, ChooseJob(options.query, options.job));
  EPLB_ASSIGN_OR_RETURN(const v1::ListPlansResponse before, AskPlans(options, 1));
  const uint64_t number = before.plans().empty() ? 0 : before.plans(0).plan();
  Output asked = RunChange(options, std::move(request), &v1::PreviewRequest::mutable_rebalance);
  if (asked.exit_code != kOk) return asked;
  EPLB_ASSIGN_OR_RETURN(const v1::Plan plan, AwaitDecision(options, number, timeout));
  return DecisionOutput(options, plan);
}

// Sets the field that `setting` names, and returns its key without the table.
// errors: InvalidArgument naming the setting and what is expected.
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
      short_names.push_back(one.name);
      known.push_back(one.FullName());
    }
    std::string nearest = Suggestion(given, known);
    if (nearest.empty()) nearest = Suggestion(given, short_names);
    return InvalidInput("\"", given, "\": unknown setting, expected ",
                        absl::StrJoin(short_names, ", "), nearest);
  }
  const std::optional<Scalar> read = row->Read({.text = value});
  if (!read) {
    return InvalidInput(row->name, "=", value, ": expected ", row->Expected(),
                        Suggestion(value, row->Choices()));
  }
  row->Set(*read, settings);
  return row->name;
}

// Adds a command with the flags that all have.
std::pair<Flags, ChangeOptions&> AddChange(const Flags& parent, const char* name, const char* help,
                                           Output (*run)(const ChangeOptions&),
                                           const std::set<ExitCode>& exit_codes = {kNotFound,
                                                                                   kConflict}) {
  auto [flags, options] = AddCommand<ChangeOptions>(parent, name, help, run);
  AddJobOption(flags, options.job);
  AddCount(flags, "--expect-version", "V", options.expect_version,
           "Change nothing unless this version is current [the version just read]");
  AddRequestIdOption(flags, options.request_id);
  flags.Text("--comment", "TEXT", options.comment, "Reason, for the audit log");
  flags.Switch("--dry-run", options.dry_run, "Show what the daemon would do, and change nothing");
  AddQueryOptions(flags, options.query, exit_codes);
  return {flags, options};
}

}  // namespace

Output RunPause(const ChangeOptions& options) {
  return RunChange(options, v1::PauseRequest(), &v1::PreviewRequest::mutable_pause);
}

Output RunResume(const ChangeOptions& options) {
  return RunChange(options, v1::ResumeRequest(), &v1::PreviewRequest::mutable_resume);
}

Output RunRebalance(const ChangeOptions& options) {
  v1::RebalanceRequest request;
  request.set_force(options.force);
  if (options.wait || options.dry_run) return RebalanceAndWait(options, std::move(request));
  return RunChange(options, std::move(request), &v1::PreviewRequest::mutable_rebalance);
}

Output RunRollback(const ChangeOptions& options) {
  v1::RollbackRequest request;
  if (options.to >= 0) request.set_to_version(static_cast<uint64_t>(options.to));
  return RunChange(options, std::move(request), &v1::PreviewRequest::mutable_rollback);
}

Output RunForget(const ChangeOptions& options) {
  if (options.job.empty()) return InvalidInput("no job is named, expected eplbctl forget JOB");
  return RunChange(options, v1::ForgetRequest(), &v1::PreviewRequest::mutable_forget);
}

Output RunSetPolicy(const ChangeOptions& options) {
  v1::SetPolicyRequest request;
  std::set<std::string> given;
  for (const std::string& setting : options.settings) {
    EPLB_ASSIGN_OR_RETURN(const std::string key, ApplySetting(setting, request.mutable_settings()));
    if (!given.insert(key).second) return InvalidInput(key, " is given twice");
  }
  return RunChange(options, std::move(request), &v1::PreviewRequest::mutable_set_policy);
}

void AddPause(const Flags& root) {
  AddChange(root, "pause", "Stop proposals for a job until it is resumed", &RunPause);
}

void AddResume(const Flags& root) {
  AddChange(root, "resume", "Resume proposals after a pause or a quarantine", &RunResume);
}

void AddRebalance(const Flags& root) {
  auto [flags, options] = AddChange(root, "rebalance", "Decide now, on the newest windows",
                                    &RunRebalance, {kNotFound, kConflict, kConditionNotMet});
  flags.Switch("--force", options.force, "Propose the policy's changes even if they do not pay");
  flags.Switch(
      "--wait", options.wait,
      "Wait until the decision has ended, as --dry-run does; exit 8 if nothing is switched");
  flags.Text("--wait-timeout", "DURATION", options.wait_timeout,
             "How long --wait waits, at most 24h [10m]");
}

void AddRollback(const Flags& root) {
  auto [flags, options] =
      AddChange(root, "rollback",
                "Return to an earlier placement and pause the job, so that it stays", &RunRollback);
  AddCount(flags, "--to", "V", options.to,
           "Version to return to [the one before the newest rebalance]");
}

void AddForget(const Flags& root) {
  AddChange(root, "forget", "Remove a job that has no connected rank; its audit log stays",
            &RunForget);
}

void AddSet(const Flags& root) {
  const Flags set = root.AddGroup("set", "Change settings of a job: policy");
  auto [flags, options] = AddChange(
      set, "policy", "Change settings of one job; other settings keep their values", &RunSetPolicy);
  flags.SkipsUnfit();  // a setting is no name of a job
  const auto append = [](std::string* out, const wire::SettingRow& row) { out->append(row.name); };
  flags
      .Texts("settings", "KEY=VALUE", options.settings,
             absl::StrJoin(wire::SettingRows(), ", ", append))
      .Required();
}

}  // namespace eplb::cli
