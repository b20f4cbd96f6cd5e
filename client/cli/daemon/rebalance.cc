#include "client/cli/daemon/rebalance.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "client/cli/daemon/record_json.h"
#include "client/cli/daemon/run_change.h"
#include "client/cli/daemon/wait.h"
#include "client/cli/duration_flag.h"
#include "client/cli/text.h"
#include "placement/status_macros.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
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
    if (next != nullptr && next->result() != "proposed") return *next;
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
  output.exit_code = plan.result() == "committed" ? kOk : kConditionNotMet;
  output.out = options.change.query.format == Format::kJson
                   ? PlanToJson(plan) + "\n"
                   : absl::StrCat("plan ", plan.plan(), " ", Printable(plan.result()), ": ",
                                  Printable(plan.reason()), "\n");
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
  Output asked = RunChange(options.change, std::move(request));
  if (asked.exit_code != kOk) return asked;
  const absl::StatusOr<v1::Plan> plan = AwaitDecision(options, number, *timeout);
  return plan.ok() ? DecisionOutput(options, *plan) : QueryFailure(plan.status());
}

}  // namespace

Output RunRebalance(const RebalanceOptions& options) {
  v1::RebalanceRequest request;
  request.set_force(options.force);
  return options.wait ? RebalanceAndWait(options, std::move(request))
                      : RunChange(options.change, std::move(request));
}

void AddRebalance(CLI::App& root, Command& command) {
  const auto options = std::make_shared<RebalanceOptions>();
  CLI::App& app = *root.add_subcommand("rebalance", "Decide now, from the newest windows");
  app.add_flag("--force", options->force,
               "Propose what the policy changes, without asking whether it pays");
  CLI::Option* const wait = app.add_flag(
      "--wait", options->wait, "Until the decision has ended; exit 8 when nothing was switched");
  app.add_option("--wait-timeout", options->wait_timeout, "How long, at most 24h [10m]")
      ->needs(wait)
      ->type_name("DURATION");
  AddChangeOptions(app, options->change, {kConditionNotMet});
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunRebalance(*options); };
  });
}

}  // namespace eplb::cli
