#include "client/cli/daemon/get_plans.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "client/cli/daemon/record_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kWide = 100;

std::string Versions(const v1::Plan& plan) {
  if (plan.first_version() == 0) return "-";
  if (plan.last_version() <= plan.first_version()) return absl::StrCat(plan.first_version());
  return absl::StrCat(plan.first_version(), "..", plan.last_version());
}

// "committed", or how many chunks were when not all.
std::string ResultText(const v1::Plan& plan) {
  if (plan.chunks_committed() == 0 || plan.chunks_committed() == plan.num_chunks()) {
    return Printable(plan.result());
  }
  return absl::StrCat(Printable(plan.result()), " ", plan.chunks_committed(), "/",
                      plan.num_chunks());
}

// Of the layers that were switched; a decision that moved nothing received nothing.
std::string ReceivedText(const v1::Plan& plan) {
  if (!plan.has_received_bytes() || plan.chunks_committed() == 0) return "-";
  return absl::StrFormat("%.1f MB", static_cast<double>(plan.received_bytes()) / 1e6);
}

std::string Ratio(std::optional<double> ratio) {
  return ratio.has_value() && *ratio > 0 ? absl::StrFormat("%.3f", *ratio) : "-";
}

Table PlanTable(const v1::ListPlansResponse& response, const Terminal& terminal) {
  const char* const format = terminal.width >= kWide ? "%Y-%m-%d %H:%M:%S" : "%m-%d %H:%M";
  // boundary: how long the longest boundary of a switch held a rank's training.
  Table table{.heading = {"plan", "time (UTC)", "steps", "result", "versions", "before",
                          "predicted", "seen", "transfers", "received", "boundary"},
              .right = {true, false, true, false, true, true, true, true, true, true, true},
              .rows = {}};
  for (const v1::Plan& plan : response.plans()) {
    const bool switched = plan.chunks_committed() > 0;
    table.rows.push_back(
        {absl::StrCat(plan.plan()),
         absl::FormatTime(format, absl::FromUnixMicros(plan.unix_micros()), absl::UTCTimeZone()),
         absl::StrCat(plan.decided_first_step(), "..", plan.decided_last_step()), ResultText(plan),
         Versions(plan), Ratio(plan.balancedness_before()), Ratio(plan.balancedness_predicted()),
         Ratio(plan.has_balancedness_seen() ? std::optional(plan.balancedness_seen())
                                            : std::nullopt),
         Grouped(static_cast<int64_t>(plan.transfers())), ReceivedText(plan),
         switched && plan.pause_seconds() > 0 ? Seconds(plan.pause_seconds()) : "-"});
  }
  constexpr std::string_view kOptional[] = {"versions", "transfers", "before", "time (UTC)"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// A table has no room for sentences.
std::string Reasons(const v1::ListPlansResponse& response, const Terminal& terminal) {
  constexpr int kShown = 3;
  std::string text;
  for (int i = 0; i < std::min(response.plans_size(), kShown); ++i) {
    const v1::Plan& plan = response.plans(i);
    const std::string who =
        plan.asked_by().empty() ? "" : absl::StrCat(" (asked for by ", plan.asked_by(), ")");
    absl::StrAppend(&text, "\n",
                    Wrapped(Printable(absl::StrCat("plan ", plan.plan(), who, ": ", plan.reason())),
                            terminal.width, 2),
                    "\n");
  }
  return text;
}

}  // namespace

Output RunGetPlans(const GetPlansOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListPlansRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  v1::ListPlansResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = PlansToJson(*job, response), .message = {}};
  }
  if (response.plans().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("nothing has been decided for job ", *job, " yet\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = FormatTable(PlanTable(response, terminal), terminal) + Reasons(response, terminal),
          .message = {}};
}

void AddGetPlans(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlansOptions>();
  CLI::App& app = *get.add_subcommand(
      "plans", "Decisions of a job, newest first: what each predicted and what was seen after it");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetPlans(*options, terminal); });
}

}  // namespace eplb::cli
